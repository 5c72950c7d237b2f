"""`umstack monitor` as a user runs it: a process that follows a folder and ends on Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import need_java
from tests.waiting import wait_for
from umstack.capture.generate import Traffic, Truth, generate

SECOND = 1_000_000_000
START_NS = 1_700_000_000 * SECOND


def _rotated_in(folder: Path, number: int) -> Truth:
    """Return four seconds of traffic in a finished file, which is moved into the folder in one step."""
    traffic = Traffic(
        seed=number, start_ns=START_NS + 4 * number * SECOND, datagrams_per_second=500, loss=0.01
    )
    truth = generate(folder.parent / "being-written", 2000, traffic)
    truth.path.rename(folder / f"switch-{number:04}.pcap")
    return truth


def _gauges(file: Path, name: str) -> list[float]:
    text = file.read_text() if file.exists() else ""
    return [float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)]


@pytest.mark.timeout(500)
def test_a_folder_is_followed_until_ctrl_c(tmp_path: Path) -> None:
    """New files are reported while the command runs, and Ctrl-C ends it."""
    need_java()
    folder, gauges = tmp_path / "captures", tmp_path / "umstack.prom"
    folder.mkdir()
    _rotated_in(folder, 0)
    options = ("--interval", "0.2", "--window", "1", "--late", "0.5", "--prometheus-file", str(gauges))
    running = subprocess.Popen(
        [sys.executable, "-m", "umstack", "monitor", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def has(name: str, least: float) -> bool:
        assert running.poll() is None, running.communicate()[1][-6000:]
        return sum(_gauges(gauges, name)) >= least

    try:
        wait_for(lambda: has("umstack_datagrams", 1), "a window of the first file", 120)
        wait_for(lambda: has("umstack_loss_incidents_total", 1), "an incident of the first file", 150)
        incidents = sum(_gauges(gauges, "umstack_loss_incidents_total"))
        _rotated_in(folder, 1)
        wait_for(
            lambda: has("umstack_loss_incidents_total", incidents + 1), "incidents of the next file", 120
        )
        (folder / "notes.pcap").write_text("certainly not a capture")
        wait_for(
            lambda: has("umstack_capture_notes_total", 1), "a note on the file that is not a capture", 120
        )
        os.kill(running.pid, signal.SIGINT)
        _, complained = running.communicate(timeout=40)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0, complained
    assert "watching ended" in complained
    assert "notes.pcap" in complained
    assert "Traceback" not in complained
