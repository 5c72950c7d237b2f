"""The probe, `umstack doctor` and `umstack nic` on real interfaces in namespaces."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from tests.kernels import needs_epoll_busy_poll, needs_frames_in_chains, needs_irq_suspension
from tests.netns.contexts import members
from tests.waiting import collect, wait_for
from umstack import Context
from umstack._engine.ring_link import open_link
from umstack.lab import Host, Lab
from umstack.lab.links import set_feature
from umstack_xdp import BpfObject, BpfProgram, Interface, RingSettings, find_interface
from umstack_xdp.facts import Facts, QueueCounts, Unknown
from umstack_xdp.ladder import Mode, Verdict, chosen, decide
from umstack_xdp.nic_host import LinuxHost
from umstack_xdp.nic_settings import Preferences, check, init, undo
from umstack_xdp.probe import missing_parts, probe, probe_interface, running_kernel

MakeLab = Callable[..., Lab]
ROOT = Path(__file__).resolve().parents[2]
# Root without capabilities may read root's files but has no privileges.
UNPRIVILEGED = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
ETHTOOL_FEATURE = "feature.rx-vlan-hw-parse"


@pytest.fixture(scope="module")
def host(shared_lab: Lab) -> Host:
    """Return a host whose settings a test may change if it restores them."""
    return shared_lab.hosts[1]


def umstack(host: Host, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the namespace, with its own /sys, as `ip netns exec` mounts it."""
    inside = ["ip", "netns", "exec", host.namespace, sys.executable, "-m", "umstack", *arguments]
    return subprocess.run(inside, cwd=ROOT, capture_output=True, text=True, timeout=60)


def as_json(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the only object that a command printed."""
    read = json.loads(done.stdout)
    assert isinstance(read, dict)
    return read


def test_the_probe_reads_a_veth(host: Host) -> None:
    """Driver, link, queues, XDP features, offloads and privileges of a real interface are found; unknown
    facts have a reason.
    """
    facts = host.call(lambda: probe("eth0"))
    assert (facts.driver, facts.mtu_bytes, facts.addresses) == ("veth", 1500, (f"{host.address}/24",))
    assert facts.is_up
    assert facts.has_carrier
    assert isinstance(facts.queues, QueueCounts)
    assert facts.queues.rx >= 1
    assert isinstance(facts.features, dict)
    assert facts.features["rx-vlan-hw-parse"] in (True, False)
    assert facts.attached is None
    assert facts.has_capability("CAP_NET_ADMIN")
    for unknown in (facts.rings, facts.irqs, facts.numa_node):
        assert isinstance(unknown, Unknown)
    if facts.kernel_version >= (6, 3):
        assert isinstance(facts.xdp_features, frozenset)
        assert {"basic", "redirect"} <= facts.xdp_features
    json.dumps(facts.to_json())


def test_sysfs_of_another_namespace_is_not_believed(host: Host) -> None:
    """After setns alone, /sys shows the outer namespace, so its values are unknown and are not taken from an
    interface of the same name.
    """
    facts = host.call(lambda: probe("eth0"))
    assert isinstance(facts.napi_defer_hard_irqs, Unknown)
    assert "ip netns exec" in facts.napi_defer_hard_irqs.reason


@pytest.mark.parametrize("kind", ["ifb", "bridge"])
def test_any_kind_of_interface_can_be_probed(make_lab: MakeLab, kind: str) -> None:
    """An interface without XDP in its driver is never native; if it has multicast, some mode works."""
    host = make_lab(hosts=2).hosts[0]

    def make() -> Facts:
        with IPRoute() as route:
            try:
                route.link("add", ifname="other0", kind=kind)
            except NetlinkError as error:
                pytest.skip(f"this kernel makes no {kind}: {error}")
            index = route.link_lookup(ifname="other0")[0]
            route.addr("add", index=index, address="10.99.0.1", prefixlen=24)
            route.link("set", index=index, state="up")
        return probe("other0")

    facts = host.call(make)
    assert facts.driver == kind
    steps = {step.mode: step for step in decide(facts)}
    assert steps[Mode.NATIVE].verdict is Verdict.CANNOT
    assert (steps[Mode.SOCKET].verdict is not Verdict.CANNOT) == facts.is_multicast


def test_the_loopback_has_a_mode(host: Host) -> None:
    """lo carries multicast within the host; its driver has no XDP, and the probe reports that."""
    facts = host.call(lambda: probe("lo"))
    assert facts.driver == "loopback"
    steps = {step.mode: step for step in decide(facts)}
    assert steps[Mode.SOCKET].verdict is not Verdict.CANNOT
    assert steps[Mode.NATIVE].verdict is Verdict.CANNOT


@pytest.fixture(scope="module")
def passing_program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BpfProgram]:
    """Return an XDP program that passes everything."""
    source = tmp_path_factory.mktemp("xdp") / "passing.c"
    source.write_text(
        '__attribute__((section("xdp"), used)) int passing(void *frame) { return 2; }\n'
        '__attribute__((section("license"), used)) char _license[] = "GPL";\n'
    )
    compiled = source.with_suffix(".o")
    subprocess.run(["clang", "-O2", "-g", "-target", "bpf", "-c", source, "-o", compiled], check=True)
    with BpfObject(compiled) as loaded:
        yield loaded.program("passing")


@pytest.mark.parametrize(("flags", "mode"), [(1 << 1, "generic"), (1 << 2, "native")])
def test_an_attached_program_is_seen(
    make_lab: MakeLab, passing_program: BpfProgram, flags: int, mode: str
) -> None:
    """The probe reports the attached program; the bypass is ruled out, and the reason names the program and
    how to remove it.
    """
    host = make_lab(hosts=2).hosts[0]

    def attach() -> Facts:
        attributes = [("IFLA_XDP_FD", passing_program.fd), ("IFLA_XDP_FLAGS", flags)]
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname="eth0")[0], xdp={"attrs": attributes})
        return probe("eth0")

    facts = host.call(attach)
    assert facts.attached is not None
    assert not isinstance(facts.attached, Unknown)
    assert facts.attached.mode == mode
    assert facts.attached.program_id == passing_program.id
    assert "passing" in facts.attached.description
    for step in decide(facts)[:3]:
        assert any("passing" in reason.problem for reason in step.reasons)
        assert any(
            " no longer needs it: ip link set dev eth0 xdp" in reason.remedy for reason in step.reasons
        )


def test_the_probe_works_without_privileges(host: Host) -> None:
    """The probe names the missing privileges and reads everything that does not need them."""
    script = (
        "import json;"
        "from umstack_xdp.probe import probe; from umstack_xdp.ladder import decide, chosen;"
        "facts = probe('eth0'); print(json.dumps([facts.to_json(), chosen(decide(facts))]))"
    )
    child = host.run(
        [*UNPRIVILEGED, sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    said, complained = child.communicate(timeout=60)
    assert child.returncode == 0, complained
    facts, mode = json.loads(said)
    assert (facts["capabilities"], facts["driver"], mode) == ([], "veth", "socket")
    assert facts["queues"]["rx"] >= 1


def test_doctor_reports_what_will_be_used_and_why_nothing_better(host: Host) -> None:
    """The doctor prints one object with the mode, the steps with reasons and remedies, and the facts. A veth
    never has zero-copy, and the reason is shown.
    """
    done = umstack(host, "doctor", "eth0", "--json")
    assert done.returncode == 0, done.stderr
    (report,) = as_json(done)["interfaces"]
    assert report["mode"] in ("native", "generic", "socket")
    assert [step["mode"] for step in report["steps"]] == ["zero-copy", "native", "generic", "socket"]
    zero_copy = report["steps"][0]
    assert zero_copy["verdict"] == "cannot"
    assert any("veth is not on the allow-list" in reason["problem"] for reason in zero_copy["reasons"])
    assert report["facts"]["napi_defer_hard_irqs"] == 0
    assert any("umstack nic check eth0" in note["remedy"] for note in report["notes"])


@pytest.mark.skipif(bool(missing_parts()), reason="; ".join(missing_parts()))
@needs_frames_in_chains
def test_what_is_decided_is_what_opens(make_lab: MakeLab) -> None:
    """W7: the mode that the ladder chooses is the mode that opens, with a plain and a jumbo MTU."""
    lab = make_lab(hosts=2)
    host = lab.hosts[0]

    def decided_and_opened() -> tuple[str, str]:
        link = open_link("xdp", find_interface("eth0"), RingSettings(receive_frames=64, send_frames=64))
        try:
            opened = str(link.mode)
        finally:
            link.close()
        return str(chosen(decide(probe("eth0"), "xdp"))), opened

    for mtu_bytes in (1500, 9000):
        lab.set_mtu(mtu_bytes)
        decided, opened = host.call(decided_and_opened)
        assert decided == opened


def test_doctor_shows_every_interface_that_carries_multicast(host: Host) -> None:
    """Without a name, the doctor prints tables of lo and eth0."""
    done = umstack(host, "doctor")
    assert done.returncode == 0, done.stderr
    for shown in ("lo: ", "eth0: ", "will be used", "zero-copy", "socket"):
        assert shown in done.stdout


def test_doctor_fails_on_what_cannot_be_used(make_lab: MakeLab) -> None:
    """An interface that is down or missing gives exit status 1 and the command that helps."""
    host = make_lab(hosts=2).hosts[0]
    host.link_down()
    done = umstack(host, "doctor", "eth0", "--json")
    assert done.returncode == 1
    (report,) = as_json(done)["interfaces"]
    assert report["mode"] is None
    assert "ip link set dev eth0 up" in done.stdout
    missing = umstack(host, "doctor", "eth7")
    assert missing.returncode == 1
    assert "no interface is named" in missing.stderr


@pytest.fixture
def settings_before(host: Host) -> Iterator[dict[str, Any]]:
    """Return the host's settings, and check that they are the same after the test."""
    before = read_settings(host)
    yield before
    assert read_settings(host) == before


def read_settings(host: Host) -> dict[str, Any]:
    """Return every setting and its value."""
    done = umstack(host, "nic", "check", "eth0", "--json")
    return {setting["setting"]: setting["is"] for setting in as_json(done)["settings"]}


def test_nic_init_and_undo_on_a_real_interface(
    host: Host, settings_before: dict[str, Any], tmp_path: Path
) -> None:
    """The settings of a veth are changed, stay changed, and are restored exactly; --dry-run changes nothing."""
    state = str(tmp_path / "state.json")
    skip = ("--skip", "socket buffers")  # host-wide if the kernel has no such sysctl per namespace
    tried = umstack(host, "nic", "init", "eth0", "--dry-run", *skip)
    assert tried.returncode == 0, tried.stderr
    assert "ethtool -K eth0 rx-vlan-hw-parse off" in tried.stdout
    assert read_settings(host) == settings_before

    done = umstack(host, "nic", "init", "eth0", "--state", state, "--json", *skip)
    assert done.returncode == 0, done.stderr
    changed = {change["setting"]: change for change in as_json(done)["changes"]}
    assert changed[ETHTOOL_FEATURE]["before"] == settings_before[ETHTOOL_FEATURE] == 1
    assert not [key for key in changed if "napi" in key or "gro" in key]
    now = read_settings(host)
    assert {key: now[key] for key in changed} == {key: change["after"] for key, change in changed.items()}
    assert umstack(host, "nic", "check", "eth0", *skip).returncode == 0

    undone = umstack(host, "nic", "undo", "eth0", "--state", state)
    assert undone.returncode == 0, undone.stderr
    again = umstack(host, "nic", "undo", "eth0", "--state", state)
    assert again.returncode == 1
    assert "nothing is recorded" in again.stderr


@pytest.fixture
def host_with_napi(make_lab: MakeLab) -> Host:
    """Return a host whose interface has a NAPI instance, as a veth has with GRO on."""
    host = make_lab(hosts=2).hosts[0]
    host.call(lambda: set_feature("eth0", "rx-gro", True))
    return host


@needs_irq_suspension
def test_busy_polling_is_prepared_said_and_put_back(host_with_napi: Host, tmp_path: Path) -> None:
    """Deferral by sysfs and IRQ suspension by netlink, on a real kernel; the doctor explains the effect."""
    host, state = host_with_napi, str(tmp_path / "state.json")
    preferences = ("--prefer-busy-poll", "--skip", "socket buffers")
    done = umstack(host, "nic", "init", "eth0", *preferences, "--state", state, "--json")
    assert done.returncode == 0, done.stderr
    said = as_json(done)
    assert said["lacking"] == {}
    after = {change["setting"]: change["after"] for change in said["changes"]}
    assert after["napi.0.irq_suspend_timeout"] == 20_000_000
    assert after["interface.napi_defer_hard_irqs"] == 2
    (napi,) = host.call(lambda: probe("eth0")).napi
    assert napi.irq_suspend_timeout_ns == 20_000_000
    report = umstack(host, "doctor", "eth0")
    assert "IRQ suspension 20 ms" in report.stdout
    assert "interrupts are deferred" in report.stdout
    assert umstack(host, "nic", "undo", "eth0", "--state", state).returncode == 0
    (napi,) = host.call(lambda: probe("eth0")).napi
    assert napi.irq_suspend_timeout_ns == 0
    assert "interrupts are deferred" not in umstack(host, "doctor", "eth0").stdout


def test_threads_poll_the_queues_or_the_kernel_is_named(host_with_napi: Host, tmp_path: Path) -> None:
    """`on` starts the kernel's threads, undo ends them; so does `busy-poll`, or it names the Linux that can."""
    host, state = host_with_napi, str(tmp_path / "state.json")
    skip = ("--skip", "socket buffers", "--state", state)
    done = umstack(host, "nic", "init", "eth0", "--threaded-napi", "on", *skip)
    assert done.returncode == 0, done.stderr
    assert "in threads" in umstack(host, "doctor", "eth0").stdout
    assert "napi/eth0" in kernel_threads()
    assert umstack(host, "nic", "undo", "eth0", "--state", state).returncode == 0
    assert "in soft interrupts" in umstack(host, "doctor", "eth0").stdout
    before = read_settings(host)
    never_sleeps = umstack(host, "nic", "init", "eth0", "--threaded-napi", "busy-poll", *skip)
    if running_kernel() >= (6, 19):
        assert never_sleeps.returncode == 0, never_sleeps.stderr
        assert umstack(host, "nic", "undo", "eth0", "--state", state).returncode == 0
    else:
        assert never_sleeps.returncode == 1
        assert "Linux 6.19" in never_sleeps.stderr
        assert "everything was put back" in never_sleeps.stderr
    assert read_settings(host) == before


def kernel_threads() -> str:
    """Return the names of the polling threads, one for each instance."""
    return subprocess.run(["ps", "-e", "-o", "comm="], capture_output=True, text=True, check=True).stdout


def test_an_interface_without_napi_reports_it(host: Host, tmp_path: Path) -> None:
    """Threads on an interface without NAPI: an error with the reason, and nothing changed."""
    state, before = str(tmp_path / "state.json"), read_settings(host)
    done = umstack(host, "nic", "init", "lo", "--threaded-napi", "busy-poll", "--state", state)
    assert done.returncode == 1
    assert "no such NAPI instance" in done.stderr
    assert not Path(state).exists()
    assert read_settings(host) == before


@needs_epoll_busy_poll
def test_a_context_prefers_busy_polling(host_with_napi: Host) -> None:
    """The kernel has the option's parameters, messages arrive, and GRO, which would hold them until a poll ends, is
    off. Without the option the epoll set has none of it, and GRO is on."""

    def parameters(limit_us: int) -> tuple[list[tuple[int, int, int]], bool]:
        before = epoll_sets()
        options = {"pend_busy_poll_limit": limit_us}
        with Context("eth0", **options) as context, context.receiver("busy") as receiver:
            made = epoll_sets() - before
            source = context.source("busy", flow_control="min")
            source.wait_connected(timeout=10)
            source.send(b"message", flush=True)
            assert [message.data for message in collect(receiver, 1)] == [b"message"]
            return [epoll_busy_poll(number) for number in made], any_joins_datagrams()

    for limit_us, expected in ((150, (150, 64, 1)), (0, (0, 0, 0))):
        found, has_gro = host_with_napi.call(lambda limit_us=limit_us: parameters(limit_us))
        assert expected in found, found
        assert has_gro == (limit_us == 0)


def any_joins_datagrams() -> bool:
    """Return true if a socket of this process accepts runs of datagrams (UDP_GRO)."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(entry.name))) as one:
                    found.append(one.getsockopt(socket.IPPROTO_UDP, 104))
    return any(found)


def epoll_sets() -> set[int]:
    """Return the epoll descriptors of this process."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if "[eventpoll]" in str(entry.readlink()):
                found.add(int(entry.name))
    return found


def epoll_busy_poll(descriptor: int) -> tuple[int, int, int]:
    """Return microseconds, budget and preference from the kernel (EPIOCGPARAMS)."""
    read = fcntl.ioctl(descriptor, 2 << 30 | 8 << 16 | 0x8A << 8 | 2, bytes(8))
    usecs, budget, prefers, _ = struct.unpack("=IHBB", read)
    return usecs, budget, prefers


def test_nic_init_rolls_back_what_a_real_driver_refuses(host: Host, tmp_path: Path) -> None:
    """A veth of few queues refuses many: the offloads changed before are restored."""
    state = tmp_path / "state.json"
    skip = "socket buffers"
    before = read_settings(host)
    done = umstack(host, "nic", "init", "eth0", "--queues", "100000", "--state", str(state), "--skip", skip)
    assert done.returncode == 1
    assert "everything was put back" in done.stderr
    assert "queues" in done.stderr
    assert read_settings(host) == before
    assert not state.exists()


def test_nic_settings_without_privileges_change_nothing(host: Host, tmp_path: Path) -> None:
    """The error names the privilege; nothing is recorded."""
    state = tmp_path / "state.json"
    arguments = ["nic", "init", "eth0", "--state", str(state), "--skip", "socket buffers"]
    child = host.run(
        [*UNPRIVILEGED, sys.executable, "-m", "umstack", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    _, complained = child.communicate(timeout=60)
    assert child.returncode == 1
    assert "run as root, or with CAP_NET_ADMIN" in complained
    assert not state.exists()


def test_queues_of_a_multi_queue_interface_are_set_and_put_back(make_lab: MakeLab, tmp_path: Path) -> None:
    """On a veth with four queues, one queue is requested, set, and undone."""
    host = make_lab(hosts=2).hosts[0]

    def make() -> Interface:
        with IPRoute() as route:
            route.link(
                "add",
                ifname="wide0",
                kind="veth",
                num_rx_queues=4,
                num_tx_queues=4,
                peer={"ifname": "wide1", "num_rx_queues": 4, "num_tx_queues": 4},
            )
            route.link("set", index=route.link_lookup(ifname="wide0")[0], state="up")
        return find_interface("wide0")

    def change_and_undo() -> tuple[Any, Any, Any]:
        preferences = Preferences(queues=2, skip=frozenset({"socket buffers", "busy polling"}))
        with LinuxHost("wide0") as nic:
            before = probe("wide0").queues
            init(nic, tmp_path / "wide.json", preferences)
            during = probe("wide0").queues
            assert not [setting for setting in check(nic, preferences) if setting.is_to_change]
            undo(nic, tmp_path / "wide.json")
            return before, during, probe_interface(find_interface("wide0")).queues

    host.call(make)
    before, during, after = host.call(change_and_undo)
    assert (during.rx, during.tx) == (2, 2)
    assert (before.rx_max, before.rx) == (4, after.rx)
    assert before == after


_PUBLISHER = """
import sys
from umstack import Context

with Context("eth0", **{options!r}) as context:
    source = context.source("large", flow_control="min", flow_control_group_minimum_size=1)
    source.wait_connected(timeout=20)
    print("connected", flush=True)
    sys.stdin.read()
"""


@contextmanager
def publisher_on(host: Host, **options: object) -> Iterator[int]:
    """Run a process on the host that publishes to one receiver, and yield its id."""
    child = host.run(
        [sys.executable, "-c", _PUBLISHER.format(options=options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "connected\n"
        yield child.pid
    finally:
        child.stdin.close()
        child.wait(timeout=20)
        child.stdout.close()


def size_notes(host: Host, pid: int) -> list[str]:
    """Return what the doctor notes about a process on the host."""
    done = umstack(host, "doctor", "eth0", "--json")
    assert done.returncode == 0, done.stderr
    (report,) = as_json(done)["interfaces"]
    return [note["problem"] for note in report["notes"] if note["problem"].startswith(f"process {pid} ")]


def test_doctor_notes_a_path_that_carries_less_than_the_interface(make_lab: MakeLab) -> None:
    """UM-50: a running context's datagrams are limited by a link on the way, and the doctor of its host reports it;
    the doctor of another host, whose interface has the same name, does not.
    """
    lab = make_lab(hosts=2, mtu=9000)
    lab.hosts[1].set_path_mtu(1500)
    with members(lab.hosts[1], link="socket") as (subscriber,):
        subscriber.receiver("large")
        with publisher_on(lab.hosts[0], link="socket") as pid:
            wait_for(lambda: size_notes(lab.hosts[0], pid), "a note of the doctor", 20)
            (note,) = size_notes(lab.hosts[0], pid)
            assert "a link to a receiver carries less than eth0" in note
            assert size_notes(lab.hosts[1], pid) == []


def test_doctor_notes_datagrams_that_ip_fragments(make_lab: MakeLab) -> None:
    """UM-49: a running context with Ultra Messaging's 8192 on an interface with 1500."""
    lab = make_lab(hosts=2)
    with members(lab.hosts[1], link="socket") as (subscriber,):
        subscriber.receiver("large")
        options = {"link": "socket", "transport_lbtrm_datagram_max_size": 8192}
        with publisher_on(lab.hosts[0], **options) as pid:
            wait_for(lambda: size_notes(lab.hosts[0], pid), "a note of the doctor", 20)
            (note,) = size_notes(lab.hosts[0], pid)
            assert "datagrams of up to 8192 bytes, which IP fragments" in note
