"""The rate limiter of topic resolution (UX-5) and the resolver cache (UX-16)."""

from __future__ import annotations

from umstack.resolution.cache import KnownSource, ResolverCache
from umstack.resolution.codec import LbtrmAddress
from umstack.resolution.limiter import SLICE_NS, ResolutionLimiter

SECOND = 1_000_000_000


def admitted(limiter: ResolutionLimiter, record_bytes: int, now_ns: int, offered: int) -> int:
    return sum(limiter.admit(record_bytes, now_ns) for _ in range(offered))


def test_records_per_second() -> None:
    """UX-5: 1000 a second is 100 in each slice of 100 ms, and the rest waits for the next slice."""
    limiter = ResolutionLimiter(1000, 0)
    assert admitted(limiter, 50, 0, 500) == 100
    assert limiter.slice_end_ns == SLICE_NS
    assert admitted(limiter, 50, SLICE_NS - 1, 500) == 0
    assert admitted(limiter, 50, SLICE_NS, 500) == 100


def test_bits_per_second_may_be_exceeded_by_one_record() -> None:
    """UX-5: 1 Mbit/s is 12 500 bytes a slice; the record that crosses the line still goes."""
    limiter = ResolutionLimiter(0, 1_000_000)
    assert admitted(limiter, 1000, 0, 100) == 13


def test_something_passes_in_every_slice() -> None:
    """UX-5: at least one record an interval, however small the limit."""
    limiter = ResolutionLimiter(1, 8)
    assert [admitted(limiter, 100, slice_ * SLICE_NS, 5) for slice_ in range(4)] == [1, 1, 1, 1]


def test_no_limit() -> None:
    assert admitted(ResolutionLimiter(0, 0), 1000, 0, 5000) == 5000


def test_the_rate_holds_over_time() -> None:
    """Offered without pause at odd times, 10 s of 100 records/s let 1000 pass, one slice more or less."""
    limiter = ResolutionLimiter(100, 0)
    passed = sum(limiter.admit(10, now) for now in range(0, 10 * SECOND, 1_700_003))
    assert 990 <= passed <= 1010


def test_slices_do_not_drift_at_coarse_steps() -> None:
    """Looked at every 70 ms, each slice of 100 ms lets its record pass: a late look moves none of the next."""
    limiter = ResolutionLimiter(10, 0)
    passed = sum(limiter.admit(10, now) for now in range(0, 10 * SECOND, 70_000_000))
    assert 99 <= passed <= 101


def test_silence_does_not_save_up() -> None:
    limiter = ResolutionLimiter(100, 0)
    admitted(limiter, 10, 0, 1)
    assert admitted(limiter, 10, 60 * SECOND, 100) == 10


def source(number: int, topic: str = "orders") -> KnownSource:
    return KnownSource(topic, number, LbtrmAddress("10.0.0.1", "224.10.10.10", 7 + number % 2, 14400, 14390))


def test_the_cache_forgets_what_was_heard_of_longest_ago() -> None:
    """UX-16: bounded; an advertisement of a source keeps it."""
    cache = ResolverCache(3)
    for number in (1, 2, 3):
        cache.add(source(number))
    cache.add(source(1))
    cache.add(source(4, "trades"))
    assert cache.sources_of("orders") == [source(1), source(3)]
    assert cache.sources_of("trades") == [source(4, "trades")]
    assert (len(cache), cache.eviction_count) == (3, 1)


def test_the_cache_forgets_sessions_and_sources() -> None:
    cache = ResolverCache(10)
    for number in range(4):
        cache.add(source(number))
    cache.discard_sessions({source(0).address})
    assert cache.sources_of("orders") == [source(1), source(3)]
    cache.discard(source(1))
    cache.discard(source(1))
    cache.discard(source(3))
    assert cache.sources_of("orders") == []
    assert len(cache) == 0
