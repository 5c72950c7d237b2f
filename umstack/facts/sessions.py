"""Which session a packet is of, whose copy it is, and which part of the session: columns that facts are counted by.

A session of LBT-RM is known by its source's address and its session id. So is one of LBT-RU, unless it has none; that
one, and each of LBT-TCP, is known by its source's port: `session_id` is then the negative of the port, which no id on
the wire is. Segments in the middle of a connection name no session id, but all have the port.

The sources of LBT-RU and LBT-TCP send each receiver a copy of its own: `receiver_end` is the address and port that has
it, of what the receiver sends as well. What was sent is counted once, though no packet says whether it is the first of
its copies: copies are counted apart, by blocks of consecutive numbers (`block`), and of each block those of the
receiver that was sent most of it are what was sent (`umstack.analysis.once`). That is exact where one receiver was
there for the whole block, and it is the same however the parts of a capture are added up.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from umstack.capture.reading.schema import LBTRU

BLOCK_BITS = 8
"""Numbers of a block: of LBT-RU those of datagrams (UM_TALLY_BLOCK_BITS of the core), of LBT-TCP those of a topic."""
RECEIVER_END = pa.field("receiver_end", pa.string())
BLOCK = pa.field("block", pa.int64())
_TCP, _DATA, _RESET = "TCP", "DATA", "RST"


def identified(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with the columns `receiver_end` and `block`, and with `session_id` as facts know a session by."""
    if not has_segments(batch) and not pc.any(pc.equal(batch.column("transport"), LBTRU)).as_py():
        return batch.append_column(RECEIVER_END, pa.nulls(len(batch), RECEIVER_END.type)).append_column(
            BLOCK, pa.repeat(pa.scalar(0, BLOCK.type), len(batch))
        )
    of_tcp = pc.and_(_is(batch, "packet_type", _TCP), pc.is_null(batch.column("recovery")))
    of_lbtru = _is(batch, "transport", LBTRU)
    unicast = pc.or_(of_tcp, of_lbtru)
    to_source = pc.fill_null(batch.column("to_source"), False)

    def end(name: str, of_source: bool) -> pa.Array:
        where = (f"destination_{name}", f"source_{name}")
        return pc.if_else(to_source, *(batch.column(one) for one in (where if of_source else where[::-1])))

    session_id = batch.column("session_id")
    nameless = pc.and_(pc.is_null(session_id), pc.invert(_is(batch, "packet_type", _RESET)))
    by_port = pc.or_(of_tcp, pc.and_(of_lbtru, nameless))
    known = pc.if_else(by_port, pc.negate(end("port", of_source=True).cast(pa.int64())), session_id)
    ends = pc.binary_join_element_wise(
        end("address", of_source=False), end("port", of_source=False).cast(pa.string()), ":"
    )
    numbered = pc.and_(of_lbtru, _is(batch, "packet_type", _DATA))
    number = pc.if_else(numbered, pc.fill_null(batch.column("transport_sqn"), 0), 0)
    at = batch.schema.get_field_index("session_id")
    whole = batch.set_column(at, batch.schema.field(at), known)
    whole = whole.append_column(RECEIVER_END, pc.if_else(unicast, ends, pa.scalar(None, pa.string())))
    return whole.append_column(BLOCK, pc.shift_right(number, BLOCK_BITS))


def has_segments(batch: pa.RecordBatch) -> bool:
    """Whether any packet is TCP."""
    return bool(batch.column("tcp_bytes").null_count < len(batch))


def session_number(advertised: dict[str, Any]) -> int | None:
    """The number that facts know the session of an advertisement by."""
    port, session_id = advertised["source_port"], advertised["session_id"]
    by_port = port is not None and (session_id is None or advertised["transport"] != LBTRU)
    number: int | None = -port if by_port else session_id
    return number


def _is(batch: pa.RecordBatch, column: str, text: str) -> pa.Array:
    return pc.fill_null(pc.equal(batch.column(column), text), False)
