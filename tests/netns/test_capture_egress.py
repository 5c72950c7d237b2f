"""Captures at a publisher whose kernel cuts runs of datagrams: they are complete, and nothing stays attached."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyroute2 import IPRoute
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.utils import PcapNgReader

from tests.kernels import needs_tcx
from tests.netns.captures import ended, listening, start_capture
from tests.netns.egress_programs import tagged
from tests.netns.traffic import GROUP, PORT, SO_RCVBUFFORCE, Receiver, Sender
from tests.waiting import SECONDS, wait_for
from umstack.capture import CaptureNotes, decode
from umstack.lab import Host, Lab, namespaces
from umstack.lab.cables import port_name
from umstack_xdp import BpfObject, XdpError, find_interface, traffic_control, unavailable
from umstack_xdp.egress_tap import NAME, EgressFilter, EgressTap, egress_program_count
from umstack_xdp.mirror_device import MirrorDevice

MakeLab = Callable[..., Lab]
ETH_P_ALL = 0x0003
SOL_PACKET, PACKET_AUXDATA = 263, 8
PACKET_OUTGOING = 4
VLAN = 42
UDP_GRO = 104
TUNSETIFF, IFF_TAP, IFF_NO_PI, IFF_MULTI_QUEUE = 0x400454CA, 0x2, 0x1000, 0x100
GROUPS = ("--group", "239.77.0.0/16")
UNICAST_PORT = 14390

pytestmark = [
    pytest.mark.skipif(unavailable(NAME) is not None, reason=str(unavailable(NAME))),
    needs_tcx,
]


@contextlib.contextmanager
def capturing(
    host: Host, directory: Path, *arguments: str, prefix: Sequence[str] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run `umstack capture` on a host until it has started its first file."""
    process = start_capture(host, *GROUPS, "--out", str(directory), *arguments, prefix=prefix)
    try:
        listening(process, directory)
        yield process
    finally:
        process.kill()
        process.wait()


def frames(directory: Path) -> list[bytes]:
    """Return the frames of the complete files of a directory, in order."""
    return [bytes(p) for file in sorted(directory.glob("*.pcapng")) for p in PcapNgReader(str(file))]


def taps_at(host: Host) -> int:
    """Return the number of tcx programs at the egress of the host's interface."""
    return host.call(lambda: egress_program_count(find_interface(host.interface)))


def mirrors_of(host: Host) -> dict[str, int]:
    """Return the mirror devices on the host, and the number of frames each has dropped."""

    def ask() -> dict[str, int]:
        with IPRoute() as route:
            links = {link.get("ifname"): link.get("stats64") for link in route.get_links()}
        return {name: stats["tx_dropped"] for name, stats in links.items() if name.startswith("ummirror")}

    return host.call(ask)


def cannot_mirror(host: Host) -> str:
    """Return the reason why this machine has no mirror for a host, or an empty string."""

    def attempt() -> str:
        try:
            MirrorDevice().close()
        except XdpError as error:
            return str(error)
        return ""

    return host.call(attempt)


def lab_with_mirrors(make_lab: MakeLab, **options: int) -> Lab:
    """Return a lab whose kernel cuts runs of datagrams; the test is skipped if they cannot be mirrored."""
    lab = make_lab(hosts=2, segmentation="real", **options)
    if reason := cannot_mirror(lab.hosts[0]):
        pytest.skip(reason)
    return lab


class Wire:
    """The frames at the switch's end of a host's cable, which a plain packet socket receives."""

    def __init__(self, lab: Lab, host_number: int) -> None:
        self.source = lab.hosts[host_number].call(
            lambda: bytes.fromhex(find_interface(lab.hosts[host_number].interface).mac.replace(":", ""))
        )
        self.socket = namespaces.call(
            lab.switch_namespace, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        )
        self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        self.socket.bind((port_name(host_number), ETH_P_ALL))
        self.socket.settimeout(SECONDS)

    def take(self, count: int, tag: tuple[int, int] = (0, 0)) -> list[bytes]:
        """Return the next datagrams to the group from that host, with the checksum that the device was to
        fill in.

        Each had this VLAN tag (EtherType, number), which the kernel reports separately from the frame.
        """
        found: list[bytes] = []
        while len(found) < count:
            frame, beside, _, address = self.socket.recvmsg(1 << 16, 256)
            is_ours = frame[6:12] == self.source and frame[30:34] == socket.inet_aton(GROUP)
            if is_ours and address[2] != PACKET_OUTGOING:
                assert _tag(beside) == tag
                found.append(_finished(frame))
        return found


def _tag(beside: list[tuple[int, int, bytes]]) -> tuple[int, int]:
    """Return EtherType and number of the tag in a packet socket's tpacket_auxdata."""
    ((_, _, auxiliary),) = beside
    *_, vlan_tci, vlan_type = struct.unpack("=IIIHHHH", auxiliary)
    return vlan_type, vlan_tci


def _finished(frame: bytes) -> bytes:
    packet = Ether(frame)
    if UDP in packet and not packet[IP].frag and not packet[IP].flags.MF:
        del packet[UDP].chksum
    return bytes(packet)


@pytest.mark.parametrize(
    ("runs", "snap_bytes"), [("runs", None), ("singles", None), ("runs", 100)], ids=["runs", "singles", "cut"]
)
def test_a_capture_has_what_the_wire_has(
    make_lab: MakeLab, tmp_path: Path, runs: str, snap_bytes: int | None
) -> None:
    """The capture equals, byte for byte, the frames of a packet socket at the other end of the cable, which
    sees no runs. This includes lengths, checksums, IP identification, single datagrams and fragments.
    """
    lab = make_lab(hosts=2, segmentation="real")
    host, wire = lab.hosts[0], Wire(lab, 0)
    content = bytes(n % 251 for n in range(60_000))
    snaplen = ("--snaplen", str(snap_bytes)) if snap_bytes else ()
    with capturing(host, tmp_path, "--egress", "tc", *snaplen) as process, Sender(host) as sender:
        expected = 0
        for size in (10, 64, 1000, 1400, 1472):
            for total in (1, 2 * size, 7 * size + 1, min(44 * size, 60_000)):
                if runs == "runs":
                    sender.send_run(content[:total], size)
                    expected += -(-total // size)
                else:
                    sender.socket.sendto(content[:size], sender.destination)
                    expected += 1
        sender.socket.sendto(content[:4000], sender.destination)
        expected += 3
        seen = wire.take(expected)
        summary, _ = ended(process)
    assert (summary["egress"], summary["packets"], summary["dropped"]) == ("tc", expected, 0)
    assert summary["egress_copied"] == cannot_mirror(host)
    assert frames(tmp_path) == [frame[:snap_bytes] if snap_bytes else frame for frame in seen]


@pytest.mark.parametrize("ethertype", [0x8100, 0x88A8])
def test_a_tag_is_put_back(make_lab: MakeLab, tmp_path: Path, ethertype: int) -> None:
    """The kernel stores a VLAN tag separately from the frame; the capture has the tag in each datagram of a
    run.
    """
    lab = make_lab(hosts=2, segmentation="real")
    host, wire = lab.hosts[0], Wire(lab, 0)
    with (
        tagged(host, VLAN, ethertype),
        capturing(host, tmp_path, "--egress", "tc") as process,
        Sender(host) as sender,
    ):
        sender.send_run(bytes(5000), 1400)
        sender.send([1])
        seen = wire.take(5, tag=(ethertype, VLAN))
        summary, _ = ended(process)
    assert (summary["egress"], summary["packets"]) == ("tc", 5)
    tag = struct.pack("!HH", ethertype, VLAN)
    assert frames(tmp_path) == [frame[:12] + tag + frame[12:] for frame in seen]


def test_runs_of_jumbo_datagrams_are_whole(make_lab: MakeLab, tmp_path: Path) -> None:
    """A mirror accepts runs whose datagrams are longer than its own MTU."""
    lab = lab_with_mirrors(make_lab, mtu=9000)
    host, wire = lab.hosts[0], Wire(lab, 0)
    content = bytes(n % 251 for n in range(60_000))
    with capturing(host, tmp_path, "--egress", "tc") as process, Sender(host) as sender:
        sender.send_run(content, 8900)
        seen = wire.take(7)
        summary, _ = ended(process)
    assert (summary["packets"], summary["egress_copied"]) == (7, "")
    assert frames(tmp_path) == seen


def test_runs_are_mirrored_and_single_datagrams_copied(make_lab: MakeLab, tmp_path: Path) -> None:
    """A run costs the sender only a reference; a single datagram is cheaper to copy."""
    lab = lab_with_mirrors(make_lab)
    host = lab.hosts[0]
    with capturing(host, tmp_path, "--egress", "tc") as process, Sender(host) as sender:
        ((mirror, before),) = mirrors_of(host).items()
        for number in range(20):
            sender.send_run(bytes(7000), 1400)
            sender.send([number])
        assert mirrors_of(host)[mirror] == before + 20
        summary, _ = ended(process)
    assert (summary["packets"], summary["dropped"]) == (120, 0)


def _remove(interface: str) -> None:
    with IPRoute() as route:
        route.link("del", ifname=interface)


def test_what_a_mirror_no_longer_takes_is_copied(make_lab: MakeLab, tmp_path: Path) -> None:
    """If the capture's device is removed, datagrams are copied and none is missing."""
    lab = lab_with_mirrors(make_lab)
    host = lab.hosts[0]
    with capturing(host, tmp_path, "--egress", "tc") as process, Sender(host) as sender:
        sender.send_run(bytes(7000), 1400)
        (mirror,) = mirrors_of(host)
        host.call(lambda: _remove(mirror))
        for _ in range(10):
            sender.send_run(bytes(7000), 1400)
        summary, _ = ended(process)
    assert (summary["packets"], summary["dropped"]) == (55, 0)


def test_without_a_mirror_runs_are_copied_and_that_is_reported(make_lab: MakeLab, tmp_path: Path) -> None:
    """A container without /dev/net/tun can also capture, and the capture reports the cost."""
    lab = lab_with_mirrors(make_lab)
    host, wire = lab.hosts[0], Wire(lab, 0)
    no_tun = ("unshare", "-m", "sh", "-c", 'mount --bind /dev/null /dev/net/tun && exec "$@"', "sh")
    with capturing(host, tmp_path, prefix=no_tun) as process, Sender(host) as sender:
        assert mirrors_of(host) == {}
        sender.send_run(bytes(7001), 1400)
        seen = wire.take(6)
        summary, complained = ended(process)
    assert (summary["egress"], summary["packets"]) == ("tc", 6)
    assert "creating the mirror device" in summary["egress_copied"]
    assert "TUN/TAP" in summary["egress_copied"]
    assert "the sender copies each outgoing datagram" in complained
    assert frames(tmp_path) == seen


def test_what_goes_out_and_what_comes_in_is_in_order(make_lab: MakeLab, tmp_path: Path) -> None:
    """Frames of two rings are written in one order, each with its direction, over several files."""
    lab = make_lab(hosts=2, segmentation="real")
    publisher, subscriber = lab.hosts
    arguments = ("--rotate-size", "1", "--egress", "tc")
    with (
        capturing(publisher, tmp_path, *arguments) as process,
        Sender(publisher) as out,
        Sender(subscriber, publisher.address, UNICAST_PORT) as back,
    ):
        for _ in range(500):
            out.send_run(bytes(7000), 1400)
            back.socket.sendto(b"a NAK, so to speak", back.destination)
        summary, _ = ended(process)
    assert len(summary["files"]) > 1
    assert (summary["packets"], summary["dropped"]) == (3000, 0)
    seen = [packet for name in summary["files"] for packet in PcapNgReader(name)]
    times = [packet.time for packet in seen]
    assert times == sorted(times)
    turns = [packet[UDP].dport == PORT for packet in seen]
    assert sum(a != b for a, b in itertools.pairwise(turns)) > 500, "they are among each other"


@pytest.mark.parametrize(("ring", "is_enough"), [("64", True), ("2", False)])
def test_what_has_passed_is_written_or_counted(
    make_lab: MakeLab, tmp_path: Path, ring: str, is_enough: bool
) -> None:
    """A capture without processor time writes the content of the ring when it ends; frames for which the ring
    had no space are counted in the summary and in the file.
    """
    lab = make_lab(hosts=2, segmentation="real")
    host = lab.hosts[0]
    with capturing(host, tmp_path, "--egress", "tc", "--ring", ring) as process, Sender(host) as sender:
        process.send_signal(signal.SIGSTOP)
        for _ in range(300):
            sender.send_run(bytes(30 * 1400), 1400)
        summary, _ = ended(process)
    assert summary["packets"] + summary["dropped"] == 9000
    assert (summary["dropped"] == 0) == is_enough
    notes = CaptureNotes()
    rows = sum(batch.num_rows for name in summary["files"] for batch in decode(name, notes=notes))
    assert rows == summary["packets"]
    printed = [note.text for note in notes.notes if note.kind == "capture-drops"]
    assert printed == [] if is_enough else f"lost {summary['dropped']:,} packets" in "".join(printed)
    assert len(frames(tmp_path)) == summary["packets"]


@pytest.mark.parametrize("is_run", [True, False])
@pytest.mark.parametrize(("ring", "is_enough"), [("64", True), ("2", False)])
def test_what_has_come_in_is_written_or_counted(
    make_lab: MakeLab, tmp_path: Path, ring: str, is_enough: bool, is_run: bool
) -> None:
    """On ingress, each datagram of a run that found no space is also counted."""
    lab = make_lab(hosts=2, segmentation="real")
    host, other = lab.hosts
    with (
        capturing(host, tmp_path, "--egress", "tc", "--ring", ring) as process,
        Receiver(host, None, UNICAST_PORT) as receiver,
        Sender(other, host.address, UNICAST_PORT) as sender,
    ):
        receiver.socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, int(is_run))
        process.send_signal(signal.SIGSTOP)
        for _ in range(300):
            sender.send_run(bytes(30 * 1400), 1400)
        received = receiver.collect(300 if is_run else 9000)
        summary, _ = ended(process)
    assert len(received) < 900 if is_run else len(received) == 9000
    assert summary["packets"] + summary["dropped"] == 9000
    assert (summary["dropped"] == 0) == is_enough
    times = [packet.time for name in summary["files"] for packet in PcapNgReader(name)]
    assert times == sorted(times)
    assert time.time() - 60 < times[0]
    assert times[-1] < time.time()


def _queues_of_a_tap(count: int) -> list[int]:
    """Open `count` queues of a new TAP device, "queued0": frames written to a queue are received on it."""
    request = struct.pack("=16sH22x", b"queued0", IFF_TAP | IFF_NO_PI | IFF_MULTI_QUEUE)
    queues = []
    for _ in range(count):
        queues.append(os.open("/dev/net/tun", os.O_RDWR))
        fcntl.ioctl(queues[-1], TUNSETIFF, request)
    with IPRoute() as route:
        route.link("set", index=find_interface("queued0").index, state="up")
    return queues


def test_what_comes_in_has_its_queue(make_lab: MakeLab, tmp_path: Path) -> None:
    """The capture has the receive queue of each frame of an interface with several queues."""
    host = lab_with_mirrors(make_lab).hosts[0]
    queues = host.call(lambda: _queues_of_a_tap(3))
    process = start_capture(host, *GROUPS, "--out", str(tmp_path), "--egress", "tc", interface="queued0")
    try:
        listening(process, tmp_path)
        for turn in range(30):
            packet = (
                Ether(dst="01:00:5e:4d:01:02") / IP(dst=GROUP, id=turn) / UDP(dport=PORT) / b"by its queue"
            )
            os.write(queues[turn % 3], bytes(packet))
        summary, _ = ended(process)
    finally:
        process.kill()
        process.wait()
        for queue in queues:
            os.close(queue)
    rows = [row for name in summary["files"] for batch in decode(name) for row in batch.to_pylist()]
    assert [row["queue"] for row in rows] == [0, 1, 2] * 10


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_stays_attached(make_lab: MakeLab, tmp_path: Path, end: signal.Signals) -> None:
    """The kernel removes the capture's program and its device, in whichever way the capture ends."""
    host = make_lab(hosts=2, segmentation="real").hosts[0]
    with capturing(host, tmp_path) as process:
        assert (taps_at(host), len(mirrors_of(host))) == (1, not cannot_mirror(host))
        process.send_signal(end)
        process.communicate(timeout=20)
        wait_for(lambda: taps_at(host) == 0, "the tap to be gone")
        wait_for(lambda: not mirrors_of(host), "the mirror to be gone")


def test_a_closed_tap_is_gone_though_its_process_lives(make_lab: MakeLab) -> None:
    """Detaching takes effect immediately; afterwards the ring gets no more frames."""
    host = make_lab(hosts=2, segmentation="real").hosts[0]
    wanted = EgressFilter([(0, 0xFFFFFFFF)])
    with host.call(lambda: EgressTap(host.interface, wanted, 1 << 20)) as tap:
        assert taps_at(host) == 1
        tap.detach()
        assert taps_at(host) == 0


@contextlib.contextmanager
def _filter_at(host: Host) -> Iterator[None]:
    with BpfObject("lossy_port") as programs:
        index = host.call(lambda: find_interface(host.interface).index)
        host.call(lambda: traffic_control.attach(index, "egress", programs.program("lossy_port")))
        yield


def test_a_doubt_is_reported_and_the_device_is_watched(make_lab: MakeLab, tmp_path: Path) -> None:
    """If a program that runs after the tap may drop frames, datagrams are captured at the device instead."""
    host = make_lab(hosts=2, segmentation="real").hosts[0]
    with _filter_at(host), capturing(host, tmp_path) as process, Sender(host) as sender:
        assert taps_at(host) == 0
        sender.send_run(bytes(7000), 1400)
        summary, complained = ended(process)
    assert (summary["egress"], summary["packets"]) == ("device", 5)
    assert "a filter at tc egress" in summary["egress_reason"]
    assert "a filter at tc egress" in complained


def test_a_second_capture_doubts_the_first(make_lab: MakeLab, tmp_path: Path) -> None:
    """Another program at the same hook counts as such a program, whichever process attached it."""
    host = make_lab(hosts=2, segmentation="real").hosts[0]
    with capturing(host, tmp_path / "first"), capturing(host, tmp_path / "second") as second:
        summary, complained = ended(second)
    assert summary["egress"] == "device"
    assert "1 other programs" in complained


def test_a_device_that_cuts_runs_itself_is_watched(make_lab: MakeLab, tmp_path: Path) -> None:
    """Nothing is saved on a device that cuts runs itself, and no warning is logged."""
    host = make_lab(hosts=2, segmentation="offload").hosts[0]
    with capturing(host, tmp_path) as process, Sender(host) as sender:
        sender.send_run(bytes(7000), 1400)
        summary, complained = ended(process)
    assert (summary["egress"], summary["packets"]) == ("device", 5)
    assert "note" not in complained


def test_tc_cannot_be_had_for_everything(make_lab: MakeLab, tmp_path: Path) -> None:
    """A forced mode that is not available is refused, and the error names an alternative."""
    host = make_lab(hosts=2, segmentation="real").hosts[0]
    process = start_capture(host, "--all", "--egress", "tc", "--out", str(tmp_path))
    _, complained = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "--egress auto" in complained


def test_an_interface_that_goes_ends_the_capture_and_what_it_has_is_whole(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    """If the interface goes down during a capture, the capture reports it and leaves a complete file."""
    lab = make_lab(hosts=2, segmentation="real")
    host = lab.hosts[0]

    def set_down() -> None:
        with IPRoute() as route:
            route.link("set", index=find_interface(host.interface).index, state="down")

    with capturing(host, tmp_path, "--egress", "tc") as process, Sender(host) as sender:
        sender.send_run(bytes(7000), 1400)
        sender.send([1])
        host.call(set_down)
        _, complained = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "down" in complained.lower()
    assert len(frames(tmp_path)) == 6
