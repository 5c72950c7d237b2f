"""What a report leaves behind beside its page: every table as Parquet, and what of them the page shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from umstack.analysis.tables import Tables
from umstack.analysis.traffic import at_one_point
from umstack.facts.kinds import SESSION
from umstack.report.summary import SUMMARISED, Row, Summary, Timelines, summary_of

_PACKETS = "packets"
"""A table that reports of an earlier version have: one of an older report does not belong to a newer page."""


def write_tables(folder: Path, tables: Tables) -> None:
    """Write all tables into the folder, one of Parquet each; none of them where that fails."""
    shutil.rmtree(folder / _PACKETS, ignore_errors=True)
    try:
        for name, table in tables.items():
            _write(folder / name, arrow(table))
    except OSError:
        # Some of the tables of a report are none of them.
        for name in tables:
            shutil.rmtree(folder / name, ignore_errors=True)
        raise


def summarised(tables: Tables) -> Summary:
    """The page's rows."""
    small = {name: arrow(tables[name]) for name in SUMMARISED}
    return summary_of(small, _lost(tables["losses"]), _timelines(tables["rates"], tables["losses"]))


def arrow(table: pl.DataFrame) -> pa.Table:
    """A table as Arrow's types, which every reader knows."""
    return table.to_arrow(compat_level=pl.CompatLevel.oldest())


def _write(folder: Path, table: pa.Table) -> None:
    """Write a table, in place of an older one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    pq.write_table(table, folder / "part-00000.parquet")


def _lost(losses: pl.DataFrame) -> Row:
    return {
        "losses": len(losses),
        "repaired": int(losses["repaired_ns"].count()),
        "datagrams": losses.select(*SESSION, "sqn").n_unique() if len(losses) else 0,
        "naks": int(losses["naks"].sum()) if len(losses) else None,
    }


def _timelines(rates: pl.DataFrame, losses: pl.DataFrame) -> Timelines:
    best = at_one_point(rates)
    if not len(best):
        return Timelines()
    low, high = best.select(low=pl.col("start_ns").min(), high=pl.col("start_ns").max()).row(0)
    lines = Timelines.between(low, high)

    def binned(time: str) -> pl.Expr:
        # Towards zero: what was lost just before the first bin is in it.
        from_start = pl.col(time) - lines.start_ns
        quotient = from_start.sign() * (from_start.abs() // lines.bin_ns)
        return (quotient * lines.bin_ns + lines.start_ns).alias("start_ns")

    sent = best.group_by(binned("start_ns")).agg(
        pl.col("bytes").sum(), pl.col("retransmitted_bytes").sum(), peak_bytes=pl.col("bytes").max()
    )
    lost = losses.group_by(binned("lost_ns")).agg(
        lost=pl.len(), unrepaired=pl.col("repaired_ns").is_null().sum()
    )
    lines.sent = sent.sort("start_ns").to_dicts()
    lines.lost = lost.sort("start_ns").to_dicts()
    return lines
