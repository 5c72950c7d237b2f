"""One stream over two lines, each with losses: python examples/hot_failover.py lo.

Two publishers send the same numbered messages. The receiver has each once, in order, whichever line brought it.
"""

from __future__ import annotations

import sys

import umstack

COUNT = 1000


def main(interface: str, *, config: str | None = None) -> None:
    """Lines of one network, in one process; `others=` takes the contexts of other networks."""
    with (
        umstack.Context(interface, config=config) as first,
        umstack.Context(interface, config=config) as second,
        umstack.Context(interface, config=config) as subscriber,
    ):
        receiver = subscriber.hot_failover_receiver("quotes")
        lines = [context.source("quotes", flow_control="min") for context in (first, second)]
        for line in lines:
            line.wait_connected(timeout=10)

        for number in range(COUNT):
            data = b"quote %d" % number
            if number < 800:  # then the first line dies
                lines[0].send_hot_failover(data, number)
            lines[1].send_hot_failover(data, number)
        for line in lines:
            line.flush()

        numbers = []
        for message in receiver:
            numbers.append(message.hot_failover_sequence_number)
            if len(numbers) == COUNT:
                break
        print(f"{len(numbers)} messages, each once and in order: {numbers == list(range(COUNT))}")


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)
