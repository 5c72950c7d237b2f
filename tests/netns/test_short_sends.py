"""Datagrams that the kernel does not take at once are counted and sent again (AE-42)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from tests.netns.contexts import members
from tests.waiting import collect
from umstack.lab import Lab

COUNT = 1500


def test_a_full_socket_buffer_is_a_short_send_and_loses_nothing(make_lab: Callable[..., Lab]) -> None:
    """AE-42: an interface of 20 Mbit/s fills a small socket buffer. Each send of which the kernel took a part or
    nothing is counted, and every message arrives in order.
    """
    lab = make_lab(hosts=2)
    first = lab.hosts[0]
    bucket = ["tbf", "rate", "20mbit", "burst", "20000", "limit", "10000000"]
    command = ["tc", "qdisc", "add", "dev", first.interface, "root", *bucket]
    first.call(lambda: subprocess.run(command, check=True))
    with (
        members(first, transport_lbtrm_source_socket_buffer=8192) as (publisher,),
        members(lab.hosts[1]) as (subscriber,),
        subscriber.receiver("short") as receiver,
        publisher.source("short", flow_control="min") as source,
    ):
        source.wait_connected(timeout=10)
        messages = [b"%06d" % number + bytes(1000) for number in range(COUNT)]
        source.send_many(messages, flush=True, timeout=30)
        assert [message.data for message in collect(receiver, COUNT)] == messages
        assert publisher.link("short_sends") > 0
        assert publisher.link("short_sends") >= publisher.link("send_would_block")
        assert publisher.link("send_errors") == 0
