"""NAKs, NCFs and retransmissions with unwrapped sequence numbers, in slices that memory can hold.

Each slice has all rows of its numbers, so whatever is computed per number, such as a loss and its repair, is computed
slice by slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl

from umstack.analysis.numbering import Reference, Session, unwrapped
from umstack.capture.reading.schema import LBTRU
from umstack.facts.facts import Facts
from umstack.facts.kinds import NAK, NCF, RETRANSMISSION, SESSION
from umstack.facts.row_pile import SLICE_ROWS, RowPile

_BLOCK_BITS = (14, 17)
"""Fewest and most bits of the numbers of a block, whose rows are in one slice."""
_NO_BLOCK = -1 << 62
_ORDER = (*SESSION, "time_ns", "kind", "point", "receiver", "sqn", "ncf_reason", "udp_bytes")


@dataclass(frozen=True, slots=True)
class Rare:
    """NAKs, NCFs and retransmissions with unwrapped sequence numbers, one row per number, in order of time.

    `copy` is the receiver that sent the datagram or was sent it (LBT-RU); "" for a multicast group.
    """

    naks: pl.DataFrame
    ignored: pl.DataFrame
    repairs: pl.DataFrame
    refusals: pl.DataFrame
    """Refused sequence numbers, with the reason in lower case."""

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Rare:
        """Divide rows by their kind."""
        rows = rows.sort(_ORDER).with_columns(pl.col("ncf_reason").str.to_lowercase())
        kind = pl.col("kind")
        refusals = rows.filter(kind == NCF)
        return cls(
            naks=rows.filter(kind == NAK),
            ignored=refusals.filter(pl.col("ncf_reason") == "ignored"),
            repairs=rows.filter(kind == RETRANSMISSION),
            refusals=refusals,
        )


class RareSlices:
    """The rows of facts in slices, each with all rows of its numbers. A number in a truncated packet is null."""

    def __init__(self, rows: RowPile) -> None:
        """Create them from rows by session and block of numbers."""
        self._rows = rows
        self._held: Rare | None = None

    @classmethod
    def of(cls, facts: Facts, known: dict[Session, Reference]) -> RareSlices:
        """Unwrap the numbers of facts with the references of their sessions."""
        unicast = unicast_sessions(facts)
        pile = RowPile(spills=facts.rare.spills)
        block = (pl.col("sqn") // 2 ** _block_bits(facts)).fill_null(_NO_BLOCK)
        for rows in facts.rare.slices():
            pile.add_by(_numbered(rows, unicast, known), *map(pl.col, SESSION), block)
        return cls(pile)

    def __iter__(self) -> Iterator[Rare]:
        """Yield the slices; at least one."""
        if self._rows.is_in_file:
            return map(Rare.of, self._rows.slices())
        return iter([self.whole()])

    def whole(self) -> Rare:
        """Return all rows. Memory holds them."""
        if self._held is None:
            self._held = Rare.of(self._rows.frame())
        return self._held

    def changed(self, change: Callable[[pl.DataFrame], pl.DataFrame]) -> RareSlices:
        """Return the slices with changed rows; their numbers must stay."""
        return RareSlices(self._rows.changed(change))


def _block_bits(facts: Facts) -> int:
    """Return the bits of a block's numbers. The rarer the rows, the more numbers, because each block is written alone:
    a quarter of a slice on average."""
    numbers_per_row = max(1, sum(map(len, facts.sends.values()))) / max(1, len(facts.rare))
    fewest, most = _BLOCK_BITS
    return min(most, max(fewest, int(math.log2(numbers_per_row * SLICE_ROWS / 4))))


def _numbered(rows: pl.DataFrame, unicast: pl.DataFrame, known: dict[Session, Reference]) -> pl.DataFrame:
    copied = pl.when("is_unicast").then("receiver").otherwise(pl.lit(""))
    rows = rows.join(unicast, list(SESSION), "left").with_columns(copy=copied).drop("is_unicast")
    lists = rows.filter(pl.col("kind").is_in([NAK, NCF])).filter(pl.col("sqns").list.len() > 0)
    listed = lists.drop("sqn").explode("sqns").rename({"sqns": "sqn"})
    again = rows.filter(pl.col("kind") == RETRANSMISSION).drop("sqns")
    # A number in a truncated packet stays unknown.
    is_known = pl.col("sqn").is_not_null()
    parts = [listed.select(again.columns), again.filter(is_known)]
    return pl.concat([*(unwrapped(part, known) for part in parts), again.filter(~is_known)])


def by_window(rows: pl.DataFrame, windows: int) -> dict[int, pl.DataFrame]:
    """Divide the rows `rare` of facts into windows of numbers. All rows of a wire number are in the same window.

    A NAK or NCF for several numbers becomes one row for each.
    """
    is_list, sqns = pl.col("kind").is_in([NAK, NCF]), pl.col("sqns")
    listed = rows.filter(is_list & (sqns.list.len() > 0)).explode("sqns").with_columns(number="sqns")
    listed = listed.with_columns(pl.concat_list("sqns"))
    divided = pl.concat([listed, rows.filter(~is_list).with_columns(number="sqn")], how="vertical_relaxed")
    window = (pl.col("number") // 2 ** _BLOCK_BITS[0] % windows).fill_null(0)
    parts = divided.with_columns(window.alias("window")).drop("number")
    found = parts.partition_by("window", as_dict=True, include_key=False).items()
    return {int(number): part for (number,), part in found}


def unicast_sessions(facts: Facts) -> pl.DataFrame:
    """Return the sessions of LBT-RU, with a column `is_unicast` that is true."""
    found = facts.counts.filter(pl.col("transport") == LBTRU).select(SESSION).unique()
    return found.with_columns(is_unicast=pl.lit(True))
