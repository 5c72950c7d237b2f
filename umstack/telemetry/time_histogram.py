"""Histograms of recovery times and one-way latencies, from the core's buckets, and of the commit times of a Store.

Four buckets per octave make a percentile accurate to about a tenth of its value. The layout is that of
ffi/core/foundation/time_histogram.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from umstack._core import ffi, lib

_NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class TimeHistogram:
    """Counts of times by bucket. The first and the last bucket include all shorter or longer times."""

    counts: tuple[int, ...]

    OCTAVE_FIRST: ClassVar[int]
    BUCKETS: ClassVar[int]
    COUNTED: ClassVar[str]
    """Key of the counted time in a report."""
    NAME: ClassVar[str]
    """Prefix of the percentiles and the buckets in a report."""
    READ: ClassVar[Any]
    """Name of the core's function that reads the buckets of a session."""

    @classmethod
    def bucket_start_ns(cls, bucket: int) -> int:
        """Return the shortest time a bucket holds.

        Args:
            bucket: Index of the bucket, from 0.

        Returns:
            The time in nanoseconds.

        Example:
            ```python
            print(ctx.latencies().bucket_start_ns(0))
            ```
        """
        return (4 + bucket % 4) << (cls.OCTAVE_FIRST - 2 + bucket // 4)

    @classmethod
    def bucket_of(cls, time_ns: int) -> int:
        """Return the bucket of a time.

        Args:
            time_ns: The time in nanoseconds.

        Returns:
            The index of the bucket.

        Example:
            ```python
            print(type(ctx.latencies()).bucket_of(1_000_000))
            ```
        """
        octave = time_ns.bit_length() - 1
        if octave < cls.OCTAVE_FIRST:
            return 0
        bucket = 4 * (octave - cls.OCTAVE_FIRST) + (time_ns >> (octave - 2)) - 4
        return min(bucket, cls.BUCKETS - 1)

    @classmethod
    def empty(cls) -> Self:
        """Return a histogram with nothing counted.

        Returns:
            The histogram.

        Example:
            ```python
            print(type(ctx.latencies()).empty().count)
            ```
        """
        return cls((0,) * cls.BUCKETS)

    @classmethod
    def read(cls, context: Any, session: int) -> Self:
        """Read the counts of one receiving session.

        Args:
            context: Handle of a context in the core.
            session: Index of the receiving session.

        Returns:
            The histogram; empty if the session does not exist.

        Example:
            ```python
            print(ctx.latencies().count)
            ```
        """
        out = ffi.new("uint64_t[]", cls.BUCKETS)
        cls.READ(context, session, out)
        return cls(tuple(out))

    @property
    def count(self) -> int:
        """The number of times counted."""
        return sum(self.counts)

    def merged(self, other: Self) -> Self:
        """Add the counts of another histogram.

        Args:
            other: A histogram of the same kind.

        Returns:
            The sum.

        Example:
            ```python
            print(ctx.latencies().merged(ctx.latencies()).count)
            ```
        """
        return type(self)(tuple(map(sum, zip(self.counts, other.counts, strict=True))))

    def percentile_ms(self, percent: float) -> float | None:
        """Return the time that a percentage of the counted times did not exceed.

        Args:
            percent: 0 to 100.

        Returns:
            The time in milliseconds; None if nothing was counted.

        Example:
            ```python
            print(ctx.latencies().percentile_ms(99))
            ```
        """
        wanted = self.count * percent / 100
        below = 0
        for bucket, count in enumerate(self.counts):
            if count and below + count >= wanted:
                start_ns, end_ns = self.bucket_start_ns(bucket), self.bucket_start_ns(bucket + 1)
                inside = (wanted - below) / count
                return (start_ns + (end_ns - start_ns) * inside) / _NS_PER_MS
            below += count
        return None

    def summary(self) -> dict[str, float | int | list[int] | None]:
        """Return the count, the percentiles and the buckets by name.

        Returns:
            A dictionary for reports; percentiles in milliseconds.

        Example:
            ```python
            print(ctx.latencies().summary())
            ```
        """
        return {
            self.COUNTED: self.count,
            f"{self.NAME}_p50_ms": self.percentile_ms(50),
            f"{self.NAME}_p99_ms": self.percentile_ms(99),
            f"{self.NAME}_counts": list(self.counts),
        }


class RecoveryHistogram(TimeHistogram):
    """How long lost datagrams took to be recovered."""

    __slots__ = ()
    OCTAVE_FIRST = lib.UM_RECOVERY_OCTAVE_FIRST
    BUCKETS = lib.UM_RECOVERY_BUCKETS
    COUNTED = "recovered"
    NAME = "recovery"
    READ = lib.um_statistics_recovery_histogram


class LatencyHistogram(TimeHistogram):
    """Time from sending, by the publisher's clock, to arrival, by this host's clock.

    Counts messages of sources with `send_timestamps` only. It is only as accurate as the two clocks
    (umstack.telemetry.host_clock).

    Example:
        ```python
        print(ctx.latencies().percentile_ms(50))
        ```
    """

    __slots__ = ()
    OCTAVE_FIRST = lib.UM_LATENCY_OCTAVE_FIRST
    BUCKETS = lib.UM_LATENCY_BUCKETS
    COUNTED = "latency_messages"
    NAME = "latency"
    READ = lib.um_statistics_latency_histogram


class CommitHistogram(TimeHistogram):
    """How long the commits of a Store took: its own thread counts them."""

    __slots__ = ()
    OCTAVE_FIRST = 14
    """2^14 ns (16 us) to 2^36 ns (69 s)."""
    BUCKETS = 88
    COUNTED = "timed_commits"
    NAME = "commit"


HISTOGRAMS: tuple[type[TimeHistogram], ...] = (RecoveryHistogram, LatencyHistogram, CommitHistogram)
