"""`tests.bench.measure_monitor`: a capture is written as it would grow, and each window's delay is measured."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.measure_monitor import _behind, feed, monitor_table


def test_a_capture_is_written_as_it_would_have_grown(tmp_path: Path) -> None:
    """All of it, and no faster than it was captured."""
    content = os.urandom(100_000)
    (tmp_path / "source").write_bytes(content)
    began = time.time()
    feed(tmp_path / "source", tmp_path / "target", began, 0.3)
    assert time.time() - began >= 0.3
    assert (tmp_path / "target").read_bytes() == content


def test_a_window_is_behind_by_when_it_was_written(tmp_path: Path) -> None:
    """From its end to the file it is in; windows from before the measurement do not count."""
    began = time.time() - 100
    for number, end in enumerate((-10, 5, 10)):
        moment = datetime.fromtimestamp(began, UTC) + timedelta(seconds=end)
        file = tmp_path / f"part-{number}.parquet"
        pq.write_table(pa.table({"to": pa.array([moment], pa.timestamp("us", "UTC"))}), file)
        os.utime(file, (began + end + 2.5, began + end + 2.5))
    assert _behind(tmp_path, began) == [2.5, 2.5]


def test_the_table_reports_the_worst(tmp_path: Path) -> None:
    """The table has one row with the worst value of all windows."""
    found = {
        "rate": 1000,
        "messages_per_datagram": 1,
        "windows": 2,
        "seconds_behind": [3.1, 4.2],
        "cores_fed": 0.5,
        "cores_idle": 0.01,
        "together_memory_bytes": 1 << 30,
    }
    shown = [list(column.cells) for column in monitor_table(found).columns]
    assert "4.2" in shown[1]
    assert "1,024" in shown[1]
