"""TCP connections of recovery as captures see them, written byte by byte."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.unit.capture_bytes import RECEIVER, SESSION, SOURCE, START_NS, Packet, ethernet, frame, ipv4
from umstack._engine.endpoint import Endpoint
from umstack.recovery.codec import (
    LATE_JOIN_REQUEST,
    OFF_TRANSPORT_REQUEST,
    RangeRequest,
    encode_range_request,
    endpoint_option,
)
from umstack.resolution.codec import Advertisement, LbtrmAddress, ResolutionDatagram, encode

REQUEST_PORT, RECEIVER_PORT = 14392, 40001
TOPIC = 7
FIN, SYN, RST, ACK = 1, 2, 4, 16
_CHAINED = 21


def recovered(sqn: int, payload: bytes) -> bytes:
    """A message that is sent again over TCP."""
    return struct.pack("!BBHII", 10, 0, 12 + len(payload), TOPIC, sqn) + payload


def requests(*sqns: int) -> bytes:
    """One control message that requests messages."""
    options = b"".join(
        struct.pack(
            "!BBHIIIIHHI", 255 if at == len(sqns) - 1 else _CHAINED, 28, 0, at, 0, TOPIC, sqn, 0, 0, 0
        )
        for at, sqn in enumerate(sqns)
    )
    return struct.pack("!BBH", 8, _CHAINED, 4 + len(options)) + options


def promised(low: int, high: int) -> bytes:
    """The range that a source retains."""
    return struct.pack("!BBHBBHIII", 8, 30, 20, 255, 16, 0, low, high, 0)


@dataclass
class Connection:
    """Segments of a connection, as a capture sees them."""

    receiver_port: int = RECEIVER_PORT
    source_port: int = REQUEST_PORT
    packets: list[Packet] = field(default_factory=list)
    sqns: dict[bool, int] = field(default_factory=lambda: {True: 0xFFFFFF00, False: 1000})
    """The next number from the source, and from the receiver; the source's wrap."""

    def segment(
        self,
        *,
        from_source: bool,
        payload: bytes = b"",
        flags: int = ACK,
        sqn: int | None = None,
        kept: int = 0,
    ) -> Packet:
        """A segment; `kept` bytes of the frame are captured, 0: all."""
        ends = (self.source_port, self.receiver_port)
        ends = ends if from_source else ends[::-1]
        at = self.sqns[from_source] if sqn is None else sqn
        head = struct.pack(
            "!HHIIBBHHH", *ends, at % 2**32, self.sqns[not from_source] % 2**32, 0x50, flags, 0, 0, 0
        )
        hosts = (SOURCE, RECEIVER) if from_source else (RECEIVER, SOURCE)
        content = ethernet(ipv4(head + payload, *hosts, protocol=6))
        if sqn is None:
            self.sqns[from_source] = at + len(payload) + (1 if flags & (SYN | FIN) else 0)
        return Packet(START_NS, content[:kept] if kept else content, len(content))

    def add(self, **options: Any) -> None:
        """Capture one."""
        self.packets.append(replace(self.segment(**options), time_ns=START_NS + 1000 * len(self.packets)))

    def open(self) -> Connection:
        """Its beginning."""
        self.add(from_source=False, flags=SYN)
        self.add(from_source=True, flags=SYN | ACK)
        self.add(from_source=False)
        return self

    def send(self, stream: bytes, cuts: Iterable[int], *, from_source: bool = True) -> None:
        """Send a stream in segments that end at these places, and at its end."""
        begin = 0
        for end in [*cuts, len(stream)]:
            self.add(from_source=from_source, payload=stream[begin:end])
            begin = end


def recoveries() -> list[Packet]:
    """A late join of 30 messages in three connections, and an off-transport recovery of 5 of which 3 came; the topic is
    advertised as "orders" in the session of the other captures."""
    address = LbtrmAddress(SOURCE, "224.10.10.10", SESSION, 14400, 14390)
    offer = (endpoint_option(Endpoint(SOURCE, REQUEST_PORT)),)
    printed = encode(ResolutionDatagram((), (Advertisement("orders", TOPIC, 0, address, offer),)))
    packets = [Packet(START_NS, frame(printed, destination_port=12965))]
    for port, index, wanted, came in (
        (40001, LATE_JOIN_REQUEST, range(10), 10),
        (40002, LATE_JOIN_REQUEST, range(10, 30), 20),
        (40003, OFF_TRANSPORT_REQUEST, range(50, 55), 3),
        (40004, LATE_JOIN_REQUEST, range(0), 0),
    ):
        connection = Connection(port).open()
        asked = encode_range_request(RangeRequest(TOPIC, index)) + (requests(*wanted) if wanted else b"")
        connection.send(asked, [30], from_source=False)
        answer = promised(0, 99) + b"".join(recovered(sqn, b"x" * 500) for sqn in wanted[:came])
        connection.send(answer, range(700, len(answer), 700))
        packets += connection.packets
    return [replace(packet, time_ns=START_NS + at * 1_000_000) for at, packet in enumerate(packets)]
