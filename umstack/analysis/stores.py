"""Stores, from facts: registrations and acknowledgements of their clients. docs/analysis.md defines each column."""

from __future__ import annotations

import polars as pl

from umstack.analysis.losses import percentiles
from umstack.facts.facts import Facts

_WHO = ("store", "store_port", "client", "topic_index")
_TOTALS = (
    *("registrations", "registered", "refused", "keepalives"),
    *("acknowledgements", "stable", "lost", "consumptions"),
)
_HIGHEST = ("highest_stable_sqn", "highest_consumed_sqn")


def stores(facts: Facts) -> pl.DataFrame:
    """Return one row per Store, client and topic. A connection seen at several capture points counts where most of it
    was seen.
    """
    connection = [*_WHO, "client_port"]
    best = facts.stores.with_columns(items=pl.sum_horizontal(_TOTALS)).sort(*connection, "items", "point")
    seen = best.group_by(connection, maintain_order=True).agg(
        pl.col("first_ns", "last_ns", *_TOTALS, *_HIGHEST).last()
    )
    totals = seen.group_by(_WHO).agg(
        start_ns=pl.col("first_ns").min(),
        end_ns=pl.col("last_ns").max(),
        connections=pl.len().cast(pl.Int64),
        **{name: pl.col(name).sum() for name in _TOTALS},
        **{name: pl.col(name).max() for name in _HIGHEST},
    )
    measured = stability(facts.marks)
    return (
        totals.join(measured, _WHO, "left").with_columns(pl.col("stability_samples").fill_null(0)).sort(_WHO)
    )


def stability(marks: pl.DataFrame) -> pl.DataFrame:
    """Return the times from a number's first sending to its acknowledgement, per Store, client and topic.

    Both are seen at one point, whose clock they share: where most were seen. A number that two sessions of a host have
    sent with one topic index is left out, because an acknowledgement does not name the session.
    """
    number = ["point", "client", "topic_index", "sqn"]
    sent = marks.filter(pl.col("store").is_null())
    once = sent.group_by(number).agg(sent_ns=pl.col("time_ns").min(), sessions=pl.len())
    acknowledged = marks.filter(pl.col("store").is_not_null())
    timed = (
        acknowledged.join(once.filter(pl.col("sessions") == 1), number)
        .with_columns(took=pl.col("time_ns") - pl.col("sent_ns"))
        .filter(pl.col("took") >= 0)
    )
    of_points = timed.group_by("point", *_WHO).agg(
        pl.len().cast(pl.Int64).alias("stability_samples"), *percentiles(pl.col("took"), "stability")
    )
    best = of_points.sort("stability_samples", "point").group_by(_WHO, maintain_order=True).last()
    return best.drop("point")
