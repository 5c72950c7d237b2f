"""StorePacing: keeps the messages of receiver-paced sources until their receivers have acknowledged them.

A source is blocked while a blocking receiver lags and its messages leave space for one flight only. Then the Store
reports to the source which receiver it waits for. The report goes out before the acknowledgement of the messages that
used up the space, over the same connection, so the source sends at most one more flight, for which there is space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from umstack.persistence.pacing import (
    FLIGHT_BYTES_NAME,
    FLIGHT_MESSAGES_NAME,
    PACING_NAME,
    REPLAY_NAME,
    RETAINED_BYTES_NAME,
    Pacing,
)
from umstack.store.repository import DiskFull, ReceiverState, Repository, SourceState
from umstack.store.wire import Registration, decode_number

_RECORD_BYTES = 40
"""Bytes that a record is longer than its message: header and padding."""
_FLIGHTS_MIN = 4
"""How many flights a source's part of the repository must hold."""
_NS_PER_MS = 1_000_000


class Blocking(NamedTuple):
    """The receiver that blocks a source."""

    session_id: int
    since_ns: int


@dataclass(slots=True)
class _Paced:
    """A receiver-paced source that has a connection."""

    retained_bytes: int
    """Maximum bytes to keep."""
    flight_bytes: int
    """Bytes of the records of one flight."""
    blocking: Blocking | None = None


def values_of(registration: Registration) -> dict[str, str]:
    """Return the configuration values of a registration, by name."""
    return {value.name: value.value for value in registration.configuration}


def _number(values: dict[str, str], name: str) -> int:
    return decode_number(name, values.get(name, "0"))


def pacing_of(registration: Registration) -> Pacing:
    """Return the kind of a receiver that registers; one that states none is blocking. Raises MalformedMessage."""
    if not registration.is_receiver_paced:
        return Pacing.NONE
    number = _number(values_of(registration), PACING_NAME)
    return Pacing.NON_BLOCKING if number == Pacing.NON_BLOCKING else Pacing.BLOCKING


class StorePacing:
    """The receiver-paced sources of a Store. One thread.

    Args:
        repository: The repository.
        clock_ns: The Store's clock.
        is_allowed: The Store permits receiver-paced sources.
    """

    def __init__(self, repository: Repository, clock_ns: Callable[[], int], is_allowed: bool) -> None:
        self._repository = repository
        self._clock_ns = clock_ns
        self._is_allowed = is_allowed
        self._paced: dict[int, _Paced] = {}

    # Consent

    def refusal_of_source(self, wanted: Registration, known: SourceState | None) -> str:
        """Return why a source may not register, and how it may; empty: it may. Raises MalformedMessage."""
        if known is not None and known.is_receiver_paced != wanted.is_receiver_paced:
            kind = "receiver-paced" if known.is_receiver_paced else "source-paced"
            return f"the source is registered as {kind}: keep {PACING_NAME}, or use another session id"
        if not wanted.is_receiver_paced:
            return ""
        if not self._is_allowed:
            return "start the Store with --allow-receiver-paced-persistence"
        paced, values = self._paced_of(wanted), values_of(wanted)
        if _number(values, RETAINED_BYTES_NAME) > self._repository.settings.source_bytes:
            return f"{RETAINED_BYTES_NAME} is at most {self._repository.settings.source_bytes} at this Store"
        if not _number(values, FLIGHT_BYTES_NAME) or _FLIGHTS_MIN * paced.flight_bytes > paced.retained_bytes:
            most = paced.retained_bytes // _FLIGHTS_MIN
            limits = f"{FLIGHT_BYTES_NAME} + {_RECORD_BYTES} x {FLIGHT_MESSAGES_NAME}"
            return f"limit the messages in flight: {limits} is at most {most} at this Store"
        return ""

    def refusal_of_receiver(
        self, wanted: Registration, source: SourceState, known: ReceiverState | None
    ) -> str:
        """Return why a receiver may not register, and how it may; empty: it may. Raises MalformedMessage."""
        pacing = pacing_of(wanted)
        if not source.is_receiver_paced:
            return f"the source is source-paced: set {PACING_NAME} to 0" if pacing else ""
        if not pacing:
            is_replay = values_of(wanted).get(REPLAY_NAME) == "1"
            return "" if is_replay else f"the source is receiver-paced: set {PACING_NAME} to 1 or 2"
        if known is not None and known.pacing not in (Pacing.NONE, pacing):
            return f"the receiver is registered with {PACING_NAME} {known.pacing:d}: keep it, or deregister first"
        return ""

    def _paced_of(self, wanted: Registration) -> _Paced:
        values = values_of(wanted)
        messages = _number(values, FLIGHT_MESSAGES_NAME)
        flight_bytes = _number(values, FLIGHT_BYTES_NAME) + _RECORD_BYTES * messages
        retained_bytes = _number(values, RETAINED_BYTES_NAME) or self._repository.settings.source_bytes
        return _Paced(retained_bytes, flight_bytes)

    # Sources

    def registered(self, number: int, wanted: Registration) -> None:
        """A source registered."""
        if wanted.is_receiver_paced:
            self._paced[number] = self._paced_of(wanted)

    def left(self, number: int) -> None:
        """A source has no connection any more."""
        self._paced.pop(number, None)

    def blocked_ms(self, number: int) -> tuple[int, int]:
        """Return the session id of the receiver that blocks a source, and for how long; 0: none does."""
        paced = self._paced.get(number)
        if paced is None or paced.blocking is None:
            return 0, 0
        return paced.blocking.session_id, (self._clock_ns() - paced.blocking.since_ns) // _NS_PER_MS

    def is_blocked(self, number: int) -> bool:
        """Return true if a receiver blocks a source."""
        paced = self._paced.get(number)
        return paced is not None and paced.blocking is not None

    def is_dropped(self, number: int, sqn: int) -> bool:
        """Return true if all receivers of a source have acknowledged a message, or it was dropped for space."""
        return number in self._paced and sqn < self._repository.low_sqn(number)

    def has_space(self, number: int, byte_count: int) -> bool:
        """Return true if a message is within the space of its source, which is limited while a receiver blocks it."""
        paced = self._paced.get(number)
        if paced is None or paced.blocking is None:
            return True
        used = self._repository.retained_bytes(number) + self._repository.staged_bytes
        return used + byte_count + _RECORD_BYTES <= paced.retained_bytes

    def is_full(self, numbers: Iterable[int]) -> bool:
        """Return true if one of these sources has space for one flight only, and is not blocked yet."""
        return any(
            paced.blocking is None
            and self._repository.retained_bytes(number) > paced.retained_bytes - paced.flight_bytes
            for number in numbers
            if (paced := self._paced.get(number)) is not None
        )

    def release(self) -> list[int]:
        """Drop what need not be kept: messages acknowledged by all, and for space those of non-blocking receivers.

        Returns:
            The sources that are blocked now, or not any more.
        """
        if not self._is_allowed:
            return []
        repository = self._repository
        lows, lagging = {}, set()
        for pace in repository.state.paces():
            number, newest = pace.source, repository.newest_sqn(pace.source)
            if newest is None:
                continue
            low = _after(pace.acknowledged_sqn, newest)
            blocking_low = _after(pace.blocking_sqn, newest)
            if (paced := self._paced.get(number)) is not None:
                within = repository.low_within(number, paced.retained_bytes - 2 * paced.flight_bytes)
                low = max(low, min(within, blocking_low))
            if blocking_low <= newest:
                lagging.add(number)
            if low > repository.low_sqn(number):
                lows[number] = low
        if lows:
            with contextlib.suppress(DiskFull):  # the next call drops them
                repository.release(lows)
        return [
            number for number, paced in self._paced.items() if self._note(number, paced, number in lagging)
        ]

    def _note(self, number: int, paced: _Paced, is_lagging: bool) -> bool:
        """Note if a source is blocked. Returns true if that changed."""
        flights = 1 if paced.blocking is None else 2
        free_bytes = paced.retained_bytes - self._repository.retained_bytes(number)
        if (is_lagging and free_bytes < flights * paced.flight_bytes) == (paced.blocking is not None):
            return False
        paced.blocking = None if paced.blocking is not None else self._slowest(number)
        return True

    def _slowest(self, number: int) -> Blocking:
        receivers = [one for one in self._repository.state.receivers(number) if one.pacing is Pacing.BLOCKING]
        slowest = min(receivers, key=lambda one: one.next_sqn or 0)
        return Blocking(slowest.session_id, self._clock_ns())


def _after(acknowledged_sqn: int | None, newest: int) -> int:
    """Return the first message that some receivers have not acknowledged; None: there are no receivers."""
    return newest + 1 if acknowledged_sqn is None else min(acknowledged_sqn, newest) + 1


__all__ = ["StorePacing", "pacing_of", "values_of"]
