"""Fills the demo's tables with Spark while the transfers run, in a process started by umstack.demo.live_tables.

    python -m umstack.demo.table_worker CAPTURES TABLES

It prints a JSON object per line: one after each batch, one with the answers at the end. A line on standard input
requests the end: the rest of the captures is processed and the tables are queried. If standard input closes before, the
demo has ended, and so does this process.

The demo measures rates, so during the transfers this process has a low priority, and always only one task at a time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
from pyspark.sql import SparkSession

from umstack.demo.live_tables import QUERIES
from umstack.pipeline.layout import GOLD, Layout
from umstack.pipeline.run import PipelineOptions, Progress, run_pipeline
from umstack.report.findings import Severity
from umstack.spark import register_views
from umstack.spark.spark_session import spark_session

_NICE = 10
_FINDINGS_SHOWN_MAX = 6
_INTERVAL_SECONDS = 1.0
_MASTER, _DRIVER_MEMORY = "local[1]", "768m"
_SHOWN = (Severity.BAD.name.lower(), Severity.WORTH_A_LOOK.name.lower())


def _main(captures: str, tables: Path) -> None:
    os.nice(_NICE)
    _set_session_nice(_NICE)
    stop, is_finishing = threading.Event(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())

    def obey() -> None:
        if sys.stdin.readline():
            is_finishing.set()
        # The transfers have ended.
        _set_session_nice(0)
        stop.set()

    threading.Thread(target=obey, name="demo", daemon=True).start()
    options = PipelineOptions(captures, tables, interval_seconds=_INTERVAL_SECONDS)
    news = _News(Layout(tables))
    with spark_session("umstack demo", _MASTER, driver_memory=_DRIVER_MEMORY, is_little=True) as spark:
        run_pipeline(options, news.of_run(), stop=stop)
        if is_finishing.is_set():
            run_pipeline(PipelineOptions(captures, tables, once=True), news.of_run())
            _say({"answers": _answers(spark, tables), "batches": news.batches, "packets": news.packets})


def _set_session_nice(nice: int) -> None:
    """Set the priority of this session: with autogroups, the kernel compares those and not processes."""
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(nice))


class _News:
    """Reports batches, with the findings that no batch before had."""

    def __init__(self, layout: Layout) -> None:
        self._findings = str(layout.table(GOLD, "findings") / "**" / "*.parquet")
        self._known: set[tuple[Any, ...]] = set()
        self.batches = self.packets = 0

    def of_run(self) -> Callable[[Progress], None]:
        """Return the function that reports the batches of one run of the pipeline."""
        batches, packets = self.batches, self.packets

        def report(progress: Progress) -> None:
            self.batches, self.packets = batches + progress.batches, packets + progress.packets
            _say({"batch": self.batches, "packets": self.packets, "findings": self._new()})

        return report

    def _new(self) -> list[str]:
        """Return the most important new findings. Figures grow with every batch: a finding is new if its kind is."""
        rows = pl.read_parquet(self._findings).filter(pl.col("severity").is_in(_SHOWN))
        found = []
        for row in rows.sort("rank", "publisher", "session_id").iter_rows(named=True):
            key = (row["publisher"], row["session_id"], row["topic"])
            if key not in self._known:
                self._known.add(key)
                found.append(row["text"])
        return found[:_FINDINGS_SHOWN_MAX]


def _answers(spark: SparkSession, tables: Path) -> dict[str, list[dict[str, Any]]]:
    register_views(spark, tables)
    return {name: spark.sql(query).toArrow().to_pylist() for name, query in QUERIES.items()}


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]))
