"""The kernel-socket link on real interfaces: segmentation, batches, buffers, timestamps, modes and faults."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyroute2 import IPRoute

from tests.netns.contexts import Member, members
from tests.netns.endpoints import EndsIn, assert_whole
from tests.waiting import collect, wait_for
from umstack import FragmentationWarning
from umstack.cli.config import command as config_command
from umstack.errors import InterfaceError, OptionError
from umstack.lab import Lab

MakeLab = Callable[..., Lab]
SHARED = {"transport_lbtrm_multicast_address": "224.10.10.10"}


def exchange(publisher: Member, subscriber: Member, count: int, size: int, **options: Any) -> None:
    """Send numbered messages and check that all arrive in order."""
    topic = f"exchange/{count}/{size}/{options}/{time.monotonic_ns()}"
    with subscriber.receiver(topic) as receiver, publisher.source(topic, **options) as source:
        source.wait_connected(timeout=10)
        messages = [b"%08d" % i + bytes(size - 8) for i in range(count)]
        sender = threading.Thread(target=lambda: source.send_many(messages, flush=True))
        sender.start()
        received = collect(receiver, count)
        sender.join()
        assert [message.data[:8] for message in received] == [m[:8] for m in messages]


# ---- segmentation and coalescing ----


@pytest.mark.parametrize("segmentation", ["real", "offload"])
def test_segmentation_is_used_where_it_may_be(make_lab: MakeLab, segmentation: str) -> None:
    """W6: UDP GSO sends many datagrams in one call and GRO receives them in few calls; the messages are the
    same.
    """
    lab = make_lab(hosts=2, segmentation=segmentation)
    with members(*lab.hosts) as (publisher, subscriber):
        exchange(publisher, subscriber, 5000, 1400)
        assert publisher.link("gso_sends") > 0
        assert publisher.link("datagrams_sent") > 3 * publisher.link("gso_sends")
        assert subscriber.link("gro_receives") > 0
        assert subscriber.link("receive_truncated") == 0


def test_a_stream_leaves_in_full_sends(shared_lab: Lab) -> None:
    """W6: the datagrams that remain after one batch are sent with those of the next, up to the kernel's 45 of
    1432 bytes.
    """
    messages, batches = 30, 300
    batch = bytes(messages * 1400)
    offsets = array("i", range(0, len(batch) + 1, 1400))
    with (
        members(*shared_lab.hosts[:2]) as (publisher, subscriber),
        subscriber.receiver("stream") as receiver,
        publisher.source("stream") as source,
    ):
        source.wait_connected(timeout=10)
        sends, datagrams = publisher.link("gso_sends"), publisher.link("datagrams_sent")
        with ThreadPoolExecutor(1) as threads:
            received = threads.submit(collect, receiver, messages * batches)
            for _ in range(batches):
                source.send_packed(batch, offsets)
            source.flush()
            assert len(received.result()) == messages * batches
        sends, datagrams = publisher.link("gso_sends") - sends, publisher.link("datagrams_sent") - datagrams
        assert 36 <= datagrams / sends <= 45.5, f"{datagrams} datagrams in {sends} sends"


def test_segmentation_can_be_switched_off(shared_lab: Lab) -> None:
    """W6: with link_gso and link_gro 0 every datagram is sent separately, for hosts on which these offloads
    do harm.
    """
    with members(*shared_lab.hosts[:2], link_gso=0, link_gro=0) as (publisher, subscriber):
        exchange(publisher, subscriber, 5000, 1400)
        assert publisher.link("gso_sends") == 0
        assert subscriber.link("gro_receives") == 0
        assert publisher.link("datagrams_sent") >= 5000


def test_a_sender_with_and_a_receiver_without_understand_each_other(shared_lab: Lab) -> None:
    """The kernel cuts runs for sockets without GRO: no datagrams arrive joined."""
    first, second, _ = shared_lab.hosts
    with members(first, link_gso=1) as (publisher,), members(second, link_gro=0) as (subscriber,):
        exchange(publisher, subscriber, 3000, 1400)
        assert publisher.link("gso_sends") > 0
        assert subscriber.link("gro_receives") == 0


# ---- batches, buffers, time ----


def test_many_datagrams_are_taken_in_one_call(shared_lab: Lab) -> None:
    """UX-24: multiple_receive_maximum_datagrams bounds recvmmsg; with 0 each datagram costs a call."""
    calls = {}
    for most in (0, 32):
        with members(*shared_lab.hosts[:2], link_gro=0, multiple_receive_maximum_datagrams=most) as ends:
            exchange(*ends, 5000, 1400)
            calls[most] = ends[1].link("syscalls") / ends[1].link("datagrams_received")
    assert calls[0] > 1.0
    assert calls[32] < 0.7 * calls[0]


def test_what_the_socket_buffer_could_not_hold_is_counted_and_repaired(shared_lab: Lab) -> None:
    """SO_RXQ_OVFL: the datagrams that the kernel drops have their own counter; NAKs recover them (UM-2, UM-107)."""
    first, second, _ = shared_lab.hosts
    with (
        members(first) as (publisher,),
        members(second, link_gro=0, transport_lbtrm_receiver_socket_buffer=16384) as (subscriber,),
    ):
        quick = {
            "transport_lbtrm_nak_initial_backoff_interval": 2,
            "transport_lbtrm_nak_backoff_interval": 20,
        }
        with (
            subscriber.receiver("overrun", **quick) as receiver,
            publisher.source("overrun", transport_lbtrm_ignore_interval=5) as source,
        ):
            source.wait_connected(timeout=10)
            source.send_many([b"%08d" % i + bytes(1392) for i in range(1400)], flush=True)
            received = collect(receiver, 1400)
            assert [int(message.data[:8]) for message in received] == list(range(1400))
        assert subscriber.link("receive_drops") > 0
        transport = subscriber.context.stats()["context"]
        assert transport["fragments_unrecoverably_lost"] == 0


@pytest.mark.parametrize("late", [False, True])
def test_buffers_the_kernel_refuses_are_warned_of_with_the_remedy(make_lab: MakeLab, late: bool) -> None:
    """The socket buffer is forced, or a warning names the sysctl that fixes it.

    This also holds if the receiver is closed before its thread checks the buffer.
    """
    lab = make_lab(hosts=2)
    asked = int(Path("/proc/sys/net/core/rmem_max").read_text()) + (1 << 20)
    program = (
        "import json, sys, threading, warnings, umstack\n"
        "closed = threading.Event()\n"
        "look = umstack.Context._warn_small_buffer\n"
        "if sys.argv[2] == 'late':\n"
        "    umstack.Context._warn_small_buffer = lambda context: closed.wait(10) and look(context)\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    wanted = int(sys.argv[1])\n"
        "    with umstack.Context('eth0', transport_lbtrm_receiver_socket_buffer=wanted) as context:\n"
        "        receiver, source = context.receiver('x'), context.source('x', flow_control='min')\n"
        "        source.wait_connected(timeout=10)\n"
        "        source.send(b'works', flush=True)\n"
        "        answer = receiver.receive(5).decode()\n"
        "        receiver.close()\n"
        "        closed.set()\n"
        "    print(json.dumps([answer, *(str(w.message) for w in caught)]))\n"
    )
    without = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"]
    said = {}
    for name, prefix in {"with": [], "without": without}.items():
        child = lab.hosts[0].run(
            [*prefix, sys.executable, "-c", program, str(asked), "late" if late else "at once"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        output, errors = child.communicate(timeout=30)
        assert child.returncode == 0, errors
        said[name] = json.loads(output)
    assert said["with"] == ["works"]
    works, *warnings = said["without"]
    assert works == "works"
    (warning,) = warnings
    assert f"sysctl -w net.core.rmem_max={asked}" in warning
    assert "CAP_NET_ADMIN" in warning


@pytest.mark.parametrize("timestamps", [0, 1])
def test_messages_carry_their_time_of_arrival(shared_lab: Lab, timestamps: int) -> None:
    """transport_lbtrm_receiver_timestamp: the time is the kernel's (SO_TIMESTAMPNS) or the context's clock."""
    kind = {"transport_lbtrm_receiver_timestamp": timestamps}
    with members(*shared_lab.hosts[:2], **kind) as (publisher, subscriber):
        receiver, source = subscriber.receiver("when"), publisher.source("when")
        source.wait_connected(timeout=10)
        times = []
        for _ in range(20):
            before = time.time_ns()
            source.send(b"now", flush=True)
            (message,) = collect(receiver, 1)
            assert before <= message.received_ns <= time.time_ns()
            times.append(message.received_ns)
        assert times == sorted(times)


# ---- modes ----


@pytest.mark.parametrize("publishing", ["embedded", "sequential"])
@pytest.mark.parametrize("subscribing", ["embedded", "sequential", "busy"])
def test_every_mode_talks_to_every_mode(shared_lab: Lab, publishing: str, subscribing: str) -> None:
    """W8, UM-13, UM-14: the mode of one side does not affect the other side."""
    first, second, _ = shared_lab.hosts
    busy = {"file_descriptor_management_behavior": "busy_wait"} if subscribing == "busy" else {}
    mode = "sequential" if subscribing == "sequential" else "embedded"
    with members(first, mode=publishing) as (publisher,), members(second, mode=mode, **busy) as (subscriber,):
        receiver, source = subscriber.receiver("modes"), publisher.source("modes")
        received: list[bytes] = []

        def read() -> None:
            received.extend(message.data for message in second.call(lambda: collect(receiver, 20_000)))

        reader = threading.Thread(target=read)
        reader.start()
        messages = [b"%06d" % i for i in range(20_000)]
        for first_message in range(0, 20_000, 1000):
            source.send_many(messages[first_message : first_message + 1000], timeout=10)
        source.flush()
        while reader.is_alive():  # in sequential mode this thread also serves retransmissions
            publisher.context.process_events(0.01) if publishing == "sequential" else reader.join(0.01)
        assert received == messages


def test_processes_of_one_host_share_a_group(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """UM-1: without a daemon, any number of processes join the same group on one host, and each gets everything."""
    ends = ends_in(make_lab(hosts=2))
    subscribers = [ends.subscribe(1), ends.subscribe(1), ends.subscribe(0)]
    publisher = ends.publish(receivers=3)
    publisher.ask(send=5_000)
    for subscriber in subscribers:
        assert_whole(subscriber.await_received(5_000), 5_000)
    assert publisher.ask().counter("source_transports", "receivers_known") == 3


def test_a_thousand_topics_share_a_session(shared_lab: Lab) -> None:
    """UM-4, UM-7, UM-72: with a thousand topics on one session, the subscribed topics arrive, each in order."""
    first, second, _ = shared_lab.hosts
    with members(first) as (publisher,), members(second) as (subscriber,):
        wanted = {f"topic/{i}": subscriber.receiver(f"topic/{i}") for i in range(0, 1000, 20)}
        sources = [publisher.source(f"topic/{i}", **SHARED) for i in range(1000)]
        wait_for(
            lambda: all(receiver.stats()["delivery_controllers"] for receiver in wanted.values()),
            "resolution of fifty topics among a thousand",
        )
        sources[0].wait_connected(timeout=10)
        assert len({source.transport for source in sources}) == 1
        for turn in range(5):
            for source in sources:
                source.send(b"%s %d" % (source.topic.encode(), turn))
        sources[0].flush()
        for topic, receiver in wanted.items():
            messages = collect(receiver, 5)
            assert [m.data for m in messages] == [b"%s %d" % (topic.encode(), turn) for turn in range(5)]
        (transport,) = subscriber.context.stats()["receiver_transports"]
        assert transport["lbm_msgs_rcved"] == 5000
        assert transport["lbm_msgs_no_topic_rcved"] == 5000 - 5 * len(wanted)


# ---- faults ----


def change_link(host: Any, **settings: Any) -> None:
    def change() -> None:
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname="eth0")[0], **settings)

    host.call(change)


def test_an_interface_that_is_down_reports_how_to_bring_it_up(make_lab: MakeLab) -> None:
    """The error names the command that helps."""
    host = make_lab(hosts=2).hosts[0]
    host.link_down()
    with pytest.raises(InterfaceError, match=r"eth0 is down; ip link set eth0 up"):
        Member(host)


def test_an_interface_without_an_address_reports_how_to_give_it_one(make_lab: MakeLab) -> None:
    """An interface without an IPv4 address also causes an error with the command that helps."""
    host = make_lab(hosts=2).hosts[0]

    def flush() -> None:
        with IPRoute() as route:
            route.flush_addr(index=route.link_lookup(ifname="eth0")[0])

    host.call(flush)
    with pytest.raises(InterfaceError, match=r"no IPv4 address; ip address add ADDRESS/24 dev eth0"):
        Member(host)


def test_an_interface_without_multicast_reports_how_to_allow_it(make_lab: MakeLab) -> None:
    """An interface without IFF_MULTICAST also causes an error with the command that helps."""
    host = make_lab(hosts=2).hosts[0]
    change_link(host, flags=0, change=0x1000)
    refused = pytest.raises(InterfaceError, match=r"does not do multicast.*ip link set eth0 multicast on")
    with members(host) as (member,), refused:
        member.source("x")


def test_without_a_multicast_route_the_named_interface_is_used(make_lab: MakeLab) -> None:
    """Without a route for multicast, datagrams still leave through the interface of the context."""
    lab = make_lab(hosts=2)

    def forget_routes() -> None:
        with IPRoute() as route:
            route.route("del", dst="224.0.0.0/4", oif=route.link_lookup(ifname="eth0")[0])

    for host in lab.hosts:
        host.call(forget_routes)
    with members(*lab.hosts) as (publisher, subscriber):
        exchange(publisher, subscriber, 100, 100)


def _check_config(path: str) -> tuple[int, str]:
    checked = CliRunner().invoke(config_command, ["check", path])
    return checked.exit_code, checked.output


def test_a_datagram_size_above_the_mtu_is_fragmented_by_ip(make_lab: MakeLab, tmp_path: Path) -> None:
    """UM-49: Ultra Messaging's 8192 works over sockets, with one warning; rings refuse it with a size that works."""
    lab = make_lab(hosts=2, mtu=1500)
    path = tmp_path / "um.cfg"
    path.write_text("context transport_lbtrm_datagram_max_size 8192\ncontext default_interface eth0\n")
    reason = r"transport_lbtrm_datagram_max_size 8192 does not fit eth0, whose MTU is 1500"
    status, text = lab.hosts[0].call(partial(_check_config, str(path)))
    assert status == 0
    assert re.search(f":1: warning: {reason}: IP sends a datagram in 6 fragments", text), text
    path.write_text(f"{path.read_text()}context link xdp\n")
    status, text = lab.hosts[0].call(partial(_check_config, str(path)))
    assert status == 1
    assert re.search(f"contradiction: {reason}, and rings", text), text
    with pytest.raises(OptionError, match=f"{reason}, and rings .link=xdp. do not.*set it to 1472 or less"):
        Member(lab.hosts[0], link="xdp", transport_lbtrm_datagram_max_size=8192)
    with pytest.warns(FragmentationWarning, match=reason) as warned:
        publisher = Member(lab.hosts[0], link="auto", transport_lbtrm_datagram_max_size=8192)
    with publisher.context, members(lab.hosts[1]) as (subscriber,):
        assert len(warned) == 1
        stats = publisher.context.stats()
        assert stats["link_mode"] == "socket"
        assert all("rings do not fragment" in step["reason"] for step in stats["link_steps"][:-1])
        receiver, source = subscriber.receiver("large"), publisher.source("large")
        source.wait_connected(timeout=10)
        assert source.send(bytes(8100), flush=True) == 0, "a datagram holds it"
        for _ in range(99):
            source.send(bytes(8100), flush=True)
        assert [len(message.data) for message in collect(receiver, 100)] == [8100] * 100
        assert publisher.context.datagram_bytes == 8192
        assert publisher.link("oversize_sends") == 0


def test_jumbo_frames_carry_jumbo_messages(make_lab: MakeLab) -> None:
    """W4: with an MTU of 9000 a message of 8940 bytes is one datagram."""
    lab = make_lab(hosts=2, mtu=9000)
    with members(*lab.hosts) as (publisher, subscriber):
        receiver, source = subscriber.receiver("jumbo"), publisher.source("jumbo")
        source.wait_connected(timeout=10)
        assert source.send(bytes(8940), flush=True) == 0
        assert source.send(bytes(8941), flush=True) == 2
        assert [len(message.data) for message in collect(receiver, 2)] == [8940, 8941]
