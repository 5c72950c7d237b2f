"""A report on one machine, without Spark: facts, tables in memory, Parquet beside the page."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from umstack.facts.facts import facts_of
from umstack.facts.kinds import SESSION
from umstack.facts.tables import tables_of
from umstack.facts.traffic import at_one_point
from umstack.report.summary import SUMMARISED, Row, Summary, Timelines, summary_of

STEPS = ("decode", "tables", "write")
_PACKETS = "packets"
"""A table that reports made by Spark have: one of an older report does not belong to a newer page."""


def report_alone(
    folder: Path, captures: Sequence[str], mtu: int, begin: Callable[[str], None]
) -> tuple[Summary, int]:
    """Write all tables into the folder, one of Parquet each; the summary of them, and how many packets there were.

    `begin` is told each of `STEPS` as it begins.
    """
    begin("decode")
    facts = facts_of(captures)
    begin("tables")
    tables = tables_of(facts, mtu)
    begin("write")
    for old in (_PACKETS, "latency"):
        shutil.rmtree(folder / old, ignore_errors=True)
    try:
        for name, table in tables.items():
            _write(folder / name, _arrow(table))
    except OSError:
        # Some of the tables of a report are none of them.
        for name in tables:
            shutil.rmtree(folder / name, ignore_errors=True)
        raise
    small = {name: _arrow(tables[name]) for name in SUMMARISED if name in tables}
    return summary_of(
        small, _lost(tables["losses"]), _timelines(tables["rates"], tables["losses"])
    ), facts.packets


def _arrow(table: pl.DataFrame) -> pa.Table:
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
        # Towards zero, as Spark divides: what was lost just before the first bin is in it.
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
