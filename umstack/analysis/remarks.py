"""Remarks: what is to be said of packets that are no session's, or not whole: malformed, cut, notes of the reader."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from umstack.analysis.observations import FRAGMENT, NOTE, OTHER


def remarkable(labelled: DataFrame) -> DataFrame:
    """The packets of which there is something to say, of what `label` gave."""
    return labelled.where(F.col("kind").isin(OTHER, FRAGMENT, NOTE) | (F.col("status") != "ok"))


def remarks(labelled: DataFrame, by: tuple[str, ...] = ()) -> DataFrame:
    """One row a point of capture, kind and status: of how many packets it is said. `by` names more columns that tell
    rows apart."""
    counted = remarkable(labelled).groupBy("point", "kind", "status", *by)
    return counted.agg(F.count("*").alias("packets"))
