"""Source: publishes one topic over a transport session.

One file, because it is one public class: every way of publishing shares the same waiting and errors.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, cast

from umstack._core import ffi, lib
from umstack._engine.conditions import check_embedded, wait, wait_async
from umstack._engine.endpoint import Endpoint
from umstack._engine.engine import Engine
from umstack._engine.publication import Publication
from umstack._engine.sessions import SourceSession
from umstack._engine.source_events import Drained, ReceiverEvent, cut_off, given_up, receiver_events
from umstack._engine.waiting import SLICE_NS, timeout_ns
from umstack.async_closing import AsyncClosing
from umstack.buffers import ArrowArray, Buffer
from umstack.config import SourceOptions
from umstack.errors import (
    InvalidArgument,
    MessageTooLong,
    NotBytes,
    NotConnected,
    OptionError,
    UmError,
    WouldBlock,
    error_from_result,
)
from umstack.foreign_text import displayed
from umstack.message_properties import PropertyValue, encoded
from umstack.recovery import RecoveryService
from umstack.repeated_records import RepeatedRecords
from umstack.requests import PendingRequest, RequestService
from umstack.resolution import Resolver
from umstack.telemetry.reading import Counters, publication_counters

if TYPE_CHECKING:
    import asyncio

BatchMark = Literal["start", "end", "complete"]

_Columns = tuple[Any, int, Any, Any, int]
"""Messages as the core takes them: data, its bytes, lengths or NULL, offsets or NULL, and how many there are."""

_FLUSH = lib.UM_SEND_FLUSH
_BATCH_FLAGS = {
    None: 0,
    "start": lib.UM_SEND_START_BATCH,
    "end": lib.UM_SEND_END_BATCH,
    "complete": lib.UM_SEND_START_BATCH | lib.UM_SEND_END_BATCH,
}
_OVER_RINGS = (
    "start a receiver of the topic in another process: datagrams of rings do not reach receivers of the same context, "
    "for which link=socket is right"
)
_SILENT_RECEIVERS = (
    "receivers with recovery_timing fixed are known only if they set flow_control_receiver_window"
)
_REFUSED_FOR_NOW = (lib.UM_BACK_PRESSURED, lib.UM_NOT_CONNECTED, lib.UM_RATE_LIMITED)
_CONTINUED = lib.UM_SEND_CONTINUED
_blocked_sends = RepeatedRecords(logging.getLogger("umstack.source"))
_NULL = ffi.NULL
_LENGTHS = ffi.typeof("uint32_t[]")
_OFFSETS = ffi.typeof("int32_t[]")
_from_buffer = ffi.from_buffer
_send = lib.um_publication_send
_send_many = lib.um_publication_send_many
_send_with = lib.um_publication_send_with


class Source(AsyncClosing):
    """Publish one topic. Made by Context.source(). Any number of threads may send.

    Attributes:
        topic: Name of the topic.
        topic_index: Number that identifies the topic in the session's datagrams.
        options: Source options in force.
        closed: True once close() was called.

    Example:
        ```python
        src.send(b"hello", flush=True)
        ```
    """

    __slots__ = (
        "_engine",
        "_events_read",
        "_handle",
        "_publication",
        "_recovery",
        "_requests",
        "_resolver",
        "closed",
        "options",
        "topic",
        "topic_index",
    )

    def __init__(
        self,
        engine: Engine,
        resolver: Resolver,
        session: SourceSession,
        topic: str,
        topic_index: int,
        options: SourceOptions,
        requests: RequestService,
        fragment_bytes: int = 0,
    ) -> None:
        """Open the source on a session; called by Context.source().

        `fragment_bytes` is the length of its fragments, whatever the path carries; 0: as long as the path carries.
        """
        self._requests = requests
        self.topic = topic
        """The topic's name."""
        self.topic_index = topic_index
        """The number that stands for the topic in the session's datagrams."""
        self.options = options
        """The options in force."""
        self.closed = False
        """True once close() was called."""
        self._engine = engine
        self._resolver = resolver
        self._events_read = 0
        self._recovery: RecoveryService | None = None
        self._publication = Publication(engine.core, session, topic, topic_index, options, fragment_bytes)
        self._handle = self._publication.handle
        engine.registry.add(self, self._publication)

    def _offer_late_join(self, recovery: RecoveryService) -> Endpoint:
        """Register the source for late join; called by Context.source(). Raises ResourceLimit, Closed."""
        self._recovery = recovery
        return recovery.serve(self._publication)

    # Sending

    def send(
        self,
        data: Buffer,
        flush: bool = False,
        *,
        batch: BatchMark | None = None,
        timeout: float | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
    ) -> int:
        """Publish one message. Any thread.

        Waits while flow control or a rate limit refuses it.

        Args:
            data: Any contiguous buffer of bytes; copied before the call returns.
            flush: Send it and every message held before it at once (UM-30).
            batch: Mark the start or end of an explicit batch, or a complete one (UM-34).
            timeout: Maximum wait in seconds; None: no timeout, 0: do not wait.
            properties: Properties by name, typed as in MessageProperties; not in an explicit batch.

        Returns:
            The topic sequence number of the last fragment.

        Raises:
            BackPressured: The publication limit was still reached after `timeout`.
            NotConnected: Flow control still knew no receiver after `timeout`.
            RateLimited: The rate limit was still reached after `timeout`.
            InvalidArgument: The properties cannot be sent; NotBytes for a str.
            MessageTooLong: The message exceeds `message_maximum_bytes`.
            Closed: The source is closed.

        Example:
            ```python
            src.send(b"hello", flush=True, timeout=1, properties={"urgent": True})
            ```
        """
        if type(data) is bytes and batch is None and timeout is None and properties is None:
            # The path of nearly every send, kept minimal: no closures.
            result = _send(self._handle, data, len(data), _FLUSH if flush else 0, SLICE_NS)
            if result >= 0:
                return result
            return self._send_waiting(data, _FLUSH if flush else 0, None, result)
        if properties:
            if batch is not None:
                raise InvalidArgument(
                    f"sending on {self.topic!r}: a message of an explicit batch carries no properties",
                    hint="send it without batch=, or without properties",
                )
            return self._send_with(data, flush, timeout, "sending", properties)
        flags = (_FLUSH if flush else 0) | (_BATCH_FLAGS[batch] if batch is not None else 0)
        return self._send_waiting(data, flags, timeout, 0)

    def _send_with(
        self,
        data: Buffer,
        flush: bool,
        timeout: float | None,
        doing: str,
        properties: Mapping[str, PropertyValue] | None,
        **extras: Any,
    ) -> int:
        """Send with properties behind the data and with the fields of um_lbmc_extras."""
        if isinstance(data, str):
            raise NotBytes(f"{doing} on {self.topic!r}: a message is bytes, not str")
        block = encoded(properties)
        raw: Any = data if type(data) is bytes else ffi.from_buffer("char[]", data)
        if block:
            raw = (raw if type(raw) is bytes else ffi.buffer(raw)[:]) + block
        named = ffi.new("um_lbmc_extras *", {"properties_bytes": len(block), **extras})
        flags = _FLUSH if flush else 0
        return self._retry(
            lambda wait_ns, more: _send_with(self._handle, raw, len(raw), named, flags | more, wait_ns),
            timeout,
            doing,
        )

    def _send_waiting(self, data: Buffer, flags: int, timeout: float | None, refused: int) -> int:
        """Send with every feature; `refused` is the result of a first attempt, 0 when there was none."""
        if refused and refused not in _REFUSED_FOR_NOW:
            raise self._error(refused, "sending")
        if isinstance(data, str):
            raise NotBytes(f"a message on {self.topic!r} is bytes, not str")
        raw = data if type(data) is bytes else ffi.from_buffer("char[]", data)
        return self._retry(
            lambda wait_ns, more: _send(self._handle, raw, len(raw), flags | more, wait_ns),
            timeout,
            "sending",
            _CONTINUED if refused else 0,
        )

    def _retry(
        self, attempt: Callable[[int, int], int], timeout: float | None, doing: str, waited: int = 0
    ) -> int:
        """Repeat an attempt, which waits at most a slice, until the core accepts it or the timeout ends.

        Between slices Python handles signals, and in sequential mode the duty cycle runs.
        """
        end_ns = None if timeout is None else time.monotonic_ns() + timeout_ns(timeout)
        since_ns = time.monotonic_ns()
        while True:
            left_ns = SLICE_NS if end_ns is None else max(0, end_ns - time.monotonic_ns())
            result = attempt(min(left_ns, self._engine.slice_ns), waited)
            if result >= 0:
                return result
            if result not in _REFUSED_FOR_NOW or left_ns == 0:
                raise self._error(result, doing)
            since_ns = self._warn_of_wait(since_ns, result, doing)
            waited = _CONTINUED
            self._engine.between_slices()

    def _warn_of_wait(self, since_ns: int, result: int, doing: str) -> int:
        """Log a send that has waited since then for the option's interval. Return the start of the next interval."""
        interval_ns, now_ns = self.options.blocked_send_warning_interval_ns, time.monotonic_ns()
        if interval_ns == 0 or now_ns - since_ns < interval_ns:
            return since_ns
        cause = self._error(result, doing)
        text = "%s; it has waited for %g s or longer on %s; %s"
        arguments = (cause.message, interval_ns / 1e9, self.transport, cause.hint)
        key = (self.topic, self.transport)
        _blocked_sends.write(key, logging.WARNING, text, *arguments, object=displayed(self.topic))
        return now_ns

    def _await_receivers(self) -> None:
        """Wait for receivers that are about to attach, once the source is registered at its Stores."""

    def _error(self, result: int, doing: str) -> UmError:
        if result == lib.UM_CLOSED:
            return self._engine.core.closed_error(f"{doing} on {self.topic!r}: the source")
        if result == -errno.EBUSY:
            return InvalidArgument(
                f"{doing} on {self.topic!r}: an explicit batch is open, which would hold it back",
                hint="end the batch first, or send these by a source of their own",
            )
        if result == -errno.EMSGSIZE:
            return MessageTooLong(
                f"{doing} on {self.topic!r}: longer than {self.message_maximum_bytes} bytes, the longest message here",
                hint="send it in parts, or raise transport_lbtrm_transmission_window_size, and with it "
                "receiver_maximum_message_length at receivers",
            )
        return error_from_result(result, f"{doing} on {self.topic!r}")

    def send_many(
        self,
        messages: Sequence[Buffer] | ArrowArray,
        flush: bool = False,
        *,
        timeout: float | None = None,
    ) -> int:
        """Publish many messages in one call. Any thread.

        Args:
            messages: Sequence of buffers, or an Arrow binary or string array without nulls and with 32-bit offsets.
                Copied before the call returns.
            flush: Send them and every message held before them at once.
            timeout: Maximum wait in seconds, as with send().

        Returns:
            The number of messages published: all of them, unless the timeout ended after some.

        Raises:
            OptionError: The Arrow array has another type, or nulls.
            UmError: As send(). If one message cannot be sent, the messages before it have been sent.

        Example:
            ```python
            src.send_many([b"one", b"two"], flush=True)
            ```
        """
        flags = _FLUSH if flush else 0
        if hasattr(messages, "buffers"):
            return self._send_arrow(messages, flags, timeout)
        buffers = cast("Sequence[bytes]", messages)
        data = b"".join(buffers)
        lengths = array("I", map(len, buffers))
        if sum(lengths) != len(data):  # a view of items longer than a byte
            lengths = array("I", (memoryview(buffer).nbytes for buffer in buffers))
        columns = (_from_buffer(data), len(data), _from_buffer(_LENGTHS, lengths), _NULL, len(lengths))
        return self._send_columns(columns, flags, timeout)

    def send_packed(
        self, data: Buffer, offsets: Buffer, flush: bool = False, *, timeout: float | None = None
    ) -> int:
        """Publish messages stored end to end in one buffer. Any thread.

        Message i is data[offsets[i]:offsets[i + 1]].

        Args:
            data: Any contiguous buffer of bytes; copied before the call returns.
            offsets: Buffer of ascending 32-bit signed integers, one more than messages.
            flush: Send them and every message held before them at once.
            timeout: Maximum wait in seconds, as with send().

        Returns:
            The number of messages published, as send_many().

        Raises:
            OptionError: The offsets reach outside the data.
            UmError: As send().

        Example:
            ```python
            src.send_packed(b"onetwo", array("i", [0, 3, 6]), flush=True)
            ```
        """
        begins = _from_buffer(_OFFSETS, offsets)
        count = len(begins) - 1
        if count < 1:
            return 0
        packed = _from_buffer(data)
        columns = (packed, len(packed), _NULL, begins, count)
        return self._send_columns(columns, _FLUSH if flush else 0, timeout)

    def _send_arrow(self, messages: Any, flags: int, timeout: float | None) -> int:
        import pyarrow as pa

        if messages.type not in (pa.binary(), pa.string()) or messages.null_count:
            raise OptionError(
                f"cannot send an Arrow array of {messages.type}",
                hint="give a binary or string array without nulls (32-bit offsets)",
            )
        if len(messages) == 0:
            return 0
        _, offsets, data = messages.buffers()
        start = messages.offset
        begins = ffi.cast("int32_t *", offsets.address) + start
        address, data_bytes = (data.address, data.size) if data is not None else (0, 0)
        columns = (ffi.cast("char *", address), data_bytes, _NULL, begins, len(messages))
        return self._send_columns(columns, flags, timeout)

    def _send_columns(self, columns: _Columns, flags: int, timeout: float | None) -> int:
        """Send until all are accepted or the timeout ends; raises if the first was refused.

        One call suffices for nearly every batch; `_send_rest` handles the others.
        """
        wait_ns = self._engine.slice_ns
        if timeout is not None and (left_ns := timeout_ns(timeout)) < wait_ns:
            wait_ns = max(0, left_ns)
        result: int = _send_many(self._handle, *columns, flags, wait_ns)
        if result == columns[-1]:
            return result
        return self._send_rest(columns, flags, timeout, result, wait_ns)

    def _send_rest(
        self, columns: _Columns, flags: int, timeout: float | None, result: int, wait_ns: int
    ) -> int:
        """Continue after a first attempt with this result, which waited `wait_ns`."""
        data, data_bytes, lengths, offsets, count = columns
        end_ns = None if timeout is None else time.monotonic_ns() + timeout_ns(timeout) - wait_ns
        data = ffi.cast("char *", data)
        done = 0
        since_ns = time.monotonic_ns()
        while True:
            if result > 0:
                done += result
                since_ns = time.monotonic_ns()
                if lengths != _NULL:
                    taken_bytes = sum(ffi.unpack(lengths, result))
                    data += taken_bytes
                    data_bytes -= taken_bytes
                    lengths += result
                else:
                    offsets += result
            elif result == -errno.EINVAL and offsets != _NULL:
                raise OptionError(
                    "the offsets reach outside the data", hint="they ascend up to the data's length"
                )
            elif result not in _REFUSED_FOR_NOW or (wait_ns == 0 and done == 0):
                raise self._error(result, f"message {done} of {count}: sending" if done else "sending")
            if done == count or wait_ns == 0:
                return done
            if result < 0:
                since_ns = self._warn_of_wait(since_ns, result, "sending")
            self._engine.between_slices()
            left_ns = SLICE_NS if end_ns is None else max(0, end_ns - time.monotonic_ns())
            wait_ns = min(left_ns, self._engine.slice_ns)
            result = _send_many(
                self._handle, data, data_bytes, lengths, offsets, count - done, flags | _CONTINUED, wait_ns
            )

    @contextmanager
    def claim(
        self, length: int, flush: bool = False, *, timeout: float | None = None
    ) -> Iterator[memoryview]:
        """Write a message in place in the publication log. Any thread.

        The message is committed when the block ends and aborted when the block raises.

        Args:
            length: Bytes of the message; it must fit one datagram.
            flush: Send it and every message held before it when it is committed.
            timeout: Maximum wait in seconds, as with send().

        Yields:
            A writable view of `length` bytes (format "B"), valid inside the block only.

        Raises:
            MessageTooLong: One datagram cannot carry the message.
            InvalidArgument: Something still refers to the view when the block ends; nothing is sent.
            UmError: As send().

        Example:
            ```python
            with src.claim(5, flush=True) as view:
                view[:] = b"hello"
            ```

        Requirement: AE-32.
        """
        claim = ffi.new("um_source_claim *")
        try:
            self._retry(
                lambda wait_ns, more: lib.um_publication_claim(self._handle, length, claim, more, wait_ns),
                timeout,
                f"claiming {length} bytes",
            )
        except MessageTooLong as error:
            raise MessageTooLong(
                f"claiming {length} bytes on {self.topic!r}: more than one datagram carries "
                f"({self._engine.core.datagram_bytes} bytes with its headers)",
                hint="send() takes longer messages; or raise transport_lbtrm_datagram_max_size and the MTU",
            ) from error
        view = memoryview(ffi.buffer(claim.payload, length))
        try:
            yield view
            self._release(view)
        except BaseException:
            lib.um_publication_abort(self._handle, claim)
            raise
        result = lib.um_publication_commit(self._handle, claim, _FLUSH if flush else 0)
        if result < 0:
            raise self._error(result, "committing")

    def _release(self, view: memoryview) -> None:
        try:
            view.release()
        except BufferError as error:
            raise InvalidArgument(
                f"claim on {self.topic!r}: something still refers to the claimed bytes; they were not sent",
                hint="drop every view and array over them before the block ends",
            ) from error

    def flush(self) -> None:
        """Send all batched messages of the session and this source's explicit batch.

        Waits without a timeout while a rate limit refuses them. Any thread.

        Raises:
            Closed: The source is closed.

        Example:
            ```python
            src.flush()
            ```

        Requirements: UM-27, UM-40.
        """
        self._retry(lambda _wait_ns, _more: lib.um_publication_flush(self._handle), None, "flushing")

    def send_hot_failover(
        self,
        data: Buffer,
        sequence_number: int,
        flush: bool = False,
        *,
        optional: bool = False,
        bits: Literal[32, 64] = 64,
        timeout: float | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
    ) -> int:
        """Publish a numbered message of a stream that other sources send copies of.

        Hot failover receivers deliver the first copy of each number, in order. Numbers may be skipped. Any thread.

        Args:
            data: Any contiguous buffer of bytes; copied before the call returns.
            sequence_number: Number of the message, from 0.
            flush: Send it and every message held before it at once.
            optional: Mark it as optional: delivered only to receivers with hf_optional_messages.
            bits: Width of the number: 32 takes 12 bytes of the datagram, 64 takes 16.
            timeout: Maximum wait in seconds, as with send().
            properties: Properties by name, as with send().

        Returns:
            The topic sequence number of the last fragment.

        Raises:
            InvalidArgument: The number does not fit, or an explicit batch is open.
            UmError: As send().

        Example:
            ```python
            src.send_hot_failover(b"hello", 7, flush=True)
            ```
        """
        return self._send_numbered(
            data, sequence_number, flush, bits, timeout, properties, is_optional=optional
        )

    def send_hot_failover_reset(
        self,
        sequence_number: int,
        flush: bool = True,
        *,
        bits: Literal[32, 64] = 64,
        timeout: float | None = None,
    ) -> int:
        """Reset the numbering of a hot failover stream. Any thread.

        Receivers deliver a HotFailoverReset and continue at `sequence_number`. Every source of the stream sends it;
        receivers act on the first and drop messages that other sources sent before theirs.

        Args:
            sequence_number: Number of the next message.
            flush: Send it and every message held before it at once.
            bits: Width of the number, 32 or 64.
            timeout: Maximum wait in seconds, as with send().

        Returns:
            The topic sequence number of the reset.

        Raises:
            InvalidArgument: The number does not fit, or an explicit batch is open.
            UmError: As send().

        Example:
            ```python
            src.send_hot_failover_reset(1)
            ```
        """
        return self._send_numbered(b"", sequence_number, flush, bits, timeout, None, is_reset=True)

    def _send_numbered(
        self,
        data: Buffer,
        sequence_number: int,
        flush: bool,
        bits: int,
        timeout: float | None,
        properties: Mapping[str, PropertyValue] | None,
        **flags: bool,
    ) -> int:
        if bits not in (32, 64) or not 0 <= sequence_number < 1 << bits:
            raise InvalidArgument(
                f"{sequence_number} is no hot failover sequence number of {bits} bits",
                hint="give a number from 0 on, of 32 or 64 bits",
            )
        number = ffi.new(
            "um_lbmc_hot_failover *", {"sqn": sequence_number, "is_64_bits": bits == 64, **flags}
        )
        return self._send_with(
            data, flush, timeout, "sending a numbered message", properties, hot_failover=number
        )

    def request(
        self,
        data: Buffer,
        flush: bool = True,
        *,
        timeout: float | None = None,
        send_timeout: float | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
    ) -> PendingRequest:
        """Publish a request that receivers can respond to. Any thread.

        Responses arrive directly from each responder, over TCP.

        Args:
            data: Any contiguous buffer of bytes; copied before the call returns.
            flush: Send it and every message held before it at once.
            timeout: Seconds for which the request is open; None: until it is closed.
            send_timeout: Maximum wait of sending in seconds, as `timeout` of send().
            properties: Properties by name, as with send().

        Returns:
            The open request: iterate it, await it, or call its receive().

        Raises:
            ResourceLimit: request_pending_maximum requests are open, or no port is free.
            InvalidArgument: An explicit batch is open; NotBytes for a str.
            UmError: As send().

        Example:
            ```python
            with src.request(b"price?", timeout=0.1) as request:
                for response in request:
                    print(response.data)
            ```
        """
        self._check_open()
        request, named = self._requests.open(self, self.topic, timeout)
        try:
            self._send_with(data, flush, send_timeout, "sending a request", properties, request=named)
        except BaseException:
            request.close()
            raise
        self._requests.note_sent()
        return request

    # State

    def _check_open(self) -> None:
        if self.closed:
            raise self._engine.core.closed_error(f"source {self.topic!r}")

    @property
    def is_connected(self) -> bool:
        """True if sends need not wait for a receiver: flow control knows one, or needs none. Raises Closed."""
        self._check_open()
        return bool(lib.um_publication_connected(self._handle))

    @property
    def known_receivers(self) -> int:
        """The receivers of the topic that wait_connected() counts. Raises Closed.

        Flow control or a unicast transport knows them; with flow_control none on LBT-RM it is 0. A receiver that does
        not report its topics, as Ultra Messaging's, counts for every topic of the session.
        """
        self._check_open()
        return int(lib.um_publication_receivers(self._handle))

    @property
    def message_maximum_bytes(self) -> int:
        """The longest message that one send accepts, in bytes. Raises Closed."""
        self._check_open()
        return int(lib.um_publication_message_max(self._handle))

    def fileno(self) -> int:
        """Return a descriptor that signals when sending is possible again.

        It becomes readable after a send with timeout=0 was refused. The session owns it: do not close it.

        Returns:
            The file descriptor.

        Raises:
            Closed: The source is closed.

        Example:
            ```python
            select.select([src.fileno()], [], [], 0.01)
            ```

        Requirement: UX-2.
        """
        self._check_open()
        return int(lib.um_publication_wakeup_fd(self._handle))

    async def send_async(
        self,
        data: Buffer,
        flush: bool = False,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
    ) -> int:
        """Publish one message, waiting in the running event loop.

        Args:
            data: Any contiguous buffer of bytes.
            flush: Send it and every message held before it at once.
            properties: Properties by name, as with send().

        Returns:
            The topic sequence number of the last fragment.

        Raises:
            OptionError: The context is in sequential mode.
            UmError: As send(), except WouldBlock.

        Example:
            ```python
            await src.send_async(b"hello", flush=True)
            ```
        """
        check_embedded(self._engine, "send_async")
        while True:
            try:
                return self.send(data, flush, timeout=0, properties=properties)
            except WouldBlock:
                await self._wakeup()

    async def _wakeup(self) -> None:
        """Wait until a send may succeed. The descriptor is the session's, so each waiter watches a copy."""
        import asyncio

        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        fd = os.dup(self.fileno())
        loop.add_reader(fd, _wake, ready)
        try:
            await ready
        finally:
            loop.remove_reader(fd)
            os.close(fd)

    def wait_connected(self, receivers: int = 1, timeout: float | None = None) -> None:
        """Wait until flow control or a unicast transport knows enough receivers of the topic.

        They receive every message sent later, or report it as lost.

        Args:
            receivers: Number of receivers.
            timeout: Maximum wait in seconds; None: no timeout.

        Raises:
            NotConnected: The timeout ended.
            OptionError: With flow_control none on LBT-RM the receivers are not known.
            Closed: The source is closed.

        Example:
            ```python
            source = ctx.source("trades", flow_control="min")
            receiver = ctx.receiver("trades")
            source.wait_connected(timeout=5)
            ```
        """
        self._check_knows_receivers()
        if not wait(self._engine, lambda: self.known_receivers >= receivers, timeout):
            raise self._not_connected(receivers, timeout)

    async def wait_connected_async(self, receivers: int = 1, timeout: float | None = None) -> None:
        """Wait as wait_connected() does, in the running event loop.

        Args:
            receivers: Number of receivers.
            timeout: Maximum wait in seconds; None: no timeout.

        Raises:
            NotConnected: The timeout ended.
            OptionError: The context is in sequential mode, or the receivers are not known.
            Closed: The source is closed.

        Example:
            ```python
            source = ctx.source("trades", flow_control="min")
            receiver = ctx.receiver("trades")
            await source.wait_connected_async(timeout=5)
            ```
        """
        self._check_knows_receivers()
        if not await wait_async(self._engine, lambda: self.known_receivers >= receivers, timeout):
            raise self._not_connected(receivers, timeout)

    def _check_knows_receivers(self) -> None:
        if self.options.flow_control == "none" and self.options.transport == "lbtrm":
            raise OptionError(
                "with flow_control none a source does not know its receivers", hint="set flow_control to min"
            )

    def _is_by_clients(self) -> bool:
        """True if the receivers known are the clients of a unicast session, not those of flow control."""
        return self.options.is_stream or self.options.flow_control == "none"

    def _not_connected(self, receivers: int, timeout: float | None) -> NotConnected:
        hints = [_OVER_RINGS] if self._engine.link.kind == "xdp" else []
        hints += [] if self._is_by_clients() else [_SILENT_RECEIVERS]
        return NotConnected(
            f"{self.known_receivers} of {receivers} receivers came within {timeout} s",
            hint="; ".join(hints) or None,
        )

    def wait_drained(self, timeout: float | None = None) -> Drained:
        """Wait until every receiver known to flow control has received or given up all messages.

        With flow_control none: until every datagram has left this host; losses that receivers detect later are then
        missing in the result. Receivers that timed out or stalled are not waited for.

        Args:
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            Drained: true if everything was received; otherwise shows whether the timeout ended or datagrams were lost.

        Raises:
            Closed: The source is closed.

        Example:
            ```python
            if not src.wait_drained(timeout=1):
                print("not received everywhere")
            ```

        Requirement: UM-83.
        """
        self.flush()
        is_complete = wait(self._engine, self._is_drained, timeout)
        return Drained(is_complete, given_up(self._publication.session))

    async def wait_drained_async(self, timeout: float | None = None) -> Drained:
        """Wait as wait_drained() does, in the running event loop.

        Args:
            timeout: Maximum wait in seconds; None: no timeout.

        Returns:
            Drained, as wait_drained().

        Raises:
            OptionError: The context is in sequential mode.
            Closed: The source is closed.

        Example:
            ```python
            if not await src.wait_drained_async(timeout=1):
                print("not received everywhere")
            ```
        """
        await wait_async(self._engine, self._flushes, None)
        is_complete = await wait_async(self._engine, self._is_drained, timeout)
        return Drained(is_complete, given_up(self._publication.session))

    def _is_drained(self) -> bool:
        self._check_open()
        return bool(lib.um_publication_drained(self._handle))

    def _flushes(self) -> bool:
        """Flush without waiting; return False if a rate limit refuses it."""
        result = lib.um_publication_flush(self._handle)
        if result < 0 and result not in _REFUSED_FOR_NOW:
            raise self._error(result, "flushing")
        return bool(result >= 0)

    def receiver_events(self) -> list[ReceiverEvent]:
        """Return the events about the session's receivers since the last call.

        Returns:
            At most the 64 newest events: receivers that stalled, NAK too much, were cut off or lose messages. Each
            source of a session gets all of them.

        Raises:
            Closed: The source is closed.

        Example:
            ```python
            for event in src.receiver_events():
                print(event.kind, event.receiver)
            ```
        """
        self._check_open()
        events, self._events_read = receiver_events(self._publication.session, self._events_read)
        return events

    def nak_cutoff(self, receiver: str, enabled: bool = True) -> None:
        """Ignore the NAKs of one receiver, or serve them again.

        Applies to all sources of the session. The receiver still gets new data and retransmissions that others NAK for.

        Args:
            receiver: "address:port", as receiver_events() and `umstack stat` name it.
            enabled: True ignores its NAKs, False serves them.

        Raises:
            InvalidArgument: `receiver` is not an address with a port.
            ResourceLimit: The table of receivers is full.
            Closed: The source is closed.

        Example:
            ```python
            src.nak_cutoff("127.0.0.1:40211")
            ```

        Requirement: UX-21.
        """
        self._check_open()
        cut_off(self._publication.session, receiver, enabled)

    @property
    def transport(self) -> str:
        """The session's name: "LBTRM:ip:NAK port:session id:group:port", or "LBTRU:ip:port:session id"."""
        return self._publication.session.name

    def stats(self) -> Counters:
        """Read the counters of this source and its transport session. Any thread.

        Returns:
            Counters by name (docs/counters.md).

        Raises:
            Closed: The source is closed.

        Example:
            ```python
            print(src.stats()["naks_rcved"])
            ```
        """
        self._check_open()
        return publication_counters(self._publication)

    # Ending

    def close(self) -> None:
        """Flush and end the source.

        The last source of a session ends the session and its retransmissions (UM-90): receivers lose messages that
        are still missing; see wait_drained(). Any thread may call it; a second call does nothing.

        Example:
            ```python
            source = ctx.source("orders")
            source.close()
            ```
        """
        engine, publication = self._engine, self._publication
        if engine.registry.begin_closing(self):
            engine.registry.remove(self)
            self._requests.end_requests_of(self, f"source {self.topic!r}")
            if not engine.core.closed:
                self._resolver.withdraw(self.topic, self.topic_index, publication.session.address)
            if self._recovery is not None:
                self._recovery.stop_serving(publication)
            publication.close()
            engine.sessions.release(publication.session)

    def __repr__(self) -> str:
        return f"<Source {self.topic!r} on {self.transport}{' closed' if self.closed else ''}>"


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
