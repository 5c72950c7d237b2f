"""Print the messages of a topic, and its losses: python examples/subscribe.py eth1 orders.

Every row is a typed object. A loss that could not be repaired is an event in its place in the order, never silence.
"""

from __future__ import annotations

import sys

import umstack


def describe(event: umstack.Event) -> str:
    """One line for one row of a receiver."""
    match event:
        case umstack.Message():
            return f"{event.sequence_number}: {event.data.decode()}"
        case umstack.UnrecoverableLoss():
            return f"{event.sequence_number}: lost"
        case umstack.BurstLoss():
            return f"{event.first_sequence_number}-{event.sequence_number}: lost"
        case umstack.BeginningOfSession():
            return f"begins: {event.source}"
        case umstack.EndOfSession():
            return f"ends: {event.source}"


def subscribe(context: umstack.Context, topic: str) -> None:
    """Print every row until the source's transport session ends."""
    with context.receiver(topic) as receiver:
        while True:
            for event in receiver.poll(timeout=1.0).events():
                print(describe(event), flush=True)
                if isinstance(event, umstack.EndOfSession):
                    return


def main(interface: str, topic: str, *, config: str | None = None) -> None:
    """Open a context on an interface and subscribe."""
    with umstack.Context(interface, config=config) as context:
        subscribe(context, topic)


if __name__ == "__main__":
    main(*sys.argv[1:3], config=sys.argv[3] if len(sys.argv) > 3 else None)
