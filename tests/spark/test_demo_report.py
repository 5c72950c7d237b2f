"""`umstack demo` captures its own run at the switch, keeps tables of it with Spark, and reports on the capture."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("polars")

import pyarrow.compute as pc
import pyarrow.parquet as pq
from click.testing import CliRunner

from tests.spark.conftest import need_java
from umstack.cli import command as root
from umstack.demo.errors import DemoFailed
from umstack.demo.live_tables import LiveTables, differences
from umstack.lab import Lab

SEED = 20


@pytest.mark.timeout(300)
@pytest.mark.skipif(Lab.supported() is not None, reason=f"no lab here: {Lab.supported()}")
def test_the_demo_reports_on_its_own_capture(tmp_path: Path) -> None:
    """The captures made at the switch, one per link, contain the publisher's datagrams and the subscribers'
    NAKs; the report covers both, and so do the tables that Spark keeps meanwhile."""
    need_java()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "big").write_bytes(random.Random(SEED).randbytes(4 << 20))
    report = tmp_path / "report"
    command = [
        "demo",
        "--json",
        "--no-recovery",
        "--no-store",
        "--no-driver",
        "--seed",
        str(SEED),
        "--loss",
        "0.03",
    ]
    done = CliRunner().invoke(root, [*command, "--tree", str(tmp_path / "tree"), "--report", str(report)])
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["ok"], said["why_no_rings"], said["why_no_report"]) == (True, None, None)
    assert [run["link"] for run in said["runs"]] == ["xdp", "socket"]
    assert Path(said["report"]["page"]) == report / "report.html"
    page = (report / "report.html").read_text()
    assert all(finding["text"].split()[0] in page for finding in said["report"]["findings"])
    captures, sessions = [], {row["point"]: row for row in said["report"]["tables"]["sessions"]}
    for run in said["runs"]:
        (capture,) = (report / "captures" / run["link"]).glob("*.pcapng")
        (session,) = (row for point, row in sessions.items() if point.startswith(capture.stem))
        # A busy machine may lose packets of the capture, which counts them.
        lost = sum(
            note["packets"]
            for note in said["report"]["tables"]["notes"]
            if note["point"] == capture.stem and "the capturing side lost" in note["status"]
        )
        sent = {"datagrams": run["publisher"]["msgs_sent"], "retransmissions": run["publisher"]["rxs_sent"]}
        missing = sum(sent.values()) - sum(session[name] for name in sent)
        assert 0 <= missing <= lost, (sent, session, lost, said["report"]["tables"]["notes"])
        assert session["datagrams"] > 2500
        assert session["retransmissions"] > 0
        assert session["naks"] > 0
        captures.append(str(capture))
    assert sorted(said["report"]["captures"]) == sorted(captures)
    assert len(sessions) == len(captures)
    tables = said["tables"]
    assert (tables["differences"], said["why_no_tables"]) == ([], None)
    assert tables["packets"] == said["report"]["packets"]
    assert "Spark, batch 1: " in done.stderr
    assert "  found: " in done.stderr
    answers = tables["answers"]
    counted = sorted(row["datagrams"] for row in said["report"]["tables"]["sessions"])
    assert sorted(row["datagrams"] for row in answers["sessions"]) == counted
    assert sum(row["lost"] for row in answers["losses"]) > 100
    # Another number anywhere in the tables is a difference.
    file = next((report / "tables" / "silver" / "losses").rglob("rows.parquet"))
    rows = pq.read_table(file, partitioning=None)
    place = rows.schema.names.index("naks")
    pq.write_table(rows.set_column(place, rows.field("naks"), pc.add(rows["naks"], 1)), file)
    assert "table losses" in differences(report / "tables", report, answers, 0.03)
    answers["losses"][0]["naks"] += 1
    assert "query losses" in differences(report / "tables", report, answers, 0.03)


def test_a_failed_pipeline_fails_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error contains the last words of Spark's process, and nothing waits for its tables."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with LiveTables(tmp_path) as live:
        live.finish()
        with pytest.raises(DemoFailed, match="there is no java"):
            live.result(0.0, print)
