"""`umstack bench report`: a whole report of a generated capture, with the memory of each of its processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("polars")
pytest.importorskip("matplotlib")

_MIB = 1 << 20


@pytest.mark.timeout(200)
def test_a_report_is_measured_with_the_memory_of_each_process() -> None:
    """Time and memory of a report by one command; every packet is in the report."""
    command = [sys.executable, "-m", "umstack", "bench", "report", "--packets", "20000", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=190)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["results"]
    assert (found["what"], found["packets"]) == ("report", 20_000)
    assert 0 < found["seconds"] < 190
    assert 0 < found["cpu_seconds"] < 190
    peaks = found["peak_memory_bytes"]
    assert peaks.keys() == {"driver"}, "no virtual machine is started"
    assert 50 * _MIB < peaks["driver"] < 1024 * _MIB
