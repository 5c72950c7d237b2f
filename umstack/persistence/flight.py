"""Flight: the messages of a source that are not stable, in memory of the C core (ffi/store/flight.h)."""

from __future__ import annotations

import errno
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from umstack._core import ffi, lib
from umstack.errors import OptionError

if TYPE_CHECKING:
    from umstack.buffers import Buffer

_RESULTS = 256
_ALL = (1 << 64) - 1
_LENGTH_MAX = (1 << 31) - 1


class Packed:
    """Messages that lie in one buffer: message i is data[offsets[i]:offsets[i + 1]].

    Args:
        data: The buffer, kept as long as this object.
        offsets: Signed 32-bit integers in ascending order, one more than messages.
        message_max: Length of the longest message that counts.

    Raises:
        OptionError: The offsets do not ascend, or reach outside the data.
    """

    __slots__ = ("_begins", "_data", "_first", "count", "longer_bytes")

    def __init__(self, data: Buffer, offsets: Buffer, message_max: int) -> None:
        self._data = ffi.from_buffer(data)
        self._begins = ffi.from_buffer("int32_t[]", offsets)
        self._first = 0
        count = max(0, len(self._begins) - 1)
        self.count = 0
        """Messages that are left, before one that is longer."""
        self.longer_bytes: int | None = None
        """Length of the message that is longer; None: there is none."""
        if not count:
            return
        self.count = lib.um_flight_check(self._begins, count, len(self._data), message_max)
        if self.count < 0:
            raise OptionError(
                "the offsets reach outside the data", hint="they ascend up to the data's length"
            )
        if self.count < count:
            self.longer_bytes = self._begins[self.count + 1] - self._begins[self.count]

    @classmethod
    def of(cls, *messages: bytes) -> Self:
        """Return messages of any length as one buffer."""
        offsets = array("i", accumulate(map(len, messages), initial=0))
        return cls(messages[0] if len(messages) == 1 else b"".join(messages), offsets, _LENGTH_MAX)

    def columns(self, count: int) -> tuple[Any, Any]:
        """Return the data, and the offsets of so many of the messages that are left, as buffers."""
        begins = ffi.buffer(self._begins + self._first, 4 * (count + 1))
        return ffi.buffer(self._data), memoryview(begins).cast("i")

    def advance(self, count: int) -> None:
        """Leave out the first messages that are left."""
        self._first += count
        self.count -= count


class Left(NamedTuple):
    """Messages that left the flight."""

    first_sqn: int
    last_sqn: int
    is_stable: bool
    """False: they were given up."""


class Due(NamedTuple):
    """A message to repeat, or to give up."""

    sqn: int
    payload: bytes
    stores: int
    """Bits of the Stores that have it, or gave it up."""
    has_expired: bool
    """True: its lifetime has ended."""


class Flight:
    """The messages of one source in flight. One thread at a time.

    Args:
        store_count: Stores of the source, at most 64.
        quorum: Stores that must have a message before it is stable.
        overhead_bytes: What each message counts more than its payload.
    """

    __slots__ = ("_due", "_flight", "_overhead_bytes", "_results", "_sqn")

    def __init__(self, store_count: int, quorum: int, overhead_bytes: int) -> None:
        self._flight = ffi.gc(lib.um_flight_create(store_count, quorum), lib.um_flight_free)
        if self._flight == ffi.NULL:
            raise MemoryError("the messages in flight of a source")
        self._overhead_bytes = overhead_bytes
        self._results = ffi.new("um_flight_result[]", _RESULTS)
        self._due = ffi.new("um_flight_due *")
        self._sqn = ffi.new("uint64_t *")

    def __len__(self) -> int:
        count: int = lib.um_flight_count(self._flight)
        return count

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers in order."""
        sqn = 0
        while lib.um_flight_next(self._flight, sqn, self._sqn):
            found: int = self._sqn[0]
            yield found
            sqn = found + 1

    @property
    def byte_count(self) -> int:
        """Bytes of the messages, with their overhead."""
        count: int = lib.um_flight_bytes(self._flight)
        return count

    def reserve(
        self, first_sqn: int, packed: Packed, now_ns: int, messages_max: int = _ALL, bytes_max: int = _ALL
    ) -> int:
        """Add messages that are being sent, as many as the limits allow. Returns how many."""
        taken: int = lib.um_flight_reserve(
            self._flight,
            first_sqn,
            packed._data,
            packed._begins + packed._first,
            packed.count,
            self._overhead_bytes,
            messages_max,
            bytes_max,
            now_ns,
        )
        if taken == -errno.ENOMEM:
            raise MemoryError("the messages in flight of a source")
        return taken

    def confirm(self, first_sqn: int, last_sqn: int, now_ns: int) -> None:
        """These messages were sent."""
        lib.um_flight_confirm(self._flight, first_sqn, last_sqn, now_ns)

    def withdraw(self, first_sqn: int, end_sqn: int) -> int:
        """The messages up to the newest one were not sent. Returns from which number on they are free again."""
        begin: int = lib.um_flight_withdraw(self._flight, first_sqn, end_sqn)
        return begin

    def note(self, first_sqn: int, last_sqn: int, stores: int, is_lost: bool, required: int) -> Iterator[Left]:
        """A Store, given as a bit, has messages or has given them up. Yields those that leave, in order."""
        at = ffi.new("uint64_t *", first_sqn)
        while at[0] <= last_sqn:
            count = lib.um_flight_note(
                self._flight, at, last_sqn, stores, is_lost, required, self._results, _RESULTS
            )
            for one in ffi.unpack(self._results, count):
                yield Left(one.first_sqn, one.last_sqn, one.is_stable)

    def due(self, from_sqn: int, expired_ns: int, due_ns: int) -> Due | None:
        """Return the first message from a number on that was sent by `expired_ns`, or repeated last by `due_ns`."""
        if not lib.um_flight_next_due(self._flight, from_sqn, expired_ns, due_ns, self._due):
            return None
        due = self._due
        return Due(due.sqn, ffi.buffer(due.payload, due.payload_bytes)[:], due.stores, due.has_expired)

    def repeated(self, sqn: int, now_ns: int) -> None:
        """A message was repeated."""
        lib.um_flight_repeated(self._flight, sqn, now_ns)

    def remove(self, sqn: int) -> None:
        """A message is given up."""
        lib.um_flight_remove(self._flight, sqn)


__all__ = ["Due", "Flight", "Left", "Packed"]
