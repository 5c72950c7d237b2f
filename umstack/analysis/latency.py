"""End-to-end latency: the time a datagram took from one point of capture to another that saw it too."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import DATA, SESSION
from umstack.analysis.recovery import percentiles


def transits(observations: DataFrame) -> DataFrame:
    """One row a datagram and pair of points that both saw it: when it was seen at the one (`from_ns`) and how long
    after at the other (`took_ns`). Each pair is there in both directions; only first sendings count."""
    first = (
        observations.where(F.col("kind") == DATA)
        .groupBy("point", *SESSION, "sqn")
        .agg(F.min("time_ns").alias("time_ns"))
    )
    here = first.withColumnsRenamed({"point": "from_point", "time_ns": "from_ns"})
    there = first.withColumnsRenamed({"point": "to_point", "time_ns": "to_ns"})
    return (
        here.join(there, [*SESSION, "sqn"])
        .where("from_point != to_point")
        .select(
            *SESSION,
            "from_point",
            "to_point",
            "from_ns",
            (F.col("to_ns") - F.col("from_ns")).alias("took_ns"),
        )
    )


def latency(observations: DataFrame) -> DataFrame:
    """One row a session and pair of points: datagrams seen at both, and the time between in nanoseconds.

    A pair is given in the direction in which most of the time is positive. The clocks of the points are taken as they
    are: where they disagree, so do the times, and `negative` counts those that show it.
    """
    return times_taken(transits(observations))


def times_taken(seen_twice: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """The rows of `latency`, of what `transits` gave. `by` names more columns that tell rows apart."""
    took = F.col("took_ns")
    return (
        seen_twice.groupBy(*SESSION, "from_point", "to_point", *by)
        .agg(
            F.count("*").alias("datagrams"),
            F.count_if(took < 0).alias("negative"),
            F.min(took).alias("latency_min"),
            F.sum(took).alias("sum_ns"),
            *percentiles(took, "latency"),
        )
        .where("sum_ns > 0 OR (sum_ns = 0 AND from_point < to_point)")
        .drop("sum_ns")
    )
