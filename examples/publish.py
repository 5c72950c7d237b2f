"""Publish numbered messages to a topic: python examples/publish.py eth1 orders 1000.

The source waits for a receiver, is paced by the slowest one, and ends only when each of them has everything.
"""

from __future__ import annotations

import sys

import umstack


def publish(context: umstack.Context, topic: str, count: int) -> int:
    """Send `count` messages and return the topic sequence number of the last."""
    with context.source(topic, flow_control="min") as source:
        source.wait_connected(timeout=10)
        last = 0
        for number in range(count):
            last = source.send(f"message {number}".encode())
        source.flush()  # what implicit batching still holds
        if not source.wait_drained(timeout=10):
            raise SystemExit("not every receiver has everything after 10 s")
        return last


def main(interface: str, topic: str, count: str, *, config: str | None = None) -> None:
    """Open a context on an interface and publish."""
    with umstack.Context(interface, config=config) as context:
        last = publish(context, topic, int(count))
        print(f"{count} messages on {topic!r}, the last has sequence number {last}")


if __name__ == "__main__":
    main(*sys.argv[1:4], config=sys.argv[4] if len(sys.argv) > 4 else None)
