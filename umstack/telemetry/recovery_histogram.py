"""RecoveryHistogram: how long lost datagrams took to be recovered, from the buckets the core counts them in.

Four buckets to an octave, so a percentile is good to about a tenth of its value. The layout is
um_receiver_session's (ffi/core/receiver_session.h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from umstack._core import ffi, lib

_NS_PER_MS = 1_000_000


def bucket_start_ns(bucket: int) -> int:
    """The shortest time a bucket holds."""
    return (4 + bucket % 4) << (14 + bucket // 4)


@dataclass(frozen=True, slots=True)
class RecoveryHistogram:
    """Recovered datagrams by time. The first and the last bucket also hold what lies beyond them."""

    counts: tuple[int, ...]

    @classmethod
    def empty(cls) -> RecoveryHistogram:
        """Nothing recovered yet."""
        return cls((0,) * lib.UM_RECOVERY_BUCKETS)

    @classmethod
    def read(cls, context: Any, session: int) -> RecoveryHistogram:
        """The counts of a context's n-th receiving session; empty when there is none."""
        out = ffi.new("uint64_t[]", lib.UM_RECOVERY_BUCKETS)
        lib.um_statistics_recovery_histogram(context, session, out)
        return cls(tuple(out))

    @property
    def count(self) -> int:
        """How many datagrams were recovered."""
        return sum(self.counts)

    def merged(self, other: RecoveryHistogram) -> RecoveryHistogram:
        """With the counts of another session added."""
        return RecoveryHistogram(tuple(map(sum, zip(self.counts, other.counts, strict=True))))

    def percentile_ms(self, percent: float) -> float | None:
        """The time that `percent` of the datagrams did not exceed; None when there were none."""
        wanted = self.count * percent / 100
        below = 0
        for bucket, count in enumerate(self.counts):
            if count and below + count >= wanted:
                start_ns, end_ns = bucket_start_ns(bucket), bucket_start_ns(bucket + 1)
                inside = (wanted - below) / count
                return (start_ns + (end_ns - start_ns) * inside) / _NS_PER_MS
            below += count
        return None

    def summary(self) -> dict[str, float | int | list[int] | None]:
        """Count and percentiles by name, and the buckets they come from."""
        return {
            "recovered": self.count,
            "recovery_p50_ms": self.percentile_ms(50),
            "recovery_p99_ms": self.percentile_ms(99),
            "recovery_counts": list(self.counts),
        }
