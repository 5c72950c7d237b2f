"""Silver and gold tables of one session, from all its facts of consecutive days.

A session is analysed as a whole over the days on which it was active without a day between them: a loss before midnight
and its repair after it belong together. Its rows are then placed by day. Facts of a new day change the tables of the
days next to it, not those of earlier periods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, timedelta

import polars as pl
import pyarrow as pa

from umstack.analysis import losses, numbering, traffic
from umstack.analysis.tables import Tables, tables_of_part
from umstack.facts.facts import Facts
from umstack.facts.kinds import SESSION
from umstack.facts.points import points_in, renamed, short_names
from umstack.facts.sessions import parts_of, renumbered
from umstack.pipeline.layout import DAY_NS, GOLD, SILVER, Layout, Partition, Settings, session_name
from umstack.pipeline.parts import add_batch, facts_of_day, replace_rows
from umstack.pipeline.table_schema import schemas
from umstack.report.findings import findings_of_part
from umstack.report.outputs import arrow, summarised

_TIMES = ("lost_ns", "start_ns", "after_ns", "low_ns", "first_ns")
"""The columns that a row's day is taken from, if its table has one of them."""
_TOPIC = (*SESSION, "topic_index")


def periods(days: Iterable[date]) -> list[list[date]]:
    """Return days in runs without a day between them."""
    found: list[list[date]] = []
    for day in sorted(days):
        if found and day - found[-1][-1] == timedelta(days=1):
            found[-1].append(day)
        else:
            found.append([day])
    return found


def take_batch(
    layout: Layout, settings: Settings, key: tuple[str, int], batch: int, rows: pa.Table
) -> list[Partition]:
    """Add the packed facts of a batch to a session and derive its tables again; return the partitions of those."""
    session = session_name(*key)
    with layout.session_locked(session):
        new = add_batch(layout, session, batch, rows)
        return _derive(
            layout, settings, key, [one for one in periods(layout.days(session)) if new & set(one)]
        )


def derive_session(layout: Layout, settings: Settings, key: tuple[str, int]) -> list[Partition]:
    """Derive all tables of a session again; return their partitions."""
    session = session_name(*key)
    with layout.session_locked(session):
        return _derive(layout, settings, key, periods(layout.days(session)))


def _derive(
    layout: Layout, settings: Settings, key: tuple[str, int], wanted: list[list[date]]
) -> list[Partition]:
    session = session_name(*key)
    for days in wanted:
        by_day = {day: facts_of_day(layout, session, day, compacts=True) for day in days}
        for layer, name, day, rows in session_rows(key, by_day, settings.mtu):
            file = layout.partition(layer, name, day, session) / "rows.parquet"
            if len(rows):
                replace_rows(file, arrow(rows).cast(schemas()[layer][name]))
            else:
                file.unlink(missing_ok=True)
    return [(day, session) for days in wanted for day in days]


def session_rows(
    key: tuple[str, int], by_day: Mapping[date, Facts], mtu: int
) -> Iterator[tuple[str, str, date, pl.DataFrame]]:
    """Yield layer, table, day and rows of everything derived from the facts of a session; without rows, too.

    The rows have the session id. Sessions of one id differ by their partition.
    """
    shown = {key: parts_of(key[1])[0]}
    for layer, name, day, rows in _session_rows(key, by_day, mtu):
        yield layer, name, day, renumbered(rows, shown)


def _session_rows(
    key: tuple[str, int], by_day: Mapping[date, Facts], mtu: int
) -> Iterator[tuple[str, str, date, pl.DataFrame]]:
    days = sorted(by_day)
    tables = tables_of_part(Facts.merged(by_day.values()), mtu)
    for name, table in tables.items():
        for day, rows in _by_day(table, days):
            yield SILVER, name, day, rows
    for name, gold in _rollups(tables, by_day).items():
        for day in days:
            yield GOLD, name, day, gold.filter(pl.col("date") == day).drop("date")
    found = _findings(key, tables)
    for day in days:
        yield GOLD, "findings", day, found if day == days[0] else found.clear()


def _by_day(table: pl.DataFrame, days: list[date]) -> Iterator[tuple[date, pl.DataFrame]]:
    time = next((name for name in _TIMES if name in table.columns), None)
    if time is None:
        for day in days:
            yield day, table if day == days[0] else table.clear()
        return
    placed = table.with_columns(date=_placed(time, days))
    for day in days:
        yield day, placed.filter(pl.col("date") == day).drop("date")


def _placed(time: str, days: list[date]) -> pl.Expr:
    """Return the day of a time. A time corrected by the offset of a clock may be of another day than its packet."""
    day = pl.from_epoch(pl.col(time) // DAY_NS, time_unit="d")
    return day.clip(days[0], days[-1]).fill_null(days[0])


def _rollups(tables: Tables, by_day: Mapping[date, Facts]) -> dict[str, pl.DataFrame]:
    """Return the rollups with their day."""
    lost = tables["losses"].with_columns(date=_placed("lost_ns", sorted(by_day)))
    unrepaired = pl.col("repaired_ns").is_null().sum().cast(pl.Int64)
    many = pl.len().cast(pl.Int64)
    of_session = lost.group_by("date", *SESSION).agg(lost=many, unrepaired=unrepaired)
    receivers = (
        lost.with_columns(took=losses.request_ns())
        .group_by("date", *SESSION, "receiver")
        .agg(
            pl.col("naks").sum(),
            *losses.percentiles(pl.col("took"), "request"),
            lost=many,
            repaired=pl.col("repaired_ns").count().cast(pl.Int64),
            unrepaired=unrepaired,
        )
    )
    sent = _of_days(by_day, _at_best_point)
    topics = _of_days(by_day, traffic.topics)
    known = tables["topics"].select(*_TOPIC, name="topic")
    topics = topics.join(known, list(_TOPIC), "left", nulls_equal=True)
    topics = topics.with_columns(topic=pl.coalesce("topic", "name"))
    zero = [pl.col(name).fill_null(0) for name in ("lost", "unrepaired")]
    losing = ["date", *SESSION]
    sessions = sent.join(of_session, losing, "left").with_columns(zero)
    topics = topics.join(of_session, losing, "left").with_columns(zero)
    topics = topics.rename({"lost": "session_lost", "unrepaired": "session_unrepaired"})
    made = {"session_days": sessions, "topic_days": topics, "receiver_days": receivers}
    keys: dict[str, tuple[str, ...]] = {
        "session_days": (),
        "topic_days": ("topic_index",),
        "receiver_days": ("receiver",),
    }
    return {
        # The order of groups differs from run to run.
        name: table.select("date", *schemas()[GOLD][name].names).sort("date", *SESSION, *keys[name])
        for name, table in made.items()
    }


def _at_best_point(facts: Facts) -> pl.DataFrame:
    """Return the traffic of each session at the point that saw most of it."""
    seen = traffic.sessions(facts, pl.DataFrame(schema=numbering.COVERAGE))
    ordered = seen.sort("datagrams", "messages", "point", descending=[True, True, False])
    return ordered.unique(list(SESSION), keep="first", maintain_order=True)


def _of_days(by_day: Mapping[date, Facts], make: Callable[[Facts], pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(make(facts).with_columns(date=pl.lit(day)) for day, facts in sorted(by_day.items()))


def _findings(key: tuple[str, int], tables: Tables) -> pl.DataFrame:
    """Return the findings on a session, with the shortest names of its points of capture."""
    names = short_names(points_in(tables.values()))
    summary = summarised({name: renamed(table, names) for name, table in tables.items()}, [])
    found = enumerate(findings_of_part(summary))
    rows = [(*key, rank, one.topic, one.severity.name.lower(), one.text) for rank, one in found]
    columns = pl.from_arrow(schemas()[GOLD]["findings"].empty_table())
    assert isinstance(columns, pl.DataFrame)
    return pl.DataFrame(rows, columns.schema, orient="row")
