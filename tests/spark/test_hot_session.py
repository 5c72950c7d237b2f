"""One session in many parts: workers reduce and merge its facts first, and these have the same tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from tests.spark.cluster import Cluster
from umstack.analysis.tables import tables_of
from umstack.capture.generate import Traffic, generate
from umstack.facts.facts import facts_of
from umstack.spark import UmpcapDataSource, fact_tables

FAN_IN = 3
BATCH_BYTES = 64 << 10


def test_facts_of_one_session_are_merged_by_several_workers(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of neighbouring parts become one, and Arrow batches stay small; the tables are those made alone."""
    monkeypatch.setattr(fact_tables, "_FAN_IN", FAN_IN)
    path = generate(tmp_path / "hot.pcap", 20_000, Traffic(message_bytes=60, loss=0.01)).path
    spark.dataSource.register(UmpcapDataSource)
    reader = spark.read.format("umpcap").option("rows", "facts").option("targetPartitionBytes", "400000")
    facts = reader.load(str(path)).cache()
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", BATCH_BYTES)
    try:
        parts = facts.rdd.getNumPartitions()
        rows, fewer = (
            frame.where("frame = 'sends'").selectExpr("count(*)", "max(length(content))").first()
            for frame in (facts, fact_tables.merged(facts))
        )
        tables, packets = fact_tables.tables_of_frame(fact_tables.merged(facts), 1500)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxBytesPerBatch")
        facts.unpersist()
    assert parts > 2 * FAN_IN
    assert rows[0] == parts
    assert fewer[0] == -(-parts // FAN_IN)
    alone = facts_of([str(path)])
    assert packets == alone.packets
    wanted = tables_of(alone)
    assert tables.keys() == wanted.keys()
    for name, table in wanted.items():
        assert tables[name].equals(table), name


JOB = """\
import json
import os
from collections.abc import Iterable, Iterator

import pyarrow as pa

from umstack.analysis.needed_times import _EDGE
from umstack.analysis.tables import tables_of
from umstack.facts.facts import facts_of
from umstack.facts.packed import from_ipc
from umstack.spark import UmpcapDataSource, fact_tables
from umstack.spark.spark_session import spark_session

def times(batch: pa.RecordBatch) -> int:
    rows = batch.to_pylist()
    return sum(len(from_ipc(row["content"])) for row in rows if row["frame"] == "sends")

def count(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found = sum(map(times, batches))
    yield pa.record_batch([[os.getppid()], [found]], names=["worker", "times"])

def counted(frame):
    return [tuple(row) for row in frame.mapInArrow(count, "worker long, times long").collect()]

def count_group(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch([[sum(map(times, batches))]], names=["times"])

def count_losses(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    found = sum(len(from_ipc(row["content"])) for batch in batches for row in batch.to_pylist())
    yield pa.record_batch([[os.getppid()], [found]], names=["worker", "losses"])

with spark_session("hot session", {master!r}, driver_memory="600m") as spark:
    spark.dataSource.register(UmpcapDataSource)
    reader = spark.read.format("umpcap").option("rows", "facts").option("targetPartitionBytes", "2000000")
    facts = reader.load({path!r})
    with fact_tables.thinned(facts) as thin:
        grouped = thin.facts.groupBy("publisher", "session_id").applyInArrow(count_group, "times long")
        found = {{
            "edge": _EDGE,
            "packets": counted(facts),
            "kept": counted(thin.facts),
            "of_sessions": [row.times for row in grouped.collect() if row.times],
        }}
        with fact_tables.judged(fact_tables.merged(thin.facts), thin.divisible) as rows:
            judges = rows.where("frame = 'judged losses'").mapInArrow(count_losses, "worker long, losses long")
            found["judges"] = [tuple(row) for row in judges.collect()]
            tables, _ = fact_tables.tables_of_frame(rows, 1500)
    wanted = tables_of(facts_of([{path!r}]))
    found["differ"] = [name for name, table in wanted.items() if not tables[name].equals(table)]
    print("JOB", json.dumps(found))
"""
PACKETS, LOSS = 200_000, 0.001


@pytest.mark.timeout(240)
def test_no_task_of_a_cluster_gets_all_of_a_session(cluster: Cluster, tmp_path: Path) -> None:
    """Several workers read a session and judge its losses; the one that makes its tables gets times in proportion to
    losses and parts."""
    capture, job = tmp_path / "hot.pcap", tmp_path / "job.py"
    truth = generate(capture, PACKETS, Traffic(message_bytes=60, loss=LOSS))
    job.write_text(JOB.format(master=cluster.master, path=str(capture)))
    done = subprocess.run(
        [sys.executable, str(job)], capture_output=True, text=True, env=cluster.environment, timeout=220
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("JOB ")]
    found = json.loads(said.removeprefix("JOB "))
    assert found["differ"] == []
    parts = len(found["packets"])
    assert parts > 10
    assert len({worker for worker, _ in found["packets"]}) == 2, "both workers read parts of the session"
    assert max(times for _, times in found["packets"]) < 2 * PACKETS / parts
    assert sum(times for _, times in found["packets"]) > 0.9 * PACKETS
    [of_session] = found["of_sessions"]
    assert of_session == sum(times for _, times in found["kept"])
    assert of_session < 2 * found["edge"] * parts + 3 * len(truth.losses)
    assert of_session < PACKETS / 5
    judges = [(worker, losses) for worker, losses in found["judges"] if losses]
    lost = sum(losses for _, losses in judges)
    assert len({worker for worker, _ in judges}) == 2, "both workers judge losses"
    assert len(judges) > 2
    assert max(losses for _, losses in judges) < lost / 2
