"""Timers of loss recovery that are measured unless their options are set."""

from __future__ import annotations

from collections.abc import Collection

IGNORE_INTERVAL = "transport_lbtrm_ignore_interval"
FIRST_SESSION_MESSAGE = "transport_lbtrm_sm_minimum_interval"
INITIAL_BACKOFF = "transport_lbtrm_nak_initial_backoff_interval"
BACKOFF = "transport_lbtrm_nak_backoff_interval"
SUPPRESS_INTERVAL = "transport_lbtrm_nak_suppress_interval"

ADAPTIVE_SOURCE_TIMERS = (IGNORE_INTERVAL, FIRST_SESSION_MESSAGE)
ADAPTIVE_RECEIVER_TIMERS = (INITIAL_BACKOFF, BACKOFF, SUPPRESS_INTERVAL)


def adaptive(recovery_timing: str, timers: Collection[str], given: Collection[str]) -> frozenset[str]:
    """Return the measured timers: with `adaptive`, those whose options are not set."""
    return frozenset(timers) - frozenset(given) if recovery_timing == "adaptive" else frozenset()


def adaptive_of(
    transport: str, recovery_timing: str, timers: Collection[str], given: Collection[str]
) -> frozenset[str]:
    """Return the measured timers of `transport` under the names of LBT-RM's options."""
    named = {name.replace("_lbtrm_", f"_{transport}_"): name for name in timers}
    return frozenset(named[name] for name in adaptive(recovery_timing, named.keys(), given))
