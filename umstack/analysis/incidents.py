"""Loss incidents: losses of one receiver that belong together, and what they look like they were caused by.

Losses are merged as long as they follow each other within a quiet time, but a burst within losses here and there is an
incident of its own. The shape of what came of that names the cause:

    head          it begins with the first datagram of the session: the receiver, or the capture, came late
    tail          it ends with the last datagram before a pause: only a session message could tell of it
    connectivity  everything was lost for so long that a path must have been away
    burst         most were lost several in a row: a queue or a socket buffer overflowed
    sporadic      single datagrams here and there: a link with errors, or a policer
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.losses import losses
from umstack.analysis.observations import DATA, SESSION

MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What tells incidents and their causes apart."""

    quiet_ns: int = 50 * MS
    """So long without loss ends an incident."""
    burst_run: int = 4
    """So many lost in a row are a burst."""
    connectivity_ns: int = 100 * MS
    """Everything lost for so long is a path that was away."""
    pause_ns: int = 100 * MS
    """So long without a datagram makes the one before it a last one."""


DEFAULTS = Thresholds()


def incidents(
    observations: DataFrame,
    thresholds: Thresholds = DEFAULTS,
    lost: DataFrame | None = None,
    known_sessions: DataFrame | None = None,
) -> DataFrame:
    """One row an incident: session, receiver, span, sequence numbers, `lost`, `unrepaired`, `longest_run` (and how
    long that lasted) and `cause`.

    `lost` is what `losses` gave, `known_sessions` what `sessions` did, where they were kept.
    """
    found = losses(observations) if lost is None else lost
    per_receiver = Window.partitionBy(*SESSION, "receiver")
    by_time = per_receiver.orderBy("lost_ns", "sqn")
    by_sqn = per_receiver.orderBy("sqn")
    parts = (
        found.withColumn("starts", F.col("lost_ns") - F.lag("lost_ns").over(by_time) > thresholds.quiet_ns)
        .withColumn("incident", F.count_if("starts").over(by_time))
        .withColumn("run", F.col("sqn") - F.row_number().over(by_sqn))
    )
    runs = parts.groupBy(*SESSION, "receiver", "incident", "run").agg(
        F.min("lost_ns").alias("start_ns"),
        F.max("lost_ns").alias("end_ns"),
        F.min("sqn").alias("first_sqn"),
        F.max("sqn").alias("last_sqn"),
        F.count("*").alias("lost"),
        F.count_if(F.col("repaired_ns").isNull()).alias("unrepaired"),
        (F.max("lost_ns") - F.min("lost_ns")).alias("run_ns"),
    )
    whole = Window.partitionBy(*SESSION, "receiver", "incident")
    is_burst = F.col("lost") >= thresholds.burst_run
    in_bursts = F.sum(F.when(is_burst, F.col("lost")).otherwise(0)).over(whole)
    # A burst within losses here and there has a cause of its own.
    apart = is_burst & (2 * in_bursts < F.sum("lost").over(whole))
    split = runs.withColumn("burst", F.when(apart, F.col("run")))
    merged = split.groupBy(*SESSION, "receiver", "incident", "burst").agg(
        F.min("start_ns").alias("start_ns"),
        F.max("end_ns").alias("end_ns"),
        F.min("first_sqn").alias("first_sqn"),
        F.max("last_sqn").alias("last_sqn"),
        F.sum("lost").alias("lost"),
        F.sum("unrepaired").alias("unrepaired"),
        F.max("lost").alias("longest_run"),
        F.sum(F.when(F.col("lost") >= thresholds.burst_run, F.col("lost")).otherwise(0)).alias("in_bursts"),
        F.max("run_ns").alias("longest_run_ns"),
    )
    spans = _spans(observations) if known_sessions is None else known_sessions
    marked = _with_ends(merged, found, observations, spans, thresholds)
    cause = (
        F.when(F.col("longest_run_ns") >= thresholds.connectivity_ns, "connectivity")
        .when(F.col("first_sqn") <= F.col("session_first_sqn"), "head")
        .when(F.col("is_last"), "tail")
        .when(2 * F.col("in_bursts") >= F.col("lost"), "burst")
        .otherwise("sporadic")
    )
    return marked.withColumn("cause", cause).drop(
        "is_last", "session_first_sqn", "incident", "burst", "in_bursts"
    )


def _spans(observations: DataFrame) -> DataFrame:
    """The first and last sequence number sent in a session, as a row of `sessions` has them."""
    originals = observations.where(F.col("kind") == DATA)
    return originals.groupBy(*SESSION).agg(F.min("sqn").alias("first_sqn"), F.max("sqn").alias("last_sqn"))


def _with_ends(
    merged: DataFrame, lost: DataFrame, observations: DataFrame, spans: DataFrame, thresholds: Thresholds
) -> DataFrame:
    """Incidents with the session's first sequence number, and whether a pause followed the last one lost."""
    originals = observations.where(F.col("kind") == DATA)
    # What is sent right after an incident's last loss says whether it was a tail. Looked for is what follows any loss:
    # which ones are last takes all of the plan of `merged` once more.
    followers = lost.select(*SESSION, (F.col("sqn") + 1).alias("sqn")).distinct()
    after = (
        originals.join(F.broadcast(followers), [*SESSION, "sqn"], "left_semi")
        .groupBy(*SESSION, (F.col("sqn") - 1).alias("last_sqn"))
        .agg(F.min("time_ns").alias("next_ns"))
    )
    ends_of_sessions = spans.groupBy(*SESSION).agg(
        F.min("first_sqn").alias("session_first_sqn"), F.max("last_sqn").alias("session_last_sqn")
    )
    joined = merged.join(F.broadcast(ends_of_sessions), list(SESSION), "left").join(
        after, [*SESSION, "last_sqn"], "left"
    )
    paused = F.col("next_ns") - F.col("end_ns") >= thresholds.pause_ns
    ends = F.col("last_sqn") >= F.col("session_last_sqn")
    return joined.withColumn("is_last", F.coalesce(paused, ends, F.lit(False))).drop(
        "next_ns", "session_last_sqn"
    )
