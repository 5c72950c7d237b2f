"""The streaming job: captures in, windows out, to lines, Parquet or Prometheus."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from umstack.analysis.traffic import NS_PER_SECOND
from umstack.errors import SystemFailure
from umstack.facts.kinds import BUCKET_NS
from umstack.monitor.finding_metrics import FindingMetrics
from umstack.monitor.finding_watch import FindingWatch
from umstack.monitor.sinks import Lines, ParquetParts, Parts, Sink
from umstack.monitor.window_findings import TRAFFIC
from umstack.spark import UmpcapDataSource
from umstack.spark.driver_folder import driver_folder
from umstack.spark.spark_session import DEFAULT_DRIVER_MEMORY, spark_session
from umstack.spark.table_format import PARQUET, append_table

_QUERY = "findings"
_EARLIER_QUERIES = ("traffic", "incidents")
"""Queries of a version that had several."""
_LOOK_SECONDS = 0.2
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception|Failure): .*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """What is watched, and where it is told."""

    captures: tuple[str, ...]
    window_seconds: float = 10.0
    late_seconds: float = 2.0
    """So much later than the latest packet one may still be counted: how far the clocks of captures disagree."""
    interval_seconds: float = 1.0
    mtu: int = 1500
    once: bool = False
    """Take in what is there and end, instead of waiting for more."""
    parquet: Path | None = None
    table_format: str = PARQUET
    """Of the tables there; another than Parquet is written by Spark, if it has it: delta, orc."""
    prometheus_port: int | None = None
    prometheus_file: Path | None = None
    checkpoint: Path | None = None
    sink: Sink | None = None
    """Takes the windows instead of the lines."""
    master: str | None = None
    driver_memory: str = DEFAULT_DRIVER_MEMORY
    most_bytes: int = 256 << 20
    """How much of the captures a batch takes in, which bounds its memory."""


def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def monitor(
    options: MonitorOptions,
    say: Callable[[str], None],
    started: Callable[[], None] = lambda: None,
    warn: Callable[[str], None] = _warn,
    stop: threading.Event | None = None,
) -> None:
    """Watch until `stop` is set (or, with `once`, until everything that is there was taken in). `say` takes lines.

    `warn` takes what the captures do not hold, a line a file and reason. An interrupt in the middle of a call into the
    virtual machine leaves its answer to the next call: who may be interrupted sets `stop` instead.
    """
    stop = stop or threading.Event()
    with (
        spark_session(
            "umstack monitor",
            options.master,
            driver_memory=options.driver_memory,
            # Facts are little, however much is captured.
            is_little=True,
        ) as spark,
        driver_folder("umstack-monitor-") as folder,
    ):
        told = _Told(options, sinks_for(options, say), warn, options.checkpoint or Path(folder))
        query = told.start(spark)
        started()
        try:
            if not options.once:
                _wait(query, stop)
            elif _take_in(query, stop):
                told.finish()
        finally:
            query.stop()


def _take_in(query: StreamingQuery, stop: threading.Event) -> bool:
    """Until everything that is there was taken in, by calls of a thread: they may take long. False if stopped."""
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(query.processAllAvailable)
        while not stop.wait(_LOOK_SECONDS) and not taking.done():
            pass
        if not taking.done():
            query.stop()
            return False
        try:
            taking.result()
        except PySparkException as error:
            raise _failure(error) from error
        return True


def _wait(query: StreamingQuery, stop: threading.Event) -> None:
    while query.isActive:
        if stop.wait(_LOOK_SECONDS):
            return
    if (error := query.exception()) is not None:
        raise _failure(error) from error


def _failure(error: Exception) -> SystemFailure:
    """What ended a query, in a line: what a Python traceback ends with, the first line of anything else."""
    said = str(error) or type(error).__name__
    raised = _RAISED.findall(said) if "Traceback (most recent call last)" in said else []
    line = raised[-1] if raised else said.splitlines()[0]
    return SystemFailure(f"watching ended: {line}", hint="with --checkpoint it goes on where it was")


def sinks_for(options: MonitorOptions, say: Callable[[str], None]) -> list[Sink]:
    """What takes the rows: all that was asked for, or lines where nothing was."""
    asked: list[Sink] = []
    if options.prometheus_port is not None or options.prometheus_file is not None:
        asked.append(FindingMetrics(options.prometheus_port, options.prometheus_file))
    if options.sink is not None:
        asked.append(options.sink)
    if not asked and options.parquet is None:
        asked.append(Lines(say))
    return asked


class _Told:
    """Takes the facts of the stream, batch by batch, and tells what is found in them."""

    def __init__(
        self, options: MonitorOptions, sinks: list[Sink], warn: Callable[[str], None], checkpoint: Path
    ) -> None:
        self._options = options
        self._sinks = sinks
        self._warn = warn
        self._checkpoint = checkpoint
        self._watch = FindingWatch(
            checkpoint / "watched",
            # Rates are counted by milliseconds, each of which belongs to one window.
            window_ns=round(options.window_seconds * NS_PER_SECOND / BUCKET_NS) * BUCKET_NS,
            late_ns=round(options.late_seconds * NS_PER_SECOND),
            mtu=options.mtu,
        )
        self._parts: Parts | None = None

    def start(self, spark: SparkSession) -> StreamingQuery:
        """The query: one source, one decode of what is new, one batch of facts."""
        self._parts = self._parts_for(spark)
        captures, options = self._options.captures, self._options
        if len(captures) > 1:
            raise SystemFailure(
                "several places cannot be watched by one job", hint="name a folder, or a glob"
            )
        for earlier in _EARLIER_QUERIES:
            if (self._checkpoint / earlier).exists():
                raise SystemFailure(
                    f"the checkpoint {self._checkpoint} is of an earlier version",
                    hint="name another folder, and take away what that version has written of these captures",
                )
        spark.dataSource.register(UmpcapDataSource)
        reader = spark.readStream.format(UmpcapDataSource.name()).option("rows", "facts")
        reader = reader.option("notes", "true").option("windowSeconds", str(options.window_seconds))
        reader = reader.option("maxBytesPerTrigger", str(options.most_bytes))
        writer = reader.load(captures[0]).writeStream.queryName(_QUERY)
        writer = writer.option("checkpointLocation", str(self._checkpoint / _QUERY))
        # Spark's own "available now" leaves windows open whose end the last packets have passed.
        interval = f"{0 if options.once else options.interval_seconds} seconds"
        return writer.trigger(processingTime=interval).foreachBatch(self._take).start()

    def _parts_for(self, spark: SparkSession) -> Parts | None:
        options, identity = self._options, self._watch.identity()
        if options.parquet is None:
            return None
        if options.table_format == PARQUET:
            return ParquetParts(options.parquet, identity)
        return _SparkParts(spark, options.parquet.resolve(), options.table_format, identity)

    def _take(self, batch: DataFrame, number: int) -> None:
        taken = self._watch.take(batch.toArrow(), number)
        for point, text in taken.notes:
            self._warn(text)
            for sink in self._sinks:
                if isinstance(sink, FindingMetrics):
                    sink.note(point)
        # Traffic is shown as it grows; all else when its window is over.
        self._sink(TRAFFIC, taken.traffic)
        self._tell(taken.tables, number)

    def _tell(self, tables: Mapping[str, pa.Table], number: int) -> None:
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
        """Say what is there now. Parquet waits for the rest of an incident, and of a window."""
        if self._parts is None:
            self._tell(self._watch.finish(), 0)


@dataclass(frozen=True, slots=True)
class _SparkParts:
    """Tables of another format, which Spark appends to."""

    spark: SparkSession
    folder: Path
    table_format: str
    identity: str

    def write(self, kind: str, number: int, table: pa.Table) -> None:
        """The rows of a batch."""
        if len(table):
            stream = f"{self.identity}-{kind}"
            append_table(self.spark, table, self.folder / kind, self.table_format, stream, number)
