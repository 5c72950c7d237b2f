"""Runs of sequence numbers: of the messages on an LBT-TCP connection, and of the datagrams that a filtering LBT-RU
source sent to a receiver or skipped. A topic sequence number outside the runs of its connection did not reach the
receiver.

A connection carries every message once and in order, so there are few runs: one per topic, plus one per gap. The runs
of two parts of a capture combine, in any order, into those of the whole, because adjacent runs are joined.
"""

from __future__ import annotations

import polars as pl

from umstack.facts.kinds import DATA, EPOCH_NS

_TOPIC = ("point", "publisher", "session_id", "receiver", "topic_index")


def runs_of(messages: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of messages, given in any order, with duplicates (columns of a topic, `topic_sqn`, `time_ns`)."""
    number, time = pl.col("topic_sqn"), pl.col("time_ns")
    each = messages.select(*_TOPIC, first_sqn=number, last_sqn=number, first_ns=time, last_ns=time)
    return coalesced(each)


_PASSED_BITS = 0x0FFF
"""The bits in the flags of LBT-RU DATA that count the datagrams skipped just before it (UM_LBTRU_PASSED_MAX)."""
_STREAM = ("point", "publisher", "session_id", "receiver")
_WRAP = 2**32


def passed_of(kind: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of datagrams skipped for receivers, from labelled LBT-RU packets of kind DATA or FILTER.

    The runs are of 32-bit wire numbers and never wrap. A run from DATA includes the datagram's own number, so that
    neighbouring runs are adjacent.
    """
    if kind == DATA:
        passed = pl.col("transport_flags").cast(pl.Int64) & _PASSED_BITS
        reports = rows.filter(pl.col("sqn").is_not_null() & (passed > 0))
        ends = {"first_sqn": (pl.col("sqn") - passed) % _WRAP, "last_sqn": pl.col("sqn")}
    else:
        reports = rows.filter(pl.col("sqns").list.len() == 2)
        ends = {"first_sqn": pl.col("sqns").list.first(), "last_sqn": pl.col("sqns").list.last()}
    runs = reports.select(*_STREAM, **ends, first_ns="time_ns", last_ns="time_ns")
    wraps = pl.col("first_sqn") > pl.col("last_sqn")
    before = runs.filter(wraps).with_columns(last_sqn=pl.lit(_WRAP - 1, pl.Int64))
    behind = runs.filter(wraps).with_columns(first_sqn=pl.lit(0, pl.Int64))
    return passed_coalesced(pl.concat([runs.filter(~wraps), before, behind]))


def passed_coalesced(runs: pl.DataFrame) -> pl.DataFrame:
    """Join adjacent runs of datagrams within each minute, because the reference of a minute unwraps its runs."""
    by_minute = runs.with_columns(epoch=pl.col("first_ns") // EPOCH_NS)
    return coalesced(by_minute, (*_STREAM, "epoch")).select(runs.columns)


def coalesced(runs: pl.DataFrame, of: tuple[str, ...] = _TOPIC) -> pl.DataFrame:
    """Join runs that are adjacent or overlap, separately for each value of the columns `of`. The result is sorted."""
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
