"""A folder of unusual captures, as found in practice: each has a defect or a special case, and known contents."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scapy.layers.inet import IP, UDP, fragment
from scapy.layers.l2 import Ether

from tests.unit.capture_bytes import (
    ETHERNET,
    GROUP,
    SLL,
    SOURCE,
    START_NS,
    Packet,
    data,
    enhanced,
    ethernet,
    frame,
    interface,
    ipv4,
    message,
    option,
    pcap,
    section,
    udp,
)

MS = 1_000_000
DATAGRAMS = 20
"""Datagrams in each file, unless stated otherwise."""
(TRUNCATED, MID_PACKET, COOKED, STEPPED, FRAGMENTED, BURSTING) = range(0x0DD00001, 0x0DD00007)
"""The session of each file."""

_IF_NAME = 2
_USER_LINK_TYPE = 147
_RECORD_HEADER_BYTES = 16
_COOKED = bytes(14) + b"\x08\x00"
_FRAGMENT_BYTES = 1480

BURST_NS = START_NS // MS * MS + 400 * MS
BURST_MS = 3
BURST_DATAGRAMS = 21
"""Datagrams per millisecond of a burst; otherwise there is one."""
BURST_SPAN_MS = 1000

PORTS = 55
"""Capture points in one file, each with a remark."""


@dataclass(frozen=True, slots=True)
class OddCaptures:
    """The folder, the expected notes on its files, and the fragments in one of them."""

    folder: Path
    faults: dict[str, str]
    fragments: list[bytes]


def odd_captures(folder: Path) -> OddCaptures:
    """Write the captures."""
    folder.mkdir()
    stepped = _stepped()
    fragments = _fragments()
    files = {
        "truncated.pcap": pcap(_stream(TRUNCATED))[
            : -len(_datagram(TRUNCATED, 0)) - _RECORD_HEADER_BYTES // 2
        ],
        "midpacket.pcap": pcap(_stream(MID_PACKET))[:-10],
        "cooked.pcapng": _cooked(),
        "stepped.pcap": stepped,
        "twice.pcap": stepped,
        "empty.pcap": b"",
        "words.pcap": b"Captures of Monday, please look at the second one first.\n",
        "notes.txt": b"Not even called a capture.\n",
        "fragments.pcap": pcap(Packet(START_NS + i * MS, one) for i, one in enumerate(fragments)),
        "bursts.pcap": pcap(_bursting()),
        "ports.pcapng": _many_ports(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    faults = {
        "truncated.pcap": "the file ends in its middle",
        "midpacket.pcap": "the file ends in its middle",
        "cooked.pcapng": f"1 packets of link type {_USER_LINK_TYPE}, which is not known",
        "stepped.pcap": "the clock steps backwards 1 times",
        "twice.pcap": f"the same as {folder / 'stepped.pcap'}, not read again",
        "empty.pcap": "an empty file",
        "words.pcap": "not a capture",
    }
    return OddCaptures(folder, faults, fragments)


def _datagram(session: int, sqn: int) -> bytes:
    return frame(data(sqn, message(1, sqn, bytes(200)), session=session))


def _stream(session: int) -> list[Packet]:
    return [Packet(START_NS + sqn * MS, _datagram(session, sqn)) for sqn in range(DATAGRAMS)]


def _stepped() -> bytes:
    """A capture whose clock is set back by two seconds halfway."""
    stream = _stream(STEPPED)
    half = len(stream) // 2
    return pcap([*stream[:half], *(Packet(one.time_ns - 2000 * MS, one.data) for one in stream[half:])])


def _cooked() -> bytes:
    """Alternating Ethernet and Linux cooked packets, and one of an unknown link type."""
    blocks = [section(), *(_named(name, link) for name, link in _LINKS)]
    for packet in _stream(COOKED):
        number = len(blocks) % 2
        content = packet.data if number == 0 else _COOKED + packet.data[14:]
        blocks.append(enhanced(Packet(packet.time_ns, content, interface=number)))
    return b"".join([*blocks, enhanced(Packet(START_NS + DATAGRAMS * MS, bytes(60), interface=2))])


_LINKS = (("eth0", ETHERNET), ("any", SLL), ("odd", _USER_LINK_TYPE))


def _named(name: str, link_type: int = ETHERNET) -> bytes:
    return interface("<", link_type, 0, option("<", _IF_NAME, name.encode()))


def _fragments() -> list[bytes]:
    """The IP fragments of a datagram that fits no frame."""
    whole = data(0, message(1, 0, bytes(4000)), session=FRAGMENTED)
    packet = IP(src=SOURCE, dst=GROUP) / UDP(sport=14390, dport=14400) / whole
    return [
        bytes(Ether(src="02:00:00:00:00:01", dst="01:00:5e:0a:0a:0a") / one)
        for one in fragment(packet, _FRAGMENT_BYTES)
    ]


def _bursting() -> Iterator[Packet]:
    """One datagram per millisecond for a second, and many in a few of these milliseconds."""
    begin_ns = BURST_NS - 400 * MS
    times = [begin_ns + at * MS for at in range(BURST_SPAN_MS)]
    for at in range(BURST_MS):
        times += [BURST_NS + at * MS + 10_000 * (1 + number) for number in range(BURST_DATAGRAMS - 1)]
    for sqn, time_ns in enumerate(sorted(times)):
        yield Packet(time_ns, _datagram(BURSTING, sqn))


def _many_ports() -> bytes:
    """Two malformed datagrams to each of many ports."""
    short = ethernet(ipv4(udp(struct.pack("!BBH", 0, 0, 14390))))
    blocks = [section(), *(_named(f"port{number}") for number in range(PORTS))]
    packets = [Packet(START_NS + number * MS, short, interface=number % PORTS) for number in range(2 * PORTS)]
    return b"".join([*blocks, *map(enhanced, packets)])
