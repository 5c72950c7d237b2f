"""NAK storms: times when receivers asked for so much that the source, or the network, had mainly that to do."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.losses import nakked_once
from umstack.analysis.observations import SESSION

WINDOW_NS = 100_000_000
MINIMUM_PER_SECOND = 1000
"""Fewer requested sequence numbers a second are recovery at work, not a storm."""


def nak_storms(observations: DataFrame, minimum_per_second: int = MINIMUM_PER_SECOND) -> DataFrame:
    """One row a storm: its span, sequence numbers asked for, how many more than once, and the receivers behind it.

    `receivers` lists (receiver, requests, share) from the one that asked most; windows of a tenth of a second that
    follow each other are one storm.
    """
    window = F.expr(f"time_ns div {WINDOW_NS}").alias("window")
    asked = nakked_once(observations).dropDuplicates([*SESSION, "receiver", "sqn", "time_ns"])
    windows = asked.groupBy(*SESSION, window).agg(F.count("*").alias("requests"))
    stormy = windows.where(F.col("requests") >= minimum_per_second * WINDOW_NS // 1_000_000_000)
    island = F.col("window") - F.row_number().over(Window.partitionBy(*SESSION).orderBy("window"))
    storms = F.broadcast(stormy.select(*SESSION, "window", island.alias("storm")))
    by_receiver = (
        asked.withColumn("window", window)
        .join(storms, [*SESSION, "window"])
        .groupBy(*SESSION, "storm", "receiver")
        .agg(
            F.count("*").alias("requests"),
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
