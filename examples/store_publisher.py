"""Publish messages that a Store keeps: python examples/store_publisher.py eth1 orders 1000 10.9.0.11:14567.

It ends when every message is stable. Started again, it continues its numbering.
"""

from __future__ import annotations

import sys

import umstack


def publish(context: umstack.Context, topic: str, count: int, store: str) -> None:
    """Send `count` messages, and wait until the Store has all of them."""
    source = context.source(topic, store=[store], session_id="desk7")
    first = source.first_sequence_number
    source.send_many([b"order %d" % (first + number) for number in range(count)], flush=True)
    unstable = source.close(timeout=10)
    if unstable:
        raise SystemExit(f"{len(unstable)} messages are not stable after 10 s")
    print(f"messages {first} to {first + count - 1} on {topic!r} are stable")


def main(interface: str, topic: str, count: str, store: str, *, config: str | None = None) -> None:
    """Open a context on an interface and publish."""
    with umstack.Context(interface, config=config) as context:
        publish(context, topic, int(count), store)


if __name__ == "__main__":
    main(*sys.argv[1:5], config=sys.argv[5] if len(sys.argv) > 5 else None)
