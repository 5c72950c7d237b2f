"""Packets written by hand: the columns of a capture that the analyses read, with each time and number chosen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from umstack.capture import SCHEMA
from umstack.facts.facts import Counter, Facts, facts_of_packets
from umstack.facts.packed import PACKED, packed

PUBLISHER = "10.0.0.1"
RECEIVERS = ("10.0.0.2", "10.0.0.3", "10.0.0.4")
GROUP = "239.101.3.10"
SESSION_ID = 0x5EED0001
WRAP = 2**32
US = 1_000
MS = 1_000_000
HEADERS = 42

COLUMNS = pa.schema([field.with_nullable(True) for field in SCHEMA])
"""The columns of a capture; a column that no story sets is null."""


def message(topic_index: int = 1, topic_sqn: int = 0, payload_bytes: int = 100) -> dict[str, Any]:
    """Return a whole message."""
    return {
        "topic_index": topic_index,
        "topic_sqn": topic_sqn,
        "first_sqn": None,
        "fragment_offset": None,
        "message_length": None,
        "payload_bytes": payload_bytes,
        "kind": "message",
    }


@dataclass(slots=True)
class Story:
    """A capture under construction. Times are nanoseconds; sequence numbers wrap as on the wire."""

    point: str = "switch"
    session_id: int = SESSION_ID
    publisher: str = PUBLISHER
    packets: list[dict[str, Any]] = field(default_factory=list)

    def _add(self, time_ns: int, source: str, destination: str, udp_bytes: int, **values: Any) -> None:
        packet = dict.fromkeys(
            ("transport_sqn", "trail_sqn", "retransmission", "sqns", "ncf_reason", "messages")
        )
        packet |= {
            "capture_file": f"file:/captures/{self.point}.pcapng",
            "position": len(self.packets) * 100,
            "time_ns": time_ns,
            "interface_name": "",
            "frame_bytes": udp_bytes + HEADERS,
            "source_address": source,
            "source_port": 14400,
            "destination_address": destination,
            "destination_port": 14400,
            "ip_fragment": False,
            "ip_fragments": None,
            "udp_bytes": udp_bytes,
            "status": "ok",
            "transport": "LBT-RM",
            "to_source": destination == self.publisher,
            "session_id": self.session_id,
        }
        self.packets.append(packet | values)

    def data(self, time_ns: int, sqn: int, *, again: bool = False, **values: Any) -> None:
        """Add a datagram of one message; the message has 100 bytes unless `values` replaces it."""
        messages = values.pop("messages", [message(topic_sqn=sqn)])
        size = values.pop("udp_bytes", 20 + sum(12 + one["payload_bytes"] for one in messages))
        numbered = {
            "transport_sqn": sqn % WRAP,
            "trail_sqn": 0,
            "retransmission": again,
            "messages": messages,
        }
        self._add(time_ns, self.publisher, GROUP, size, **{"packet_type": "DATA", **numbered, **values})

    def session_message(self, time_ns: int, lead: int) -> None:
        """Add a session message with the last sqn sent."""
        values = {"packet_type": "SM", "lead_sqn": lead % WRAP, "trail_sqn": 0}
        self._add(time_ns, self.publisher, GROUP, 24, **values)

    def again(self, time_ns: int, sqn: int) -> None:
        """Add a retransmission."""
        self.data(time_ns, sqn, again=True)

    def nak(self, time_ns: int, receiver: str, *sqns: int) -> None:
        """Add a receiver's NAK for these sequence numbers."""
        wrapped = [sqn % WRAP for sqn in sqns]
        self._add(time_ns, receiver, self.publisher, 12 + 4 * len(sqns), packet_type="NAK", sqns=wrapped)

    def ncf(self, time_ns: int, reason: str, *sqns: int) -> None:
        """Add the source's NCF for these sequence numbers."""
        wrapped = [sqn % WRAP for sqn in sqns]
        values = {"packet_type": "NCF", "sqns": wrapped, "ncf_reason": reason, "trail_sqn": 0}
        self._add(time_ns, self.publisher, GROUP, 16 + 4 * len(sqns), **values)

    def status(self, time_ns: int, receiver: str, sqn: int) -> None:
        """Add a receiver's status message."""
        values = {"packet_type": "STATUS", "next_sqn": sqn % WRAP}
        self._add(time_ns, receiver, self.publisher, 44, **values)

    def stream(self, start_ns: int, step_ns: int, first: int, count: int) -> None:
        """Add datagrams at a fixed interval."""
        for number in range(count):
            self.data(start_ns + number * step_ns, first + number)

    def batch(self) -> pa.RecordBatch:
        """Return the packets as the decoder returns them."""
        return pa.RecordBatch.from_pylist(self.packets, schema=COLUMNS)

    def facts(self) -> Facts:
        """Return the facts of the packets."""
        return facts_of_packets([self.batch()])

    def packed(self, window_ns: int) -> pa.Table:
        """Return the facts of the packets by windows, as the monitor receives them."""
        return packed_by_window([self.batch()], window_ns)


def packed_by_window(batches: Iterable[pa.RecordBatch], window_ns: int) -> pa.Table:
    """Return the facts of packets by windows, as rows."""
    counter = Counter(window_ns)
    for batch in batches:
        counter.take(batch)
    parts = [packed(facts, at) for at, facts in counter.facts().items()]
    return pa.concat_tables([PACKED.empty_table(), *parts])
