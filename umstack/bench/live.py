"""Checks that a live query keeps up: a paced publisher on real sockets, a recorder's journal, Spark's `readStream`.

Everything runs on this machine, over loopback, on groups of this process. A message carries its number, which is also
its position in the journal, and the query checks every one.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from umstack.bench.children import CHILD_SLACK_SECONDS, BenchError, Child, ThisMachine, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.paced_ends import NUMBER_BYTES, PacedSpec
from umstack.bench.process_watch import ProcessWatch, machine_cpu_seconds
from umstack.bench.targets import Target
from umstack.bench.throughput import Progress, options_text
from umstack.recorder.background import BackgroundRecorder, end_recorder, writer_of
from umstack.recorder.journal import JournalReader
from umstack.recorder.tables import messages
from umstack.spark.live_source import NAME, UmstackDataSource
from umstack.spark.spark_session import enough_memory, spark_session
from umstack.spark.streaming_query import start_connected

TOPIC = "bench.live"
TRIGGER_SECONDS = 1

_INTERFACE = "lo"
_DATAGRAM_BYTES = 1472
"""Maximum datagram size in bytes, as on Ethernet; loopback would allow 65507."""
_UNREAD_SECONDS = 60.0
_LOOK_SECONDS = 0.02
_SILENCE_SECONDS = 60.0
"""Stop waiting when the query has made no progress for this long."""
_MIB = 1 << 20

_SENT_SHARE = 0.99
_BEHIND_SECONDS = 3.0
_TOGETHER_MIB, _TOGETHER_MIB_A_CORE = 1536, 512
"""Memory limit of all processes, with the heap of enough_memory and two Spark workers per core."""

_NUMBER = f"CAST(conv(hex(substring(payload, 1, {NUMBER_BYTES})), 16, 10) AS BIGINT) AS number"


@dataclass(frozen=True, slots=True)
class LivePlan:
    """Rate, message size and duration of the measurement."""

    rate: int = 200_000
    """Messages per second."""
    size: int = 100
    seconds: float = 15.0
    options: Sequence[str] = ()
    """Configuration lines for both ends."""

    @property
    def messages(self) -> int:
        """Return the number of messages to publish."""
        return max(1, round(self.rate * self.seconds))

    def config(self) -> str:
        """Return the configuration of publisher and recorder, with groups that no other process here has."""
        pid = os.getpid()
        block = f"239.{pid >> 8 & 0x3F | 0xC0}.{pid & 0xFF}"
        own = (
            f"context resolver_multicast_address {block}.1",
            f"source transport_lbtrm_multicast_address {block}.2",
            f"context transport_lbtrm_datagram_max_size {_DATAGRAM_BYTES}",
        )
        return options_text("min", "real", [*own, *self.options]) + "\n"


@dataclass(frozen=True, slots=True)
class Taken:
    """Contents of a micro-batch."""

    rows: int = 0
    number_sum: int = 0
    lowest: int | None = None
    highest: int | None = None
    misplaced: int = 0
    """Messages whose number differs from their position in the journal."""


@dataclass(slots=True)
class Arrivals:
    """Messages of the query by micro-batch; a repeated micro-batch counts once."""

    journal: JournalReader
    rows: int = 0
    backlog_messages: int = 0
    """Peak number of messages in the journal that the query had not read."""
    last_at: float = field(default_factory=time.monotonic)
    batches: dict[int, Taken] = field(default_factory=dict)

    def take(self, frame: DataFrame, number: int) -> None:
        """Count every row of a micro-batch; a callback for `foreachBatch`."""
        found = (
            frame.selectExpr(_NUMBER, "offset")
            .selectExpr(
                "count(*) AS rows",
                "sum(number) AS number_sum",
                "min(number) AS lowest",
                "max(number) AS highest",
                "count_if(number <> offset) AS misplaced",
            )
            .collect()[0]
            .asDict()
        )
        if found["rows"] == 0:
            return
        self.last_at = time.monotonic()
        self.backlog_messages = max(self.backlog_messages, self.journal.end - self.rows)
        self.batches[number] = Taken(**found)
        self.rows = sum(batch.rows for batch in self.batches.values())

    def faults(self, sent: int) -> dict[str, int]:
        """Describe how the rows differ from the numbers below `sent`, each once and in order."""
        batches = self.batches.values()
        found = {
            "lost": max(0, sent - self.rows),
            "duplicates": max(0, self.rows - sent),
            "out_of_order": sum(batch.misplaced for batch in batches),
        }
        lowest = min((batch.lowest for batch in batches if batch.lowest is not None), default=None)
        highest = max((batch.highest for batch in batches if batch.highest is not None), default=None)
        total = sum(batch.number_sum for batch in batches)
        if not any(found.values()) and (total, lowest, highest) != (sent * (sent - 1) // 2, 0, sent - 1):
            raise BenchError(
                f"{sent} messages came, but not each once: numbers {lowest} to {highest}, sum {total}",
                hint="run it again with --json and report both outputs: rows were read twice or lost in Spark",
            )
        return found


@dataclass(slots=True)
class _Run:
    """A running query, its recorder and its publisher."""

    plan: LivePlan
    query: StreamingQuery
    publisher: Child
    arrivals: Arrivals
    watch: ProcessWatch
    stop: threading.Event

    def carry_out(self, progress: Progress) -> dict[str, Any]:
        """Publish, wait until the query has read all messages, and return the figures."""
        if self.stop.is_set():
            raise KeyboardInterrupt
        progress("starting the query")
        self.query.processAllAvailable()
        progress(f"{self.plan.messages:,} messages at {self.plan.rate:,} a second")
        before, machine_before = self.watch.cpu_seconds(), machine_cpu_seconds()
        self.publisher.order(go=True)
        sent = self._await_all(progress)
        after, machine_after = self.watch.cpu_seconds(), machine_cpu_seconds()
        spent = {kind: seconds - before.get(kind, 0.0) for kind, seconds in after.items()}
        self.publisher.order(stop=True)
        self.query.processAllAvailable()
        return {
            "what": "live",
            "messages": self.plan.messages,
            "size": self.plan.size,
            "cores": len(os.sched_getaffinity(0)),
            "rate_offered": self.plan.rate,
            "rate_sent": self.plan.messages / sent["seconds"],
            "seconds": sent["seconds"],
            "seconds_behind": self.arrivals.last_at - sent["ended"],
            "rows": self.arrivals.rows,
            "batches": len(self.arrivals.batches),
            "backlog_messages": self.arrivals.backlog_messages,
            **self.arrivals.faults(self.plan.messages),
            "cpu_seconds": spent,
            "machine_cpu_seconds": machine_after - machine_before,
            "peak_memory_bytes": self.watch.peaks(),
            "together_memory_bytes": self.watch.together_bytes,
        }

    def _await_all(self, progress: Progress) -> dict[str, Any]:
        """Wait until the query has all messages or stops progressing; return the publisher's report."""
        journal = JournalReader(self.arrivals.journal.directory)
        sent: dict[str, Any] | None = None
        began = time.monotonic()
        while sent is None or self.arrivals.rows < max(self.plan.messages, journal.end):
            if self.stop.wait(_LOOK_SECONDS):
                raise KeyboardInterrupt
            self._check_query()
            if sent is None and self.publisher.has_said:
                sent = self.publisher.receive(CHILD_SLACK_SECONDS)
                progress("all sent")
            quiet_since = max(began, self.arrivals.last_at, 0.0 if sent is None else sent["ended"])
            if time.monotonic() - quiet_since > _SILENCE_SECONDS:
                break
        if sent is None:
            raise BenchError(
                f"the query took nothing for {_SILENCE_SECONDS:.0f} s, while messages were still published",
                hint="give a lower --rate, and look with `umstack doctor` whether loopback does multicast",
            )
        return sent

    def _check_query(self) -> None:
        if not self.query.isActive:
            error = str(self.query.exception() or "it gives no reason").strip().splitlines()[0]
            raise BenchError(
                f"the query ended: {error}", hint="see docs/recording.md for the requirements of a live query"
            )


def measure(plan: LivePlan, progress: Progress, stop: threading.Event | None = None) -> dict[str, Any]:
    """Run a live query on this machine's cores, fed at the plan's rate; every message is checked.

    The query must not be interrupted in the middle of a call into the virtual machine. To end it, the caller sets
    `stop`, and a KeyboardInterrupt is raised at a point where it does no harm.
    """
    stop = stop or threading.Event()
    progress("starting Spark")
    with (
        tempfile.TemporaryDirectory(prefix="umstack-bench-", ignore_cleanup_errors=True) as name,
        spark_session("umstack bench live", driver_memory=enough_memory(None)) as spark,
    ):
        folder = Path(name)
        (folder / "um.cfg").write_text(plan.config())
        with (
            _recorder(folder) as recorder,
            _query(spark, folder) as (query, arrivals),
            _publisher(plan) as child,
        ):
            child.receive(READY_SECONDS + CHILD_SLACK_SECONDS)
            kinds = {recorder: "recorder", child.process.pid: "publisher"}
            watch = ProcessWatch(os.getpid(), kinds, adds_up=True)
            with watch.watched():
                return _Run(plan, query, child, arrivals, watch, stop).carry_out(progress)


def _journal(folder: Path) -> Path:
    return folder / "journal"


@contextmanager
def _recorder(folder: Path) -> Iterator[int]:
    """Run the recorder that the query would otherwise start, so that it can be ended. Yield its process id."""
    recorder = BackgroundRecorder(
        _journal(folder),
        (TOPIC,),
        interface=_INTERFACE,
        config_file=str(folder / "um.cfg"),
        unread_seconds=_UNREAD_SECONDS,
    )
    try:
        recorder.ensure()
        yield writer_of(recorder.journal)
    finally:
        end_recorder(recorder.journal)


@contextmanager
def _query(spark: SparkSession, folder: Path) -> Iterator[tuple[StreamingQuery, Arrivals]]:
    """Run a query over all columns of the journal, with a trigger of one second."""
    arrivals = Arrivals(JournalReader(_journal(folder) / messages().name))
    spark.dataSource.register(UmstackDataSource)
    rows = spark.readStream.format(NAME).option("forgetCommitted", "true").load(str(_journal(folder)))
    writer = rows.writeStream.trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = start_connected(writer.foreachBatch(arrivals.take).start)
    try:
        yield query, arrivals
    finally:
        query.stop()


@contextmanager
def _publisher(plan: LivePlan) -> Iterator[Child]:
    spec = PacedSpec(
        interface=_INTERFACE,
        link="socket",
        config=plan.config(),
        topic=TOPIC,
        size=plan.size,
        rate=plan.rate,
        messages=plan.messages,
    )
    with running(ThisMachine(), "umstack.bench.paced_ends", spec.as_arguments("publish")) as child:
        yield child


def judged(found: dict[str, Any]) -> list[Target]:
    """Return the targets, which require that the query kept up with bounded memory."""
    sent = found["rate_sent"] / found["rate_offered"]
    together = found["together_memory_bytes"] / _MIB
    missed = float(found["lost"] + found["duplicates"] + found["out_of_order"])
    bound = _TOGETHER_MIB + _TOGETHER_MIB_A_CORE * found["cores"]
    return [
        Target("sent, to what was offered", sent, _SENT_SHARE),
        Target(
            "last message in Spark after it was sent",
            found["seconds_behind"],
            _BEHIND_SECONDS,
            "at most",
            unit="s",
        ),
        Target("lost, twice or out of order", missed, 0, "at most", unit="messages"),
        Target("memory of all processes together", together, bound, "at most", unit="MiB"),
    ]
