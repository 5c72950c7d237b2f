"""Contexts on rings beside what has no rings: other transports, and contexts on sockets of the same host."""

from __future__ import annotations

import os
import warnings

import pytest

from tests.netns.contexts import Member, members, numbered
from tests.waiting import collect, wait_for
from umstack import NotConnected, OccupiedInterfaceWarning, Receiver, Source
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
    """Groups that both receive leave the rings, which costs the bypass, so the warning names program and process."""
    host = shared_lab.hosts[0]
    named = rf"{host.interface} .*steering.*\({os.getpid()}\)"
    with members(host, **RINGS), pytest.warns(OccupiedInterfaceWarning, match=named):
        Member(host, link=link).context.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", OccupiedInterfaceWarning)
        Member(host, link=link).context.close()


def test_a_source_over_rings_reports_that_its_own_context_is_not_reached(shared_lab: Lab) -> None:
    """The README's ten lines run over rings: waiting for a receiver on the same host warns that it cannot be
    reached.
    """
    with (
        members(shared_lab.hosts[0], **RINGS) as (alone,),
        alone.receiver("here") as _,
        alone.source("here") as source,
        pytest.raises(NotConnected, match="do not reach receivers of the same context"),
    ):
        source.wait_connected(timeout=0.5)


def test_a_source_in_a_group_that_is_already_shared_reaches_its_host(shared_lab: Lab) -> None:
    """A context on rings that only received a shared group sends by sockets as soon as it has a source there."""
    here, there, _ = shared_lab.hosts
    with (
        members(here, **RINGS) as (owner,),
        members(there, link="socket") as (far,),
        owner.receiver("shared"),
        far.source("shared") as remote,
    ):
        remote.wait_connected(1, 10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OccupiedInterfaceWarning)
            beside = Member(here, link="socket")
        with beside.context, beside.receiver("shared") as second:
            remote.wait_connected(2, 10)
            wait_for(lambda: owner.context.stats()["rings"]["shared_groups"], "the group to be shared")
            with owner.source("shared") as local:
                local.wait_connected(1, 10)
                local.send(b"from this host", flush=True)
                assert collect(second, 1, 10)[0].data == b"from this host"


def test_a_context_on_sockets_beside_rings_receives_everything(shared_lab: Lab) -> None:
    """Groups that both receive pass through the kernel: from the wire, and from the context on rings. Once the context
    on sockets has gone, the rings take them again.
    """
    here, there, _ = shared_lab.hosts

    def is_shared() -> bool:
        return bool(owner.context.stats()["rings"]["shared_groups"])

    def exchange(source: Source, name: bytes, *receivers: Receiver) -> None:
        messages = [b"%s %d" % (name, i) for i in range(200)]
        source.send_many(messages, flush=True)
        for receiver in receivers:
            found: list[bytes] = []
            while len(found) < len(messages):
                (message,) = collect(receiver, 1, 10)
                found += [message.data] if message.data.startswith(name) else []
            assert found == messages

    with (
        members(here, **RINGS) as (owner,),
        members(there, link="socket") as (far,),
        owner.receiver("shared") as first,
        far.source("shared") as remote,
        owner.source("shared") as local,
    ):
        remote.wait_connected(1, 10)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OccupiedInterfaceWarning)
            beside = Member(here, link="socket")
        with beside.context, beside.receiver("shared") as second:
            wait_for(is_shared, "the rings to leave the group to the kernel")
            remote.wait_connected(2, 10)
            exchange(remote, b"remote", first, second)
            local.wait_connected(1, 10)
            exchange(local, b"local", second)
        wait_for(lambda: not is_shared(), "the rings to take the group again")
        before = owner.link("ring_kernel_path")
        exchange(remote, b"later", first)
        assert owner.link("ring_kernel_path") == before
