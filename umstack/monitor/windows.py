"""What a window of time says of each session: streaming aggregations with watermarks over labelled packets."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.datagram_fill import IP_AND_UDP_BYTES
from umstack.analysis.observations import DATA, NAK, NCF, RETRANSMISSION, SESSION, classify

_TIME = "time"


def timed(packets: DataFrame, late_seconds: float) -> DataFrame:
    """Observations with the time a watermark needs. Their sequence numbers wrap, which within a window does no harm."""
    observed = classify(packets).withColumn(_TIME, F.timestamp_micros(F.expr("time_ns div 1000")))
    return observed.withWatermark(_TIME, f"{late_seconds} seconds")


def traffic_windows(observed: DataFrame, window_seconds: float, mtu: int) -> DataFrame:
    """One row a window, session and receiver: what it asked for; the row without a receiver is the source's."""
    original = F.col("kind") == DATA
    again = F.col("kind") == RETRANSMISSION
    fill = F.col("udp_bytes") / (mtu - IP_AND_UDP_BYTES)
    counted = observed.groupBy(F.window(_TIME, f"{window_seconds} seconds"), *SESSION, "receiver").agg(
        F.count_if(original).alias("datagrams"),
        F.coalesce(F.sum(F.when(original | again, F.col("frame_bytes"))), F.lit(0)).alias("bytes"),
        F.coalesce(F.sum(F.when(original, F.col("message_count"))), F.lit(0)).alias("messages"),
        F.avg(F.when(original, fill)).alias("fill"),
        F.count_if(again).alias("retransmissions"),
        F.count_if(F.col("kind") == NAK).alias("naks"),
        F.coalesce(F.sum(F.when(F.col("kind") == NAK, F.size("sqns"))), F.lit(0)).alias("requests"),
        F.coalesce(F.sum(F.when(F.col("kind") == NCF, F.size("sqns"))), F.lit(0)).alias("refused"),
    )
    return _flat(counted)


def loss_windows(observed: DataFrame, window_seconds: float) -> DataFrame:
    """One row a window, session and lost sequence number: the first NAK and the last retransmission.

    A loss whose repair falls into the next window counts as open here.
    """
    time, never = F.col("time_ns"), F.lit(None).cast("long")
    asked = observed.where(F.col("kind") == NAK).select(
        _TIME, *SESSION, F.explode("sqns").alias("sqn"), time.alias("nak_ns"), never.alias("again_ns")
    )
    again = observed.where(F.col("kind") == RETRANSMISSION).select(
        _TIME, *SESSION, "sqn", never.alias("nak_ns"), time.alias("again_ns")
    )
    per_loss = (
        asked.unionByName(again)
        .groupBy(F.window(_TIME, f"{window_seconds} seconds"), *SESSION, "sqn")
        .agg(F.min("nak_ns").alias("nak_ns"), F.max("again_ns").alias("again_ns"))
        .where("nak_ns IS NOT NULL")
    )
    return _flat(per_loss)


def recovery(losses: DataFrame) -> DataFrame:
    """One row a window and session, of the rows of `loss_windows`: losses, repairs and how long they took."""
    took = F.when(F.expr("again_ns >= nak_ns"), F.expr("again_ns - nak_ns"))
    spread = F.percentile_approx(took, [0.5, 0.99], 1000)
    return losses.groupBy("from", "to", *SESSION).agg(
        F.count("*").alias("lost"),
        F.count(took).alias("repaired"),
        spread[0].alias("request_p50"),
        spread[1].alias("request_p99"),
    )


def _flat(windowed: DataFrame) -> DataFrame:
    others = [name for name in windowed.columns if name != "window"]
    return windowed.select(F.col("window.start").alias("from"), F.col("window.end").alias("to"), *others)
