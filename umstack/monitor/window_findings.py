"""What finished windows of time hold besides traffic, incidents and storms: the report's analyses and its findings.

All windows that end with a batch are analysed at once, told apart by their beginning. What is judged is judged by what
was captured before as well: a repair by the NAK it answers, a gap by the datagram before it, a burst by the mean of its
window and the one before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.datagram_fill import datagram_fill, sizes
from umstack.analysis.ip_fragments import ip_fragments
from umstack.analysis.latency import times_taken, transits
from umstack.analysis.losses import coverage, gaps
from umstack.analysis.observations import (
    DATA,
    NAK,
    NCF,
    NS_PER_SECOND,
    RETRANSMISSION,
    SESSION,
    WINDOW,
    in_windows,
    of_sessions,
)
from umstack.analysis.rates import rate_summary, rates
from umstack.analysis.recovery import recovery_latency
from umstack.analysis.remarks import is_remarkable, remarks
from umstack.analysis.repairs import copies, repairs
from umstack.analysis.sessions import sessions, topics_of
from umstack.analysis.suggestions import suggestions
from umstack.report.findings import window_findings
from umstack.report.summary import MOST_ROWS, Row, Summary, most_first

FINDINGS = "findings"
"""The table of sentences; the others have the names they have in a report."""
TABLES = (
    *("repairs", "duplicates", "gaps", "rate_summary", "datagram_fill", "ip_fragments"),
    *("latency", "recovery_latency", "suggestions", "remarks", "topics"),
)
_SESSIONS = "sessions"
TopicNames = dict[tuple[str, int, int], str]
"""By publisher, session and index."""
_BY = (WINDOW,)
_SENTENCES = pa.schema(
    [
        pa.field("from", pa.timestamp("us", "UTC")),
        pa.field("to", pa.timestamp("us", "UTC")),
        pa.field("topic", pa.string()),
        pa.field("severity", pa.string()),
        pa.field("text", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Span:
    """Windows that follow each other: from the beginning of the first to the end of the last."""

    low_ns: int
    high_ns: int
    window_ns: int

    def holds(self, time: str = "time_ns", before: int = 0) -> Column:
        """Whether a time is in these windows, or in so many before them."""
        return (F.col(time) >= self.low_ns - before * self.window_ns) & (F.col(time) < self.high_ns)


@dataclass(frozen=True, slots=True)
class Losses:
    """What `losses` gave for the windows, and the incidents these losses are."""

    lost: DataFrame
    incidents: DataFrame


@dataclass(frozen=True, slots=True)
class _Holds:
    """What there is in the windows: what there is not needs no analysis."""

    points: int
    again: int
    asked: int
    fragments: int
    remarks: int


def window_tables(
    kept: DataFrame, losses: Losses | None, span: Span, mtu: int, names: TopicNames
) -> dict[str, pa.Table]:
    """The tables of these windows that have rows, and their findings.

    `kept` is what `label` gave with numbers that do not wrap: the windows, and what came before them and after.
    """
    holds = _holds(kept, span)
    with persisted(rates(of_sessions(kept).where(span.holds()))) as rated:
        found = {name: frame.toArrow() for name, frame in _frames(kept, rated, span, mtu, holds)}
        if losses is not None:
            found |= _recovered(rated, losses, span)
        if len(found[_SESSIONS]):
            found |= _counted_once(kept, found[_SESSIONS], span)
    found["topics"] = _named(found["topics"], names)
    sentences = _sentences(found, span)
    told = {name: _told(table, span) for name, table in found.items() if name in TABLES}
    if len(sentences):
        told[FINDINGS] = sentences
    return {name: table for name, table in told.items() if len(table)}


def _holds(kept: DataFrame, span: Span) -> _Holds:
    counted = kept.where(span.holds()).agg(
        F.count_distinct(F.when(F.col("kind") == DATA, F.col("point"))).alias("points"),
        F.count_if(F.col("kind") == RETRANSMISSION).alias("again"),
        F.count_if(F.col("kind").isin(NAK, NCF)).alias("asked"),
        F.count_if("ip_fragment").alias("fragments"),
        F.count_if(is_remarkable()).alias("remarks"),
    )
    [row] = counted.collect()
    return _Holds(**row.asDict())


@contextmanager
def persisted(frame: DataFrame) -> Iterator[DataFrame]:
    """A frame that is kept at hand for as long as the block lasts."""
    kept = frame.persist()
    try:
        yield kept
    finally:
        kept.unpersist()


def _frames(
    kept: DataFrame, rated: DataFrame, span: Span, mtu: int, holds: _Holds
) -> Iterator[tuple[str, DataFrame]]:
    """The analyses of windows by themselves."""
    window_ns = span.window_ns
    ours = in_windows(of_sessions(kept), window_ns)
    inside = ours.where(span.holds())
    rated = in_windows(rated, window_ns, "start_ns")
    yield _SESSIONS, sessions(ours.where(span.holds(before=1)), _BY)
    yield "datagram_fill", datagram_fill(sizes(inside, _BY), mtu, _BY)
    yield "topics", topics_of(inside, _BY)
    yield "rate_summary", rate_summary(rated, by=_BY)
    if holds.again or holds.asked:
        yield "repairs", repairs(ours, _BY).where(span.holds(WINDOW))
    if holds.points > 1:
        seen_twice = in_windows(transits(ours), window_ns, "from_ns").where(span.holds("from_ns"))
        yield "latency", times_taken(seen_twice, _BY)
    everything = in_windows(kept.where(span.holds()), window_ns)
    if holds.fragments:
        yield "ip_fragments", ip_fragments(everything, _BY)
    if holds.remarks:
        yield "remarks", remarks(everything, _BY)


def _recovered(rated: DataFrame, losses: Losses, span: Span) -> dict[str, pa.Table]:
    """How long losses lasted, and what would have helped: of rows at hand, as the plan of it all takes long to make."""
    spark = rated.sparkSession
    lost = in_windows(losses.lost, span.window_ns, "lost_ns")
    waits = recovery_latency(lost, _BY).toArrow()
    happened = in_windows(losses.incidents, span.window_ns, "start_ns").toArrow()
    suggested = suggestions(
        lost,
        spark.createDataFrame(happened),
        spark.createDataFrame(waits),
        in_windows(rated, span.window_ns, "start_ns"),
        _BY,
    )
    return {"recovery_latency": waits, "suggestions": suggested.toArrow()}


def _counted_once(kept: DataFrame, known_sessions: pa.Table, span: Span) -> dict[str, pa.Table]:
    """What was captured twice, and what was not: each in the window in which that was seen."""
    spark = kept.sparkSession
    ours = of_sessions(kept)
    covered = coverage(ours).toArrow()
    key = ["point", *SESSION, WINDOW]
    found = {}
    if any(row["datagrams"] > row["distinct"] for row in covered.to_pylist()):
        sent = spark.createDataFrame(known_sessions.select([*key, "datagrams"]))
        twice = copies(ours, spark.createDataFrame(covered)).where(span.holds())
        counted = in_windows(twice, span.window_ns).groupBy(*key).agg(F.sum("copies").alias("copies"))
        # Of what is seen again in a later window, that one has the copy alone.
        distinct = F.greatest(F.col("datagrams") - F.col("copies"), F.lit(0)).alias("distinct")
        found["duplicates"] = counted.join(sent, key).select(*key, "datagrams", distinct, "copies").toArrow()
    if _has_gaps(covered):
        missed = gaps(ours, spark.createDataFrame(covered)).where(span.holds("after_ns"))
        found["gaps"] = (
            in_windows(missed, span.window_ns, "after_ns")
            .groupBy(*key)
            .agg(
                F.count("*").alias("gaps"),
                F.sum("missing").alias("missing"),
                F.max("missing").alias("longest"),
            )
            .toArrow()
        )
    return found


def _has_gaps(covered: pa.Table) -> bool:
    """Whether a number was not seen inside a bucket, or between two of them."""
    order = [(name, "ascending") for name in ("point", *SESSION, "bucket")]
    highs: dict[tuple[Any, ...], int] = {}
    for row in covered.sort_by(order).to_pylist():
        key = tuple(row[name] for name in ("point", *SESSION))
        if row["missing"] > 0 or row["low"] > highs.get(key, row["low"]) + 1:
            return True
        highs[key] = row["high"]
    return False


def _named(topics: pa.Table, names: TopicNames) -> pa.Table:
    keys = zip(*(topics[name].to_pylist() for name in (*SESSION, "topic_index")), strict=True)
    column = pa.array([names.get(key) for key in keys], pa.string())
    return topics.set_column(topics.column_names.index("topic"), "topic", column)


def _told(table: pa.Table, span: Span) -> pa.Table:
    """With the columns by which windows are known, in place of their beginning in nanoseconds."""
    begins = [begin // 1000 for begin in table[WINDOW].to_pylist()]
    ends = [begin + span.window_ns // 1000 for begin in begins]
    moment = _SENTENCES.field("from").type
    told = table.drop_columns(WINDOW).add_column(0, "to", pa.array(ends, moment))
    return told.add_column(0, "from", pa.array(begins, moment))


def _sentences(found: dict[str, pa.Table], span: Span) -> pa.Table:
    """The findings of every window, as a report of it alone would have them."""
    windows: dict[int, Summary] = defaultdict(Summary)
    for name in TABLES:
        if name in found:
            for row in most_first(name, found[name]).to_pylist():
                rows_of_window = windows[row[WINDOW]].tables.setdefault(name, [])
                if len(rows_of_window) < MOST_ROWS:
                    rows_of_window.append(row)
    spans = _with_the_window_before(found[_SESSIONS].to_pylist(), span.window_ns)
    rows: list[Row] = []
    for begin_ns, summary in sorted(windows.items()):
        summary.tables[_SESSIONS] = spans.get(begin_ns, [])
        summary.tables["missing"] = _by_point(summary["gaps"])
        rows += [
            {
                "from": begin_ns // 1000,
                "to": (begin_ns + span.window_ns) // 1000,
                "topic": one.topic,
                "severity": one.severity.name.lower(),
                "text": one.text,
            }
            for one in window_findings(summary)
        ]
    return pa.Table.from_pylist(rows, _SENTENCES)


def _with_the_window_before(rows: list[Row], window_ns: int) -> dict[int, list[Row]]:
    """Rows of `sessions` by window, with the time and the bytes of the window before: a session that is idle for
    longer than a burst is not the less bursty for it."""
    key = ("point", *SESSION)
    known = {(row[WINDOW], *(row[name] for name in key)): row for row in rows}
    found: dict[int, list[Row]] = defaultdict(list)
    for (begin_ns, *who), row in known.items():
        before = known.get((begin_ns - window_ns, *who))
        wider = dict(row)
        if before is not None:
            wider["seconds"] = (row["last_ns"] - before["first_ns"]) / NS_PER_SECOND
            wider["data_bytes"] = row["data_bytes"] + before["data_bytes"]
        found[begin_ns].append(wider)
    return found


def _by_point(rows: list[Row]) -> list[Row]:
    missing: dict[str, int] = defaultdict(int)
    for row in rows:
        missing[row["point"]] += row["missing"]
    return [{"point": point, "missing": number} for point, number in missing.items()]
