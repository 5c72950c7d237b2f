"""Batching efficiency: how many messages share a datagram, and how much of the MTU a datagram uses."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import DATA, SESSION

IP_AND_UDP_BYTES = 28
DEFAULT_MTU = 1500


def sizes(observations: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a session, point of capture, length and number of messages: how many datagrams are like that.

    Retransmissions are left out, and so are datagrams that only carry control messages. `by` names more columns that
    tell rows apart.
    """
    carrying = observations.where((F.col("kind") == DATA) & (F.col("message_count") > 0))
    return carrying.groupBy("point", *SESSION, *by, "udp_bytes", "message_count").agg(
        F.count("*").alias("datagrams"),
        F.sum("message_bytes").alias("message_bytes"),
        F.sum("frame_bytes").alias("frame_bytes"),
    )


def datagram_fill(sized: DataFrame, mtu: int = DEFAULT_MTU, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a session and point of capture: messages a datagram, fill against the MTU, share that is payload.

    Takes what `sizes` gave (told apart `by` the same).
    """
    room = mtu - IP_AND_UDP_BYTES
    counted = F.sum("datagrams")
    messages = F.sum(F.col("datagrams") * F.col("message_count"))

    def those(condition: Column) -> Column:
        return F.sum(F.when(condition, F.col("datagrams")).otherwise(0))

    return sized.groupBy("point", *SESSION, *by).agg(
        counted.alias("datagrams"),
        messages.alias("messages"),
        (messages / counted).alias("messages_per_datagram"),
        F.max("message_count").alias("most_messages"),
        (F.sum(F.col("datagrams") * F.col("udp_bytes")) / counted / room).alias("fill"),
        those(2 * F.col("udp_bytes") < room).alias("half_empty"),
        those(F.col("udp_bytes") > room).alias("over_mtu"),
        (F.sum("message_bytes") / F.sum("frame_bytes")).alias("payload_share"),
        (F.sum("message_bytes") / counted).alias("payload_bytes_per_datagram"),
    )


def fill_histogram(sized: DataFrame, mtu: int = DEFAULT_MTU, bins: int = 20) -> DataFrame:
    """How many datagrams are how full: bins of equal width from 0 to 1, what is over the MTU in the last.

    Takes what `sizes` gave.
    """
    room = mtu - IP_AND_UDP_BYTES
    position = F.least(F.floor(F.col("udp_bytes") * bins / room), F.lit(bins - 1)).cast("int").alias("bin")
    return (
        sized.groupBy(*SESSION, position)
        .agg(F.sum("datagrams").alias("datagrams"))
        .select(
            *SESSION,
            (F.col("bin") / bins).alias("from"),
            ((F.col("bin") + 1) / bins).alias("to"),
            "datagrams",
        )
    )
