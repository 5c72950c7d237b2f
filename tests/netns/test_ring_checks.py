"""The same malformed frames reach AF_XDP rings and a kernel socket: the rings refuse what the kernel drops."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.netns.contexts import Member, members
from tests.waiting import wait_for
from umstack.lab import Host, Lab, namespaces
from umstack.lab.cables import port_name
from umstack.lab.links import set_feature
from umstack.scapy import LBTRM, LBTRMData
from umstack_xdp.xsk import unavailable

GROUP, PORT = "239.255.42.1", 14400
FIXED = {"transport_lbtrm_multicast_address": GROUP, "transport_lbtrm_destination_port": PORT}
FOREIGN = bytes(LBTRM(session_id=0x1234) / LBTRMData(sqn=7, trail=7))
"""Data of a session that no receiver has joined: the context counts it and does nothing else."""
REFUSALS = ("ring_frames_refused", "ring_checksum_errors", "ring_ip_errors", "ring_martians")
ADDRESSES = bytes.fromhex("01005e7f2a01020000000001")
"""Ethernet addresses: the group's, then the sender's."""
IPV4, PRIORITY_TAG, TAG, SERVICE_TAG = b"\x08\x00", b"\x81\0\0\0", b"\x81\0\0\7", b"\x88\xa8\0\7"
TAG_OFFLOADS = ("rx-vlan-hw-parse", "rx-vlan-stag-hw-parse", "tx-vlan-hw-insert", "tx-vlan-stag-hw-insert")
IP_AT, UDP_AT = 14, 34
MORE_FRAGMENTS, DONT_FRAGMENT, UDP = 0x2000, 0x4000, 17

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def _checksum(octets: bytes) -> int:
    padded = octets + bytes(len(octets) % 2)
    total: int = sum(struct.unpack(f">{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def _udp(source: str, *, length: int | None = None, checksum: int | None = None) -> bytes:
    length = 8 + len(FOREIGN) if length is None else length
    pseudo = socket.inet_aton(source) + socket.inet_aton(GROUP) + struct.pack(">HH", UDP, length)
    if checksum is None:
        checksum = _checksum(pseudo + struct.pack(">HHHH", 14390, PORT, length, 0) + FOREIGN) or 0xFFFF
    return struct.pack(">HHHH", 14390, PORT, length, checksum) + FOREIGN


def _frame(
    source: str,
    body: bytes | None = None,
    *,
    options: bytes = b"",
    version: int = 4,
    words: int | None = None,
    added: int = 0,
    fragment: int = DONT_FRAGMENT,
    ttl: int = 16,
    protocol: int = UDP,
    tags: bytes = b"",
) -> bytes:
    """Return a frame whose checksums are right. `added` changes the IP header's length of the datagram."""
    body = _udp(source) if body is None else body
    options += bytes(-len(options) % 4)
    words = 5 + len(options) // 4 if words is None else words
    total = 20 + len(options) + len(body) + added
    first = struct.pack(">BBHHHBB", version << 4 | words, 0, total, 0, fragment, ttl, protocol)
    rest = socket.inet_aton(source) + socket.inet_aton(GROUP) + options
    checksum = struct.pack(">H", _checksum(first + rest))
    return (ADDRESSES + tags + IPV4 + first + checksum + rest + body).ljust(60, b"\0")


def _flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 4]) + frame[at + 1 :]


def _cases(source: str) -> Iterator[tuple[str, bytes]]:
    good, udp = _frame(source), _udp(source)
    yield "whole", good
    for at in range(IP_AT, len(good)):
        yield f"one wrong bit in octet {at - IP_AT} of the IP datagram", _flipped(good, at)
    yield "no UDP checksum", _frame(source, _udp(source, checksum=0))
    yield "wrong UDP checksum", _frame(source, _udp(source, checksum=0x1234))
    for length in (0, 7, len(udp) - 1, len(udp) + 1, 65535):
        yield f"UDP length {length}", _frame(source, _udp(source, length=length))
    for added in (-len(udp) - 20, -len(udp), 4 - len(udp), -1, 1, 100):
        yield f"IP length {added:+}", _frame(source, added=added)
    for words in (0, 4, 6, 15):
        yield f"header of {words} words", _frame(source, words=words)
    yield "IP version 5", _frame(source, version=5)
    yield "another protocol", _frame(source, protocol=6)
    yield "first fragment alone", _frame(source, udp[:16], fragment=MORE_FRAGMENTS)
    yield "last fragment alone", _frame(source, udp[16:], fragment=2)
    for ttl in (0, 1, 255):
        yield f"TTL {ttl}", _frame(source, ttl=ttl)
    for address in ("0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.1.1.1", "255.255.255.255"):
        yield f"source {address}", _frame(address)
    hop = socket.inet_aton(source)
    for name, options in {
        "no operation": b"\1\1\1\0",
        "unknown": b"\x1e\4\0\0",
        "unknown without a length": b"\1\1\1\x1e",
        "length 0": b"\x1e\0\0\0",
        "length 1": b"\x1e\1\0\0",
        "longer than the header": b"\x1e\x09\0\0",
        "loose route": b"\x83\7\4" + hop,
        "strict route": b"\x89\7\4" + hop,
        "record route": b"\7\7\4\0\0\0\0",
        "record route, pointer 3": b"\7\7\3\0\0\0\0",
        "record route, full": b"\7\7\x08" + hop,
        "record route, pointer at its end": b"\7\7\7" + hop,
        "timestamp": b"\x44\x08\5\0\0\0\0\0",
        "timestamp, pointer 4": b"\x44\x08\4\0\0\0\0\0",
        "router alert": b"\x94\4\0\0",
        "router alert, short": b"\x94\3\0\0",
    }.items():
        yield f"option: {name}", _frame(source, options=options)
    yield "priority tag", _frame(source, tags=PRIORITY_TAG)
    yield "tag of a VLAN", _frame(source, tags=TAG)
    yield "service tag", _frame(source, tags=SERVICE_TAG)
    yield "cut in the UDP header", good[: UDP_AT + 4]
    yield "cut in the IP header", good[: IP_AT + 12]


def _delivered(member: Member) -> int:
    return int(member.context.stats()["context"]["lbtrm_unknown_msgs_rcved"])


def _refused(member: Member) -> int:
    return sum(member.link(name) for name in REFUSALS)


@contextmanager
def _tags_in_frames(lab: Lab, host: Host) -> Iterator[None]:
    """Keep VLAN tags in the frames of a host's cable. A NIC that strips them hides them from the program
    (docs/steering.md)."""

    def change(is_on: bool) -> None:
        for feature in TAG_OFFLOADS:
            host.call(partial(set_feature, "eth0", feature, is_on))
            namespaces.call(
                lab.switch_namespace, partial(set_feature, port_name(host.number), feature, is_on)
            )

    change(False)
    try:
        yield
    finally:
        change(True)


def test_rings_refuse_what_the_kernel_drops(shared_lab: Lab) -> None:
    """W6: a frame that a kernel socket does not deliver is not delivered by rings, and the reason is counted; one that
    it delivers is delivered. Nothing is configured: the checks are on by default."""
    first, second, third = shared_lab.hosts
    whole = _frame(first.address)
    with (
        _tags_in_frames(shared_lab, second),
        members(first, link="socket") as (publisher,),
        members(second, link="xdp") as (rings,),
        members(third, link="socket") as (kernel,),
        rings.receiver("checks") as _,
        kernel.receiver("checks") as _,
        publisher.source("checks", **FIXED) as source,
        first.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as sender,
    ):
        source.wait_connected(timeout=10, receivers=2)

        def deliver_whole() -> None:
            counts = [(member, _delivered(member)) for member in (rings, kernel)]
            sender.sendto(whole, ("eth0", 0))
            wait_for(lambda: all(_delivered(member) > count for member, count in counts), "the whole frame")

        differences = []
        for name, frame in _cases(first.address):
            before = _delivered(rings), _delivered(kernel)
            sender.sendto(frame, ("eth0", 0))
            deliver_whole()
            deliver_whole()
            verdicts = _delivered(rings) - before[0] - 2, _delivered(kernel) - before[1] - 2
            if verdicts[0] != verdicts[1]:
                differences.append((name, verdicts))
        assert differences == [], differences
        assert all(rings.link(name) > 0 for name in REFUSALS[1:])
        assert rings.link("ring_checksum_errors") >= len(FOREIGN)
        assert rings.link("ring_ip_errors") >= 10
        assert rings.link("ring_martians") == 5
        assert _refused(kernel) == 0
