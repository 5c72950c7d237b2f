"""Timers of loss recovery that are measured unless they are set: an option that is set is as set."""

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
    """Which of the timers are measured: with `adaptive`, those that were not given."""
    return frozenset(timers) - frozenset(given) if recovery_timing == "adaptive" else frozenset()


def adaptive_of(
    transport: str, recovery_timing: str, timers: Collection[str], given: Collection[str]
) -> frozenset[str]:
    """The same for `transport`, whose options are named as LBT-RM's but for its name; they are named as LBT-RM's."""
    named = {name.replace("_lbtrm_", f"_{transport}_"): name for name in timers}
    return frozenset(named[name] for name in adaptive(recovery_timing, named.keys(), given))
