"""A batch of received rows: columns over the queue's memory, turned into messages or Arrow on request."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import count as count_from
from itertools import repeat
from struct import iter_unpack
from typing import TYPE_CHECKING, Any, Literal, cast

from umstack._core import ffi, lib
from umstack._engine.interface_changes import interface_change_of
from umstack.events import (
    PROPERTIES_FLAG,
    REQUEST_FLAG,
    BeginningOfSession,
    BurstLoss,
    CutLoose,
    DriverLost,
    EndOfSession,
    Event,
    HotFailoverReset,
    InterfaceChanged,
    Message,
    MessageWithProperties,
    NakCutoff,
    NoSource,
    Request,
    SourceCreated,
    SourceDeleted,
    StaleTags,
    UnrecoverableLoss,
)
from umstack.message_properties import NO_PROPERTIES, MessageProperties, PropertyValue

if TYPE_CHECKING:
    import pyarrow

    from umstack._engine.queue_memory import QueueMemory

_new_message: Any = partial(tuple.__new__, Message)
_KIND_MASK = 0xF00
_kind_of = lib.um_row_kind_of
_NOTHING = ffi.new("char[8]")
_EMPTY_BLOCK = ffi.new(
    "um_block *",
    {
        column: ffi.cast(kind, _NOTHING)
        for column, kind in [
            ("offsets", "int32_t *"),
            ("sequence_numbers", "uint32_t *"),
            ("first_sequence_numbers", "uint32_t *"),
            ("fragment_offsets", "uint32_t *"),
            ("message_lengths", "uint32_t *"),
            ("sources", "uint32_t *"),
            ("received_ns", "int64_t *"),
            ("sent_ns", "int64_t *"),
            ("flags", "uint16_t *"),
            ("requests", "um_request *"),
            ("properties", "um_properties_place *"),
            ("payload", "uint8_t *"),
        ]
    },
)
"""The block of a batch without rows; the core provides none."""


class Batch:
    """Rows of one receiver or event queue in order of delivery: messages and events.

    Made by poll(). Columns and payloads are read-only views into the queue, without a copy. They stay valid while
    anything refers to them, even after the receiver or context is closed. The queue reuses the memory when the
    batch and every view and Arrow array made from it are collected, or the batch is released. One thread at a time
    reads a batch; views may be read by any thread.

    Over AF_XDP a large payload stays in its UMEM frame until it is read: then all payloads of the batch are
    materialized, once. Reading through `heads` alone does not materialize them.

    Example:
        ```python
        with rcv.poll(timeout=0.1) as batch:
            for message in batch:
                print(message.data)
        ```
    """

    __slots__ = ("_block", "_count", "_first", "_has_views", "_memory", "_offsets", "_sources", "_summary")

    def __init__(self, memory: QueueMemory, block: Any, first: int, count: int) -> None:
        self._memory = memory
        self._sources = memory.sources.table
        if memory.sources.is_due:
            memory.recycle_sources()
        self._block = block if count else _EMPTY_BLOCK
        self._first = first
        self._count = count
        self._has_views = False
        self._summary: Any = None
        self._offsets: Any = None

    def __repr__(self) -> str:
        events = self.event_count
        messages = self._count - events
        said = f"{messages} message{'' if messages == 1 else 's'}"
        if events:
            said += f", {events} event{'' if events == 1 else 's'}"
        return f"<Batch {said}, {self.payload_bytes if self._count else 0} bytes>"

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __del__(self) -> None:
        # Of objects that die together in a cycle, the queue's memory may be finalized first.
        if self._count and not self._memory.freed:
            lib.um_queue_release(self._block, self._count)

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Return the rows to the queue now; the batch is then empty.

        Does nothing once views were made of it.

        Example:
            ```python
            rcv.poll().release()
            ```
        """
        if self._count and not self._has_views:
            lib.um_queue_release(self._block, self._count)
            self._count = 0

    def _split(self, count: int) -> Batch:
        """Keep the first `count` rows and return the others as a batch, for internal use. No views may exist."""
        others = Batch(self._memory, self._block, self._first + count, self._count - count)
        others._sources = self._sources
        self._count = count
        self._summary = self._offsets = None
        return others

    # Columns

    def _view(self, column: Any, size_bytes: int, item: Literal["B", "H", "I", "q"]) -> memoryview:
        """A typed view of a column. Its destructor is a method of the batch, so the batch lives as long as it."""
        self._has_views = True
        pointer = ffi.gc(ffi.cast("char *", column), self._view_gone)
        view: memoryview = memoryview(ffi.buffer(pointer, size_bytes)).cast("B")
        return view.cast(item).toreadonly()

    def _view_gone(self, _pointer: Any) -> None:
        """Called by cffi when a view is collected; holding this method was its purpose."""

    @property
    def payload(self) -> memoryview:
        """The payloads of all rows, end to end: a view of bytes, format "B", of `payload_bytes` items."""
        lib.um_rows_materialize(self._block, self._first, self._count)
        return self._view(self._block.payload + self._block.offsets[self._first], self.payload_bytes, "B")

    @property
    def payload_bytes(self) -> int:
        """The length of all payloads together, in bytes."""
        offsets = self._block.offsets
        return cast("int", offsets[self._first + self._count] - offsets[self._first])

    def heads(self, size: int) -> memoryview:
        """Copy the first bytes of each row's payload, end to end.

        To select messages by a header, this costs less than `payload` if payloads are large.

        Args:
            size: Bytes per row, 0 or more; shorter payloads are padded with zeros.

        Returns:
            A read-only memoryview of `size` bytes per row, format "B"; a copy.

        Raises:
            ValueError: The size is below 0.

        Example:
            ```python
            heads = rcv.poll(timeout=0.1).heads(4)
            ```
        """
        if size < 0:
            raise ValueError(f"a head has {size} bytes; give a size of 0 or more")
        heads = ffi.new("uint8_t[]", self._count * size)
        lib.um_rows_heads(self._block, self._first, self._count, size, heads)
        return memoryview(ffi.buffer(heads)).cast("B").toreadonly()

    @property
    def offsets(self) -> memoryview:
        """Signed 32-bit offsets, format "i", one more than rows: row i is payload[offsets[i]:offsets[i + 1]]."""
        self._summarize()
        return memoryview(ffi.buffer(self._offsets)).cast("i")

    @property
    def sequence_numbers(self) -> memoryview:
        """Topic sequence numbers of the last fragments: a view of unsigned 32-bit integers, format "I" (UM-57)."""
        return self._view(self._block.sequence_numbers + self._first, 4 * self._count, "I")

    @property
    def received_ns(self) -> memoryview:
        """Arrival times, nanoseconds since 1970: a view of signed 64-bit integers, format "q"."""
        return self._view(self._block.received_ns + self._first, 8 * self._count, "q")

    def _columns_of_parts(self) -> tuple[Any, Any, Any, Any]:
        """Pointers to first numbers, offsets and lengths of fragments, and properties, for internal use: no copies."""
        block, first = self._block, self._first
        return (
            block.first_sequence_numbers + first,
            block.fragment_offsets + first,
            block.message_lengths + first,
            block.properties + first,
        )

    @property
    def sent_ns(self) -> memoryview:
        """Send times by the publishers' clocks, nanoseconds since 1970, 0 if unknown: a view of signed 64-bit integers,
        format "q" (option send_timestamps).
        """
        return self._view(self._block.sent_ns + self._first, 8 * self._count, "q")

    @property
    def flags(self) -> memoryview:
        """Flags of each row: a view of unsigned 16-bit integers, format "H".

        Bits 0 to 7 and 12 to 15 are the message's flags, bits 8 to 11 the kind of the row: 0 for a message.
        """
        return self._view(self._block.flags + self._first, 2 * self._count, "H")

    @property
    def sources(self) -> memoryview:
        """Source numbers of the rows, for topic_of() and source_of(): a view of uint32, format "I"."""
        return self._view(self._block.sources + self._first, 4 * self._count, "I")

    def topic_of(self, number: int) -> str:
        """Return the topic of a source number.

        Args:
            number: An item of `sources`.

        Returns:
            The name of the topic.

        Raises:
            IndexError: No row has this number.

        Example:
            ```python
            batch = rcv.poll(timeout=0.1)
            print([batch.topic_of(number) for number in batch.sources])
            ```
        """
        return self._sources.topics[number]

    def source_of(self, number: int) -> str:
        """Return the name of a source number.

        Args:
            number: An item of `sources`.

        Returns:
            The name of the source, as in Message.source.

        Raises:
            IndexError: No row has this number.

        Example:
            ```python
            batch = rcv.poll(timeout=0.1)
            print([batch.source_of(number) for number in batch.sources])
            ```
        """
        return self._sources.names[number]

    def views(self) -> list[memoryview]:
        """Return one view of bytes per row, without a copy.

        Returns:
            A list of memoryviews, empty ones for events; valid while anything refers to them.

        Example:
            ```python
            print(sum(len(view) for view in rcv.poll(timeout=0.1).views()))
            ```
        """
        payload, offsets = self.payload, self.offsets
        return [payload[offsets[i] : offsets[i + 1]] for i in range(self._count)]

    @property
    def event_count(self) -> int:
        """Number of rows that are not messages."""
        if self._count == 0:
            return 0
        return cast("int", self._summarize().event_count)

    def _summarize(self) -> Any:
        if self._summary is None:
            self._summary = ffi.new("um_rows_summary *")
            self._offsets = ffi.new("int32_t[]", self._count + 1)
            rows = ffi.new("um_rows *", {"block": self._block, "first": self._first, "count": self._count})
            lib.um_rows_summarize(rows, self._offsets, self._summary)
        return self._summary

    # Objects

    def payloads(self) -> list[bytes]:
        """Copy the payload of every row.

        Returns:
            A list of bytes; empty for events.

        Example:
            ```python
            print(rcv.poll(timeout=0.1).payloads())
            ```
        """
        if self._count <= 1:
            return self._only_payload()
        summary = self._summarize()
        lib.um_rows_materialize(self._block, self._first, self._count)
        start = self._block.offsets[self._first]
        data = ffi.buffer(self._block.payload + start, self._offsets[self._count])[:]
        if summary.payload_length > 0:
            return [item for (item,) in iter_unpack(f"{summary.payload_length}s", data)]
        offsets = ffi.unpack(self._offsets, self._count + 1)
        return list(map(data.__getitem__, map(slice, offsets, offsets[1:])))

    def _only_payload(self) -> list[bytes]:
        if self._count == 0:
            return []
        lib.um_rows_materialize(self._block, self._first, 1)
        start = self._block.offsets[self._first]
        end = self._block.offsets[self._first + 1]
        return [ffi.buffer(self._block.payload + start, end - start)[:]]

    def _column(self, column: Any) -> list[int]:
        return cast("list[int]", ffi.unpack(column + self._first, self._count))

    def _topics_and_sources(self) -> tuple[Iterator[str], Iterator[str]]:
        sources = self._sources
        source = self._summarize().source
        if source >= 0:
            return repeat(sources.topics[source], self._count), repeat(sources.names[source], self._count)
        numbers = self._column(self._block.sources)
        return map(sources.topics.__getitem__, numbers), map(sources.names.__getitem__, numbers)

    def messages(self) -> list[Message]:
        """Return the messages of the batch, without its events.

        Returns:
            A list of messages with copied payloads.

        Example:
            ```python
            print(rcv.poll(timeout=0.1).messages())
            ```
        """
        return list(self)

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages one by one; short-lived objects do not burden the garbage collector."""
        rows = self._rows()
        if self._count == 0 or self._summarize().event_count == 0:
            return rows
        return (row for row in rows if not row.flags & _KIND_MASK)

    def properties(self) -> list[MessageProperties]:
        """Return the properties of every row.

        Returns:
            A list of `Message.properties`; empty for events and for messages without properties.

        Example:
            ```python
            print(rcv.poll(timeout=0.1).properties())
            ```
        """
        if self._count == 0 or not self._summarize().has_properties:
            return [NO_PROPERTIES] * self._count
        return [
            self._properties_of(row) if flags & PROPERTIES_FLAG else NO_PROPERTIES
            for row, flags in enumerate(self._column(self._block.flags), self._first)
        ]

    def events(self) -> list[Event]:
        """Return every row as its typed object.

        Returns:
            A list of messages, with copied payloads, and events.

        Example:
            ```python
            print(rcv.poll(timeout=0.1).events())
            ```
        """
        if self._count == 0 or self._summarize().event_count == 0:
            return list(self._rows())
        return [event_of(row) for row in self._rows()]

    def _rows(self) -> Iterator[Message]:
        """Every row as if it were a message."""
        if self._count == 0:
            return iter(())
        return self._rows_of(iter(self.payloads()))

    def _rows_of(self, payloads: Iterator[bytes]) -> Iterator[Message]:
        """Every row as if it were a message, for internal use. Each row takes the next of `payloads`."""
        if self._count == 0:
            return iter(())
        block = self._block
        sequence_numbers = self._column(block.sequence_numbers)
        columns: tuple[Iterable[int], ...]
        if self._summarize().plain:
            columns = (
                sequence_numbers,
                self._column(block.received_ns),
                repeat(0),
                repeat(0),
                self._lengths(),
            )
        else:
            columns = (
                self._column(block.first_sequence_numbers),
                self._column(block.received_ns),
                self._column(block.flags),
                self._column(block.fragment_offsets),
                self._column(block.message_lengths),
            )
        topics, sources = self._topics_and_sources()
        sent = self._column(block.sent_ns) if self._summarize().sent_count else repeat(0)
        rows = map(
            _new_message, zip(payloads, topics, sources, sequence_numbers, *columns, sent, strict=False)
        )
        summary = self._summarize()
        if summary.has_requests or summary.has_properties:
            return map(self._with_more, rows, count_from(self._first))
        return rows

    def _lengths(self) -> list[int]:
        """The length of each payload."""
        self._summarize()
        offsets = ffi.unpack(self._offsets, self._count + 1)
        return list(map(int.__sub__, offsets[1:], offsets))

    def _with_more(self, message: Message, row: int) -> Message:
        """A row; one with a request or properties as its own type."""
        if message.flags & REQUEST_FLAG:
            return self._request_of(row, message)
        if message.flags & PROPERTIES_FLAG:
            with_properties: MessageWithProperties = tuple.__new__(MessageWithProperties, message)
            with_properties._properties = self._properties_of(row)
            return with_properties
        return message

    def _properties_of(self, row: int) -> MessageProperties:
        place = self._block.properties[row]
        return MessageProperties._of_block(ffi.buffer(self._block.payload + place.offset, place.bytes)[:])

    def _request_of(self, row: int, message: Message) -> Request:
        request: Request = tuple.__new__(Request, message)
        named = self._block.requests[row]
        request.request_index = named.index
        request.requester = (_dotted(named.ip), named.port)
        request._responder = self._memory.responder
        request._owner = self._sources.owners[self._block.sources[row]]
        if message.flags & PROPERTIES_FLAG:
            request._properties = self._properties_of(row)
        return request

    def __getitem__(self, index: int) -> Event:
        return self.events()[index]

    def to_arrow(self, *, properties: bool = False) -> pyarrow.RecordBatch:
        """Return the messages as an Arrow record batch over the same memory.

        Events are omitted: a batch with events is copied once.

        Args:
            properties: Add a column `properties`: a map of strings, booleans as true and false; null for a message
                without.

        Returns:
            Columns topic and source (dictionaries of strings), sequence_number (uint32), received_ns (timestamp in
            ns, UTC), payload (binary) and sent_ns (as received_ns, null if unknown). The memory lives as long as
            the record batch.

        Raises:
            Unsupported: pyarrow is not installed.

        Example:
            ```python
            print(rcv.poll(timeout=0.1).to_arrow().num_rows)
            ```
        """
        topics, names = self._sources.as_arrow()
        import pyarrow as pa

        count = self._count
        numbers = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(self.sources)])
        offsets = self.offsets
        payload = pa.Array.from_buffers(
            pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(self.payload)]
        )
        sequence = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(self.sequence_numbers)])
        received = pa.Array.from_buffers(
            pa.timestamp("ns", "UTC"), count, [None, pa.py_buffer(self.received_ns)]
        )
        columns = {
            "topic": topics.take(numbers),
            "sequence_number": sequence,
            "source": names.take(numbers),
            "received_ns": received,
            "payload": payload,
            "sent_ns": self._sent_as_arrow(pa),
        }
        if properties:
            columns["properties"] = self._properties_as_arrow(pa)
        batch = pa.RecordBatch.from_pydict(columns)
        if self._summarize().event_count:
            kinds = [not flags & _KIND_MASK for flags in self._column(self._block.flags)]
            batch = batch.filter(pa.array(kinds))
        return batch

    def _sent_as_arrow(self, pa: Any) -> Any:
        kind, count = pa.timestamp("ns", "UTC"), self._count
        known = self._summarize().sent_count if count else 0
        if known == 0:
            return pa.nulls(count, kind)
        buffers = [None, pa.py_buffer(self.sent_ns)]
        if known == count:
            return pa.Array.from_buffers(kind, count, buffers)
        unknown = pa.array([value == 0 for value in self._column(self._block.sent_ns)])
        return pa.compute.if_else(unknown, None, pa.Array.from_buffers(kind, count, buffers))

    def _properties_as_arrow(self, pa: Any) -> Any:
        rows = [
            [(name, _as_text(value)) for name, value in properties.items()] if properties else None
            for properties in self.properties()
        ]
        return pa.array(rows, pa.map_(pa.string(), pa.string()))


def _as_text(value: PropertyValue) -> str:
    """A property as text of UTF-8; what is none in it is replaced."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text.encode(errors="replace").decode()


@lru_cache(maxsize=1024)
def _dotted(ip: int) -> str:
    """An IPv4 address as text: a requester sends many requests."""
    return str(ipaddress.IPv4Address(ip))


_SESSION_EVENTS: dict[int, Callable[[str, str], Event]] = {
    lib.UM_ROW_BEGINNING_OF_SESSION: BeginningOfSession,
    lib.UM_ROW_END_OF_SESSION: EndOfSession,
    lib.UM_ROW_SOURCE_CREATED: SourceCreated,
    lib.UM_ROW_SOURCE_DELETED: SourceDeleted,
    lib.UM_ROW_NAK_CUTOFF: NakCutoff,
    lib.UM_ROW_STALE_TAGS: StaleTags,
    lib.UM_ROW_DRIVER_LOST: DriverLost,
}
"""The events that only name their source, by the kind of their row."""


def event_of(row: Message) -> Event:
    """A row as its typed object, for internal use."""
    kind = _kind_of(row.flags)
    if kind == lib.UM_ROW_MESSAGE:
        return row
    if kind in _SESSION_EVENTS:
        return _SESSION_EVENTS[kind](row.topic, row.source)
    if kind == lib.UM_ROW_NO_SOURCE:
        return NoSource(row.topic, row.source, row.sequence_number)
    if kind == lib.UM_ROW_INTERFACE_CHANGED:
        return InterfaceChanged(row.topic, "", row.source, *interface_change_of(row.sequence_number))
    number = row.sequence_number
    if row.flags & lib.UM_MESSAGE_HOT_FAILOVER:
        number = row.hot_failover_sequence_number
    if kind == lib.UM_ROW_HF_RESET:
        return HotFailoverReset(row.topic, row.source, number)
    if kind == lib.UM_ROW_UNRECOVERABLE_LOSS:
        return UnrecoverableLoss(row.topic, row.source, number)
    if kind == lib.UM_ROW_CUT_LOOSE:
        return CutLoose(row.topic, row.source, row.first_sequence_number, row.sequence_number)
    return BurstLoss(row.topic, row.source, row.first_sequence_number, row.sequence_number)
