"""Measure how long receivers of many topics take to find their sources and, if asked, the message that each source
retains: two contexts of one process, on loopback."""

from __future__ import annotations

import json
import time

import click

from tests.unit.loopback import open_context
from tests.waiting import wait_for
from umstack.events import Message

_SECONDS = 120.0


def measure(topics: int, late_join: bool) -> dict[str, float | int]:
    """Create the sources, then the receivers, and wait until each receiver has found its source.

    With late join, each source sends a message before the receivers are created, and each receiver must get it.
    """
    with open_context() as publisher, open_context() as subscriber, subscriber.event_queue() as queue:
        begun = time.monotonic()
        created = [
            publisher.source(f"many.{number:06}", late_join=int(late_join)) for number in range(topics)
        ]
        ready = time.monotonic()
        if late_join:
            for source in created:
                source.send(b"retained")
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
        received: set[str] = set()

        def has_joined_all() -> bool:
            received.update(event.topic for event in queue.poll().events() if isinstance(event, Message))
            return len(received) == topics

        if late_join:
            wait_for(has_joined_all, "the retained messages", _SECONDS)
        joined = time.monotonic()
    closed = time.monotonic()
    return {
        "topics": topics,
        "sources_created_s": round(ready - begun, 2),
        "first_messages_sent_s": round(sources - ready, 2),
        "receivers_created_s": round(receivers - sources, 2),
        "found_s": round(found - sources, 2),
        "joined_s": round(joined - sources, 2),
        "closed_s": round(closed - joined, 2),
        "queries_sent": stats["tr_queries_sent"],
        "datagrams_sent": stats["tr_dgrams_sent"],
    }


@click.command()
@click.option("--topics", default=10_000, show_default=True, help="Number of topics.")
@click.option("--late-join", is_flag=True, help="Let each source retain a message for its late receiver.")
def main(topics: int, late_join: bool) -> None:
    """Print the times in seconds, as JSON.

    Example: python -m tests.bench.measure_topics --topics 10000 --late-join
    """
    print(json.dumps(measure(topics, late_join)))


if __name__ == "__main__":
    main()
