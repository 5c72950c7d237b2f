"""The DSCP of everything that a context sends, read from frames at the switch."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest

from tests.netns.captures import sniffing
from tests.netns.contexts import members
from tests.waiting import collect
from umstack.lab import Lab
from umstack_xdp.xsk import unavailable

EXPEDITED_FORWARDING = 46
IPV4 = b"\x08\x00"
UDP, TCP = 17, 6
RESOLUTION_PORT = 12965
NAK_PORTS = range(14390, 14400)
REQUEST_PORTS = set(range(14391, 14396))


SOURCES: dict[str, tuple[dict[str, str], set[str], set[str]]] = {
    "lbtrm": ({}, {"resolution", "data", "recovery"}, {"resolution", "control", "recovery"}),
    "lbtru": ({"transport": "lbtru"}, {"resolution", "unicast"}, {"resolution", "unicast"}),
    "tcp": ({"transport": "tcp"}, {"resolution", "TCP"}, {"resolution", "TCP"}),
}
"""By transport, the options of a source, and the purposes of what a publisher and a subscriber send."""


def _purpose(frame: bytes) -> str:
    """Return what a frame is for, or nothing if it is neither UDP nor TCP over IPv4."""
    protocol, source, destination = frame[23], *struct.unpack("!HH", frame[34:38])
    if frame[12:14] != IPV4 or protocol not in (UDP, TCP):
        return ""
    if protocol == TCP:
        return "recovery" if REQUEST_PORTS & {source, destination} else "TCP"
    if frame[30] >= 224:
        return "resolution" if destination == RESOLUTION_PORT else "data"
    return "control" if destination in NAK_PORTS else "unicast"


def _codes(sniffer: socket.socket) -> dict[str, set[int]]:
    """Return the code points of the frames received so far, by purpose."""
    found: dict[str, set[int]] = {}
    sniffer.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            frame = sniffer.recv(65536)
            if purpose := _purpose(frame):
                found.setdefault(purpose, set()).add(frame[15] >> 2)
    return found


@pytest.mark.parametrize(
    ("link", "transport"),
    [
        *(("socket", transport) for transport in SOURCES),
        pytest.param(
            "xdp", "lbtrm", marks=pytest.mark.skipif(bool(unavailable()), reason=str(unavailable()))
        ),
    ],
)
def test_everything_that_a_context_sends_has_its_code_point(
    shared_lab: Lab, link: str, transport: str
) -> None:
    """ip_dscp: data over sockets and rings, control messages, topic resolution, TCP and late join carry the DSCP."""
    first, second, _ = shared_lab.hosts
    options, *purposes = SOURCES[transport]
    with (
        sniffing(shared_lab, first) as sent,
        sniffing(shared_lab, second) as answered,
        members(first, second, link=link, ip_dscp=EXPEDITED_FORWARDING) as (publisher, subscriber),
        publisher.source("marked", late_join=1, **options) as source,
        subscriber.receiver("marked") as receiver,
    ):
        source.wait_connected(timeout=10)
        source.send(b"marked", flush=True)
        collect(receiver, 1)
        with subscriber.receiver("marked") as late:
            collect(late, transport == "lbtrm")
        by_host = [_codes(sent), _codes(answered)]
    for codes, expected in zip(by_host, purposes, strict=True):
        assert codes.keys() >= expected
        assert set().union(*codes.values()) == {EXPEDITED_FORWARDING}
