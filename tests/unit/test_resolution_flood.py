"""Forged advertisements do not keep a receiver from real sources."""

from __future__ import annotations

import logging
import socket

import pytest

from tests.unit.loopback import OWN_ADDRESSES, open_context, payloads
from tests.waiting import SECONDS, collect, wait_for
from umstack._engine.transport_address import LbtrmAddress
from umstack.resolution.codec import Advertisement, encode_advertisement, pack

FORGED = 700


def forge(first_source: int, sources: int, groups: int, count: int = FORGED) -> list[bytes]:
    """Return advertisements of sessions that do not exist, from `sources` addresses on `groups` groups."""
    records = []
    for i in range(count):
        address = LbtrmAddress(
            source_ip=f"10.9.{first_source}.{1 + i % sources}",
            group=f"239.77.{i % groups // 200}.{1 + i % groups % 200}",
            destination_port=14400,
            nak_port=20000 + i,
            session_id=1 + i,
        )
        records.append(encode_advertisement(Advertisement("flooded", 1 + i, 60, address)))
    return pack([], records, 1400)


def advertisement_count(datagram: bytes) -> int:
    """Return the number of advertisements in a datagram of records."""
    return int.from_bytes(datagram[2:4], "big")


def send(datagrams: list[bytes], sender_ip: str = "127.0.0.1") -> None:
    """Send them to the resolution group of this process, over loopback."""
    to = (OWN_ADDRESSES["resolver_multicast_address"], OWN_ADDRESSES["resolver_multicast_port"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        sender.bind((sender_ip, 0))
        for datagram in datagrams:
            sender.sendto(datagram, to)


@pytest.mark.parametrize(("sources", "groups"), [(1, 1), (200, 1), (200, 400)])
def test_forged_advertisements_block_no_source(
    sources: int, groups: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A source that starts after 700 forged sessions is received immediately, and the log stays short. The
    sessions are of one source or of many, in one group or in more groups than can be joined.
    """
    options = {"transport_lbtrm_receiver_socket_buffer": 1 << 16}
    with caplog.at_level(logging.WARNING), open_context(**options) as context:
        receiver = context.receiver("flooded")
        send(forge(1, sources, groups))
        wait_for(
            lambda: context.stats()["context"]["tr_advertisements_rcved"] >= FORGED,
            "the forged advertisements",
        )
        wait_for(lambda: context.stats()["context"]["sessions_evicted"] > 0, "evictions")
        source = context.source("flooded", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        source.send(b"here", flush=True)
        assert payloads(collect(receiver, 1, SECONDS)) == [b"here"]
        assert context.stats()["context"]["sessions_refused"] == 0
    assert len([record for record in caplog.records if record.name.startswith("umstack.resolution")]) <= 1


def test_more_sessions_are_evicted_than_remembered() -> None:
    """Evicted sessions are rediscovered when they advertise, even if they are many. None of them stays
    among the known sources, where it would permanently occupy another's place.
    """
    options = {"transport_lbtrm_receiver_socket_buffer": 1 << 16}
    with open_context(**options) as context:
        context.receiver("flooded")
        machine = context._resolver._agent.machine
        flood = forge(1, 200, 1, 4000)
        sent = 0
        for turn in range(0, len(flood), 8):  # no faster than they are processed, so that none is lost
            send(flood[turn : turn + 8])
            sent += sum(map(advertisement_count, flood[turn : turn + 8]))
            wait_for(lambda sent=sent: machine.counters.tr_advertisements_rcved >= sent, "advertisements")  # type: ignore[misc]
        assert sent == 4000
        wait_for(lambda: context.stats()["context"]["sessions_evicted"] > 3000, "evictions")
        wait_for(lambda: machine.table_sizes()["reported sources"] <= 512, "space")
