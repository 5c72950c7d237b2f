"""Captures of LBT-RU and LBT-TCP whose truth is known, byte by byte: who connected, what each receiver was sent.

Both are seen where every receiver's copies pass, at a source's port.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from tests.unit.capture_bytes import (
    START_NS,
    Packet,
    ethernet,
    frame,
    ipv4,
    lbtru_options,
    message,
    udp,
)
from umstack.resolution.codec import Advertisement, LbtruAddress, ResolutionDatagram, TcpAddress, encode

MS = 1_000_000
SOURCE, SESSION = "10.0.0.21", 0x5EED0B0B
"""Another than those of the other captures, so that all can be in one report."""
LBTRU_PORT, TCP_PORT = 14380, 14371
FIRST, SECOND, THIRD = ("10.1.0.7", 14360), ("10.1.0.8", 14361), ("10.1.0.8", 14362)
TOPIC, OTHER_TOPIC = 7, 8
DATAGRAMS = 1000
LOST_BY_FIRST, LOST_BY_SECOND = tuple(range(100, 105)), (300,)
SECOND_ENDS, THIRD_BEGINS = 700, 600
"""The datagram behind the last one that the second was sent, and the first one that the third was."""
WRAPS_AT = 2**32 - 500
"""The transport sequence number of the first datagram: they wrap."""
FILTERED_SESSION = SESSION + 1
UNCAPTURED = (301, 701)
ASKED = (520, 521)
TCP_MESSAGES, LEFT_OUT = 1000, range(500, 520)
RECONNECTED_AT = 350
RECONNECTED_BEHIND = 300


def _advertised(address: LbtruAddress | TcpAddress, *topics: tuple[str, int]) -> Packet:
    printed = tuple(Advertisement(name, index, 0, address) for name, index in topics)
    return Packet(START_NS, frame(encode(ResolutionDatagram((), printed)), destination_port=12965))


class _Datagrams:
    """A session of LBT-RU at its source's port."""

    def __init__(self, session: int = SESSION) -> None:
        self.packets: list[Packet] = []
        self._session = session

    def _add(
        self, time_ns: int, content: bytes, receiver: tuple[str, int], *, to_source: bool = False
    ) -> None:
        address, port = receiver
        ends = (address, SOURCE) if to_source else (SOURCE, address)
        ports = (port, LBTRU_PORT) if to_source else (LBTRU_PORT, port)
        self.packets.append(Packet(time_ns, ethernet(ipv4(udp(content, *ports), *ends))))

    def data(
        self, time_ns: int, number: int, receiver: tuple[str, int], *, again: bool = False, passed: int = 0
    ) -> None:
        """One copy of a datagram with two messages; so many before it were not for this receiver."""
        sqn = (WRAPS_AT + number) % 2**32
        flags = 0x4000 if again else passed
        head = struct.pack("!BBHII", 0, 1, flags, sqn, WRAPS_AT) + lbtru_options(self._session)
        messages = message(TOPIC, number, b"x" * 100) + message(OTHER_TOPIC, number, b"y" * 50)
        self._add(time_ns, head + messages, receiver)

    def control(
        self, time_ns: int, kind: int, body: bytes, receiver: tuple[str, int], flags: int = 0
    ) -> None:
        """A packet with both options: of the receiver, but for SM and NCF."""
        content = struct.pack("!BBH", kind, 1, flags) + body + lbtru_options(self._session)
        self._add(time_ns, content, receiver, to_source=kind in (3, 5, 6))

    def report(self, time_ns: int, first: int, count: int, receiver: tuple[str, int]) -> None:
        """A filter report: so many numbers from `first` on were not for this receiver."""
        before = WRAPS_AT - 1
        head = struct.pack("!BBHII", 0, 1, 0x4000, before, before) + lbtru_options(self._session)
        printed = struct.pack("!BxxxIIII", 1, (WRAPS_AT + first) % 2**32, count, 7, WRAPS_AT)
        option = struct.pack("!BBHBBBBHH", 8, 254, 32, 255, 28, 0xC0, 85, 6, 0) + printed
        self._add(time_ns, head + option, receiver)

    def connect(self, time_ns: int, receiver: tuple[str, int], number: int) -> None:
        """A receiver asks, is answered, and acknowledges."""
        lead = (WRAPS_AT + number - 1) % 2**32
        self.control(time_ns, 6, b"", receiver)
        self.control(time_ns + 1000, 2, struct.pack("!III", 1, lead, WRAPS_AT), receiver, 0x8000)
        self.control(time_ns + 2000, 5, struct.pack("!I", lead), receiver)

    def nak(self, time_ns: int, receiver: tuple[str, int], *numbers: int) -> None:
        """A receiver asks for datagrams."""
        sqns = [(WRAPS_AT + number) % 2**32 for number in numbers]
        self.control(time_ns, 3, struct.pack(f"!HH{len(sqns)}I", len(sqns), 0, *sqns), receiver)

    def acknowledge(self, time_ns: int, number: int, receiver: tuple[str, int]) -> None:
        """A receiver shows that it lives."""
        self.control(time_ns, 5, struct.pack("!I", (WRAPS_AT + number) % 2**32), receiver)

    def recover(
        self, at: int, asker: tuple[str, int], lost: tuple[int, ...], receivers: list[tuple[str, int]]
    ) -> None:
        """A receiver asks; all get it again, behind an NCF that puts off the second's."""
        self.nak(at + 100_000, asker, *lost)
        if asker == SECOND:
            sqn = (WRAPS_AT + lost[0]) % 2**32
            for one in receivers:
                self.control(at + 150_000, 4, struct.pack("!IHBBI", WRAPS_AT, 1, 0, 2 << 4, sqn), one)
        for again in lost:
            for place, one in enumerate(receivers):
                self.data(at + 200_000 + 1000 * place, again, one, again=True)


def lbtru_session() -> list[Packet]:
    """1000 datagrams in a second to three receivers, of which the second leaves and the third comes; each loses some,
    and what one asks for is sent again to all. Once the source puts a NAK off by an NCF, of which each has a copy."""
    session = _Datagrams()
    start = START_NS // MS * MS + MS
    for receiver in (FIRST, SECOND):
        session.connect(start - 500_000, receiver, 0)
    for number in range(DATAGRAMS):
        at = start + number * MS
        if number == THIRD_BEGINS:
            session.connect(at - 10_000, THIRD, number)
        to = [FIRST]
        if number < SECOND_ENDS:
            to.append(SECOND)
        if number >= THIRD_BEGINS:
            to.append(THIRD)
        for place, receiver in enumerate(to):
            session.data(at + 1000 * place, number, receiver)
        for receiver, lost in ((FIRST, LOST_BY_FIRST), (SECOND, LOST_BY_SECOND)):
            if number == lost[-1] + 20:
                session.recover(at, receiver, lost, to)
        if number % 50 == 0:
            for receiver in to:
                session.acknowledge(at + 300_000, number, receiver)
    printed = _advertised(
        LbtruAddress(SOURCE, SESSION, LBTRU_PORT), ("unicast/orders", TOPIC), ("unicast/quotes", OTHER_TOPIC)
    )
    return [replace(printed, time_ns=start - MS), *session.packets]


def lbtru_filtered() -> list[Packet]:
    """1000 datagrams in two minutes for two receivers, each with its own topics: the first every other one, the
    second ten after ninety; a report covers one half of those skipped, DATA the other half. Nothing is lost, but the
    copies of UNCAPTURED to the first are not in the capture, and it NAKs ASKED, one of which it does not need. The
    transport's numbers wrap."""
    session = _Datagrams(FILTERED_SESSION)
    start = START_NS // MS * MS + MS
    for receiver in (FIRST, SECOND):
        session.connect(start - 500_000, receiver, 0)
    for number in range(DATAGRAMS):
        at = start + number * 120 * MS
        if number % 2 == 1 and number not in UNCAPTURED:
            session.data(at, number, FIRST, passed=1)
        if number == ASKED[-1] + 4:
            session.nak(at + 100_000, FIRST, *ASKED)
            session.report(at + 200_000, ASKED[0], 1, FIRST)
            session.data(at + 201_000, ASKED[1], FIRST, again=True)
        if number % 100 == 50:
            session.report(at, number - 50, 45, SECOND)
        if number % 100 >= 90:
            session.data(at + 1000, number, SECOND, passed=45 if number % 100 == 90 else 0)
    return session.packets


def lbtru_storm() -> list[Packet]:
    """Two receivers that ask, twelve times each within a twentieth of a second, for the same ten datagrams."""
    session = _Datagrams()
    start = START_NS // (100 * MS) * 100 * MS
    for number in range(10):
        for receiver in (FIRST, SECOND):
            session.data(start + number * 1000, number, receiver)
    for turn in range(12):
        for receiver in (FIRST, SECOND):
            session.nak(start + (10 + 3 * turn) * MS, receiver, *range(10))
    return session.packets


class _Connection:
    """A connection of LBT-TCP."""

    def __init__(self, packets: list[Packet], address: str, port: int) -> None:
        self._packets, self._address, self._port = packets, address, port
        self._sqns = {True: 7_000, False: 1_000}

    def segment(self, time_ns: int, flags: int, payload: bytes = b"", *, from_source: bool) -> None:
        """Capture one; flags are those of TCP."""
        ports = (TCP_PORT, self._port) if from_source else (self._port, TCP_PORT)
        hosts = (SOURCE, self._address) if from_source else (self._address, SOURCE)
        sqns = self._sqns[from_source], self._sqns[not from_source]
        head = struct.pack("!HHIIBBHHH", *ports, *sqns, 0x50, flags, 0, 0, 0)
        self._packets.append(Packet(time_ns, ethernet(ipv4(head + payload, *hosts, protocol=6))))
        self._sqns[from_source] += len(payload) + (flags & 2) // 2 + (flags & 1)

    def open(self, time_ns: int) -> None:
        """SYN and its answers; the receiver names the session."""
        self.segment(time_ns, 2, from_source=False)
        self.segment(time_ns + 1000, 18, from_source=True)
        named = struct.pack("!BBHBBHI", 8, 107, 12, 255, 8, 0, SESSION)
        self.segment(time_ns + 2000, 16, named, from_source=False)

    def close(self, time_ns: int) -> None:
        """The receiver ends it."""
        self.segment(time_ns, 17, from_source=False)
        self.segment(time_ns + 1000, 17, from_source=True)


def lbttcp_session() -> list[Packet]:
    """1000 messages in a second. One receiver stays connected; the other reconnects, and the source skips some messages
    on its new connection because it is slow."""
    packets: list[Packet] = []
    start = START_NS // MS * MS + MS
    first = _Connection(packets, FIRST[0], 40001)
    second, again = _Connection(packets, SECOND[0], 40002), _Connection(packets, SECOND[0], 40003)
    for connection in (first, second):
        connection.open(start - 500_000)
    for number in range(TCP_MESSAGES):
        at = start + number * MS
        content = message(TOPIC, number, b"z" * 100)
        first.segment(at, 24, content, from_source=True)
        if number < RECONNECTED_BEHIND:
            second.segment(at + 1000, 24, content, from_source=True)
        if number == RECONNECTED_BEHIND:
            second.close(at + 1000)
        if number == RECONNECTED_AT:
            again.open(at - 100_000)
        if number >= RECONNECTED_AT and number not in LEFT_OUT:
            again.segment(at + 1000, 24, content, from_source=True)
        if number % 100 == 0:
            first.segment(at + 300_000, 16, from_source=False)
    printed = _advertised(TcpAddress(SOURCE, SESSION, TCP_PORT), ("tcp/orders", TOPIC))
    return [replace(printed, time_ns=start - MS), *packets]


_UDP_AT, _LBTRU_AT = 34, 42


def _ends(packet: Packet) -> set[tuple[str, int]]:
    content = packet.data
    addresses = [".".join(map(str, content[at : at + 4])) for at in (26, 30)]
    ports = struct.unpack_from("!HH", content, _UDP_AT)
    return set(zip(addresses, ports, strict=True))


def is_of(packet: Packet, receiver: tuple[str, int]) -> bool:
    """Whether a receiver sent it, or was sent it."""
    return receiver in _ends(packet)


def is_from_source(packet: Packet) -> bool:
    """Whether the source sent it."""
    return ".".join(map(str, packet.data[26:30])) == SOURCE


def _is_data(packet: Packet) -> bool:
    return (SOURCE, LBTRU_PORT) in _ends(packet) and packet.data[_LBTRU_AT] == 0


def is_first_sending(packet: Packet, receiver: tuple[str, int]) -> bool:
    """Whether it is a first sending of LBT-RU to a receiver."""
    return _is_data(packet) and is_of(packet, receiver) and not packet.data[_LBTRU_AT + 2] & 0x40


def is_retransmission(packet: Packet) -> bool:
    """Whether it is a copy of LBT-RU that was sent again."""
    return _is_data(packet) and bool(packet.data[_LBTRU_AT + 2] & 0x40)


def without_session_id(packet: Packet) -> Packet:
    """The same packet of LBT-RU with one option, the client id: the session has no id."""
    content = packet.data
    if (SOURCE, LBTRU_PORT) not in _ends(packet):
        return packet
    both = lbtru_options(SESSION)
    at = content.index(both, _LBTRU_AT)
    payload = (
        bytes([content[_LBTRU_AT], 2]) + content[_LBTRU_AT + 2 : at] + both[8:] + content[at + len(both) :]
    )
    ports = struct.unpack_from("!HH", content, _UDP_AT)
    addresses = [".".join(map(str, content[place : place + 4])) for place in (26, 30)]
    return replace(packet, data=ethernet(ipv4(udp(payload, *ports), *addresses)))
