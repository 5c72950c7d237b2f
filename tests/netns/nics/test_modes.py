"""The link on a driver with its own memory and queues, for modes that veth lacks: zero-copy above all."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

import umstack_xdp as xdp
from tests.kernels import needs_virtio_zero_copy
from tests.netns.contexts import Member, exchange, members, numbered, ring_facts
from tests.waiting import collect, wait_for
from umstack.errors import BackPressured
from umstack.lab import Host
from umstack_xdp.ladder import Mode, chosen, decide
from umstack_xdp.probe import probe

ZERO_COPY = {"link": "zero-copy"}
QUICK_NAKS = {"transport_lbtrm_nak_initial_backoff_interval": 2, "transport_lbtrm_nak_backoff_interval": 20}
Hosts = Sequence[Host]


@pytest.mark.parametrize(
    "mode", [pytest.param("zero-copy", marks=needs_virtio_zero_copy), "native", "generic", "socket"]
)
def test_every_mode_carries_data_both_ways(nic_hosts: Hosts, mode: str) -> None:
    """W5, W6: each step of the ladder, requested by name, is the mode in effect; nothing is lost or refused."""
    with members(*nic_hosts, link=mode) as (first, second):
        assert (first.context.link_mode, second.context.link_mode) == (mode, mode)
        exchange(first, second, 5000, 1400)
        exchange(second, first, 5000, 64)
        for member in (first, second):
            assert member.link("receive_drops") == member.link("xdp_tx_invalid_descs") == 0
            assert member.link("ring_frames_refused") == member.link("ring_checksum_errors") == 0
        if mode != "socket":
            assert ring_facts(second)["mode"] == ("zero-copy" if mode == "zero-copy" else "copy")
            assert sum(ring_facts(second)["received_by_queue"]) >= 5000


@needs_virtio_zero_copy
def test_auto_uses_what_the_doctor_reports(nic_hosts: Hosts) -> None:
    """W5: the ladder's verdict on this driver is the mode that opens."""
    assert chosen(nic_hosts[0].call(lambda: decide(probe("eth0")))) is Mode.ZERO_COPY
    with members(nic_hosts[0], link="auto") as (member,):
        assert member.context.link_mode == "zero-copy"


@pytest.mark.parametrize("zero_copy_at", [0, 1])
@needs_virtio_zero_copy
def test_zero_copy_and_sockets_understand_each_other(nic_hosts: Hosts, zero_copy_at: int) -> None:
    """W6: checksums that one kind of link computes are correct for the other."""
    kinds = [{**ZERO_COPY, "link_xdp_checksum": 1}, {"link": "socket"}]
    options = kinds if zero_copy_at == 0 else kinds[::-1]
    with (
        members(nic_hosts[0], **options[0]) as (publisher,),
        members(nic_hosts[1], **options[1]) as (subscriber,),
    ):
        exchange(publisher, subscriber, 3000, 1400)
        assert subscriber.link("ring_checksum_errors") == 0


@needs_virtio_zero_copy
def test_what_finds_no_frame_is_repaired(nic_hosts: Hosts) -> None:
    """A receiver with few frames loses some of a burst, and recovers them with NAKs."""
    with members(nic_hosts[0], **ZERO_COPY) as (publisher,):
        few = {**ZERO_COPY, "link_xdp_receive_frames": 64}
        with members(nic_hosts[1], **few) as (subscriber,):
            exchange(publisher, subscriber, 20000, 1400, **QUICK_NAKS)
            assert subscriber.context.stats()["context"]["fragments_unrecoverably_lost"] == 0


@needs_virtio_zero_copy
def test_it_can_be_opened_again_at_once(nic_hosts: Hosts) -> None:
    """A queue is busy for a moment after its last user, in zero-copy until the driver has released it."""
    for _ in range(5):
        with members(*nic_hosts, **ZERO_COPY) as (publisher, subscriber):
            exchange(publisher, subscriber, 200, 1400)
    for host in nic_hosts:
        assert host.call(lambda: xdp.occupants("eth0")) == ()


@needs_virtio_zero_copy
def test_an_interface_that_comes_back_is_used_again(nic_hosts: Hosts) -> None:
    """The driver takes its queues and their frames down and up; the stream continues."""
    with members(*nic_hosts, **ZERO_COPY) as (publisher, subscriber):
        exchange(publisher, subscriber, 500, 1400)
        with subscriber.receiver("down", **QUICK_NAKS) as receiver, publisher.source("down") as source:
            source.wait_connected(timeout=10)
            nic_hosts[0].link_down()
            with suppress(BackPressured):
                source.send_many(numbered(200, 1000), flush=True, timeout=0)
            nic_hosts[0].link_up()
            assert [message.data for message in collect(receiver, 200, 20)] == numbered(200, 1000)
        assert publisher.context.link_mode == "zero-copy"


@needs_virtio_zero_copy
def test_the_mtu_is_followed(nic_hosts: Hosts) -> None:
    """W4: datagrams shrink with the MTU and grow back while the rings stay open."""
    with members(*nic_hosts, **ZERO_COPY) as (publisher, subscriber):
        for mtu in (1200, 1500):
            for host in nic_hosts:
                set_mtu(host, mtu)
            wait_for(lambda size=mtu - 28: publisher.context.datagram_bytes == size, f"datagrams for {mtu}")
            exchange(publisher, subscriber, 1000, 3000)


def set_mtu(host: Host, mtu_bytes: int) -> None:
    """Set the MTU of the interface; no switch port needs it as well."""
    child = host.run(["ip", "link", "set", "eth0", "mtu", str(mtu_bytes)])
    assert child.wait(10) == 0


@needs_virtio_zero_copy
def test_a_killed_process_leaves_nothing(nic_hosts: Hosts) -> None:
    """kill -9 during a stream: the program is removed, and the queue is free again."""
    streaming = (
        "import umstack, itertools\n"
        "with umstack.Context('eth0', link='zero-copy') as context, context.source('killed') as source:\n"
        "    print('on', flush=True)\n"
        "    for i in itertools.count():\n"
        "        source.send(bytes(1000), flush=True)\n"
    )
    child = nic_hosts[0].run([sys.executable, "-c", streaming], stdout=-1, text=True)
    assert child.stdout.readline() == "on\n"
    assert nic_hosts[0].call(lambda: xdp.occupants("eth0")) != ()
    child.kill()
    child.wait()
    wait_for(lambda: nic_hosts[0].call(lambda: xdp.occupants("eth0")) == (), "no program")
    with members(*nic_hosts, **ZERO_COPY) as (publisher, subscriber):
        exchange(publisher, subscriber, 200, 1400)


@needs_virtio_zero_copy
def test_two_directions_at_once(nic_hosts: Hosts) -> None:
    """Both ends send and receive on the same queue, whose two halves are independent."""
    with members(*nic_hosts, **ZERO_COPY) as (first, second):
        failures: list[BaseException] = []

        def back(sender: Member, receiver: Member) -> None:
            try:
                exchange(sender, receiver, 10000, 600)
            except BaseException as error:
                failures.append(error)

        other = threading.Thread(target=back, args=(second, first))
        other.start()
        back(first, second)
        other.join()
        assert failures == []
