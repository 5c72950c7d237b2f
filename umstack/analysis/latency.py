"""End-to-end latency: the time a datagram took from one point of capture to another that saw it too."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import DATA, SESSION
from umstack.analysis.recovery import percentiles


def latency(observations: DataFrame) -> DataFrame:
    """One row a session and pair of points: datagrams seen at both, and the time between in nanoseconds.

    Only first sendings count. A pair is given in the direction in which most of the time is positive. The clocks of the
    points are taken as they are: where they disagree, so do the times, and `negative` counts those that show it.
    """
    first = (
        observations.where(F.col("kind") == DATA)
        .groupBy("point", *SESSION, "sqn")
        .agg(F.min("time_ns").alias("time_ns"))
    )
    here = first.withColumnsRenamed({"point": "from_point", "time_ns": "from_ns"})
    there = first.withColumnsRenamed({"point": "to_point", "time_ns": "to_ns"})
    took = F.col("to_ns") - F.col("from_ns")
    return (
        here.join(there, [*SESSION, "sqn"])
        .where("from_point != to_point")
        .groupBy(*SESSION, "from_point", "to_point")
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


def points(observations: DataFrame) -> DataFrame:
    """The points of capture that saw first sendings."""
    return observations.where(F.col("kind") == DATA).select("point").distinct()
