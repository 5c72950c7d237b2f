"""Runs of topic sequence numbers that a connection of LBT-TCP carried: what is not in them did not reach the receiver;
and runs of datagrams that a receiver over LBT-RU was sent or passed over, for a source that filters.

Within a connection every message comes once and in order, so runs are few: one a topic, and one more for each gap.
Those of two parts of a capture, in any order, are those of the whole: runs that touch are one.
"""

from __future__ import annotations

import polars as pl

from umstack.facts.kinds import DATA, EPOCH_NS

_TOPIC = ("point", "publisher", "session_id", "receiver", "topic_index")


def runs_of(messages: pl.DataFrame) -> pl.DataFrame:
    """Of messages (the columns of a topic, `topic_sqn`, `time_ns`), however often and in whatever order they are."""
    number, time = pl.col("topic_sqn"), pl.col("time_ns")
    each = messages.select(*_TOPIC, first_sqn=number, last_sqn=number, first_ns=time, last_ns=time)
    return coalesced(each)


_PASSED_BITS = 0x0FFF
"""Of the flags of DATA over LBT-RU: how many datagrams before it were not for this receiver (UM_LBTRU_PASSED_MAX)."""
_STREAM = ("point", "publisher", "session_id", "receiver")
_WRAP = 2**32


def passed_of(kind: str, rows: pl.DataFrame) -> pl.DataFrame:
    """What labelled packets over LBT-RU of a kind, DATA or FILTER, say that receivers were passed over: runs of the
    wire's numbers, of DATA with its own number, so that they touch. None wraps."""
    if kind == DATA:
        passed = pl.col("transport_flags").cast(pl.Int64) & _PASSED_BITS
        told = rows.filter(pl.col("sqn").is_not_null() & (passed > 0))
        ends = {"first_sqn": (pl.col("sqn") - passed) % _WRAP, "last_sqn": pl.col("sqn")}
    else:
        told = rows.filter(pl.col("sqns").list.len() == 2)
        ends = {"first_sqn": pl.col("sqns").list.first(), "last_sqn": pl.col("sqns").list.last()}
    runs = told.select(*_STREAM, **ends, first_ns="time_ns", last_ns="time_ns")
    wraps = pl.col("first_sqn") > pl.col("last_sqn")
    before = runs.filter(wraps).with_columns(last_sqn=pl.lit(_WRAP - 1, pl.Int64))
    behind = runs.filter(wraps).with_columns(first_sqn=pl.lit(0, pl.Int64))
    return passed_coalesced(pl.concat([runs.filter(~wraps), before, behind]))


def passed_coalesced(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs of datagrams without two of a minute that touch: what unwraps them is the reference of their minute."""
    by_minute = runs.with_columns(epoch=pl.col("first_ns") // EPOCH_NS)
    return coalesced(by_minute, (*_STREAM, "epoch")).select(runs.columns)


def coalesced(runs: pl.DataFrame, of: tuple[str, ...] = _TOPIC) -> pl.DataFrame:
    """Runs without two of the same `of` that touch or overlap, in order."""
    topic = list(of)
    before = pl.col("last_sqn").cum_max().shift().over(topic)
    begins = (pl.col("first_sqn") > before + 1).fill_null(True)
    ordered = runs.sort(*topic, "first_sqn", "last_sqn", "first_ns", "last_ns")
    return (
        ordered.with_columns(run=begins.cast(pl.Int64).cum_sum())
        .group_by([*topic, "run"], maintain_order=True)
        .agg(
            pl.col("first_sqn").min(),
            pl.col("last_sqn").max(),
            pl.col("first_ns").min(),
            pl.col("last_ns").max(),
        )
        .drop("run")
    )
