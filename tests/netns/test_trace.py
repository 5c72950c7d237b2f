"""`umstack trace` in the lab: a datagram that the kernel drops is shown with the reason."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from umstack.errors import Unsupported
from umstack.lab import Host, Lab
from umstack.trace import Drop, Group, RedirectError, Trace
from umstack.trace.toolkit import find_headers, load_bcc
from umstack_xdp import AttachMode, BpfObject, RingMode, RingSet, RingSettings, Steering
from umstack_xdp.xsk import unavailable as rings_unavailable

ROOT = Path(__file__).resolve().parents[2]
GROUP, OTHER_GROUP = "239.9.9.9", "239.9.9.10"
CLOSED_PORT, SLOW_PORT = 5555, 5556
DATAGRAMS = 40
MakeLab = Callable[..., Lab]
TIMEOUT_SECONDS = 20.0


@pytest.fixture(scope="module", autouse=True)
def _bcc_is_here() -> None:
    try:
        load_bcc()
        find_headers()
    except Unsupported as reason:
        pytest.skip(str(reason))


@pytest.fixture
def subscriber(shared_lab: Lab) -> Iterator[Host]:
    """Return a host that has joined the groups and reads nothing."""
    host = shared_lab.hosts[1]
    with host.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as member:
        for group in (GROUP, OTHER_GROUP):
            request = socket.inet_aton(group) + socket.inet_aton(host.address)
            member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        yield host


def send(host: Host, port: int, group: str = GROUP) -> None:
    """Multicast some datagrams from a host."""
    with host.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sender:
        for _ in range(DATAGRAMS):
            sender.sendto(bytes(500), (group, port))


def wait_for(trace: Trace, found: Callable[[Drop], bool], host: Host, count: int = 1) -> Drop:
    """Read the trace until the kernel has dropped `count` datagrams of a kind."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        for drop in host.call(trace.report).drops:
            if found(drop) and drop.count >= count:
                return drop
        time.sleep(0.02)
    raise AssertionError(f"not dropped within {TIMEOUT_SECONDS} s: {host.call(trace.report).drops}")


def test_a_datagram_to_a_closed_port_shows_up_with_its_reason(shared_lab: Lab, subscriber: Host) -> None:
    """Each drop is counted once, with group, port, interface, the kernel's function and its meaning."""
    with subscriber.call(Trace) as trace:
        send(shared_lab.hosts[0], CLOSED_PORT)
        drop = wait_for(trace, lambda drop: drop.port == CLOSED_PORT, subscriber, DATAGRAMS)
        report = subscriber.call(trace.report)
    assert (drop.group, drop.interface, drop.count) == (GROUP, "eth0", DATAGRAMS)
    assert drop.reason in ("NO_SOCKET", "NOT_SPECIFIED")
    assert "udp" in drop.where
    assert "listens" in drop.meaning
    assert report.softirq_net_rx.runs > 0
    assert report.softirq_net_rx.microseconds > 0
    assert not report.redirect_errors
    assert not report.xdp_exceptions


def test_a_full_socket_buffer_shows_up_with_its_reason(shared_lab: Lab, subscriber: Host) -> None:
    """If a reader stops reading, the socket's buffer fills, and the trace shows it."""
    with subscriber.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
        slow.bind(("", SLOW_PORT))
        with subscriber.call(Trace) as trace:
            send(shared_lab.hosts[0], SLOW_PORT)
            drop = wait_for(trace, lambda drop: drop.reason == "SOCKET_RCVBUFF", subscriber)
    assert (drop.group, drop.port) == (GROUP, SLOW_PORT)
    assert "rmem_max" in drop.meaning


def test_only_matching_drops_are_counted(shared_lab: Lab, subscriber: Host) -> None:
    """Other groups, other ports and other namespaces are not in the report."""
    bystander = shared_lab.hosts[2]
    wanted = [Group(GROUP, CLOSED_PORT)]
    with subscriber.call(lambda: Trace(wanted)) as trace, bystander.call(Trace) as elsewhere:
        send(shared_lab.hosts[0], CLOSED_PORT + 7)
        send(shared_lab.hosts[0], CLOSED_PORT, OTHER_GROUP)
        send(shared_lab.hosts[0], CLOSED_PORT)
        wait_for(trace, lambda drop: drop.count == DATAGRAMS, subscriber, DATAGRAMS)
        drops = subscriber.call(trace.report).drops
        assert [(drop.group, drop.port) for drop in drops] == [(GROUP, CLOSED_PORT)]
        assert not [drop for drop in bystander.call(elsewhere.report).drops if drop.group == GROUP]


XDP_PROGRAM = """
static long (*redirect)(unsigned int interface, unsigned long long flags) = (void *)23;
__attribute__((section("xdp"), used)) int aborting(void *frame) { return 0; }
__attribute__((section("xdp"), used)) int misleading(void *frame) { return redirect(999999, 0); }
__attribute__((section("license"), used)) char _license[] = "GPL";
"""


@pytest.fixture(scope="module")
def xdp_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BpfObject]:
    """Return XDP programs whose verdicts fail."""
    source = tmp_path_factory.mktemp("xdp") / "failing.c"
    source.write_text(XDP_PROGRAM)
    compiled = source.with_suffix(".o")
    subprocess.run(["clang", "-O2", "-g", "-target", "bpf", "-c", source, "-o", compiled], check=True)
    with BpfObject(compiled) as loaded:
        yield loaded


@pytest.mark.parametrize("name", ["aborting", "misleading"])
def test_xdp_failures_show_up(make_lab: MakeLab, xdp_programs: BpfObject, name: str) -> None:
    """A verdict of XDP_ABORTED is an exception, and a redirection without a target is a redirect error; both
    name the interface.
    """
    lab = make_lab(hosts=2)
    host = lab.hosts[1]

    def attach() -> None:
        attributes = [("IFLA_XDP_FD", xdp_programs.program(name).fd), ("IFLA_XDP_FLAGS", 1 << 2)]
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname="eth0")[0], xdp={"attrs": attributes})

    def failures(trace: Trace) -> list[tuple[str, str]]:
        report = host.call(trace.report)
        exceptions = [(item.interface, item.action) for item in report.xdp_exceptions]
        return exceptions + [(item.interface, item.error) for item in report.redirect_errors]

    host.call(attach)
    with host.call(Trace) as trace:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not failures(trace) and time.monotonic() < deadline:
            send(lab.hosts[0], CLOSED_PORT, "224.0.0.1")
        found = failures(trace)
    expected = {"aborting": {"aborted"}, "misleading": {"EINVAL", "ENODEV", "ENXIO"}}[name]
    assert found
    assert all(interface == "eth0" and failure in expected for interface, failure in found), found


@pytest.mark.skipif(rings_unavailable() is not None, reason=str(rings_unavailable()))
def test_a_ring_nobody_reads_shows_up(make_lab: MakeLab) -> None:
    """Datagrams steered into a full ring are redirect errors, with the meaning of the errno."""
    lab = make_lab(hosts=2)
    host = lab.hosts[1]
    with ExitStack() as opened:

        def open_rings() -> None:
            steering = opened.enter_context(Steering.attach("eth0", AttachMode.NATIVE, max_slots=1))
            settings = RingSettings(receive_frames=64, send_frames=64)
            port = opened.enter_context(RingSet("eth0", RingMode.COPY, settings))
            for queue, fd in port.sockets.items():
                steering.put_socket(0, queue, fd)
            steering.add_rule("224.0.0.1", CLOSED_PORT, 0)

        host.call(open_rings)
        trace = opened.enter_context(host.call(Trace))
        deadline = time.monotonic() + TIMEOUT_SECONDS
        errors: list[RedirectError] = []
        while not errors and time.monotonic() < deadline:
            send(lab.hosts[0], CLOSED_PORT, "224.0.0.1")
            errors = list(host.call(trace.report).redirect_errors)
    assert errors
    assert all(error.interface == "eth0" and error.count > 0 for error in errors)
    assert all("ring" in error.meaning for error in errors), errors


def test_a_trace_leaves_nothing_in_the_kernel(subscriber: Host) -> None:
    """Programs and maps exist by their descriptors, which are closed with the trace."""
    before = bpf_descriptors()
    with subscriber.call(Trace):
        assert bpf_descriptors() > before
    assert bpf_descriptors() == before


def bpf_descriptors() -> int:
    """Return the number of programs and maps of this process."""
    links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum("bpf" in str(link) or "raw_tracepoint" in str(link) for link in links)


def test_the_command_prints_one_object(shared_lab: Lab) -> None:
    """`umstack trace --seconds N --json` prints one object on standard output and nothing else."""
    child = shared_lab.hosts[1].run(
        [sys.executable, "-m", "umstack", "trace", GROUP, "-i", "eth0", "--seconds", "0.2", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    said, complained = child.communicate(timeout=60)
    assert child.returncode == 0, complained
    report = json.loads(said)
    assert report["groups"] == [GROUP]
    assert report["interface"] == "eth0"
    assert {"drops", "xdp_exceptions", "redirect_errors", "softirq_net_rx", "rings"} <= report.keys()
