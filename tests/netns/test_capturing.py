"""Captures of a lab's interfaces and taps on its contexts, read back by tshark, which nobody here wrote."""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.netns.contexts import Member, members
from tests.waiting import collect, wait_for
from umstack.errors import InterfaceError
from umstack.lab import Host, Lab

MakeLab = Callable[..., Lab]
DATA_PORT = "14400"

pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed")


def fields(file: Path, *names: str, keep: str = "") -> list[tuple[str, ...]]:
    """These fields of every packet tshark finds in the file."""
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


def start_capture(host: Host, *arguments: str) -> subprocess.Popen[str]:
    """`umstack capture` on a host, started and listening."""
    command = [sys.executable, "-m", "umstack", "capture", host.interface, *arguments]
    process: subprocess.Popen[str] = host.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process


def listening(process: subprocess.Popen[str], directory: Path) -> None:
    """Wait until the capture has its first file."""

    def has_file() -> bool:
        assert process.poll() is None, process.communicate()
        return any(directory.glob("*.part"))

    wait_for(has_file, "a capture file", 20)


def publish(publisher: Member, subscriber: Member, count: int, size: int) -> None:
    """Send that many messages and see all of them arrive."""
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
    """Issue 4, capture: pcapng that Wireshark opens; runs are cut into datagrams, checksums are right."""
    lab = make_lab(hosts=2, segmentation=segmentation)
    capture = start_capture(lab.hosts[1], "--out", str(tmp_path), "--json")
    listening(capture, tmp_path)
    with members(*lab.hosts, transport_lbtrm_multicast_address_low="224.10.10.10") as (publisher, subscriber):
        publish(publisher, subscriber, 5000, 1300)
    capture.send_signal(signal.SIGINT)
    said, complained = capture.communicate(timeout=20)
    assert capture.returncode == 0, complained
    summary = json.loads(said)
    assert (summary["ok"], summary["dropped"], summary["splits_runs"]) == (True, 0, True)
    (file,) = map(Path, summary["files"])
    sqns = fields(file, "lbtrm.data.sqn", "frame.len", keep="lbtrm.hdr.type == 0 && udp.dstport == 14400")
    numbers = sorted({int(sqn, 16) for sqn, _ in sqns})
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(numbers) >= 5000
    assert max(int(length) for _, length in sqns) <= 1514
    assert _no_checksum_is_wrong(file)
    assert fields(file, "frame.number", keep="udp.port == 12965"), "topic resolution is part of the stack"
    assert not fields(file, "frame.number", keep="!udp")


@pytest.mark.parametrize(
    ("segmentation", "link"), [("real", "socket"), ("offload", "socket"), ("real", "xdp")]
)
def test_taps_have_what_was_sent_and_what_was_received(
    make_lab: MakeLab, tmp_path: Path, segmentation: str, link: str
) -> None:
    """Issue 4, tap: both ends of a transfer write the same datagrams, each with its direction, in valid frames."""
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


def test_a_tap_shows_losses_and_their_repair(make_lab: MakeLab, tmp_path: Path) -> None:
    """Issue 4, tap: NAKs sent and retransmissions received are in it, so recovery can be judged from it alone."""
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
    """Issue 4, capture: rotating by size; each file is whole by itself; --files keeps the last of them."""
    lab = make_lab(hosts=2)
    arguments = ("--out", str(tmp_path), "--rotate-size", "1", "--files", "3", "--json")
    capture = start_capture(lab.hosts[1], *arguments)
    listening(capture, tmp_path)
    with members(*lab.hosts) as (publisher, subscriber):
        publish(publisher, subscriber, 6000, 1300)
    capture.terminate()
    said, complained = capture.communicate(timeout=20)
    assert capture.returncode == 0, complained
    summary = json.loads(said)
    files = [Path(name) for name in summary["files"]]
    assert len(files) == 3
    assert sorted(tmp_path.iterdir()) == sorted(files), "older files are gone and none is unfinished"
    for file in files[:-1]:
        assert 1 << 20 <= file.stat().st_size < (1 << 20) + (1 << 18)
    sqns = [
        int(sqn, 16)
        for file in files
        for (sqn,) in fields(file, "lbtrm.data.sqn", keep="lbtrm.hdr.type == 0 && udp.dstport == 14400")
    ]
    assert set(sqns) == set(range(min(sqns), max(sqns) + 1)), "nothing is lost between two files"


def _unfinished_bytes(directory: Path) -> int:
    """The size of the file being written; 0 between two, when one has its name already and the next is not made."""
    for part in directory.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            return part.stat().st_size
    return 0


def test_a_killed_capture_can_be_read(make_lab: MakeLab, tmp_path: Path) -> None:
    """Issue 4, capture: killed at any moment, what was written can be read."""
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


def test_a_capture_of_no_interface_says_so(make_lab: MakeLab, tmp_path: Path) -> None:
    """CLI rule: what cannot be done is one line with what to do next, and status 1."""
    lab = make_lab(hosts=2)
    command = [sys.executable, "-m", "umstack", "capture", "nowhere0", "--out", str(tmp_path)]
    process: Any = lab.hosts[0].run(command, stderr=subprocess.PIPE, text=True)
    _, complained = process.communicate(timeout=20)
    assert process.returncode == 1
    assert InterfaceError.default_hint in complained
    assert not list(tmp_path.iterdir())
