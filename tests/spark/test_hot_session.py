"""One session in many parts: its facts are merged by several workers first, and give the same tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

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
