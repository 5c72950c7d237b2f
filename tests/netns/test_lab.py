"""The lab itself, with real sockets and real frames."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest

from tests.bpf.lossy_model import is_chosen
from tests.netns.traffic import GROUP, MARKER, Outcome, Receiver, Sender
from tests.waiting import wait_for
from umstack.lab import Lab, LabError, PortDirection, PortSettings, namespaces
from umstack_xdp import InterfaceWatch

ETH_P_IP = 0x0800
MakeLab = Callable[..., Lab]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lab(shared_lab: Lab) -> Iterator[Lab]:
    """Return the file's lab with lossless ports."""
    yield shared_lab
    for host in shared_lab.hosts:
        for direction in get_args(PortDirection):
            port = shared_lab.port(host.number, direction)
            port.set(
                loss=0.0,
                duplicate=0.0,
                reorder=0.0,
                corrupt=0.0,
                block=False,
                unicast=False,
                tcp=False,
                reorder_depth=3,
                counts=False,
            )


def umstack(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line."""
    command = [sys.executable, "-m", "umstack", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


class Tap:
    """A tap that sees every IPv4 frame that reaches a host's interface, whether its group is joined or not."""

    def __init__(self, lab: Lab, host_number: int) -> None:
        """Open the tap."""
        self.socket = lab.hosts[host_number].call(self._open)

    @staticmethod
    def _open() -> socket.socket:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        tap.bind(("eth0", ETH_P_IP))
        tap.settimeout(10)
        return tap

    def payloads_until(self, last: bytes) -> list[bytes]:
        """Return the UDP payloads that arrived before `last`."""
        seen = []
        while (payload := self.socket.recv(65536)[28:]) != last:
            seen.append(payload)
        return seen


def forwarded_before_broadcast(lab: Lab, tap: Tap, group: str) -> bool:
    """Return true if a datagram to the group reached the tap before a broadcast that was sent later."""

    def open_socket() -> socket.socket:
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        return sender

    with lab.hosts[0].call(open_socket) as sender:
        probe, last = os.urandom(8), os.urandom(8)
        sender.sendto(probe, (group, 9))
        sender.sendto(last, ("10.77.0.255", 9))
        return probe in tap.payloads_until(last)


def test_the_switch_snoops_igmp(lab: Lab) -> None:
    """Lab: a group that nobody joined is not forwarded; a port that joined gets it until it leaves, and other
    ports do not.
    """
    taps = {number: Tap(lab, number) for number in (1, 2)}
    group = "239.77.9.9"
    assert not forwarded_before_broadcast(lab, taps[1], group)
    assert not forwarded_before_broadcast(lab, taps[2], group)
    with Receiver(lab.hosts[1], group, 9) as member:
        lab.await_join(group, 1)
        assert forwarded_before_broadcast(lab, taps[1], group)
        assert not forwarded_before_broadcast(lab, taps[2], group)
        member.leave()
        wait_for(
            lambda: not forwarded_before_broadcast(lab, taps[1], group), "the group ends with its member"
        )
    for tap in taps.values():
        tap.socket.close()


def test_membership_outlasts_the_queries(lab: Lab) -> None:
    """Lab: the querier sends IGMP version 3 queries; they arrive at every host, and the hosts answer."""
    queries = []
    tap = lab.hosts[1].call(
        lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
    )
    with tap:
        tap.settimeout(10)
        lab.hosts[1].unplug()
        lab.hosts[1].plug()
        while not queries:
            packet = tap.recv(2048)
            header_bytes = (packet[0] & 15) * 4
            if packet[9] == socket.IPPROTO_IGMP and packet[header_bytes] == 0x11:
                queries.append(packet[header_bytes:])
    assert len(queries[0]) == 12, "a version 3 query has twelve bytes"


def test_each_subscriber_loses_its_own(lab: Lab) -> None:
    """Lab: each port loses datagrams at its rate, exactly those that its seed selects; a third port loses
    none.
    """
    count, rate = 20_000, 0.05
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]) as one, Receiver(lab.hosts[2]) as two:
        lab.await_join(GROUP, 1, 2)
        lab.port(1).set(loss=rate, seed=101)
        lab.port(2).set(loss=rate, seed=202)
        before = [lab.port(number).counters() for number in (1, 2)]
        sender.send(range(count))
        expected = [{i for i in range(count) if is_chosen(seed, i, "loss", rate)} for seed in (101, 202)]
        outcomes = [
            Outcome.of(count, receiver.collect(count - len(lost)))
            for receiver, lost in zip((one, two), expected, strict=True)
        ]
    assert [outcome.lost for outcome in outcomes] == expected
    assert abs(len(expected[0]) - rate * count) < 5 * math.sqrt(count * rate)
    assert all(outcome.duplicates == outcome.late == 0 for outcome in outcomes)
    for port, counters in zip((1, 2), before, strict=True):
        now = lab.port(port).counters()
        assert now.seen - counters.seen == count
        assert now.dropped - counters.dropped == len(expected[port - 1])


def test_a_lossless_port_has_no_program(lab: Lab) -> None:
    """Lab: a port without loss has no program; a port that loses datagrams or has to count them counts."""
    port = lab.port(2)
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[2]) as receiver:
        assert not port.is_attached()
        lab.await_join(GROUP, 2)
        port.set(loss=0.5)
        assert port.is_attached()
        seen_before = port.counters().seen
        sender.send(range(100))
        wait_for(lambda: port.counters().seen == seen_before + 100, "all are seen")
        dropped = port.counters().dropped
        port.set(loss=0.0)
        assert not port.is_attached()
        sender.send(range(1000, 1100))
        wait_for(lambda: set(range(1000, 1100)) <= set(receiver.collect(0)), "a lossless port passes all")
        assert port.counters().seen == seen_before + 100
        port.set(counts=True)
        assert port.is_attached()
        assert port.settings().counts
        sender.send(range(2000, 2100))
        wait_for(lambda: set(range(2000, 2100)) <= set(receiver.collect(0)), "and while it counts")
        assert port.counters().seen == seen_before + 200
        assert port.counters().dropped == dropped
        port.set(counts=False)
        assert not port.is_attached()


def test_changing_the_faults_of_a_port_loses_nothing(lab: Lab) -> None:
    """Lab: while the program is attached and detached, unicast datagrams pass, which it does not affect."""
    port, done, sent = lab.port(1), threading.Event(), itertools.count()

    def change() -> None:
        for _ in range(5):
            port.set(loss=0.5)
            port.set(loss=0.0)
        done.set()

    with Sender(lab.hosts[0], lab.hosts[1].address) as sender, Receiver(lab.hosts[1], None) as receiver:
        changing = threading.Thread(target=change)
        changing.start()
        while not done.wait(0.0005):
            sender.send([next(sent)])
        changing.join()
        count = next(sent)
        sender.send([MARKER])
        assert Outcome.of(count, receiver.collect_until_marker()) == Outcome(lost=set(), duplicates=0, late=0)


def test_duplicates_are_extra_and_nothing_is_lost(lab: Lab) -> None:
    """Lab: a tenth of the datagrams arrive twice and the others once."""
    count = 5000
    expected = sum(is_chosen(3, i, "duplicate", 0.1) for i in range(count))
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]) as receiver:
        lab.await_join(GROUP, 1)
        lab.port(1).set(duplicate=0.1, seed=3)
        sender.send(range(count))
        outcome = Outcome.of(count, receiver.collect(count + expected))
    assert outcome == Outcome(lost=set(), duplicates=expected, late=0)


@pytest.mark.parametrize("size", [64, 1400])
def test_reordering_is_real_and_loses_nothing(lab: Lab, size: int) -> None:
    """Lab: datagrams sent back to back overtake the delayed ones, and each arrives exactly once."""
    count, rate = 10_000, 0.02
    port = lab.port(1)
    before = port.counters()
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]) as receiver:
        lab.await_join(GROUP, 1)
        port.set(reorder=rate, seed=4)
        sender.send(range(count), size)
        outcome = Outcome.of(count, receiver.collect(count))
    chosen = sum(is_chosen(4, i, "reorder", rate) for i in range(count))
    now = port.counters()
    assert (outcome.lost, outcome.duplicates) == (set(), 0)
    assert now.reordered + now.unheld - before.reordered - before.unheld == chosen
    assert now.released == now.reordered
    # A delayed datagram that nothing overtakes in time arrives in order, so a few may.
    assert 0.8 * chosen <= outcome.late <= 1.5 * chosen


def test_corrupted_datagrams_are_dropped_by_the_receiving_kernel(make_lab: MakeLab) -> None:
    """Lab: hosts compute checksums from the first corruption on, so a datagram with a flipped bit never arrives."""
    count = 2000
    lab = make_lab(hosts=2, seed=8)
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]) as receiver:
        lab.await_join(GROUP, 1)
        lab.port(1).set(corrupt=0.1)
        sender.send(range(count), 1000)
        wait_for(lambda: lab.port(1).counters().seen == count, "all passed the port")
        corrupted = lab.port(1).counters().corrupted
        outcome = Outcome.of(count, receiver.collect(count - corrupted))
    assert corrupted > 100
    assert (len(outcome.lost), outcome.duplicates, outcome.late) == (corrupted, 0, 0)


def test_a_datagram_with_none_behind_it_is_not_lost(lab: Lab) -> None:
    """Lab: the last datagrams of a stream, all selected for reordering, arrive although no datagram overtakes
    them.
    """
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]) as receiver:
        lab.await_join(GROUP, 1)
        lab.port(1).set(reorder=1.0, reorder_depth=1000)
        sender.send(range(10))
        assert set(receiver.collect(10)) == set(range(10))


def test_jumbo_datagrams_take_the_detour(make_lab: MakeLab) -> None:
    """Lab: a datagram of the largest MTU fits through the detour, and an uncut super-packet does, too."""
    lab = make_lab(hosts=2, mtu=9216, segmentation="offload")
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]) as receiver:
        lab.await_join(GROUP, 1)
        lab.port(1).set(reorder=1.0)
        sender.send(range(20), 9216 - 28)
        sender.send_super_packet(range(20, 40), 1472)
        assert set(receiver.collect(40)) == set(range(40))
    counters = lab.port(1).counters()
    assert counters.reordered + counters.unheld == 40


def test_block_is_a_partition_that_heals(lab: Lab) -> None:
    """Lab: a blocked port passes only ARP and IGMP; an unblocked one passes everything again."""
    port = lab.port(1)
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]) as receiver, Receiver(lab.hosts[2]) as other:
        lab.await_join(GROUP, 1, 2)
        blocked_before = port.counters().blocked
        port.set(block=True)
        sender.send(range(500))
        wait_for(lambda: port.counters().blocked == blocked_before + 500, "all are blocked")
        assert other.collect(500) == list(range(500))
        port.set(block=False)
        sender.send([MARKER])
        assert receiver.collect_until_marker() == []


def test_naks_can_be_lost_too(lab: Lab) -> None:
    """Lab: by default unicast passes a lossy port; with `unicast` it can be lost, and `from_host` selects the
    other direction.
    """
    port = lab.port(1, "from_host")
    with Sender(lab.hosts[1], lab.hosts[0].address) as sender, Receiver(lab.hosts[0], None) as receiver:
        port.set(loss=1.0)
        sender.send(range(10))
        assert receiver.collect(10) == list(range(10))
        port.set(unicast=True)
        seen = port.counters().dropped
        sender.send(range(10, 20))
        wait_for(lambda: port.counters().dropped == seen + 10, "all are dropped")
        port.set(loss=0.0, duplicate=1.0)
        sender.send([20])
        assert receiver.collect(12) == [*range(10), 20, 20]
        port.set(duplicate=0.0, reorder=1.0)
        sender.send([21])
        assert receiver.collect(13)[-1] == 21


def test_real_segmentation_loses_datagrams_one_by_one(lab: Lab) -> None:
    """Lab: GSO super-packets are cut at the host, so that each datagram is lost or passes separately."""
    port = lab.port(1)
    burst, size, rounds = 40, 1000, 50
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]) as receiver:
        lab.await_join(GROUP, 1)
        port.set(loss=0.1, seed=6)
        before = port.counters()
        for start in range(0, rounds * burst, burst):
            sender.send_super_packet(range(start, start + burst), size)
        expected = {i for i in range(rounds * burst) if is_chosen(6, i, "loss", 0.1)}
        outcome = Outcome.of(rounds * burst, receiver.collect(rounds * burst - len(expected)))
    assert port.counters().seen - before.seen == rounds * burst
    assert outcome.lost == expected


def test_tcp_segments_are_lost_one_by_one_when_asked(lab: Lab) -> None:
    """Lab: with `tcp` each segment of a stream is lost or passes separately, and the stream arrives complete."""
    port, data = lab.port(1), os.urandom(2_000_000)
    sender, receiver = lab.hosts[:2]
    before = port.counters()
    port.set(loss=0.02, seed=9, tcp=True)
    with receiver.call(lambda: socket.create_server((receiver.address, 0))) as listening:
        peer = sender.call(lambda: socket.create_connection(listening.getsockname()))
        accepted, _ = listening.accept()
    accepted.settimeout(30)
    with accepted, accepted.makefile("rb") as stream:
        writing = threading.Thread(target=lambda: (peer.sendall(data), peer.close()))
        writing.start()
        assert stream.read() == data
        writing.join()
    after = port.counters()
    seen = after.seen - before.seen
    assert seen >= len(data) / 1448
    assert after.dropped - before.dropped == sum(is_chosen(9, i, "loss", 0.02) for i in range(seen)) > 15


def test_segmentation_follows_loss_unless_set(make_lab: MakeLab) -> None:
    """Lab: `auto` leaves super-packets uncut until a port loses datagrams; counters count datagrams in both
    cases.
    """
    lab = make_lab(hosts=2)
    assert lab.segmentation == "auto"
    lab.port(1).set(duplicate=0.0, unicast=True)
    assert lab.segmentation == "auto"
    lab.set_segmentation("offload")
    with Sender(lab.hosts[0]) as sender, Receiver(lab.hosts[1]):
        lab.await_join(GROUP, 1)
        lab.port(1).set(loss=1.0)
        sender.send_super_packet(range(40), 1000)
        wait_for(lambda: lab.port(1).counters().dropped == 40, "a super-packet counts as its datagrams")
    automatic = make_lab(hosts=2)
    automatic.port(1).set(loss=0.5)
    assert automatic.segmentation == "real"
    assert Lab.open(automatic.name).segmentation == "real"


def test_mtu_follows_the_cable(lab: Lab) -> None:
    """Lab: a host's MTU changes at both ends of its cable, is announced, and limits datagrams (W4)."""
    host = lab.hosts[1]

    def open_unfragmented() -> socket.socket:
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        ip_mtu_discover, always = 10, 2
        sender.setsockopt(socket.IPPROTO_IP, ip_mtu_discover, always)
        return sender

    with host.call(lambda: InterfaceWatch("eth0")) as watch, host.call(open_unfragmented) as sender:
        sender.sendto(bytes(1472), (GROUP, 9))
        host.set_mtu(1280)
        change = host.call(lambda: watch.wait(10))
        assert change is not None
        assert (change.before.mtu_bytes, change.after and change.after.mtu_bytes) == (1500, 1280)
        with pytest.raises(OSError, match=os.strerror(errno.EMSGSIZE)):
            sender.sendto(bytes(1472), (GROUP, 9))
    lab.set_mtu(9000)
    with Sender(host) as jumbo_sender, Receiver(lab.hosts[2]) as receiver:
        lab.await_join(GROUP, 2)
        jumbo_sender.send([1], 8972)
        assert receiver.collect(1) == [1]
    lab.set_mtu(1500)
    with pytest.raises(LabError, match="use 576 to 9216"):
        host.set_mtu(65000)


def test_an_interface_goes_down_and_returns(lab: Lab) -> None:
    """Lab: an interface that is down is distinguished from a cable that is out, and traffic continues after
    each.
    """
    host = lab.hosts[1]
    with Receiver(host) as receiver, Sender(lab.hosts[0]) as sender:
        host.link_down()
        assert not host.facts().is_up
        host.link_up()
        assert host.facts().is_usable
        host.unplug()
        assert host.facts().is_up
        wait_for(lambda: not host.facts().has_carrier, "the loss of the carrier")  # the kernel defers it
        host.plug()
        lab.await_join(GROUP, 1)
        sender.send([MARKER])
        assert receiver.collect_until_marker() == []
    with Sender(host) as sender, Receiver(lab.hosts[2]) as receiver:
        lab.await_join(GROUP, 2)
        sender.send([1])
        assert receiver.collect(1) == [1]


def test_processes_run_on_their_host_and_end_with_the_lab() -> None:
    """Lab: a process sees only its host's interface and ends with the lab."""
    with Lab(hosts=2) as lab:
        shown = lab.hosts[1].run(["ip", "-o", "-4", "address"], stdout=subprocess.PIPE, text=True)
        said, _ = shown.communicate(timeout=10)
        child = lab.hosts[0].run(["sleep", "600"])
        stray = lab.hosts[0].run(
            ["sh", "-c", "sleep 600 >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True
        )
        stray_id = int(stray.communicate(timeout=10)[0])
    assert lab.hosts[1].address in said
    assert child.returncode == -signal.SIGTERM
    assert not Path(f"/proc/{stray_id}/cwd").exists()
    assert not [name for name in namespaces.names() if name.startswith(lab.name)]


OWNER = """
import select, sys
from umstack.lab import Lab
with Lab(hosts=2, loss=0.1) as lab:
    sleeper = lab.hosts[1].run(["sleep", "600"])
    print(lab.name, sleeper.pid, flush=True)
    while not select.select([sys.stdin], [], [], 0.1)[0]:  # a signal that comes just before it waits for its end
        pass
"""


@contextlib.contextmanager
def owner_of_a_lab() -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """Start a process with a lab and a process in it. Return the owner, the lab's name and the inner
    process's id.
    """
    command = [sys.executable, "-c", OWNER]
    owner = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with owner:
        try:
            assert owner.stdout
            name, sleeper_id = owner.stdout.readline().split()
            yield owner, name, int(sleeper_id)
        finally:
            owner.kill()
            with contextlib.suppress(LabError, UnboundLocalError):
                Lab.open(name).down()


def test_a_crash_leaves_a_lab_that_down_finds() -> None:
    """Lab: after a SIGKILL of its owner a lab is stale; `down` removes it and ends its processes."""
    with owner_of_a_lab() as (owner, name, sleeper_id):
        assert not Lab.open(name).is_stale
        refused = umstack("lab", "down", name)
        assert refused.returncode == 1
        assert f"belongs to the running process {owner.pid}" in refused.stderr
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
        assert Lab.open(name).is_stale
        assert Path(f"/proc/{sleeper_id}/cwd").exists()
        done = umstack("lab", "down", name, "--json")
        assert json.loads(done.stdout) == {"taken_down": [name], "left": []}
        wait_for(lambda: not Path(f"/proc/{sleeper_id}/cwd").exists(), "the process in it is gone")
        assert not [there for there in namespaces.names() if there.startswith(name)]
        assert name not in [lab.name for lab in Lab.all()]


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_takes_the_lab_down(ending: signal.Signals) -> None:
    """Lab: a process removes its lab when a signal ends it."""
    with owner_of_a_lab() as (owner, name, _):
        owner.send_signal(ending)
        owner.wait(20)
        assert not [there for there in namespaces.names() if there.startswith(name)]


def test_namespaces_without_a_record_are_found() -> None:
    """Lab: namespaces that a crash left before or after the record was written are a stale lab like any
    other.
    """
    name = f"umlab-stale-{os.getpid()}"
    namespaces.create(f"{name}.host1")
    try:
        found = [lab for lab in Lab.all() if lab.name == name]
        assert len(found) == 1
        assert found[0].is_stale
        found[0].down()
        assert f"{name}.host1" not in namespaces.names()
    finally:
        namespaces.remove(f"{name}.host1")


def test_a_lab_whose_owner_was_killed_while_it_created_a_namespace_is_removed() -> None:
    """Lab: the file of a namespace that was not mounted yet is no namespace, and `down` removes it."""
    name = f"umlab-unmounted-{os.getpid()}"
    file = namespaces.path(f"{name}.switch")
    namespaces.create(f"{name}.host0")
    try:
        file.touch(mode=0)
        (found,) = (lab for lab in Lab.all() if lab.name == name)
        found.down()
        assert not [there for there in namespaces.names() if there.startswith(name)]
    finally:
        file.unlink(missing_ok=True)
        namespaces.remove(f"{name}.host0")


def test_a_lab_that_fails_to_come_up_leaves_nothing(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lab: an error during creation removes the parts that were created."""
    name = f"umlab-half-{os.getpid()}"
    monkeypatch.setattr("umstack.lab.switch.await_snooping", lambda *_: (_ for _ in ()).throw(LabError("no")))
    with pytest.raises(LabError, match="no"):
        make_lab(name=name, hosts=2)
    assert not [there for there in namespaces.names() if there.startswith(name)]
    assert name not in [lab.name for lab in Lab.all()]


def test_nonsense_is_refused_with_what_would_work(make_lab: MakeLab) -> None:
    """Lab: each impossible setting is an error that lists the possible settings."""
    for options, message in (
        ({"hosts": 1}, "use 2 to"),
        ({"mtu": 100}, "use 576 to"),
        ({"loss": 1.5}, "fraction from 0 to 1"),
        ({"name": "Not A Name"}, "a-z"),
        ({"segmentation": "none"}, "auto, real or offload"),
    ):
        with pytest.raises(LabError, match=message):
            make_lab(**options)
    with pytest.raises(LabError, match="there is no lab"):
        Lab.open("no-such-lab")


def test_a_seed_repeats_a_lab(make_lab: MakeLab) -> None:
    """Lab: the ports of two labs with one seed have the same series; no two ports of a lab, or of labs with
    other seeds, have.
    """

    def port_seeds(lab: Lab) -> list[int]:
        return [lab.port(n, d).settings().seed for n in (0, 1) for d in get_args(PortDirection)]

    first, same, other = (port_seeds(make_lab(hosts=2, seed=seed)) for seed in (5, 5, 6))
    assert same == first
    assert len({*first, *other}) == 8


def test_a_port_keeps_what_is_not_changed(lab: Lab) -> None:
    """Lab: settings hold until they are changed, are read back as they were set, and can be read from any
    process.
    """
    port = lab.port(2)
    port.set(loss=0.02, seed=9)
    port.set(reorder=0.001, reorder_depth=5)
    expected = PortSettings(loss=0.02, reorder=0.001, reorder_depth=5, seed=9)
    assert port.settings() == expected
    assert Lab.open(lab.name).port(2).settings() == expected
    with pytest.raises(LabError, match="a port has no los"):
        port.set(los=0.1)
    with pytest.raises(LabError, match="use 0 to 2"):
        lab.port(3)


def test_the_command_line_makes_changes_and_removes_a_lab() -> None:
    """Lab: up, set, run, status and down each print one JSON object and return the documented exit status."""
    name = f"umlab-cli-{os.getpid()}"
    try:
        up = umstack("lab", "up", "--name", name, "--hosts", "2", "--loss", "2%", "--seed", "5", "--json")
        assert up.returncode == 0, up.stderr
        assert json.loads(up.stdout)["lab"]["hosts"][1]["ports"]["to_host"]["settings"]["loss"] == 0.02
        assert umstack("lab", "up", "--name", name).returncode == 1
        changed = umstack(
            "lab", "set", "--lab", name, "--host", "1", "--loss", "0", "--block", "--mtu", "9000", "--json"
        )
        assert changed.returncode == 0, changed.stderr
        hosts = json.loads(umstack("lab", "status", name, "--json").stdout)["labs"][0]["hosts"]
        assert [host["mtu_bytes"] for host in hosts] == [1500, 9000]
        assert [host["ports"]["to_host"]["settings"]["block"] for host in hosts] == [False, True]
        ran = umstack("lab", "run", "--lab", name, "1", "--", "sh", "-c", "hostname -I; exit 7")
        assert (ran.returncode, ran.stdout.strip()) == (7, "10.77.0.2")
        reported = json.loads(umstack("lab", "run", "--json", "--lab", name, "0", "echo", "hello").stdout)
        assert (reported["exit_status"], reported["stdout"]) == (0, "hello\n")
        assert name in umstack("lab", "status").stdout
        down = umstack("lab", "down", name)
        assert down.returncode == 0, down.stderr
        assert not [there for there in namespaces.names() if there.startswith(name)]
        assert umstack("lab", "down", name).returncode == 1
    finally:
        with contextlib.suppress(LabError):
            Lab.open(name).down()
