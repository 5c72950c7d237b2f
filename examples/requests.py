"""Ask every receiver of a topic, and read what they respond: python examples/requests.py lo.

A request goes out by the source's transport; each response comes straight back over TCP.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import umstack

RESPONDERS = 3


def responder(number: int) -> Callable[[umstack.Event], None]:
    """A callback that responds in the name of one of the receivers."""

    def on_message(event: umstack.Event) -> None:
        if isinstance(event, umstack.Request):
            event.respond(f"{number} has {event.data.decode()}".encode())

    return on_message


def main(interface: str, *, config: str | None = None) -> None:
    """Both ends in one process, which is unusual."""
    with umstack.Context(interface, config=config) as context:
        for number in range(RESPONDERS):
            context.receiver("stock", responder(number))
        source = context.source("stock", flow_control="min")
        source.wait_connected(timeout=10)

        with source.request(b"apples", timeout=10) as request:
            responses = [next(iter(request)).data.decode() for _ in range(RESPONDERS)]
        print(*sorted(responses), sep="\n")

        first = source.request(b"pears").first(timeout=10)
        print("the first of them:", first.data.decode()[2:])


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)
