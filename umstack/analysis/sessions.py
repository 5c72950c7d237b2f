"""Sessions and topics: who published what, when, and how much of it."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import (
    CONTENT_KINDS,
    DATA,
    NAK,
    NCF,
    NS_PER_SECOND,
    RETRANSMISSION,
    SESSION,
    SESSION_MESSAGE,
    STATUS,
)

_COUNTS = {
    DATA: "datagrams",
    RETRANSMISSION: "retransmissions",
    SESSION_MESSAGE: "session_messages",
    NAK: "naks",
    NCF: "ncfs",
    STATUS: "status_messages",
}
_VOLUMES = {"messages": "message_count", "message_bytes": "message_bytes", "data_bytes": "udp_bytes"}


def sessions(observations: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a session and point of capture: its span, its datagrams by kind, its volume and its rate.

    `by` names more columns that tell rows apart.
    """

    def count(kind: str, name: str) -> Column:
        return F.count_if(F.col("kind") == kind).alias(name)

    original = F.col("kind") == DATA
    # Texts to be told apart are keys: as a set, or a maximum, they would have all packets sorted.
    apart = observations.groupBy("point", *SESSION, *by, "receiver", "group").agg(
        F.min("time_ns").alias("first_ns"),
        F.max("time_ns").alias("last_ns"),
        *(count(kind, name) for kind, name in _COUNTS.items()),
        *(F.sum(F.when(original, F.col(of))).alias(name) for name, of in _VOLUMES.items()),
        F.min(F.when(original, F.col("sqn"))).alias("first_sqn"),
        F.max(F.when(original, F.col("sqn"))).alias("last_sqn"),
    )
    seconds = (F.col("last_ns") - F.col("first_ns")) / NS_PER_SECOND
    return (
        apart.groupBy("point", *SESSION, *by)
        .agg(
            F.max("group").alias("group"),
            F.min("first_ns").alias("first_ns"),
            F.max("last_ns").alias("last_ns"),
            *(F.sum(name).alias(name) for name in _COUNTS.values()),
            *(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _VOLUMES),
            F.min("first_sqn").alias("first_sqn"),
            F.max("last_sqn").alias("last_sqn"),
            F.count_distinct("receiver").alias("receivers"),
        )
        .withColumns(
            {
                "seconds": seconds,
                "datagrams_per_second": F.when(seconds > 0, F.col("datagrams") / seconds),
                "bits_per_second": F.when(seconds > 0, F.col("data_bytes") * 8 / seconds),
            }
        )
    )


def topics(packets: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a topic of a session: its name, messages, fragments, payload and topic sequence numbers.

    Retransmissions are left out. `topic` is null where no advertisement of topic resolution was captured.
    Takes packets with their `messages` (and `advertisements`, for the names), or the partial counts of
    `option("rows", "topics")`, which is the same without a row for each message. Of several points of capture the one
    that saw most of a topic counts. `by` names more columns that tell rows apart; partial counts have to have them.
    """
    partial = packets if "message_sqn_low" in packets.columns else _partial_topics(packets)
    key = [F.col("source_address").alias("publisher"), *map(F.col, ("session_id", *by, "topic_index"))]
    by_point = partial.groupBy(*key, F.col("point")).agg(
        F.min("first_ns").alias("first_ns"),
        F.max("last_ns").alias("last_ns"),
        F.sum("messages").alias("messages"),
        F.sum("fragments").alias("fragments"),
        F.sum("payload_bytes").alias("payload_bytes"),
        F.min("message_sqn_low").alias("lowest_sqn"),
        F.max("message_sqn_high").alias("highest_sqn"),
        F.max("topic").alias("topic"),
    )
    best = F.max_by(F.struct(*_TOPIC_COLUMNS), F.struct("fragments", "point")).alias("best")
    name = F.max("topic").alias("topic")
    whole = by_point.groupBy(*SESSION, *by, "topic_index").agg(best, name)
    return whole.select(*SESSION, *by, "topic_index", "best.*", "topic").where("fragments > 0")


def topics_of(observations: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """The same of observations whose packets have their `topic_counts`: without names, which other packets tell."""
    sent = observations.where((F.col("kind") == DATA) & (F.size("topic_counts") > 0))
    counted = sent.select(
        "point",
        F.col("publisher").alias("source_address"),
        "session_id",
        *by,
        F.col("time_ns").alias("first_ns"),
        F.col("time_ns").alias("last_ns"),
        F.lit(None).cast("string").alias("topic"),
        F.inline("topic_counts"),
    )
    return topics(counted, by)


_TOPIC_COLUMNS = (
    "first_ns",
    "last_ns",
    "messages",
    "fragments",
    "payload_bytes",
    "lowest_sqn",
    "highest_sqn",
)


def _partial_topics(packets: DataFrame) -> DataFrame:
    first_sendings = packets.where(
        "packet_type = 'DATA' AND NOT retransmission AND session_id IS NOT NULL AND messages IS NOT NULL"
    )
    point = F.col("point") if "point" in packets.columns else F.lit("")
    messages = first_sendings.select(
        point.alias("point"),
        "source_address",
        "session_id",
        "time_ns",
        F.explode("messages").alias("message"),
    )
    starts = F.coalesce(F.col("message.fragment_offset"), F.lit(0)) == 0
    counted = (
        messages.where(F.col("message.kind").isin(*CONTENT_KINDS))
        .groupBy("point", "source_address", "session_id", F.col("message.topic_index").alias("topic_index"))
        .agg(
            F.min("time_ns").alias("first_ns"),
            F.max("time_ns").alias("last_ns"),
            F.count_if(starts).alias("messages"),
            F.count("*").alias("fragments"),
            F.sum("message.payload_bytes").alias("payload_bytes"),
            F.min("message.topic_sqn").alias("message_sqn_low"),
            F.max("message.topic_sqn").alias("message_sqn_high"),
        )
    )
    if "advertisements" not in packets.columns:
        return counted.withColumn("topic", F.lit(None).cast("string"))
    told = packets.select(point.alias("point"), F.explode("advertisements").alias("one"))
    names = told.select(
        "point",
        "one.source_address",
        "one.session_id",
        "one.topic_index",
        "one.topic",
        F.lit(0).alias("fragments"),
    )
    return counted.unionByName(names, allowMissingColumns=True)
