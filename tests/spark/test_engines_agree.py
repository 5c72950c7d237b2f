"""Tables, findings and timelines have the same rows if one process made them and if a cluster made them."""

from __future__ import annotations

import json
import math
import re
import shutil
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("polars")

import polars as pl
import pyarrow.parquet as pq

from tests.sim.sim_run import scripted, storm
from tests.spark import odd_captures as odd
from tests.unit.capture_bytes import pcap, stalled_session
from tests.unit.stream_bytes import recoveries
from tests.unit.unicast_bytes import lbtru_filtered, lbtru_session, lbttcp_session
from umstack.capture.generate import Traffic, generate
from umstack.errors import InvalidArgument
from umstack.report import Report, ReportOptions, make_report
from umstack.report.errors import ReportError
from umstack.sim import SECOND, START_NS

SAMPLE = Path(__file__).parents[1] / "wire" / "wire-sample.pcap"


def _captures(kind: str, folder: Path) -> list[str]:
    if kind == "generated":
        traffic = Traffic(
            seed=11, sessions=2, receivers=3, messages_per_datagram=4, message_bytes=50, loss=0.01
        )
        return [str(generate(folder / "switch.pcap", 20_000, traffic).path)]
    if kind == "odd":
        return [str(odd.odd_captures(folder / "captures").folder)]
    folder = folder / "captures"
    folder.mkdir()
    if kind == "unicast":
        (folder / "lbtru.pcap").write_bytes(pcap(lbtru_session()))
        (folder / "filtered.pcap").write_bytes(pcap(sorted(lbtru_filtered(), key=lambda one: one.time_ns)))
        (folder / "lbttcp.pcap").write_bytes(pcap(lbttcp_session()))
        return [str(folder)]
    if kind == "stalled":
        (folder / "switch.pcap").write_bytes(pcap(stalled_session()))
        return [str(folder)]
    shutil.copy(SAMPLE, folder)
    scripted(folder, 4711)
    storm(folder, 4712, START_NS + 5 * SECOND)
    (folder / "recovery.pcap").write_bytes(pcap(recoveries()))
    return [str(folder)]


def _rows(out: Path, table: str) -> list[str]:
    """Return the rows of a table as sorted text, with fractional numbers to twelve digits."""
    parts = sorted((out / table).glob("*.parquet"))
    rows = [row for part in parts for row in pq.read_table(part, partitioning=None).to_pylist()]
    return sorted(json.dumps({name: _plain(row[name]) for name in sorted(row)}) for row in rows)


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.12g}")
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(value[name]) for name in sorted(value)}
    return value


def _made(captures: list[str], out: Path, engine: str) -> Report:
    return make_report(captures, out, ReportOptions(engine=engine))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["generated", "odd", "simulated", "stalled", "unicast"])
def test_alone_and_spark_agree_to_the_row(spark: Any, tmp_path: Path, kind: str) -> None:
    """One machine and a cluster produce the same results."""
    captures = _captures(kind, tmp_path)
    by_spark = _made(captures, tmp_path / "spark", "spark")
    alone = _made(captures, tmp_path / "alone", "alone")
    assert alone.packets == by_spark.packets
    tables = {path.name for path in (tmp_path / "spark").iterdir() if path.is_dir()}
    assert tables == {path.name for path in (tmp_path / "alone").iterdir() if path.is_dir()}
    for table in sorted(tables):
        assert _rows(tmp_path / "alone", table) == _rows(tmp_path / "spark", table), table
    assert [one.text for one in alone.findings] == [one.text for one in by_spark.findings]
    assert len(alone.summary["stalls"]) == (3 if kind == "stalled" else 0)
    assert alone.summary.runs == by_spark.summary.runs


def test_tables_of_another_format_are_written_by_spark(spark: Any, tmp_path: Path) -> None:
    """The rows are the same; the error for an unavailable format names it with a hint."""
    [capture] = _captures("generated", tmp_path)
    alone = _made([capture], tmp_path / "alone", "alone")
    other = make_report([capture], tmp_path / "orc", ReportOptions(table_format="orc"))
    assert [one.text for one in other.findings] == [one.text for one in alone.findings]
    written = spark.read.orc(str(tmp_path / "orc" / "losses")).toArrow()
    key = [(name, "ascending") for name in ("session_id", "receiver", "sqn")]
    [made] = [pq.read_table(path) for path in (tmp_path / "alone" / "losses").glob("*.parquet")]
    assert written.sort_by(key).to_pylist() == made.sort_by(key).to_pylist()
    with pytest.raises(InvalidArgument, match=r"cannot be written as delta.*packages"):
        make_report([capture], tmp_path / "delta", ReportOptions(table_format="delta"))
    with pytest.raises(ReportError, match="without Spark"):
        make_report([capture], tmp_path / "none", ReportOptions(table_format="delta", engine="alone"))


def test_the_analyses_of_the_docs_run(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The examples of docs/facts.md run in one process, and by session on Spark's workers."""
    text = (Path(__file__).parents[2] / "docs" / "facts.md").read_text()
    section = text[text.index("## Writing your own analysis") : text.index("## As rows")]
    alone, by_spark = (
        textwrap.dedent(block)
        for block in re.findall(r"(?:^(?: {4}.*)?\n)+", section, re.MULTILINE)
        if block.strip()
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "captures").mkdir()
    generate(tmp_path / "switch.pcapng", 2000, Traffic(sessions=2))
    shutil.copy(tmp_path / "switch.pcapng", tmp_path / "captures")
    known: dict[str, Any] = {"spark": spark}
    exec(alone, known)
    said = capsys.readouterr().out
    assert said.count("datagrams from") == 2
    busiest = known["facts"].rates.group_by("session_id").agg(bytes=pl.col("bytes").max())
    exec(by_spark.replace("captures/", str(tmp_path / "captures")), known)
    shown = capsys.readouterr().out
    for session_id, most in busiest.rows():
        assert re.search(rf"{session_id}\|\s*{most}\|", shown)
