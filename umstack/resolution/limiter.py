"""The rate limits of topic resolution (UX-5). They differ from those for data."""

from __future__ import annotations

from random import SystemRandom

SLICE_NS = 100_000_000
_NS_PER_S = 1_000_000_000
PROMPT_ANSWERS_MAX = 64
"""Maximum number of queries of an address, per PROMPT_NS, whose answers precede repeated records."""
PROMPT_NS = 1_000_000_000


class ResolutionLimiter:
    """Limits records and bits per second in slices of 100 ms; 0 means no limit.

    A record passes while the slice's allowance is not used up, so the last record may exceed it. The first record of a
    slice always passes, so that some records are sent however small the limit is.
    """

    __slots__ = ("_bytes_per_slice", "_records_per_slice", "_slice_start_ns", "_used_bytes", "_used_records")

    def __init__(self, records_per_second: int, bits_per_second: int) -> None:
        self._records_per_slice = records_per_second * SLICE_NS / _NS_PER_S
        self._bytes_per_slice = bits_per_second * SLICE_NS / _NS_PER_S / 8
        self._slice_start_ns: int | None = None
        self._used_bytes = 0
        self._used_records = 0

    @property
    def slice_end_ns(self) -> int:
        """Return when a refused record may be offered again."""
        return 0 if self._slice_start_ns is None else self._slice_start_ns + SLICE_NS

    def admit(self, record_bytes: int, now_ns: int) -> bool:
        """Return true if a record may be sent now, and account for it."""
        self._advance(now_ns)
        if self._records_per_slice and self._used_records >= self._records_per_slice:
            return False
        if self._bytes_per_slice and self._used_bytes >= self._bytes_per_slice:
            return False
        self._used_records += 1
        self._used_bytes += record_bytes
        return True

    def _advance(self, now_ns: int) -> None:
        start = self._slice_start_ns
        if start is None or now_ns >= start + SLICE_NS:
            # Slices follow each other without gaps while there is traffic, and restart after an idle time.
            late = start is not None and now_ns < start + 2 * SLICE_NS
            self._slice_start_ns = start + SLICE_NS if late and start is not None else now_ns
            self._used_bytes = 0
            self._used_records = 0


class Askers:
    """Grants each address a number of prompt answers per PROMPT_NS. Addresses share a fixed number of counters by a
    hash that no sender can predict, so no number of forged addresses takes memory."""

    __slots__ = ("_counts", "_end_ns", "_salt")

    _COUNTERS = 1024

    def __init__(self) -> None:
        self._counts = [0] * self._COUNTERS
        self._end_ns = 0
        self._salt = SystemRandom().getrandbits(64)

    def takes_prompt_answer(self, asker: str, now_ns: int) -> bool:
        """Return true if a query of this address gets a prompt answer, and account for it."""
        if now_ns >= self._end_ns:
            self._end_ns = now_ns + PROMPT_NS
            self._counts = [0] * self._COUNTERS
        number = hash((self._salt, asker)) % self._COUNTERS
        self._counts[number] += 1
        return self._counts[number] <= PROMPT_ANSWERS_MAX
