"""Loss incidents and NAK storms of captures that grow, judged by the same functions as those of a report.

An incident is known when its end is: when as long as may be has passed without another loss, on the capture's own
clock. Until then its packets are kept, as Parquet beside the query's checkpoint, and every batch the analyses run over
what is kept and is not told yet. The watermark is the time of the latest packet less what packets and NAKs may be late.

An incident or a storm that lasts longer than a window is told window by window, as `ongoing`, so that what is kept is
bounded. What is told of each receiver is remembered by its time. All of that belongs to the batch it came of: one that
is done again, after a restart, finds what the one before it left and tells the same.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.incidents import DEFAULTS, Thresholds, incidents
from umstack.analysis.losses import losses
from umstack.analysis.nak_storms import WINDOW_NS, nak_storms
from umstack.analysis.observations import DATA, NAK, RETRANSMISSION, SESSION, SESSION_MESSAGE, unwrap

INCIDENTS, STORMS = "incidents", "nak_storms"

_KEPT_KINDS = (DATA, RETRANSMISSION, NAK, SESSION_MESSAGE)
_KEPT_COLUMNS = ("point", "time_ns", "kind", *SESSION, "receiver", "sqn", "sqns")
_KEPT = (
    "point string, time_ns long, kind string, publisher string, session_id long, receiver string, sqn long, "
    "sqns array<long>"
)
_TOLD = "publisher string, session_id long, told_receiver string, until_ns long"
_SPANS = "publisher string, session_id long, first_sqn long, last_sqn long, low_sqn long, is_whole boolean"
_EVERYBODY = ""
"""Stands for the receivers of a storm, and for the one nobody knows of a loss."""
_EVER_NS = 2**62
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
    incidents: Told = field(default_factory=dict)
    """Until when the losses of each receiver have been told."""
    storms: Told = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> _State:
        """Read what `save` wrote."""
        stored = json.loads(path.read_text())
        return cls(
            stored["latest_ns"],
            {name: (low, high) for name, low, high in stored["parts"]},
            {(publisher, session): at for publisher, session, at in stored["began"]},
            {(publisher, session, receiver): at for publisher, session, receiver, at in stored["incidents"]},
            {(publisher, session, receiver): at for publisher, session, receiver, at in stored["storms"]},
        )

    def save(self, path: Path) -> None:
        """Write it whole or not at all."""
        rows = {
            name: [[*key, value] for key, value in getattr(self, name).items()]
            for name in ("began", "incidents", "storms")
        }
        parts = [[name, *span] for name, span in self.parts.items()]
        written = path.with_suffix(".part")
        written.write_text(json.dumps({"latest_ns": self.latest_ns, "parts": parts, **rows}))
        written.replace(path)


@dataclass(frozen=True, slots=True)
class IncidentWatch:
    """Watches one stream of observations. `folder` belongs to it, and is on storage the workers reach as well."""

    folder: Path
    window_ns: int
    late_ns: int
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
        """Keep a batch of classified packets; the incidents and storms to be told with it."""
        spark = batch.sparkSession
        state = self._before(number)
        self._forget(state)
        self._keep(batch, number, state)
        found: dict[str, pa.Table] = {}
        if state.parts:
            paths = [str(self.folder / name) for name in state.parts]
            watermark_ns = _EVER_NS if self.until_the_end else state.latest_ns - self.late_ns
            observed = unwrap(spark.read.schema(_KEPT).parquet(*paths)).persist()
            try:
                if (told := self._incidents(observed, state, watermark_ns)) is not None:
                    found[INCIDENTS] = told
                # Who asks again for what was told long ago can still make a storm.
                if not observed.where(F.col("kind") == NAK).isEmpty():
                    found[STORMS] = self._storms(observed, state, watermark_ns)
            finally:
                observed.unpersist()
        state.save(self._state_file(number))
        return found

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
        """Drop what is too old for anything that is not told yet."""
        oldest_ns = state.latest_ns - self.late_ns - self.window_ns - self._settled_ns
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
        kept = batch.where(F.col("kind").isin(*_KEPT_KINDS)).select(*_KEPT_COLUMNS)
        kept.write.mode("overwrite").parquet(path)
        if (span := _span(self.folder / name)) is not None:
            state.parts[name] = span
            state.latest_ns = max(state.latest_ns, span[1])

    def _spans(self, observed: DataFrame, state: _State) -> DataFrame:
        """The first and last number of each session, and whether its beginning is among what is kept."""
        sqn = F.when(F.col("kind") == DATA, F.col("sqn"))
        rows = (
            observed.groupBy(*SESSION)
            .agg(F.min("time_ns").alias("first_ns"), F.min(sqn).alias("low"), F.max(sqn).alias("high"))
            .collect()
        )
        began = {(row["publisher"], row["session_id"]): row["first_ns"] for row in rows}
        state.began = {key: min(state.began.get(key, first_ns), first_ns) for key, first_ns in began.items()}
        spans = []
        for row in rows:
            key = (row["publisher"], row["session_id"])
            whole = state.began[key] == row["first_ns"]
            spans.append((*key, row["low"] if whole else None, row["high"], row["low"], whole))
        return F.broadcast(observed.sparkSession.createDataFrame(spans, _SPANS))

    def _incidents(self, observed: DataFrame, state: _State, watermark_ns: int) -> pa.Table | None:
        spans = self._spans(observed, state)
        found = losses(observed)
        # What was told long ago may be asked for again when its first sending is not kept any more.
        known = found.join(spans.select(*SESSION, "low_sqn", "is_whole"), [*SESSION], "left").where(
            "is_whole OR sqn >= low_sqn"
        )
        who = F.coalesce("receiver", F.lit(_EVERYBODY))
        pending = _not_told(known, who, "lost_ns", state.incidents, watermark_ns).select(*found.columns)
        # What is pending is little, and a plan that begins with it is short.
        lost = pending.toArrow()
        if not len(lost):
            return None
        spark = observed.sparkSession
        judged = incidents(observed, self.thresholds, spark.createDataFrame(lost, pending.schema), spans)
        return self._to_tell(_timed(judged).toArrow(), state.incidents, watermark_ns)

    def _storms(self, observed: DataFrame, state: _State, watermark_ns: int) -> pa.Table:
        naks = observed.where(F.col("kind") == NAK)
        asked = _not_told(naks, F.lit(_EVERYBODY), "time_ns", state.storms, watermark_ns)
        return self._to_tell(_timed(nak_storms(asked)).toArrow(), state.storms, watermark_ns)

    def _to_tell(self, found: pa.Table, told: Told, watermark_ns: int) -> pa.Table:
        """Of what was found, what is over, and what goes on for longer than a window; it is told from now on."""
        rows = []
        for row in found.to_pylist():
            over = row["end_ns"] + self._settled_ns <= watermark_ns
            if over or row["start_ns"] <= watermark_ns - self.window_ns:
                rows.append(row | {"ongoing": not over})
                key = (row["publisher"], row["session_id"], row.get("receiver") or _EVERYBODY)
                told[key] = max(told.get(key, _NEVER_NS), row["end_ns"])
        return pa.Table.from_pylist(rows, found.schema.append(pa.field("ongoing", pa.bool_())))


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
    known = frame.sparkSession.createDataFrame([(*key, until) for key, until in told.items()], _TOLD)
    later = F.col(time) > F.coalesce("until_ns", F.lit(_NEVER_NS))
    return (
        passed.withColumn("told_receiver", who)
        .join(F.broadcast(known), [*SESSION, "told_receiver"], "left")
        .where(later)
        .drop("told_receiver", "until_ns")
    )


def _timed(found: DataFrame) -> DataFrame:
    """With the columns by which windows are known."""

    def moment(time: str) -> Column:
        return F.timestamp_micros(F.expr(f"{time} div 1000"))

    return found.withColumns({"from": moment("start_ns"), "to": moment("end_ns")})
