"""StagedNumbers: the sequence numbers that wait for a commit, as ranges."""

from __future__ import annotations

import bisect


class StagedNumbers:
    """Numbers of messages and markers by source. They are staged and committed in ranges, mostly in order."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        """First and last number of each range, in order and apart."""

    def __contains__(self, place: tuple[int, int]) -> bool:
        """Return true if a number, given as source number and sqn, is staged."""
        source, sqn = place
        ranges = self._ranges.get(source, ())
        at = bisect.bisect(ranges, sqn, key=_first_of) - 1
        return at >= 0 and sqn <= ranges[at][1]

    def add(self, source: int, first_sqn: int, last_sqn: int) -> None:
        """These numbers were staged; none of them was staged before."""
        ranges = self._ranges.setdefault(source, [])
        at = bisect.bisect(ranges, first_sqn, key=_first_of)
        if at < len(ranges) and ranges[at][0] == last_sqn + 1:
            last_sqn = ranges.pop(at)[1]
        if at and ranges[at - 1][1] == first_sqn - 1:
            at -= 1
            first_sqn = ranges.pop(at)[0]
        ranges.insert(at, (first_sqn, last_sqn))

    def discard(self, source: int, first_sqn: int, last_sqn: int) -> None:
        """These numbers, if they were staged, are not any more."""
        ranges = self._ranges.get(source, [])
        begin = end = max(0, bisect.bisect(ranges, first_sqn, key=_first_of) - 1)
        kept: list[tuple[int, int]] = []
        while end < len(ranges) and ranges[end][0] <= last_sqn:
            first, last = ranges[end]
            kept += [(first, min(last, first_sqn - 1))] if first < first_sqn else []
            kept += [(max(first, last_sqn + 1), last)] if last > last_sqn else []
            end += 1
        ranges[begin:end] = kept
        if not ranges:
            self._ranges.pop(source, None)


def _first_of(one: tuple[int, int]) -> int:
    return one[0]


__all__ = ["StagedNumbers"]
