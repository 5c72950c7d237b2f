"""Captures of a lab's interfaces and taps on its contexts, read by tshark, an independent program."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Raw
from scapy.utils import PcapNgReader, RawPcapNgReader

from tests.interrupting import interruptions
from tests.kernels import needs_tcx
from tests.netns.captures import ended, listening, start_capture
from tests.netns.contexts import Member, members
from tests.netns.traffic import GROUP, Receiver, Sender
from tests.waiting import SECONDS, collect, wait_for
from umstack.capture.writing import interface_capture
from umstack.capture.writing.interface_capture import CaptureSettings, InterfaceCapture
from umstack.capture.writing.packet_filter import PacketFilter
from umstack.cli.capture import command as capture_command
from umstack.config import Config
from umstack.errors import InterfaceError
from umstack.lab import Lab
from umstack.scapy import LBMC, LBTRM, LBTRMData

MakeLab = Callable[..., Lab]
DATA_PORT = "14400"
ETH_P_ALL = 0x0003

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def fields(file: Path, *names: str, keep: str = "") -> list[tuple[str, ...]]:
    """Return these fields of every packet that tshark finds in the file."""
    command = [
        "tshark",
        "-n",
        "-r",
        str(file),
        "-o",
        "udp.check_checksum:TRUE",
        "-o",
        "ip.check_checksum:TRUE",
    ]
    command += ["-d", f"udp.port=={DATA_PORT},lbtrm", "-T", "fields", *(["-Y", keep] if keep else [])]
    for name in names:
        command += ["-e", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return [tuple(line.split("\t")) for line in done.stdout.splitlines()]


def publish(publisher: Member, subscriber: Member, count: int, size: int) -> None:
    """Send `count` messages and check that all arrive."""
    topic = f"captured/{time.monotonic_ns()}"
    with subscriber.receiver(topic) as receiver, publisher.source(topic) as source:
        source.wait_connected(timeout=10)
        thread = threading.Thread(target=lambda: source.send_many([bytes(size)] * count, flush=True))
        thread.start()
        collect(receiver, count)
        thread.join()


@functools.cache
def _no_checksum_is_wrong(file: Path) -> bool:
    wrong = fields(file, "frame.number", keep="udp.checksum.status != 1 || ip.checksum.status != 1")
    return not wrong


@pytest.mark.parametrize("segmentation", ["real", "offload"])
def test_capture_has_every_datagram_as_it_is_on_the_wire(
    make_lab: MakeLab, tmp_path: Path, segmentation: str
) -> None:
    """Wireshark opens the pcapng file; runs are cut into datagrams and checksums are correct."""
    lab = make_lab(hosts=2, segmentation=segmentation)
    capture = start_capture(lab.hosts[1], "--out", str(tmp_path))
    listening(capture, tmp_path)
    with members(*lab.hosts, transport_lbtrm_multicast_address_low="224.10.10.10") as (publisher, subscriber):
        publish(publisher, subscriber, 5000, 1300)
    capture.send_signal(signal.SIGINT)
    said, complained = capture.communicate(timeout=20)
    assert capture.returncode == 0, complained
    summary = json.loads(said)
    assert (summary["ok"], summary["dropped"]) == (True, 0)
    assert summary["splits_runs"] is interface_capture._has_run_headers()
    (file,) = map(Path, summary["files"])
    sqns = fields(file, "lbtrm.data.sqn", "frame.len", keep="lbtrm.hdr.type == 0 && udp.dstport == 14400")
    numbers = sorted({int(sqn, 16) for sqn, _ in sqns})
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(numbers) >= 5000
    assert max(int(length) for _, length in sqns) <= 1514
    assert _no_checksum_is_wrong(file)
    assert fields(file, "frame.number", keep="udp.port == 12965"), "topic resolution is part of the stack"
    assert not fields(file, "frame.number", keep="!udp")


@pytest.mark.parametrize("size", [1300, 100])
def test_runs_are_cut_if_the_kernel_does_not_report_the_size(
    make_lab: MakeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Linux before 6.2 does not report how a run is cut; runs of LBT-RM are cut by their headers."""
    monkeypatch.setattr(interface_capture, "_has_run_headers", lambda: False)
    lab = make_lab(hosts=2)
    host = lab.hosts[1]
    wanted = CaptureSettings(packet_filter=PacketFilter.of_configuration(Config()), egress="device")
    with host.call(lambda: InterfaceCapture(host.interface, tmp_path, wanted)) as capture:
        writing = threading.Thread(target=capture.run)
        writing.start()
        with members(*lab.hosts) as (publisher, subscriber):
            publish(publisher, subscriber, 5000, size)
        capture.stop()
        writing.join()
    report = capture.report()
    assert (report.dropped, report.splits_runs) == (0, False)
    (file,) = report.files
    sqns = fields(file, "lbtrm.data.sqn", "frame.len", keep="lbtrm.hdr.type == 0 && udp.dstport == 14400")
    numbers = sorted({int(sqn, 16) for sqn, _ in sqns})
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert max(int(length) for _, length in sqns) <= 1514
    assert _no_checksum_is_wrong(file)


@pytest.mark.parametrize(
    ("segmentation", "link"), [("real", "socket"), ("offload", "socket"), ("real", "xdp")]
)
def test_taps_have_what_was_sent_and_what_was_received(
    make_lab: MakeLab, tmp_path: Path, segmentation: str, link: str
) -> None:
    """Both ends of a transfer write the same datagrams, with directions, in valid frames."""
    lab = make_lab(hosts=2, segmentation=segmentation)
    with members(*lab.hosts, link=link) as (publisher, subscriber):
        taps = [
            member.context.tap(tmp_path / f"{i}.pcapng") for i, member in enumerate((publisher, subscriber))
        ]
        publish(publisher, subscriber, 5000, 1300)
        reports = [tap.stop() for tap in taps]
    assert [report.dropped for report in reports] == [0, 0]
    seen = []
    for report, direction in zip(reports, ("2", "1"), strict=True):
        keep = f"lbtrm.hdr.type == 0 && udp.dstport == 14400 && frame.packet_flags_direction == {direction}"
        seen.append(fields(report.path, "lbtrm.data.sqn", "udp.srcport", "ip.dst", "udp.length", keep=keep))
        assert _no_checksum_is_wrong(report.path)
        assert len(fields(report.path, "frame.number")) == report.datagrams
    assert len(seen[0]) >= 5000
    assert sorted(seen[0]) == sorted(seen[1])
    assert fields(reports[0].path, "frame.number", keep="udp.dstport == 12965"), "what resolution sent"


def test_queue_and_verdict_are_those_of_the_way_in(make_lab: MakeLab, tmp_path: Path) -> None:
    """Datagrams received from a ring have their queue and XDP_REDIRECT in the tap. Datagrams that the program
    passed to the kernel have XDP_PASS in the capture once the program is known. Sent datagrams, and those
    that the tap got from a socket, have neither.
    """
    lab = make_lab(hosts=2)
    captured = tmp_path / "captured"
    names = ("frame.packet_flags_direction", "frame.interface_queue", "frame.verdict.ebpf_xdp")
    with members(*lab.hosts, link="xdp") as (publisher, subscriber):
        capture = start_capture(lab.hosts[1], "--out", str(captured))
        listening(capture, captured)
        with subscriber.context.tap(tmp_path / "tap.pcapng") as tap:

            def is_known() -> bool:
                publish(publisher, subscriber, 100, 1300)
                (part,) = captured.glob("*.part")
                return bool(fields(part, "frame.number", keep="frame.verdict.ebpf_xdp == 2"))

            wait_for(is_known, "a frame that the program passed")
        ended(capture)
    (file,) = captured.glob("*.pcapng")
    inbound, outbound = "0x00000001", "0x00000002"
    assert set(fields(tap.path, *names, keep="udp.dstport == 14400")) == {(inbound, "0", "4")}
    assert not fields(file, *names, keep="udp.dstport == 14400"), "the ring took them"
    assert set(fields(tap.path, *names, keep="udp.dstport != 14400")) == {
        (inbound, "", ""),
        (outbound, "", ""),
    }
    rest = fields(file, *names)
    assert {row for row in rest if row[0] == outbound} == {(outbound, "", "")}
    assert {row[1] for row in rest if row[0] == inbound} == {"0"}
    verdicts = "".join(row[2] or "-" for row in rest if row[0] == inbound)
    assert re.fullmatch("-*2+", verdicts), verdicts


def test_no_verdict_is_made_up_where_no_program_is(make_lab: MakeLab, tmp_path: Path) -> None:
    """Without an XDP program there is no verdict, and the only queue is named."""
    lab = make_lab(hosts=2)
    capture = start_capture(lab.hosts[1], "--out", str(tmp_path))
    listening(capture, tmp_path)
    with members(*lab.hosts) as (publisher, subscriber):
        publish(publisher, subscriber, 100, 1300)
    ended(capture)
    (file,) = tmp_path.glob("*.pcapng")
    names = ("frame.packet_flags_direction", "frame.interface_queue", "frame.verdict")
    assert set(fields(file, *names)) == {("0x00000001", "0", ""), ("0x00000002", "", "")}


TAGS = {
    "802.1Q": (Dot1Q(vlan=42, prio=5), (), ("", "42", "5")),
    "802.1ad": (Dot1AD(vlan=9), (), ("9", "", "")),
    "two tags": (Dot1AD(vlan=9) / Dot1Q(vlan=42, prio=5), ("--all",), ("9", "42", "5")),
}
"""VLAN tags, the options of `umstack capture` that keep them, and tshark's output for them."""


@pytest.mark.parametrize("kind", TAGS)
def test_vlan_tags_are_put_back(make_lab: MakeLab, tmp_path: Path, kind: str) -> None:
    """The kernel moves a tag out of a frame. The file has the frame as on the wire, with its tag, and the
    filter for the stack's groups looks past the tag.
    """
    tags, arguments, shown = TAGS[kind]
    publisher, subscriber = make_lab(hosts=2).hosts
    capture = start_capture(subscriber, "--out", str(tmp_path), *arguments)
    listening(capture, tmp_path)
    ethernet = Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / tags
    datagram = IP(src=publisher.address, dst="224.10.10.10") / UDP(sport=14390, dport=int(DATA_PORT))
    message = LBMC(topic_index=1, sqn=1) / Raw(b"tagged" * 100)
    frame = bytes(ethernet / datagram / LBTRM(session_id=7) / LBTRMData(sqn=99, messages=[message]))
    sender, watcher = (
        host.call(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
        for host in (publisher, subscriber)
    )
    with sender, watcher:
        watcher.bind((subscriber.interface, ETH_P_ALL))
        watcher.settimeout(SECONDS)
        sender.bind((publisher.interface, 0))
        for _ in range(10):
            sender.send(frame)
        arrived = 0
        while arrived < 10:
            arrived += watcher.recv(2048)[6:12] == frame[6:12]
    ended(capture)
    (file,) = tmp_path.glob("*.pcapng")
    found = [bytes(packet) for packet in PcapNgReader(str(file)) if packet.src == ethernet.src]
    assert found == [frame] * 10
    names = ("ieee8021ad.id", "vlan.id", "vlan.priority", "lbtrm.data.sqn")
    assert fields(file, *names, keep="lbtrm") == [(*shown, "0x00000063")] * 10


def test_a_tap_shows_losses_and_their_repair(make_lab: MakeLab, tmp_path: Path) -> None:
    """A receiver's tap contains NAKs sent and retransmissions received, so it suffices to judge recovery."""
    lab = make_lab(hosts=2)
    with members(*lab.hosts) as (publisher, subscriber):
        lab.port(1).set(loss=0.02)
        with subscriber.context.tap(tmp_path / "lossy.pcapng") as tap:
            publish(publisher, subscriber, 5000, 1300)
        transport = subscriber.context.stats()["receiver_transports"]
    file = tap.path
    assert fields(file, "frame.number", keep="lbtrm.hdr.type == 3 && frame.packet_flags_direction == 2"), (
        transport
    )
    retransmissions = "lbtrm.data.flags_fec_type.rx == 1 && frame.packet_flags_direction == 1"
    assert fields(file, "frame.number", keep=retransmissions), transport


def test_files_rotate_and_the_last_are_kept(make_lab: MakeLab, tmp_path: Path) -> None:
    """With rotation by size each file is complete by itself, and --files keeps only the last of them."""
    lab = make_lab(hosts=2)
    arguments = ("--out", str(tmp_path), "--rotate-size", "1", "--files", "3")
    capture = start_capture(lab.hosts[1], *arguments)
    listening(capture, tmp_path)
    with members(*lab.hosts) as (publisher, subscriber):
        publish(publisher, subscriber, 6000, 1300)
    summary, _ = ended(capture)
    files = [Path(name) for name in summary["files"]]
    assert len(files) == 3
    assert sorted(tmp_path.iterdir()) == sorted(files), "older files are gone and none is unfinished"
    for file in files[:-1]:
        assert 1 << 20 <= file.stat().st_size < (1 << 20) + (1 << 18)
    # Datagrams that overflowed the subscriber's socket arrive a second time, long after their neighbours.
    first_sent = "lbtrm.hdr.type == 0 && udp.dstport == 14400 && lbtrm.data.flags_fec_type.rx == 0"
    sqns = [int(sqn, 16) for file in files for (sqn,) in fields(file, "lbtrm.data.sqn", keep=first_sent)]
    assert set(sqns) == set(range(min(sqns), max(sqns) + 1)), "nothing is lost between two files"


def numbers_in(file: Path) -> list[int]:
    """Return the numbers that a Sender has put into the datagrams of a file."""
    return [int.from_bytes(bytes(packet[UDP].payload)[:4], "big") for packet in PcapNgReader(str(file))]


def nanoseconds(file: Path) -> list[tuple[int, bytes]]:
    """Return time and bytes of every packet of a file with times in nanoseconds."""
    found = []
    packets: Iterator[tuple[bytes, Any]] = iter(RawPcapNgReader(str(file)))
    for packet, about in packets:
        assert about.tsresol == 10**9
        found.append((about.tshigh << 32 | about.tslow, packet))
    return found


ROTATE_SECONDS = 0.2


def test_files_rotate_by_time(make_lab: MakeLab, tmp_path: Path) -> None:
    """A new file starts after the interval and not earlier; together the files have each packet once and in
    order.
    """
    host = make_lab(hosts=2).hosts[0]
    arguments = ("--group", GROUP, "--rotate-seconds", str(ROTATE_SECONDS), "--priority", "normal")
    capture = start_capture(host, "--out", str(tmp_path), *arguments)
    listening(capture, tmp_path)
    sent = itertools.count()
    with Sender(host) as sender:

        def is_fourth_whole() -> bool:
            sender.send([next(sent)])
            return len(list(tmp_path.glob("*.pcapng"))) >= 4

        wait_for(is_fourth_whole, "a fourth file")
    summary, _ = ended(capture)
    files = [Path(name) for name in summary["files"]]
    assert sorted(tmp_path.iterdir()) == files
    assert all(fields(file, "frame.number") for file in files[:-1]), "each is a file of its own for tshark"
    assert [number for file in files for number in numbers_in(file)] == list(range(next(sent)))
    assert summary["seconds"] >= (len(files) - 1) * ROTATE_SECONDS
    for file in files:
        times = [time_ns for time_ns, _ in nanoseconds(file)]
        assert not times or times[-1] - times[0] < 10 * ROTATE_SECONDS * 1e9


def test_a_live_capture_is_read_while_it_runs(make_lab: MakeLab, tmp_path: Path) -> None:
    """The reader of a pipe gets each packet during the capture; when it closes the pipe, the capture ends."""
    host = make_lab(hosts=2).hosts[0]
    command = [sys.executable, "-m", "umstack", "capture", host.interface, "--live", "--group", GROUP]
    capture = host.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shark = subprocess.Popen(
        ["tshark", "-l", "-i", "-", "-T", "fields", "-e", "data"],
        stdin=capture.stdout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    capture.stdout.close()
    seen: list[str] = []
    reading = threading.Thread(target=lambda: seen.extend(iter(shark.stdout.readline, "")), daemon=True)
    reading.start()
    with Sender(host) as sender:
        numbers = itertools.count()

        def is_read() -> bool:
            assert capture.poll() is None, capture.stderr.read()
            sender.send([next(numbers)])
            return len(seen) >= 10

        wait_for(is_read, "packets at the reader", 20)
        shark.terminate()
        shark.wait(10)

        def has_ended() -> bool:
            sender.send([next(numbers)])
            return capture.poll() is not None

        wait_for(has_ended, "the capture's end", 20)
    reading.join(10)
    complained = capture.stderr.read().decode()
    assert capture.returncode == 0, complained
    assert "captured" in complained
    assert not list(tmp_path.iterdir())


def test_silence_makes_no_files(make_lab: MakeLab, tmp_path: Path) -> None:
    """A file without packets continues instead of being rotated."""
    host = make_lab(hosts=2).hosts[0]
    arguments = ("--group", GROUP, "--rotate-seconds", "0.05", "--seconds", "1")
    capture = start_capture(host, "--out", str(tmp_path), *arguments)
    listening(capture, tmp_path)
    with Sender(host) as sender:
        sender.send(range(10))
    said, complained = capture.communicate(timeout=20)
    assert capture.returncode == 0, complained
    found = [numbers_in(Path(file)) for file in json.loads(said)["files"]]
    assert list(itertools.chain(*found)) == list(range(10))
    assert [] not in found[:-1], "none but the last can be empty"


def assert_within(times: list[int], brackets: list[tuple[int, int]]) -> None:
    """Check that each time is between its sending and its arrival, with a resolution of nanoseconds."""
    assert len(times) == len(brackets)
    wrong = [
        (time_ns - sent, arrived - sent)
        for time_ns, (sent, arrived) in zip(times, brackets, strict=True)
        if not sent <= time_ns <= arrived
    ]
    assert not wrong, f"after the sending, of what there was until the arrival, in ns: {wrong[:5]}"
    assert sum(time_ns % 1000 != 0 for time_ns in times) > len(times) // 2


@pytest.mark.parametrize("end", [0, 1], ids=["sending", "receiving"])
@pytest.mark.parametrize("egress", [pytest.param("tc", marks=needs_tcx), "device"])
def test_times_are_those_of_the_wire(make_lab: MakeLab, tmp_path: Path, end: int, egress: str) -> None:
    """Times are nanoseconds since the epoch at which a datagram passed, not at which it was written."""
    lab = make_lab(hosts=2)
    capture = start_capture(lab.hosts[end], "--out", str(tmp_path), "--group", GROUP, "--egress", egress)
    listening(capture, tmp_path)
    brackets = []
    with Receiver(lab.hosts[1]) as receiver, Sender(lab.hosts[0]) as sender:
        lab.await_join(GROUP, 1)
        for number in range(200):
            sent = time.time_ns()
            sender.send([number])
            assert len(receiver.collect(number + 1)) == number + 1
            brackets.append((sent, time.time_ns()))
    ended(capture)
    (file,) = tmp_path.glob("*.pcapng")
    assert numbers_in(file) == list(range(200))
    assert_within([time_ns for time_ns, _ in nanoseconds(file)], brackets)


@pytest.mark.parametrize("link", ["socket", "xdp"])
def test_times_of_a_tap_are_those_of_the_transfer(make_lab: MakeLab, tmp_path: Path, link: str) -> None:
    """The tap's times at both ends are nanoseconds since the epoch, between the sending and the delivery."""
    count = 200
    brackets = []
    with (
        members(*make_lab(hosts=2).hosts, link=link) as (publisher, subscriber),
        subscriber.receiver("timed") as receiver,
        publisher.source("timed") as source,
    ):
        source.wait_connected(timeout=10)
        taps = [
            member.context.tap(tmp_path / f"{i}.pcapng") for i, member in enumerate((publisher, subscriber))
        ]
        for number in range(count):
            sent = time.time_ns()
            source.send(b"timed %3d" % number, flush=True)
            collect(receiver, 1)
            brackets.append((sent, time.time_ns()))
        for tap in taps:
            tap.stop()
    for tap in taps:
        passed = nanoseconds(tap.path)
        times = [[at for at, packet in passed if b"timed %3d" % number in packet] for number in range(count)]
        assert_within([at for (at,) in times], brackets)


def test_an_interrupt_between_two_files_loses_nothing(make_lab: MakeLab, tmp_path: Path) -> None:
    """The files have every packet, at whichever step of the rotation the interrupt arrives."""
    host = make_lab(hosts=2).hosts[0]
    chosen = PacketFilter.of_configuration(Config()).narrowed((GROUP,), ())
    settings = CaptureSettings(chosen, rotate_bytes=4000, egress="device")
    steps = (InterfaceCapture._next_file, InterfaceCapture._end_file, InterfaceCapture._begin_file)
    with Sender(host) as sender:
        for number, interrupted in enumerate(interruptions(*steps, lines_min=20)):
            folder = tmp_path / str(number)
            with host.call(lambda to=folder: InterfaceCapture(host.interface, to, settings)) as capture:
                sender.send(range(10), 1400)
                with interrupted:
                    capture.run(0.2)
            report = capture.report()
            assert sorted(folder.iterdir()) == sorted(report.files), "none is unfinished, none is unknown"
            sent = [bytes(p[UDP].payload)[:4] for file in report.files for p in PcapNgReader(str(file))]
            assert sent == [struct.pack("!I", each) for each in range(10)], f"interruption {number}"


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """Keep every processor busy."""
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_what_has_arrived_is_written_though_no_processor_is_idle(make_lab: MakeLab, tmp_path: Path) -> None:
    """A capture yields the processor to others while it runs, but empties the ring at its end."""
    lab = make_lab(hosts=2)
    capture = start_capture(lab.hosts[1], "--out", str(tmp_path))
    listening(capture, tmp_path)
    capture.send_signal(signal.SIGSTOP)
    with members(*lab.hosts) as (publisher, subscriber):
        publish(publisher, subscriber, 12000, 1300)
    with busy_processors():
        summary, _ = ended(capture)
    assert (summary["dropped"], summary["packets"] >= 12000) == (0, True)


def _unfinished_bytes(directory: Path) -> int:
    """Return the size of the file being written; 0 between two files."""
    for part in directory.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            return part.stat().st_size
    return 0


def test_a_killed_capture_can_be_read(make_lab: MakeLab, tmp_path: Path) -> None:
    """Files of a capture that was killed at any moment are readable."""
    lab = make_lab(hosts=2)
    capture = start_capture(lab.hosts[1], "--out", str(tmp_path), "--rotate-size", "1")
    listening(capture, tmp_path)
    with members(*lab.hosts) as (publisher, subscriber):
        publish(publisher, subscriber, 2000, 1300)
        wait_for(lambda: len(list(tmp_path.glob("*.pcapng"))) > 1, "a second file")
        wait_for(lambda: _unfinished_bytes(tmp_path) > 1000, "packets in the last file")
    capture.kill()
    capture.communicate(timeout=20)
    (part,) = tmp_path.glob("*.part")
    for file in (*tmp_path.glob("*.pcapng"), part):
        assert fields(file, "frame.number")


@pytest.mark.parametrize(
    ("arguments", "policy"), [((), os.SCHED_IDLE), (("--priority", "normal"), os.SCHED_OTHER)]
)
def test_a_capture_stands_back(
    make_lab: MakeLab, tmp_path: Path, arguments: tuple[str, ...], policy: int
) -> None:
    """A capture has the lowest priority unless an option raises it; the thread that passes signals on has its own."""
    capture = start_capture(make_lab(hosts=2).hosts[0], "--out", str(tmp_path), *arguments)
    listening(capture, tmp_path)
    tasks = Path(f"/proc/{capture.pid}/task")

    def others() -> int:
        return sum(os.sched_getscheduler(int(task.name)) != policy for task in tasks.iterdir())

    wait_for(lambda: others() == (policy != os.SCHED_OTHER), "the priority of every thread")
    ended(capture)


def test_a_capture_may_stay_in_the_idle_class(make_lab: MakeLab, tmp_path: Path) -> None:
    """Without CAP_SYS_NICE it cannot leave the class at its end; its summary and its files are complete."""
    prefix = ["setpriv", "--bounding-set=-sys_nice"]
    capture = start_capture(make_lab(hosts=2).hosts[0], "--out", str(tmp_path), prefix=prefix)
    listening(capture, tmp_path)
    said, _ = ended(capture)
    assert [str(path) for path in tmp_path.iterdir()] == said["files"]


def test_a_capture_that_is_refused_keeps_its_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host a refusal at the lowest priority would take many seconds to be reported."""
    lowered: list[int] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda _, policy, __: lowered.append(policy))
    assert CliRunner().invoke(capture_command, ["nowhere0"]).exit_code == 1
    assert not lowered


def test_a_capture_of_no_interface_reports_it(make_lab: MakeLab, tmp_path: Path) -> None:
    """An error is one line with what to do next, and status 1."""
    lab = make_lab(hosts=2)
    command = [sys.executable, "-m", "umstack", "capture", "nowhere0", "--out", str(tmp_path)]
    process: Any = lab.hosts[0].run(command, stderr=subprocess.PIPE, text=True)
    _, complained = process.communicate(timeout=20)
    assert process.returncode == 1
    assert InterfaceError.default_hint in complained
    assert not list(tmp_path.iterdir())
