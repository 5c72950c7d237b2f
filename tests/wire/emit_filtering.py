"""Two receivers of different topics of an LBT-RU session that filters, captured on the loopback of a network namespace.

Usage like emit.py: `unshare --net python tests/wire/emit_filtering.py DIRECTORY`. One session without keys, one with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.waiting import wait_for
from tests.wire.emit import SECONDS, capturing, open_context, set_up_loopback, take
from umstack.key_file import write_new_key_file

OPTIONS: dict[str, Any] = {
    "transport": "lbtru",
    "flow_control": "min",
    "transport_lbtru_sm_minimum_interval": 60,
    "transport_source_side_filtering_behavior": "inclusion",
}
COUNT = 300
"""Number of messages per topic."""
RUN_BYTES = 1200
"""Length of the messages of the run, which is more than twice the 128 KiB that are reported at once: the report does
not wait, or a datagram to all receivers, such as a group report, could take its place.
"""


def publish(topics: tuple[str, str], keys: dict[str, Any]) -> dict[str, Any]:
    """Send both topics in turns, a datagram per message, then many of the first alone. Return the counts."""
    with open_context(**keys) as publisher, open_context(**keys) as one, open_context(**keys) as other:
        sources = [publisher.source(topic, **OPTIONS, transport_session_name=topics[0]) for topic in topics]
        receivers = [context.receiver(topic) for context, topic in zip((one, other), topics, strict=True)]
        first = sources[0]
        wait_for(lambda: first.stats()["num_clients"] == 2, "the connections")
        first.wait_connected(timeout=SECONDS)
        wait_for(lambda: (first.stats()["interests_rcved"] or 0) >= 2, "the receivers' interests")
        for number in range(COUNT):
            for source in sources:
                source.send(b"%08d" % number, flush=True)
        for receiver in receivers:
            take(receiver, COUNT)
        reports = first.stats()["filter_reports_sent"] or 0
        first.send_many([bytes(RUN_BYTES)] * COUNT, flush=True)
        take(receivers[0], COUNT)
        wait_for(lambda: (first.stats()["filter_reports_sent"] or 0) > reports, "a report on the run")
        sources[1].send(b"last", flush=True)
        take(receivers[1], 1)
        reports = first.stats()["filter_reports_sent"] or 0
        wait_for(lambda: (first.stats()["filter_reports_sent"] or 0) > reports, "a report on the last")
        stats = first.stats()
        _, _, port, session_id = first.transport.split(":")
        names = ("rxs_sent", "naks_rcved", "copies_filtered", "filter_reports_sent")
        return {
            "session_id": int(session_id, 16),
            "port": int(port),
            **{name: stats[name] for name in names},
        }


def main() -> None:
    """Send everything, and write the facts."""
    directory = Path(sys.argv[1])
    set_up_loopback()
    write_new_key_file(directory / "keys", ["keyed*"])
    keys = {"authentication_key_file": str(directory / "keys"), "authentication_scope": "all"}
    with capturing(directory / "wire.pcapng"):
        facts = [publish(("red", "green"), {}), publish(("keyed-red", "keyed-green"), keys)]
    (directory / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
