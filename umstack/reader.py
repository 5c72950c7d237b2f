"""Reader: reads a queue of received rows, as messages, batches or events, or by a callback."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from umstack._core import ffi, lib
from umstack._engine.dispatch import Callback
from umstack._engine.engine import Engine
from umstack._engine.queue_memory import QueueMemory
from umstack._engine.waiting import timeout_ns
from umstack.async_closing import AsyncClosing
from umstack.batch import Batch, event_of
from umstack.errors import Closed, Forked, OptionError
from umstack.events import Event, Message, UnrecoverableLoss
from umstack.foreign_text import displayed
from umstack.repeated_records import RepeatedRecords
from umstack.unread_rows import UnreadRows

if TYPE_CHECKING:
    import asyncio

POLL_ROWS = 4096
"""Rows taken at once when the caller names no number."""

_Rows = TypeVar("_Rows", Batch, UnreadRows)

_LOSS_KINDS = (lib.UM_ROW_UNRECOVERABLE_LOSS, lib.UM_ROW_BURST_LOSS)
_RECEIVED_EVENT = lib.UM_RECEIVED_EVENT
_RECEIVED_NOTHING = lib.UM_RECEIVED_NOTHING
_buffer = ffi.buffer
_poll = lib.um_event_queue_poll
_receive = lib.um_event_queue_receive
_CALLBACK_FAILURES_SHOWN = 10
_records = RepeatedRecords(logging.getLogger("umstack.receiver"))
_callback_failures = RepeatedRecords(logging.getLogger("umstack.receiver"), burst=_CALLBACK_FAILURES_SHOWN)


class Reader(AsyncClosing):
    """Reads a queue of rows. One thread at a time does: the base of Receiver and EventQueue."""

    __slots__ = (
        "_awaited",
        "_callback",
        "_empty",
        "_engine",
        "_memory",
        "_name",
        "_on_message",
        "_reading",
        "_row",
        "_rows",
        "_scratch",
        "_scratch_bytes",
        "_times_callbacks",
        "_unread",
        "closed",
    )

    def __init__(
        self,
        engine: Engine,
        memory: QueueMemory,
        name: str,
        on_message: Callable[[Event], None] | None,
        *,
        times_callbacks: bool = False,
    ) -> None:
        """Read this queue; errors contain `name`. `times_callbacks` counts the time of each callback."""
        self._times_callbacks = times_callbacks
        self.closed = False
        """True once close() was called."""
        self._engine = engine
        self._memory = memory
        self._name = name
        self._on_message = on_message
        self._rows = ffi.new("um_rows *")
        # A read takes the only element and puts it back; a concurrent read finds none and is refused. To pop is one
        # step, also without a global interpreter lock.
        self._reading: list[Any] = [self._rows] if on_message is None else []
        self._callback: Callback | None = None
        self._awaited = False
        self._empty = Batch(memory, ffi.NULL, 0, 0)
        # Rows that an iterator took from the queue and has not yielded: each way of reading takes them first.
        self._unread: UnreadRows | None = None
        self._scratch: Any = None
        self._scratch_bytes = 0
        self._row: Any = None

    # Reading

    def poll(self, max_rows: int = POLL_ROWS, timeout: float | None = 0.0) -> Batch:
        """Take the rows that wait as one batch.

        In sequential mode this call runs the protocol.

        Args:
            max_rows: Maximum number of rows.
            timeout: Maximum wait for the first row in seconds; 0: do not wait, None: no timeout.

        Returns:
            The batch; empty after the timeout and after Context.unblock().

        Raises:
            OptionError: Another thread reads, or a callback or an event queue gets the rows.
            Closed: The object is closed.

        Example:
            ```python
            with rcv.poll(timeout=0.1) as batch:
                print(batch.payloads())
            ```
        """
        if self.closed:
            raise self._engine.core.closed_error(self._name)
        try:
            rows = self._reading.pop()
        except IndexError:
            raise self._refusal() from None
        try:
            if self._engine.is_sequential:
                self._engine.count_poll()
            if self._unread is not None and (batch := self._take_unread(max_rows)):
                return batch
            count = (
                _poll(self._memory.handle, max_rows, 0, rows)
                if timeout == 0
                else self._wait(rows, max_rows, timeout)
            )
            return Batch(self._memory, rows.block, rows.first, count) if count else self._empty
        finally:
            self._reading.append(rows)

    def _take_unread(self, max_rows: int) -> Batch:
        """Take rows that an iterator left, at most `max_rows`."""
        unread, self._unread = self._unread, None
        if unread is None:
            return self._empty
        batch = unread.rest()
        if len(batch) > max_rows >= 0:
            self._unread = UnreadRows(batch._split(max_rows))
        return batch

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
        """Poll in slices: between them Python handles signals, and in sequential mode the duty cycle runs."""
        engine, handle = self._engine, self._memory.handle
        unblock_count = engine.unblock_count
        slice_ns = engine.slice_ns
        end_ns = None if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
        while True:
            left_ns = slice_ns if end_ns is None else max(0, end_ns - time.monotonic_ns())
            count = int(_poll(handle, max_rows, left_ns if left_ns < slice_ns else slice_ns, rows))
            if count or left_ns == 0 or self.closed or engine.unblock_count != unblock_count:
                return count
            engine.between_slices()

    def receive(self, timeout: float | None = None) -> bytes | None:
        """Take the payload of the next message: the fastest way for single messages.

        Events are skipped; losses are logged as warnings.

        Args:
            timeout: Maximum wait in seconds; None: no timeout, 0: do not wait.

        Returns:
            The payload, or None without a message in time.

        Raises:
            OptionError: Another thread reads, or a callback or an event queue gets the rows.
            Closed: The object is closed.

        Example:
            ```python
            data = rcv.receive(timeout=0.1)
            ```
        """
        if self.closed:
            raise self._engine.core.closed_error(self._name)
        try:
            rows = self._reading.pop()
        except IndexError:
            raise self._refusal() from None
        try:
            if self._engine.is_sequential:
                self._engine.count_poll()
            if self._unread is not None:
                for message in self._messages(self._unread):
                    return message.data
                self._unread = None
            if self._scratch is None:
                self._make_scratch()
            unblock_count = self._engine.unblock_count
            wait_ns = self._engine.slice_ns if timeout is None else 0
            length = _receive(self._memory.handle, self._scratch, self._scratch_bytes, wait_ns, self._row)
            if length < 0 and (timeout != 0 or length == _RECEIVED_EVENT):
                length = self._receive_with_timeout(length, timeout, unblock_count)
            return _buffer(self._scratch, length)[:] if length >= 0 else None
        finally:
            self._reading.append(rows)

    def _make_scratch(self) -> None:
        """Memory for receive(), which takes one message out of the queue at a time."""
        self._scratch_bytes = self._memory.message_max_bytes
        self._scratch = ffi.new("uint8_t[]", self._scratch_bytes)
        self._row = ffi.new("um_row *")

    def _receive_with_timeout(self, length: int, timeout: float | None, unblock_count: int) -> int:
        """Skip events and wait in slices, as _wait() does."""
        engine, slice_ns = self._engine, self._engine.slice_ns
        end_ns = None if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
        while length < 0:
            if length == _RECEIVED_EVENT and lib.um_row_kind_of(self._row.flags) in _LOSS_KINDS:
                topic = self._memory.sources.table.topics[self._row.source]
                number = self._row.sequence_number
                _records.write(
                    ("lost", topic), logging.WARNING, "%s: message %d is lost", displayed(topic), number
                )
            if self._memory.sources.is_due:
                self._memory.recycle_sources()
            left_ns = slice_ns if end_ns is None else max(0, end_ns - time.monotonic_ns())
            wait_ns = min(left_ns, slice_ns)
            length = _receive(self._memory.handle, self._scratch, self._scratch_bytes, wait_ns, self._row)
            if length == _RECEIVED_NOTHING:
                if left_ns == 0 or self.closed or engine.unblock_count != unblock_count:
                    return length
                engine.between_slices()
        return length

    def __iter__(self) -> Iterator[Message]:
        """Yield messages as they arrive, until it is closed. Losses are logged as warnings.

        Messages that a loop did not reach stay with the reader: the next loop, poll() or receive() returns them.
        """
        self._engine.core.check_owned(self._name)
        while (unread := self._next_unread()) is not None:
            yield from self._messages(unread)

    def events(self) -> Iterator[Event]:
        """Iterate over messages and events as they arrive, until it is closed.

        Returns:
            An iterator of typed events and messages.

        Example:
            ```python
            for event in rcv.events():
                print(event)
                break
            ```
        """
        self._engine.core.check_owned(self._name)
        while (unread := self._next_unread()) is not None:
            yield from unread.events()

    def _next_unread(self) -> UnreadRows | None:
        """Return rows that no iterator has yielded, waiting for them; None once the reader is closed."""
        while not self.closed:
            try:
                if unread := self._fetch_unread(self._wait_for_rows):
                    return unread
            except Forked:
                raise
            except Closed:
                break
        return None

    def _fetch_unread(self, fetch: Callable[[Any], int]) -> UnreadRows | None:
        """Return the rows that an iterator left, or else those that `fetch` takes; the reader keeps them."""
        if self.closed:
            raise self._engine.core.closed_error(self._name)
        try:
            rows = self._reading.pop()
        except IndexError:
            raise self._refusal() from None
        try:
            if self._unread is not None and self._unread.has_rows():
                return self._unread
            self._unread = None  # returns its memory to the queue before the wait
            if count := fetch(rows):
                self._unread = UnreadRows(Batch(self._memory, rows.block, rows.first, count))
            return self._unread
        finally:
            self._reading.append(rows)

    def _wait_for_rows(self, rows: Any, timeout: float | None = None) -> int:
        if self._engine.is_sequential:
            self._engine.count_poll()
        return self._wait(rows, POLL_ROWS, timeout)

    def _events_within(self, timeout: float | None) -> Iterator[Event]:
        """Iterate as events() does, until nothing arrives within the timeout. Raises Closed."""
        while unread := self._fetch_unread(partial(self._wait_for_rows, timeout=timeout)):
            yield from unread.events()

    def _messages(self, unread: UnreadRows) -> Iterator[Message]:
        """Iterate over the messages among these rows; events are logged as they are reached."""
        return unread.rows() if unread.is_message_only() else filter(self._logs_event, unread.rows())

    def _logs_event(self, row: Message) -> bool:
        """Return True for a message; log any other row."""
        event = event_of(row)
        if isinstance(event, Message):
            return True
        self._log_event(event)
        return False

    def _log_event(self, event: Event) -> None:
        level = logging.WARNING if isinstance(event, UnrecoverableLoss) else logging.INFO
        key = (type(event), event.topic, event.source)
        _records.write(key, level, "%s", displayed(str(event)), topic=displayed(event.topic))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages as they arrive, without blocking the event loop. Losses are logged as warnings.

        Messages that a loop did not reach stay with the reader: the next loop, poll() or receive() returns them.
        """
        self._engine.core.check_owned(self._name)
        while not self.closed:
            try:
                unread = await self._wait_async(POLL_ROWS, self._look_unread)
            except Forked:
                raise
            except Closed:
                return
            for message in self._messages(unread):
                yield message

    async def poll_async(self, max_rows: int = POLL_ROWS) -> Batch:
        """Take the rows that wait, waiting for the first in the running event loop.

        Args:
            max_rows: Maximum number of rows.

        Returns:
            The batch.

        Raises:
            OptionError: The context is sequential, another task or thread reads, or a callback or an event queue
                gets the rows.
            Closed: The object is closed.

        Example:
            ```python
            batch = await rcv.poll_async()
            ```
        """
        return await self._wait_async(max_rows, self._look)

    async def _wait_async(self, max_rows: int, look: Callable[[int], _Rows | None]) -> _Rows:
        """Wait in the running event loop until `look` returns rows."""
        if self._engine.is_sequential:
            raise OptionError(
                "poll_async needs the context's own thread", hint="create the context with mode='embedded'"
            )
        import asyncio  # a third of the time that importing a context takes

        loop = asyncio.get_running_loop()
        while True:
            found = look(max_rows)
            if found:
                return found
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

    def _look(self, max_rows: int) -> Batch:
        """Take the rows that wait, as poll() does, or that arrive within the adaptive spin: a wake-up takes longer."""
        if self.closed:
            raise self._engine.core.closed_error(self._name)
        try:
            rows = self._reading.pop()
        except IndexError:
            raise self._refusal() from None
        try:
            if self._unread is not None and (batch := self._take_unread(max_rows)):
                return batch
            count = lib.um_event_queue_look(self._memory.handle, max_rows, rows)
            return Batch(self._memory, rows.block, rows.first, count) if count else self._empty
        finally:
            self._reading.append(rows)

    def _look_unread(self, max_rows: int) -> UnreadRows | None:
        """Look as _look() does; the reader keeps the rows."""
        return self._fetch_unread(lambda rows: lib.um_event_queue_look(self._memory.handle, max_rows, rows))

    def fileno(self) -> int:
        """Return a descriptor that is readable when rows wait: call arm() before each wait.

        The queue owns it: do not close it.

        Returns:
            The file descriptor.

        Example:
            ```python
            queue.arm() or select.select([queue.fileno()], [], [], 0.01)
            ```
        """
        return int(lib.um_event_queue_descriptor(self._memory.handle))

    def arm(self) -> bool:
        """Make fileno() readable at the next row.

        Returns:
            True if rows already wait.

        Example:
            ```python
            queue.arm() or select.select([queue.fileno()], [], [], 0.01)
            ```
        """
        if self._unread is not None and self._unread.has_rows():
            return True
        return bool(lib.um_event_queue_arm(self._memory.handle))

    # Callbacks

    @property
    def has_callback(self) -> bool:
        """True if messages go to a callback instead of poll() and iteration."""
        return self._on_message is not None

    def _start_dispatch(self) -> None:
        """Start calling the callback, if there is one. Called once the queue is registered."""
        if self.has_callback:
            memory = self._memory
            descriptor = lib.um_event_queue_descriptor(memory.handle)
            self._callback = Callback(descriptor, self.arm, self._run_callback)
            self._engine.dispatch.add(self._callback)

    def _stop_dispatch(self) -> None:
        """Stop calling the callback; waits for it to return, unless it is the caller."""
        callback, self._callback = self._callback, None
        if callback is not None:
            self._engine.dispatch.remove(callback)

    def _run_callback(self) -> int:
        """Call the callback with the rows that wait; returns their number."""
        if self._on_message is None:
            return 0
        unread, count = self._unread, 0
        if unread is None or not unread.has_rows():
            self._unread = None
            taken = lib.um_event_queue_take(self._memory.handle, POLL_ROWS, self._rows)
            if taken == 0:
                return 0
            unread = self._unread = UnreadRows(Batch(self._memory, self._rows.block, self._rows.first, taken))
        for event in unread.events():
            if self.closed:
                break
            count += 1
            began_ns = time.monotonic_ns() if self._times_callbacks else 0
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
            if self._times_callbacks:
                lib.um_event_queue_note_service(self._memory.handle, time.monotonic_ns() - began_ns)
        if not unread.has_rows():
            self._unread = None
        return count

    # Ending

    def close(self) -> None:
        """Stop receiving. Batches already taken stay readable.

        Example:
            ```python
            ctx.event_queue().close()
            ```
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{self._name}{' closed' if self.closed else ''}>"


def _set_result(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
