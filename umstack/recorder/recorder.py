"""Recorder: subscribes to topics, writes their messages to a journal, and makes Parquet files from the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from umstack.errors import OptionError
from umstack.reader import POLL_ROWS
from umstack.recorder import tables
from umstack.recorder.journal import SEGMENT_BYTES, Journal, WhenFull, arrow
from umstack.recorder.parquet_parts import PART_BYTES, PART_ROWS, PartWriter, open_part_writers
from umstack.recorder.resumption import RecorderGap, Resumption, gap_rows
from umstack.recorder.topic_follower import TOPICS_MAXIMUM, TopicFollower
from umstack_xdp.closing import Closing

if TYPE_CHECKING:
    import pyarrow

    from umstack.batch import Batch
    from umstack.context import Context
    from umstack.receiver import Receiver

JOURNAL_NAME = ".journal"
"""Default folder of the journals, below the Parquet files; Spark ignores hidden directories."""

_GATHER_ROWS = 4096
_GATHER_BYTES = 512 << 10
_GATHER_SECONDS = 0.05
_IDLE_SECONDS = 0.002
_SPACE_SECONDS = 0.05
_PARTS_SECONDS = 0.2
_REST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RecorderSettings:
    """Settings of a recorder. Journal documents those of the journal."""

    journal_bytes: int = 0
    """Maximum size of the journal of messages; 0: unbounded. With Parquet it only holds rows not in Parquet yet."""
    when_full: WhenFull = "discard_oldest"
    """"refuse" takes no messages until a consumer has released rows: flow control then slows the sources down."""
    segment_bytes: int = SEGMENT_BYTES
    fsync_seconds: float | None = None
    part_seconds: float = 60.0
    part_rows: int = PART_ROWS
    part_bytes: int = PART_BYTES
    interval_seconds: float = 1.0
    """Interval in which the transports' counters are recorded."""
    topics_maximum: int = TOPICS_MAXIMUM


@dataclass(slots=True)
class RecorderReport:
    """Totals of a recorder since it was opened."""

    messages: int = 0
    bytes: int = 0
    events: int = 0
    lost: int = 0
    """Unrecoverably lost messages."""
    missed: int = 0
    """Messages, or fragments of them, sent while no recorder ran on these directories."""
    topics: int = 0
    topics_ignored: int = 0
    parts: int = 0
    paused_seconds: float = 0.0
    """Time during which the journal was full and configured to refuse."""
    journal_start: int = 0
    journal_end: int = 0


class Recorder(Closing):
    """A recording in progress. Call step() from one thread, or run(); close it, or use it as a context manager.

    All rows go through the journal: rows taken by step() are in it when step() returns. Opening a recorder on the same
    directories continues where the previous one ended, even if it was killed. Messages sent in between are recorded as
    an event (`recorder_gap`) and passed to `on_gap`.
    """

    def __init__(
        self,
        context: Context,
        topics: Sequence[str],
        *,
        regex: bool = False,
        groups: Sequence[str] = (),
        out: str | Path | None = None,
        journal: str | Path | None = None,
        settings: RecorderSettings | None = None,
        on_gap: Callable[[RecorderGap], None] | None = None,
    ) -> None:
        """Open the journals under `journal` and, if `out` is given, start to write Parquet there.

        Without `journal` they are below `out` and contain only rows that are not in Parquet yet. With `groups`
        ("224.1.1.1", "224.1.1.1-224.1.1.9", "224.1.0.0/16"), only sources on those multicast groups are subscribed to.
        """
        if out is None and journal is None:
            raise OptionError(
                "no output is named", hint="name a directory for Parquet, for a journal, or both"
            )
        arrow()
        self.settings = settings or RecorderSettings()
        self.report = RecorderReport()
        self._context = context
        self._stack = ExitStack()
        self._gathered: list[pyarrow.RecordBatch] = []
        self._gathered_rows = self._gathered_bytes = 0
        self._gathered_at = 0.0
        self._intervals = tables.TransportIntervals(time.monotonic_ns())
        self._read_at = time.monotonic()
        self._closed = self._stopping = self._is_stepping = False
        directory = Path(journal) if journal is not None else Path(str(out)) / JOURNAL_NAME
        with ExitStack() as opening:
            self._messages, self._events, self._transports = (
                opening.enter_context(self._open_journal(directory, table)) for table in tables.all_tables()
            )
            # Before parts are written, which releases rows from the journals of messages and events.
            self._resumption = Resumption(self._messages, self._events)
            self._on_gap = on_gap
            self._parts = (
                _PartThread(
                    open_part_writers(tables.all_tables(), directory, Path(out)),
                    self.settings,
                    forget=journal is None,
                )
                if out is not None
                else None
            )
            if self._parts is not None:
                opening.callback(self._parts.abandon)
            self._follower = TopicFollower(
                context, topics, regex=regex, groups=groups, topics_maximum=self.settings.topics_maximum
            )
            self._stack = opening.pop_all()

    def _open_journal(self, directory: Path, table: tables.Table) -> Journal:
        settings = self.settings
        is_bounded = table.name == tables.messages().name
        return Journal(
            directory / table.name,
            table.schema,
            segment_bytes=settings.segment_bytes,
            max_bytes=settings.journal_bytes if is_bounded else 0,
            when_full=settings.when_full,
            fsync_seconds=settings.fsync_seconds,
        )

    # Recording

    def run(
        self,
        seconds: float | None = None,
        on_progress: Callable[[RecorderReport], None] | None = None,
        until: Callable[[RecorderReport], bool] | None = None,
    ) -> None:
        """Record for `seconds` (None: forever), until `until` returns true, or until stop() is called."""
        end = None if seconds is None else time.monotonic() + seconds
        while not self._stopping and (end is None or time.monotonic() < end):
            self.step()
            if on_progress is not None:
                on_progress(self.report)
            if until is not None and until(self.report):
                return

    def stop(self) -> None:
        """Make run() return after its current step. For signal handlers and other threads."""
        self._stopping = True

    def step(self) -> int:
        """Take received messages and do periodic work; returns the rows taken. Sleeps briefly without any.

        If an exception (such as KeyboardInterrupt) ends it, rows taken by this call may be lost. The recording then
        ends there, without a gap.
        """
        self._is_stepping = True
        taken = self._step()
        self._is_stepping = False
        return taken

    def _step(self) -> int:
        if self._parts is not None:
            self._parts.check()
        if not self._may_take():
            return 0
        receivers = self._follower.refresh()
        taken = sum(self._take(receiver.poll(POLL_ROWS, 0)) for receiver in receivers)
        if self._is_gathered():
            self._flush()
        self._read_transports()
        self.report.topics = len(receivers)
        self.report.topics_ignored = self._follower.ignored_count
        if taken == 0:
            time.sleep(_IDLE_SECONDS)
        return taken

    def _may_take(self) -> bool:
        if self.settings.when_full != "refuse" or self._messages.has_space:
            return True
        self._read_transports()
        time.sleep(_SPACE_SECONDS)
        self.report.paused_seconds += _SPACE_SECONDS
        return False

    def _take(self, batch: Batch) -> int:
        count = len(batch)
        if count == 0:
            return 0
        self._note_gaps(self._resumption.gaps(batch))
        if batch.event_count:
            rows = tables.event_rows(batch, time.time_ns())
            self._events.append(rows)
            self.report.events += rows.num_rows
            self.report.lost += sum(rows.column("lost").to_pylist())
        if count > batch.event_count:
            self._gather(tables.message_rows(batch))
        return count

    def _note_gaps(self, gaps: list[RecorderGap]) -> None:
        if not gaps:
            return
        self._events.append(gap_rows(gaps, time.time_ns()))
        self.report.events += len(gaps)
        for gap in gaps:
            self.report.missed += gap.lost
            if self._on_gap is not None:
                self._on_gap(gap)

    def _gather(self, rows: pyarrow.RecordBatch) -> None:
        if not self._gathered:
            self._gathered_at = time.monotonic()
        self._gathered.append(rows)
        self._gathered_rows += rows.num_rows
        self._gathered_bytes += rows.column("payload").nbytes
        if self._gathered_rows >= _GATHER_ROWS or self._gathered_bytes >= _GATHER_BYTES:
            self._flush()

    def _is_gathered(self) -> bool:
        return bool(self._gathered) and time.monotonic() - self._gathered_at >= _GATHER_SECONDS

    def _flush(self) -> None:
        """Append the collected rows, which returns the memory to the receivers' queues."""
        if not self._gathered:
            return
        pa = arrow()
        gathered, self._gathered = self._gathered, []
        for rows in (
            pa.Table.from_batches(gathered).combine_chunks().to_batches() if len(gathered) > 1 else gathered
        ):
            self._messages.append(rows)
        self.report.messages += self._gathered_rows
        self.report.bytes += self._gathered_bytes
        self.report.journal_end = self._messages.end
        self._gathered_rows = self._gathered_bytes = 0

    def _read_transports(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._read_at < self.settings.interval_seconds:
            return
        self._read_at = time.monotonic()
        readings = self._context.stats()["receiver_transports"]
        rows = self._intervals.rows(readings, time.time_ns(), time.monotonic_ns())
        self._transports.append(rows)

    # Ending

    def close(self) -> None:
        """Take the remaining messages of the receivers, complete journal and Parquet, and close them."""
        if self._closed:
            return
        self._closed = True
        with self._stack:
            is_going_on = not (self._context.closed or self._is_stepping)
            if is_going_on and self._messages.has_space:
                self._take_rest()
            elif is_going_on:
                self._read_transports(now=True)
            self._flush()
            if self._parts is not None:
                self._parts.finish()
            self.report.journal_start = self._messages.start
            self.report.journal_end = self._messages.end
            self.report.parts = self._parts.part_count if self._parts is not None else 0

    def _take_rest(self) -> None:
        """Take the remaining messages; sources that keep sending do not prevent the end."""
        end = time.monotonic() + _REST_SECONDS
        receivers = list(self._follower.receivers.values())
        for receiver in receivers:
            self._drain(receiver, end)
        self._read_transports(now=True)  # a session and its counters end with its last receiver
        for receiver in receivers:
            self._drain(receiver, end)
            receiver.close()

    def _drain(self, receiver: Receiver, end: float) -> None:
        while self._take(receiver.poll(POLL_ROWS, 0)) and time.monotonic() < end:
            pass


class _PartThread:
    """Writes parts while the recorder continues to take messages."""

    def __init__(self, writers: list[PartWriter], settings: RecorderSettings, *, forget: bool) -> None:
        self._writers = writers
        self._settings = settings
        self._forget = forget
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        self._written_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="umstack-parquet", daemon=True)
        self._thread.start()

    @property
    def part_count(self) -> int:
        return sum(writer.part_count for writer in self._writers)

    def check(self) -> None:
        """Raise the exception that ended the thread, if any."""
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Write all remaining rows."""
        self.abandon()
        self.check()
        self._write_all()

    def abandon(self) -> None:
        """Stop the thread without writing the remaining rows."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_PARTS_SECONDS):
                aged = time.monotonic() - self._written_at >= self._settings.part_seconds
                if aged or any(map(self._has_part, self._writers)):
                    self._write_all()
        except Exception as error:
            self._failure = error

    def _has_part(self, writer: PartWriter) -> bool:
        settings = self._settings
        return writer.waiting >= settings.part_rows or writer.waiting_bytes >= settings.part_bytes

    def _write_all(self) -> None:
        self._written_at = time.monotonic()
        for writer in self._writers:
            while writer.write_next(self._settings.part_rows, self._settings.part_bytes):
                if self._forget:
                    writer.forget_written()
