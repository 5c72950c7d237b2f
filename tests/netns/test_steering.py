"""Steering on real interfaces: attached programs, reports, and the datagrams that still reach the kernel.

AF_XDP sockets here are not bound: a datagram that is redirected to them disappears, which proves the redirection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyroute2 import IPRoute
from scapy.layers.inet import ICMP

from tests.bpf.frames import GROUP, PORT, ethernet, ipv4
from tests.kernels import needs_packet_comparisons, needs_program_fragments
from tests.netns.system_libbpf import detach_link, libbpf
from tests.netns.traffic import Receiver, Sender
from tests.waiting import wait_for
from umstack.lab import Host, Lab, namespaces
from umstack_xdp import (
    AttachedProgram,
    AttachError,
    AttachMode,
    BpfError,
    NoSuchInterfaceError,
    OccupiedError,
    Steering,
    SteeringError,
    XdpError,
    find_interface,
    occupants,
)
from umstack_xdp import steering as steering_module
from umstack_xdp.steering import FrameTimes

T = TypeVar("T")
MakeLab = Callable[..., Lab]
ROOT = Path(__file__).resolve().parents[2]
AF_XDP = 44
XDP_REDIRECT = 4
MANY_QUEUES = 66
NATIVE_FLAG = 1 << 2
# Has the MAC address of GROUP, so it passes the same filter in a NIC.
SAME_MAC_GROUP = "238.205.1.2"
MODES = pytest.mark.parametrize("mode", list(AttachMode))


def exists(program_id: int) -> bool:
    """Return true if the kernel still has the program."""
    try:
        AttachedProgram(program_id).close()
    except BpfError:
        return False
    return True


def open_descriptors() -> set[str]:
    """Return the open descriptors of this process, without the one used to list them."""
    return {entry.name for entry in Path("/proc/self/fd").iterdir() if entry.exists()}


class Namespace:
    """A namespace with the interfaces that a test creates in it."""

    def __init__(self, name: str) -> None:
        """Create it."""
        self.name = name
        namespaces.create(name)
        self.call(lambda: self.link("set", "lo", state="up"))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function in the namespace."""
        return namespaces.call(self.name, function)

    @staticmethod
    def link(command: str, name: str, **options: Any) -> None:
        """Change a link of the calling thread's namespace."""
        with IPRoute() as route:
            if command == "add":
                route.link("add", ifname=name, **options)
            else:
                route.link(command, index=route.link_lookup(ifname=name)[0], **options)

    def add(self, name: str, kind: str, **options: Any) -> None:
        """Create an interface that is up."""

        def make() -> None:
            self.link("add", name, kind=kind, **options)
            self.link("set", name, state="up")

        self.call(make)


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """Return an empty namespace."""
    made = Namespace(f"umsteer-{os.getpid()}")
    yield made
    namespaces.remove(made.name)


@pytest.fixture
def host(shared_lab: Lab) -> Iterator[Host]:
    """Return a host of the lab, and check that no program is left on its interface."""
    host = shared_lab.hosts[1]
    yield host
    assert host.call(lambda: occupants("eth0")) == ()


def attach(host: Host | Namespace, mode: AttachMode = AttachMode.NATIVE, interface: str = "eth0") -> Steering:
    """Attach on the host."""
    return host.call(lambda: Steering.attach(interface, mode))


def ping(host: Host, address: str) -> bool:
    """Send one ICMP echo request and return true if it was answered."""
    request = bytes(ICMP(type=8, id=os.getpid() & 0xFFFF, seq=1))

    def ask() -> socket.socket:
        return socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)

    with host.call(ask) as raw:
        raw.settimeout(5)
        raw.sendto(request, (address, 0))
        while True:
            try:
                answer = raw.recv(2048)
            except TimeoutError:
                return False
            if answer[20] == 0 and answer[24:28] == request[4:8]:
                return True


@MODES
def test_rules_steer_only_what_they_should(shared_lab: Lab, host: Host, mode: AttachMode) -> None:
    """W5: the rule's datagrams bypass the kernel once a socket is bound; groups, ARP, ping and IGMP are unaffected."""
    sender_host = shared_lab.hosts[0]
    with contextlib.ExitStack() as stack:
        steering = stack.enter_context(attach(host, mode))
        owned = stack.enter_context(Receiver(host, GROUP, PORT))
        same_mac = stack.enter_context(Receiver(host, SAME_MAC_GROUP, PORT))
        unicast = stack.enter_context(Receiver(host, None, PORT))
        for receiver in (owned, same_mac):
            shared_lab.await_join(str(receiver.group), 1)
        steering.add_rule(GROUP, PORT, 0)
        to_owned = stack.enter_context(Sender(sender_host, GROUP, PORT))
        to_same_mac = stack.enter_context(Sender(sender_host, SAME_MAC_GROUP, PORT))
        to_unicast = stack.enter_context(Sender(sender_host, host.address, PORT))

        to_owned.send(range(10))
        assert owned.collect(10) == list(range(10)), "without a socket the kernel has them"
        ring = stack.enter_context(socket.socket(AF_XDP, socket.SOCK_RAW, 0))
        steering.put_socket(0, 0, ring.fileno())
        host.run(["ip", "neigh", "flush", "dev", "eth0"]).wait(10)
        sender_host.run(["ip", "neigh", "flush", "dev", "eth0"]).wait(10)
        to_owned.send(range(100, 120))
        to_same_mac.send(range(10))
        to_unicast.send(range(10))
        assert same_mac.collect(10) == list(range(10))
        assert unicast.collect(10) == list(range(10)), "ARP is answered"
        assert ping(sender_host, host.address)
        assert owned.numbers == list(range(10))
        wait_for(lambda: steering.counters().rules[0].redirected == 20, "all are redirected")

        steering.remove_rule(GROUP, PORT)
        to_owned.send(range(200, 210))
        assert owned.collect(20)[10:] == list(range(200, 210)), "without a rule the kernel has them"
        verdicts = steering.counters().verdicts
    assert (verdicts["redirected"], verdicts["no_socket"]) == (20, 10)
    assert verdicts["not_owned"] >= 30
    assert verdicts["not_ip"] >= 1, "ARP"
    assert verdicts["not_udp"] >= 1, "ICMP"
    assert verdicts["malformed"] == verdicts["truncated"] == 0


def test_fragments_of_a_steered_group_still_arrive(shared_lab: Lab, host: Host) -> None:
    """W4: a fragmented datagram is reassembled by the kernel, and its fragments are counted."""
    with attach(host) as steering, socket.socket(AF_XDP, socket.SOCK_RAW, 0) as ring:
        steering.add_rule(GROUP, PORT, 0)
        steering.put_socket(0, 0, ring.fileno())
        with Receiver(host, GROUP, PORT) as receiver, Sender(shared_lab.hosts[0], GROUP, PORT) as sender:
            shared_lab.await_join(GROUP, 1)
            sender.send(range(5), 4000)
            assert receiver.collect(5) == list(range(5))
            rule = steering.counters().rules[0]
            assert (rule.redirected, rule.no_socket, rule.fragments) == (0, 0, 15)


def test_the_receive_queue_chooses_the_socket(namespace: Namespace) -> None:
    """A frame goes to the slot's socket for its queue; a queue above a slot's 64 does not reach the next slot."""
    queues = {"num_rx_queues": MANY_QUEUES, "num_tx_queues": MANY_QUEUES}
    namespace.add("veth0", "veth", peer={"ifname": "veth1", **queues}, **queues)
    with attach(namespace, interface="veth0") as steering, contextlib.ExitStack() as stack:
        steering.add_rule(GROUP, PORT, 5)
        index = namespace.call(lambda: find_interface("veth0")).index

        def redirecting_queues() -> list[int]:
            run, frame = steering.program.test_run, ethernet(ipv4())
            return [
                queue
                for queue in range(MANY_QUEUES)
                if run(frame, is_xdp=True, interface_index=index, queue=queue).result == XDP_REDIRECT
            ]

        def put_socket(slot: int, queue: int) -> None:
            ring = stack.enter_context(socket.socket(AF_XDP, socket.SOCK_RAW, 0))
            steering.put_socket(slot, queue, ring.fileno())

        put_socket(6, 0)
        put_socket(4, 63)
        served: list[int] = []
        for queue in (2, 0, 63, 1):
            assert namespace.call(redirecting_queues) == sorted(served)
            put_socket(5, queue)
            served.append(queue)
        assert namespace.call(redirecting_queues) == [0, 1, 2, 63]


def test_every_interface_takes_generic(namespace: Namespace) -> None:
    """An interface without XDP in its driver refuses native mode with the reason, and accepts generic mode."""
    namespace.add("bridge0", "bridge")
    for name in ("bridge0", "lo"):
        with pytest.raises(AttachError, match=rf"{name} in native mode.*use mode generic"):
            attach(namespace, AttachMode.NATIVE, name)
        with attach(namespace, AttachMode.GENERIC, name) as steering:
            assert steering.attached()
            (there,) = namespace.call(lambda name=name: occupants(name))
            assert (there.program_id, there.mode) == (steering.program.id, "generic")
        assert not steering.attached()


@needs_program_fragments
def test_jumbo_frames_need_the_program_for_several_buffers(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W4: at MTU 9000 the program of new kernels attaches, and the one for old kernels is refused with the reason."""
    host = make_lab(hosts=2, mtu=9000).hosts[1]
    with attach(host) as steering:
        assert steering.attached()
    monkeypatch.setitem(steering_module._PROGRAMS, FrameTimes.NONE, ("steering", "steering_linear"))
    with pytest.raises(AttachError, match="without multi-buffer: lower the MTU"):
        attach(host)


@MODES
def test_nothing_is_left(host: Host, mode: AttachMode) -> None:
    """No program, map or descriptor is left after closing, or after an attachment that failed."""
    descriptors = open_descriptors()
    steering = attach(host, mode)
    program_id = steering.program.id
    steering.add_rule(GROUP, PORT, 0)
    with pytest.raises(OccupiedError):
        attach(host, mode)
    steering.close()
    steering.close()
    wait_for(lambda: not exists(program_id), "the program is freed")
    assert open_descriptors() == descriptors
    with pytest.raises(XdpError, match="no interface is named"):
        attach(host, mode, "eth9")
    assert open_descriptors() == descriptors


CHILD = """
import sys
from umstack_xdp import AttachMode, Steering
steering = Steering.attach("eth0", AttachMode(sys.argv[1]))
print(steering.program.id, steering.attachment.link_id, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def other_process(host: Host, mode: AttachMode) -> Iterator[tuple[subprocess.Popen[str], int, int]]:
    """Start a process on the host with steering attached: the process, its program's id and its link's."""
    command = [sys.executable, "-c", CHILD, mode.value]
    child = host.run(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout
        program_id, link_id = map(int, child.stdout.readline().split())
        yield child, program_id, link_id
    finally:
        child.kill()
        child.communicate(timeout=10)


@MODES
def test_a_crash_detaches(host: Host, mode: AttachMode) -> None:
    """W11: kill -9 leaves nothing on the interface; the next attachment succeeds."""
    with other_process(host, mode) as (child, program_id, _):
        (there,) = host.call(lambda: occupants("eth0"))
        assert there.program_id == program_id
        child.send_signal(signal.SIGKILL)
        child.wait(10)
        wait_for(lambda: not host.call(lambda: occupants("eth0")), "the interface is free")
        wait_for(lambda: not exists(program_id), "the program is freed")
        attach(host, mode).close()


@MODES
def test_a_second_program_is_refused_by_naming_the_first(host: Host, mode: AttachMode) -> None:
    """The error names the program, its mode and its process, and contains no command that would detach a running
    program."""
    with other_process(host, mode) as (child, program_id, _):
        with Steering() as like_it:
            name = like_it.program.name  # its name differs before Linux 5.18
        for wanted in AttachMode:
            with pytest.raises(OccupiedError) as refusal:
                attach(host, wanted)
            said = str(refusal.value)
            assert f"eth0 has an XDP program already: {name} (id {program_id}, {mode} mode; " in said
            assert f"({child.pid})" in said
            assert f"({child.pid}), if it is no longer needed" in refusal.value.hint
            assert "detach" not in refusal.value.hint
            assert " off" not in refusal.value.hint


def test_a_program_without_a_link_is_removed_by_the_command_given(host: Host) -> None:
    """A program attached by netlink belongs to no process; the error's command detaches it."""
    with Steering() as loaded:
        index = host.facts().index
        attached = host.call(lambda: libbpf().bpf_xdp_attach(index, loaded.program.fd, NATIVE_FLAG, None))
        assert attached == 0
        (there,) = host.call(lambda: occupants("eth0"))
        assert there.link_id is None
    with pytest.raises(OccupiedError, match="held by no process that can be seen") as refusal:
        attach(host)
    condition, command = refusal.value.hint.rpartition("; or ")[2].split(": ")
    assert condition == "if nothing needs it any more"
    assert command == "ip link set dev eth0 xdpdrv off"
    assert host.run(shlex.split(command)).wait(10) == 0
    attach(host).close()


def test_a_program_that_somebody_detached_is_noticed(shared_lab: Lab, host: Host) -> None:
    """After another process detaches it, `attached` is false, and `reattach` restores the same rules."""
    with attach(host) as steering, socket.socket(AF_XDP, socket.SOCK_RAW, 0) as ring:
        steering.add_rule(GROUP, PORT, 0)
        steering.put_socket(0, 0, ring.fileno())
        assert steering.attached()
        assert steering.attachment
        detach_link(steering.attachment.link_id)
        assert not steering.attached()
        with attach(host), pytest.raises(OccupiedError):
            host.call(steering.reattach)
        with Receiver(host, GROUP, PORT) as receiver, Sender(shared_lab.hosts[0], GROUP, PORT) as sender:
            shared_lab.await_join(GROUP, 1)
            sender.send(range(5))
            assert receiver.collect(5) == list(range(5)), "while it is off, the kernel has the datagrams"
            for _ in range(2):
                host.call(steering.reattach)
                assert steering.attached()
            sender.send(range(7))
            wait_for(lambda: steering.counters().rules[0].redirected == 7, "the same rule steers")
    with Steering() as loaded, pytest.raises(SteeringError, match=r"use Steering\.attach"):
        loaded.reattach()


def test_an_interface_that_is_gone_is_noticed(namespace: Namespace) -> None:
    """The attachment ends with its interface; a new interface of the same name can be attached to."""
    namespace.add("veth0", "veth", peer="veth1")
    with attach(namespace, interface="veth0") as steering:
        assert steering.attached()
        gone = namespace.call(lambda: find_interface("veth0"))
        namespace.call(lambda: namespace.link("del", "veth0"))
        assert not steering.attached()
        with pytest.raises(NoSuchInterfaceError, match=f"no interface has the index {gone.index}"):
            namespace.call(lambda: Steering.attach(gone, AttachMode.NATIVE))
        namespace.add("veth0", "veth", peer="veth1")
        assert not steering.attached()
        namespace.call(steering.reattach)
        assert steering.attached()
        assert namespace.call(lambda: occupants("veth0")) != ()


@needs_program_fragments
def test_an_interface_that_goes_down_and_returns_keeps_the_program(shared_lab: Lab, host: Host) -> None:
    """Setting the interface down and up, or changing its MTU, leaves the program on the interface."""
    with attach(host) as steering:
        steering.add_rule(GROUP, PORT, 0)
        host.link_down()
        assert steering.attached()
        host.link_up()
        host.set_mtu(9000)
        host.set_mtu(1500)
        assert steering.attached()
        with Receiver(host, GROUP, PORT) as receiver, Sender(shared_lab.hosts[0], GROUP, PORT) as sender:
            shared_lab.await_join(GROUP, 1)
            sender.send(range(3))
            assert receiver.collect(3) == [0, 1, 2]
        assert steering.counters().rules[0].no_socket == 3


ATTACH = """
from umstack_xdp import AttachMode, Steering
with Steering.attach("eth0", AttachMode.NATIVE) as steering:
    steering.add_rule("239.1.1.1", 1, 0)
    assert steering.attached()
"""


@needs_packet_comparisons
def test_three_capabilities_are_enough(host: Host) -> None:
    """CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF suffice to load and attach; without CAP_BPF the error names it."""
    if not (setpriv := shutil.which("setpriv")):
        pytest.skip("setpriv (util-linux) is needed to drop capabilities")

    def with_capabilities(*kept: str) -> tuple[int, str]:
        only = ",".join(["-all", *(f"+{name}" for name in kept)])
        command = [setpriv, f"--bounding-set={only}", f"--inh-caps={only}", sys.executable, "-c", ATTACH]
        child = host.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        said = child.communicate(timeout=20)[1]
        return child.returncode, said

    assert with_capabilities("bpf", "net_admin", "net_raw") == (0, "")
    status, said = with_capabilities("net_admin", "net_raw")
    assert status != 0
    assert "CAP_BPF" in said
    with attach(host) as steering:
        program_id = steering.program.id
        status, said = with_capabilities("bpf", "net_admin", "net_raw")
    assert status != 0
    assert f"whose name only root may know (id {program_id}, native mode" in said
    assert "bpftool net show dev eth0 (as root)" in said


def test_an_application_with_an_event_loop_can_attach(host: Host) -> None:
    """If an event loop runs, netlink is used on another thread in the same namespace."""

    async def attach_and_look() -> tuple[int, bool]:
        with Steering.attach("eth0", AttachMode.NATIVE) as steering:
            return len(occupants("eth0")), steering.attached()

    assert host.call(lambda: asyncio.run(attach_and_look())) == (1, True)
