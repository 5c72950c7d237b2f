"""Batching efficiency: how many messages share a datagram, and how much of the MTU a datagram uses."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import DATA, SESSION

IP_AND_UDP_BYTES = 28
DEFAULT_MTU = 1500


def datagram_fill(observations: DataFrame, mtu: int = DEFAULT_MTU) -> DataFrame:
    """One row a session and point of capture: messages a datagram, fill against the MTU, share that is payload.

    Retransmissions are left out, and so are datagrams that only carry control messages.
    """
    room = mtu - IP_AND_UDP_BYTES
    carrying = observations.where((F.col("kind") == DATA) & (F.col("message_count") > 0))
    fill = F.col("udp_bytes") / room
    return carrying.groupBy("point", *SESSION).agg(
        F.count("*").alias("datagrams"),
        F.sum("message_count").alias("messages"),
        F.avg("message_count").alias("messages_per_datagram"),
        F.max("message_count").alias("most_messages"),
        F.avg(fill).alias("fill"),
        F.count_if(fill < 0.5).alias("half_empty"),
        F.count_if(F.col("udp_bytes") > room).alias("over_mtu"),
        (F.sum("message_bytes") / F.sum("frame_bytes")).alias("payload_share"),
        F.avg("message_bytes").alias("payload_bytes_per_datagram"),
    )


def fill_histogram(observations: DataFrame, mtu: int = DEFAULT_MTU, bins: int = 20) -> DataFrame:
    """How many datagrams are how full: bins of equal width from 0 to 1, what is over the MTU in the last."""
    room = mtu - IP_AND_UDP_BYTES
    position = F.least(F.floor(F.col("udp_bytes") * bins / room), F.lit(bins - 1)).cast("int").alias("bin")
    return (
        observations.where((F.col("kind") == DATA) & (F.col("message_count") > 0))
        .groupBy(*SESSION, position)
        .agg(F.count("*").alias("datagrams"))
        .select(
            *SESSION,
            (F.col("bin") / bins).alias("from"),
            ((F.col("bin") + 1) / bins).alias("to"),
            "datagrams",
        )
    )
