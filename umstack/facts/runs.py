"""Runs of topic sequence numbers that a connection of LBT-TCP carried: what is not in them did not reach the receiver.

Within a connection every message comes once and in order, so runs are few: one a topic, and one more for each gap.
Those of two parts of a capture, in any order, are those of the whole: runs that touch are one.
"""

from __future__ import annotations

import polars as pl

_TOPIC = ("point", "publisher", "session_id", "receiver", "topic_index")


def runs_of(messages: pl.DataFrame) -> pl.DataFrame:
    """Of messages (the columns of a topic, `topic_sqn`, `time_ns`), however often and in whatever order they are."""
    number, time = pl.col("topic_sqn"), pl.col("time_ns")
    each = messages.select(*_TOPIC, first_sqn=number, last_sqn=number, first_ns=time, last_ns=time)
    return coalesced(each)


def coalesced(runs: pl.DataFrame) -> pl.DataFrame:
    """Runs without two that touch or overlap, in order."""
    topic = list(_TOPIC)
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
