"""Makes the stack send its LBT-TCP packet types on the loopback of a network namespace, and captures them.

Usage like emit.py: `unshare --net python tests/wire/emit_lbttcp.py DIRECTORY`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.waiting import wait_for
from tests.wire.emit import SECONDS, capturing, open_context, set_up_loopback, take

FIRST, SECOND, THIRD = 300, 200, 100
"""Numbers of messages to the first receiver alone, to both, and to the first alone again."""


def publish(facts: dict[str, Any]) -> None:
    """Send to one receiver, to two, and to one again after the second has left; a large message at the end."""
    with open_context() as publisher, open_context() as subscriber:
        receiver = subscriber.receiver("orders")
        source = publisher.source("orders", transport="tcp")
        source.wait_connected(timeout=SECONDS)

        def send(count: int) -> None:
            for number in range(count):
                source.send(b"%06d" % number, flush=number % 10 == 9)
            source.send(b"last", flush=True)

        send(FIRST - 1)
        take(receiver, FIRST)
        with open_context() as other:
            second = other.receiver("orders")
            wait_for(lambda: source.stats()["num_clients"] == 2, "the second receiver")
            send(SECOND - 1)
            take(second, SECOND)
        wait_for(lambda: source.stats()["num_clients"] == 1, "the second receiver's leave")
        send(THIRD - 1)
        take(receiver, SECOND + THIRD)
        _, _, port, session_id = source.transport.split(":")
        facts["session_id"], facts["source_port"] = int(session_id, 16), int(port)


def main() -> None:
    """Send everything, and write the facts."""
    directory = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    set_up_loopback()
    with capturing(directory / "wire.pcapng"):
        publish(facts)
    (directory / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
