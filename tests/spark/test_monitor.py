"""The live findings: windows of a capture that grows, with the numbers it is known to hold."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("prometheus_client")

from umstack.capture.generate import Traffic, generate
from umstack.monitor import MonitorOptions, monitor
from umstack.monitor.sinks import TRAFFIC, Prometheus

# A second of traffic that begins with a window.
TRAFFIC_OF = Traffic(
    seed=3, start_ns=1_700_000_000 * 1_000_000_000, datagrams_per_second=10_000, receivers=2, loss=0.01
)
PACKETS = 12_000


def test_windows_hold_what_was_captured_and_nothing_is_counted_twice(spark: Any, tmp_path: Path) -> None:
    """Lines and Parquet of the same capture; a second run from the checkpoint adds nothing."""
    folder = tmp_path / "captures"
    folder.mkdir()
    truth = generate(folder / "switch.pcap", PACKETS, TRAFFIC_OF)
    lines: list[str] = []
    options = MonitorOptions(
        (str(folder),), window_seconds=0.1, late_seconds=0.1, once=True, checkpoint=tmp_path / "one"
    )
    monitor(options, lines.append)
    traffic = [line for line in lines if "datagrams/s" in line]
    assert len(traffic) == len(range(0, PACKETS, 1000))
    assert any("repaired, from NAK to repair" in line for line in lines)
    for receiver in range(2):
        assert any(truth.receiver_address(receiver) in line for line in lines)
    said = len(lines)
    monitor(options, lines.append)
    assert len([line for line in lines[said:] if "datagrams/s" in line]) == 0
    out = tmp_path / "windows"
    stored = MonitorOptions(
        (str(folder),),
        window_seconds=0.1,
        late_seconds=0.1,
        once=True,
        checkpoint=tmp_path / "two",
        parquet=out,
    )
    monitor(stored, lines.append)
    windows = spark.read.parquet(str(out / "traffic"))
    over = windows.where("receiver IS NULL").orderBy("from").collect()
    assert [row["from"] for row in over] == sorted({row["from"] for row in over})
    assert over[0]["datagrams"] == pytest.approx(1000, abs=20)
    assert len(over) >= 10
    assert sum(row["retransmissions"] for row in over) <= truth.retransmissions
    asked = windows.where("receiver IS NOT NULL").agg({"naks": "sum"}).collect()[0][0]
    assert 0.7 * truth.naks <= asked <= truth.naks


def test_gauges_are_served_and_written(tmp_path: Path) -> None:
    """Prometheus reads the latest window, from a port or a text file; an older window does not set it back."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sink = Prometheus(port, tmp_path / "umstack.prom")
    row = {
        "from": 2,
        "publisher": "10.0.0.1",
        "session_id": 0xABC,
        "receiver": None,
        "datagrams": 20,
        "bytes": 900,
    }
    sink.take(TRAFFIC, [row], 1.0)
    sink.take(TRAFFIC, [row | {"from": 1, "datagrams": 7}], 1.0)
    wanted = 'umstack_datagrams{publisher="10.0.0.1",receiver="",session="00000abc"} 20.0'
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert wanted in answer.read().decode()
    assert wanted in (tmp_path / "umstack.prom").read_text()
