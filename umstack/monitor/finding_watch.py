"""Findings in growing captures, by the same functions as those of a report: loss incidents and NAK storms when they
end, everything else by time windows.

A batch contains the facts captured since the previous one, by windows. They are stored beside the query's checkpoint,
one file per batch, until all of them are reported and no unreported finding depends on them. An incident is complete
when the maximum quiet time has passed without another loss, on the capture's own clock. The watermark is the time of
the latest packet minus the allowed lateness. If a NAK requests a number whose first transmission is no longer stored,
the loss is assumed to be reported already; in a session without any captured first transmission, it is a new loss.

An incident or a storm that lasts longer than a window is reported window by window, as `ongoing`, so that the stored
facts stay bounded. The time up to which each receiver was reported is stored. A window is reported
(umstack.monitor.window_findings) when its incidents are complete; later arrivals for it are ignored. All of this state
belongs to its batch: a batch that is repeated after a restart finds the state of the previous one and reports the same.

One file, because the state of a batch, and what is reported from it, change together.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from umstack.analysis.clocks import Clocks, on_one_clock
from umstack.analysis.incidents import Thresholds, incidents
from umstack.analysis.losses import STORM_NS, best_points, losses, nak_storms
from umstack.analysis.numbering import Numbered, without_lives
from umstack.analysis.rare_rows import Rare, RareSlices
from umstack.capture.reading.notes import with_count
from umstack.facts.facts import Facts
from umstack.facts.kinds import DATA, NAK, NCF, NOTE, RETRANSMISSION, SESSION, SESSION_MESSAGE
from umstack.facts.packed import unpacked
from umstack.facts.points import short_names
from umstack.facts.sessions import Receiver, short_numbers, short_receivers
from umstack.monitor.window_findings import MOMENT, Losses, Span, TopicNames, grown, window_tables
from umstack.report.outputs import arrow

INCIDENTS, STORMS = "incidents", "nak_storms"

_JUDGED_KINDS = (DATA, RETRANSMISSION, NAK, NCF, SESSION_MESSAGE)
"""The kinds of packets that show losses."""
_EVERYBODY = ""
"""Stands for all receivers of a storm, and for the unknown receiver of a loss."""
_EVER_NS = 2**62
_NEVER_NS = -1
_SESSION_TYPES = {"publisher": pl.String, "session_id": pl.Int64}

SessionKey = tuple[str, int]
Reported = dict[tuple[str, int, str], int]
Kept = dict[int, Facts]
"""Facts by window."""


@dataclass(slots=True)
class _State:
    """The state that a batch leaves for the next one."""

    latest_ns: int = 0
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The stored files of facts: name to the start of its first window and its last time."""
    began: dict[SessionKey, int] = field(default_factory=dict)
    """Capture time of the first packet of each session."""
    sent: set[SessionKey] = field(default_factory=set)
    """Sessions with captured first transmissions, not only packets of receivers."""
    incidents: Reported = field(default_factory=dict)
    """Time up to which the losses of each receiver were reported."""
    storms: Reported = field(default_factory=dict)
    windows_ns: int = 0
    """Time up to which windows were reported; 0 before the first one."""
    oldest_ns: int = 0
    """Start of the oldest stored window."""

    @classmethod
    def load(cls, path: Path) -> _State:
        """Read a state written by `save`."""
        stored = json.loads(path.read_text())
        return cls(
            stored["latest_ns"],
            {name: (low, high) for name, low, high in stored["parts"]},
            {(publisher, session): at for publisher, session, at in stored["began"]},
            {(publisher, session) for publisher, session in stored["sent"]},
            {(publisher, session, receiver): at for publisher, session, receiver, at in stored["incidents"]},
            {(publisher, session, receiver): at for publisher, session, receiver, at in stored["storms"]},
            stored["windows_ns"],
            stored["oldest_ns"],
        )

    def save(self, path: Path) -> None:
        """Write the state atomically."""
        rows = {
            name: [[*key, value] for key, value in getattr(self, name).items()]
            for name in ("began", "incidents", "storms")
        }
        parts = [[name, *span] for name, span in self.parts.items()]
        times = {name: getattr(self, name) for name in ("latest_ns", "windows_ns", "oldest_ns")}
        stored = {**times, "parts": parts, "sent": sorted(self.sent), **rows}
        _store(path, stored)


def _store(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    written = path.with_suffix(".part")
    written.write_text(json.dumps(value))
    written.replace(path)


@dataclass(frozen=True, slots=True)
class Taken:
    """The rows to report after a batch."""

    tables: dict[str, pa.Table]
    """Completed findings, each row once."""
    traffic: pa.Table
    """The traffic so far of the windows in the batch."""
    notes: list[tuple[str, str]]
    """Notes on data that captures lack: point and text."""


@dataclass(slots=True)
class FindingWatch:
    """Watches one stream of facts by windows of `window_ns`. It owns `folder`."""

    folder: Path
    window_ns: int
    late_ns: int
    mtu: int = 1500
    thresholds: Thresholds = field(default_factory=Thresholds)
    _memory: tuple[int, Kept] | None = None
    """The number of the last batch, and the facts stored with it."""

    def identity(self) -> str:
        """Return a unique name of this watch, valid as long as its folder exists."""
        path = self.folder / "identity"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(uuid4().hex[:8])
        return path.read_text()

    def take(self, batch: pa.Table, number: int) -> Taken:
        """Store a batch of packed facts; return the rows to report."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state, before = self._before(number)
        kept = self._remembered(state, before)
        self._forget(state, kept)
        fresh = self._with_short_names(unpacked([batch]))
        notes = _notes(fresh.get(0))
        fresh.pop(0, None)
        reported_until_ns = state.windows_ns
        reported = self._take_in(batch, fresh, number, state, kept)
        state.save(self._state_file(number))
        self._memory = (number, kept)
        growing = {at: kept[at] for at in fresh if at >= reported_until_ns}
        return Taken(reported, grown(growing, self.window_ns, self.mtu), notes)

    def finish(self) -> dict[str, pa.Table]:
        """Return the rows to report at the end of the input: incidents and windows that are still open."""
        states = sorted(self.folder.glob("state-*.json"))
        if not states:
            return {}
        number = _number(states[-1])
        state = _State.load(states[-1])
        kept = self._remembered(state, number)
        reported = self._judge(kept, state, _EVER_NS)
        state.save(self._state_file(number))
        self._memory = (number, kept)
        return reported

    def open_ns(self) -> int | None:
        """Return the start of the first window that is not reported; None if there is none."""
        states = sorted(self.folder.glob("state-*.json"))
        state = _State.load(states[-1]) if states else _State()
        if not state.parts or state.latest_ns < state.windows_ns:
            return None
        return state.windows_ns or min(first_ns for first_ns, _ in state.parts.values())

    def _take_in(
        self, batch: pa.Table, fresh: Kept, number: int, state: _State, kept: Kept
    ) -> dict[str, pa.Table]:
        if not fresh:
            return {}
        self._keep(batch, fresh, number, state)
        for at, facts in fresh.items():
            kept[at] = Facts.merged([kept[at], facts]) if at in kept else facts
        return self._judge(kept, state, state.latest_ns - self.late_ns)

    def _judge(self, kept: Kept, state: _State, watermark_ns: int) -> dict[str, pa.Table]:
        """Return the rows to report from the stored facts."""
        if not kept:
            return {}
        whole = Numbered.of(Facts.merged(kept.values()))
        everything, slices, clocks = on_one_clock(whole.everything, RareSlices.of(whole.facts, whole.known))
        rows, whole = slices.whole(), replace(whole, everything=everything)
        sessions = _sessions(whole)
        for key, row in sessions.items():
            state.began[key] = min(state.began.get(key, row.first_ns), row.first_ns)
            if row.low is not None:
                state.sent.add(key)
        reported: dict[str, pa.Table | None] = {}
        lost = losses([rows], whole.everything) if len(rows.naks) or len(rows.repairs) else None
        if lost is not None:
            reported[INCIDENTS] = self._incidents(whole, lost, sessions, state, watermark_ns)
        reported |= self._windows(kept, whole, rows, clocks, lost, sessions, state, watermark_ns)
        # A re-NAK for a loss that was reported long ago can still be part of a storm.
        reported[STORMS] = self._storms(rows, state, watermark_ns)
        return {kind: table for kind, table in reported.items() if table is not None}

    @property
    def _settled_ns(self) -> int:
        """Time after its last loss or NAK when an incident or a storm is complete."""
        return max(self.thresholds.quiet_ns, self.thresholds.pause_ns, 2 * STORM_NS)

    def _state_file(self, number: int) -> Path:
        return self.folder / f"state-{number:012d}.json"

    def _before(self, number: int) -> tuple[_State, int]:
        """Return the previous batch's state and number; an empty state and -1 for the first batch."""
        earlier = sorted(path for path in self.folder.glob("state-*.json") if path < self._state_file(number))
        for path in earlier[:-1]:
            path.unlink()
        return (_State.load(earlier[-1]), _number(earlier[-1])) if earlier else (_State(), -1)

    def _remembered(self, state: _State, number: int) -> Kept:
        """Return the facts stored with a batch, from memory or, after a restart, from its files."""
        if self._memory is not None and self._memory[0] == number:
            return self._memory[1]
        found = unpacked(pq.read_table(self.folder / name) for name in state.parts)
        kept = {at: facts for at, facts in found.items() if at and at >= state.oldest_ns}
        return self._with_short_names(kept)

    def _with_short_names(self, found: Kept) -> Kept:
        """Return facts whose points, sessions and receivers have short names, which they keep, also after a restart."""
        path = self.folder / "points.json"
        known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        names = short_names({point for facts in found.values() for point in facts.points()}, known)
        if names != known:
            _store(path, names)
        numbers = self._short_numbers({session for facts in found.values() for session in facts.sessions()})
        receivers = self._short_receivers({one for facts in found.values() for one in facts.receivers()})
        return {at: facts.with_receivers(receivers).renamed(names, numbers) for at, facts in found.items()}

    def _short_numbers(self, sessions: set[SessionKey]) -> dict[SessionKey, int]:
        path = self.folder / "sessions.json"
        stored = json.loads(path.read_text()) if path.exists() else []
        known: dict[SessionKey, int] = {(publisher, number): shown for publisher, number, shown in stored}
        numbers = short_numbers(sorted(sessions), known)
        if numbers != known:
            _store(path, [[*session, shown] for session, shown in numbers.items()])
        return numbers

    def _short_receivers(self, receivers: set[Receiver]) -> dict[Receiver, str]:
        path = self.folder / "receivers.json"
        stored = json.loads(path.read_text()) if path.exists() else []
        known: dict[Receiver, str] = {
            (publisher, number, end): shown for publisher, number, end, shown in stored
        }
        names = short_receivers(sorted(receivers), known)
        if names != known:
            _store(path, [[*receiver, shown] for receiver, shown in names.items()])
        return names

    def _forget(self, state: _State, kept: Kept) -> None:
        """Drop facts too old for unreported findings and for the windows that these depend on."""
        oldest_ns = state.latest_ns - self.late_ns - 2 * self.window_ns - self._settled_ns
        state.oldest_ns = max(state.oldest_ns, oldest_ns // self.window_ns * self.window_ns)
        state.parts = {name: span for name, span in state.parts.items() if span[1] >= state.oldest_ns}
        for left in self.folder.glob("facts-*"):
            if left.name not in state.parts:
                left.unlink()
        for at in [at for at in kept if at < state.oldest_ns]:
            del kept[at]
        first_ns = min(kept, default=_EVER_NS)
        for reported in (state.incidents, state.storms):
            for key in [key for key, until_ns in reported.items() if until_ns < first_ns]:
                del reported[key]

    def _keep(self, batch: pa.Table, fresh: Kept, number: int, state: _State) -> None:
        """Write the facts of a batch, replacing those of a failed attempt."""
        name = f"facts-{number:012d}.parquet"
        hidden = self.folder / f".{name}"
        pq.write_table(batch, hidden, compression="none")
        hidden.replace(self.folder / name)
        last_ns = max(max(at, *_last_times(facts)) for at, facts in fresh.items())
        state.parts[name] = (min(fresh), last_ns)
        state.latest_ns = max(state.latest_ns, last_ns)

    def _incidents(
        self,
        whole: Numbered,
        lost: pl.DataFrame,
        sessions: dict[SessionKey, _Session],
        state: _State,
        watermark_ns: int,
    ) -> pa.Table | None:
        who = pl.coalesce("receiver", pl.lit(_EVERYBODY))
        judged = self._judged(
            whole, _not_reported(lost, who, "lost_ns", state.incidents, watermark_ns), sessions, state
        )
        return None if judged is None else self._to_report(judged.incidents, state.incidents, watermark_ns)

    def _judged(
        self, whole: Numbered, pending: pl.DataFrame, sessions: dict[SessionKey, _Session], state: _State
    ) -> Losses | None:
        """Return the confirmed losses and their incidents; None without any."""
        lost = _still_known(pending, sessions, state)
        if not len(lost):
            return None
        ends = _ends(sessions, state.began)
        return Losses(lost, incidents([lost], ends, whole.everything, self.thresholds))

    def _windows(
        self,
        kept: Kept,
        whole: Numbered,
        rows: Rare,
        clocks: Clocks,
        lost: pl.DataFrame | None,
        sessions: dict[SessionKey, _Session],
        state: _State,
        watermark_ns: int,
    ) -> dict[str, pa.Table]:
        """Return the tables of the completed windows, which count as reported from now on."""
        is_end = watermark_ns >= _EVER_NS
        passed_ns = state.latest_ns + self.window_ns if is_end else watermark_ns - self._settled_ns
        low_ns = state.windows_ns or min(kept)
        span = Span(low_ns, passed_ns // self.window_ns * self.window_ns, self.window_ns)
        if span.high_ns <= span.low_ns:
            return {}
        judged = None
        if lost is not None:
            judged = self._judged(whole, lost.filter(span.holds("lost_ns")), sessions, state)
        state.windows_ns = span.high_ns
        names = self._names(whole.facts)
        endpoints = self._endpoints(whole.facts)
        return window_tables(kept, whole, rows, clocks, judged, span, self.mtu, names, endpoints)

    def _names(self, facts: Facts) -> TopicNames:
        """Topic names from the stored facts and from earlier advertisements; valid as long as their source."""
        path = self.folder / "topics.json"
        names: TopicNames = {}
        if path.exists():
            names = {
                (publisher, session, index): name
                for publisher, session, index, name in json.loads(path.read_text())
            }
        reported = facts.topics.filter(pl.col("topic").is_not_null())
        rows = reported.select(*SESSION, "topic_index", "topic").rows()
        found = {(publisher, session, index): name for publisher, session, index, name in rows}
        if not found.items() <= names.items():
            names |= found
            _store(path, [[*key, name] for key, name in names.items()])
        return names

    def _endpoints(self, facts: Facts) -> pl.DataFrame:
        """Return the endpoints at which recovery is or was offered."""
        path = self.folder / "endpoints.json"
        known = facts.endpoints
        if path.exists():
            before = pl.DataFrame(json.loads(path.read_text()), known.schema, orient="row")
            known = Facts.merged([Facts(endpoints=before), facts]).endpoints
            if known.equals(before):
                return known
        _store(path, known.rows())
        return known

    def _storms(self, rows: Rare, state: _State, watermark_ns: int) -> pa.Table | None:
        nak_rows = _not_reported(rows.naks, pl.lit(_EVERYBODY), "time_ns", state.storms, watermark_ns)
        pending = [replace(rows, naks=nak_rows)]
        found = nak_storms(pending, best_points(pending))
        return self._to_report(found, state.storms, watermark_ns) if len(found) else None

    def _to_report(self, found: pl.DataFrame, reported: Reported, watermark_ns: int) -> pa.Table:
        """Return the rows that are complete, or last longer than a window; they count as reported from now on."""
        found = without_lives(found)
        rows = []
        for key, parts in _wholes(found.to_dicts(), self.thresholds.quiet_ns):
            start_ns, end_ns = parts[0]["start_ns"], max(row["end_ns"] for row in parts)
            over = end_ns + self._settled_ns <= watermark_ns
            if over or start_ns <= watermark_ns - self.window_ns:
                rows += [row | {"ongoing": not over} for row in parts]
                reported[key] = max(reported.get(key, _NEVER_NS), end_ns)
        known = arrow(found.clear()).schema.append(pa.field("ongoing", pa.bool_()))
        table = pa.Table.from_pylist(rows, known)
        for name, time in (("to", "end_ns"), ("from", "start_ns")):
            moments = pa.array([row[time] // 1000 for row in rows], MOMENT)
            table = table.add_column(0, name, moments)
        return table


@dataclass(frozen=True, slots=True)
class _Session:
    """The stored part of a session: its start, first and last sequence number."""

    first_ns: int
    low: int | None
    high: int | None


def _number(state_file: Path) -> int:
    return int(state_file.stem.partition("-")[2])


def _notes(facts: Facts | None) -> list[tuple[str, str]]:
    if facts is None:
        return []
    rows = facts.remarks.filter(pl.col("kind") == NOTE).select("point", "status", "packets").rows()
    return [(point, with_count(status, count)) for point, status, count in rows]


def _last_times(facts: Facts) -> list[int]:
    """Return the last times of session packets, IP fragments and recovery. Other facts only have their window's
    start."""
    frames = (facts.counts, facts.fragments, facts.recoveries, facts.stores)
    times = (frame["last_ns"].max() for frame in frames)
    return [time for time in times if isinstance(time, int)]


def _sessions(whole: Numbered) -> dict[SessionKey, _Session]:
    lows: dict[SessionKey, int] = {}
    highs: dict[SessionKey, int] = {}
    for one in whole.everything:
        if len(one):
            low, high = one.low, one.high
            lows[one.session] = min(low, lows.get(one.session, low))
            highs[one.session] = max(high, highs.get(one.session, high))
    judged = whole.facts.counts.filter(pl.col("kind").is_in(_JUDGED_KINDS))
    began = judged.group_by(SESSION).agg(pl.col("first_ns").min()).rows()
    return {
        (publisher, session): _Session(
            first_ns, lows.get((publisher, session)), highs.get((publisher, session))
        )
        for publisher, session, first_ns in began
    }


def _wholes(
    found: list[dict[str, Any]], quiet_ns: int
) -> Iterator[tuple[tuple[str, int, str], list[dict[str, Any]]]]:
    """Group the rows of a receiver that must be reported together: a burst is embedded in other losses, and reported
    rows are identified by time."""

    def whose(row: dict[str, Any]) -> tuple[str, int, str]:
        return row["publisher"], row["session_id"], row.get("receiver") or _EVERYBODY

    for key, rows in groupby(sorted(found, key=lambda row: (whose(row), row["start_ns"])), whose):
        parts: list[dict[str, Any]] = []
        for row in rows:
            if parts and row["start_ns"] - max(one["end_ns"] for one in parts) > quiet_ns:
                yield key, parts
                parts = []
            parts.append(row)
        yield key, parts


def _still_known(lost: pl.DataFrame, sessions: dict[SessionKey, _Session], state: _State) -> pl.DataFrame:
    """Return losses without those reported long ago: re-NAKed, with a first transmission that is no longer stored."""
    lows = [
        (*key, row.low)
        for key, row in sessions.items()
        if key in state.sent and not _is_whole(key, row, state.began)
    ]
    known = pl.DataFrame(lows, {**_SESSION_TYPES, "low": pl.Int64}, orient="row")
    # If all first transmissions of a session are gone, none of its losses is known any more.
    gone = known.with_columns(pl.col("low").fill_null(_EVER_NS))
    kept = pl.col("low").is_null() | (pl.col("sqn") >= pl.col("low"))
    return lost.join(gone, list(SESSION), "left", maintain_order="left").filter(kept).drop("low")


def _ends(sessions: dict[SessionKey, _Session], began: dict[SessionKey, int]) -> pl.DataFrame:
    """Return the first and last number of sessions; the first is null if the session's start is no longer stored."""
    rows = [
        (*key, row.low if _is_whole(key, row, began) else None, row.high) for key, row in sessions.items()
    ]
    types = {**_SESSION_TYPES, "first_sqn": pl.Int64, "last_sqn": pl.Int64}
    return pl.DataFrame(rows, types, orient="row")


def _is_whole(key: SessionKey, row: _Session, began: dict[SessionKey, int]) -> bool:
    return began[key] == row.first_ns


def _not_reported(
    frame: pl.DataFrame, who: pl.Expr, time: str, reported: Reported, watermark_ns: int
) -> pl.DataFrame:
    """Return the rows up to the watermark that are later than the reported ones."""
    passed = frame.filter(pl.col(time) <= watermark_ns)
    if not reported:
        return passed
    types = {**_SESSION_TYPES, "reported_receiver": pl.String, "until_ns": pl.Int64}
    known = pl.DataFrame([(*key, until_ns) for key, until_ns in reported.items()], types, orient="row")
    later = pl.col(time) > pl.coalesce("until_ns", pl.lit(_NEVER_NS))
    return (
        passed.with_columns(reported_receiver=who)
        .join(known, [*SESSION, "reported_receiver"], "left", maintain_order="left")
        .filter(later)
        .drop("reported_receiver", "until_ns")
    )
