"""The AF_XDP link between hosts of the lab: data over rings, its form on the wire, jumbo frames, several
queues, and the outcome of each fault.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.l2 import Ether
from scapy.utils import PcapWriter

import umstack_xdp as xdp
from tests.bpf.frames import ipv4, udp
from tests.held import held, wait_until_released
from tests.kernels import needs_frames_in_chains, needs_tcx
from tests.netns.captures import sniffing
from tests.netns.contexts import Member, exchange, members, numbered, ring_facts
from tests.netns.egress_programs import queue_by_group
from tests.netns.system_libbpf import detach_link
from tests.waiting import collect, wait_for
from tests.wire.dissection import MARKS, tshark, values
from umstack import Receiver
from umstack._engine.link import DataLink
from umstack._engine.ring_link import open_link
from umstack.errors import BackPressured, OptionError, Unsupported
from umstack.lab import Host, Lab
from umstack_xdp.ladder import Mode
from umstack_xdp.xsk import unavailable

ROOT = Path(__file__).parents[2]
MakeLab = Callable[..., Lab]
GROUP, PORT = "239.255.9.1", 14400
DATA, SESSION_MESSAGE = 0, 2
RETRANSMISSION = 0x20
"""Flag at byte 16 of a DATA datagram."""
FIXED = {"transport_lbtrm_multicast_address": GROUP, "transport_lbtrm_destination_port": PORT}
DISSECTED = {
    **FIXED,
    "transport_lbtrm_multicast_address": "224.10.10.10",
    "transport_lbtrm_path_datagram_minimum_size": 0,
}
"""A group that tshark decodes as LBT-RM by default, and no probes of the path, which may come at any time."""
RINGS = {"link": "xdp"}
WINDOW_BYTES = 8 * 1024 * 1024
QUICK_NAKS = {"transport_lbtrm_nak_initial_backoff_interval": 2, "transport_lbtrm_nak_backoff_interval": 20}

pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))


# ---- the data path ----


def test_data_travels_over_rings_in_native_mode(shared_lab: Lab) -> None:
    """W5, W7: each step down the ladder is tried and kept with its errno; data and retransmissions use the rings, and
    no datagram of a steered group arrives through the kernel."""
    with members(*shared_lab.hosts[:2], **RINGS, link_xdp_checksum=1) as (publisher, subscriber):
        exchange(publisher, subscriber, 5000, 1400)
        stats = subscriber.context.stats()
        assert (stats["link"], stats["link_mode"]) == ("xdp", "native")
        assert [(step["mode"], step["tried"], step["errno"]) for step in stats["link_steps"]] == [
            ("zero-copy", False, 0),
            ("native", True, 0),
        ]
        assert "allow-list" in stats["link_steps"][0]["reason"]
        assert subscriber.link("ring_kernel_path") == 0
        assert subscriber.link("datagrams_received") >= 5000
        assert subscriber.link("ring_frames_refused") == subscriber.link("xdp_rx_dropped") == 0
        assert subscriber.link("ring_checksum_errors") == 0
        assert publisher.link("datagrams_sent") >= 5000
        # Messages that fill a datagram are staged in frames, except while another thread sends.
        assert publisher.link("ring_sent_in_place") > 0
        assert publisher.link("xdp_tx_invalid_descs") == publisher.link("send_errors") == 0
        # The kernel sends many frames per call.
        assert publisher.link("syscalls") < publisher.link("datagrams_sent") / 4


def test_what_is_lost_is_repaired_over_rings(make_lab: MakeLab) -> None:
    """NAKs use sockets, retransmissions use rings, and every message arrives in order."""
    lab = make_lab(hosts=2, loss=0.02)
    with members(*lab.hosts, **RINGS) as (publisher, subscriber):
        exchange(publisher, subscriber, 10000, 1400, **QUICK_NAKS)
        assert publisher.context.stats()["source_transports"] == []
        assert subscriber.context.stats()["context"]["fragments_unrecoverably_lost"] == 0
        assert publisher.link("datagrams_sent") > 10100


@pytest.mark.parametrize("rings_at", ["publisher", "subscriber"])
def test_rings_and_sockets_understand_each_other(shared_lab: Lab, rings_at: str) -> None:
    """W6: the kind of link does not affect the other side; the checksums of one kind are correct for the
    other.
    """
    first, second, _ = shared_lab.hosts
    rings = {**RINGS, "link_xdp_checksum": 1}
    with (
        members(first, **(rings if rings_at == "publisher" else {"link": "socket"})) as (publisher,),
        members(second, **(rings if rings_at == "subscriber" else {"link": "socket"})) as (subscriber,),
    ):
        exchange(publisher, subscriber, 3000, 1001)
        assert subscriber.link("ring_checksum_errors") == 0


def test_who_polled_the_rings_can_sleep_afterwards(shared_lab: Lab) -> None:
    """W5: frames that a polling loop leaves in the ring do not wake a sleeping loop repeatedly.

    A loop may poll for 0.1 ms before it sleeps (adaptive spin), so waits are counted, not passes.
    """
    first, second, _ = shared_lab.hosts
    with (
        members(first, **RINGS) as (publisher,),
        members(second, **RINGS, operational_mode="sequential") as (subscriber,),
        subscriber.receiver("polled") as receiver,
        publisher.source("polled") as source,
    ):

        def poll(seconds: float) -> int:
            return len(second.call(lambda: receiver.poll(1, seconds)))

        connected = threading.Thread(target=lambda: source.wait_connected(timeout=10))
        connected.start()
        wait_for(lambda: not (poll(0) or connected.is_alive()), "the connection")
        for _ in range(20):
            source.send(b"wake up", flush=True)
            wait_for(lambda: poll(0) == 1, "the message")
            before = subscriber.context.stats()["context"]["wakeups"]
            poll(0.02)
            assert subscriber.context.stats()["context"]["wakeups"] - before < 20


def test_generic_mode_is_a_step_of_its_own(shared_lab: Lab) -> None:
    """W7: if the driver has no XDP, the kernel's generic XDP runs the program."""
    host = shared_lab.hosts[0]
    with opened(host, "generic") as link:
        assert link.mode is Mode.GENERIC
        assert [one.mode for one in host.call(lambda: xdp.occupants("eth0"))] == ["generic"]


@pytest.mark.parametrize("datagram_bytes", [500, 1472])
def test_generic_mode_drops_no_joined_datagrams(make_lab: MakeLab, datagram_bytes: int) -> None:
    """Item 13 of issue 41: runs that the sender's kernel did not split (GSO) reach a receiver in generic mode as one
    frame. Long ones go through the kernel, and the receiver splits those that fit an ordinary frame."""
    first, second = make_lab(hosts=2, segmentation="offload").hosts
    sizes = {"transport_lbtrm_datagram_max_size": datagram_bytes}
    with (
        members(first, **sizes) as (publisher,),
        members(second, link="generic") as (subscriber,),
        subscriber.receiver("joined") as receiver,
        publisher.source("joined") as source,
    ):
        source.wait_connected(timeout=10)
        for count in (2, 3, 5, 1000):
            messages = numbered(count, datagram_bytes - 100)
            source.send_many(messages, flush=True)
            assert [message.data for message in collect(receiver, count, 20)] == messages
        assert publisher.link("gso_sends") > 0
        assert subscriber.link("ring_kernel_path") > 0
        [transport] = subscriber.context.stats()["receiver_transports"]
        assert not [name for name, count in transport.items() if name.startswith("dgrams_dropped") and count]


# ---- the wire ----


def data_frames(lab: Lab, link: str, payload: bytes) -> list[bytes]:
    """Return the frames of a message, as received at the switch."""
    first, second, _ = lab.hosts
    with (
        members(first, link=link, link_gso=0) as (publisher,),
        members(second, link="socket") as (subscriber,),
        subscriber.receiver(f"wire/{link}") as receiver,
        publisher.source(f"wire/{link}", **FIXED) as source,
        sniffing(lab, first) as sniffer,
    ):
        source.wait_connected(timeout=10)
        source.send(payload, flush=True)
        collect(receiver, 1)
        found: list[bytes] = []
        while not found:
            frame = sniffer.recv(65536)
            if payload in frame:
                found.append(frame)
        return found


def ones_complement(data: bytes) -> int:
    """Return the Internet checksum of RFC 1071."""
    padded = data + bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


@pytest.mark.parametrize("length", [9, 300, 1234])
def test_the_wire_looks_the_same(shared_lab: Lab, length: int) -> None:
    """W1, W4: Ethernet, IP and UDP headers of a datagram from a ring equal those of the kernel, and its checksums are
    correct, also for odd lengths."""
    payload = os.urandom(length)
    (by_socket,), (by_rings,) = (data_frames(shared_lab, link, payload) for link in ("socket", "xdp"))
    assert len(by_socket) == len(by_rings)
    assert by_rings[:6] == bytes.fromhex("01005e7f0901")
    for at, what in (
        (slice(0, 16), "Ethernet"),
        (slice(18, 24), "identification to protocol"),
        (slice(26, 34), "addresses"),
    ):
        assert by_rings[at] == by_socket[at], what
    ip, udp = by_rings[14:34], by_rings[34:]
    assert ones_complement(ip) == 0xFFFF
    assert ones_complement(ip[12:20] + struct.pack("!HH", 17, len(udp)) + udp) == 0xFFFF


def captured(lab: Lab, link: str, messages: list[bytes], capture: Path) -> None:
    """Capture at the switch while the publisher sends these messages over the link, until the last one arrives.

    Status messages of the receiver, and retransmissions, depend on how busy the machine is: they are left out.
    """
    group = socket.inet_aton(str(DISSECTED["transport_lbtrm_multicast_address"]))
    first, second, _ = lab.hosts
    with (
        members(first, link=link, link_gso=0) as (publisher,),
        members(second, link="socket") as (subscriber,),
        subscriber.receiver("captured") as receiver,
        publisher.source("captured", **DISSECTED, transport_lbtrm_sm_minimum_interval=20) as source,
        sniffing(lab, first) as sniffer,
        PcapWriter(str(capture), linktype=1) as writer,
    ):
        source.wait_connected(timeout=10)
        source.send_many(messages, flush=True)
        assert [message.data for message in collect(receiver, len(messages))] == messages
        deadline, seen = time.monotonic() + 10, set[str]()
        while seen < {"last message", "session message"}:
            assert time.monotonic() < deadline, seen
            frame = sniffer.recv(65536)
            if frame[23] != socket.IPPROTO_UDP or frame[30:34] != group:
                continue
            if frame[42] & 0x0F == DATA and frame[58] & RETRANSMISSION:
                continue
            writer.write(frame)
            if messages[-1] in frame:
                seen.add("last message")
            elif frame[36:38] == struct.pack("!H", PORT) and frame[42] & 0x0F == SESSION_MESSAGE:
                seen.add("session message")


def described(tree: object, where: str = "") -> set[str]:
    """Return every field that tshark found, by its path, with its value if all sessions have the same."""
    if isinstance(tree, list):
        return {text for item in tree for text in described(item, where)}
    # The number of other session messages, and tshark's guess from the sender's port (traceroute), vary.
    if where.endswith(("_frame", "/udp.srcport_tree")):
        return set()
    if not isinstance(tree, dict):
        return {where if VARIES.search(where) else f"{where} = {tree}"}
    return {text for key, item in tree.items() for text in described(item, f"{where}/{key}")}


VARIES = re.compile(
    r"/frame/|checksum|session_id|sqn|topic_idx|tidx|port|timestamp|stream|analysis|data\.data|payload|rcv|"
    r"\.(src|id)$|eth\.src|ip\.src|ip\.host|udp\.time|transport|hf_|bitmap|value|trail|lead|channel|reassembl|extopt\.data"
)


def test_a_capture_at_the_switch_decodes_as_the_socket_links_does(shared_lab: Lab, tmp_path: Path) -> None:
    """tshark finds the same fields, and no error, in datagrams of a ring and of a socket."""
    messages = [b"first message", bytes(range(256)) * 20, b"the last message"]
    found: dict[str, dict[str, set[str]]] = {}
    for link in ("socket", "xdp"):
        capture = tmp_path / f"{link}.pcap"
        captured(shared_lab, link, messages, capture)
        assert tshark(capture, "-Y", MARKS) == ""
        dissected = json.loads(tshark(capture, "-T", "json", "--no-duplicate-keys", "-Y", "lbtrm"))
        by_kind: dict[str, set[str]] = {}
        for frame in dissected:
            (kind,) = values(frame["_source"]["layers"]["lbtrm"], "lbtrm.hdr.type")
            by_kind.setdefault(kind, set()).update(described(frame["_source"]["layers"]))
        found[link] = by_kind
    assert found["xdp"].keys() >= {"0x00", "0x02"}
    assert found["xdp"].keys() == found["socket"].keys()
    for kind, fields in found["socket"].items():
        assert sorted(found["xdp"][kind] ^ fields) == [], kind


def test_fragments_come_by_the_kernel_and_are_counted(shared_lab: Lab) -> None:
    """W4: a datagram sent in IP fragments is reassembled by the kernel and received."""
    first, second, _ = shared_lab.hosts
    with (
        members(first, **RINGS) as (publisher,),
        members(second, **RINGS) as (subscriber,),
        subscriber.receiver("fragments"),
        publisher.source("fragments", **FIXED) as source,
    ):
        source.wait_connected(timeout=10)

        def send_fragments() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_MTU_DISCOVER: fragments are allowed
                sender.sendto(bytes(4000), (GROUP, PORT))

        first.call(send_fragments)
        wait_for(lambda: subscriber.link("ring_kernel_path") > 0, "a datagram by the kernel's path")


def test_frames_that_are_refused_can_be_filled_again(shared_lab: Lab) -> None:
    """With more damaged datagrams than frames, one at a time and in bursts, the stream continues."""
    first, second, _ = shared_lab.hosts
    damaged = ipv4(udp(PORT, b"damaged", chksum=0x1234), destination=GROUP)
    frame = bytes(Ether(dst="01:00:5e:7f:09:01") / damaged)
    with (
        members(first, **RINGS) as (publisher,),
        members(second, **RINGS, link_xdp_checksum=1, link_xdp_receive_frames=64) as (subscriber,),
        subscriber.receiver("damaged") as receiver,
        publisher.source("damaged", **FIXED) as source,
        first.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)) as sender,
    ):

        def refused_more_than(count: int) -> bool:
            return subscriber.link("ring_checksum_errors") > count

        def is_refused(count: int) -> bool:
            """Send a frame, which a busy machine may lose, and look whether more have been refused."""
            sender.sendto(frame, ("eth0", 0))
            return refused_more_than(count)

        source.wait_connected(timeout=10)
        for number in range(100):
            wait_for(partial(is_refused, number), "a refused datagram")
        for _ in range(100):
            sender.sendto(frame, ("eth0", 0))
        source.send_many(numbered(200, 1000), flush=True)
        assert [message.data for message in collect(receiver, 200)] == numbered(200, 1000)
        assert refused_more_than(100)


# ---- size ----


@needs_frames_in_chains
def test_jumbo_frames_take_several_frames_of_the_ring(make_lab: MakeLab) -> None:
    """W4: at MTU 9000 a datagram fills the MTU; multi-buffer carries it both ways."""
    lab = make_lab(hosts=2, mtu=9000)
    with members(*lab.hosts, **RINGS) as (publisher, subscriber):
        assert publisher.context.datagram_bytes == 8972
        assert ring_facts(subscriber)["multi_buffer"]
        exchange(publisher, subscriber, 2000, 8900)
        assert subscriber.link("ring_multi_buffer") >= 2000
        assert subscriber.link("ring_kernel_path") == 0


@needs_frames_in_chains
def test_a_pass_takes_the_jumbo_frames_that_wait(make_lab: MakeLab) -> None:
    """W5: the pass ends when the rings are empty, for datagrams of any number of frames."""
    lab = make_lab(hosts=2, mtu=9000)
    count = 150
    with (
        members(lab.hosts[0], **RINGS) as (publisher,),
        members(lab.hosts[1], mode="sequential", **RINGS) as (subscriber,),
    ):
        receiver, source = subscriber.receiver("jumbo"), publisher.source("jumbo")

        def run() -> int:
            return subscriber.host.call(lambda: subscriber.context.process_events(0))

        wait_for(lambda: run() >= 0 and source.is_connected, "topic resolution")
        source.send_many(numbered(count, 8900), flush=True)
        wait_for(lambda: publisher.link("datagrams_sent") >= count, "the stream")
        passes = 0
        while receiver.stats()["messages_delivered"] < count:
            assert passes < 5, "a pass has space for 768 datagrams"
            passes += run() > 0


@needs_frames_in_chains
def test_the_mtu_is_followed(make_lab: MakeLab) -> None:
    """W4: datagrams shrink and grow with the MTU while the rings stay open."""
    lab = make_lab(hosts=2, mtu=1500)
    with members(*lab.hosts, **RINGS) as (publisher, subscriber):
        for mtu in (900, 9000):
            lab.set_mtu(mtu)
            await_datagram_size(publisher, mtu - 28)
            exchange(publisher, subscriber, 1000, 3000)
        assert subscriber.link("ring_multi_buffer") > 0


@needs_frames_in_chains
def test_a_size_the_path_cannot_carry_is_refused_with_one_that_works(make_lab: MakeLab) -> None:
    """W4, on the bypass: the error states the size for the current MTU; with that size every byte is used."""
    lab = make_lab(hosts=2)
    for mtu in (1500, 1200, 9000):
        lab.set_mtu(mtu)
        asked = {**RINGS, "transport_lbtrm_datagram_max_size": mtu - 27}
        with pytest.raises(OptionError, match=f"set it to {mtu - 28} or less"):
            Member(lab.hosts[0], **asked)
        asked["transport_lbtrm_datagram_max_size"] = mtu - 28
        with members(lab.hosts[0], **asked) as (publisher,), members(lab.hosts[1], **RINGS) as (subscriber,):
            assert publisher.context.link_mode == "native"
            assert publisher.context.datagram_bytes == mtu - 28
            exchange(publisher, subscriber, 200, mtu // 2)


def await_datagram_size(member: Member, size: int) -> None:
    """Wait until the context sends datagrams of this size."""
    wait_for(lambda: member.context.datagram_bytes == size, f"a datagram size of {size}")


# ---- queues ----


@needs_tcx
@pytest.mark.parametrize(
    ("mtu", "size"), [(1500, 1000), pytest.param(9000, 8900, marks=needs_frames_in_chains)]
)
def test_two_queues_carry_two_sessions_and_neither_starves(make_lab: MakeLab, mtu: int, size: int) -> None:
    """W5: a session sends and receives on its own queue, as a NIC sorts datagrams; both sessions progress
    alike, and the messages of each stay separate.
    """
    lab = make_lab(hosts=2, queues=2, mtu=mtu)
    count = 6000
    groups = ("239.255.9.11", "239.255.9.12")
    with queue_by_group(lab, 1), members(*lab.hosts, **RINGS) as (publisher, subscriber):
        assert ring_facts(subscriber)["queues"] == 2
        receivers = [subscriber.receiver(f"queue/{group}") for group in groups]
        sources = [
            publisher.source(f"queue/{group}", transport_lbtrm_multicast_address=group) for group in groups
        ]
        for source in sources:
            source.wait_connected(timeout=10)
        senders = [
            threading.Thread(target=lambda s=source: s.send_many(numbered(count, size), flush=True))
            for source in sources
        ]
        for sender in senders:
            sender.start()
        got = [0, 0]
        when_first_ended = None
        deadline = time.monotonic() + 20
        while min(got) < count:
            assert time.monotonic() < deadline, got
            for i, receiver in enumerate(receivers):
                got[i] += len(receiver.poll(512, 0.01).messages())
            if when_first_ended is None and max(got) == count:
                when_first_ended = min(got)
        for sender in senders:
            sender.join()
        assert when_first_ended is not None
        assert when_first_ended > count // 4
        queues = queue_counts(subscriber)
        assert all(frames > count // 2 for frames in queues.values()), queues
        stats = subscriber.context.stats()
        assert stats["context"]["lbtrm_unknown_msgs_rcved"] == 0
        assert [transport["lost"] for transport in stats["receiver_transports"]] == [0, 0]
        for thing in (*receivers, *sources):
            thing.close()


def queue_counts(member: Member) -> dict[int, int]:
    """Return the number of datagrams received on each queue."""
    received: list[int] = member.context.stats()["rings"]["received_by_queue"]
    return dict(enumerate(received))


# ---- faults ----


@contextmanager
def opened(host: Host, wanted: str, **settings: Any) -> Iterator[DataLink]:
    """Open a link in the wanted mode."""
    interface = host.facts()
    link = host.call(lambda: open_link(wanted, interface, xdp.RingSettings(**settings)))
    try:
        yield link
    finally:
        link.close()


def test_a_second_user_of_the_interface_learns_who_is_there(shared_lab: Lab) -> None:
    """A forced mode fails and names the conflicting program; the ladder ends at sockets and keeps every
    reason.
    """
    host = shared_lab.hosts[0]
    with members(host, **RINGS):
        with pytest.raises(Unsupported, match="an XDP program is there already"):
            Member(host, **RINGS)
        with opened(host, "auto") as link:
            assert link.mode is Mode.SOCKET
            assert [(step.tried, bool(step.reason)) for step in link.steps] == [(False, True)] * 3 + [
                (True, False)
            ]


def test_a_queue_that_is_taken_is_refused_in_time(shared_lab: Lab) -> None:
    """EBUSY is retried for a bounded time, since a queue is busy for a moment after its last user."""
    host = shared_lab.hosts[0]
    with host.call(lambda: xdp.RingSet("eth0", xdp.RingMode.COPY)):
        started = time.monotonic()
        with pytest.raises(xdp.RingError, match="busy") as refused:
            host.call(lambda: xdp.RingSet("eth0", xdp.RingMode.COPY, xdp.RingSettings(busy_timeout=0.2)))
        assert refused.value.errno == errno.EBUSY
        assert 0.2 <= time.monotonic() - started < 5


def test_auto_walks_down_past_a_queue_that_is_taken(shared_lab: Lab) -> None:
    """W7: if a second process requests the queue, each mode is tried, each refusal is kept with its errno,
    and then sockets are used.
    """
    host = shared_lab.hosts[0]
    with (
        host.call(lambda: xdp.RingSet("eth0", xdp.RingMode.COPY)),
        opened(host, "auto", busy_timeout=0.1) as link,
    ):
        assert [(step.mode, step.tried, step.errno) for step in link.steps] == [
            (Mode.ZERO_COPY, False, 0),
            (Mode.NATIVE, True, errno.EBUSY),
            (Mode.GENERIC, True, errno.EBUSY),
            (Mode.SOCKET, True, 0),
        ]
        assert "ss --xdp" in link.steps[1].remedy
    assert host.call(lambda: xdp.occupants("eth0")) == ()


OPEN_A_LINK = """
import resource, sys, umstack
wanted, memlock_bytes = sys.argv[1], int(sys.argv[2])
if memlock_bytes:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock_bytes, memlock_bytes))
try:
    with umstack.Context("eth0", link=wanted) as context:
        print(context.link_mode, *(step["reason"] for step in context.stats()["link_steps"]), sep="; ")
except umstack.UmError as error:
    print(type(error).__name__, error, sep="; ")
"""

OPEN_RINGS = """
import resource, umstack_xdp as xdp
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
try:
    xdp.RingSet("eth0", xdp.RingMode.COPY)
except xdp.RingError as error:
    print(error.errno, error)
"""


def without(host: Host, capabilities: str, program: str, *arguments: str) -> str:
    """Return the output of a Python program that runs on the host without these capabilities."""
    command = ["setpriv", f"--bounding-set={capabilities}", sys.executable, "-c", program, *arguments]
    child = host.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    said, complained = child.communicate(timeout=20)
    assert child.returncode == 0, complained
    return str(said)


@pytest.mark.parametrize(
    ("capabilities", "memlock_bytes", "expected"),
    [
        ("-bpf,-sys_admin", 0, "lacks CAP_BPF; run as root, or start `umstack broker`, or: setcap"),
        ("-net_raw,-net_admin", 0, "lacks CAP_NET_RAW, CAP_NET_ADMIN; run as root"),
        ("-ipc_lock", 1 << 20, "bytes of locked memory, the limit is 1048576; ulimit -l unlimited"),
    ],
)
def test_a_missing_privilege_is_named(
    shared_lab: Lab, capabilities: str, memlock_bytes: int, expected: str
) -> None:
    """Without a capability or locked memory a forced link names the missing one, and `auto` uses sockets."""
    host = shared_lab.hosts[0]
    forced, fallen_back = (
        without(host, capabilities, OPEN_A_LINK, wanted, str(memlock_bytes)) for wanted in ("xdp", "auto")
    )
    assert forced.startswith("PermissionNeeded; no AF_XDP link on eth0: ")
    assert expected in forced
    assert fallen_back.startswith("socket; ")
    assert expected.partition("; ")[0] in fallen_back
    assert host.call(lambda: xdp.occupants("eth0")) == ()


def test_the_kernel_too_refuses_more_locked_memory_than_is_allowed(shared_lab: Lab) -> None:
    """Without the ladder the kernel refuses the rings, and the hint names the limit to raise."""
    said = without(shared_lab.hosts[0], "-ipc_lock", OPEN_RINGS)
    assert said.startswith(f"{errno.ENOBUFS} ")
    assert "XDP_UMEM_REG" in said
    assert "ulimit -l" in said


def test_a_link_can_be_opened_again_at_once_and_leaves_nothing(shared_lab: Lab) -> None:
    """Descriptors, program and sockets of a context are removed with it."""
    host = shared_lab.hosts[0]
    before = held()
    for _ in range(5):
        with members(host, **RINGS) as (member,):
            assert member.context.link_mode == "native"
        assert host.call(lambda: xdp.occupants("eth0")) == ()
    wait_until_released(before)


@pytest.mark.parametrize("link", ["xdp", "socket"])
def test_a_program_that_was_taken_off_leaves_the_kernels_path(shared_lab: Lab, link: str) -> None:
    """If the program is detached, data continues over the kernel's sockets, is counted, and the statistics show it.

    The kernel joins datagrams (GRO): often those of a socket, and those of rings if another CPU receives them.
    """
    first, second, _ = shared_lab.hosts
    with members(first, link=link) as (publisher,), members(second, **RINGS) as (subscriber,):
        exchange(publisher, subscriber, 100, 1000)
        (occupant,) = second.call(lambda: xdp.occupants("eth0"))
        assert occupant.link_id is not None
        detach_link(occupant.link_id)
        assert ring_facts(subscriber)["program_attached"] is False
        exchange(publisher, subscriber, 500, 1000)
        wait_for(lambda: subscriber.link("ring_kernel_path") >= 500, "500 datagrams counted")
        assert link == "xdp" or subscriber.link("gro_receives") > 0


def test_what_was_staged_while_the_interface_was_down_leaves_no_frame_behind(make_lab: MakeLab) -> None:
    """Sources that end with unsent datagrams return the frames of these."""
    lab = make_lab(hosts=2)
    with members(lab.hosts[0], **RINGS) as (publisher,):
        lab.hosts[0].link_down()
        for number in range(30):
            with publisher.source(f"held/{number}", flow_control="none") as source:
                source.send_many(numbered(100, 1400), flush=True, timeout=0)
        wait_for(lambda: publisher.context.stats()["source_transports"] == [], "the end of every session")
        lab.hosts[0].link_up()
        with publisher.source("free", flow_control="none") as source:

            def sends_in_place() -> bool:
                before = publisher.link("ring_sent_in_place")
                source.send_many(numbered(70, 800), flush=True, timeout=10)
                return publisher.link("ring_sent_in_place") - before >= 60

            wait_for(sends_in_place, "a batch sent in place, of which another thread sent next to nothing")


def test_an_interface_that_comes_back_is_used_again(make_lab: MakeLab) -> None:
    """The interface goes down and up: rings and program still exist, and the stream continues."""
    lab = make_lab(hosts=2)
    with members(*lab.hosts, **RINGS) as (publisher, subscriber):
        exchange(publisher, subscriber, 500, 1000)
        with subscriber.receiver("down", **QUICK_NAKS) as receiver, publisher.source("down") as source:
            source.wait_connected(timeout=10)
            lab.hosts[0].link_down()
            source.send_many(numbered(200, 1000), flush=True, timeout=0)
            wait_for(lambda: publisher.link("send_errors") > 0, "an error for a send while it is down")
            lab.hosts[0].link_up()
            received = collect(receiver, 200, 20)
            assert [message.data for message in received] == numbered(200, 1000)
        lab.hosts[1].link_down()
        lab.hosts[1].link_up()
        exchange(publisher, subscriber, 500, 1000)
        assert ring_facts(subscriber)["program_attached"] is True


@contextmanager
def held_at_the_switch(lab: Lab, host_number: int) -> Iterator[None]:
    """Make the switch hold nearly all traffic to a host, and so the sender's frames, for the duration of the block."""
    shaper = ["dev", f"port{host_number}", "root", "tbf", "burst", "4kb", "limit", "64mb", "rate"]

    def shape(verb: str, rate: str) -> None:
        assert lab.run_at_switch(["tc", "qdisc", verb, *shaper, rate]).wait() == 0

    shape("add", "80kbit")
    try:
        yield
    finally:
        shape("change", "10gbit")


def test_frames_the_kernel_keeps_hold_the_sender_back_and_nothing_is_lost(make_lab: MakeLab) -> None:
    """When completions stop, the send ring fills and every frame is in use. The stack keeps the published
    messages, a non-blocking send is refused once its log is full, and everything is sent when the frames
    return.
    """
    lab = make_lab(hosts=2)
    with members(*lab.hosts, **RINGS) as (publisher, subscriber):
        options = {"transport_lbtrm_transmission_window_size": WINDOW_BYTES, "flow_control": "none"}
        with (
            subscriber.receiver("kept", **QUICK_NAKS) as receiver,
            publisher.source("kept", **options) as source,
        ):
            wait_for(lambda: receiver.stats()["delivery_controllers"], "the source's resolution")
            messages = numbered(2 * WINDOW_BYTES // 1400, 1400)
            frames = xdp.RingSettings().send_frames
            with held_at_the_switch(lab, 1):
                taken = source.send_many(messages, timeout=0)
                wait_for(lambda: publisher.link("datagrams_sent") >= frames, "every frame's use")
                with suppress(BackPressured):
                    while taken < len(messages):
                        taken += source.send_many(messages[taken:], timeout=0)
                assert publisher.link("datagrams_sent") < frames + 200 < taken < len(messages)
                blocked = publisher.link("send_would_block")
                wait_for(lambda: publisher.link("send_would_block") > blocked, "another attempt")
            sender = threading.Thread(target=lambda: source.send_many(messages[taken:], flush=True))
            sender.start()
            received = collect(receiver, len(messages), 20)
            sender.join()
            assert [message.data for message in received] == messages
        assert publisher.link("send_errors") == publisher.link("xdp_tx_invalid_descs") == 0
        exchange(publisher, subscriber, 3000, 1400)  # every frame is back


HOLD_A_LINK = """
import sys, umstack
context = umstack.Context("eth0", link="xdp")
print(context.link_mode, flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_no_program_and_no_queue(shared_lab: Lab) -> None:
    """After kill -9 during a stream, the kernel removes the program and frees the queues for the next
    process.
    """
    host = shared_lab.hosts[0]
    child = host.run(
        [sys.executable, "-c", HOLD_A_LINK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "native"
    child.kill()
    child.wait()
    wait_for(lambda: host.call(lambda: xdp.occupants("eth0")) == (), "the program's end")
    with members(host, **RINGS) as (member,):
        assert member.context.link_mode == "native"


# ---- ownership of frames ----


@needs_frames_in_chains
def test_no_frame_ever_has_two_owners(tmp_path: Path) -> None:
    """A debug build asserts each frame's owner at every step of the tests above, with loss and jumbo frames."""
    environment = {**os.environ, "UMSTACK_BUILD": "debug"}
    build = [sys.executable, "ffi/build.py", "--into", str(tmp_path), "--only", "xsk"]
    subprocess.run(build, cwd=ROOT, env=environment, check=True, capture_output=True)
    (module,) = (tmp_path / "umstack_xdp").glob("_xsk*.so")
    chosen = "native_mode or repaired_over_rings or several_frames_of_the_ring or ran_dry or neither_starves"
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "tests.netns.debug_rings", "-k", chosen, __file__]
    done = subprocess.run(
        tests,
        cwd=ROOT,
        env={**os.environ, "UMSTACK_RINGS": str(module), "UMSTACK_REQUIRE_TIERS": "netns"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_a_fill_ring_that_ran_dry_is_counted_and_repaired(shared_lab: Lab) -> None:
    """When a burst exceeds the number of frames, the kernel counts the drops, and NAKs recover the datagrams."""
    first, second, _ = shared_lab.hosts
    with (
        members(first, **RINGS) as (publisher,),
        members(second, **RINGS, link_xdp_receive_frames=64) as (subscriber,),
    ):
        with subscriber.receiver("burst", **QUICK_NAKS) as receiver, publisher.source("burst") as source:
            source.wait_connected(timeout=10)
            dry = "xdp_rx_fill_ring_empty_descs"
            sent = burst_until(source.send_many, lambda: subscriber.link(dry) > 0)
            received = collect_all(receiver, sent)
            assert received == list(range(sent))
        assert subscriber.link("receive_drops") > 0


def burst_until(send_many: Callable[..., int], condition: Callable[[], bool], seconds: float = 10) -> int:
    """Send bursts until the condition holds; return the number of messages."""
    deadline, sent = time.monotonic() + seconds, 0
    while not condition():
        assert time.monotonic() < deadline, "the burst never was too large"
        messages = [b"%08d" % i + bytes(1392) for i in range(sent, sent + 1000)]
        send_many(messages, flush=True)
        sent += len(messages)
    return sent


def collect_all(receiver: Receiver, count: int) -> list[int]:
    """Return the numbers of the next `count` messages."""
    return [int(message.data[:8]) for message in collect(receiver, count, 20)]
