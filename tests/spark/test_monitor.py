"""Live findings: windows of a growing capture with known contents."""

from __future__ import annotations

import errno
import gzip
import json
import os
import random
import shutil
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark")
pytest.importorskip("prometheus_client")

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.sim.sim_run import SimRun, scripted, storm
from tests.spark.said import Said
from tests.story import RECEIVERS, Story, packed_by_window
from tests.unit.capture_bytes import START_NS as PACKET_NS
from tests.unit.capture_bytes import Packet, data, frame, message, pcap, trailer
from umstack.analysis.tables import tables_of
from umstack.capture import decode
from umstack.capture.generate import Traffic, Truth, generate
from umstack.cli import command as umstack
from umstack.errors import SystemFailure
from umstack.facts.facts import Counter, facts_of
from umstack.facts.kinds import DATA
from umstack.facts.packet_columns import points
from umstack.facts.sessions import short_numbers
from umstack.monitor import MonitorOptions, monitor
from umstack.monitor.finding_metrics import FindingMetrics
from umstack.monitor.finding_watch import INCIDENTS, STORMS, FindingWatch, _State
from umstack.monitor.run import sinks_for
from umstack.monitor.sinks import Windows
from umstack.monitor.window_findings import RECOVERY, TRAFFIC
from umstack.sim import MS, SECOND, START_NS

# A second of traffic that starts with a window.
TRAFFIC_OF = Traffic(
    seed=3, start_ns=1_700_000_000 * 1_000_000_000, datagrams_per_second=10_000, receivers=2, loss=0.01
)
PACKETS = 12_000


def test_lines_are_printed_without_another_sink(tmp_path: Path) -> None:
    """Without options `umstack monitor` prints lines; Prometheus, Parquet or a custom sink replace them."""
    options, lines = MonitorOptions((str(tmp_path),)), list[str]()
    [sink] = sinks_for(options, lines.append)
    row = {"from": datetime(2026, 1, 1), "publisher": "10.0.0.1", "session_id": 1, "lost": 7, "repaired": 5}
    sink.take(RECOVERY, [row | {"request_p50": 1000, "request_p99": 2000}], 1.0)
    assert "7 lost, 5 repaired" in lines[0]
    assert sinks_for(replace(options, parquet=tmp_path), lines.append) == []
    windows = Windows()
    assert sinks_for(replace(options, sink=windows), lines.append) == [windows]


def test_gauges_are_served_and_written(tmp_path: Path) -> None:
    """Prometheus reads the latest window, from a port or a text file; an older window does not overwrite it."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sink = FindingMetrics(port, tmp_path / "umstack.prom")
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


class Full:
    """A sink whose disk is full."""

    def take(self, kind: str, rows: Iterable[dict[str, Any]], window_seconds: float) -> None:
        """Raise the error of a full disk."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("once", [False, True])
def test_the_error_that_ends_a_watch_is_one_line(spark: Any, tmp_path: Path, once: bool) -> None:
    """A full disk, for example, causes one line without a traceback of Spark."""
    generate(tmp_path / "switch.pcap", 1000, TRAFFIC_OF)
    options = MonitorOptions((str(tmp_path),), once=once, sink=Full(), checkpoint=tmp_path / "state")
    with pytest.raises(
        SystemFailure, match=r"^monitoring ended: OSError.* No space left on device"
    ) as failed:
        monitor(options, print)
    assert "\n" not in str(failed.value)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[SimRun]:
    """Simulated runs: one with an incident of every kind, and a later one with a storm."""
    seed = random.SystemRandom().randrange(2**24)
    print(f"simulated runs of seeds {seed} and {seed + 1}")
    folder = tmp_path_factory.mktemp("simulated")
    return [scripted(folder, seed), storm(folder, seed + 1, START_NS + 5 * SECOND)]


def test_notes_on_captures_are_warned_of_and_counted_once(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy, a file that is not a capture, and a compressed one that is none cause one line and one count each, and
    no datagram is counted twice.
    """
    folder, metrics = tmp_path / "captures", tmp_path / "umstack.prom"
    folder.mkdir()
    truth = generate(folder / "switch.pcap", PACKETS, TRAFFIC_OF)
    shutil.copy(folder / "switch.pcap", folder / "twin.pcap")
    (folder / "foreign.pcap").write_bytes(b"#!/bin/sh\n")
    (folder / "old.pcap.gz").write_bytes(gzip.compress(bytes(64 << 20)))
    windows = Windows()
    options = MonitorOptions(
        (str(folder),),
        once=True,
        sink=windows,
        prometheus_file=metrics,
        checkpoint=tmp_path / "checkpoint",
    )
    monitor(options, print)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    said = ("foreign.pcap: not a capture", "old.pcap.gz: not a capture", "twin.pcap: the same as")
    assert len(lines) == len(said)
    for line, text in zip(lines, said, strict=True):
        assert text in line
    for point in ("foreign", "old", "twin"):
        assert f'umstack_capture_notes_total{{point="{point}"}} 1.0' in metrics.read_text()
    sent = sum(row["datagrams"] for row in windows.rows(TRAFFIC) if row["receiver"] is None)
    assert sent == truth.data
    warned = list[str]()
    monitor(options, print, warn=warned.append)
    assert warned == [], "a restart repeats nothing"


def test_windows_have_the_times_of_the_capture_hardware_on_request(spark: Any, tmp_path: Path) -> None:
    """A switch's trailer and the capture differ by an hour: the option decides which of both a window has."""
    hour_ns = 3600 * SECOND
    folder = tmp_path / "captures"
    folder.mkdir()
    packets = [
        Packet(PACKET_NS + i, frame(data(i, message(1, i, b"x"))) + trailer(PACKET_NS - hour_ns + i))
        for i in range(9)
    ]
    (folder / "switch.pcap").write_bytes(pcap(packets))
    for option, expected_ns in (([], PACKET_NS), (["--hardware-times"], PACKET_NS - hour_ns)):
        done = CliRunner().invoke(umstack, ["monitor", str(folder), "--once", "--json", *option])
        assert done.exit_code == 0, done.output
        [window] = json.loads(done.stdout)[TRAFFIC]
        begin_ns = datetime.fromisoformat(window["from"]).timestamp() * SECOND
        assert begin_ns <= expected_ns < begin_ns + 10 * SECOND
        assert window["datagrams"] == 9


SAME = (
    "publisher",
    "session_id",
    "receiver",
    "start_ns",
    "end_ns",
    "lost",
    "unrepaired",
    "longest_run",
    "cause",
)


def test_findings_are_those_of_a_report_whenever_it_is_restarted(
    spark: Any, runs: list[SimRun], tmp_path: Path
) -> None:
    """A growing folder is watched in two runs: windows, incidents and storms are reported once, as in a
    report.
    """
    folder, out = tmp_path / "captures", tmp_path / "findings"
    folder.mkdir()
    whole = runs[0].capture.read_bytes()
    growing = folder / runs[0].capture.name
    options = MonitorOptions(
        (str(folder),),
        window_seconds=1.0,
        late_seconds=0.3,
        once=True,
        parquet=out,
        checkpoint=tmp_path / "checkpoint",
    )
    growing.write_bytes(whole[: int(0.6 * len(whole))])
    monitor(options, print)
    counts = [len(pq.read_table(out / INCIDENTS))]
    growing.write_bytes(whole)
    shutil.copy(runs[1].capture, folder)
    monitor(options, print)
    reported = pq.read_table(out / INCIDENTS).to_pylist()
    counts.append(len(reported))
    assert counts == sorted(set(counts)), "every run reports something"
    tables = tables_of(facts_of([str(run.capture) for run in runs]))
    expected = tables["incidents"].select(SAME).rows()
    assert sorted(tuple(row[name] for name in SAME) for row in reported) == sorted(expected)
    assert {row["cause"] for row in reported} == {one.cause for one in runs[0].injected}
    [storm_found] = pq.read_table(out / STORMS).to_pylist()
    [storm_there_was] = tables["nak_storms"].to_dicts()
    assert not storm_found["ongoing"]
    assert storm_found["session_id"] == runs[1].session.session_id
    for name in ("start_ns", "end_ns", "naks", "requests", "repeated", "receivers"):
        assert storm_found[name] == storm_there_was[name]
    _assert_windows(pl.read_parquet(out / TRAFFIC), runs)


def _assert_windows(windows: pl.DataFrame, runs: list[SimRun]) -> None:
    """Every window except the last, which may be open, exists once with the datagrams that were sent in it."""
    key = ["from", "publisher", "session_id"]
    reported = windows.filter(pl.col("datagrams") > 0).select(*key, "datagrams").rows()
    counted = Counter(SECOND)
    for run in runs:
        for batch in decode(run.capture, only_ours=True):
            counted.take(batch)
    sent = [
        (datetime.fromtimestamp(at / SECOND, UTC), *row)
        for at, facts in counted.facts().items()
        for row in facts.renamed({}, short_numbers(facts.sessions()))
        .counts.filter(pl.col("kind") == DATA)
        .group_by("publisher", "session_id")
        .agg(pl.col("packets").sum())
        .rows()
    ]
    latest = max(row[0] for row in reported)
    assert sorted(reported) == sorted(row for row in sent if row[0] <= latest)
    assert len({row[0] for row in sent if row[0] > latest}) <= 1


def test_findings_are_printed_and_counted(spark: Any, runs: list[SimRun], tmp_path: Path) -> None:
    """Lines, JSON and Prometheus have a window for each tenth of a second with every receiver that sent NAKs,
    each incident with its cause in words, and each storm with its receiver.
    """
    said, metrics = Said(), tmp_path / "umstack.prom"
    folder = tmp_path / "captures"
    folder.mkdir()
    truth = generate(folder / "switch.pcap", PACKETS, TRAFFIC_OF)
    for run in runs:
        shutil.copy(run.capture, folder)
    options = MonitorOptions(
        (str(folder),),
        window_seconds=0.1,
        late_seconds=0.1,
        once=True,
        sink=said,
        prometheus_file=metrics,
        checkpoint=tmp_path / "checkpoint",
    )
    monitor(options, print)
    _assert_windows_are_printed(truth, said.lines)
    _assert_incidents_are_printed(said.lines)
    _assert_incidents_are_counted(runs, json.loads(json.dumps(said.to_dict())), metrics.read_text())


def _assert_windows_are_printed(truth: Truth, lines: list[str]) -> None:
    of_it = [line for line in lines if f"{truth.session_id(0):08x}" in line]
    assert sum("datagrams/s" in line for line in of_it) == len(range(0, PACKETS, 1000))
    assert any("repaired; from NAK to repair" in line for line in of_it)
    for receiver in range(2):
        assert any(f"{truth.receiver_address(receiver)} requested" in line for line in of_it)


def _assert_incidents_are_printed(lines: list[str]) -> None:
    assert sum("connectivity, every datagram for a while" in line for line in lines) == 1
    assert any(
        "10.0.0.4 lost 130 datagrams in 129 ms, at most 130 in a row: connectivity" in line for line in lines
    )
    [storm_line] = [line for line in lines if "a NAK storm" in line]
    assert "requested" in storm_line
    assert "10.0.0.4 sent" in storm_line


def _assert_incidents_are_counted(runs: list[SimRun], reported: dict[str, Any], text: str) -> None:
    session = runs[0].session
    planned = [row for row in reported[INCIDENTS] if row["session_id"] == session.session_id]
    causes = [row["cause"] for row in planned]
    assert set(causes) == {one.cause for one in runs[0].injected}
    for cause in set(causes):
        lost = sum(row["lost"] for row in planned if row["cause"] == cause)
        [receiver] = {row["receiver"] for row in planned if row["cause"] == cause}
        who = f'publisher="{session.publisher}",receiver="{receiver}",session="{session.session_id:08x}"'
        labels = f'cause="{cause}",{who}'
        assert f"umstack_loss_incidents_total{{{labels}}} {causes.count(cause)}.0" in text
        assert f"umstack_incident_losses_total{{{labels}}} {lost}.0" in text
    assert (
        f'umstack_nak_storms_total{{publisher="10.0.0.1",session="{runs[1].session.session_id:08x}"}} 1.0'
        in text
    )


def test_a_repeated_batch_reports_the_same_and_long_incidents_in_parts(
    runs: list[SimRun], tmp_path: Path
) -> None:
    """If Spark repeats a batch whose end it did not record, a continuous loss is reported by window, and only
    once in total.
    """
    packets = [batch.filter(_at_switch(batch)) for batch in decode(runs[1].capture, only_ours=True)]
    watch = FindingWatch(tmp_path / "watched", window_ns=100 * MS, late_ns=30 * MS)
    reported, low_ns = [], START_NS + 5 * SECOND
    # Session messages may announce the last losses long after they were sent: the second batch has all of that.
    for number, span_ns in enumerate((150 * MS, 10 * SECOND, SECOND)):
        times = (low_ns, low_ns + span_ns)
        low_ns += span_ns
        batch = packed_by_window([one.filter(_between(one, *times)) for one in packets], 100 * MS)
        found = watch.take(batch, number).tables
        if number == 1:
            again = FindingWatch(watch.folder, watch.window_ns, watch.late_ns).take(batch, number)
            assert again.tables == found
        reported += found[INCIDENTS].to_pylist() if INCIDENTS in found else []
    kept = {path.name for path in watch.folder.glob("facts-*")}
    assert kept <= {"facts-000000000001.parquet", "facts-000000000002.parquet"}, (
        "what was reported is not kept"
    )
    crybaby = [row for row in reported if row["receiver"] == "10.0.0.4"]
    assert len(crybaby) >= 2
    assert any(row["ongoing"] for row in crybaby)
    asked = [loss for loss in runs[1].session.losses if loss.receiver == "10.0.0.4" and loss.naks_ns]
    assert sum(row["lost"] for row in crybaby) == len(asked)


def _at_switch(batch: pa.RecordBatch) -> pa.Array:
    return pc.ends_with(points(batch), ":switch")


def _between(batch: pa.RecordBatch, low_ns: int, high_ns: int) -> pa.Array:
    times = batch.column("time_ns")
    return pc.and_(pc.greater_equal(times, low_ns), pc.less(times, high_ns))


def test_a_session_with_only_naks_captured_keeps_reporting_losses(tmp_path: Path) -> None:
    """If a capture contains only the receivers' packets, later NAKs count as losses, too."""
    reported = []
    watch = FindingWatch(tmp_path / "watched", SECOND, SECOND)
    for number, sqns in enumerate(((10, 11), (500,), (3,), (700,))):
        story = Story()
        story.nak(START_NS + number * 60 * SECOND, RECEIVERS[0], *sqns)
        found = watch.take(story.packed(SECOND), number).tables
        reported += found[INCIDENTS].to_pylist() if INCIDENTS in found else []
    reported += watch.finish()[INCIDENTS].to_pylist()
    assert [(row["last_sqn"], row["lost"]) for row in reported] == [(11, 2), (500, 1), (3, 1), (700, 1)]


def test_the_state_of_a_batch_survives_its_file(tmp_path: Path) -> None:
    """Saving and loading the state loses nothing."""
    who = ("10.0.0.1", 1)
    state = _State(
        7, {"facts-1.parquet": (5, 7)}, {who: 5}, {who}, {(*who, "10.0.0.2"): 6}, {(*who, ""): 4}, 3, 2
    )
    state.save(tmp_path / "state.json")
    assert _State.load(tmp_path / "state.json") == state


def test_the_checkpoint_of_an_earlier_version_is_refused(spark: Any, tmp_path: Path) -> None:
    """The findings that an earlier version reported are unknown, so they would be reported again."""
    (tmp_path / "state" / "incidents").mkdir(parents=True)
    with pytest.raises(SystemFailure, match="from an earlier version"):
        monitor(MonitorOptions((str(tmp_path),), once=True, checkpoint=tmp_path / "state"), print)


def test_the_last_window_is_written_or_named(spark: Any, tmp_path: Path) -> None:
    """Without a checkpoint no run continues, so all windows are written; with one, a warning names the open ones."""
    truth = generate(tmp_path / "switch.pcap", PACKETS, TRAFFIC_OF)
    warnings: list[str] = []
    written = {}
    for checkpoint in (None, tmp_path / "state"):
        out = tmp_path / ("all" if checkpoint is None else "some")
        options = MonitorOptions(
            (str(tmp_path / "switch.pcap"),),
            0.1,
            late_seconds=0.1,
            once=True,
            parquet=out,
            checkpoint=checkpoint,
        )
        monitor(options, print, warn=warnings.append)
        written[checkpoint] = pl.read_parquet(out / TRAFFIC)["datagrams"].sum()
    assert written[None] == truth.data
    assert written[tmp_path / "state"] < written[None]
    [warning] = warnings
    assert "the next run with this checkpoint writes them" in warning


def test_tables_of_another_format_are_appended_by_spark(spark: Any, tmp_path: Path) -> None:
    """The rows are the same as in Parquet."""
    generate(tmp_path / "switch.pcap", PACKETS, TRAFFIC_OF)
    for kind in ("parquet", "orc"):
        options = MonitorOptions(
            (str(tmp_path / "switch.pcap"),), 0.1, late_seconds=0.1, once=True, parquet=tmp_path / kind,
            table_format=kind, checkpoint=tmp_path / f"state-{kind}",
        )  # fmt: skip
        monitor(options, print)
    columns = ("publisher", "receiver", "datagrams", "requests")
    orc = spark.read.orc(str(tmp_path / "orc" / TRAFFIC)).select(*columns).collect()
    parquet = pl.read_parquet(tmp_path / "parquet" / TRAFFIC).select(columns).rows()
    assert sorted(map(str, map(tuple, orc))) == sorted(map(str, parquet))
    assert parquet
