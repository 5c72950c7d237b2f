"""Recovery over TCP, from facts: late joins and off-transport recovery. docs/analysis.md defines each column."""

from __future__ import annotations

import polars as pl

from umstack.facts.facts import Facts

LATE_JOIN, OFF_TRANSPORT = "late_join", "off_transport"
_WHO = ("publisher", "request_port", "receiver", "recovery", "topic_index")
_TOTALS = ("range_requests", "requests", "messages", "fragments", "payload_bytes")
_NS_PER_SECOND = 1_000_000_000


def recoveries(facts: Facts, endpoints: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return one row per source, topic, receiver and kind of recovery: the messages fetched, connections, and duration.

    A connection seen at several capture points counts where most of it was seen. The session and the topic's name are
    those of a captured advertisement, in these facts or among the `endpoints`; null without one.
    """
    connection = [*_WHO, "receiver_port"]
    best = facts.recoveries.sort(*connection, "fragments", "requests", "point", nulls_last=False)
    seen = best.group_by(connection, maintain_order=True).agg(
        pl.col("first_ns", "last_ns", *_TOTALS, "lowest_sqn", "highest_sqn").last()
    )
    whole = seen.group_by(_WHO).agg(
        start_ns=pl.col("first_ns").min(),
        end_ns=pl.col("last_ns").max(),
        connections=pl.len().cast(pl.Int64),
        **{name: pl.col(name).sum() for name in _TOTALS},
        lowest_sqn=pl.col("lowest_sqn").min(),
        highest_sqn=pl.col("highest_sqn").max(),
    )
    offered = facts.endpoints if endpoints is None else endpoints
    named = whole.join(offered, ["publisher", "request_port", "topic_index"], "left")
    order = ("publisher", "session_id", "topic_index", "topic", "receiver", "recovery", "request_port")
    return (
        named.with_columns(seconds=(pl.col("end_ns") - pl.col("start_ns")) / _NS_PER_SECOND)
        .select(*order, "start_ns", "end_ns", "seconds", "connections", *_TOTALS, "lowest_sqn", "highest_sqn")
        .sort(*order, nulls_last=True)
    )
