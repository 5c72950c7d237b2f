"""Adds the columns that facts are grouped by: the session of a packet, its receiver, and its block of the session.

A session is identified by the address of its source and by a number, `session_id` of the facts. Two processes of a host
may use one session id, but not one port, so the number of an LBT-RM session is its session id plus 2^32 times its NAK
port, which every LBT-RM packet carries. For LBT-RU the port is the source's UDP port. An LBT-RU session without a
session id, and every LBT-TCP session, has the negative port as its number. TCP segments carry no session id, but all
have the port.

Tables show the session id alone, unless sessions of one publisher share it (`short_numbers`): they show the number.

A receiver of LBT-RM is the address and port that its NAKs come from, because several processes of a host may receive
one session. Tables show the address alone, unless receivers of one session share it (`short_receivers`).

Sources of LBT-RU and LBT-TCP send a separate copy to each receiver. `receiver_end` is the receiver's address and port,
in both directions. Facts must count a message once, but a packet does not show whether it is the first copy. Therefore
copies are counted per receiver and block of consecutive numbers (`block`), and the receiver with the most copies in a
block gives the count of that block (`umstack.analysis.once`). The count is exact if one receiver received the whole
block, and it does not depend on how the parts of a capture are combined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from umstack.capture.reading.schema import LBTRM, LBTRU
from umstack.facts.row_pile import in_slices

BLOCK_BITS = 8
"""Bits of a block: 256 datagram numbers (LBT-RU, UM_TALLY_BLOCK_BITS of the core) or topic numbers (LBT-TCP)."""
RECEIVER_END = pa.field("receiver_end", pa.string())
BLOCK = pa.field("block", pa.int64())
_TCP, _DATA, _RESET = "TCP", "DATA", "RST"
_PORT_AT = 32
"""The bit of a number at which the port of the source begins."""
_ID = (1 << _PORT_AT) - 1

_END = re.compile(r"^(?:\[(.+)\]|([^:]+)):\d+$")
"""An address and a port in the notation of `receiver_ends`."""

Session = tuple[str, int]
"""The publisher and the number of a session."""
Receiver = tuple[str, int, str]
"""A session and the address and port that one of its receivers sends NAKs from."""
_Key = TypeVar("_Key", bound=tuple[Any, ...])
_Name = TypeVar("_Name")


def session_number(session_id: int, port: int) -> int:
    """Return the number of a session that has a session id."""
    return port << _PORT_AT | session_id


def parts_of(number: int) -> tuple[int, int]:
    """Return the session id and the port of a number. The port is 0 if the number has none apart from its id."""
    return (number, 0) if number < 0 else (number & _ID, number >> _PORT_AT)


def short_numbers(
    sessions: Iterable[Session], taken: Mapping[Session, int] | None = None
) -> dict[Session, int]:
    """Return the number that tables show for each session: its session id, if no other session shows that.

    Sessions of one publisher and id all show their numbers. Those in `taken` (shown numbers by session) keep theirs: of
    sessions with one id, the first shows the id.
    """
    return _shown(sessions, taken or {}, lambda number: parts_of(number)[0])


def short_receivers(
    receivers: Iterable[Receiver], taken: Mapping[Receiver, str] | None = None
) -> dict[Receiver, str]:
    """Return the name that tables show for each receiver: its address, if no other receiver of its session has that.

    Receivers of one host all show their ports. Those in `taken` (shown names by receiver) keep theirs.
    """
    return _shown(receivers, taken or {}, lambda end: _END.sub(r"\1\2", end))


def _shown(
    wanted: Iterable[_Key], taken: Mapping[_Key, _Name], short: Callable[[Any], Any]
) -> dict[_Key, _Name]:
    """Return the shown name of each key: `short` of its last part, if no other key of its first parts shows that."""
    shown = dict(taken)
    used = {(*key[:-1], name) for key, name in shown.items()}
    sharing: dict[tuple[Any, ...], list[_Key]] = {}
    for key in {*wanted} - shown.keys():
        sharing.setdefault((*key[:-1], short(key[-1])), []).append(key)
    for name, those in sharing.items():
        is_free = len(those) == 1 and name not in used
        shown |= {one: name[-1] if is_free else one[-1] for one in those}
    return shown


def sessions_in(tables: Iterable[pl.DataFrame]) -> set[Session]:
    """Return all sessions of tables."""
    found: set[Session] = set()
    for table in tables:
        if _has_sessions(table):
            for rows in in_slices(table.select(_SESSION)):
                found.update(rows.unique().drop_nulls().rows())
    return found


def renumbered(table: pl.DataFrame, numbers: Mapping[Session, int]) -> pl.DataFrame:
    """Return the table with these numbers of sessions."""
    if not numbers or not _has_sessions(table):
        return table
    number = pl.col("session_id")
    if all(shown == parts_of(one)[0] for (_, one), shown in numbers.items()):
        return table.with_columns(
            pl.when(number < 0).then(number).otherwise(number & _ID).alias("session_id")
        )
    rows = [(*session, shown) for session, shown in numbers.items()]
    known = pl.DataFrame(
        rows, {"publisher": pl.String, "session_id": pl.Int64, "shown": pl.Int64}, orient="row"
    )
    joined = table.join(known, _SESSION, "left", maintain_order="left")
    return joined.with_columns(session_id=pl.coalesce("shown", "session_id")).drop("shown")


def receivers_in(counts: pl.DataFrame) -> set[Receiver]:
    """Return the receivers of multicast sessions whose port is known, from the facts `counts`."""
    own = counts.filter((pl.col("transport") == LBTRM) & pl.col("receiver").str.contains(_END.pattern))
    return {*own.select(*_RECEIVER).unique().rows()}


def with_receivers(table: pl.DataFrame, names: Mapping[Receiver, str]) -> pl.DataFrame:
    """Return the table with these names of receivers."""
    if not names:
        return table
    rows = [(*receiver, shown) for receiver, shown in names.items()]
    types = {"publisher": pl.String, "session_id": pl.Int64, "receiver": pl.String, "shown": pl.String}
    joined = table.join(pl.DataFrame(rows, types, orient="row"), _RECEIVER, "left", maintain_order="left")
    return joined.with_columns(receiver=pl.coalesce("shown", "receiver")).drop("shown")


def receiver_ends(addresses: pa.Array, ports: pa.Array) -> pa.Array:
    """Return addresses with their ports, as `10.1.2.3:14400` or `[ff15::7]:14400`; without one that is null."""
    bracketed = pc.binary_join_element_wise("[", addresses, "]", "")
    hosts = pc.if_else(pc.match_substring(addresses, ":"), bracketed, addresses)
    return pc.coalesce(pc.binary_join_element_wise(hosts, ports.cast(pa.string()), ":"), addresses)


_SESSION = ["publisher", "session_id"]
_RECEIVER = [*_SESSION, "receiver"]


def _has_sessions(table: pl.DataFrame) -> bool:
    return bool(len(table)) and set(_SESSION) <= set(table.columns)


def identified(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with the columns `receiver_end` and `block`, and the number of a session as `session_id`."""
    at, field = batch.schema.get_field_index("session_id"), batch.schema.field("session_id")
    batch = batch.set_column(at, field, _numbers(batch.column("session_id"), batch.column("nak_port")))
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
    port = end("port", of_source=True)
    known = pc.if_else(of_lbtru, _numbers(session_id, port), session_id)
    known = pc.if_else(by_port, pc.negate(port.cast(pa.int64())), known)
    ends = pc.binary_join_element_wise(
        end("address", of_source=False), end("port", of_source=False).cast(pa.string()), ":"
    )
    numbered = pc.and_(of_lbtru, _is(batch, "packet_type", _DATA))
    number = pc.if_else(numbered, pc.fill_null(batch.column("transport_sqn"), 0), 0)
    whole = batch.set_column(at, field, known)
    whole = whole.append_column(RECEIVER_END, pc.if_else(unicast, ends, pa.scalar(None, pa.string())))
    return whole.append_column(BLOCK, pc.shift_right(number, BLOCK_BITS))


def has_segments(batch: pa.RecordBatch) -> bool:
    """Return true if any packet is TCP."""
    return bool(batch.column("tcp_bytes").null_count < len(batch))


def advertised_session(advertised: dict[str, Any]) -> int | None:
    """Return the number of the session of an advertisement."""
    port, session_id = advertised["source_port"], advertised["session_id"]
    if port is not None and (session_id is None or advertised["transport"] != LBTRU):
        return -int(port)
    return None if session_id is None else session_number(session_id, port or advertised["nak_port"] or 0)


def _numbers(session_ids: pa.Array, ports: pa.Array) -> pa.Array:
    """Return the numbers of sessions; a port that is null is 0."""
    known = pc.fill_null(ports, 0).cast(pa.int64())
    return pc.bit_wise_or(session_ids, pc.shift_left(known, pa.scalar(_PORT_AT, pa.int64())))


def _is(batch: pa.RecordBatch, column: str, text: str) -> pa.Array:
    return pc.fill_null(pc.equal(batch.column(column), text), False)
