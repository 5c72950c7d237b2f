"""Failures of `umstack capture`: its messages and the files it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scapy.layers.inet import UDP
from scapy.utils import PcapNgReader

from tests.netns.captures import listening, start_capture
from tests.netns.traffic import GROUP, Sender
from umstack.capture import CaptureNotes, decode
from umstack.lab import Lab

MakeLab = Callable[..., Lab]
DISK_BYTES = 4 << 20
DATAGRAM_BYTES = 1400

# Runs a command with a small disk mounted for it alone, and saves the files that it leaves there.
ON_A_SMALL_DISK = f"""\
mount -t tmpfs -o size={DISK_BYTES} tmpfs "$1" || exit 9
small=$1 saved=$2
shift 2
"$@"
status=$?
cp -a "$small"/. "$saved"
exit $status
"""


@pytest.mark.parametrize("rotation", [(), ("--rotate-size", "1")], ids=["one file", "several"])
def test_a_full_disk_ends_a_capture_that_reports_it(
    make_lab: MakeLab, tmp_path: Path, rotation: tuple[str, ...]
) -> None:
    """The capture ends with status 1 and a line with the next step; the files are complete from the first
    packet.
    """
    host = make_lab(hosts=2).hosts[0]
    small, saved = tmp_path / "small", tmp_path / "saved"
    small.mkdir()
    saved.mkdir()
    prefix = ("unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, "sh", str(small), str(saved))
    capture = start_capture(host, "--out", str(small), "--group", GROUP, *rotation, prefix=prefix)
    listening(capture, Path(f"/proc/{capture.pid}/root{small}"))
    with Sender(host) as sender:
        sender.send(range(2 * DISK_BYTES // DATAGRAM_BYTES), DATAGRAM_BYTES)
    said, complained = capture.communicate(timeout=20)
    assert (capture.returncode, json.loads(said)["ok"]) == (1, False)
    *_progress, line = complained.splitlines()
    assert f"to {small}/" in line
    assert "No space left on device" in line
    assert line.endswith("readable; make space or choose another place, then restart")
    files = sorted(saved.iterdir())
    assert not list(small.iterdir()), "nothing is mounted outside"
    assert {file.suffix for file in files} == {".pcapng"}, "each has its name"
    found = []
    for file in files:
        found += [bytes(packet[UDP].payload) for packet in PcapNgReader(str(file))]
        notes = CaptureNotes()
        assert sum(batch.num_rows for batch in decode(file, notes=notes)) == notes.packets
        assert not notes.notes, "none is cut"
    # Data that was buffered for larger writes, up to a mebibyte, is missing.
    assert len(found) * DATAGRAM_BYTES > DISK_BYTES / 2
    assert found == [number.to_bytes(4, "big").ljust(DATAGRAM_BYTES, b".") for number in range(len(found))]
