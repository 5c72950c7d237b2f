"""Stores, from facts: registrations and acknowledgements of their clients. docs/analysis.md defines each column."""

from __future__ import annotations

import polars as pl

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
    return (
        seen.group_by(_WHO)
        .agg(
            start_ns=pl.col("first_ns").min(),
            end_ns=pl.col("last_ns").max(),
            connections=pl.len().cast(pl.Int64),
            **{name: pl.col(name).sum() for name in _TOTALS},
            **{name: pl.col(name).max() for name in _HIGHEST},
        )
        .sort(_WHO)
    )
