"""The findings of time windows, made from each window's facts with the report's analyses and texts.

Earlier facts are taken into account: a retransmission depends on its NAK, a gap on the datagram before it, a burst on
the mean of its window and the one before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
import pyarrow as pa

from umstack.analysis import clients, losses, numbering, once, recoveries, stores, traffic
from umstack.analysis.clocks import Clocks, shifted
from umstack.analysis.losses import WINDOW, windowed
from umstack.analysis.numbering import Numbered
from umstack.analysis.rare_rows import Rare, unicast_sessions
from umstack.analysis.suggestions import Waits, suggestions
from umstack.facts.facts import Facts
from umstack.facts.kinds import SESSION
from umstack.monitor import windows
from umstack.report.findings import window_findings
from umstack.report.outputs import arrow
from umstack.report.summary import MOST_ROWS, Row, Summary, most_first, name_sessions

TRAFFIC, RECOVERY = "traffic", "recovery"
FINDINGS = "findings"
"""The table of finding texts; the other tables have the same names as in a report."""
TABLES = (
    *("repairs", "duplicates", "gaps", "rate_summary", "datagram_fill", "ip_fragments"),
    *("latency", "recovery_latency", "suggestions", "remarks", "topics", "lost_repairs"),
    *("recoveries", "stores", "clients", "client_totals"),
)
_SESSIONS = "sessions"
_KEY = ("point", *SESSION)
TopicNames = dict[tuple[str, int, int], str]
"""Topic names by publisher, session and topic index."""
MOMENT = pa.timestamp("us", "UTC")
_SENTENCES = pa.schema(
    [
        pa.field("from", MOMENT),
        pa.field("to", MOMENT),
        pa.field("topic", pa.string()),
        pa.field("severity", pa.string()),
        pa.field("text", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive windows, from the start of the first to the end of the last."""

    low_ns: int
    high_ns: int
    window_ns: int

    def holds(self, time: str) -> pl.Expr:
        """Return true for times within these windows."""
        return (pl.col(time) >= self.low_ns) & (pl.col(time) < self.high_ns)


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses in the windows (`losses.losses`) and their incidents."""

    lost: pl.DataFrame
    incidents: pl.DataFrame


def window_tables(
    kept: Mapping[int, Facts], whole: Numbered, rare: Rare, clocks: Clocks, judged: Losses | None, span: Span,
    mtu: int, names: TopicNames, endpoints: pl.DataFrame,
) -> dict[str, pa.Table]:  # fmt: skip
    """Return the nonempty tables of these windows, and their findings.

    `kept` contains the facts by window: these windows, earlier and later ones; `whole` merges all of them; `endpoints`
    contains the endpoints of all time.
    """
    of_window: dict[int, Facts] = {at: one for at, one in kept.items() if span.low_ns <= at < span.high_ns}
    parts: dict[str, list[pl.DataFrame]] = defaultdict(list)
    for at, facts in of_window.items():
        for name, table in _by_itself(facts, mtu, endpoints).items():
            parts[name].append(table.with_columns(pl.lit(at, pl.Int64).alias(WINDOW)))
    found = {name: pl.concat(tables) for name, tables in parts.items()}
    if not found:
        return {}
    found |= _judged_by_more(whole, rare, clocks, found[_SESSIONS], found["clients"], span)
    if judged is not None:
        found |= _recovered(of_window, judged, losses.asked(rare, losses.best_points([rare])), span)
    found["topics"] = _named(found["topics"], names)
    before = span.low_ns - span.window_ns
    spans = found.pop(_SESSIONS)
    if before in kept:
        covered = _no_coverage()
        earlier = traffic.sessions(kept[before], covered)
        spans = pl.concat([earlier.with_columns(pl.lit(before, pl.Int64).alias(WINDOW)), spans])
    sentences = _sentences(found, spans, span)
    reported = {name: _with_times(numbering.without_lives(table), span) for name, table in found.items()}
    reported[FINDINGS] = sentences
    return {name: table for name, table in reported.items() if len(table)}


def grown(kept: Mapping[int, Facts], window_ns: int, mtu: int) -> pa.Table:
    """Return the traffic of these windows so far."""
    parts = [
        windows.traffic(facts, mtu).with_columns(pl.lit(at, pl.Int64).alias(WINDOW))
        for at, facts in kept.items()
    ]
    if not parts:
        return pa.table({})
    span = Span(0, 0, window_ns)
    return _with_times(pl.concat(parts), span)


def _by_itself(facts: Facts, mtu: int, endpoints: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the tables that depend on the facts of one window alone."""
    return {
        TRAFFIC: windows.traffic(facts, mtu),
        RECOVERY: windows.recovery(facts),
        _SESSIONS: traffic.sessions(facts, _no_coverage()),
        "datagram_fill": traffic.datagram_fill(once.sizes(facts), mtu),
        "topics": traffic.topics(facts),
        "recoveries": recoveries.recoveries(facts, endpoints),
        "stores": stores.stores(facts),
        "rate_summary": traffic.rate_summary(once.rates(facts)),
        "clients": clients.clients(facts),
        "ip_fragments": facts.fragments,
        "remarks": facts.remarks,
    }


def _no_coverage() -> pl.DataFrame:
    return pl.DataFrame(schema=numbering.COVERAGE)


def _judged_by_more(
    whole: Numbered,
    rare: Rare,
    clocks: Clocks,
    sessions: pl.DataFrame,
    known_clients: pl.DataFrame,
    span: Span,
) -> dict[str, pl.DataFrame]:
    """Return the tables that depend on other windows, too; each row belongs to the window in which it was seen."""
    window_ns, everything = span.window_ns, whole.everything
    by = [*_KEY, WINDOW]
    again = numbering.copies(everything).filter(span.holds("time_ns"))
    counted = again.group_by(*_KEY, *windowed("time_ns", window_ns)).agg(copies=pl.len().cast(pl.Int64))
    # A datagram seen again in a later window counts there as a copy only.
    distinct = pl.max_horizontal(pl.col("datagrams") - pl.col("copies"), pl.lit(0, pl.Int64))
    twice = counted.join(sessions.select(*by, "datagrams"), by).with_columns(distinct=distinct)
    missing = pl.col("missing")
    missed = numbering.gaps(everything, whole.facts.runs).filter(span.holds("after_ns"))
    of_topic = pl.col("topic_index").is_not_null()
    of_clients = clients.missing_at_best(missed.filter(of_topic), windowed("after_ns", window_ns))
    ways = traffic.latency(everything if len(rare.repairs) else [], clocks)
    counts = shifted(whole.facts.counts, clocks, ("first_ns", "last_ns"))
    named_clients = clients.with_missing(known_clients, of_clients, [WINDOW])
    return {
        "clients": named_clients,
        "client_totals": clients.totals(named_clients, (WINDOW,)),
        "repairs": losses.repairs([rare], window_ns).filter(span.holds(WINDOW)),
        "latency": traffic.latency(everything, clocks, window_ns).filter(span.holds(WINDOW)),
        "lost_repairs": losses.lost_repairs([rare], counts, ways, window_ns).filter(span.holds(WINDOW)),
        "duplicates": twice.select(*_KEY, WINDOW, "datagrams", "distinct", "copies"),
        "gaps": missed.group_by(*_KEY, "receiver", "topic_index", *windowed("after_ns", window_ns)).agg(
            gaps=pl.len().cast(pl.Int64), missing=missing.sum(), longest=missing.max()
        ),
    }


def _recovered(
    of_window: Mapping[int, Facts], judged: Losses, asked: pl.DataFrame, span: Span
) -> dict[str, pl.DataFrame]:
    """Recovery latencies and suggestions, window by window."""
    waits, helping = [], []
    lost = judged.lost.with_columns(windowed("lost_ns", span.window_ns))
    happened = judged.incidents.with_columns(windowed("start_ns", span.window_ns))
    for (at,), of_it in lost.partition_by(WINDOW, as_dict=True).items():
        own = of_it.drop(WINDOW)
        waited = losses.recovery_latency([own])
        facts = of_window.get(at, Facts())
        unicast = unicast_sessions(facts)
        of_own = asked.join(own, [*SESSION, "receiver", "sqn"], "semi")
        incidents = happened.filter(pl.col(WINDOW) == at)
        own_waits = Waits()
        frames = Waits.of_slice(own, of_own)
        own_waits.add_losses(frames["waits"])
        own_waits.add_repeats(frames["repeats"])
        own_waits.add_retried(frames["retried"])
        helps = suggestions(own_waits, incidents, once.rates(facts), unicast)
        waits.append(waited.with_columns(pl.lit(at, pl.Int64).alias(WINDOW)))
        helping.append(helps.with_columns(pl.lit(at, pl.Int64).alias(WINDOW)))
    return {"recovery_latency": pl.concat(waits), "suggestions": pl.concat(helping)} if waits else {}


def _named(topics: pl.DataFrame, names: TopicNames) -> pl.DataFrame:
    keys = zip(*(topics[name].to_list() for name in (*SESSION, "topic_index")), strict=True)
    return topics.with_columns(pl.Series("topic", [names.get(key) for key in keys], pl.String))


def _with_times(table: pl.DataFrame, span: Span) -> pa.Table:
    """Replace the window's start in nanoseconds by the columns `from` and `to`."""
    begins = [begin // 1000 for begin in table[WINDOW].to_list()]
    ends = [begin + span.window_ns // 1000 for begin in begins]
    reported = arrow(table.drop(WINDOW)).add_column(0, "to", pa.array(ends, MOMENT))
    return reported.add_column(0, "from", pa.array(begins, MOMENT))


def _sentences(found: Mapping[str, pl.DataFrame], sessions: pl.DataFrame, span: Span) -> pa.Table:
    """Return the findings of every window, as in a report on that window alone."""
    windows_of: dict[int, Summary] = defaultdict(Summary)
    for name in TABLES:
        if name in found:
            for row in most_first(name, arrow(found[name])).to_pylist():
                rows_of_window = windows_of[row[WINDOW]].tables.setdefault(name, [])
                if len(rows_of_window) < MOST_ROWS:
                    rows_of_window.append(row)
    spans = _with_the_window_before(sessions.to_dicts(), span.window_ns)
    rows: list[Row] = []
    for begin_ns, summary in sorted(windows_of.items()):
        summary.tables[_SESSIONS] = spans.get(begin_ns, [])
        summary.tables["missing"] = _by_point(summary["gaps"])
        name_sessions(summary)
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
    """Return rows of `sessions` by window, with the time and bytes of the window before, so that a pause between bursts
    lowers the mean rate they are compared with."""
    known = {(row[WINDOW], *(row[name] for name in _KEY)): row for row in rows}
    found: dict[int, list[Row]] = defaultdict(list)
    for (begin_ns, *who), row in known.items():
        before = known.get((begin_ns - window_ns, *who))
        wider = dict(row)
        if before is not None:
            wider["seconds"] = (row["last_ns"] - before["first_ns"]) / traffic.NS_PER_SECOND
            wider["data_bytes"] = row["data_bytes"] + before["data_bytes"]
        found[begin_ns].append(wider)
    return found


def _by_point(rows: list[Row]) -> list[Row]:
    missing: dict[str, int] = defaultdict(int)
    for row in rows:
        # Gaps of LBT-TCP connections are reported with their receiver.
        if row["topic_index"] is None:
            missing[row["point"]] += row["missing"]
    return [{"point": point, "missing": number} for point, number in missing.items()]
