"""The outputs of a report in addition to its page: every table as Parquet, and the rows that the page shows."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from umstack.analysis.tables import Tables
from umstack.analysis.traffic import at_one_point
from umstack.facts.row_pile import in_slices
from umstack.facts.sessions import sessions_in
from umstack.report.summary import SUMMARISED, Row, Run, Summary, summary_of

_PAUSE_NS = 1_000_000_000
_PAUSES = 20
"""Maximum number of pauses between runs: each lasts at least this fraction of the whole span."""
_EVER_NS = 2**62
_PACKETS = "packets"
"""A table that earlier versions wrote; one left from an older report does not belong to a newer page."""


def write_tables(folder: Path, tables: Tables) -> None:
    """Write each table to a Parquet folder of its name; on an error remove all of them."""
    shutil.rmtree(folder / _PACKETS, ignore_errors=True)
    try:
        for name, table in tables.items():
            _write(folder / name, table)
    except OSError:
        # An incomplete set of tables is useless.
        for name in tables:
            shutil.rmtree(folder / name, ignore_errors=True)
        raise


def summarised(tables: Tables, captures: Sequence[str]) -> Summary:
    """Return the page's rows."""
    small = {name: arrow(tables[name]) for name in SUMMARISED}
    runs = _runs(tables["rates"], tables["losses"].select("lost_ns", "repaired_ns"))
    return summary_of(small, _lost(tables["losses"]), runs, captures)


def arrow(table: pl.DataFrame) -> pa.Table:
    """Return the table with Arrow types that every reader supports."""
    return table.to_arrow(compat_level=pl.CompatLevel.oldest())


def _write(folder: Path, table: pl.DataFrame) -> None:
    """Write a table, replacing an older one."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with pq.ParquetWriter(folder / "part-00000.parquet", arrow(table.clear()).schema) as writer:
        for rows in in_slices(table):
            writer.write_table(arrow(rows))


def _lost(losses: pl.DataFrame) -> Row:
    took_ns = losses.select(took=pl.col("repaired_ns") - pl.col("lost_ns"))["took"]
    return {
        "losses": len(losses),
        "repaired": int(losses["repaired_ns"].count()),
        "datagrams": _distinct(losses),
        "naks": int(losses["naks"].sum()) if len(losses) else None,
        "repair_p50_ns": took_ns.quantile(0.5, "equiprobable"),
        "repair_p99_ns": took_ns.quantile(0.99, "equiprobable"),
    }


def _distinct(losses: pl.DataFrame) -> int:
    """Return the number of datagrams that any receiver lost."""
    sessions = sessions_in([losses])
    of_session = (
        losses.lazy().filter(publisher=publisher, session_id=number).select("sqn").collect()["sqn"]
        for publisher, number in sessions
    )
    # Sorting takes less memory than a set.
    return sum(len(np.unique(sqns.to_numpy())) for sqns in of_session)


def _runs(rates: pl.DataFrame, losses: pl.DataFrame) -> list[Run]:
    """Return datagrams sent and lost over time. A pause that is long in itself and relative to the span separates
    runs."""
    best = at_one_point(rates)
    starts = best["start_ns"].unique().sort()
    if not len(starts):
        return []
    pauses = starts.diff().fill_null(0)
    span = int(starts[-1]) - int(starts[0])
    long = max(_PAUSE_NS, span // _PAUSES)
    begins = [int(starts[0]), *starts.filter(pauses > long).to_list()]
    runs: list[Run] = []
    for begin, end in zip(begins, [*begins[1:], _EVER_NS], strict=True):
        own = best.filter(pl.col("start_ns").is_between(begin, end, closed="left"))
        run = Run.between(begin, int(own.select(pl.col("start_ns").max()).item()))
        # Losses just before the first bin belong to it.
        since = begin if runs else -_EVER_NS
        lost = losses.filter(pl.col("lost_ns").is_between(since, end, closed="left"))
        runs.append(_filled(run, own, lost))
    return runs


def _filled(run: Run, rates: pl.DataFrame, losses: pl.DataFrame) -> Run:
    def binned(time: str) -> pl.Expr:
        from_start = pl.max_horizontal(pl.col(time) - run.start_ns, pl.lit(0, pl.Int64))
        return (from_start // run.bin_ns * run.bin_ns + run.start_ns).alias("start_ns")

    sent = rates.group_by(binned("start_ns")).agg(
        pl.col("bytes").sum(), pl.col("retransmitted_bytes").sum(), peak_bytes=pl.col("bytes").max()
    )
    lost = losses.group_by(binned("lost_ns")).agg(
        lost=pl.len(), unrepaired=pl.col("repaired_ns").is_null().sum()
    )
    run.sent = sent.sort("start_ns").to_dicts()
    run.lost = lost.sort("start_ns").to_dicts()
    return run
