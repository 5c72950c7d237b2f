"""The tables of a report, made by Spark: workers make facts from parts of captures, then the tables of each session.

Of large captures, the workers first omit the times that no table needs (umstack.analysis.needed_times). Then they judge
the losses of each session by windows of its numbers (umstack.analysis.judged). The worker that makes the tables of a
session gets losses that are judged, and facts in proportion to its milliseconds, not to its packets. A session that
several points captured is not divided: the clocks of points are compared by all its times.

Only facts and tables are sent between processes. The driver collects the tables and holds them as the engine without
Spark does (umstack.analysis.tables).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import Broadcast
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema

from umstack.analysis import needed_times
from umstack.analysis.judged import Captured, Frames, Habits
from umstack.analysis.needed_times import EVERYTHING, NOTHING, Ranges, needed, outline
from umstack.analysis.rare_rows import by_window
from umstack.analysis.tables import Tables, tables_of_part, together
from umstack.capture.reading.capture_files import capture_files, total_bytes
from umstack.facts.facts import Facts
from umstack.facts.kept_times import NotKeptError
from umstack.facts.kinds import SESSION
from umstack.facts.packed import (
    NO_SESSION,
    PACKED,
    PACKETS,
    from_ipc,
    ipc,
    packed,
    packed_frame,
    unpacked,
    with_sends,
)
from umstack.facts.schema import frame_schema
from umstack.facts.sends import Sends, Stream
from umstack.facts.sessions import Session
from umstack.spark.umpcap import UmpcapDataSource
from umstack.spark.umpcap_manifest import find_splits
from umstack.spark.umpcap_parts import TARGET_BYTES

_TABLES = pa.schema([("table", pa.string()), ("rows", pa.binary())])
_SLICE_ROWS = 1 << 20
"""Maximum length of a row with a table; a longer table is split into several rows, because Spark limits rows."""
_PART = "part"
_FAN_IN = 32
"""Partitions whose facts are merged before those of the whole session are."""
_MERGED_BYTES = _FAN_IN * TARGET_BYTES
"""Captures of this length or less have so few partitions that their facts are merged at once, with all times."""
_OUTLINED = ("sends", "references", "rare")
"""The frames from which the needed times are determined."""
_NEEDED = pa.schema(
    [
        *(PACKED.field(name) for name in SESSION),
        ("firsts", pa.list_(pa.int64())),
        ("lasts", pa.list_(pa.int64())),
        ("is_divisible", pa.bool_()),
    ]
)
_PARTITIONS_PER_TASK = 8
"""Partitions for each task that runs at a time."""
_WINDOWS_PER_TASK, _WINDOWS_MAX = 4, 64
"""Windows for each task that runs at a time, and of a session at most: each gets the session's sendings."""
_WINDOW = "window"
_IN_WINDOWS = PACKED.append(pa.field(_WINDOW, pa.int32()))
_WHOLE = -1
"""The window of facts that are not divided."""
_SHARED = ("sends", "counts", "references", "passed")
"""The frames of a session that every window needs, besides its own part of `rare`."""
_JUDGED = "judged "
"""Prefix of the frames of windows, among packed facts."""


@dataclass(frozen=True, slots=True)
class Thinned:
    """Packed facts without the times that no table needs."""

    facts: DataFrame
    divisible: frozenset[Session]
    """The sessions of one point of capture, whose losses can be judged by windows."""


def facts_frame(spark: SparkSession, captures: Sequence[str], hardware_times: bool = False) -> DataFrame:
    """Return the packed facts of captures, one row for each frame of a session and part of a capture."""
    spark.dataSource.register(UmpcapDataSource)
    find_splits(spark, captures, hardwareTimes=str(hardware_times).lower())
    reader = spark.read.format(UmpcapDataSource.name()).option("rows", "facts").option("notes", "true")
    reader = reader.option("hardwareTimes", str(hardware_times).lower())
    return reader.load(list(captures))


@contextmanager
def thinned(facts: DataFrame) -> Iterator[Thinned]:
    """Return packed facts without the times that no table needs. Each worker reads the facts of a partition at a time.

    The facts are stored by the executors until the end of the block, because they are read twice.
    """
    packed_schema, needed_schema = from_arrow_schema(PACKED), from_arrow_schema(_NEEDED)
    stored = facts.persist()
    try:
        outlines = stored.where(F.col("frame").isin(*_OUTLINED)).mapInArrow(_outline, packed_schema)
        found = outlines.groupBy(*SESSION).applyInArrow(_needed, needed_schema).toArrow()
        numbers = {
            (row["publisher"], row["session_id"]): Ranges(
                np.array(row["firsts"], np.int64), np.array(row["lasts"], np.int64)
            )
            for row in found.to_pylist()
        }
        shared = facts.sparkSession.sparkContext.broadcast(numbers)
        divisible = frozenset(
            (row["publisher"], row["session_id"]) for row in found.to_pylist() if row["is_divisible"]
        )
        yield Thinned(stored.mapInArrow(_thinner(shared), packed_schema), divisible)
    finally:
        stored.unpersist()


def _outline(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (with_sends(batch, lambda _, sends: outline(sends)) for batch in rows)


def _needed(key: tuple[pa.Scalar, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    session = (key[0].as_py(), key[1].as_py())
    try:
        facts = unpacked(rows, spills=True).get(0, Facts())
        numbers = needed(facts).get(session, NOTHING)
        is_divisible = numbers is not EVERYTHING and len({stream[0] for stream in facts.sends}) == 1
    except NotKeptError:
        numbers, is_divisible = EVERYTHING, False  # its parts overlap in time
    row = [[session[0]], [session[1]], [numbers.firsts], [numbers.lasts], [is_divisible]]
    yield pa.record_batch(row, schema=_NEEDED)


def _thinner(
    numbers: Broadcast[dict[Session, Ranges]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that omits times, on the executors."""

    def thin(stream: Stream, sends: Sends) -> Sends:
        return needed_times.thinned(sends, numbers.value[stream[1:3]])

    return lambda rows: (with_sends(batch, thin) for batch in rows)


def merged(facts: DataFrame) -> DataFrame:
    """Return packed facts in fewer rows: workers merge those of neighbouring partitions, several per session at a time.

    Facts merge in any order, so one session is merged by all workers.
    """
    numbered = facts.withColumn(_PART, F.floor(F.spark_partition_id() / _FAN_IN))
    return (
        _spread(numbered, *SESSION, _PART)
        .groupBy(*SESSION, _PART)
        .applyInArrow(_merge, from_arrow_schema(PACKED))
    )


def _spread(rows: DataFrame, *columns: str) -> DataFrame:
    """Return rows by the values of columns in partitions for all workers. Spark would give few bytes to one task."""
    tasks = _PARTITIONS_PER_TASK * rows.sparkSession.sparkContext.defaultParallelism
    return rows.repartition(tasks, *columns)


def _merge(_key: tuple[pa.Scalar, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for window_ns, facts in unpacked(rows, spills=True).items():
        yield from packed(facts, window_ns).to_batches()


@contextmanager
def judged(facts: DataFrame, divisible: frozenset[Session]) -> Iterator[DataFrame]:
    """Return packed facts with the frames of judged losses in place of the rows `rare` of sessions that are divisible.

    The executors store the windows until the end of the block, because they are read twice.
    """
    context = facts.sparkSession.sparkContext
    windows = min(_WINDOWS_MAX, _WINDOWS_PER_TASK * context.defaultParallelism)
    packed_schema = from_arrow_schema(PACKED)
    divided = facts.mapInArrow(_divider(divisible, windows), from_arrow_schema(_IN_WINDOWS)).persist()
    try:
        spread = _spread(divided.where(F.col(_WINDOW) != _WHOLE), *SESSION, _WINDOW)
        windowed = spread.groupBy(*SESSION, _WINDOW)
        shown = windowed.applyInArrow(_habits, packed_schema).select("frame", "content").toArrow()
        if not len(shown):
            yield facts
            return
        shared = context.broadcast(Habits.of(map(_frames, shown.to_pylist())))
        found = windowed.applyInArrow(_judge(shared), packed_schema)
        yield divided.where(F.col(_WINDOW) == _WHOLE).drop(_WINDOW).union(found)
    finally:
        divided.unpersist()


def _divider(
    divisible: frozenset[Session], windows: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that divides packed facts into windows, on the executors."""

    def divide(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for row in batch.to_pylist():
                is_divided = (row["publisher"], row["session_id"]) in divisible
                if not is_divided or row["frame"] != "rare":
                    rows.append({**row, _WINDOW: _WHOLE})
                if is_divided and row["frame"] in _SHARED:
                    rows += ({**row, _WINDOW: window} for window in range(windows))
                if is_divided and row["frame"] == "rare":
                    whole = pl.DataFrame(from_ipc(row["content"]), schema=frame_schema("rare"))
                    for window, part in by_window(whole, windows).items():
                        rows.append({**row, "content": packed_frame("rare", part), _WINDOW: window})
            yield pa.RecordBatch.from_pylist(rows, _IN_WINDOWS)

    return divide


def _captured(rows: Iterator[pa.RecordBatch]) -> Captured:
    return Captured.of(unpacked(rows, spills=True).get(0, Facts()))


def _habits(key: tuple[pa.Scalar, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for frames in _captured(rows).habits():
        yield _as_packed(key, frames)


def _judge(
    habits: Broadcast[Habits],
) -> Callable[[tuple[pa.Scalar, ...], Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that judges a window, on the executors."""

    def judge(key: tuple[pa.Scalar, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for frames in _captured(rows).judged(habits.value):
            yield _as_packed(key, frames)

    return judge


def _as_packed(key: tuple[pa.Scalar, ...], frames: Frames) -> pa.RecordBatch:
    publisher, session_id = key[0].as_py(), key[1].as_py()
    rows = [
        (0, publisher, session_id, _JUDGED + name, "", "", _as_bytes(frame)) for name, frame in frames.items()
    ]
    return pa.RecordBatch.from_pylist(
        [dict(zip(PACKED.names, row, strict=True)) for row in rows], schema=PACKED
    )


def _frames(row: Mapping[str, Any]) -> Frames:
    return {row["frame"].removeprefix(_JUDGED): _from_bytes(row["content"])}


def _analyst(mtu: int) -> Callable[..., Iterator[pa.RecordBatch]]:
    """Return the function that makes the tables of one session from all its facts, on the executors."""

    def analyse(key: tuple[pa.Scalar, ...], rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        of_windows: list[pa.RecordBatch] = []

        def whole() -> Iterator[pa.RecordBatch]:
            for batch in rows:
                is_judged = pc.starts_with(batch["frame"], _JUDGED)
                of_windows.append(batch.filter(is_judged))
                yield batch.filter(pc.invert(is_judged))

        facts = unpacked(whole(), spills=True).get(0, Facts())
        frames = (_frames(row) for batch in of_windows for row in batch.to_pylist())
        is_judged = any(batch.num_rows for batch in of_windows)
        found = list(_sent(tables_of_part(facts, mtu, frames if is_judged else None)))
        if (key[0].as_py(), key[1].as_py()) == NO_SESSION:
            found.append((PACKETS, facts.packets.to_bytes(8, "little")))
        for name, content in found:
            yield pa.record_batch([[name], [content]], schema=_TABLES)

    return analyse


def _sent(tables: Tables) -> list[tuple[str, bytes]]:
    return [
        (name, _as_bytes(part))
        for name, table in tables.items()
        for part in table.iter_slices(_SLICE_ROWS)
        if len(part)
    ]


def _as_bytes(table: pl.DataFrame) -> bytes:
    return ipc(table.to_arrow(compat_level=pl.CompatLevel.oldest()))


def _from_bytes(content: bytes) -> pl.DataFrame:
    table = pl.from_arrow(from_ipc(content))
    assert isinstance(table, pl.DataFrame)
    return table


def tables_by_spark(
    spark: SparkSession, captures: Sequence[str], mtu: int, hardware_times: bool = False
) -> tuple[Tables, int]:
    """Return the tables of captures, as from `umstack.analysis.tables.tables_of`, and the number of packets."""
    facts = facts_frame(spark, captures, hardware_times)
    if total_bytes(capture_files(captures)) > _MERGED_BYTES:
        with thinned(facts) as thin, judged(merged(thin.facts), thin.divisible) as rows:
            return tables_of_frame(rows, mtu)
    return tables_of_frame(facts, mtu)


def tables_of_frame(facts: DataFrame, mtu: int) -> tuple[Tables, int]:
    """Return the tables of packed facts, and the number of packets."""
    by_session = facts.groupBy(*SESSION)
    made = by_session.applyInArrow(_analyst(mtu), from_arrow_schema(_TABLES)).toArrow()
    packets, parts = 0, list[Tables]()
    for row in made.to_pylist():
        if row["table"] == PACKETS:
            packets = int.from_bytes(row["rows"], "little")
        else:
            parts.append({row["table"]: _from_bytes(row["rows"])})
    return together(parts), packets
