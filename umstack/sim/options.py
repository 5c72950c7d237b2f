"""Options of the objects in a simulated world, in nanoseconds and bytes, without network faults.

A join has the defaults of the product with recovery_timing fixed and flow_control_receiver_window set, so that it
reports its position; `ADAPTIVE_JOIN` and `ADAPTIVE_SESSION` add the measured timers, which are the product's default.
Source sessions have smaller logs.

Fields are those of the C structures of the same names (ffi/sim/sim.h, ffi/core/source/source_state.h and
ffi/core/receiver/receiver_session.h), which document them.
"""

from __future__ import annotations

from dataclasses import dataclass

from umstack._sim_bench import lib

US = 1_000
MS = 1_000_000
SECOND = 1_000_000_000

ANY = -1

ADAPTIVE_JOIN: dict[str, int] = {
    "adaptive_timers": lib.UM_ADAPTIVE_INITIAL | lib.UM_ADAPTIVE_BACKOFF | lib.UM_ADAPTIVE_SUPPRESS
}
"""Options of a join with recovery_timing adaptive."""
ADAPTIVE_SESSION: dict[str, int] = {
    "adaptive_timers": lib.UM_ADAPTIVE_IGNORE | lib.UM_ADAPTIVE_SM | lib.UM_ADAPTIVE_REPORTS
}
"""Options of a source session with recovery_timing adaptive."""

FLOW_NONE, FLOW_MIN, FLOW_MAX, FLOW_TAGGED = range(4)


@dataclass(slots=True)
class HostOptions:
    """A host: the rate limiters of its context, its buffers, clock and link."""

    data_rate_bps: int = 0
    retransmit_rate_bps: int = 0
    rate_interval_ns: int = 10 * MS
    path_bytes: int = 8192
    datagram_max_bytes: int = 8192
    hold_datagrams: int = 2048
    hold_messages: int = 8192
    inbox_datagrams: int = 4096
    receive_batch: int = 1
    clock_offset_ns: int = 0
    clock_drift_ppm: int = 0
    link_bps: int = 0
    link_queue_ns: int = 0
    link_refuse_ppm: int = 0


@dataclass(slots=True)
class SessionOptions:
    """A source session. Addresses and session id are assigned by the world unless given."""

    session_id: int = 0
    nak_port: int = 0
    initial_sqn: int = 0
    initial_term_id: int = 0
    term_length: int = 1 << 20
    window_bytes: int = 1 << 20
    datagram_max_bytes: int = 8192
    coalesce_threshold: int = 15
    batch_minimum_bytes: int = 2048
    batch_interval_ns: int = 200 * MS
    ignore_interval_ns: int = 500 * MS
    sm_minimum_interval_ns: int = 200 * MS
    sm_maximum_interval_ns: int = 10 * SECOND
    sm_floor_ns: int = 0
    adaptive_timers: int = 0
    unblock_timeout_ns: int = 15 * SECOND
    flow_policy: int = FLOW_NONE
    flow_group_tag: int = 0
    flow_group_minimum_size: int = 1
    flow_receiver_timeout_ns: int = 5 * SECOND
    flow_stall_timeout_ns: int = 0
    flow_publishes_without_receivers: bool = False
    repair_budget_bps: int = 0
    nak_cutoff_interval_ns: int = 0


@dataclass(slots=True)
class SourceOptions:
    """A source: one topic of a session."""

    topic_index: int = 0
    initial_sqn: int = 0
    tsni_interval_ns: int = 5 * SECOND
    tsni_threshold_ns: int = 60 * SECOND
    explicit_capacity: int = 1 << 20


@dataclass(slots=True)
class TransportOptions:
    """The receiving side of a session; the first join of a host sets the options for later ones."""

    nak_initial_backoff_ns: int = 50 * MS
    nak_backoff_ns: int = 200 * MS
    nak_suppress_ns: int = 1000 * MS
    adaptive_timers: int = 0
    nak_generation_ns: int = 10 * SECOND
    activity_timeout_ns: int = 60 * SECOND
    preactivity_timeout_ns: int = 30 * SECOND
    send_naks: bool = True
    nak_rate_limit: int = 50_000
    datagram_max_bytes: int = 8192
    loss_capacity: int = 4096
    topic_capacity: int = 64
    window_bytes: int = 1 << 21
    status_interval_ns: int = 200 * MS
    status_maximum_interval_ns: int = 30 * SECOND
    group_tag: int = 0
    random_seed: int = 1


@dataclass(slots=True)
class ReceiverOptions:
    """A receiver: a subscription and the application that reads it."""

    ordered_delivery: int = 1
    map_entries_max: int = 200_000
    burst_loss_max: int = 1024
    loss_check_interval_ns: int = 0
    block_count: int = 4
    block_rows: int = 1024
    block_bytes: int = 1 << 18
    message_max_bytes: int = 1 << 18
    read_interval_ns: int = 0
    read_rows: int = 1024
    keep_rows: bool = False
    hold_ns: int = 5_000_000_000


@dataclass(slots=True)
class Faults:
    """Faults of the path to a host; probabilities in parts per million."""

    loss_ppm: int = 0
    burst_begin_ppm: int = 0
    burst_end_ppm: int = 0
    duplicate_ppm: int = 0
    reorder_ppm: int = 0
    corrupt_ppm: int = 0
    replay_ppm: int = 0
    garbage_ppm: int = 0
    delay_ns: int = 0
    jitter_ns: int = 0
    reorder_ns: int = 0
    partitioned: bool = False
