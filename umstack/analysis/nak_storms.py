"""NAK storms: times when receivers asked so often and for so much that the source had mainly that to do.

One NAK lists as many numbers as fit a datagram: what was lost while a path was away takes a few NAKs, however much it
is. A storm is many NAKs for many numbers, tenth of a second after tenth of a second, of a receiver that keeps on losing
or of many receivers at once.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.losses import nakked_once
from umstack.analysis.observations import NS_PER_SECOND, SESSION

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
    asked = nakked_once(observations).dropDuplicates([*SESSION, "receiver", "sqn", "time_ns"])
    windows = asked.groupBy(*SESSION, window).agg(F.count("*").alias("requests"), _naks())
    stormy = windows.where(
        (F.col("requests") >= _in_a_window(minimum_per_second))
        & (F.col("naks") >= _in_a_window(minimum_naks_per_second))
    )
    island = F.col("window") - F.row_number().over(Window.partitionBy(*SESSION).orderBy("window"))
    storms = F.broadcast(stormy.select(*SESSION, "window", island.alias("storm")))
    by_receiver = (
        asked.withColumn("window", window)
        .join(storms, [*SESSION, "window"])
        .groupBy(*SESSION, "storm", "receiver")
        .agg(
            F.count("*").alias("requests"),
            _naks(),
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


def _naks() -> Column:
    """How many NAKs the numbers asked for came in. What one receiver sends at one instant is one."""
    return F.count_distinct("receiver", "time_ns").alias("naks")
