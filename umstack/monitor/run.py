"""The streaming job: reads captures and writes windows as lines, Parquet or Prometheus metrics."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from umstack.analysis.traffic import NS_PER_SECOND
from umstack.errors import SystemFailure, naming_path
from umstack.facts.kinds import BUCKET_NS
from umstack.monitor.finding_metrics import FindingMetrics
from umstack.monitor.finding_watch import FindingWatch
from umstack.monitor.sinks import Lines, ParquetParts, Parts, Sink
from umstack.monitor.window_findings import TRAFFIC
from umstack.spark import UmpcapDataSource
from umstack.spark.driver_folder import driver_folder
from umstack.spark.spark_session import DEFAULT_DRIVER_MEMORY, spark_session
from umstack.spark.streaming_query import run_query, start_query, wait_for_end, wait_for_existing
from umstack.spark.table_format import PARQUET, append_table

_QUERY = "findings"
_EARLIER_QUERIES = ("traffic", "incidents")
"""Queries of an earlier version, which had several."""
_FAILED = ("monitoring", "use --checkpoint to resume where it stopped")


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """The captures to watch and the outputs."""

    captures: tuple[str, ...]
    window_seconds: float = 10.0
    late_seconds: float = 2.0
    """Packets this much older than the latest one still count: the maximum difference of the captures' clocks."""
    interval_seconds: float = 1.0
    mtu: int = 1500
    once: bool = False
    """Process the existing captures and end, instead of waiting for more."""
    parquet: Path | None = None
    table_format: str = PARQUET
    """Format of the tables in `parquet`. Formats other than Parquet (delta, orc) need a data source of Spark."""
    prometheus_port: int | None = None
    prometheus_file: Path | None = None
    checkpoint: Path | None = None
    sink: Sink | None = None
    """Receives the windows instead of lines being printed."""
    master: str | None = None
    driver_memory: str = DEFAULT_DRIVER_MEMORY
    most_bytes: int = 256 << 20
    """Maximum number of bytes of captures in a batch, which bounds memory."""
    hardware_times: bool = False
    """Take times from trailers of capture switches and ERF records, as in `decode`."""


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def monitor(
    options: MonitorOptions,
    say: Callable[[str], None],
    started: Callable[[], None] = lambda: None,
    warn: Callable[[str], None] = _warn,
    stop: threading.Event | None = None,
) -> None:
    """Watch until `stop` is set, or with `once` until all existing captures are processed. `say` receives lines.

    `warn` receives one line per file and reason for data that captures lack. To stop, set `stop` instead of
    interrupting the thread: an interrupted call into the JVM leaves its result to be read by the next call.
    """
    stop = stop or threading.Event()
    with (
        spark_session(
            "umstack monitor",
            options.master,
            driver_memory=options.driver_memory,
            # Facts are small regardless of the size of the captures.
            is_little=True,
        ) as spark,
        driver_folder("umstack-monitor-") as folder,
    ):
        reporter = _Reporter(options, sinks_for(options, say), warn, options.checkpoint or Path(folder))

        def wait(query: StreamingQuery) -> None:
            if not options.once:
                wait_for_end(query, stop, *_FAILED)
            elif wait_for_existing(query, stop, *_FAILED):
                reporter.finish()

        run_query(lambda: reporter.start(spark), started, wait)


def sinks_for(options: MonitorOptions, say: Callable[[str], None]) -> list[Sink]:
    """Return the sinks that were configured, or lines without any."""
    sinks: list[Sink] = []
    if options.prometheus_port is not None or options.prometheus_file is not None:
        sinks.append(FindingMetrics(options.prometheus_port, options.prometheus_file))
    if options.sink is not None:
        sinks.append(options.sink)
    if not sinks and options.parquet is None:
        sinks.append(Lines(say))
    return sinks


class _Reporter:
    """Receives the facts of the stream batch by batch and reports the findings in them."""

    def __init__(
        self, options: MonitorOptions, sinks: list[Sink], warn: Callable[[str], None], checkpoint: Path
    ) -> None:
        self._options = options
        self._sinks = sinks
        self._warn = warn
        self._checkpoint = checkpoint
        self._watch = FindingWatch(
            checkpoint / "watched",
            # Rates are counted per millisecond; each millisecond belongs to one window.
            window_ns=round(options.window_seconds * NS_PER_SECOND / BUCKET_NS) * BUCKET_NS,
            late_ns=round(options.late_seconds * NS_PER_SECOND),
            mtu=options.mtu,
        )
        self._parts: Parts | None = None
        self._batch = 0
        """The number of the last batch."""

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query: one source, one decode of the new data, one batch of facts."""
        self._parts = self._parts_for(spark)
        captures, options = self._options.captures, self._options
        if len(captures) > 1:
            raise SystemFailure("one job cannot watch several places", hint="name one folder or glob")
        for earlier in _EARLIER_QUERIES:
            if (self._checkpoint / earlier).exists():
                raise SystemFailure(
                    f"checkpoint {self._checkpoint} is from an earlier version",
                    hint="name another folder, and remove the output of that version for these captures",
                )
        spark.dataSource.register(UmpcapDataSource)
        reader = spark.readStream.format(UmpcapDataSource.name()).option("rows", "facts")
        reader = reader.option("notes", "true").option("windowSeconds", str(options.window_seconds))
        reader = reader.option("maxBytesPerTrigger", str(options.most_bytes))
        reader = reader.option("hardwareTimes", str(options.hardware_times).lower())
        writer = reader.load(captures[0]).writeStream.queryName(_QUERY)
        # Spark's trigger "available now" would leave windows open that the last packets have completed.
        interval = f"{0 if options.once else options.interval_seconds} seconds"
        writer = writer.trigger(processingTime=interval).foreachBatch(self._take)
        return start_query(writer, self._checkpoint / _QUERY)

    def _parts_for(self, spark: SparkSession) -> Parts | None:
        options = self._options
        with self._naming_checkpoint():
            identity = self._watch.identity()
        if options.parquet is None:
            return None
        if options.table_format == PARQUET:
            return ParquetParts(options.parquet, identity)
        return _SparkParts(spark, options.parquet.resolve(), options.table_format, identity)

    def _naming_checkpoint(self) -> AbstractContextManager[None]:
        return naming_path(f"checkpoint {self._checkpoint}")

    def _take(self, batch: DataFrame, number: int) -> None:
        facts = batch.toArrow()
        with self._naming_checkpoint():
            taken = self._watch.take(facts, number)
        self._batch = number
        for point, text in taken.notes:
            self._warn(text)
            for sink in self._sinks:
                if isinstance(sink, FindingMetrics):
                    sink.note(point)
        # Traffic is shown as it grows; everything else when its window is complete.
        self._sink(TRAFFIC, taken.traffic)
        self._report(taken.tables, number)

    def _report(self, tables: Mapping[str, pa.Table], number: int) -> None:
        for kind, table in tables.items():
            if self._parts is not None:
                self._parts.write(kind, number, table)
            elif kind != TRAFFIC:
                self._sink(kind, table)

    def _sink(self, kind: str, table: pa.Table) -> None:
        if self._parts is None and len(table):
            rows = table.to_pylist()
            for sink in self._sinks:
                sink.take(kind, rows, self._options.window_seconds)

    def finish(self) -> None:
        """Report incomplete incidents and windows. With Parquet and a checkpoint the next run reports them, whole."""
        if self._parts is None or self._options.checkpoint is None:
            with self._naming_checkpoint():
                tables = self._watch.finish()
            self._report(tables, self._batch + 1)
        elif (from_ns := self._watch.open_ns()) is not None:
            opened = datetime.fromtimestamp(from_ns / NS_PER_SECOND, UTC).isoformat(timespec="seconds")
            self._warn(
                f"windows from {opened} on are incomplete: the next run with this checkpoint writes them"
            )


@dataclass(frozen=True, slots=True)
class _SparkParts:
    """Writes tables in a format that Spark appends to."""

    spark: SparkSession
    folder: Path
    table_format: str
    identity: str

    def write(self, kind: str, number: int, table: pa.Table) -> None:
        """Write the rows of a batch."""
        if len(table):
            stream = f"{self.identity}-{kind}"
            append_table(self.spark, table, self.folder / kind, self.table_format, stream, number)
