"""Remarks: what is to be said of packets that are no session's, or not whole: malformed, cut, notes of the reader."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import FRAGMENT, NOTE, OTHER


def is_remarkable() -> Column:
    """Whether there is something to say of a packet that `label` gave."""
    return F.col("kind").isin(OTHER, FRAGMENT, NOTE) | (F.col("status") != "ok")


def remarks(labelled: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a point of capture, kind and status: of how many packets it is said. `by` names more columns that tell
    rows apart."""
    counted = labelled.where(is_remarkable()).groupBy("point", "kind", "status", *by)
    return counted.agg(F.count("*").alias("packets"))
