"""`umstack pipeline` on a recorder's journal and on live topics: each message once, and totals per day."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("polars")

import polars as pl
import pyarrow as pa

from tests.unit.loopback import configuration_file, open_context
from tests.waiting import wait_for
from umstack.pipeline import parts
from umstack.pipeline.layout import DAY_NS, Layout, TablesError
from umstack.pipeline.maintenance import compact_all
from umstack.pipeline.messages import take_messages
from umstack.pipeline.read_back import read_tables
from umstack.pipeline.run import PipelineOptions, run_pipeline
from umstack.recorder import Journal
from umstack.recorder.background import is_recording, writer_of
from umstack.recorder.tables import messages
from umstack.spark import register_views

START_SECONDS = 150.0
SOURCE = "LBTRM:10.0.0.1:14400:5eed0001:239.1.1.1:14400"
OTHER = "LBTRM:10.0.0.2:14400:5eed0002:239.1.1.1:14400[3]"


def _rows(source: str, numbers: range, day: int = 20_500) -> pa.RecordBatch:
    rows = [
        {
            "topic": "orders",
            "source": source,
            "sequence_number": number,
            "received_ns": day * DAY_NS + number,
            "payload": b"%d" % number,
        }
        for number in numbers
    ]
    return pa.RecordBatch.from_pylist(rows, messages().schema)


@pytest.mark.timeout(300)
def test_a_journal_becomes_messages_and_totals_per_day(spark: Any, tmp_path: Path) -> None:
    """Two runs over a journal that grew; one source misses numbers, one sends on two days."""
    folder, tables = tmp_path / "journal", tmp_path / "tables"
    options = PipelineOptions(str(folder), tables, once=True)
    with Journal(folder / "messages", messages().schema) as journal:
        journal.append(_rows(SOURCE, range(100)))
        journal.append(_rows(OTHER, range(10, 20)))
        assert run_pipeline(options).packets == 110
        journal.append(_rows(SOURCE, range(150, 200)))
        journal.append(_rows(OTHER, range(20, 25), day=20_501))
        assert run_pipeline(options).packets == 55
        assert run_pipeline(options).packets == 0
    register_views(spark, tables)
    found = spark.sql("SELECT source, sequence_number FROM messages ORDER BY ALL").collect()
    assert [(row[0], row[1]) for row in found] == [
        *((SOURCE, number) for number in (*range(100), *range(150, 200))),
        *((OTHER, number) for number in range(10, 25)),
    ]
    totals = spark.sql(
        "SELECT source, messages, payload_bytes, first_sequence_number, last_sequence_number, missing, session "
        "FROM message_days ORDER BY source, date"
    ).collect()
    assert [tuple(row) for row in totals] == [
        (SOURCE, 150, 10 + 90 * 2 + 50 * 3, 0, 199, 50, SOURCE),
        (OTHER, 10, 20, 10, 19, 0, OTHER.partition("[")[0]),
        (OTHER, 5, 10, 20, 24, 0, OTHER.partition("[")[0]),
    ]
    with pytest.raises(TablesError, match="messages of a journal"):
        read_tables(tables)


def test_a_repeated_batch_of_messages_counts_once(tmp_path: Path) -> None:
    """Batches are repeated also after a compaction of their files."""
    layout = Layout(tmp_path)
    layout.state.mkdir()
    for number in range(parts.PARTS_MAX + 3):
        for _ in range(2):
            rows = pa.Table.from_batches([_rows(SOURCE, range(10 * number, 10 * number + 10))])
            assert len(take_messages(layout, number, rows)) == 1
    totals = pl.read_parquet(tmp_path / "gold/message_days/**/rows.parquet", hive_partitioning=True)
    assert totals.select("messages", "missing").rows() == [(10 * (parts.PARTS_MAX + 3), 0)]
    bronze = tmp_path / "bronze/messages/**/*.parquet"
    assert pl.read_parquet(bronze)["sequence_number"].to_list() == list(range(10 * (parts.PARTS_MAX + 3)))


def test_messages_are_compacted(tmp_path: Path) -> None:
    """One file per session and day is left, with the same messages."""
    from tests.unit.pipeline_tables import made_layout

    layout = made_layout(tmp_path / "tables")
    for number in range(3):
        take_messages(layout, number, pa.Table.from_batches([_rows(SOURCE, range(number, number + 1))]))
    assert compact_all(layout.root) == (3, 1)
    bronze = layout.root / "bronze/messages/**/part-*.parquet"
    assert pl.read_parquet(bronze)["sequence_number"].to_list() == [0, 1, 2]
    take_messages(layout, 2, pa.Table.from_batches([_rows(SOURCE, range(2, 3))]))
    assert pl.read_parquet(bronze)["sequence_number"].to_list() == [0, 1, 2], (
        "a batch repeated after it was compacted"
    )


@pytest.mark.timeout(300)
def test_live_topics_are_recorded_and_become_tables(spark: Any, tmp_path: Path) -> None:
    """The pipeline starts a recorder for its journal; every message is in the tables once."""
    folder, tables, config = tmp_path / "journal", tmp_path / "tables", configuration_file(tmp_path)
    live = (("topicPattern", "live/.*"), ("interface", "lo"), ("config", str(config)))
    options = PipelineOptions(str(folder), tables, interval_seconds=0.1, live=live)
    stop, taken = threading.Event(), [0]

    def seen(progress: Any) -> None:
        taken[0] = progress.packets

    running = threading.Thread(target=run_pipeline, args=(options, seen), kwargs={"stop": stop})
    try:
        with open_context() as context, context.source("live/numbers", flow_control="min") as source:
            running.start()
            wait_for(lambda: source.is_connected, "the recorder", START_SECONDS)
            source.send_many([b"%d" % number for number in range(2000)], flush=True)
            wait_for(lambda: taken[0] == 2000, "all messages", START_SECONDS)
            assert source.wait_drained(10)
    finally:
        stop.set()
        running.join()
        if is_recording(folder):
            with suppress(ProcessLookupError):
                os.kill(writer_of(folder), signal.SIGKILL)
    bronze = pl.read_parquet(tables / "bronze/messages/**/part-*.parquet")
    assert sorted(map(int, bronze["payload"])) == list(range(2000))
    [totals] = pl.read_parquet(tables / "gold/message_days/**/rows.parquet").to_dicts()
    assert (totals["topic"], totals["messages"], totals["missing"]) == ("live/numbers", 2000, 0)
