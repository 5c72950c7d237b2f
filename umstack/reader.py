"""Reader: what a queue of received rows is read through, as messages, batches or events, or by a callback."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from umstack._core import ffi, lib
from umstack.batch import Batch
from umstack.errors import Closed, OptionError
from umstack.events import Event, Message, UnrecoverableLoss
from umstack.foreign_text import displayed
from umstack.repeated_records import RepeatedRecords
from umstack.row_sources import RowSources
from xdp.closing import Closing

if TYPE_CHECKING:
    from umstack.config import ReceiverOptions
    from umstack.context import Context

POLL_ROWS = 4096
"""Rows taken at once when the caller does not say."""

_BLOCK_ROWS = 8192
_NS_PER_S = 1_000_000_000

SLICE_NS = 100_000_000
"""The longest the core waits in one go; a call that waits longer asks again, so that Ctrl-C is seen."""

_LOSS_KINDS = (lib.UM_ROW_UNRECOVERABLE_LOSS, lib.UM_ROW_BURST_LOSS)
_RECEIVED_EVENT = lib.UM_RECEIVED_EVENT
_RECEIVED_NOTHING = lib.UM_RECEIVED_NOTHING
_buffer = ffi.buffer
_poll = lib.um_event_queue_poll
_receive = lib.um_event_queue_receive
_CALLBACK_FAILURES_SHOWN = 10
_records = RepeatedRecords(logging.getLogger("umstack.receiver"))
_callback_failures = RepeatedRecords(logging.getLogger("umstack.receiver"), burst=_CALLBACK_FAILURES_SHOWN)


def timeout_ns(timeout: float | None) -> int:
    """Seconds as the core counts them; None is for ever."""
    return -1 if timeout is None else int(timeout * _NS_PER_S)


class QueueMemory:
    """The core's side of a queue. Lives as long as any receiver of it, and any batch that looks into it."""

    __slots__ = ("freed", "handle", "message_max_bytes", "sources")

    def __init__(self, context: Context, options: ReceiverOptions, name: str) -> None:
        """Open a queue of the size these options say."""
        self.freed = True
        self.message_max_bytes: int = max(
            options.receiver_maximum_message_length_bytes, lib.UM_QUEUE_MESSAGE_BYTES_MIN
        )
        config = ffi.new("um_event_queue_config *")
        config.block_count = min(max(options.receiver_queue_block_count, 4), lib.UM_QUEUE_BLOCKS_MAX)
        config.block_rows = _BLOCK_ROWS
        config.block_bytes = options.receiver_queue_block_length_bytes
        config.message_max_bytes = self.message_max_bytes
        handle = ffi.new("um_event_queue **")
        context.check(lib.um_event_queue_open(context.handle, config, handle), name)
        self.handle = handle[0]
        self.freed = False
        self.sources = RowSources()

    def __del__(self) -> None:
        if not self.freed:
            self.freed = True
            lib.um_event_queue_free(self.handle)


class Reader(Closing):
    """Reads a queue of rows. One thread at a time does: the base of Receiver and EventQueue."""

    __slots__ = (
        "_awaited",
        "_context",
        "_empty",
        "_memory",
        "_name",
        "_on_message",
        "_reading",
        "_row",
        "_rows",
        "_scratch",
        "_scratch_bytes",
        "closed",
    )

    def __init__(
        self, context: Context, memory: QueueMemory, name: str, on_message: Callable[[Event], None] | None
    ) -> None:
        self.closed = False
        self._context = context
        self._memory = memory
        self._name = name
        self._on_message = on_message
        self._rows = ffi.new("um_rows *")
        # What a read needs: it takes it and puts it back, so that a second one finds nothing there.
        self._reading: Any = self._rows if on_message is None else None
        self._awaited = False
        self._empty = Batch(memory, ffi.NULL, 0, 0)
        self._scratch: Any = None
        self._scratch_bytes = 0
        self._row: Any = None

    # Reading

    def poll(self, max_rows: int = POLL_ROWS, timeout: float | None = 0.0) -> Batch:
        """Take up to max_rows rows, waiting up to timeout seconds for the first (None: for ever).

        The batch is empty after the timeout. In sequential mode this call drives the context.
        """
        if self.closed:
            raise Closed(f"{self._name} is closed")
        rows, self._reading = self._reading, None
        if rows is None:
            raise self._refusal()
        try:
            if self._context.is_sequential:
                self._context.count_poll()
            count = (
                _poll(self._memory.handle, max_rows, 0, rows)
                if timeout == 0
                else self._wait(rows, max_rows, timeout)
            )
            return Batch(self._memory, rows.block, rows.first, count) if count else self._empty
        finally:
            self._reading = rows

    def _refusal(self) -> OptionError:
        if self.has_callback:
            return OptionError(
                f"{self._name} gives its messages to on_message",
                hint="make one without a callback to read from",
            )
        return OptionError(
            f"{self._name} is being read by another thread",
            hint="one thread at a time reads: make a receiver or an event queue for each thread",
        )

    def _wait(self, rows: Any, max_rows: int, timeout: float | None) -> int:
        """Poll in slices: between them Python sees Ctrl-C, and in sequential mode topic resolution gets on."""
        context, handle = self._context, self._memory.handle
        unblock_count = context.unblock_count
        slice_ns = context.slice_ns
        end_ns = None if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
        while True:
            left_ns = slice_ns if end_ns is None else max(0, end_ns - time.monotonic_ns())
            count = int(_poll(handle, max_rows, left_ns if left_ns < slice_ns else slice_ns, rows))
            if count or left_ns == 0 or self.closed or context.unblock_count != unblock_count:
                return count
            context.attend()

    def receive(self, timeout: float | None = None) -> bytes | None:
        """The payload of the next message: the shortest way from the wire to Python, for one message at a time.

        Waits up to timeout seconds (None: for ever; 0: not at all) and returns None when there is no message then.
        Events are passed over; loss is logged as a warning.
        """
        if self.closed:
            raise Closed(f"{self._name} is closed")
        rows, self._reading = self._reading, None
        if rows is None:
            raise self._refusal()
        try:
            if self._context.is_sequential:
                self._context.count_poll()
            if self._scratch is None:
                self._make_scratch()
            unblock_count = self._context.unblock_count
            wait_ns = self._context.slice_ns if timeout is None else 0
            length = _receive(self._memory.handle, self._scratch, self._scratch_bytes, wait_ns, self._row)
            if length < 0 and (timeout != 0 or length == _RECEIVED_EVENT):
                length = self._receive_patiently(length, timeout, unblock_count)
            return _buffer(self._scratch, length)[:] if length >= 0 else None
        finally:
            self._reading = rows

    def _make_scratch(self) -> None:
        """Memory for receive(), which takes one message out of the queue at a time."""
        self._scratch_bytes = self._memory.message_max_bytes
        self._scratch = ffi.new("uint8_t[]", self._scratch_bytes)
        self._row = ffi.new("um_row *")

    def _receive_patiently(self, length: int, timeout: float | None, unblock_count: int) -> int:
        """Pass over events and wait in slices, as _wait() does."""
        context, slice_ns = self._context, self._context.slice_ns
        end_ns = None if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
        while length < 0:
            if length == _RECEIVED_EVENT and self._row.flags >> 8 in _LOSS_KINDS:
                topic = self._memory.sources.topics[self._row.source]
                number = self._row.sequence_number
                _records.write(
                    ("lost", topic), logging.WARNING, "%s: message %d is lost", displayed(topic), number
                )
            left_ns = slice_ns if end_ns is None else max(0, end_ns - time.monotonic_ns())
            wait_ns = min(left_ns, slice_ns)
            length = _receive(self._memory.handle, self._scratch, self._scratch_bytes, wait_ns, self._row)
            if length == _RECEIVED_NOTHING:
                if left_ns == 0 or self.closed or context.unblock_count != unblock_count:
                    return length
                context.attend()
        return length

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, for ever or until it is closed. Loss is logged as a warning."""
        for batch in self._batches():
            if batch.event_count:
                self._log_loss(batch)
            yield from batch

    def events(self) -> Iterator[Event]:
        """Messages and events as they come."""
        for batch in self._batches():
            yield from batch.events()

    def _batches(self) -> Iterator[Batch]:
        while not self.closed:
            try:
                batch = self.poll(POLL_ROWS, None)
            except Closed:
                return
            if batch:
                yield batch

    def _log_loss(self, batch: Batch) -> None:
        for event in batch.events():
            if not isinstance(event, Message):
                level = logging.WARNING if isinstance(event, UnrecoverableLoss) else logging.INFO
                key = (type(event), event.topic, event.source)
                _records.write(key, level, "%s", displayed(str(event)), topic=displayed(event.topic))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages as they come, without blocking the event loop."""
        while not self.closed:
            try:
                batch = await self.poll_async()
            except Closed:
                return
            if batch.event_count:
                self._log_loss(batch)
            for message in batch.messages():
                yield message

    async def poll_async(self, max_rows: int = POLL_ROWS) -> Batch:
        """Like poll(), waiting in the running event loop. The context must be in embedded mode."""
        if self._context.is_sequential:
            raise OptionError(
                "poll_async needs the context's own thread", hint="create the context with mode='embedded'"
            )
        loop = asyncio.get_running_loop()
        while True:
            batch = self.poll(max_rows, 0)
            if batch:
                return batch
            if self.arm():
                continue
            if self._awaited:
                raise OptionError(
                    f"{self._name} is being awaited by another task",
                    hint="one task at a time reads: make a receiver or an event queue for each task",
                )
            ready: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self.fileno(), _set_result, ready)
            self._awaited = True
            try:
                await ready
            finally:
                self._awaited = False
                loop.remove_reader(self.fileno())

    def fileno(self) -> int:
        """Readable when rows wait, once armed: for an event loop of your own call arm() first."""
        return int(self._memory.handle.event_fd)

    def arm(self) -> bool:
        """Ask for fileno() to become readable at the next row; True when rows wait already."""
        return bool(lib.um_event_queue_arm(self._memory.handle))

    def dispatch(self) -> int:
        """Hand what waits to the on_message callback; returns how many rows that were."""
        if self._on_message is None:
            return 0
        count = lib.um_event_queue_take(self._memory.handle, POLL_ROWS, self._rows)
        if count == 0:
            return 0
        for event in Batch(self._memory, self._rows.block, self._rows.first, count).events():
            if self.closed:
                break
            try:
                self._on_message(event)
            except Exception as error:
                _callback_failures.write(
                    (type(error), id(self)),
                    logging.ERROR,
                    "the on_message callback of %s failed",
                    displayed(repr(self)),
                    error=error,
                )
        return int(count)

    @property
    def has_callback(self) -> bool:
        """Whether messages go to a callback instead of poll() and iteration."""
        return self._on_message is not None

    # Ending

    def close(self) -> None:
        """Stop receiving. Batches already taken stay readable."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self._name}{' closed' if self.closed else ''}>"


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
