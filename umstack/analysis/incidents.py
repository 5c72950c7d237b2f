"""Incidents: the losses of a receiver that belong together, with their cause, from losses. docs/analysis.md defines
the causes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from umstack.analysis.losses import MS
from umstack.analysis.numbering import Seen, sent_times
from umstack.facts.kinds import SESSION

_RECEIVER = (*SESSION, "receiver")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds that separate incidents and their causes."""

    quiet_ns: int = 50 * MS
    """An incident ends after this long without a loss."""
    burst_run: int = 4
    """Minimum number of consecutive losses in a burst."""
    connectivity_ns: int = 100 * MS
    """If every datagram is lost for this long, it counts as a path outage."""
    pause_ns: int = 100 * MS
    """If no datagram follows for this long, the previous one counts as the last before a pause."""


def incidents(
    lost: Iterable[pl.DataFrame],
    known_sessions: pl.DataFrame,
    everything: list[Seen],
    thresholds: Thresholds | None = None,
) -> pl.DataFrame:
    """Return one row per incident: session, receiver, span, sequence numbers, number of losses, and cause.

    `lost` are losses in order, all losses of a receiver together.
    """
    limits = thresholds or Thresholds()
    merged = pl.concat([_merged(rows, limits) for rows in lost])
    ends = known_sessions.group_by(*SESSION).agg(
        session_first_sqn=pl.col("first_sqn").min(), session_last_sqn=pl.col("last_sqn").max()
    )
    followers = merged.select(*SESSION, sqn=pl.col("last_sqn") + 1)
    after = sent_times(everything, followers).select(
        *SESSION, last_sqn=pl.col("sqn") - 1, next_ns=pl.col("sent_ns")
    )
    paused = pl.col("next_ns") - pl.col("end_ns") >= limits.pause_ns
    is_last = pl.coalesce(paused, pl.col("last_sqn") >= pl.col("session_last_sqn"), pl.lit(False))
    cause = (
        pl.when(pl.col("longest_run_ns") >= limits.connectivity_ns)
        .then(pl.lit("connectivity"))
        .when(pl.col("first_sqn") <= pl.col("session_first_sqn"))
        .then(pl.lit("head"))
        .when(is_last)
        .then(pl.lit("tail"))
        .when(2 * pl.col("in_bursts") >= pl.col("lost"))
        .then(pl.lit("burst"))
        .otherwise(pl.lit("sporadic"))
    )
    return (
        merged.join(ends, list(SESSION), "left")
        .join(after, [*SESSION, "last_sqn"], "left")
        .with_columns(cause=cause)
        .drop("in_bursts", "session_first_sqn", "session_last_sqn", "next_ns")
        .sort(*_RECEIVER, "start_ns", "first_sqn")
    )


def _merged(lost: pl.DataFrame, limits: Thresholds) -> pl.DataFrame:
    """Return the incidents of some receivers, without their causes."""
    # A number for each receiver takes less memory than its names.
    who, at = pl.struct(_RECEIVER).rle_id(), pl.col("lost_ns")
    names = lost.select(*_RECEIVER, who=who).unique("who")
    starts = (at - at.shift().over("who") > limits.quiet_ns).fill_null(False)
    parts = (
        lost.select("lost_ns", "sqn", who=who, is_open=pl.col("repaired_ns").is_null())
        .sort("who", "lost_ns", "sqn")
        .with_columns(incident=starts.cast(pl.Int64).cum_sum().over("who"))
        .sort("who", "sqn")
        .with_columns(run=pl.col("sqn") - pl.int_range(pl.len()).over("who"))
    )
    runs = parts.group_by("who", "incident", "run").agg(
        start_ns=at.min(),
        end_ns=at.max(),
        first_sqn=pl.col("sqn").min(),
        last_sqn=pl.col("sqn").max(),
        lost=pl.len().cast(pl.Int64),
        unrepaired=pl.col("is_open").sum().cast(pl.Int64),
        run_ns=at.max() - at.min(),
    )
    many = pl.col("lost")
    whole = ["who", "incident"]
    is_burst = many >= limits.burst_run
    # A burst among sporadic losses is an incident with its own cause.
    apart = is_burst & (2 * many.filter(is_burst).sum().over(whole) < many.sum().over(whole))
    split = runs.with_columns(burst=pl.when(apart).then("run"))
    merged = split.group_by(*whole, "burst").agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("first_sqn").min(),
        pl.col("last_sqn").max(),
        many.sum().alias("lost"),
        pl.col("unrepaired").sum(),
        longest_run=many.max(),
        longest_run_ns=pl.col("run_ns").max(),
        in_bursts=many.filter(many >= limits.burst_run).sum(),
    )
    return names.join(merged, "who").drop("who", "incident", "burst")
