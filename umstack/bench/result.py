"""The result of a measurement, as `umstack bench --json` prints it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Result = dict[str, Any]

_KEYS = (
    *("what", "transport", "link", "mode", "size", "api", "messages_per_second", "datagrams_per_second"),
    *("lost", "out_of_order", "duplicates", "retransmissions", "unrecoverable"),
    *("cpu_seconds", "wait", "loop", "round_trip_us", "ratios", "detail"),
)
_COUNTS = ("lost", "out_of_order", "duplicates", "retransmissions", "unrecoverable")
_FAULTS = ("lost", "out_of_order", "duplicates", "unrecoverable")
_PROMISING = ("umstack", "live")
"""Only these contenders guarantee that there are no faults; raw sockets do not."""


def result(**found: Any) -> Result:
    """Return a result with all keys in a fixed order; keys that do not apply are null."""
    unknown = found.keys() - set(_KEYS)
    if unknown:
        raise KeyError(f"a result has no {sorted(unknown)}")
    return {key: found.get(key) for key in _KEYS}


def rate(found: Result) -> float:
    """Figure by which throughput results are ranked."""
    return float(found["messages_per_second"])


def p50(found: Result) -> float:
    """Figure by which round trips are ranked."""
    return float(found["round_trip_us"]["p50"])


def p99(found: Result) -> float:
    """Figure by which round trips under loss are ranked; the median does not show the loss."""
    return float(found["round_trip_us"]["p99"])


def merged(rounds: Sequence[Result], judge: Callable[[Result], float]) -> Result:
    """Merge the results of several rounds: the median round by this figure, with the counts of all rounds added up."""
    middle = statistics.median_low(judge(one) for one in rounds)
    chosen = next(one for one in rounds if judge(one) == middle)
    totals = {key: sum(one[key] for one in rounds) for key in _COUNTS if chosen[key] is not None}
    detail = {**(chosen["detail"] or {}), "rounds": [judge(one) for one in rounds]}
    return {**chosen, **totals, "detail": detail}


def ratio(rounds: Sequence[Result], baselines: Sequence[Result], judge: Callable[[Result], float]) -> float:
    """Return the ratio of two measurements taken in the same rounds: the median of the rounds' ratios."""
    return statistics.median(judge(a) / judge(b) for a, b in zip(rounds, baselines, strict=True))


def settled_ratio(rounds: Sequence[Result]) -> float:
    """Return the ratio of the settled rate to the slowest subscriber's maximum: the median of the rounds."""
    return statistics.median(rate(one) / float(one["detail"]["own_maximum"]) for one in rounds)


def faults(results: Sequence[Result]) -> list[str]:
    """Return the broken guarantees of the stack as text; empty if there are none."""
    return [
        f"{one['what']} size {one['size']}: {one[key]} {key.replace('_', ' ')}"
        for one in results
        if one["what"] in _PROMISING
        for key in _FAULTS
        if one.get(key)
    ]
