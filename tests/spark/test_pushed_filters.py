"""Filters that Spark pushes to the source of captures do not change the rows, and rejected packets are not
decoded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_capture_selection import write_capture

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual, StringContains

from umstack.capture.selection import VALUES_MAX, Selection
from umstack.spark import UmpcapDataSource
from umstack.spark.pushed_filters import push

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
START = 1_700_000_000_123_456_789
QUESTIONS = [
    f"time_ns > {START + 3_000_000}",
    f"time_ns BETWEEN {START} AND {START + 5_000_000} AND packet_type = 'DATA'",
    "timestamp >= TIMESTAMP'2023-11-14 22:13:20.130456Z' AND timestamp < TIMESTAMP'2023-11-14 22:13:20.135Z'",
    "timestamp = TIMESTAMP'2023-11-14 22:13:20.123458Z'",
    "session_id = 7",
    "session_id IN (3, 5, -1, 99999999999)",
    "session_id = -1",
    "packet_type IN ('NAK', 'STATUS', 'nothing')",
    "packet_type IS NOT NULL AND packet_type != 'DATA'",
    "destination_address = '224.10.10.10' AND session_id = 3",
    "destination_address = '224.010.10.10'",
    "destination_address IN ('10.0.0.1', 'ff05::e')",
    "session_id = 3 OR packet_type = 'NAK'",
    "time_ns IS NULL",
    "session_id IS NULL AND status LIKE '%ours%'",
    f"NOT (time_ns > {START + 3_000_000})",
    "status LIKE 'note: %'",
    "packet_type = 'DATA' OR status LIKE 'note: %'",
]


@pytest.fixture
def capture(tmp_path: Path) -> Path:
    """Packets of every type and several sessions, some truncated."""
    return write_capture(tmp_path / "capture.pcap")


@pytest.fixture
def source(spark: Any) -> Any:
    """Return the Spark session, with the data source registered."""
    spark.dataSource.register(UmpcapDataSource)
    return spark


@pytest.fixture
def setting(source: Any) -> Any:
    """Return a function that sets whether Spark pushes filters; restore the setting at the end."""
    before = source.conf.get(PUSHDOWN)
    yield lambda value: source.conf.set(PUSHDOWN, str(value).lower())
    source.conf.set(PUSHDOWN, before)


def test_rows_are_the_same_with_and_without_pushdown(source: Any, setting: Any, capture: Path) -> None:
    """Every query has the same rows, with notes among them; a session without the setting is not refused."""
    folder = capture.parent
    (folder / "cut.pcap").write_bytes(capture.read_bytes()[:-3])

    def load() -> Any:
        return source.read.format("umpcap").option("notes", "true").load(str(folder))

    def ask(rows: Any, question: str) -> list[Any]:
        chosen = rows.where(question).select(
            "capture_file", "position", "timestamp", "time_ns", "status", "session_id"
        )
        return sorted(map(repr, chosen.collect()))

    setting(False)
    every = source.createDataFrame(load().toArrow())  # rows that Spark filters itself
    setting(True)
    answers = [ask(load(), question) for question in QUESTIONS]
    for question, answer in zip(QUESTIONS, answers, strict=True):
        assert answer == ask(every, question), question
    assert sum(map(bool, answers)) > len(QUESTIONS) - 5


def test_the_plan_shows_pushed_filters(source: Any, setting: Any, capture: Path) -> None:
    """Spark does not apply the filters that the decoder applies."""
    setting(True)
    rows = source.read.format("umpcap").load(str(capture)).where("session_id = 7 AND udp_bytes > 3")
    plan = rows._jdf.queryExecution().executedPlan().toString()
    filters = [line for line in plan.splitlines() if "Filter" in line and "session_id" in line]
    assert "udp_bytes" in plan
    assert not any("session_id#" in line and "= 7" in line for line in filters), plan


def test_supported_filters_are_taken_and_others_returned() -> None:
    """Only columns, comparisons and values that the decoder supports are accepted; the rest is returned
    unchanged.
    """
    exact = [
        EqualTo(("session_id",), 7),
        In(("packet_type",), ("NAK", "NCF")),
        GreaterThan(("time_ns",), 10),
        LessThanOrEqual(("time_ns",), 20),
        IsNotNull(("time_ns",)),
    ]
    left = [
        EqualTo(("session_id",), "7"),
        EqualTo(("messages", "topic_index"), 1),
        EqualTo(("udp_bytes",), 100),
        StringContains(("packet_type",), "A"),
        EqualTo(("destination_address",), "ff05::e"),
        IsNotNull(("session_id",)),
        In(("session_id",), tuple(range(100, 101 + VALUES_MAX))),
    ]
    selection, returned = push(Selection(), [*left[:-1], *exact])
    assert returned == left[:-1]
    assert selection == Selection(11, 20, True, frozenset({"NAK", "NCF"}), frozenset({7}))
    assert push(Selection(), [left[-1]]) == (Selection(), [left[-1]])
