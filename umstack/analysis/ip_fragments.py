"""IP fragments: datagrams the sender, or a router, had to cut. One lost piece loses all of it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def ip_fragments(packets: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a pair of addresses between which IP fragments were seen: how many, how many bytes, when.

    `by` names more columns that tell rows apart.
    """
    return (
        packets.where("ip_fragment")
        .groupBy("source_address", "destination_address", *by)
        .agg(
            F.count("*").alias("fragments"),
            F.sum("frame_bytes").alias("bytes"),
            F.min("time_ns").alias("first_ns"),
            F.max("time_ns").alias("last_ns"),
        )
    )
