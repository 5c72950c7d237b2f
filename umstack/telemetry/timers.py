"""Describes the loss recovery timers in use and their reasons, from the counters of a transport session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umstack._core import lib

Values = Mapping[str, Any]


def receiver_timers(counters: Values) -> dict[str, str]:
    """Return the timers of a receiving session: name to value and reason."""
    if "timers_adaptive" not in counters:
        return {}
    adaptive = int(counters["timers_adaptive"])
    round_trip = _round_trip(counters)
    group = _receivers(counters["group_receivers"])
    late = counters["reordering"]
    reordering = f", reordering {late:.3f} ms" if late else ""
    cutoff = int(counters.get("nak_cutoff", 0))
    return {
        **({"no NAKs": _cutoff(cutoff)} if cutoff else {}),
        "first NAK after": _timer(
            adaptive & lib.UM_ADAPTIVE_INITIAL,
            "up to ",
            counters["nak_initial_backoff"],
            f"{group}, {round_trip}{reordering}",
        ),
        "next NAK after": _timer(
            adaptive & lib.UM_ADAPTIVE_BACKOFF, "", counters["nak_backoff"], f"{round_trip}, doubling"
        ),
        "NAK after an NCF": _timer(
            adaptive & lib.UM_ADAPTIVE_SUPPRESS, "", counters["nak_suppress"], f"{round_trip}, doubling"
        ),
    }


def source_timers(counters: Values) -> dict[str, str]:
    """Return the timers of a source session: name to value and reason."""
    if "timers_adaptive" not in counters:
        return {}
    adaptive = int(counters["timers_adaptive"])
    longest = counters["group_round_trip"]
    known = f"{_receivers(counters['group_receivers'])}, " + (
        f"longest round trip {longest:.3f} ms" if longest else "no round trip known yet"
    )
    return {
        "NAKs ignored for": _timer(adaptive & lib.UM_ADAPTIVE_IGNORE, "", counters["ignore_interval"], known),
        "session message after": _timer(
            adaptive & lib.UM_ADAPTIVE_SM,
            "",
            counters["sm_first_interval"],
            "shortest round trip reported, doubling" if longest else f"{known}, doubling",
        ),
    }


def _cutoff(reasons: int) -> str:
    """Return the reasons for a session's NAK cutoff (UX-21)."""
    texts = {
        lib.UM_NAK_CUTOFF_CONTEXT: "nak_cutoff() of the context",
        lib.UM_NAK_CUTOFF_RECEIVERS: "nak_cutoff() of every receiver",
        lib.UM_NAK_CUTOFF_SESSION: "transport_lbtrm_nak_cutoff_interval, until nak_cutoff(False)",
    }
    return "; ".join(text for reason, text in texts.items() if reasons & reason)


def _timer(is_measured: int, bound: str, value_ms: float, reason: str) -> str:
    if not is_measured:
        return f"{value_ms:g} ms: configured"
    return f"{bound}{value_ms:.3f} ms: {reason}"


def _round_trip(counters: Values) -> str:
    length = f"{counters['round_trip']:.3f} ms"
    if counters["round_trip_samples"]:
        return f"round trip {length} (+- {counters['round_trip_variance']:.3f})"
    return f"round trip {length} ({'reported by the source' if counters['group_receivers'] else 'assumed'})"


def _receivers(count: int) -> str:
    if count == 0:
        return "receivers not counted yet"
    return "1 receiver" if count == 1 else f"{count:,} receivers"
