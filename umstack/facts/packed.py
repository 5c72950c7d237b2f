"""Facts as rows that can be sent and stored: one row per frame of a session, with its content in Arrow's IPC format.

Rows of several parts can be put into one table in any order. `unpacked` returns the facts of all of them. Sendings are
stored as differences between neighbours, which compress to two or three bytes each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import polars as pl
import pyarrow as pa

from umstack.facts.facts import Facts, Pieces
from umstack.facts.kinds import SESSION
from umstack.facts.schema import FACTS, OF_SESSIONS, frame_schema
from umstack.facts.sends import Sends, Stream

PACKED = pa.schema(
    [
        pa.field("window_ns", pa.int64(), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("session_id", pa.int64(), nullable=False),
        pa.field("frame", pa.string(), nullable=False),
        pa.field("point", pa.string(), nullable=False),
        pa.field("receiver", pa.string(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)
"""`window_ns` is the start of the window of time, or 0 without windows. `publisher` and `session_id` are "" and -1 for
facts of no session. `point` and `receiver` are set for sendings only, and `receiver` is "" for sendings to a group.
`frame` names the kind of facts in `content`."""

NO_SESSION = ("", -1)
PACKETS = "packets"
"""The frame whose content is the number of packets."""
_STEPS = pa.schema([("sqn_step", pa.int32()), ("step_ns", pa.int64())])
_PLACE_STEP = "place_step"
"""The column with the differences of indices, if only some times were kept."""
_STREAM = ("point", *SESSION, "receiver")
_WRAP = 2**32
_OPTIONS = pa.ipc.IpcWriteOptions(compression="zstd")
_Row = tuple[int, str, int, str, str, str, bytes]


def ipc(table: pa.Table) -> bytes:
    """Return a table in Arrow's IPC format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_OPTIONS) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def from_ipc(content: bytes) -> pa.Table:
    """Return the table written by `ipc`."""
    with pa.ipc.open_stream(content) as reader:
        return reader.read_all()


def packed(facts: Facts, window_ns: int = 0) -> pa.Table:
    """Return facts as rows."""
    rows = list(_rows(facts, window_ns))
    columns = zip(*rows, strict=True) if rows else ((),) * len(PACKED)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, PACKED, strict=True)]
    return pa.Table.from_arrays(arrays, schema=PACKED)


def _rows(facts: Facts, window_ns: int) -> Iterator[_Row]:
    if facts.packets:
        yield window_ns, *NO_SESSION, PACKETS, "", "", facts.packets.to_bytes(8, "little")
    for (point, publisher, session_id, receiver), sends in facts.sends.items():
        yield window_ns, publisher, session_id, "sends", point, receiver, ipc(_steps(sends))
    for name in FACTS:
        if name == "sends":
            continue
        frame = facts.frame(name)
        if name not in OF_SESSIONS:
            if len(frame):
                yield window_ns, *NO_SESSION, name, "", "", packed_frame(name, frame)
            continue
        for (publisher, session_id), rows in frame.partition_by(list(SESSION), as_dict=True).items():
            yield window_ns, publisher, session_id, name, "", "", packed_frame(name, rows)


def packed_frame(name: str, frame: pl.DataFrame) -> bytes:
    """Return the content of a row with a frame of facts, except for sendings."""
    return ipc(frame.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(FACTS[name]))


def _steps(sends: Sends) -> pa.Table:
    sqns, times, places = sends.kept()
    # Differences modulo 2**32 as signed numbers. The first is the difference from 0.
    steps = np.diff(sqns.astype(np.int64), prepend=0).astype(np.uint32).view(np.int32)
    whole = pa.Table.from_arrays([pa.array(steps), pa.array(np.diff(times, prepend=0))], schema=_STEPS)
    if len(places) == len(sends):
        return whole
    return whole.append_column(_PLACE_STEP, pa.array(np.diff(places, prepend=0)))


def _sends(content: bytes) -> Sends:
    steps = from_ipc(content)
    sqns = (np.cumsum(steps["sqn_step"].to_numpy(), dtype=np.int64) % _WRAP).astype(np.uint32)
    times = np.cumsum(steps["step_ns"].to_numpy(), dtype=np.int64)
    if _PLACE_STEP in steps.column_names:
        return Sends.of_kept(sqns, times, np.cumsum(steps[_PLACE_STEP].to_numpy()))
    return Sends.of(sqns, times)


def with_sends(rows: pa.RecordBatch, change: Callable[[Stream, Sends], Sends]) -> pa.RecordBatch:
    """Return packed rows with changed sendings. `change` gets the stream and its sendings in one row."""
    changed = [
        ipc(_steps(change(tuple(stream), _sends(content)))) if frame == "sends" else content
        for *stream, frame, content in zip(
            *(rows[name].to_pylist() for name in (*_STREAM, "frame", "content")), strict=True
        )
    ]
    return rows.set_column(
        rows.schema.get_field_index("content"), PACKED.field("content"), pa.array(changed, pa.binary())
    )


def unpacked(rows: Iterable[pa.Table | pa.RecordBatch], *, spills: bool = False) -> dict[int, Facts]:
    """Return the facts of all rows together, by window. If `spills`, what grows with captures is kept in files."""
    pieces: dict[int, Pieces] = {}
    for table in rows:
        for row in table.to_pylist():
            of_window = pieces.setdefault(row["window_ns"], Pieces(spills=spills))
            name, content = row["frame"], row["content"]
            if name == PACKETS:
                of_window.packets += int.from_bytes(content, "little")
            elif name == "sends":
                stream = (row["point"], row["publisher"], row["session_id"], row["receiver"])
                of_window.add_sends(stream, _sends(content))
            else:
                frame = pl.DataFrame(from_ipc(content), schema=frame_schema(name))
                of_window.add(name, frame)
    return {window_ns: found.facts() for window_ns, found in sorted(pieces.items())}
