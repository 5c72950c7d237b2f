"""The rate limiter of topic resolution (UX-5)."""

from __future__ import annotations

from umstack.resolution.limiter import SLICE_NS, ResolutionLimiter

SECOND = 1_000_000_000


def admitted(limiter: ResolutionLimiter, record_bytes: int, now_ns: int, offered: int) -> int:
    return sum(limiter.admit(record_bytes, now_ns) for _ in range(offered))


def test_records_per_second() -> None:
    """UX-5: 1000 per second are 100 in each slice of 100 ms; the rest waits for the next slice."""
    limiter = ResolutionLimiter(1000, 0)
    assert admitted(limiter, 50, 0, 500) == 100
    assert limiter.slice_end_ns == SLICE_NS
    assert admitted(limiter, 50, SLICE_NS - 1, 500) == 0
    assert admitted(limiter, 50, SLICE_NS, 500) == 100


def test_bits_per_second_may_be_exceeded_by_one_record() -> None:
    """UX-5: 1 Mbit/s is 12 500 bytes per slice; the record that crosses the limit is still sent."""
    limiter = ResolutionLimiter(0, 1_000_000)
    assert admitted(limiter, 1000, 0, 100) == 13


def test_something_passes_in_every_slice() -> None:
    """UX-5: at least one record per interval passes, even if the limit is very small."""
    limiter = ResolutionLimiter(1, 8)
    assert [admitted(limiter, 100, slice_ * SLICE_NS, 5) for slice_ in range(4)] == [1, 1, 1, 1]


def test_no_limit() -> None:
    assert admitted(ResolutionLimiter(0, 0), 1000, 0, 5000) == 5000


def test_the_rate_holds_over_time() -> None:
    """With a constant offer at odd times, 10 s at 100 records/s pass 1000, plus or minus one slice."""
    limiter = ResolutionLimiter(100, 0)
    passed = sum(limiter.admit(10, now) for now in range(0, 10 * SECOND, 1_700_003))
    assert 990 <= passed <= 1010


def test_slices_do_not_drift_at_coarse_steps() -> None:
    """Polled every 70 ms, each slice of 100 ms passes its record: a late poll does not delay later slices."""
    limiter = ResolutionLimiter(10, 0)
    passed = sum(limiter.admit(10, now) for now in range(0, 10 * SECOND, 70_000_000))
    assert 99 <= passed <= 101


def test_idle_time_is_not_saved_up() -> None:
    limiter = ResolutionLimiter(100, 0)
    admitted(limiter, 10, 0, 1)
    assert admitted(limiter, 10, 60 * SECOND, 100) == 10
