"""A path that loses most datagrams for a while, and recovers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.netns.contexts import members, numbered
from tests.waiting import collect, wait_for
from umstack.lab import Lab

GROUP = "239.255.49.1"


@pytest.mark.parametrize("flow_control", ["min", "none"])
def test_a_receiver_resumes_after_heavy_loss(make_lab: Callable[..., Lab], flow_control: str) -> None:
    """zeromq/netmq#845: after a time with 80 % loss, a subscriber never received anything again."""
    lab = make_lab(hosts=2)
    with (
        members(*lab.hosts) as (publisher, subscriber),
        subscriber.receiver("heavy") as receiver,
        publisher.source(
            "heavy", flow_control=flow_control, transport_lbtrm_multicast_address=GROUP
        ) as source,
    ):
        receiver.wait_connected(timeout=10)
        lab.await_join(GROUP, 1)
        before, during, after = (numbered(300, size) for size in (100, 101, 102))
        source.send_many(before, flush=True)
        assert [message.data for message in collect(receiver, len(before), 20)] == before
        for number in range(2):
            lab.port(number).set(loss=0.8)
        for data in during:
            source.send(data, flush=True)
        wait_for(lambda: subscriber.context.stats()["receiver_transports"][0]["lost"] > 10, "losses")
        for number in range(2):
            lab.port(number).set(loss=0.0)
        source.send_many(after, flush=True)
        assert [message.data for message in collect(receiver, len(during) + len(after), 30)] == during + after
