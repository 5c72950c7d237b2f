"""The traffic of each session in a time window and its repair times, from the facts of that window alone.

Sequence numbers are not unwrapped: within a window that is unnecessary.
"""

from __future__ import annotations

import polars as pl

from umstack.analysis import once
from umstack.analysis.losses import percentiles, request_ns
from umstack.analysis.traffic import IP_AND_UDP_BYTES
from umstack.capture.reading.schema import LBTTCP
from umstack.facts.facts import Facts
from umstack.facts.kinds import DATA, NAK, NCF, RETRANSMISSION, SESSION

_WHO = (*SESSION, "receiver")


def traffic(window: Facts, mtu: int) -> pl.DataFrame:
    """Return one row per session and receiver with the receiver's requests; the row without a receiver is the
    source's."""
    kind, many = pl.col("kind"), pl.col("packets")
    original = kind == DATA
    space = mtu - IP_AND_UDP_BYTES
    sent, streamed = once.counts(window), pl.col("transport") == LBTTCP
    counted = (
        sent.filter(~streamed)
        .group_by(_WHO)
        .agg(
            datagrams=many.filter(original).sum(),
            messages=pl.col("messages").filter(original).sum(),
            fill=pl.when(many.filter(original).sum() > 0).then(
                pl.col("udp_bytes").filter(original).sum() / (many.filter(original).sum() * space)
            ),
            retransmissions=many.filter(kind == RETRANSMISSION).sum(),
            naks=many.filter(kind == NAK).sum(),
        )
    )
    nobody = pl.lit(None, pl.String).alias("receiver")
    streams = sent.filter(streamed).select(SESSION).unique().join(_streamed(window), list(SESSION), "left")
    nothing = [
        pl.lit(0, counted.schema[name]).alias(name) for name in ("datagrams", "retransmissions", "naks")
    ]
    streams = streams.with_columns(nobody, pl.lit(None, pl.Float64).alias("fill"), *nothing)
    counted = pl.concat([counted, streams.select(counted.columns)])
    volume = once.rates(window).group_by(SESSION).agg(pl.col("bytes").sum()).with_columns(nobody)
    numbers = pl.col("sqns").list.len()
    rare = window.frame("rare")
    nak_rows = rare.filter(kind == NAK).group_by(_WHO).agg(requests=numbers.sum().cast(pl.Int64))
    # A copy of an NCF is sent to every receiver of LBT-RU.
    refusals = rare.filter(kind == NCF).group_by(_WHO).agg(refused=numbers.sum().cast(pl.Int64))
    refused = refusals.group_by(SESSION).agg(pl.col("refused").max()).with_columns(nobody)
    nak_rows = nak_rows.join(refused, _WHO, "full", coalesce=True, nulls_equal=True)
    transports = window.counts.group_by(SESSION).agg(pl.col("transport").max())
    counted = counted.join(transports, list(SESSION), "left")
    whole = counted.join(volume, _WHO, "left", nulls_equal=True).join(
        nak_rows, _WHO, "left", nulls_equal=True
    )
    zero = [pl.col(name).fill_null(0) for name in ("bytes", "requests", "refused")]
    names = (
        "transport",
        "datagrams",
        "bytes",
        "messages",
        "fill",
        "retransmissions",
        "naks",
        "requests",
        "refused",
    )
    return whole.with_columns(zero).select(*_WHO, *names).sort(_WHO)


def _streamed(window: Facts) -> pl.DataFrame:
    """Return the messages of each LBT-TCP session."""
    return once.topics(window).group_by(SESSION).agg(pl.col("messages").sum())


def recovery(window: Facts) -> pl.DataFrame:
    """Return one row per session: losses that were NAKed, repairs, and repair times.

    A loss that is repaired in the next window counts as open.
    """
    number = [*SESSION, "sqn"]
    rows = window.frame("rare")
    nak_rows = rows.filter(pl.col("kind") == NAK).drop("sqn").explode("sqns").rename({"sqns": "sqn"})
    nak_rows = (
        nak_rows.filter(pl.col("sqn").is_not_null()).group_by(number).agg(nak_ns=pl.col("time_ns").min())
    )
    again = rows.filter(pl.col("kind") == RETRANSMISSION).group_by(number)
    lost = nak_rows.join(again.agg(repaired_ns=pl.col("time_ns").max()), number, "left")
    took = request_ns()
    spread = percentiles(pl.col("took"), "request")
    return (
        lost.with_columns(took=took)
        .group_by(SESSION)
        .agg(*spread, lost=pl.len().cast(pl.Int64), repaired=pl.col("took").count().cast(pl.Int64))
        .select(*SESSION, "lost", "repaired", "request_p50", "request_p99")
        .sort(SESSION)
    )
