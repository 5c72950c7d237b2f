"""Percentiles of recovery times and latencies from the core's buckets."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from umstack._core import lib
from umstack.telemetry.time_histogram import LatencyHistogram, RecoveryHistogram

bucket_start_ns = RecoveryHistogram.bucket_start_ns


def bucket_of(time_ns: int) -> int:
    """Return the bucket of a time, by the layout alone."""
    later = [bucket for bucket in range(1, lib.UM_RECOVERY_BUCKETS) if bucket_start_ns(bucket) > time_ns]
    return later[0] - 1 if later else int(lib.UM_RECOVERY_BUCKETS) - 1


def histogram(times_ns: list[int]) -> RecoveryHistogram:
    """Return the histogram of these times."""
    counts = [0] * int(lib.UM_RECOVERY_BUCKETS)
    for time_ns in times_ns:
        counts[bucket_of(time_ns)] += 1
    return RecoveryHistogram(tuple(counts))


def test_buckets_are_quarters_of_octaves() -> None:
    """Each bucket starts at the end of the previous one; the first starts at 66 us, and the last ends below
    4.3 s.
    """
    starts = [bucket_start_ns(bucket) for bucket in range(lib.UM_RECOVERY_BUCKETS)]
    assert starts[0] == 2**16
    assert starts[-1] < 2**32 == bucket_start_ns(lib.UM_RECOVERY_BUCKETS)
    assert all(1.1 < later / earlier < 1.3 for earlier, later in pairwise(starts))


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_exact_to_a_bucket(seed: int) -> None:
    """The error is at most the width of a bucket, a quarter of the value."""
    luck = random.Random(seed)
    times = sorted(int(luck.lognormvariate(16, 1)) for _ in range(5000))
    times = [min(max(time, 2**16), 2**32 - 1) for time in times]
    for percent in (1, 25, 50, 90, 99, 99.9):
        exact_ms = times[min(int(len(times) * percent / 100), len(times) - 1)] / 1e6
        estimate_ms = histogram(times).percentile_ms(percent)
        assert estimate_ms == pytest.approx(exact_ms, rel=0.26)


def test_a_percentile_is_the_value_not_exceeded() -> None:
    """The median of two samples is the shorter one."""
    short, long = 2**17, 2**30
    half_ms = histogram([short, long]).percentile_ms(50)
    assert half_ms == pytest.approx(short / 1e6, rel=0.26)
    assert histogram([short, long]).percentile_ms(51) == pytest.approx(long / 1e6, rel=0.26)


def test_an_empty_histogram_has_no_percentile() -> None:
    """Without a sample there is no figure."""
    assert RecoveryHistogram.empty().percentile_ms(50) is None
    assert RecoveryHistogram.empty().summary() == {
        "recovered": 0,
        "recovery_p50_ms": None,
        "recovery_p99_ms": None,
        "recovery_counts": [0] * int(lib.UM_RECOVERY_BUCKETS),
    }


def test_sessions_add_up() -> None:
    """The histogram of several sessions contains all their samples."""
    one, other = histogram([100_000] * 3), histogram([50_000_000] * 5)
    both = one.merged(other)
    assert both.count == 8
    assert both == histogram([100_000] * 3 + [50_000_000] * 5)


def test_latencies_have_a_longer_scale() -> None:
    """Latencies start at 1 us, recovery times at 66 us; both scales end at the same value."""
    empty = LatencyHistogram.empty()
    assert LatencyHistogram.bucket_start_ns(0) == 2**10
    assert LatencyHistogram.bucket_start_ns(LatencyHistogram.BUCKETS) == 2**32
    assert empty.summary()["latency_messages"] == 0
    assert empty.summary()["latency_p50_ms"] is None
    counts = [0] * LatencyHistogram.BUCKETS
    counts[4] = 1
    assert LatencyHistogram(tuple(counts)).percentile_ms(100) == pytest.approx(2.56e-3)
