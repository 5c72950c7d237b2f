"""When a topic is advertised or queried: the initial, sustaining and quiescent phases (UX-14, UX-15)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from umstack.config import ReceiverOptions, SourceOptions, WildcardReceiverOptions

_NS_PER_MS = 1_000_000
ADVERTISEMENT_INITIAL_TICK_NS = 10 * _NS_PER_MS
QUERY_INITIAL_TICK_NS = 20 * _NS_PER_MS
WILDCARD_QUERY_TICK_NS = 30 * _NS_PER_MS
SUSTAIN_TICK_NS = 100 * _NS_PER_MS
EARLY_MAX_NS = 250 * _NS_PER_MS
"""Maximum time by which a record may be sent early."""


class Phase(StrEnum):
    """The phases of a schedule."""

    INITIAL = "initial"
    SUSTAINING = "sustaining"
    QUIESCENT = "quiescent"


@dataclass(frozen=True, slots=True)
class PhaseSettings:
    """Lengths and intervals of the phases. A duration of 0 is unlimited; an interval of 0 skips the phase."""

    send_at_start: bool
    initial_minimum_interval_ns: int
    initial_maximum_interval_ns: int
    initial_duration_ns: int
    initial_tick_ns: int
    sustain_interval_ns: int
    sustain_duration_ns: int

    @classmethod
    def for_advertisements(cls, options: SourceOptions) -> PhaseSettings:
        return cls(
            send_at_start=options.resolver_send_initial_advertisement,
            initial_minimum_interval_ns=options.resolver_advertisement_minimum_initial_interval_ns,
            initial_maximum_interval_ns=options.resolver_advertisement_maximum_initial_interval_ns,
            initial_duration_ns=options.resolver_advertisement_minimum_initial_duration_ns,
            initial_tick_ns=ADVERTISEMENT_INITIAL_TICK_NS,
            sustain_interval_ns=options.resolver_advertisement_sustain_interval_ns,
            sustain_duration_ns=options.resolver_advertisement_minimum_sustain_duration_ns,
        )

    @classmethod
    def for_queries(cls, options: ReceiverOptions, *, is_resolved: bool = False) -> PhaseSettings:
        """`is_resolved` skips the initial phase, because a source is known."""
        initial = options.resolver_query_minimum_initial_interval_ns
        return cls(
            send_at_start=initial != 0,
            initial_minimum_interval_ns=0 if is_resolved else initial,
            initial_maximum_interval_ns=options.resolver_query_maximum_initial_interval_ns,
            initial_duration_ns=options.resolver_query_minimum_initial_duration_ns,
            initial_tick_ns=QUERY_INITIAL_TICK_NS,
            sustain_interval_ns=options.resolver_query_sustain_interval_ns,
            sustain_duration_ns=options.resolver_query_minimum_sustain_duration_ns,
        )

    @classmethod
    def for_wildcard_queries(cls, options: WildcardReceiverOptions) -> PhaseSettings:
        """Wildcard queries have only an initial and a quiescent phase."""
        interval = options.resolver_query_minimum_interval_ns
        return cls(
            send_at_start=interval != 0,
            initial_minimum_interval_ns=interval,
            initial_maximum_interval_ns=options.resolver_query_maximum_interval_ns,
            initial_duration_ns=options.resolver_query_minimum_duration_ns,
            initial_tick_ns=WILDCARD_QUERY_TICK_NS,
            sustain_interval_ns=0,
            sustain_duration_ns=0,
        )


class PhaseTimer:
    """The times at which one topic's record is due.

    Each due time is computed from the previous one; a record is sent at the first tick at or after its due time, so
    lateness never adds up (UX-15). Ticks count from `epoch_ns`, which is the same for all topics of a context, so that
    records of many topics share datagrams. The first record does not wait for a tick, unless the topic is one of many
    created together (`waits_for_tick`), each of which would otherwise need a separate datagram.

    A record may be sent with others a little before it is due, at most a quarter of its interval, so that topics
    created within a second of each other, whose ticks differ, share datagrams. The next due time does not change.
    """

    __slots__ = (
        "_due_ns",
        "_epoch_ns",
        "_gap_ns",
        "_immediate",
        "_interval_ns",
        "_phase_end_ns",
        "_settings",
        "deadline_ns",
        "phase",
    )

    def __init__(
        self, settings: PhaseSettings, start_ns: int, epoch_ns: int, *, waits_for_tick: bool = False
    ) -> None:
        self._settings = settings
        self._epoch_ns = epoch_ns
        self._immediate = settings.send_at_start and not waits_for_tick
        self._interval_ns = settings.initial_minimum_interval_ns
        self._gap_ns = 0
        self.phase = Phase.INITIAL
        self._due_ns = start_ns
        self._phase_end_ns = _end(start_ns, settings.initial_duration_ns)
        if settings.initial_minimum_interval_ns == 0:
            self._enter_sustaining(start_ns)
        if settings.send_at_start:
            self._due_ns = start_ns
        elif self.phase is Phase.INITIAL:
            self._step()
        self.deadline_ns = self._next_tick_ns()
        """The tick at which the next record is sent; None in the quiescent phase."""

    def _next_tick_ns(self) -> int | None:
        if self._immediate:
            return self._due_ns
        if self.phase is Phase.QUIESCENT:
            return None
        tick = self._settings.initial_tick_ns if self.phase is Phase.INITIAL else SUSTAIN_TICK_NS
        return self._epoch_ns - (self._epoch_ns - self._due_ns) // tick * tick

    def may_go(self, now_ns: int) -> bool:
        """Return true if the record of `deadline_ns` may be sent now along with others."""
        early_ns = min(self._gap_ns // 4, EARLY_MAX_NS)
        return self.deadline_ns is not None and self.deadline_ns - early_ns <= now_ns

    def fire(self, now_ns: int) -> None:
        """Account for the record of `deadline_ns` and set the next due time; skip records missed in a long sleep."""
        self._immediate = False
        self._step()
        while (deadline_ns := self._next_tick_ns()) is not None and deadline_ns <= now_ns:
            self._step()
        self.deadline_ns = deadline_ns

    def answered(self, now_ns: int) -> None:
        """Restart the sustaining phase after a record that is sent now, unless the initial phase still runs (UX-14)."""
        if self.phase is not Phase.INITIAL:
            self._immediate = False
            self._enter_sustaining(now_ns)
            self.deadline_ns = self._next_tick_ns()

    def prolong(self, now_ns: int) -> None:
        """Restart the sustaining phase without a record, unless the initial phase still runs. A record that is due
        earlier is still sent then, however often this is called."""
        due_ns = self._due_ns if self.phase is Phase.SUSTAINING else None
        self.answered(now_ns)
        if due_ns is not None and due_ns < self._due_ns:
            self._due_ns = due_ns
            self.deadline_ns = self._next_tick_ns()

    def resolved(self, now_ns: int) -> None:
        """Enter the sustaining phase, because a source was found. A record that is already due is still sent."""
        if self.phase is Phase.INITIAL:
            due_ns = self._due_ns
            self._enter_sustaining(now_ns)
            if self._immediate:
                self._due_ns = due_ns
            self.deadline_ns = self._next_tick_ns()

    def stop(self) -> None:
        """Stop the schedule, so that no record becomes due."""
        self._immediate = False
        self.phase = Phase.QUIESCENT
        self.deadline_ns = None

    def _enter_sustaining(self, start_ns: int) -> None:
        interval_ns = self._gap_ns = self._settings.sustain_interval_ns
        self.phase = Phase.SUSTAINING if interval_ns else Phase.QUIESCENT
        self._due_ns = start_ns + interval_ns
        self._phase_end_ns = _end(start_ns, self._settings.sustain_duration_ns)
        self._leave_ended_phase()

    def _step(self) -> None:
        if self.phase is Phase.INITIAL:
            self._due_ns += self._interval_ns
            self._gap_ns = self._interval_ns
            self._interval_ns = min(2 * self._interval_ns, self._settings.initial_maximum_interval_ns)
        elif self.phase is Phase.SUSTAINING:
            self._due_ns += self._settings.sustain_interval_ns
        self._leave_ended_phase()

    def _leave_ended_phase(self) -> None:
        if self._phase_end_ns is None or self._due_ns <= self._phase_end_ns:
            return
        if self.phase is Phase.INITIAL:
            self._enter_sustaining(self._phase_end_ns)
        elif self.phase is Phase.SUSTAINING:
            self.phase = Phase.QUIESCENT


def _end(start_ns: int, duration_ns: int) -> int | None:
    return start_ns + duration_ns if duration_ns else None
