"""The phases of advertising and querying in virtual time (UX-14, UX-15)."""

from __future__ import annotations

import pytest

from umstack.config import Config
from umstack.resolution.schedule import SUSTAIN_TICK_NS, Phase, PhaseSettings, PhaseTimer

MS = 1_000_000
SECOND = 1000 * MS


def fire_times_ms(timer: PhaseTimer, until_ns: int) -> list[int]:
    """Fire the timer exactly at its deadlines; return the times in ms."""
    times = []
    while (deadline := timer.deadline_ns) is not None and deadline <= until_ns:
        times.append(deadline // MS)
        timer.fire(deadline)
    return times


def advertising(start_ns: int = 0, epoch_ns: int = 0, **options: float) -> PhaseTimer:
    settings = PhaseSettings.for_advertisements(Config().source_options(**options))
    return PhaseTimer(settings, start_ns, epoch_ns)


def querying(start_ns: int = 0, **options: float) -> PhaseTimer:
    return PhaseTimer(PhaseSettings.for_queries(Config().receiver_options(**options)), start_ns, 0)


def test_advertisements_at_defaults() -> None:
    """UX-14: advertisements are sent at 0, then after gaps of 10, 20, ... 320, 500 ms; every 500 ms until 5
    s; every 1 s for 60 s; then none.
    """
    initial = [0, 10, 30, 70, 150, 310, 630, 1130, *range(1630, 5000, 500)]
    sustaining = list(range(6000, 65001, 1000))
    timer = advertising()
    assert fire_times_ms(timer, 10**12) == initial + sustaining
    assert len(sustaining) == 60
    assert timer.phase is Phase.QUIESCENT
    assert timer.deadline_ns is None


def test_queries_at_defaults() -> None:
    """UX-14: gaps double from 20 ms to 200 ms for 5 s, then are 1 s for 60 s."""
    initial = [0, 20, 60, 140, 300, *range(500, 5000, 200)]
    assert fire_times_ms(querying(), 10**12) == initial + list(range(6000, 65001, 1000))


def test_lateness_does_not_add_up() -> None:
    """UX-15: a sustaining interval of 1.25 s on 100 ms ticks gives 1300, 2500, 3800, 5000."""
    timer = advertising(
        resolver_advertisement_minimum_initial_interval=0, resolver_advertisement_sustain_interval=1250
    )
    assert fire_times_ms(timer, 5 * SECOND) == [0, 1300, 2500, 3800, 5000]


@pytest.mark.parametrize("start_ms", [1, 3, 9])
def test_between_ticks_the_first_is_sent_at_once_and_the_rest_on_ticks(start_ms: int) -> None:
    """UX-15: 10 ms ticks in the initial phase, 100 ms after it, and no drift over 60 s."""
    times = fire_times_ms(advertising(start_ns=start_ms * MS), 10**12)
    assert times[0] == start_ms
    assert times[1:8] == [10 * -(-(start_ms + due) // 10) for due in (10, 30, 70, 150, 310, 630, 1130)]
    assert all(time % 100 == 0 for time in times if time > 5100)
    assert times[-1] == 65100


def test_ticks_count_from_the_epoch() -> None:
    """All topics of a context share ticks, independently of the start of its clock."""
    timer = advertising(start_ns=7 * MS, epoch_ns=5 * MS)
    assert fire_times_ms(timer, 200 * MS) == [7, 25, 45, 85, 165]


def test_intervals_below_a_tick_give_one_record_per_tick() -> None:
    """UX-15: 10 ms is the minimum interval of initial advertisements."""
    timer = advertising(resolver_advertisement_minimum_initial_interval=1)
    assert fire_times_ms(timer, 40 * MS) == [0, 10, 20, 40]


def test_phases_can_be_omitted_or_endless() -> None:
    """Interval 0 omits a phase, and duration 0 makes it endless."""
    only_sustaining = advertising(resolver_advertisement_minimum_initial_interval=0)
    assert fire_times_ms(only_sustaining, 3 * SECOND) == [0, 1000, 2000, 3000]
    only_initial = advertising(resolver_advertisement_sustain_interval=0)
    assert fire_times_ms(only_initial, 10**12)[-1] == 4630
    endless = advertising(resolver_advertisement_minimum_sustain_duration=0)
    assert fire_times_ms(endless, 3600 * SECOND)[-1] == 3_600_000
    endless_initial = querying(resolver_query_minimum_initial_duration=0)
    assert fire_times_ms(endless_initial, 100 * SECOND)[-1] == 99_900
    silent = advertising(
        resolver_advertisement_minimum_initial_interval=0, resolver_advertisement_sustain_interval=0
    )
    assert fire_times_ms(silent, 10**12) == [0]


def test_without_initial_advertisement_the_first_waits_one_interval() -> None:
    """resolver_send_initial_advertisement 0."""
    timer = advertising(resolver_send_initial_advertisement=0)
    assert fire_times_ms(timer, 100 * MS) == [10, 30, 70]
    timer = advertising(
        resolver_send_initial_advertisement=0, resolver_advertisement_minimum_initial_interval=0
    )
    assert fire_times_ms(timer, 2 * SECOND) == [1000, 2000]


def test_a_query_without_initial_phase_starts_sustaining() -> None:
    assert fire_times_ms(querying(resolver_query_minimum_initial_interval=0), 2 * SECOND) == [1000, 2000]


def test_an_answer_restarts_the_sustaining_phase() -> None:
    """UX-14: in the sustaining and quiescent phases, but not in the initial phase."""
    timer = advertising()
    timer.answered(5 * MS)
    assert fire_times_ms(timer, 1130 * MS) == [0, 10, 30, 70, 150, 310, 630, 1130]
    fire_times_ms(timer, 30 * SECOND)
    timer.answered(30_500 * MS)
    assert fire_times_ms(timer, 10**12) == list(range(31500, 90501, 1000))
    assert timer.phase is Phase.QUIESCENT
    timer.answered(200 * SECOND)
    assert fire_times_ms(timer, 10**12)[0] == 201_000


def test_a_phase_is_prolonged_without_postponing_its_next_record() -> None:
    """As often as it is prolonged; in the quiescent phase the next record is due an interval later."""
    timer = advertising()
    fire_times_ms(timer, 30 * SECOND)
    for now_ms in range(30_100, 31_000, 100):
        timer.prolong(now_ms * MS)
    assert fire_times_ms(timer, 10**12) == list(range(31_000, 90_901, 1000))
    assert timer.phase is Phase.QUIESCENT
    timer.prolong(200 * SECOND)
    assert fire_times_ms(timer, 10**12)[0] == 201_000


def test_a_record_may_be_sent_a_quarter_of_its_interval_early() -> None:
    """UX-15: the next deadline and the rate do not change; the first record is never early."""
    timer = querying(resolver_query_minimum_initial_interval=200)
    assert not timer.may_go(-1)
    timer.fire(0)
    assert timer.deadline_ns == 200 * MS
    assert (timer.may_go(149 * MS), timer.may_go(150 * MS)) == (False, True)
    timer.fire(150 * MS)
    assert timer.deadline_ns == 400 * MS
    assert not timer.may_go(300 * MS)
    timer = advertising(resolver_advertisement_minimum_initial_interval=0)
    timer.fire(0)
    assert (timer.may_go(749 * MS), timer.may_go(750 * MS)) == (False, True)
    timer.stop()
    assert not timer.may_go(SECOND)


def test_intervals_missed_while_stopped_are_skipped() -> None:
    """A process stopped for 20 s sends one record, not twenty, and keeps its schedule."""
    timer = advertising()
    fire_times_ms(timer, 10 * SECOND)
    assert timer.deadline_ns == 11 * SECOND
    timer.fire(30_400 * MS)
    assert timer.deadline_ns == 31 * SECOND


def test_stopping_is_final_until_answered() -> None:
    """UX-16: queries stop when enough sources are known."""
    timer = querying()
    timer.stop()
    assert timer.deadline_ns is None
    assert SUSTAIN_TICK_NS == 100 * MS
