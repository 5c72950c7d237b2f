"""The streaming job: captures in, windows out, to lines, Parquet or Prometheus."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructField, StructType

from umstack.analysis.observations import NEEDED, NOTE_STATUS, NS_PER_SECOND, ON_TOPICS, label
from umstack.analysis.rates import BUCKET_NS
from umstack.spark.spark_session import DEFAULT_DRIVER_MEMORY, cores, spark_session
from umstack.errors import SystemFailure
from umstack.monitor.finding_watch import INCIDENTS, FindingWatch
from umstack.monitor.prometheus import Prometheus
from umstack.monitor.sinks import RECOVERY, TRAFFIC, Lines, Parts, Sink
from umstack.monitor.windows import loss_windows, recovery, timed, traffic_windows
from umstack.spark import UmpcapDataSource
from umstack.spark.driver_folder import driver_folder
from umstack.facts.packet_columns import ON_REQUEST, PACKETS

_LOOK_SECONDS = 0.2
_RAISED = re.compile(r"^[\w.]+(?:Error|Exception|Failure): .*", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """What is watched, and where it is told."""

    captures: tuple[str, ...]
    window_seconds: float = 10.0
    late_seconds: float = 10.0
    """So much later than the latest packet one may still be counted: how far the clocks of captures disagree."""
    interval_seconds: float = 2.0
    mtu: int = 1500
    once: bool = False
    """Take in what is there and end, instead of waiting for more."""
    parquet: Path | None = None
    prometheus_port: int | None = None
    prometheus_file: Path | None = None
    checkpoint: Path | None = None
    sink: Sink | None = None
    """Takes the windows instead of the lines."""
    master: str | None = None
    driver_memory: str = DEFAULT_DRIVER_MEMORY


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
            # Each partition of a windowed aggregation keeps its state in files of its own, batch by batch.
            options={"spark.sql.shuffle.partitions": str(cores(options.master))},
        ) as spark,
        driver_folder("umstack-monitor-") as folder,
    ):
        queries = _start(spark, options, say, warn, options.checkpoint or Path(folder))
        started()
        try:
            if options.once:
                _take_in(queries, stop)
            else:
                _wait(queries, stop)
        finally:
            for query in queries:
                query.stop()


def _take_in(queries: list[StreamingQuery], stop: threading.Event) -> None:
    """Until everything that is there was taken in, by calls of a thread: they may take long."""

    def take() -> None:
        for query in queries:
            query.processAllAvailable()

    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(take)
        while not stop.wait(_LOOK_SECONDS) and not taking.done():
            pass
        if not taking.done():
            for query in queries:
                query.stop()
            return
        try:
            taking.result()
        except PySparkException as error:
            raise _failure(error) from error


def _wait(queries: list[StreamingQuery], stop: threading.Event) -> None:
    while all(query.isActive for query in queries):
        if stop.wait(_LOOK_SECONDS):
            return
    for query in queries:
        if (error := query.exception()) is not None:
            raise _failure(error) from error


def _failure(error: Exception) -> SystemFailure:
    """What ended a query, in a line: what a Python traceback ends with, the first line of anything else."""
    said = str(error) or type(error).__name__
    raised = _RAISED.findall(said) if "Traceback (most recent call last)" in said else []
    line = raised[-1] if raised else said.splitlines()[0]
    return SystemFailure(f"watching ended: {line}", hint="with --checkpoint it goes on where it was")


def packets(
    spark: SparkSession, captures: tuple[str, ...], query: str, *, everything: bool = False
) -> DataFrame:
    """The packets of captures that grow, with the columns that the windows need, by a source of the query's own.

    With `everything` they have their topics, and there are rows of what the captures do not hold: one query of a job
    tells that, not all of them.

    A source is looked up by its name when a query starts, and its environment belongs to all queries that find it: one
    that starts changes it while a task of another is serialised, which nobody can read then.
    """
    if len(captures) > 1:
        raise SystemFailure("several places cannot be watched by one job", hint="name a folder, or a glob")
    source = _source(query)
    spark.dataSource.register(source)
    known = from_arrow_schema(pa.unify_schemas([PACKETS, ON_REQUEST]))
    # All of them may be null, for what an earlier version left in a checkpoint is compared with it.
    names = (*NEEDED, *(ON_TOPICS if everything else ()))
    schema = StructType([StructField(name, known[name].dataType) for name in names])
    reader = spark.readStream.format(source.name()).schema(schema).option("onlyOurs", "true")
    reader = reader.option("notes", str(everything).lower())
    return reader.load(captures[0])


def _source(query: str) -> type[UmpcapDataSource]:
    class Source(UmpcapDataSource):
        @classmethod
        def name(cls) -> str:
            return f"umpcap-{query}"

    return Source


def _start(
    spark: SparkSession,
    options: MonitorOptions,
    say: Callable[[str], None],
    warn: Callable[[str], None],
    checkpoint: Path,
) -> list[StreamingQuery]:
    def observed(kind: str) -> DataFrame:
        return timed(packets(spark, options.captures, kind), options.late_seconds)

    frames = {
        TRAFFIC: traffic_windows(observed(TRAFFIC), options.window_seconds, options.mtu),
        RECOVERY: loss_windows(observed(RECOVERY), options.window_seconds),
    }
    sinks = sinks_for(options, say)
    windows = [_query(kind, frame, options, sinks, checkpoint) for kind, frame in frames.items()]
    watched = packets(spark, options.captures, INCIDENTS, everything=True)
    return [*windows, _watch(watched, options, sinks, warn, checkpoint)]


def sinks_for(options: MonitorOptions, say: Callable[[str], None]) -> list[Sink]:
    """What takes the rows: all that was asked for, or lines where nothing was."""
    asked: list[Sink] = []
    if options.prometheus_port is not None or options.prometheus_file is not None:
        asked.append(Prometheus(options.prometheus_port, options.prometheus_file))
    if options.sink is not None:
        asked.append(options.sink)
    if not asked and options.parquet is None:
        asked.append(Lines(say))
    return asked


def _writer(kind: str, frame: DataFrame, options: MonitorOptions, checkpoint: Path) -> DataStreamWriter:
    writer = frame.writeStream.queryName(kind).option("checkpointLocation", str(checkpoint / kind))
    # Spark's own "available now" leaves windows open whose end the last packets have passed.
    return writer.trigger(processingTime=f"{0 if options.once else options.interval_seconds} seconds")


def _query(
    kind: str, frame: DataFrame, options: MonitorOptions, sinks: list[Sink], checkpoint: Path
) -> StreamingQuery:
    writer = _writer(kind, frame, options, checkpoint)
    if options.parquet is not None:
        return (
            writer.format("parquet").option("path", str(options.parquet / kind)).outputMode("append").start()
        )

    def tell(batch: DataFrame, _number: int) -> None:
        found = recovery(batch) if kind == RECOVERY else batch
        rows = [row.asDict() for row in found.collect()]
        for sink in sinks:
            sink.take(kind, rows, options.window_seconds)

    # Traffic is shown as it grows. Losses are shown when their window is over, so that all of it are in one batch;
    # where there is only one batch they all are.
    mode = "update" if kind == TRAFFIC or options.once else "append"
    return writer.outputMode(mode).foreachBatch(tell).start()


def _watch(
    watched: DataFrame,
    options: MonitorOptions,
    sinks: list[Sink],
    warn: Callable[[str], None],
    checkpoint: Path,
) -> StreamingQuery:
    """Incidents, storms and the findings of windows: judged over what is not told yet, by the functions of the report.

    The notes among the packets are told on the way.
    """
    watch = FindingWatch(
        checkpoint / "watched",
        # Rates are counted by milliseconds, each of which belongs to one window.
        window_ns=round(options.window_seconds * NS_PER_SECOND / BUCKET_NS) * BUCKET_NS,
        late_ns=round(options.late_seconds * NS_PER_SECOND),
        mtu=options.mtu,
        # Lines say what is there now; Parquet waits for the rest of an incident, as it does for that of a window.
        until_the_end=options.once and options.parquet is None,
    )
    parts = None if options.parquet is None else Parts(options.parquet, watch.identity())

    def tell(batch: DataFrame, number: int) -> None:
        # Taken while the batch is kept: to ask for them by themselves would decode it once more.
        noted = Observation()
        is_note = F.col("status").startswith(NOTE_STATUS)
        said = F.collect_list(F.when(is_note, F.struct("point", "status"))).alias("notes")
        found_in_batch = watch.take(label(batch.observe(noted, said)), number)
        _tell_notes(noted.get["notes"], sinks, warn)
        for kind, found in found_in_batch.items():
            if parts is not None:
                parts.write(kind, number, found)
                continue
            for sink in sinks:
                sink.take(kind, found.to_pylist(), options.window_seconds)

    return _writer(INCIDENTS, watched, options, checkpoint).foreachBatch(tell).start()


def _tell_notes(notes: Iterable[Row], sinks: list[Sink], warn: Callable[[str], None]) -> None:
    """Say what the captures do not hold, and count it where there are counters."""
    for point, status in sorted((row["point"], row["status"]) for row in notes):
        warn(status)
        for sink in sinks:
            if isinstance(sink, Prometheus):
                sink.note(point)
