"""Every scenario of a network equals its truth on Spark, and followed live while its files grow."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("polars")

import polars as pl
import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from tests.truth_scenarios import SCENARIOS, SECOND, START_NS, Scenario, assert_true, expected_rows, scenarios
from umstack.analysis.tables import tables_of
from umstack.facts.kinds import COPY
from umstack.facts.packed import PACKED, unpacked
from umstack.monitor.finding_watch import FindingWatch
from umstack.spark import fact_tables
from umstack.spark.fact_tables import tables_by_spark
from umstack.spark.umpcap_parts import UmpcapOptions
from umstack.spark.umpcap_stream import UmpcapStreamReader

SEED = random.SystemRandom().randrange(2**32)
STEPS = 6
WINDOW_NS = 10**9 * SECOND
"""A window that includes all scenarios."""


@pytest.mark.parametrize("thins", [False, True], ids=["all times", "needed times"])
def test_on_spark(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, thins: bool) -> None:
    """One job makes the tables of all scenarios, also if it first omits the times that no table needs."""
    if thins:
        monkeypatch.setattr(fact_tables, "_MERGED_BYTES", 0)
    made = scenarios()
    for one in made:
        one.written(tmp_path)
    tables, _ = tables_by_spark(spark, [str(tmp_path)], 1500)
    for one in made:
        assert_true(one, tables)


def followed(folder: Path, made: list[Scenario], **options: str) -> pa.Table:
    """Return the facts of captures that grow by random pieces between the batches of a stream that restarts."""
    print("seed", SEED)
    chance = random.Random(SEED)
    contents = {path: path.read_bytes() for one in made for path in one.written(folder)}
    ends = {
        path: sorted(chance.randrange(len(whole)) for _ in range(STEPS)) for path, whole in contents.items()
    }
    for path in contents:
        path.unlink()
    asked = {"path": str(folder), "rows": "facts", "targetPartitionBytes": "4000", **options}
    start: Any = None
    batches: list[pa.RecordBatch] = []
    for step in range(STEPS + 1):
        for path, whole in contents.items():
            path.write_bytes(whole if step == STEPS else whole[: ends[path][step]])
        # Spark first passes the last offset to a restarted reader.
        reader = UmpcapStreamReader(from_arrow_schema(PACKED), UmpcapOptions.of(asked))
        start = reader.initialOffset() if start is None else start
        reader.partitions(start, start)
        end = json.loads(json.dumps(reader.latestOffset()))
        batches += [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
        start = end
    return pa.Table.from_batches(batches, PACKED)


def test_live(tmp_path: Path) -> None:
    """A stream reads each packet once, wherever the files end when it looks."""
    made = scenarios()
    tables = tables_of(unpacked([followed(tmp_path, made)])[0])
    assert len(made) == len(SCENARIOS) >= 31
    for one in made:
        assert_true(one, tables)


def test_in_windows(tmp_path: Path) -> None:
    """The monitor's window over everything has the losses, gaps, retransmissions and copies of the truth."""
    made = scenarios()
    facts = followed(tmp_path / "captures", made, windowSeconds=str(WINDOW_NS // SECOND))
    watch = FindingWatch(tmp_path / "state", WINDOW_NS, late_ns=SECOND)
    watch.take(facts, 0)
    reported = {name: pl.DataFrame(table) for name, table in watch.finish().items()}
    assert not len(reported.get("duplicates", pl.DataFrame()))
    for one in made:
        expected = expected_rows(one)
        own = {
            name: reported[name].filter(publisher=one.publisher)
            for name in ("repairs", "gaps", "recovery_latency")
        }
        again = sorted(
            (point, sent, naks) for point, _, _, sent, _, naks, _, _ in expected["sessions"] if sent or naks
        )
        found = own["repairs"].select("point", "retransmissions", "naks").rows()
        assert sorted(found) == again, one.name
        assert own["recovery_latency"]["lost"].sum() == len(expected["losses"]), one.name
        assert own["gaps"]["missing"].sum() == sum(high - low + 1 for _, low, high in expected["gaps"]), (
            one.name
        )
        copies = reported["remarks"].filter(
            (pl.col("kind") == COPY) & pl.col("point").is_in([point.name for point in one.points])
        )
        assert sorted(copies.select("point", "packets").rows()) == expected["remarks"], one.name


def test_the_scenarios_end_within_the_window() -> None:
    """Otherwise the windows would be two."""
    assert START_NS // WINDOW_NS == (START_NS + 100 * SECOND) // WINDOW_NS
