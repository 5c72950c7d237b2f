"""Fills a folder of tables from captures with Spark, once or as they grow.

Each batch of the stream is one job: the workers decode new packets into facts, and one task per session adds them to
the session's facts and derives its tables again. All of this can be repeated, so Spark's checkpoint, whose batches have
the same packets when they are repeated, makes each packet count exactly once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from umstack.capture.reading.capture_files import capture_files
from umstack.capture.reading.errors import CaptureError
from umstack.capture.reading.remote import is_remote, shown
from umstack.facts.kinds import SESSION
from umstack.facts.packed import PACKETS
from umstack.pipeline.derive import take_batch
from umstack.pipeline.layout import DAY_NS, FACTS, MESSAGES, Layout, Partition, Settings, TablesError
from umstack.pipeline.maintenance import write_empty_tables
from umstack.pipeline.messages import take_messages
from umstack.pipeline.published import ICEBERG, PARQUET, publish, require
from umstack.pipeline.upload import Upload
from umstack.recorder.parquet_parts import TOPIC_INDEX
from umstack.recorder.tables import messages
from umstack.spark import UmpcapDataSource, find_splits
from umstack.spark.live_source import UmstackDataSource
from umstack.spark.spark_session import DEFAULT_DRIVER_MEMORY, is_local, spark_session
from umstack.spark.streaming_query import run_query, start_query, wait_for_end, wait_for_existing

_QUERY = "tables"
_FAILED = ("the pipeline", "run it again: it continues where it stopped, and repeats the last batch")
_TAKEN = pa.schema([("session", pa.string()), ("days", pa.list_(pa.date32())), ("packets", pa.int64())])


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """The captures, the folder of tables, and how it is filled."""

    captures: str
    """A file, folder or glob, perhaps remote; or the folder of a recorder's journal."""
    tables: Path
    once: bool = False
    """Process the existing captures and end, instead of waiting for more."""
    interval_seconds: float = 10.0
    """Time from the start of a batch to the next one."""
    mtu: int = 1500
    hardware_times: bool = False
    master: str | None = None
    driver_memory: str = DEFAULT_DRIVER_MEMORY
    most_bytes: int = 256 << 20
    """Maximum number of bytes of captures in a batch, which bounds memory."""
    live: tuple[tuple[str, str], ...] = ()
    """Options of the data source of live topics (docs/recording.md), which starts a recorder for the journal."""
    table_format: str = PARQUET
    """Format in which silver and gold tables are kept besides Parquet: delta or iceberg."""
    store: str | None = None
    """URL in an object store that gets a copy of the tables after each batch (umstack.pipeline.upload)."""

    @property
    def source(self) -> str:
        """The captures, as a URL or an absolute path."""
        return self.captures if is_remote(self.captures) else str(Path(self.captures).absolute())

    @property
    def reads_messages(self) -> bool:
        """True if the messages of a journal are read, not captures."""
        return bool(self.live) or (Path(self.captures) / MESSAGES).is_dir()


@dataclass(slots=True)
class Progress:
    """The work of a run so far."""

    batches: int = 0
    packets: int = 0
    """Packets of the captures, or messages of the journal."""
    sessions: int = 0
    """Sessions in the last batch."""
    days: int = 0
    """Days of sessions whose tables the last batch derived."""
    seconds: float = 0.0
    """Duration of the last batch."""


def run_pipeline(
    options: PipelineOptions,
    on_batch: Callable[[Progress], None] = lambda progress: None,
    started: Callable[[], None] = lambda: None,
    stop: threading.Event | None = None,
) -> Progress:
    """Fill the tables until `stop` is set, or with `once` until all existing captures are processed.

    Args:
        options: The captures, the folder of tables, and how it is filled.
        on_batch: Called after each batch, from another thread.
        started: Called when Spark runs.
        stop: Ends the run when it is set; the tables are complete then, too.

    Returns:
        The number of batches and packets of this run.

    Raises:
        TablesError: The folder has other settings or a newer version, or another process writes it.
        SystemFailure: A batch failed. The next run repeats it.

    Example:
        >>> from umstack.pipeline.run import PipelineOptions, run_pipeline
        >>> run_pipeline(PipelineOptions("captures/", Path("tables"), once=True))    # doctest: +SKIP
    """
    stop = stop or threading.Event()
    layout = Layout(options.tables.resolve())
    with layout.owned():
        settings = _prepared(layout, options)
        upload = None if options.store is None else Upload(layout, options.store)
        if upload is not None:
            upload.everything()
        with spark_session(
            "umstack pipeline",
            options.master,
            driver_memory=options.driver_memory,
            # Facts are small regardless of the size of the captures; a cluster has more tasks than two.
            is_little=is_local(options.master),
        ) as spark:
            _split_new_objects(spark, layout, options)
            writer = _Writer(layout, settings, options, on_batch, upload)
            wait = wait_for_existing if options.once else wait_for_end
            run_query(lambda: writer.start(spark), started, lambda query: wait(query, stop, *_FAILED))
        return writer.progress


def _split_new_objects(spark: SparkSession, layout: Layout, options: PipelineOptions) -> None:
    """Find the splits of remote captures that no batch has listed, so that several tasks read a large one."""
    if not is_remote(options.source):
        return
    known, new = set(layout.captures()), list[str]()
    with suppress(CaptureError):  # the folder may have no capture yet
        new = [file for file in capture_files([options.source]) if shown(file) not in known]
    if new:
        find_splits(spark, new, hardwareTimes=str(options.hardware_times).lower())


def _prepared(layout: Layout, options: PipelineOptions) -> Settings:
    """Return the settings of the tables, which are made if there are none yet."""
    require(options.table_format)
    if options.store is not None and options.table_format == ICEBERG:
        raise TablesError(
            "Iceberg tables contain the paths of their files and cannot be copied to an object store",
            hint="use --format delta",
        )
    wanted = Settings(shown(options.source), options.mtu, options.hardware_times, options.table_format)
    found = layout.settings()
    if found is None:
        if layout.folders(FACTS) or layout.folders(MESSAGES):
            raise TablesError(
                f"{layout.root} has facts but no {layout.state.name}/layout.json", hint=_LOST_HINT
            )
        write_empty_tables(layout)
        layout.save(wanted)
        return wanted
    if found != wanted:
        raise TablesError(
            f"the tables in {layout.root} are of {found.captures} as {found.table_format} with mtu {found.mtu} "
            f"and hardware times {'on' if found.hardware_times else 'off'}",
            hint="use the same captures and options, another folder, or --derive-again with --mtu or --format",
        )
    if (layout.folders(FACTS) or layout.folders(MESSAGES)) and not (layout.checkpoint / "offsets").is_dir():
        raise TablesError(f"{layout.root} has facts but no checkpoint", hint=_LOST_HINT)
    write_empty_tables(layout)
    return found


_LOST_HINT = "packets would count twice: remove the folder to make its tables again, or restore its _umstack"


class _Writer:
    """Takes the batches of the stream."""

    def __init__(
        self,
        layout: Layout,
        settings: Settings,
        options: PipelineOptions,
        on_batch: Callable[[Progress], None],
        upload: Upload | None,
    ) -> None:
        self._upload = upload
        self._layout = layout
        self._settings = settings
        self._options = options
        self._on_batch = on_batch
        self.progress = Progress()

    def start(self, spark: SparkSession) -> StreamingQuery:
        """Start the query."""
        options = self._options
        rows = self._messages(spark) if options.reads_messages else self._facts(spark)
        writer = rows.writeStream.queryName(_QUERY)
        interval = f"{0 if options.once else options.interval_seconds} seconds"
        writer = writer.trigger(processingTime=interval).foreachBatch(self._take)
        return start_query(writer, self._layout.checkpoint)

    def _facts(self, spark: SparkSession) -> DataFrame:
        options = self._options
        spark.dataSource.register(UmpcapDataSource)
        reader = spark.readStream.format(UmpcapDataSource.name()).option("rows", FACTS)
        reader = reader.option("notes", "true").option("windowSeconds", str(DAY_NS // 1_000_000_000))
        reader = reader.option("maxBytesPerTrigger", str(options.most_bytes))
        reader = reader.option("hardwareTimes", str(options.hardware_times).lower())
        return reader.load(options.source)

    def _messages(self, spark: SparkSession) -> DataFrame:
        spark.dataSource.register(UmstackDataSource)
        reader = spark.readStream.format(UmstackDataSource.name()).options(**dict(self._options.live))
        return reader.load(self._options.source).select(*messages().schema.names)

    def _take(self, batch: DataFrame, number: int) -> None:
        began = time.monotonic()
        with self._layout.changing():
            taken = self._added(batch, number).toArrow()
            changed = [(day, row["session"]) for row in taken.to_pylist() for day in row["days"]]
            publish(self._layout, self._settings, changed, number)
        if self._upload is not None:
            self._upload.partitions(changed)
        self.progress = Progress(
            self.progress.batches + 1,
            self.progress.packets + sum(taken["packets"].to_pylist()),
            len(taken),
            len(changed),
            time.monotonic() - began,
        )
        self._on_batch(self.progress)

    def _added(self, batch: DataFrame, number: int) -> DataFrame:
        """Add the rows of a batch, a session in each task; returns a row per session: its days and rows."""
        schema = from_arrow_schema(_TAKEN)
        if self._options.reads_messages:
            session = functions.regexp_replace("source", TOPIC_INDEX, "")
            return batch.groupBy(session).applyInArrow(_message_task(self._layout, number), schema)
        with suppress(CaptureError):  # the folder may have no capture yet
            self._layout.add_captures([shown(file) for file in capture_files([self._options.source])])
        return batch.groupBy(*SESSION).applyInArrow(_task(self._layout, self._settings, number), schema)


def _message_task(layout: Layout, batch: int) -> Callable[[pa.Table], pa.Table]:
    """Return the function that adds the messages of one session in a batch, on the executors."""

    def take(rows: pa.Table) -> pa.Table:
        return _taken(take_messages(layout, batch, rows), len(rows))

    return take


def _task(
    layout: Layout, settings: Settings, batch: int
) -> Callable[[tuple[pa.Scalar, ...], pa.Table], pa.Table]:
    """Return the function that adds the facts of a batch to one session, on the executors."""

    def take(key: tuple[pa.Scalar, ...], rows: pa.Table) -> pa.Table:
        session = (key[0].as_py(), key[1].as_py())
        return _taken(take_batch(layout, settings, session, batch, rows), packets_of(rows))

    return take


def _taken(partitions: list[Partition], packets: int) -> pa.Table:
    """Return the row about one session in a batch."""
    days = [day for day, _ in partitions]
    return pa.Table.from_pylist([{"session": partitions[0][1], "days": days, "packets": packets}], _TAKEN)


def packets_of(rows: pa.Table) -> int:
    """Return the number of packets that packed facts are of."""
    counts = rows.filter(pc.equal(rows["frame"], PACKETS))["content"].to_pylist()
    return sum(int.from_bytes(count, "little") for count in counts)
