"""Rates and bursts: how fast it was sent, a millisecond at a time."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import DATA, RETRANSMISSION, SESSION
from umstack.facts.kinds import BUCKET_NS as BUCKET_NS


def rates(observations: DataFrame, bucket_ns: int = BUCKET_NS) -> DataFrame:
    """One row a session, point of capture and millisecond in which something was sent: datagrams and bytes."""
    is_repair = F.col("kind") == RETRANSMISSION
    start = F.expr(f"(time_ns div {bucket_ns}) * {bucket_ns}").alias("start_ns")
    return (
        observations.where(F.col("kind").isin(DATA, RETRANSMISSION))
        .groupBy("point", *SESSION, start)
        .agg(
            F.count("*").alias("datagrams"),
            F.sum("frame_bytes").alias("bytes"),
            F.count_if(is_repair).alias("retransmissions"),
            F.coalesce(F.sum(F.when(is_repair, F.col("frame_bytes"))), F.lit(0)).alias("retransmitted_bytes"),
        )
    )


def at_one_point(rated: DataFrame) -> DataFrame:
    """A session's rates where most of it was seen: two points of capture do not make twice the rate."""
    totals = rated.groupBy(*SESSION, "point").agg(F.sum("bytes").alias("total"))
    best = totals.groupBy(*SESSION).agg(F.max_by("point", F.struct("total", "point")).alias("point"))
    return rated.join(F.broadcast(best), [*SESSION, "point"], "left_semi")


def rate_summary(rated: DataFrame, bucket_ns: int = BUCKET_NS, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a session and point of capture: mean, p99 and peak of the milliseconds in which it sent, in bytes/s.

    `by` names more columns that tell rows apart.
    """
    per_second = 1e9 / bucket_ns
    spread = F.percentile_approx("bytes", [0.5, 0.99], 10_000)
    return rated.groupBy("point", *SESSION, *by).agg(
        F.count("*").alias("busy_buckets"),
        (F.avg("bytes") * per_second).alias("busy_bytes_per_second"),
        (spread[0] * per_second).alias("p50_bytes_per_second"),
        (spread[1] * per_second).alias("p99_bytes_per_second"),
        (F.max("bytes") * per_second).alias("peak_bytes_per_second"),
        (F.max("datagrams") * per_second).alias("peak_datagrams_per_second"),
    )


def bursts(rated: DataFrame, factor: float = 3.0, bucket_ns: int = BUCKET_NS) -> DataFrame:
    """Runs of milliseconds in which a session sent `factor` times its mean or more: when, how long, how much.

    The mean is over the whole span of the session, silence included, so a source that sends in bursts shows as one.
    """
    key = ["point", *SESSION]
    span = F.max("start_ns") - F.min("start_ns") + bucket_ns
    means = rated.groupBy(*key).agg((F.sum("bytes") * bucket_ns / span).alias("mean_bytes"))
    fast = rated.join(F.broadcast(means), key).where(F.col("bytes") >= factor * F.col("mean_bytes"))
    order = Window.partitionBy(*key).orderBy("start_ns")
    # A row number is an int, and two thousand of these in nanoseconds are more than one holds.
    island = F.col("start_ns") - F.row_number().over(order).cast("long") * bucket_ns
    return (
        fast.withColumn("island", island)
        .groupBy(*key, "island")
        .agg(
            F.min("start_ns").alias("start_ns"),
            (F.max("start_ns") - F.min("start_ns") + bucket_ns).alias("duration_ns"),
            F.sum("datagrams").alias("datagrams"),
            F.sum("bytes").alias("bytes"),
            (F.max("bytes") * 1e9 / bucket_ns).alias("peak_bytes_per_second"),
            F.first("mean_bytes").alias("mean_bytes"),
        )
        .withColumn("times_mean", F.col("bytes") * bucket_ns / F.col("duration_ns") / F.col("mean_bytes"))
        .drop("island", "mean_bytes")
    )
