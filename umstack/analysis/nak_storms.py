"""NAK storms: times when receivers asked so often and for so much that the source had mainly that to do.

One NAK lists as many numbers as fit a datagram: what was lost while a path was away takes a few NAKs, however much it
is. A storm is many NAKs for many numbers, tenth of a second after tenth of a second, of a receiver that keeps on losing
or of many receivers at once.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import NAK, NS_PER_SECOND, SESSION

WINDOW_NS = 100_000_000
MINIMUM_PER_SECOND = 1000
"""Fewer requested sequence numbers a second are recovery at work, not a storm."""
MINIMUM_NAKS_PER_SECOND = 100
"""So are fewer NAKs a second, whatever they ask for."""


def nak_storms(
    observations: DataFrame,
    minimum_per_second: int = MINIMUM_PER_SECOND,
    minimum_naks_per_second: int = MINIMUM_NAKS_PER_SECOND,
) -> DataFrame:
    """One row a storm: its span, NAKs, numbers asked for, how many more than once, and the receivers behind it.

    `receivers` lists (receiver, requests, share) from the one that asked most; windows of a tenth of a second that
    follow each other are one storm.
    """
    window = F.expr(f"time_ns div {WINDOW_NS}").alias("window")
    naks = _naks(observations)
    windows = naks.groupBy(*SESSION, window).agg(
        F.sum(F.size("sqns")).alias("requests"), F.count("*").alias("naks")
    )
    stormy = windows.where(
        (F.col("requests") >= _in_a_window(minimum_per_second))
        & (F.col("naks") >= _in_a_window(minimum_naks_per_second))
    )
    island = F.col("window") - F.row_number().over(Window.partitionBy(*SESSION).orderBy("window"))
    storms = F.broadcast(stormy.select(*SESSION, "window", island.alias("storm")))
    by_receiver = (
        naks.withColumn("window", window)
        .join(storms, [*SESSION, "window"])
        .select(*SESSION, "storm", "receiver", "time_ns", F.posexplode("sqns").alias("place", "sqn"))
        .groupBy(*SESSION, "storm", "receiver")
        .agg(
            F.count("*").alias("requests"),
            F.count_if(F.col("place") == 0).alias("naks"),
            F.count_distinct("sqn").alias("distinct"),
            F.min("time_ns").alias("start_ns"),
            F.max("time_ns").alias("end_ns"),
        )
    )
    total = F.sum("requests")
    behind = F.sort_array(F.collect_list(F.struct("requests", "receiver", F.col("distinct"))), asc=False)
    return (
        by_receiver.groupBy(*SESSION, "storm")
        .agg(
            F.min("start_ns").alias("start_ns"),
            F.max("end_ns").alias("end_ns"),
            F.sum("naks").alias("naks"),
            total.alias("requests"),
            (total - F.sum("distinct")).alias("repeated"),
            behind.alias("behind"),
        )
        .withColumn(
            "receivers",
            F.transform(
                "behind",
                lambda one: F.struct(
                    one["receiver"].alias("receiver"),
                    one["requests"].alias("requests"),
                    (one["requests"] / F.col("requests")).alias("share"),
                ),
            ),
        )
        .drop("storm", "behind")
    )


def can_storm(requests: int, naks: int) -> bool:
    """Whether so many requested sequence numbers in so many NAKs were a storm if all came at once."""
    return requests >= _in_a_window(MINIMUM_PER_SECOND) and naks >= _in_a_window(MINIMUM_NAKS_PER_SECOND)


def _in_a_window(per_second: int) -> int:
    return per_second * WINDOW_NS // NS_PER_SECOND


def _naks(observations: DataFrame) -> DataFrame:
    """One row a NAK from where most of its receiver's were seen: two points of capture do not make two NAKs of one.

    What one receiver sends at one instant is one NAK.
    """
    seen = observations.where((F.col("kind") == NAK) & (F.size("sqns") > 0))
    counts = seen.groupBy(*SESSION, "receiver", "point").agg(F.sum(F.size("sqns")).alias("requests"))
    best = counts.groupBy(*SESSION, "receiver").agg(
        F.max_by("point", F.struct("requests", "point")).alias("point")
    )
    return (
        seen.join(F.broadcast(best), [*SESSION, "receiver", "point"], "left_semi")
        .groupBy(*SESSION, "receiver", "time_ns")
        .agg(F.array_distinct(F.flatten(F.collect_list("sqns"))).alias("sqns"))
    )
