"""Repair traffic: what was sent again, what of it was needed, and what was seen twice."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.losses import nakked, originals
from umstack.analysis.observations import NCF, RETRANSMISSION, SESSION


def repairs(observations: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a session and point of capture: retransmissions, and how many of them nobody can have needed.

    `unrequested` had no NAK before them in the capture; `repeated` had none since the same number was sent last. Both
    are `useless_bytes`. A capture that does not see the receivers' NAKs (`naks` is 0) cannot tell, and says nothing.
    `refused_*` count sequence numbers the source declined to send, by the reason in its NCF.
    `by` names more columns that tell rows apart; what is judged is judged by all that was asked for before.
    """
    key = ["point", *SESSION]
    sent_again = observations.where(F.col("kind") == RETRANSMISSION).select(
        *key, *by, "sqn", "time_ns", "udp_bytes", F.lit(True).alias("is_repair")
    )
    asked = nakked(observations, by).select(
        *key, *by, "sqn", "time_ns", F.lit(0).alias("udp_bytes"), F.lit(False).alias("is_repair")
    )
    # At the same time the NAK comes first: it is the cause.
    in_order = Window.partitionBy(*key, "sqn").orderBy("time_ns", "is_repair")
    judged = sent_again.unionByName(asked).withColumns(
        {
            "naks_so_far": F.count_if(~F.col("is_repair")).over(in_order),
            "after_repair": F.lag("is_repair").over(in_order),
        }
    )
    repeated = F.col("is_repair") & F.coalesce("after_repair", F.lit(False))
    unrequested = F.col("is_repair") & (F.col("naks_so_far") == 0) & ~repeated
    useless = F.when(repeated | unrequested, F.col("udp_bytes")).otherwise(0)
    counted = judged.groupBy(*key, *by).agg(
        F.count_if("is_repair").alias("retransmissions"),
        F.sum("udp_bytes").alias("retransmitted_bytes"),
        F.count_if(~F.col("is_repair")).alias("naks"),
        F.count_if(unrequested).alias("unrequested"),
        F.count_if(repeated).alias("repeated"),
        F.sum(useless).alias("useless_bytes"),
    )
    blind = F.sum("naks").over(Window.partitionBy(*key)) == 0
    honest = counted.withColumns(
        {name: F.when(~blind, F.col(name)) for name in ("unrequested", "repeated", "useless_bytes")}
    )
    return honest.join(_refusals(observations, by), [*key, *by], "left").fillna(
        0, subset=list(_REASONS.values())
    )


_REASONS = {
    "no_retry": "refused_no_retry",
    "ignored": "refused_ignored",
    "rx_delay": "refused_rx_delay",
    "shed": "refused_shed",
}


def _refusals(observations: DataFrame, by: tuple[str, ...]) -> DataFrame:
    reason = F.lower("ncf_reason")
    return (
        observations.where(F.col("kind") == NCF)
        .groupBy("point", *SESSION, *by)
        .agg(
            *(
                F.sum(F.when(reason == key, F.size("sqns")).otherwise(0)).alias(name)
                for key, name in _REASONS.items()
            )
        )
    )


def copies(observations: DataFrame, covered: DataFrame) -> DataFrame:
    """One row a datagram that was seen more than once at a point of capture: how many `copies`, and when the last was.

    `covered` is what `losses.coverage` gave: only where it counts copies is looked for them.
    """
    key = ["point", *SESSION, "bucket"]
    doubled = F.broadcast(covered.where("datagrams > `distinct`").select(*key))
    return (
        originals(observations)
        .join(doubled, key, "left_semi")
        .groupBy("point", *SESSION, "sqn")
        .agg((F.count("*") - 1).alias("copies"), F.max("time_ns").alias("time_ns"))
        .where("copies > 0")
    )


def duplicates(covered: DataFrame) -> DataFrame:
    """One row a session and point of capture at which datagrams were seen more often than they were sent.

    The network doubled them, or the capture sees a datagram at several ports. `copies` counts those beyond the first.
    Takes what `losses.coverage` gave.
    """
    return (
        covered.groupBy("point", *SESSION)
        .agg(F.sum("datagrams").alias("datagrams"), F.sum("distinct").alias("distinct"))
        .withColumn("copies", F.col("datagrams") - F.col("distinct"))
        .where("copies > 0")
    )
