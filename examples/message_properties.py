"""Pick messages by properties that travel beside their data: python examples/message_properties.py lo."""

from __future__ import annotations

import sys

import umstack

REGIONS = ("eu", "us", "asia")


def main(interface: str, *, config: str | None = None) -> None:
    """Both ends in one process, which is unusual."""
    with umstack.Context(interface, config=config) as context:
        receiver = context.receiver("orders")
        source = context.source("orders", flow_control="min")
        source.wait_connected(timeout=10)

        # Create properties that many messages share only once.
        by_region = [umstack.MessageProperties({"region": region, "priority": 1}) for region in REGIONS]
        for number in range(9):
            source.send(b"order %d" % number, properties=by_region[number % 3])
        source.send(b"the last one", flush=True, properties={"region": "eu", "urgent": True, "price": 99.5})

        for message in receiver:
            if message.properties.get("region") == "eu":
                print(message.data.decode(), dict(message.properties))
            if "urgent" in message.properties:
                break


if __name__ == "__main__":
    main(sys.argv[1], config=sys.argv[2] if len(sys.argv) > 2 else None)
