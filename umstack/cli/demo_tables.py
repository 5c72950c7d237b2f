"""The output of `umstack demo` about its pipeline on Spark."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from umstack.demo.live_tables import TablesResult


def print_batch(console: Console, news: dict[str, Any]) -> None:
    """Print a batch: the packets so far, and its new findings."""
    console.print(f"Spark, batch {news['batch']}: {news['packets']:,} packets so far", highlight=False)
    for text in news["findings"]:
        console.print(f"  found: {text}", highlight=False, markup=False, soft_wrap=True)


def print_tables(tables: TablesResult | None, why_not: str | None) -> None:
    """Print the answers of Spark SQL, and whether the tables equal the report."""
    console = Console(soft_wrap=True)
    if tables is None:
        if why_not is not None:
            console.print(f"no tables by Spark: {why_not}", highlight=False, markup=False)
        return
    said = f"{tables.packets:,} packets in {tables.batches:,} batches"
    console.print(f"\nSpark SQL on the tables of the pipeline ({said})", highlight=False)
    for rows in filter(None, tables.answers.values()):
        shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 0, 0, 1))
        for name in rows[0]:
            shown.add_column(name, justify="right")
        for row in rows:
            shown.add_row(*("-" if value is None else str(value) for value in row.values()))
        console.print(shown)
    console.print(f"tables: {tables.folder}", highlight=False, markup=False)
    if tables.ok:
        said = "tables, answers and page are identical to the report made without Spark"
        console.print(said, style="bold green", highlight=False)
    else:
        console.print(f"NOT identical to the report: {', '.join(tables.differences)}", style="bold red")
