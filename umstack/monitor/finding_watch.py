"""The findings in captures that grow, judged by the same functions as those of a report: loss incidents and NAK storms
as they end, all else by windows of time.

An incident is known when its end is: when as long as may be has passed without another loss, on the capture's own
clock. Until then its packets are kept, as Parquet beside the query's checkpoint, and every batch the analyses run over
what is kept and is not told yet. The watermark is the time of the latest packet less what packets and NAKs may be late.
A number that is asked for when its first sending is not kept any more is taken for one that was told; in a session of
which no first sending was ever captured, for one that was lost just now.

An incident or a storm that lasts longer than a window is told window by window, as `ongoing`, so that what is kept is
bounded. What is told of each receiver is remembered by its time. A window is told (umstack.monitor.window_findings)
when the incidents in it are over; what comes for it later is not. All of that belongs to the batch it came of: one that
is done again, after a restart, finds what the one before it left and tells the same.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.datagram_fill import DEFAULT_MTU
from umstack.analysis.incidents import DEFAULTS, Thresholds, incidents
from umstack.analysis.losses import losses
from umstack.analysis.nak_storms import WINDOW_NS, can_storm, nak_storms
from umstack.analysis.observations import (
    DATA,
    NAK,
    NCF,
    NOTE,
    RETRANSMISSION,
    SESSION,
    SESSION_MESSAGE,
    addressed,
    references,
    unwrap,
)
from umstack.monitor.window_findings import Losses, Span, TopicNames, persisted, window_tables

INCIDENTS, STORMS = "incidents", "nak_storms"

_JUDGED_KINDS = (DATA, RETRANSMISSION, NAK, NCF, SESSION_MESSAGE)
"""What tells of losses."""
_KEPT = {
    **dict.fromkeys(("point", "kind", "publisher", "receiver", "group", "ncf_reason", "status"), "string"),
    **dict.fromkeys(("source_address", "destination_address"), "string"),
    **dict.fromkeys(("time_ns", "session_id", "sqn"), "long"),
    **dict.fromkeys(("udp_bytes", "frame_bytes", "message_count", "message_bytes"), "int"),
    "sqns": "array<long>",
    "ip_fragment": "boolean",
    "topic_counts": "array<struct<topic_index:bigint,messages:bigint,fragments:bigint,payload_bytes:bigint,"
    "message_sqn_low:bigint,message_sqn_high:bigint>>",
    "advertisements": "array<struct<topic:string,topic_index:bigint,source_address:string,session_id:bigint,"
    "group_address:string,group_port:int>>",
}
_KEPT_SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in _KEPT.items())
_TOLD = pa.schema(
    {"publisher": pa.string(), "session_id": pa.int64(), "told_receiver": pa.string(), "until_ns": pa.int64()}
)
_SPANS = pa.schema(
    {"publisher": pa.string(), "session_id": pa.int64(), "first_sqn": pa.int64(), "last_sqn": pa.int64()}
)
_EVERYBODY = ""
"""Stands for the receivers of a storm, and for the one nobody knows of a loss."""
_EVER_NS = _NO_SQN = 2**62
_NEVER_NS = -1

SessionKey = tuple[str, int]
Told = dict[tuple[str, int, str], int]


@dataclass(slots=True)
class _State:
    """What a batch leaves for the next one."""

    latest_ns: int = 0
    parts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The packets that are kept: a folder each, with its first and last time."""
    began: dict[SessionKey, int] = field(default_factory=dict)
    """When the first packet of each session was captured."""
    sent: set[SessionKey] = field(default_factory=set)
    """The sessions of which first sendings are captured, not only what receivers say."""
    incidents: Told = field(default_factory=dict)
    """Until when the losses of each receiver have been told."""
    storms: Told = field(default_factory=dict)
    windows_ns: int = 0
    """Until when windows have been told; 0 before the first one."""

    @classmethod
    def load(cls, path: Path) -> _State:
        """Read what `save` wrote."""
        stored = json.loads(path.read_text())
        # An earlier version told no windows: they begin after what it saw.
        windows_ns = stored.get("windows_ns", stored["latest_ns"])
        return cls(
            stored["latest_ns"],
            {name: (low, high) for name, low, high in stored["parts"]},
            {(publisher, session): at for publisher, session, at in stored["began"]},
            # What an earlier version left does not tell; it took every session for such a one.
            {(publisher, session) for publisher, session, *_ in stored.get("sent", stored["began"])},
            {(publisher, session, receiver): at for publisher, session, receiver, at in stored["incidents"]},
            {(publisher, session, receiver): at for publisher, session, receiver, at in stored["storms"]},
            windows_ns,
        )

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        rows = {
            name: [[*key, value] for key, value in getattr(self, name).items()]
            for name in ("began", "incidents", "storms")
        }
        parts = [[name, *span] for name, span in self.parts.items()]
        times = {"latest_ns": self.latest_ns, "windows_ns": self.windows_ns}
        stored = {**times, "parts": parts, "sent": list(self.sent), **rows}
        _store(path, stored)


def _store(path: Path, what: Any) -> None:
    """Write JSON, whole or not at all."""
    written = path.with_suffix(".part")
    written.write_text(json.dumps(what))
    written.replace(path)


@dataclass(frozen=True, slots=True)
class FindingWatch:
    """Watches one stream of observations. `folder` belongs to it, and is on storage the workers reach as well."""

    folder: Path
    window_ns: int
    late_ns: int
    mtu: int = DEFAULT_MTU
    until_the_end: bool = False
    """Nothing comes after a batch: what has no end yet is told with it."""
    thresholds: Thresholds = DEFAULTS

    def identity(self) -> str:
        """A name that is this watch's for as long as its folder is there."""
        path = self.folder / "identity"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            path.write_text(uuid4().hex[:8])
        return path.read_text()

    def take(self, batch: DataFrame, number: int) -> dict[str, pa.Table]:
        """Keep a batch of labelled packets; what is to be told with it, by table."""
        spark = batch.sparkSession
        state = self._before(number)
        self._forget(state)
        self._keep(batch, number, state)
        found: dict[str, pa.Table] = {}
        if state.parts:
            paths = [str(self.folder / name) for name in state.parts]
            watermark_ns = _EVER_NS if self.until_the_end else state.latest_ns - self.late_ns
            with persisted(_unwrapped(spark.read.schema(_KEPT_SCHEMA).parquet(*paths))) as kept:
                found = self._judge(kept, state, watermark_ns)
        state.save(self._state_file(number))
        return found

    def _judge(self, kept: DataFrame, state: _State, watermark_ns: int) -> dict[str, pa.Table]:
        """What is to be told of what is kept. A quiet time costs no more than to see that it was one."""
        observed = kept.where(F.col("kind").isin(*_JUDGED_KINDS))
        sessions = _sessions(observed)
        for row in sessions:
            key = _key(row)
            state.began[key] = min(state.began.get(key, row["first_ns"]), row["first_ns"])
            if row["low"] is not None:
                state.sent.add(key)
        told: dict[str, pa.Table | None] = {}
        if any(row["naks"] or row["again"] for row in sessions):
            with persisted(losses(observed)) as lost:
                told[INCIDENTS] = self._incidents(observed, lost, sessions, state, watermark_ns)
                told |= self._windows(kept, observed, lost, sessions, state, watermark_ns)
        else:
            told |= self._windows(kept, observed, None, sessions, state, watermark_ns)
        # Who asks again for what was told long ago can still make a storm.
        if can_storm(sum(row["requests"] for row in sessions), sum(row["naks"] for row in sessions)):
            told[STORMS] = self._storms(observed, state, watermark_ns)
        return {kind: table for kind, table in told.items() if table is not None}

    @property
    def _settled_ns(self) -> int:
        """So long after its last loss, or its last NAK, nothing can be added to an incident or a storm."""
        return max(self.thresholds.quiet_ns, self.thresholds.pause_ns, 2 * WINDOW_NS)

    def _state_file(self, number: int) -> Path:
        return self.folder / f"state-{number:012d}.json"

    def _before(self, number: int) -> _State:
        """What the batch before this one left."""
        earlier = sorted(path for path in self.folder.glob("state-*.json") if path < self._state_file(number))
        for path in earlier[:-1]:
            path.unlink()
        return _State.load(earlier[-1]) if earlier else _State()

    def _forget(self, state: _State) -> None:
        """Drop what is too old for anything that is not told yet, and for what a window not told is judged by."""
        oldest_ns = state.latest_ns - self.late_ns - 2 * self.window_ns - self._settled_ns
        state.parts = {name: span for name, span in state.parts.items() if span[1] >= oldest_ns}
        for left in self.folder.glob("packets-*"):
            if left.name not in state.parts:
                shutil.rmtree(left)
        first_ns = min((low for low, _ in state.parts.values()), default=_EVER_NS)
        for told in (state.incidents, state.storms):
            for key in [key for key, until_ns in told.items() if until_ns < first_ns]:
                del told[key]

    def _keep(self, batch: DataFrame, number: int, state: _State) -> None:
        """Write the packets of a batch, in place of those of an attempt that came to nothing."""
        name = f"packets-{number:012d}"
        path = str(self.folder / name)
        packets = batch.where((F.col("kind") != NOTE) & F.col("time_ns").isNotNull())
        whole = addressed(packets)
        kept = whole.select(
            *(
                (F.col(name) if name in whole.columns else F.lit(None)).cast(kind).alias(name)
                for name, kind in _KEPT.items()
            )
        )
        kept.write.mode("overwrite").parquet(path)
        if (span := _span(self.folder / name)) is not None:
            state.parts[name] = span
            state.latest_ns = max(state.latest_ns, span[1])

    def _incidents(
        self, observed: DataFrame, lost: DataFrame, sessions: list[Row], state: _State, watermark_ns: int
    ) -> pa.Table | None:
        who = F.coalesce("receiver", F.lit(_EVERYBODY))
        pending = _not_told(lost, who, "lost_ns", state.incidents, watermark_ns)
        judged = self._judged(observed, pending, sessions, state)
        return (
            None
            if judged is None
            else self._to_tell(_timed(judged.incidents).toArrow(), state.incidents, watermark_ns)
        )

    def _judged(
        self, observed: DataFrame, pending: DataFrame, sessions: list[Row], state: _State
    ) -> Losses | None:
        """Losses that are known to be such, and the incidents they are; nothing where there are none."""
        # What is pending is little, and a plan that begins with it is short.
        lost = _still_known(pending.toArrow(), sessions, state)
        if not len(lost):
            return None
        spark = observed.sparkSession
        ends = F.broadcast(_small(spark, _ends(sessions, state.began), _SPANS))
        local = spark.createDataFrame(lost, pending.schema)
        return Losses(local, incidents(observed, self.thresholds, local, ends))

    def _windows(
        self,
        kept: DataFrame,
        observed: DataFrame,
        lost: DataFrame | None,
        sessions: list[Row],
        state: _State,
        watermark_ns: int,
    ) -> dict[str, pa.Table]:
        """The tables of the windows that are over; from now on they are told."""
        passed_ns = (
            state.latest_ns + self.window_ns if self.until_the_end else watermark_ns - self._settled_ns
        )
        low_ns = (
            state.windows_ns or min(low for low, _ in state.parts.values()) // self.window_ns * self.window_ns
        )
        span = Span(low_ns, passed_ns // self.window_ns * self.window_ns, self.window_ns)
        if span.high_ns <= span.low_ns:
            return {}
        judged = None
        if lost is not None:
            judged = self._judged(observed, lost.where(span.holds("lost_ns")), sessions, state)
        state.windows_ns = span.high_ns
        return window_tables(kept, judged, span, self.mtu, self._names(kept))

    def _names(self, kept: DataFrame) -> TopicNames:
        """The names of topics, of what is kept and of what was advertised before. They hold for as long as a source."""
        path = self.folder / "topics.json"
        names: TopicNames = {}
        if path.exists():
            names = {
                (publisher, session, index): name
                for publisher, session, index, name in json.loads(path.read_text())
            }
        told = (
            kept.where("advertisements IS NOT NULL").select(F.inline("advertisements")).distinct().collect()
        )
        found = {(row["source_address"], row["session_id"], row["topic_index"]): row["topic"] for row in told}
        if not found.items() <= names.items():
            names |= found
            _store(path, [[*key, name] for key, name in names.items()])
        return names

    def _storms(self, observed: DataFrame, state: _State, watermark_ns: int) -> pa.Table | None:
        naks = observed.where(F.col("kind") == NAK)
        pending = _not_told(naks, F.lit(_EVERYBODY), "time_ns", state.storms, watermark_ns)
        asked = pending.toArrow()
        if not can_storm(pc.sum(pc.list_value_length(asked["sqns"])).as_py() or 0, len(asked)):
            return None
        found = nak_storms(observed.sparkSession.createDataFrame(asked, pending.schema))
        return self._to_tell(_timed(found).toArrow(), state.storms, watermark_ns)

    def _to_tell(self, found: pa.Table, told: Told, watermark_ns: int) -> pa.Table:
        """Of what was found, what is over, and what goes on for longer than a window; it is told from now on."""
        rows = []
        for key, parts in _wholes(found.to_pylist(), self.thresholds.quiet_ns):
            start_ns, end_ns = parts[0]["start_ns"], max(row["end_ns"] for row in parts)
            over = end_ns + self._settled_ns <= watermark_ns
            if over or start_ns <= watermark_ns - self.window_ns:
                rows += [row | {"ongoing": not over} for row in parts]
                told[key] = max(told.get(key, _NEVER_NS), end_ns)
        return pa.Table.from_pylist(rows, found.schema.append(pa.field("ongoing", pa.bool_())))


def _wholes(
    found: list[dict[str, Any]], quiet_ns: int
) -> Iterator[tuple[tuple[str, int, str], list[dict[str, Any]]]]:
    """What is to be told of a receiver at once: a burst lies within other losses, and what is told is told by time."""

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


def _sessions(observed: DataFrame) -> list[Row]:
    """What is kept of each session: when it begins, its first and last number, and what tells of losses."""
    is_nak = F.col("kind") == NAK
    sqn = F.when(F.col("kind") == DATA, F.col("sqn"))
    counted = observed.groupBy(*SESSION).agg(
        F.min("time_ns").alias("first_ns"),
        F.min(sqn).alias("low"),
        F.max(sqn).alias("high"),
        F.count_if(is_nak).alias("naks"),
        F.coalesce(F.sum(F.when(is_nak, F.size("sqns"))), F.lit(0)).alias("requests"),
        F.count_if(F.col("kind") == RETRANSMISSION).alias("again"),
    )
    return counted.collect()


def _still_known(lost: pa.Table, sessions: list[Row], state: _State) -> pa.Table:
    """Losses without those with a re-NAK, reported long ago, whose first sending is not stored any more."""
    lows = {
        _key(row): _NO_SQN if row["low"] is None else row["low"]
        for row in sessions
        if _key(row) in state.sent and not _is_whole(row, state.began)
    }
    if not lows:
        return lost
    of_rows = zip(*(lost[name].to_pylist() for name in (*SESSION, "sqn")), strict=True)

    kept = [sqn >= lows.get((publisher, session), sqn) for publisher, session, sqn in of_rows]
    return lost.filter(pa.array(kept, pa.bool_()))


def _ends(sessions: list[Row], began: dict[SessionKey, int]) -> list[Sequence[object]]:
    """Rows of `_SPANS`: the beginning of a session counts if it is among what is kept."""
    return [(*_key(row), row["low"] if _is_whole(row, began) else None, row["high"]) for row in sessions]


def _key(row: Row) -> SessionKey:
    return row["publisher"], row["session_id"]


def _is_whole(row: Row, began: dict[SessionKey, int]) -> bool:
    return began[_key(row)] == int(row["first_ns"])


def _span(folder: Path) -> tuple[int, int] | None:
    """The first and last time of the packets in a folder, as its files say; nothing where there are none."""
    ends: list[int] = []
    for file in folder.glob("*.parquet"):
        told = pq.ParquetFile(file).metadata
        column = told.schema.names.index("time_ns")
        for group in range(told.num_row_groups):
            statistics = told.row_group(group).column(column).statistics
            ends += [statistics.min, statistics.max]
    return (min(ends), max(ends)) if ends else None


def _not_told(frame: DataFrame, who: Column, time: str, told: Told, watermark_ns: int) -> DataFrame:
    """Rows that the watermark has passed, of times after those that were told."""
    passed = frame.where(F.col(time) <= watermark_ns)
    if not told:
        return passed
    known = _small(frame.sparkSession, [(*key, until) for key, until in told.items()], _TOLD)
    later = F.col(time) > F.coalesce("until_ns", F.lit(_NEVER_NS))
    return (
        passed.withColumn("told_receiver", who)
        .join(F.broadcast(known), [*SESSION, "told_receiver"], "left")
        .where(later)
        .drop("told_receiver", "until_ns")
    )


def _unwrapped(kept: DataFrame) -> DataFrame:
    """Observations by a plan that is short: every one that is made of it has it in it, and is planned with it."""
    found = references(kept)
    return unwrap(kept, kept.sparkSession.createDataFrame(found.toArrow(), found.schema))


def _small(spark: SparkSession, rows: Sequence[Sequence[object]], columns: pa.Schema) -> DataFrame:
    """Rows as a plan that holds them: to send these to everybody takes no job, as Arrow's are and Python's are not."""
    values = [
        pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), columns, strict=True)
    ]
    return spark.createDataFrame(pa.table(values, schema=columns))


def _timed(found: DataFrame) -> DataFrame:
    """With the columns by which windows are known."""

    def moment(time: str) -> Column:
        return F.timestamp_micros(F.expr(f"{time} div 1000"))

    return found.withColumns({"from": moment("start_ns"), "to": moment("end_ns")})
