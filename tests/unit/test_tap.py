"""Tap: one can run at a time; it is bounded, stops with its context, and is exact about the packets missing
from its file.
"""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import connect, open_context
from tests.waiting import collect, wait_for
from umstack import Context
from umstack.capture.writing.errors import CaptureError, TapRunning
from umstack.errors import InvalidArgument, UmError

PACKET_BLOCK, STATISTICS_BLOCK, DROP_OPTION = 6, 5, 4
HEADERS = 28


def blocks(file: Path) -> list[tuple[int, bytes]]:
    """Return the blocks of a pcapng file: type and body."""
    data, found, at = file.read_bytes(), [], 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        assert length % 4 == 0
        assert struct.unpack_from("<I", data, at + length - 4) == (length,)
        found.append((kind, data[at + 8 : at + length - 4]))
        at += length
    return found


def packets(file: Path) -> list[tuple[int, int, bytes]]:
    """Return captured length, length on the wire, and bytes of every packet."""
    found = []
    for kind, body in blocks(file):
        if kind == PACKET_BLOCK:
            captured, wire = struct.unpack_from("<II", body, 12)
            found.append((captured, wire, body[20 : 20 + captured]))
    return found


def drop_counts(file: Path) -> int:
    """Return the sum of all epb_dropcount values."""
    total = 0
    for kind, body in blocks(file):
        if kind != PACKET_BLOCK:
            continue
        (captured,) = struct.unpack_from("<I", body, 12)
        at = 20 + (captured + 3) // 4 * 4
        while at < len(body):
            code, length = struct.unpack_from("<HH", body, at)
            if code == DROP_OPTION:
                total += struct.unpack_from("<Q", body, at + 4)[0]
            at += 4 + (length + 3) // 4 * 4
    return total


def test_a_tap_starts_and_stops_while_the_context_runs(tmp_path: Path) -> None:
    """Taps can start and stop repeatedly; the file contains only the traffic in between."""
    with open_context() as context:
        source, receiver = connect(context, "tapped")
        for round_number in range(3):
            source.send_many([b"before %d" % round_number] * 10, flush=True)
            collect(receiver, 10)
            with context.tap(tmp_path / f"{round_number}.pcapng") as tap:
                source.send_many([b"within %d" % round_number] * 10, flush=True)
                collect(receiver, 10)
            source.send_many([b"after %d" % round_number] * 10, flush=True)
            collect(receiver, 10)
            content = tap.path.read_bytes()
            assert b"within %d" % round_number in content
            assert b"before" not in content
            assert b"after" not in content
            assert len(packets(tap.path)) == tap.report().datagrams


def test_one_tap_at_a_time(tmp_path: Path) -> None:
    """A second tap is refused with a hint; stopping twice does nothing."""
    with open_context() as context:
        tap = context.tap(tmp_path / "a.pcapng")
        with pytest.raises(TapRunning):
            context.tap(tmp_path / "b.pcapng")
        assert tap.stop() == tap.stop()
        context.tap(tmp_path / "b.pcapng").stop()


def test_a_tap_ends_with_its_context(tmp_path: Path) -> None:
    """A tap given to the constructor has all traffic; closing the context completes the file."""
    file = tmp_path / "whole.pcapng"
    with open_context(tap=file) as context:
        source, receiver = connect(context, "tapped")
        source.send(b"hello", flush=True)
        collect(receiver, 1)
    assert [kind for kind, _ in blocks(file)][-1] == STATISTICS_BLOCK
    assert any(b"hello" in data for _, _, data in packets(file))


def test_truncated_packets_keep_their_length(tmp_path: Path) -> None:
    """With snap_bytes packets keep their length on the wire, also in runs of datagrams."""
    with open_context() as context:
        source, receiver = connect(context, "tapped")
        with context.tap(tmp_path / "cut.pcapng", snap_bytes=100) as tap:
            source.send_many([bytes(1000)] * 500, flush=True)
            collect(receiver, 500)
    found = packets(tap.path)
    assert {captured for captured, wire, _ in found if wire > 100} == {100}
    assert sum(wire > 1000 for _, wire, _ in found) >= 2 * 500
    assert all(struct.unpack_from("!H", data, 2)[0] == wire for _, wire, data in found)


def test_packets_that_do_not_fit_the_ring_are_counted(tmp_path: Path) -> None:
    """The data path never waits; epb_dropcount, the end of the file and the report count the missing packets."""
    count = 60_000
    with open_context() as context:
        source, receiver = connect(context, "tapped", flow_control="none")
        sent_before = context.stats()["link_counters"]["datagrams_sent"]
        tap = context.tap(tmp_path / "full.pcapng", ring_bytes=1 << 20)
        for _ in range(count // 1000):
            source.send_many([bytes(1400)] * 1000, flush=True)
        wait_for(lambda: source.wait_drained(0.1), "sending")
        received = context.stats()["link_counters"]
        report = tap.stop()
        receiver.close()
    assert report.datagrams + report.dropped >= received["datagrams_sent"] - sent_before
    assert len(packets(report.path)) == report.datagrams
    assert drop_counts(report.path) <= report.dropped
    (statistics,) = [body for kind, body in blocks(report.path) if kind == STATISTICS_BLOCK]
    assert struct.pack("<HHQ", 5, 8, report.dropped) in statistics
    if report.dropped > 100:
        assert drop_counts(report.path) > 0


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    """A device without space ends the tap with CaptureError; the context continues."""
    with open_context() as context:
        source, receiver = connect(context, "tapped")
        tap = context.tap("/dev/full")
        source.send_many([bytes(1000)] * 3000, flush=True)
        collect(receiver, 3000)
        with pytest.raises(CaptureError, match="No space left"):
            tap.stop()
        assert tap.report().datagrams == 0
        assert tap.report().dropped >= 3000
        with context.tap(tmp_path / "again.pcapng"):
            source.send(b"on", flush=True)
            collect(receiver, 1)


def _publish_until(context: Context, is_done: Callable[[], bool]) -> int:
    """Send and receive until the condition is true; return the number of messages sent."""
    source, receiver = connect(context, "rotated")
    count = 0

    def publish() -> bool:
        nonlocal count
        source.send_many([b"%06d" % n + bytes(500) for n in range(count, count + 50)], flush=True)
        collect(receiver, 50)
        count += 50
        return is_done()

    wait_for(publish, "the files")
    return count


def test_an_empty_file_is_not_kept(tmp_path: Path) -> None:
    """A file ends when its time is over even without another packet, and no empty file follows."""
    with open_context() as context:
        with context.tap(tmp_path / "files", rotate_seconds=0.1) as tap:
            source, receiver = connect(context, "quiet")
            source.send(b"the only one", flush=True)
            collect(receiver, 1)
            wait_for(lambda: tap.report().files == 2, "the file after it")
        files = sorted(tap.path.iterdir())
        assert len(files) == tap.report().files
        assert all(packets(file) for file in files)
        assert sum(len(packets(file)) for file in files) == tap.report().datagrams
        assert sum(file.stat().st_size for file in files) == tap.report().file_bytes


@pytest.mark.parametrize("limit", [{"rotate_bytes": 100_000}, {"rotate_seconds": 0.1}])
def test_files_are_rotated(tmp_path: Path, limit: dict[str, Any]) -> None:
    """The tap rotates by size and time like a capture: all files are whole, none is empty, and nothing is
    missing.
    """
    with open_context() as context:
        with context.tap(tmp_path / "new" / "folder", ring_bytes=64 << 20, **limit) as tap:
            count = _publish_until(context, lambda: tap.report().files >= 4)
            whole = sorted(tap.path.glob("*.pcapng"))
            assert len(list(tap.path.glob("*.part"))) == 1
            assert len(whole) >= 3
        report = tap.report()
        files = sorted(tap.path.iterdir())
    assert [file.suffix for file in files] == [".pcapng"] * report.files
    assert all(packets(file) for file in files)
    assert sum(len(packets(file)) for file in files) == report.datagrams
    assert sum(file.stat().st_size for file in files) == report.file_bytes
    if "rotate_bytes" in limit:
        assert all(100_000 <= file.stat().st_size < 200_000 for file in files[:-1])
    content = b"".join(data for file in files for _, _, data in packets(file))
    # Sent and received packets, each in order.
    numbers = [int(found) for found in re.findall(rb"(\d{6})\0{500}", content)]
    assert sorted(numbers) == sorted([*range(count)] * 2)


def test_the_last_files_are_kept(tmp_path: Path) -> None:
    """Older files are deleted; files that are not the tap's stay."""
    (tmp_path / "umstack-lo-19990101T000000.000000Z.pcapng").write_bytes(b"another's")
    with open_context() as context:
        with context.tap(tmp_path, rotate_bytes=50_000, keep_files=2) as tap:
            _publish_until(context, lambda: tap.report().files >= 6)
        report = tap.report()
    another, *kept = sorted(tmp_path.iterdir())
    assert another.read_bytes() == b"another's"
    assert len(kept) == 2
    assert sum(len(packets(file)) for file in kept) < report.datagrams


def test_a_removed_directory_is_reported(tmp_path: Path) -> None:
    """A series that cannot continue raises an error and counts the missing packets."""
    with open_context() as context:
        tap = context.tap(tmp_path / "gone", rotate_bytes=50_000)

        def remove() -> bool:
            shutil.rmtree(tmp_path / "gone", ignore_errors=True)
            return tap.report().dropped > 0

        _publish_until(context, remove)
        with pytest.raises(CaptureError, match="No such file"):
            tap.stop()


@pytest.mark.parametrize("wrong", [{"keep_files": 3}, {"rotate_bytes": -1}, {"rotate_seconds": -0.5}])
def test_invalid_limits_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """API rule: the error states the remedy."""
    with open_context() as context, pytest.raises(InvalidArgument):
        context.tap(tmp_path / "x", **wrong)


def test_invalid_targets_are_refused(tmp_path: Path) -> None:
    """A missing directory and a ring size that is not a power of two are errors."""
    with open_context() as context:
        with pytest.raises(UmError, match="nowhere"):
            context.tap(tmp_path / "nowhere" / "x.pcapng")
        with pytest.raises(InvalidArgument):
            context.tap(tmp_path / "x.pcapng", ring_bytes=3_000_000)
        context.tap(tmp_path / "x.pcapng").stop()
