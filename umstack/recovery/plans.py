"""Plans of fetches, from a receiver's options: when to connect, request again and give up."""

from __future__ import annotations

from typing import Any

from umstack._core import ffi, lib
from umstack.config import ReceiverOptions
from umstack.recovery.codec import RangeBounds, write_bounds

_UNLIMITED = 1_000_000
STORE_OUTSTANDING_MAX = 1024
"""Maximum number of messages that a receiver requests of Stores at a time."""
_STORE_INTERVAL_NS = 100_000_000
_FOREVER_NS = 1 << 62


def late_join_plan(options: ReceiverOptions, resume_sqn: int | None) -> Any:
    """Return an um_fetch_plan for a source's past or, if rediscovered, for the messages after `resume_sqn`."""
    plan = ffi.new("um_fetch_plan *")
    plan.attempts_max = options.late_join_info_request_maximum
    plan.outstanding_max = options.retransmit_request_outstanding_maximum
    plan.attempt_minimum_ns = plan.attempt_maximum_ns = options.late_join_info_request_interval_ns
    plan.request_minimum_ns = plan.request_maximum_ns = options.retransmit_request_interval_ns
    plan.message_timeout_ns = options.retransmit_request_message_timeout_ns
    # A receiver that rediscovers a source fetches the messages it missed, not the past.
    plan.purpose = lib.UM_PURPOSE_LATE_JOIN if resume_sqn is None else lib.UM_PURPOSE_OFF_TRANSPORT
    bounds = RangeBounds(low_sqn=resume_sqn)
    if resume_sqn is None:
        bounds = RangeBounds(
            low_sqn=options.retransmit_request_low_sequence_number or None,
            count=options.retransmit_request_maximum or None,
            bytes=options.retransmit_request_bytes_maximum_bytes or None,
            age_ns=options.retransmit_request_age_maximum_ns or None,
        )
    write_bounds(plan.bounds, bounds)
    return plan


def otr_plan(options: ReceiverOptions, next_sqn: int) -> Any:
    """Return an um_fetch_plan for the messages missing from `next_sqn` on."""
    plan = ffi.new("um_fetch_plan *")
    plan.is_otr = True
    plan.purpose = lib.UM_PURPOSE_OFF_TRANSPORT
    plan.outstanding_max = options.otr_request_outstanding_maximum or _UNLIMITED
    plan.attempt_minimum_ns = plan.request_minimum_ns = options.otr_request_minimum_interval_ns
    plan.attempt_maximum_ns = plan.request_maximum_ns = options.otr_request_maximum_interval_ns
    plan.message_timeout_ns = options.otr_request_message_timeout_ns
    write_bounds(plan.bounds, RangeBounds(low_sqn=next_sqn))
    return plan


def store_plan(options: ReceiverOptions, next_sqn: int, *, is_otr: bool) -> Any:
    """Return an um_fetch_plan for messages that Stores have: it waits for them as long as they are away."""
    plan = otr_plan(options, next_sqn)
    plan.is_otr = is_otr
    plan.outstanding_max = min(options.retransmit_request_outstanding_maximum, STORE_OUTSTANDING_MAX)
    plan.attempt_minimum_ns = plan.attempt_maximum_ns = _STORE_INTERVAL_NS
    plan.request_minimum_ns = plan.request_maximum_ns = options.otr_request_maximum_interval_ns
    plan.message_timeout_ns = _FOREVER_NS
    return plan


__all__ = ["STORE_OUTSTANDING_MAX", "late_join_plan", "otr_plan", "store_plan"]
