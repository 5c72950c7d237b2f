"""Adds the columns that facts are grouped by: the session of a packet, its receiver, and its block of the session.

An LBT-RM session is identified by its source's address and its session id. So is an LBT-RU session that has a session
id. An LBT-RU session without one, and every LBT-TCP session, is identified by its source's port: `session_id` is then
the negative port number, which is never an id on the wire. TCP segments carry no session id, but all have the port.

Sources of LBT-RU and LBT-TCP send a separate copy to each receiver. `receiver_end` is the receiver's address and port,
in both directions. Facts must count a message once, but a packet does not show whether it is the first copy. Therefore
copies are counted per receiver and block of consecutive numbers (`block`), and the receiver with the most copies in a
block gives the count of that block (`umstack.analysis.once`). The count is exact if one receiver received the whole
block, and it does not depend on how the parts of a capture are combined.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from umstack.capture.reading.schema import LBTRU

BLOCK_BITS = 8
"""Bits of a block: 256 datagram numbers (LBT-RU, UM_TALLY_BLOCK_BITS of the core) or topic numbers (LBT-TCP)."""
RECEIVER_END = pa.field("receiver_end", pa.string())
BLOCK = pa.field("block", pa.int64())
_TCP, _DATA, _RESET = "TCP", "DATA", "RST"


def identified(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the columns `receiver_end` and `block`, and `session_id` as facts identify a session."""
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
    """Return true if any packet is TCP."""
    return bool(batch.column("tcp_bytes").null_count < len(batch))


def session_number(advertised: dict[str, Any]) -> int | None:
    """Return the `session_id` in the facts for the session of an advertisement."""
    port, session_id = advertised["source_port"], advertised["session_id"]
    by_port = port is not None and (session_id is None or advertised["transport"] != LBTRU)
    number: int | None = -port if by_port else session_id
    return number


def _is(batch: pa.RecordBatch, column: str, text: str) -> pa.Array:
    return pc.fill_null(pc.equal(batch.column(column), text), False)
