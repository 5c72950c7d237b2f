"""Flight: the messages of a source that are not stable, in memory of the C core (ffi/io/flight.h)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from umstack._core import ffi, lib
from umstack.errors import OptionError

if TYPE_CHECKING:
    from umstack.buffers import Buffer

FRAGMENT_HEADERS_BYTES = 40
"""Header of a fragment with properties: what it has in flight besides its payload."""
_RESULTS = 256
_OFFSET_BYTES = 4


class Packed:
    """Messages that lie in one buffer: message i is data[offsets[i]:offsets[i + 1]].

    Args:
        data: The buffer, kept as long as this object.
        offsets: Signed 32-bit integers in ascending order, one more than messages.
        message_max: Length of the longest message that counts.

    Raises:
        OptionError: The offsets do not ascend, or reach outside the data.
    """

    __slots__ = ("count", "data", "longer_bytes", "offsets")

    def __init__(self, data: Buffer, offsets: Buffer, message_max: int) -> None:
        self.data = ffi.from_buffer(data)
        """The data, for C."""
        if memoryview(cast("bytes", offsets)).nbytes % _OFFSET_BYTES:
            raise OptionError("the offsets are no 32-bit integers", hint='give array("i") or int32')
        self.offsets = ffi.from_buffer("int32_t[]", offsets)
        """The offsets, for C."""
        self.count = 0
        """Messages before the first one that is longer."""
        self.longer_bytes: int | None = None
        """Length of the message that is longer; None: there is none."""
        if (count := len(self.offsets) - 1) < 1:
            return
        self.count = lib.um_flight_check(self.offsets, count, len(self.data), message_max)
        if self.count < 0:
            raise OptionError(
                "the offsets reach outside the data", hint="they ascend up to the data's length"
            )
        if self.count < count:
            self.longer_bytes = self.offsets[self.count + 1] - self.offsets[self.count]


class Left(NamedTuple):
    """Messages that left the flight."""

    first_sqn: int
    last_sqn: int
    is_stable: bool
    """False: they were given up."""


class Due(NamedTuple):
    """A message to repeat, or to give up."""

    sqn: int
    message: bytes
    """As it is repeated, but with topic index 0."""
    stores: int
    """Bits of the Stores that have it, or gave it up."""
    has_expired: bool
    """True: its lifetime has ended."""


class Flight:
    """The messages of one source in flight. Any thread; one at a time notes and repeats.

    Args:
        store_count: Stores of the source, at most 64.
        quorum: Stores that must have a message before it is stable.
    """

    __slots__ = ("_due", "_results", "_sqn", "handle")

    def __init__(self, store_count: int, quorum: int) -> None:
        self.handle = ffi.gc(lib.um_flight_create(store_count, quorum), lib.um_flight_free)
        """The flight, for C."""
        if self.handle == ffi.NULL:
            raise MemoryError("the messages in flight of a source")
        self._results = ffi.new("um_flight_result[]", _RESULTS)
        self._due = ffi.new("um_flight_due *")
        self._sqn = ffi.new("uint64_t *")

    def __len__(self) -> int:
        count: int = lib.um_flight_count(self.handle)
        return count

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers in order."""
        sqn = 0
        while lib.um_flight_next(self.handle, sqn, self._sqn):
            found: int = self._sqn[0]
            yield found
            sqn = found + 1

    @property
    def byte_count(self) -> int:
        """Bytes of the messages, with their headers."""
        count: int = lib.um_flight_bytes(self.handle)
        return count

    @property
    def oldest_sqn(self) -> int:
        """Number of the oldest message; of the next one if there is none."""
        sqn: int = lib.um_flight_oldest_sqn(self.handle)
        return sqn

    @property
    def next_sqn(self) -> int:
        """Number of the next message."""
        sqn: int = lib.um_flight_next_sqn(self.handle)
        return sqn

    def begin(self, first_sqn: int) -> None:
        """The first message to send has this number."""
        lib.um_flight_begin(self.handle, first_sqn)

    def end(self) -> None:
        """From now on no message gets a number."""
        lib.um_flight_end(self.handle)

    def split(self, fragment_bytes: int) -> None:
        """Longer messages have a number for each fragment of this length."""
        lib.um_flight_split(self.handle, fragment_bytes)

    def limit(self, messages_max: int, bytes_max: int) -> None:
        """From now on at most so many numbers and bytes may be in flight."""
        lib.um_flight_limit(self.handle, messages_max, bytes_max)

    def confirm(self, end_sqn: int) -> None:
        """From now on only messages before this number, which enough receivers have confirmed, leave as stable."""
        lib.um_flight_confirm_delivery(self.handle, end_sqn)

    def has_space(self, payload_bytes: int, properties_bytes: int = 0) -> bool:
        """Return true if a message of this length, with properties as its last bytes, is within the limits."""
        return bool(lib.um_flight_has_space(self.handle, payload_bytes, properties_bytes))

    def note(
        self, first_sqn: int, last_sqn: int, stores: int, is_lost: bool, required: int
    ) -> Iterator[Left]:
        """A Store, given as a bit, has messages or has given them up. Yields those that leave, in order."""
        at = ffi.new("uint64_t *", first_sqn)
        while at[0] <= last_sqn:
            count = lib.um_flight_note(
                self.handle, at, last_sqn, stores, is_lost, required, self._results, _RESULTS
            )
            for one in ffi.unpack(self._results, count):
                yield Left(one.first_sqn, one.last_sqn, one.is_stable)

    def due(self, from_sqn: int, expired_ns: int, due_ns: int, stores: int) -> Due | None:
        """Return the first message from a number on that is to be given up or repeated; None: there is none.

        It was sent by `expired_ns`; or it was repeated last by `due_ns`, and is missing at one of the Stores, given as
        bits.
        """
        if not lib.um_flight_next_due(self.handle, from_sqn, expired_ns, due_ns, stores, self._due):
            return None
        due = self._due
        return Due(due.sqn, ffi.buffer(due.message, due.message_bytes)[:], due.stores, due.has_expired)

    def repeated(self, sqn: int, now_ns: int) -> None:
        """A message was repeated."""
        lib.um_flight_repeated(self.handle, sqn, now_ns)

    def remove(self, sqn: int) -> None:
        """A message is given up."""
        lib.um_flight_remove(self.handle, sqn)


__all__ = ["FRAGMENT_HEADERS_BYTES", "Due", "Flight", "Left", "Packed"]
