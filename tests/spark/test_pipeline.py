"""`umstack pipeline`: tables of growing captures, equal to the report's, also if the command is killed on the way."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("polars")
pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import polars as pl
from polars.testing import assert_frame_equal

from tests.spark.conftest import need_java
from tests.waiting import wait_for
from umstack.analysis.tables import tables_of
from umstack.capture.generate import Traffic, generate
from umstack.facts.facts import facts_of
from umstack.pipeline.layout import DAY_NS, Layout, TablesError
from umstack.pipeline.published import read_published
from umstack.pipeline.read_back import read_tables
from umstack.pipeline.run import PipelineOptions, run_pipeline
from umstack.report import make_report, make_report_of_tables
from umstack.spark import register_views

MIDNIGHT_NS = 20_500 * DAY_NS
SECOND = 1_000_000_000
PACKETS = 3000


def _file(folder: Path, number: int) -> Path:
    """Return four seconds of two sessions, which go on from file to file and over midnight in the first."""
    traffic = Traffic(
        seed=number,
        sessions=2,
        receivers=3,
        start_ns=MIDNIGHT_NS + (4 * number - 2) * SECOND,
        datagrams_per_second=350,
        loss=0.01,
    )
    return generate(folder / f"switch-{number:04}.pcap", PACKETS, traffic).path


def _check_tables(tables: Path, captures: Path) -> None:
    """Fail if a table differs from that of the report on the captures in any row."""
    files = sorted(map(str, captures.iterdir()))
    made, packets, named, _ = read_tables(tables)
    wanted = tables_of(facts_of(files))
    assert packets == PACKETS * len(files)
    assert named == files
    assert made.keys() == wanted.keys()
    for name, table in wanted.items():
        # The last bits of floats depend on how many rows Polars computes at once.
        assert_frame_equal(made[name], table, rel_tol=1e-12, abs_tol=0)
    assert len(wanted["losses"]) > 20


def _check_published(tables: Path) -> None:
    """Fail if a table in the folder's format differs from its Parquet files."""
    for layer, name in (("silver", "losses"), ("silver", "sessions"), ("gold", "receiver_days")):
        wanted = pl.read_parquet(f"{tables}/{layer}/{name}/**/*.parquet", hive_partitioning=True)
        made = pl.DataFrame(read_published(tables, name))
        order = sorted(wanted.columns)
        assert_frame_equal(made.select(order).sort(order), wanted.select(order).sort(order))


@pytest.mark.timeout(300)
def test_tables_and_report_are_those_of_the_report_alone(spark: Any, tmp_path: Path) -> None:
    """Two runs over a folder that grew: the same tables, the same page, and nothing counted by a third run."""
    captures, tables = tmp_path / "captures", tmp_path / "tables"
    captures.mkdir()
    options = PipelineOptions(str(captures), tables, once=True, most_bytes=1 << 20, table_format="delta")
    for number in range(2):
        _file(captures, number)
        seen = []
        done = run_pipeline(options, seen.append)
        assert done.packets == PACKETS
        assert len(seen) == done.batches > 2
        _check_tables(tables, captures)
        _check_published(tables)
    assert run_pipeline(options).packets == 0
    register_views(spark, tables)
    assert spark.table("losses").count() == len(read_published(tables, "losses"))
    assert {row.date for row in spark.table("receiver_days").select("date").collect()} == {
        date.fromtimestamp(MIDNIGHT_NS // SECOND + days * 86_400) for days in (-1, 0)
    }
    alone = make_report([str(captures)], tmp_path / "alone")
    back = make_report_of_tables(tables, tmp_path / "back")
    assert back.page.read_text() == alone.page.read_text()
    assert [one.text for one in back.findings] == [one.text for one in alone.findings]
    assert (back.packets, back.captures) == (alone.packets, alone.captures)
    with pytest.raises(TablesError, match="as delta with mtu 1500"):
        run_pipeline(PipelineOptions(str(captures), tables, once=True, mtu=9000))
    (Layout(tables).checkpoint / "offsets").rename(tmp_path / "moved")
    with pytest.raises(TablesError, match="no checkpoint"):
        run_pipeline(options)


@pytest.mark.timeout(300)
def test_a_folder_is_followed_until_stopped(spark: Any, tmp_path: Path) -> None:
    """Without --once, files that appear later are added; the tables are complete when the run ends."""
    captures, tables = tmp_path / "captures", tmp_path / "tables"
    captures.mkdir()
    stop, packets = threading.Event(), [0]
    options = PipelineOptions(str(captures), tables, interval_seconds=0.1, table_format="iceberg")

    def seen(progress: Any) -> None:
        packets[0] = progress.packets

    def wait_for_files(count: int) -> None:
        wait_for(lambda: packets[0] == PACKETS * count, "the packets of the file", 100)

    running = threading.Thread(target=run_pipeline, args=(options, seen), kwargs={"stop": stop})
    running.start()
    try:
        for number in range(2):
            being_written = _file(tmp_path, number)
            being_written.rename(captures / being_written.name)
            wait_for_files(number + 1)
    finally:
        stop.set()
        running.join()
    _check_tables(tables, captures)
    _check_published(tables)
    register_views(spark, tables)
    assert spark.table("losses").count() == len(read_published(tables, "losses")) > 0
    assert spark.table("ip_fragments").count() == 0


@pytest.mark.timeout(900)
def test_killed_at_random_points_every_packet_counts_once(tmp_path: Path) -> None:
    """SIGKILL during batches of a growing folder; each restart goes on, and the tables are the report's.

    UMSTACK_KILLS sets how often; each time, Spark starts again.
    """
    need_java()
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    drawn = random.Random(seed)
    captures, tables = tmp_path / "captures", tmp_path / "tables"
    captures.mkdir()
    command = [sys.executable, "-m", "umstack", "pipeline", str(captures), "--tables", str(tables)]
    command += ["--once", "--max-bytes", str(1 << 20), "--format", "delta", "--json"]
    offsets = Layout(tables).checkpoint / "offsets"

    def batches() -> int:
        return len([one for one in offsets.glob("*") if one.name.isdecimal()]) if offsets.exists() else 0

    def kill_after(wanted: int) -> None:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
            try:
                wait_for(lambda: batches() >= wanted or running.poll() is not None, "a batch", 150)
                time.sleep(drawn.uniform(0, 1))
            finally:
                running.send_signal(signal.SIGKILL)
        assert running.returncode == -signal.SIGKILL, running.stderr

    kills = int(os.environ.get("UMSTACK_KILLS", "1"))
    for number in range(kills):
        _file(captures, number)
        kill_after(batches() + drawn.randint(1, 2))
    _file(captures, kills)
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["ok"]
    _check_tables(tables, captures)
    _check_published(tables)
