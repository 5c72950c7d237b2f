"""Contexts on rings that also use transports without rings."""

from __future__ import annotations

import pytest

from tests.netns.contexts import members, numbered
from tests.waiting import collect
from umstack.lab import Lab
from umstack_xdp.xsk import unavailable

RINGS = {"link": "xdp"}

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


def test_a_context_on_rings_receives_over_tcp_beside_its_groups(shared_lab: Lab) -> None:
    """A connection has no port to steer, and topics that follow are joined and steered."""
    with (
        members(shared_lab.hosts[0]) as (publisher,),
        members(shared_lab.hosts[1], **RINGS) as (subscriber,),
    ):
        messages = numbered(200, 100)
        with (
            subscriber.receiver("beside/connected"),
            publisher.source("beside/connected", transport="tcp") as connected,
        ):
            connected.wait_connected(timeout=10)
            for transport in ("tcp", "lbtru", "lbtrm"):
                topic = f"beside/{transport}"
                with (
                    subscriber.receiver(topic) as receiver,
                    publisher.source(topic, transport=transport) as source,
                ):
                    source.wait_connected(timeout=10)
                    source.send_many(messages, flush=True)
                    assert [message.data for message in collect(receiver, 200, 20)] == messages
