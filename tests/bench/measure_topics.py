"""Measure how long receivers of many topics take to find their sources: two contexts of one process, on loopback."""

from __future__ import annotations

import json
import time

import click

from tests.unit.loopback import open_context
from tests.waiting import wait_for

_SECONDS = 120.0


def measure(topics: int) -> dict[str, float | int]:
    """Create the sources, then the receivers, and wait until each receiver has found its source."""
    with open_context() as publisher, open_context() as subscriber, subscriber.event_queue() as queue:
        begun = time.monotonic()
        for number in range(topics):
            publisher.source(f"many.{number:06}")
        sources = time.monotonic()
        for number in range(topics):
            subscriber.receiver(f"many.{number:06}", queue=queue)
        receivers = time.monotonic()
        resolver = subscriber._resolver

        def has_found_all() -> bool:
            stats = resolver.stats()
            return stats["tr_rcv_topics"] - stats["tr_rcv_unresolved_topics"] == topics

        wait_for(has_found_all, "the sources", _SECONDS)
        found = time.monotonic()
        stats = resolver.stats()
    return {
        "topics": topics,
        "sources_created_s": round(sources - begun, 2),
        "receivers_created_s": round(receivers - sources, 2),
        "found_s": round(found - sources, 2),
        "queries_sent": stats["tr_queries_sent"],
        "datagrams_sent": stats["tr_dgrams_sent"],
    }


@click.command()
@click.option("--topics", default=10_000, show_default=True, help="Number of topics.")
def main(topics: int) -> None:
    """Print the times in seconds, as JSON.

    Example: python -m tests.bench.measure_topics --topics 10000
    """
    print(json.dumps(measure(topics)))


if __name__ == "__main__":
    main()
