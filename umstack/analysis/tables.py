"""The tables of a report, from facts: every analysis of docs/analysis.md by its name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from umstack.analysis import clients, clocks, losses, numbering, once, recoveries, stores, traffic
from umstack.analysis.incidents import incidents
from umstack.analysis.judged import Captured, Frames, Habits, Judged
from umstack.analysis.rare_rows import unicast_sessions
from umstack.analysis.suggestions import suggestions
from umstack.capture.reading.notes import with_count
from umstack.facts.facts import Facts
from umstack.facts.kinds import NOTE
from umstack.facts.points import points_in, renamed, short_names
from umstack.facts.row_pile import in_slices
from umstack.facts.sessions import renumbered, sessions_in, short_numbers

Tables = dict[str, pl.DataFrame]

_ORDER = (
    *("publisher", "session_id", "point", "from_point", "to_point", "receiver", "topic_index", "start_ns"),
    *("first_sqn", "sqn", "bucket", "option", "udp_bytes", "message_count", "from_ns", "from"),
    *("source_address", "destination_address", "kind", "status", "store", "store_port", "client"),
)
"""The columns by which a table is sorted, if it has them."""


def tables_of(facts: Facts, mtu: int = 1500) -> Tables:
    """Return all tables."""
    return _with_short_names(tables_of_part(facts, mtu))


def tables_of_part(facts: Facts, mtu: int = 1500, judged: Iterable[Frames] | None = None) -> Tables:
    """Return the tables of some of the sessions, for `together`: points have their whole names,
    sessions their numbers.

    `judged` are the frames of all slices (`Captured.judged`) in any order, if others made them from the facts' `rare`;
    the facts then have no such rows.
    """
    captured = Captured.of(facts)
    facts, everything, compared = captured.facts, captured.everything, captured.compared
    collected = Judged()
    for frames in captured.judged(Habits.of(captured.habits())) if judged is None else judged:
        collected.add(frames)
    if judged is not None:
        collected.losses.sort()
    covered = numbering.coverage(everything)
    found = traffic.sessions(facts, covered)
    rates, sizes = once.rates(facts), once.sizes(facts)
    made = {
        "topics": traffic.topics(facts),
        "sessions": found,
        **collected.tables(),
        "recoveries": recoveries.recoveries(facts),
        "stores": stores.stores(facts),
        "coverage": covered,
        "rates": rates,
        "datagram_sizes": sizes,
        "clients": clients.clients(facts),
        "ip_fragments": facts.fragments,
        "remarks": _written_out(facts.remarks),
        "incidents": incidents(collected.losses, found, everything),
        "gaps": numbering.gaps(everything, facts.runs),
        "rate_summary": traffic.rate_summary(rates),
        "bursts": traffic.bursts(rates),
        "duplicates": traffic.duplicates(covered),
        "datagram_fill": traffic.datagram_fill(sizes, mtu),
        "fill_histogram": traffic.fill_histogram(sizes, mtu),
        "latency": traffic.latency(everything, compared),
    }
    made["client_totals"] = clients.totals(made["clients"])
    made["lost_repairs"] = losses.lost_repairs(
        captured.slices, clocks.shifted(facts.counts, compared, ("first_ns", "last_ns")), made["latency"]
    )
    unicast = unicast_sessions(facts)
    steady = traffic.of_a_steady_clock(rates, captured.numbered.everything)
    made["suggestions"] = suggestions(collected.waits, made["incidents"], steady, unicast)
    return {name: _in_order(numbering.without_lives(table)) for name, table in made.items()}


def together(parts: Iterable[Mapping[str, pl.DataFrame]]) -> Tables:
    """Combine tables of parts, each with some of the sessions. A session must be in one part only."""
    rows = {name: [table] for name, table in tables_of(Facts()).items()}
    for part in parts:
        for name, table in part.items():
            rows[name].append(table)
    return _with_short_names({name: _in_order(pl.concat(tables)) for name, tables in rows.items()})


def _with_short_names(tables: Tables) -> Tables:
    names = short_names(points_in(tables.values()))
    numbers = short_numbers(sessions_in(tables.values()))
    return {name: renumbered(renamed(table, names), numbers) for name, table in tables.items()}


def _written_out(remarks: pl.DataFrame) -> pl.DataFrame:
    """Return remarks whose notes have their numbers in the text."""
    texts = [
        with_count(status, packets) if kind == NOTE else status
        for kind, status, packets in remarks.select("kind", "status", "packets").rows()
    ]
    return remarks.with_columns(pl.Series("status", texts, pl.String))


def _in_order(table: pl.DataFrame) -> pl.DataFrame:
    key = [name for name in _ORDER if name in table.columns]
    return table if _is_in_order(table.select(key)) else table.sort(key, maintain_order=True)


def _is_in_order(key: pl.DataFrame) -> bool:
    """Return true if rows are in ascending order. A table of losses mostly is, and sorting would hold all of it."""
    return all(part.equals(part.sort(part.columns)) for part in in_slices(key, overlap=1))
