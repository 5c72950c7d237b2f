"""Contexts on rings beside what has no rings: other transports, and contexts on sockets of the same host."""

from __future__ import annotations

import os
import warnings

import pytest

from tests.netns.contexts import Member, members, numbered
from tests.waiting import collect
from umstack import NotConnected, OccupiedInterfaceWarning
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


@pytest.mark.parametrize("link", ["auto", "socket"])
def test_a_context_on_sockets_beside_rings_warns_by_name(shared_lab: Lab, link: str) -> None:
    """Groups that another context receives over rings do not reach sockets, so the warning names program and
    process.
    """
    host = shared_lab.hosts[0]
    named = rf"{host.interface} .*steering.*\({os.getpid()}\)"
    with members(host, **RINGS), pytest.warns(OccupiedInterfaceWarning, match=named):
        Member(host, link=link).context.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", OccupiedInterfaceWarning)
        Member(host, link=link).context.close()


def test_a_source_over_rings_reports_that_its_own_host_is_not_reached(shared_lab: Lab) -> None:
    """The README's ten lines run over rings: waiting for a receiver on the same host warns that it cannot be
    reached.
    """
    with (
        members(shared_lab.hosts[0], **RINGS) as (alone,),
        alone.receiver("here") as _,
        alone.source("here") as source,
        pytest.raises(NotConnected, match="does not reach receivers on this one"),
    ):
        source.wait_connected(timeout=0.5)
