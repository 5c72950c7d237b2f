"""Captures written byte by byte, so that what reads them is not what wrote them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ETHERNET, NULL, RAW, LOOP, SLL, SLL2 = 1, 0, 101, 108, 113, 276
SOURCE, GROUP, RECEIVER = "10.0.0.1", "224.10.10.10", "10.1.0.7"
SESSION, NAK_PORT = 0x5EED0001, 14390
IPV6_FRAGMENT = 44
START_NS = 1_700_000_000_123_456_789


def address(text: str) -> bytes:
    """An IPv4 address as it travels."""
    return bytes(int(part) for part in text.split("."))


def message(topic: int, sqn: int, payload: bytes) -> bytes:
    """An LBMC message of one datagram."""
    return struct.pack("!BBHII", 0, 0, 12 + len(payload), topic, sqn) + payload


def data(
    sqn: int,
    *messages: bytes,
    trail: int = 0,
    flags: int = 0x80,
    session: int = SESSION,
    nak_port: int = NAK_PORT,
) -> bytes:
    """An LBT-RM DATA datagram."""
    return struct.pack("!BBHIIIBBH", 0, 0, nak_port, session, sqn, trail, flags, 0, 0) + b"".join(messages)


def sm(number: int, lead: int, trail: int, nak_port: int = NAK_PORT) -> bytes:
    """An LBT-RM session message."""
    return struct.pack("!BBHIIIIBBH", 2, 0, nak_port, SESSION, number, lead, trail, 0x80, 0, 0)


def nak(*sqns: int, nak_port: int = NAK_PORT) -> bytes:
    """An LBT-RM NAK."""
    return struct.pack(f"!BBHIHH{len(sqns)}I", 3, 0, nak_port, SESSION, len(sqns), 0, *sqns)


def ncf(reason: int, trail: int, *sqns: int, nak_port: int = NAK_PORT) -> bytes:
    """An LBT-RM NAK confirmation."""
    return struct.pack(
        f"!BBHIIHBB{len(sqns)}I", 4, 0, nak_port, SESSION, trail, len(sqns), 0, reason << 4, *sqns
    )


def status(position: int) -> bytes:
    """A receiver's flow control datagram: DATA of a control message."""
    body = struct.pack("!BBHIIIQI", 1, 0, 0, position, 1 << 24, 77, 0xFEDCBA9876543210, 0)
    control = struct.pack("!BBHBBBBHH", 8, 254, 4 + 8 + 28, 255, 8 + 28, 0xC0, 85, 1, 0) + body
    return data(position, control, trail=position)


LBTRU_CLIENT = 0xC11E47


def lbtru_options(session: int = SESSION, client: int = LBTRU_CLIENT) -> bytes:
    """Both options of LBT-RU."""
    return struct.pack("!BBHIBBHI", 2, 8, 0, session, 0, 8, 0, client)


def lbtru_data(sqn: int, *messages: bytes, trail: int = 0, flags: int = 0, session: int = SESSION) -> bytes:
    """An LBT-RU DATA datagram with both options."""
    return struct.pack("!BBHII", 0, 1, flags, sqn, trail) + lbtru_options(session) + b"".join(messages)


def udp(
    payload: bytes, source_port: int = 14390, destination_port: int = 14400, length: int | None = None
) -> bytes:
    """A UDP datagram."""
    return struct.pack("!HHHH", source_port, destination_port, length or 8 + len(payload), 0) + payload


def ipv4(
    payload: bytes,
    source: str = SOURCE,
    destination: str = GROUP,
    *,
    options: bytes = b"",
    fragment: int = 0,
    protocol: int = 17,
    total: int | None = None,
    ident: int = 1,
) -> bytes:
    """An IPv4 packet; `fragment` is the word of flags and offset."""
    head = struct.pack(
        "!BBHHHBBH",
        0x40 | 5 + len(options) // 4,
        0,
        20 + len(options) + len(payload) if total is None else total,
        ident,
        fragment,
        16,
        protocol,
        0,
    )
    return head + address(source) + address(destination) + options + payload


def ipv6(payload: bytes, next_header: int = 17) -> bytes:
    """An IPv6 packet from fd00::1 to ff05::e."""
    source, destination = bytes([0xFD, *[0] * 14, 1]), bytes([0xFF, 5, *[0] * 13, 14])
    return struct.pack("!IHBB", 6 << 28, len(payload), next_header, 16) + source + destination + payload


def ethernet(payload: bytes, ether_type: int = 0x0800, tags: Sequence[int] = ()) -> bytes:
    """An Ethernet frame, tagged with VLANs from the outer to the inner one."""
    frame = bytes.fromhex("01005e0a0a0a020000000001")
    for i, tag in enumerate(tags):
        frame += struct.pack("!HH", 0x88A8 if len(tags) > 1 and i == 0 else 0x8100, 0x6000 | tag)
    return frame + struct.pack("!H", ether_type) + payload


def pieces(body: bytes, size: int = 1480, ident: int = 1, version: int = 4) -> list[bytes]:
    """The frames of the fragments of a datagram, in order."""
    frames = []
    for at in range(0, len(body), size):
        part, more = body[at : at + size], at + size < len(body)
        if version == 4:
            frames.append(ethernet(ipv4(part, fragment=more << 13 | at // 8, ident=ident)))
        else:
            head = struct.pack("!BBHI", 17, 0, at | more, ident)
            frames.append(ethernet(ipv6(head + part, IPV6_FRAGMENT), 0x86DD))
    return frames


def stalled_session() -> list[Packet]:
    """A session whose window is held three times, for 30, 40 and 50 ms, by a number whose repair is lost."""
    packets, at, ms = [], START_NS, 1_000_000

    def receiver_sends(datagram: bytes, time_ns: int) -> None:
        packets.append(Packet(time_ns, ethernet(ipv4(udp(datagram, 14400, 14390), RECEIVER, SOURCE))))

    for first, held_ms in ((0, 30), (100, 40), (200, 50), (300, 0)):
        for sqn in range(first, first + 100):
            packets.append(Packet(at, frame(data(sqn, message(1, sqn, bytes(100))))))
            at += ms // 100
        receiver_sends(status(first + 50), at)
        for after_ms in (1, held_ms - 2) if held_ms else ():
            receiver_sends(nak(first + 50), at + after_ms * ms)
            again = frame(data(first + 50, message(1, first + 50, bytes(100)), flags=0xA0))
            packets.append(Packet(at + (after_ms + 1) * ms, again))
        at += held_ms * ms
    return packets


def frame(datagram: bytes, **options: int) -> bytes:
    """An Ethernet frame from the source to the group."""
    return ethernet(ipv4(udp(datagram, **options)))


@dataclass(frozen=True, slots=True)
class Packet:
    """A captured frame: its time, its captured bytes, and its original length."""

    time_ns: int
    data: bytes
    original: int | None = None
    interface: int = 0

    @property
    def frame_bytes(self) -> int:
        return len(self.data) if self.original is None else self.original


def pcap(
    packets: Iterable[Packet], *, order: str = "<", nanoseconds: bool = True, link_type: int = ETHERNET
) -> bytes:
    """A pcap file."""
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 262144, link_type)]
    for packet in packets:
        seconds, fraction = divmod(packet.time_ns, 10**9)
        fraction = fraction if nanoseconds else fraction // 1000
        parts.append(struct.pack(f"{order}IIII", seconds, fraction, len(packet.data), packet.frame_bytes))
        parts.append(packet.data)
    return b"".join(parts)


def padded(value: bytes) -> bytes:
    """To a multiple of four bytes."""
    return value + bytes(-len(value) % 4)


def option(order: str, code: int, value: bytes) -> bytes:
    """A pcapng option."""
    return struct.pack(f"{order}HH", code, len(value)) + padded(value)


def block(order: str, kind: int, body: bytes) -> bytes:
    """A pcapng block."""
    body = padded(body)
    length = 12 + len(body)
    return struct.pack(f"{order}II", kind, length) + body + struct.pack(f"{order}I", length)


def section(order: str = "<") -> bytes:
    """A section header block."""
    return block(order, 0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1))


def interface(order: str = "<", link_type: int = ETHERNET, snap_bytes: int = 0, *options: bytes) -> bytes:
    """An interface description block."""
    body = struct.pack(f"{order}HHI", link_type, 0, snap_bytes) + b"".join(options)
    return block(order, 1, body + (option(order, 0, b"") if options else b""))


def enhanced(packet: Packet, order: str = "<", ticks: int | None = None, options: bytes = b"") -> bytes:
    """An enhanced packet block; `ticks` is the time in the interface's unit, microseconds if not given."""
    ticks = packet.time_ns // 1000 if ticks is None else ticks
    head = (packet.interface, ticks >> 32, ticks & 0xFFFFFFFF, len(packet.data), packet.frame_bytes)
    return block(order, 6, struct.pack(f"{order}IIIII", *head) + padded(packet.data) + options)


def simple(packet: Packet, order: str = "<") -> bytes:
    """A simple packet block."""
    return block(order, 3, struct.pack(f"{order}I", packet.frame_bytes) + padded(packet.data))


def trailer(time_ns: int, check: bytes = b"", extensions: bytes = b"") -> bytes:
    """The trailer of a capture switch behind a frame: the old check sequence, extensions, time, flags, device, port."""
    seconds, fraction = divmod(time_ns, 10**9)
    return b"\xaa\xbb\xcc\xdd" + extensions + struct.pack("!IIBHB", seconds, fraction, 1, 5, 9) + check
