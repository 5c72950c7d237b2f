"""Bronze and gold tables of recorded messages: each batch adds files, and the totals of its days are made again."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pyarrow.compute as pc

from umstack.pipeline.layout import BRONZE, GOLD, MESSAGE_COUNTS, MESSAGES, Layout, Partition
from umstack.pipeline.parts import add_part, merged_parts, write_parquet
from umstack.pipeline.table_schema import message_schema, schemas
from umstack.recorder.parquet_parts import partitions
from umstack.recorder.tables import messages

_SOURCE = ("topic", "source")
_TOTALS = (
    *(("first_ns", "min"), ("last_ns", "max"), ("messages", "sum"), ("payload_bytes", "sum")),
    *(("first_sequence_number", "min"), ("last_sequence_number", "max")),
)
_COUNTED = [*_SOURCE, *(name for name, _ in _TOTALS)]


def take_messages(layout: Layout, batch: int, rows: pa.Table) -> list[Partition]:
    """Add the messages of a batch, all of one session; return their partitions."""
    parts = partitions(rows, messages())
    taken = []
    for (day_name, session), share in parts:
        day = date.fromisoformat(day_name)
        taken.append((day, session))
        with layout.session_locked(session):
            add_part(layout.partition(BRONZE, MESSAGES, day, session), batch, share.cast(message_schema()))
            counts = layout.partition(BRONZE, MESSAGE_COUNTS, day, session)
            add_part(counts, batch, _merged(_counts(share)))
            file = layout.partition(GOLD, "message_days", day, session) / "rows.parquet"
            write_parquet(file, _with_missing(merged_parts(counts, _merged)))
    return taken


def _counts(rows: pa.Table) -> pa.Table:
    """Return a count of one for each message."""
    number, received_ns = rows["sequence_number"], rows["received_ns"]
    one = pa.repeat(pa.scalar(1, pa.int64()), len(rows))
    size = pc.binary_length(rows["payload"]).cast(pa.int64())
    columns = [rows["topic"], rows["source"], received_ns, received_ns, one, size, number, number]
    return pa.table(columns, names=_COUNTED)


def _merged(counts: pa.Table) -> pa.Table:
    """Return one row per topic and source."""
    merged = counts.group_by([*_SOURCE]).aggregate([*_TOTALS]).rename_columns(_COUNTED)
    return merged.sort_by([(name, "ascending") for name in _SOURCE])


def _with_missing(counts: pa.Table) -> pa.Table:
    numbers = pc.add(pc.subtract(counts["last_sequence_number"], counts["first_sequence_number"]), 1)
    rows = counts.append_column("missing", pc.subtract(numbers, counts["messages"]))
    return rows.cast(schemas()[GOLD]["message_days"])
