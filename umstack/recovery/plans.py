"""Plans of fetches, from a receiver's options: when to connect, request again and give up."""

from __future__ import annotations

from typing import Any

from umstack._core import ffi, lib
from umstack.config import ReceiverOptions
from umstack.recovery.codec import RangeBounds, write_bounds

_UNLIMITED = 1_000_000


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


__all__ = ["late_join_plan", "otr_plan"]
