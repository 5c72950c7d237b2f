# Made from the C headers by `python ffi/stubs.py`; ffi/modules.py says what is in it.

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, Self, TypeVar, overload

class CData:
    def __getitem__(self, index: Any) -> Any: ...
    def __setitem__(self, index: Any, value: Any) -> None: ...
    def __add__(self, count: int) -> Self: ...
    def __sub__(self, count: int) -> Self: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __int__(self) -> int: ...

_Element_co = TypeVar("_Element_co", covariant=True)
_CData = TypeVar("_CData", bound=CData)

class Pointer(CData, Generic[_Element_co]):
    @overload
    def __getitem__(self, index: int) -> _Element_co: ...
    @overload
    def __getitem__(self, index: slice) -> Pointer[_Element_co]: ...

class _Bool(int): ...
class char(bytes): ...
class c_int(int): ...
class double(float): ...
class int32_t(int): ...
class int64_t(int): ...
class size_t(int): ...
class uint16_t(int): ...
class uint32_t(int): ...
class uint64_t(int): ...
class uint8_t(int): ...
class unsigned_char(int): ...
class unsigned_int(int): ...
class unsigned_long_long(int): ...
class unsigned_short(int): ...
class void(bytes): ...

class sock_filter(CData):
    code: int
    jt: int
    jf: int
    k: int

class um_adaptive_spin(CData):
    limit_ns: int
    last_event_ns: int
    short_waits: int
    earn: int

class um_address(CData):
    ip: int
    port: int

class um_begun_recovery(CData):
    subscription: Pointer[void]
    @property
    def id(self) -> um_session_id: ...
    @id.setter
    def id(self, value: um_session_id | dict[str, Any] | Sequence[Any]) -> None: ...
    topic_index: int
    epoch: int
    @property
    def request_port(self) -> um_address: ...
    @request_port.setter
    def request_port(self, value: um_address | dict[str, Any] | Sequence[Any]) -> None: ...
    next_sqn: int

class um_block(CData):
    offsets: Pointer[int32_t]
    sequence_numbers: Pointer[uint32_t]
    first_sequence_numbers: Pointer[uint32_t]
    fragment_offsets: Pointer[uint32_t]
    message_lengths: Pointer[uint32_t]
    sources: Pointer[uint32_t]
    received_ns: Pointer[int64_t]
    sent_ns: Pointer[int64_t]
    flags: Pointer[uint16_t]
    requests: um_request
    properties: um_properties_place
    payload: Pointer[uint8_t]

class um_capture_findings(CData):
    packet_count: int
    section_count: int
    unknown_block_count: int
    unknown_block_type: int
    unknown_block_position: int
    clock_step_count: int
    clock_step_max_ns: int
    clock_step_position: int
    timeless_count: int
    unknown_link_count: int
    unknown_link_type: int
    cut_count: int
    left_out_interface_count: int

class um_capture_interface(CData):
    link_type: int
    snap_bytes: int
    resolution: int
    offset_s: int
    last_time_ns: int
    drop_count: int
    has_statistics: bool
    packet_drop_count: int
    @property
    def name(self) -> Pointer[char]: ...
    @name.setter
    def name(self, value: Pointer[char] | Pointer[uint8_t] | bytes | Sequence[Any]) -> None: ...

class um_capture_packet(CData):
    position: int
    data: Pointer[uint8_t]
    captured_bytes: int
    frame_bytes: int
    interface: int
    link_type: int
    is_timed: bool
    time_ns: int
    queue_number: int
    verdict: int
    has_drop_count: bool
    drop_count: int

class um_capture_reader(CData):
    format: int
    swapped: bool
    section_first: int
    interface_count: int
    @property
    def findings(self) -> um_capture_findings: ...
    @findings.setter
    def findings(self, value: um_capture_findings | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def interfaces(self) -> um_capture_interface: ...
    @interfaces.setter
    def interfaces(self, value: um_capture_interface | Sequence[Any]) -> None: ...
    @property
    def streams(self) -> um_streams: ...
    @streams.setter
    def streams(self, value: um_streams | dict[str, Any] | Sequence[Any]) -> None: ...

class um_claim(CData):
    frames: Pointer[uint8_t]
    position: int
    length: int

class um_context(CData): ...

class um_context_config(CData):
    @property
    def interface(self) -> Pointer[char]: ...
    @interface.setter
    def interface(self, value: Pointer[char] | Pointer[uint8_t] | bytes | Sequence[Any]) -> None: ...
    interface_ip: int
    ttl: int
    source_buffer_bytes: int
    receiver_buffer_bytes: int
    receive_batch: int
    gso: bool
    gro: bool
    timestamps: bool
    busy_wait: bool
    busy_poll_us: int
    spin_ns: int
    adaptive_spin_ns: int
    coalesce_ns: int
    coalesce_max_ns: int
    data_rate_bps: int
    retransmit_rate_bps: int
    rate_interval_ns: int
    @property
    def lbtru(self) -> um_lbtru_config: ...
    @lbtru.setter
    def lbtru(self, value: um_lbtru_config | dict[str, Any] | Sequence[Any]) -> None: ...
    hold_datagrams: int
    hold_messages: int
    datagram_max_bytes: int
    random_seed: int
    authentication_scope: int
    authentication_tolerance_ns: int
    rings: um_rings

class um_egress_ring_maps(CData):
    ring_fd: int
    ring_bytes: int
    counters_fd: int

class um_event_queue(CData): ...

class um_event_queue_config(CData):
    block_count: int
    block_rows: int
    block_bytes: int
    message_max_bytes: int
    notes_age: bool
    size_warning: int
    delay_warning_ns: int

class um_fetch(CData):
    @property
    def id(self) -> um_session_id: ...
    @id.setter
    def id(self, value: um_session_id | dict[str, Any] | Sequence[Any]) -> None: ...
    topic_index: int
    epoch: int
    @property
    def plan(self) -> um_fetch_plan: ...
    @plan.setter
    def plan(self, value: um_fetch_plan | dict[str, Any] | Sequence[Any]) -> None: ...
    consumed: int
    written: int
    next_sqn: int
    is_awaiting_range: bool
    is_starved: bool
    is_caught_up: bool
    is_left_to_transport: bool
    is_given_up: bool
    has_given_up_some: bool
    is_connected: bool
    has_requested_range: bool
    has_heard: bool
    needs_retry: bool
    has_attempted: bool
    has_progressed: bool
    was_awaiting_range: bool
    left_over: int
    attempts: int
    progress_sqn: int
    attempt_ns: int
    attempt_interval_ns: int
    requested_ns: int
    request_interval_ns: int
    progress_ns: int

class um_fetch_plan(CData):
    is_otr: bool
    request_index: int
    attempts_max: int
    outstanding_max: int
    attempt_minimum_ns: int
    attempt_maximum_ns: int
    request_minimum_ns: int
    request_maximum_ns: int
    message_timeout_ns: int
    @property
    def bounds(self) -> um_range_bounds: ...
    @bounds.setter
    def bounds(self, value: um_range_bounds | dict[str, Any] | Sequence[Any]) -> None: ...

class um_frame_merge_config(CData):
    @property
    def maps(self) -> um_egress_ring_maps: ...
    @maps.setter
    def maps(self, value: um_egress_ring_maps | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def incoming(self) -> um_frame_merge_filter: ...
    @incoming.setter
    def incoming(self, value: um_frame_merge_filter | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def mirrored(self) -> um_frame_merge_filter: ...
    @mirrored.setter
    def mirrored(self, value: um_frame_merge_filter | dict[str, Any] | Sequence[Any]) -> None: ...
    mirror_index: int

class um_frame_merge_filter(CData):
    program_fd: int
    stamps_fd: int

class um_generate_config(CData):
    seed: int
    start_ns: int
    gap_ns: int
    session_count: int
    receiver_count: int
    topic_count: int
    messages_per_datagram: int
    message_bytes: int
    snap_bytes: int
    at_receiver: int
    loss: float
    run_more: float
    shared: float
    delayed: float
    refused: float
    backoff_min_ns: int
    backoff_max_ns: int
    response_ns: int
    delay_ns: int

class um_generate_counts(CData):
    packet_count: int
    data_count: int
    retransmission_count: int
    nak_count: int
    ncf_count: int

class um_generate_loss(CData):
    session: int
    receiver: int
    sqn: int
    nak_count: int
    lost_ns: int
    first_nak_ns: int
    end_ns: int
    outcome: int
    reserved: int

class um_generate_pending(CData):
    due_ns: int
    first_nak_ns: int
    mask: int
    first_sqn: int
    nak_count: int
    session: int
    receiver: int
    state: int

class um_generator(CData):
    @property
    def config(self) -> um_generate_config: ...
    @config.setter
    def config(self, value: um_generate_config | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def random(self) -> um_random: ...
    @random.setter
    def random(self, value: um_random | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def counts(self) -> um_generate_counts: ...
    @counts.setter
    def counts(self, value: um_generate_counts | dict[str, Any] | Sequence[Any]) -> None: ...
    data_due_ns: int
    data_sequence: int
    pending_count: int
    frame_bytes: int
    @property
    def run_ends(self) -> Pointer[Pointer[uint32_t]]: ...
    @run_ends.setter
    def run_ends(self, value: Pointer[Pointer[uint32_t]] | Sequence[Any]) -> None: ...
    @property
    def pending(self) -> um_generate_pending: ...
    @pending.setter
    def pending(self, value: um_generate_pending | Sequence[Any]) -> None: ...

class um_hot_failover_config(CData):
    capacity: int
    max_delay_ns: int
    delivers_optional: bool
    delivers_duplicates: bool

class um_interface_capture(CData): ...

class um_interface_capture_arrivals(CData):
    until_ns: int
    queue: int
    verdict: int

class um_interface_capture_config(CData):
    interface: Pointer[char]
    block_bytes: int
    block_count: int
    snap_bytes: int
    is_promiscuous: bool
    has_run_headers: bool
    filter_text: Pointer[char]
    filter: sock_filter
    filter_length: int
    egress: um_frame_merge_config

class um_interface_capture_counters(CData):
    packet_count: int
    drop_count: int
    file_bytes: int
    file_packet_count: int
    file_start_ns: int

class um_key(CData):
    id: int
    @property
    def secret(self) -> Pointer[uint8_t]: ...
    @secret.setter
    def secret(self, value: Pointer[char] | Pointer[uint8_t] | bytes | Sequence[Any]) -> None: ...

class um_key_set(CData):
    count: int
    @property
    def keys(self) -> um_key: ...
    @keys.setter
    def keys(self, value: um_key | Sequence[Any]) -> None: ...

class um_known_source(CData):
    @property
    def session(self) -> um_session_id: ...
    @session.setter
    def session(self, value: um_session_id | dict[str, Any] | Sequence[Any]) -> None: ...
    topic_index: int

class um_late_mapping(CData):
    @property
    def request_port(self) -> um_address: ...
    @request_port.setter
    def request_port(self, value: um_address | dict[str, Any] | Sequence[Any]) -> None: ...
    joins_late: bool
    caching_proximity: int
    is_fetched: bool
    is_resumed: bool
    resume_sqn: int
    epoch: int

class um_lbmc_extras(CData):
    request: um_request
    hot_failover: um_lbmc_hot_failover
    properties_bytes: int

class um_lbmc_hot_failover(CData):
    sqn: int
    is_64_bits: bool
    is_optional: bool
    is_reset: bool

class um_lbmr_place(CData):
    offset: int
    bytes: int

class um_lbtru_config(CData):
    data_rate_bps: int
    retransmit_rate_bps: int
    rate_interval_ns: int
    source_buffer_bytes: int
    receiver_buffer_bytes: int

class um_network(CData):
    ip: int
    mask: int

class um_packet_destination(CData):
    ip_version: int
    @property
    def address(self) -> Pointer[uint8_t]: ...
    @address.setter
    def address(self, value: Pointer[char] | Pointer[uint8_t] | bytes | Sequence[Any]) -> None: ...

class um_packet_rows(CData):
    row_capacity: int
    message_capacity: int
    sqn_capacity: int
    position: Pointer[int64_t]
    time_ns: Pointer[int64_t]
    interface_id: Pointer[int32_t]
    link_type: Pointer[int32_t]
    frame_bytes: Pointer[int32_t]
    captured_bytes: Pointer[int32_t]
    vlan: Pointer[int32_t]
    inner_vlan: Pointer[int32_t]
    queue: Pointer[int64_t]
    dropped: Pointer[int64_t]
    @property
    def verdict(self) -> um_packet_rows_text: ...
    @verdict.setter
    def verdict(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def source_address(self) -> um_packet_rows_text: ...
    @source_address.setter
    def source_address(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    source_port: Pointer[int32_t]
    @property
    def destination_address(self) -> um_packet_rows_text: ...
    @destination_address.setter
    def destination_address(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    destination_port: Pointer[int32_t]
    udp_bytes: Pointer[int32_t]
    tcp_bytes: Pointer[int32_t]
    tcp_flags: Pointer[int32_t]
    @property
    def recovery(self) -> um_packet_rows_text: ...
    @recovery.setter
    def recovery(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def transport(self) -> um_packet_rows_text: ...
    @transport.setter
    def transport(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def status(self) -> um_packet_rows_text: ...
    @status.setter
    def status(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def packet_type(self) -> um_packet_rows_text: ...
    @packet_type.setter
    def packet_type(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    session_id: Pointer[int64_t]
    nak_port: Pointer[int32_t]
    client_id: Pointer[int64_t]
    ack_sqn: Pointer[int64_t]
    transport_flags: Pointer[int32_t]
    transport_sqn: Pointer[int64_t]
    sm_sqn: Pointer[int64_t]
    lead_sqn: Pointer[int64_t]
    trail_sqn: Pointer[int64_t]
    @property
    def ncf_reason(self) -> um_packet_rows_text: ...
    @ncf_reason.setter
    def ncf_reason(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    sqn_offsets: Pointer[int32_t]
    sqns: Pointer[int64_t]
    message_offsets: Pointer[int32_t]
    topic_index: Pointer[int64_t]
    topic_sqn: Pointer[int64_t]
    first_sqn: Pointer[int64_t]
    fragment_offset: Pointer[int64_t]
    message_length: Pointer[int64_t]
    payload_bytes: Pointer[int32_t]
    sent_ns: Pointer[int64_t]
    @property
    def kind(self) -> um_packet_rows_text: ...
    @kind.setter
    def kind(self, value: um_packet_rows_text | dict[str, Any] | Sequence[Any]) -> None: ...
    next_sqn: Pointer[int64_t]
    window_bytes: Pointer[int64_t]
    group_tag: Pointer[int64_t]
    receiver_id: Pointer[int64_t]
    present: Pointer[uint32_t]
    message_present: Pointer[uint8_t]
    resolution: Pointer[uint8_t]
    resolution_capacity: int
    @property
    def bitmaps(self) -> Pointer[Pointer[uint8_t]]: ...
    @bitmaps.setter
    def bitmaps(self, value: Pointer[Pointer[uint8_t]] | Sequence[Any]) -> None: ...
    @property
    def message_bitmaps(self) -> Pointer[Pointer[uint8_t]]: ...
    @message_bitmaps.setter
    def message_bitmaps(self, value: Pointer[Pointer[uint8_t]] | Sequence[Any]) -> None: ...
    row_count: int
    message_count: int
    sqn_count: int
    resolution_bytes: int
    @property
    def set_counts(self) -> Pointer[uint32_t]: ...
    @set_counts.setter
    def set_counts(self, value: Pointer[uint32_t] | Sequence[Any]) -> None: ...
    @property
    def message_set_counts(self) -> Pointer[uint32_t]: ...
    @message_set_counts.setter
    def message_set_counts(self, value: Pointer[uint32_t] | Sequence[Any]) -> None: ...

class um_packet_rows_options(CData):
    @property
    def ports(self) -> um_packet_rows_ports: ...
    @ports.setter
    def ports(self, value: um_packet_rows_ports | dict[str, Any] | Sequence[Any]) -> None: ...
    only_ours: bool
    @property
    def selection(self) -> um_packet_selection: ...
    @selection.setter
    def selection(self, value: um_packet_selection | dict[str, Any] | Sequence[Any]) -> None: ...
    tally: um_tally

class um_packet_rows_ports(CData):
    lbtrm_low: int
    lbtrm_high: int
    lbtru_low: int
    lbtru_high: int
    resolution_low: int
    resolution_high: int

class um_packet_rows_text(CData):
    offsets: Pointer[int32_t]
    data: Pointer[char]

class um_packet_selection(CData):
    by_time: bool
    time_low_ns: int
    time_high_ns: int
    types: int
    session_count: int
    @property
    def sessions(self) -> Pointer[uint32_t]: ...
    @sessions.setter
    def sessions(self, value: Pointer[uint32_t] | Sequence[Any]) -> None: ...
    destination_count: int
    @property
    def destinations(self) -> um_packet_destination: ...
    @destinations.setter
    def destinations(self, value: um_packet_destination | Sequence[Any]) -> None: ...

class um_pcapng_packet(CData):
    time_ns: int
    interface_id: int
    wire_bytes: int
    direction: int
    drop_count: int
    queue: int
    verdict: int

class um_pcapng_writer(CData): ...

class um_properties_place(CData):
    offset: int
    bytes: int

class um_publication(CData): ...
class um_publication_session(CData): ...

class um_random(CData):
    state: int

class um_range_bounds(CData):
    has_low_sqn: bool
    has_count: bool
    has_bytes: bool
    has_age: bool
    low_sqn: int
    count: int
    bytes: int
    age_ns: int

class um_range_request(CData):
    topic_index: int
    request_index: int
    outstanding_max: int
    @property
    def bounds(self) -> um_range_bounds: ...
    @bounds.setter
    def bounds(self, value: um_range_bounds | dict[str, Any] | Sequence[Any]) -> None: ...

class um_received_datagram(CData):
    @property
    def source(self) -> um_address: ...
    @source.setter
    def source(self, value: um_address | dict[str, Any] | Sequence[Any]) -> None: ...
    bytes: int

class um_receiver_account(CData):
    @property
    def address(self) -> um_address: ...
    @address.setter
    def address(self, value: um_address | dict[str, Any] | Sequence[Any]) -> None: ...
    last_seen_ns: int
    last_nak_ns: int
    naks: int
    bytes: int
    refused: int
    too_late: int
    round_trip_ns: int
    @property
    def bucket(self) -> um_repair_bucket: ...
    @bucket.setter
    def bucket(self, value: um_repair_bucket | dict[str, Any] | Sequence[Any]) -> None: ...
    over_since_ns: int
    over_ns: int
    noisy_ns: int
    loses_ns: int
    reported_sqn: int
    has_reported: bool
    is_member: bool
    is_new_member: bool
    is_cut_off: bool

class um_receiver_config(CData):
    ordered_delivery: int
    map_entries_max: int
    burst_loss_max: int
    loss_check_interval_ns: int
    use_otr: bool
    source_notification: bool
    is_hot_failover: bool
    otr_initial_delay_ns: int
    otr_caching_threshold: int

class um_receiver_session_config(CData):
    @property
    def id(self) -> um_session_id: ...
    @id.setter
    def id(self, value: um_session_id | dict[str, Any] | Sequence[Any]) -> None: ...
    nak_initial_backoff_ns: int
    nak_backoff_ns: int
    nak_suppress_ns: int
    adaptive_timers: int
    nak_generation_ns: int
    activity_timeout_ns: int
    preactivity_timeout_ns: int
    send_naks: bool
    nak_rate_limit: int
    nak_cutoff_interval_ns: int
    datagram_max_bytes: int
    receive_max_bytes: int
    loss_capacity: int
    topic_capacity: int
    window_bytes: int
    status_interval_ns: int
    receiver_id: int
    group_tag: int
    random_seed: int
    key_set: int
    connect_interval_ns: int
    maximum_connect_attempts: int
    acknowledgement_interval_ns: int
    port_low: int
    port_high: int
    reconnect_interval_ns: int
    reconnect_timeout_ns: int
    connection_timeout_ns: int
    receive_buffer_bytes: int

class um_relayed_part(CData):
    query_count: int
    record_count: int
    left_out_count: int
    has_packet_options: bool
    @property
    def records(self) -> um_lbmr_place: ...
    @records.setter
    def records(self, value: um_lbmr_place | Sequence[Any]) -> None: ...

class um_relayed_records(CData): ...

class um_repair_bucket(CData):
    credit_bytes: int
    filled_ns: int

class um_request(CData):
    index: int
    ip: int
    port: int

class um_resolution_tags(CData): ...
class um_resolver_cache(CData): ...

class um_resolver_intake(CData):
    query_count: int
    advertisement_count: int
    ignored_count: int
    owner_queries: int
    owner_records: int
    @property
    def records(self) -> um_lbmr_place: ...
    @records.setter
    def records(self, value: um_lbmr_place | Sequence[Any]) -> None: ...

class um_retention_config(CData):
    size_limit_bytes: int
    size_threshold_bytes: int
    age_threshold_ns: int

class um_rings(CData): ...

class um_row(CData):
    flags: int
    sequence_number: int
    first_sequence_number: int
    fragment_offset: int
    message_length: int
    source: int
    received_ns: int
    sent_ns: int

class um_rows(CData):
    block: um_block
    first: int
    count: int

class um_rows_summary(CData):
    event_count: int
    payload_length: int
    source: int
    sent_count: int
    plain: bool
    has_requests: bool
    has_properties: bool

class um_served(CData):
    skip: int
    consumed: int
    written: int

class um_session_id(CData):
    @property
    def source(self) -> um_address: ...
    @source.setter
    def source(self, value: um_address | dict[str, Any] | Sequence[Any]) -> None: ...
    @property
    def group(self) -> um_address: ...
    @group.setter
    def group(self, value: um_address | dict[str, Any] | Sequence[Any]) -> None: ...
    session_id: int
    transport: int

class um_siphash_key(CData):
    k0: int
    k1: int

class um_source_claim(CData):
    @property
    def claim(self) -> um_claim: ...
    @claim.setter
    def claim(self, value: um_claim | dict[str, Any] | Sequence[Any]) -> None: ...
    payload: Pointer[uint8_t]
    length: int

class um_source_config(CData):
    topic_index: int
    initial_sqn: int
    tsni_interval_ns: int
    tsni_threshold_ns: int
    explicit_capacity: int
    has_send_time: bool

class um_source_event(CData):
    kind: int
    @property
    def receiver(self) -> um_address: ...
    @receiver.setter
    def receiver(self, value: um_address | dict[str, Any] | Sequence[Any]) -> None: ...
    count: int

class um_source_session_config(CData):
    transport: int
    session_id: int
    nak_port: int
    @property
    def group(self) -> um_address: ...
    @group.setter
    def group(self, value: um_address | dict[str, Any] | Sequence[Any]) -> None: ...
    initial_sqn: int
    initial_term_id: int
    term_length: int
    window_bytes: int
    publication_window_bytes: int
    datagram_max_bytes: int
    coalesce_threshold: int
    batch_minimum_bytes: int
    batch_interval_ns: int
    ignore_interval_ns: int
    sm_minimum_interval_ns: int
    sm_maximum_interval_ns: int
    sm_floor_ns: int
    adaptive_timers: int
    unblock_timeout_ns: int
    flow_policy: int
    flow_group_tag: int
    flow_group_minimum_size: int
    flow_receiver_timeout_ns: int
    flow_stall_timeout_ns: int
    flow_network_count: int
    @property
    def flow_networks(self) -> um_network: ...
    @flow_networks.setter
    def flow_networks(self, value: um_network | Sequence[Any]) -> None: ...
    repair_budget_bps: int
    nak_cutoff_interval_ns: int
    key_set: int
    data_trailer_bytes: int
    control_trailer_bytes: int
    client_capacity: int
    client_buckets: int
    client_timeout_ns: int
    @property
    def client_key(self) -> um_siphash_key: ...
    @client_key.setter
    def client_key(self, value: um_siphash_key | dict[str, Any] | Sequence[Any]) -> None: ...
    has_filter: bool

class um_stream_findings(CData):
    gap_count: int
    gap_bytes: int
    displaced_count: int
    unlisted_count: int

class um_stream_greeting(CData):
    kind: int
    subject: int
    key_id: int

class um_stream_tags(CData): ...
class um_streams(CData): ...
class um_subscription(CData): ...

class um_tally(CData):
    window_ns: int
    epoch_ns: int
    send_capacity: int
    streams: um_tally_stream
    sends: um_tally_send
    rates: um_tally_rate
    references: um_tally_reference
    sizes: um_tally_size
    topics: um_tally_topic
    stream_count: int
    latest_stream: int
    send_count: int
    rate_count: int
    reference_count: int
    size_count: int
    topic_count: int

class um_tally_rate(CData):
    start_ns: int
    stream: int
    datagram_count: int
    bytes: int

class um_tally_reference(CData):
    epoch: int
    time_ns: int
    sqn: int
    stream: int

class um_tally_send(CData):
    time_ns: int
    sqn: int
    stream: int

class um_tally_size(CData):
    stream: int
    udp_bytes: int
    message_count: int
    datagram_count: int
    message_bytes: int
    frame_bytes: int

class um_tally_stream(CData):
    interface: int
    key: int
    @property
    def source(self) -> Pointer[uint8_t]: ...
    @source.setter
    def source(self, value: Pointer[char] | Pointer[uint8_t] | bytes | Sequence[Any]) -> None: ...
    @property
    def destination(self) -> Pointer[uint8_t]: ...
    @destination.setter
    def destination(self, value: Pointer[char] | Pointer[uint8_t] | bytes | Sequence[Any]) -> None: ...
    destination_port: int
    window_ns: int
    window_end_ns: int
    first_ns: int
    last_ns: int
    packet_count: int
    message_count: int
    message_bytes: int
    udp_bytes: int
    rate: int
    reference: int

class um_tally_topic(CData):
    stream: int
    topic_index: int
    lowest_sqn: int
    highest_sqn: int
    first_ns: int
    last_ns: int
    message_count: int
    fragment_count: int
    payload_bytes: int

class um_tap_config(CData):
    path: Pointer[char]
    file_name: Pointer[char]
    rotate_bytes: int
    rotate_ns: int
    keep_files: int
    interface: Pointer[char]
    ring_bytes: int
    snap_bytes: int
    ttl: int

class um_tap_counters(CData):
    written_count: int
    dropped_count: int
    file_bytes: int
    file_count: int
    error: int

class um_tcp_source_config(CData):
    interface_ip: int
    port_low: int
    port_high: int
    listen_backlog: int
    send_buffer_bytes: int
    backlog_bytes: int
    is_source_paced: bool
    has_filter: bool
    no_delay: bool
    wants_session_id: bool
    activity_timeout_ns: int
    stall_timeout_ns: int

class _CoreLib:
    UM_ACCOUNTS_MAX: int
    UM_ADAPTIVE_BACKOFF: int
    UM_ADAPTIVE_IGNORE: int
    UM_ADAPTIVE_INITIAL: int
    UM_ADAPTIVE_REPORTS: int
    UM_ADAPTIVE_SM: int
    UM_ADAPTIVE_SUPPRESS: int
    UM_ADMIN_ACTION: int
    UM_AUTHENTICATE_ALL: int
    UM_AUTHENTICATE_CONTROL: int
    UM_AUTHENTICATE_NONE: int
    UM_BACK_PRESSURED: int
    UM_CAPTURE_CLOCK_STEP_NS: int
    UM_CAPTURE_DAMAGED: int
    UM_CAPTURE_ENDED: int
    UM_CAPTURE_FOREIGN: int
    UM_CAPTURE_FULL: int
    UM_CAPTURE_INCOMPLETE: int
    UM_CAPTURE_INTERFACES_MAX: int
    UM_CAPTURE_NAME_BYTES: int
    UM_CAPTURE_NO_VERDICT: int
    UM_CAPTURE_OTHER_VERDICT: int
    UM_CAPTURE_PACKET: int
    UM_CAPTURE_PCAP: int
    UM_CAPTURE_PCAPNG: int
    UM_CAPTURE_RECORD_BYTES_MAX: int
    UM_CAPTURE_UNKNOWN: int
    UM_CAPTURE_VERDICTS: int
    UM_CAPTURE_XDP_ABORTED: int
    UM_CAPTURE_XDP_DROP: int
    UM_CAPTURE_XDP_PASS: int
    UM_CAPTURE_XDP_REDIRECT: int
    UM_CAPTURE_XDP_TX: int
    UM_CLOSED: int
    UM_DATAGRAM_BATCH_MAX: int
    UM_DATAGRAM_BYTES_MAX: int
    UM_DATAGRAM_BYTES_MIN: int
    UM_DERIVED_KEY_BYTES: int
    UM_ETHERNET_HEADER_BYTES: int
    UM_ETHERTYPE_AT: int
    UM_ETHERTYPE_IPV4: int
    UM_ETHERTYPE_IPV6: int
    UM_ETHERTYPE_SERVICE_VLAN: int
    UM_ETHERTYPE_VLAN: int
    UM_FETCH_CONNECT: int
    UM_FETCH_DISCONNECT: int
    UM_FETCH_WAIT: int
    UM_FLOW_MAX: int
    UM_FLOW_MIN: int
    UM_FLOW_NETWORKS_MAX: int
    UM_FLOW_NONE: int
    UM_FLOW_RECEIVERS_MAX: int
    UM_FLOW_TAGGED: int
    UM_FRAME_ALIGNMENT: int
    UM_FRAME_HEADER_BYTES: int
    UM_FRAME_LENGTH_MAX: int
    UM_GENERATE_FRAME_BYTES_MAX: int
    UM_GENERATE_GIVEN_UP: int
    UM_GENERATE_NAKS_MAX: int
    UM_GENERATE_OPEN: int
    UM_GENERATE_PENDING_MAX: int
    UM_GENERATE_RECEIVERS_MAX: int
    UM_GENERATE_RECOVERED: int
    UM_GENERATE_REFUSED: int
    UM_GENERATE_RUN_MAX: int
    UM_GENERATE_SESSIONS_MAX: int
    UM_GENERATE_STEP_BYTES_MAX: int
    UM_GENERATE_STEP_LOSSES_MAX: int
    UM_GREETING_NONCE_BYTES: int
    UM_HF_GAP_MAX: int
    UM_HF_INPUTS_MAX: int
    UM_HF_NEIGHBOURS: int
    UM_HF_SOURCES: int
    UM_IPV4_CHECKSUM_AT: int
    UM_IPV4_DONT_FRAGMENT: int
    UM_IPV4_FRAGMENT_AT: int
    UM_IPV4_FRAGMENT_MASK: int
    UM_IPV4_FROM_AT: int
    UM_IPV4_HEADER_BYTES: int
    UM_IPV4_IDENTIFICATION_AT: int
    UM_IPV4_LENGTH_AT: int
    UM_IPV4_OFFSET_MASK: int
    UM_IPV4_PROTOCOL_AT: int
    UM_IPV4_TO_AT: int
    UM_IPV4_TTL_AT: int
    UM_IPV4_UDP_HEADER_BYTES: int
    UM_IPV4_VERSION_AND_LENGTH: int
    UM_KEYS_PER_SET: int
    UM_KEY_BYTES: int
    UM_KEY_SETS_MAX: int
    UM_LATENCY_BUCKETS: int
    UM_LATENCY_OCTAVE_FIRST: int
    UM_LBTRM_DATA_BYTES: int
    UM_LBTRM_HEADER_BYTES: int
    UM_LBTRM_NAK_BYTES: int
    UM_LBTRM_NCF_BYTES: int
    UM_LBTRM_SM_BYTES: int
    UM_LOG_CLEAN_AHEAD_BYTES: int
    UM_LOG_TERM_BYTES_MAX: int
    UM_LOG_TERM_BYTES_MIN: int
    UM_LOG_TERM_COUNT: int
    UM_MAC_BYTES: int
    UM_MAX_POSITION_EXCEEDED: int
    UM_MESSAGE_BATCH_END: int
    UM_MESSAGE_BATCH_START: int
    UM_MESSAGE_FRAGMENT: int
    UM_MESSAGE_HF_DUPLICATE: int
    UM_MESSAGE_HOT_FAILOVER: int
    UM_MESSAGE_OTR: int
    UM_MESSAGE_PROPERTIES: int
    UM_MESSAGE_REQUEST: int
    UM_MESSAGE_RETRANSMIT: int
    UM_NAK_CUTOFF_CONTEXT: int
    UM_NAK_CUTOFF_RECEIVERS: int
    UM_NAK_CUTOFF_SESSION: int
    UM_NOT_CONNECTED: int
    UM_ORDERED_ARRIVAL: int
    UM_ORDERED_FRAGMENTS: int
    UM_ORDERED_SEQUENCE: int
    UM_PACKETS_ACK: int
    UM_PACKETS_ADDRESS_BYTES_MAX: int
    UM_PACKETS_BITS: int
    UM_PACKETS_CLIENT: int
    UM_PACKETS_DATA: int
    UM_PACKETS_DROPPED: int
    UM_PACKETS_FLAGS: int
    UM_PACKETS_INNER_VLAN: int
    UM_PACKETS_IP: int
    UM_PACKETS_IP_FRAGMENT: int
    UM_PACKETS_KIND_BYTES_MAX: int
    UM_PACKETS_LIST: int
    UM_PACKETS_MESSAGES: int
    UM_PACKETS_MESSAGE_BITS: int
    UM_PACKETS_MESSAGE_LENGTH: int
    UM_PACKETS_MESSAGE_SENT: int
    UM_PACKETS_MESSAGE_TOPIC: int
    UM_PACKETS_MULTIPLE: int
    UM_PACKETS_NAK_PORT: int
    UM_PACKETS_NCF: int
    UM_PACKETS_PACKET_ITEMS_MAX: int
    UM_PACKETS_PORTS: int
    UM_PACKETS_QUEUE: int
    UM_PACKETS_REASON_BYTES_MAX: int
    UM_PACKETS_RECOVERY: int
    UM_PACKETS_RECOVERY_BYTES_MAX: int
    UM_PACKETS_RESOLUTION_BYTES_MAX: int
    UM_PACKETS_RETRANSMISSION: int
    UM_PACKETS_SESSION: int
    UM_PACKETS_SM: int
    UM_PACKETS_STATUS: int
    UM_PACKETS_STATUS_BYTES_MAX: int
    UM_PACKETS_TCP: int
    UM_PACKETS_TEXT_SLACK_BYTES: int
    UM_PACKETS_TIME: int
    UM_PACKETS_TO_SOURCE: int
    UM_PACKETS_TRAIL: int
    UM_PACKETS_TRANSPORT: int
    UM_PACKETS_TRANSPORT_BYTES_MAX: int
    UM_PACKETS_TYPE: int
    UM_PACKETS_TYPE_BYTES_MAX: int
    UM_PACKETS_UDP: int
    UM_PACKETS_VERDICT: int
    UM_PACKETS_VERDICT_BYTES_MAX: int
    UM_PACKETS_VLAN: int
    UM_PACKET_SELECTION_VALUES_MAX: int
    UM_PCAPNG_INBOUND: int
    UM_PCAPNG_LINK_ETHERNET: int
    UM_PCAPNG_LINK_IPV4: int
    UM_PCAPNG_NO_DIRECTION: int
    UM_PCAPNG_OUTBOUND: int
    UM_PCAPNG_PACKET_MAX_BYTES: int
    UM_PCAPNG_UNKNOWN: int
    UM_PROPERTIES_BYTES_MAX: int
    UM_PROPERTIES_HEAD_BYTES: int
    UM_PROPERTIES_MAGIC: int
    UM_PROPERTY_BOOLEAN: int
    UM_PROPERTY_BYTE: int
    UM_PROPERTY_BYTES: int
    UM_PROPERTY_DOUBLE: int
    UM_PROPERTY_FLOAT: int
    UM_PROPERTY_INT: int
    UM_PROPERTY_LONG: int
    UM_PROPERTY_NAME_BYTES_MAX: int
    UM_PROPERTY_SHORT: int
    UM_PROPERTY_STRING: int
    UM_PROTOCOL_UDP: int
    UM_QUEUE_BLOCKS_MAX: int
    UM_QUEUE_MESSAGE_BYTES_MIN: int
    UM_QUEUE_PINNED_BYTES_MIN: int
    UM_RANGE_REQUEST_BYTES_MAX: int
    UM_RATE_LIMITED: int
    UM_RECEIVED_EVENT: int
    UM_RECEIVED_NOTHING: int
    UM_RECEIVING_DIRECT_MAX: int
    UM_RECEIVING_ENDED_MAX: int
    UM_RECEIVING_GROUPS_MAX: int
    UM_RECORD_BYTES_MAX: int
    UM_RECORD_COVERED_BYTES: int
    UM_RECORD_HEADER_BYTES: int
    UM_RECOVERY_BUCKETS: int
    UM_RECOVERY_OCTAVE_FIRST: int
    UM_RECOVERY_RANGE_BYTES: int
    UM_RECOVERY_REQUEST_BYTES: int
    UM_RESOLVER_SESSIONS_MAX: int
    UM_ROW_BEGINNING_OF_SESSION: int
    UM_ROW_BURST_LOSS: int
    UM_ROW_END_OF_SESSION: int
    UM_ROW_HF_RESET: int
    UM_ROW_MESSAGE: int
    UM_ROW_NAK_CUTOFF: int
    UM_ROW_NO_SOURCE: int
    UM_ROW_SOURCE_CREATED: int
    UM_ROW_SOURCE_DELETED: int
    UM_ROW_UNRECOVERABLE_LOSS: int
    UM_SEND_CONTINUED: int
    UM_SEND_END_BATCH: int
    UM_SEND_FLUSH: int
    UM_SEND_START_BATCH: int
    UM_SOURCE_CLIENT_CONNECTED: int
    UM_SOURCE_CLIENT_DISCONNECTED: int
    UM_SOURCE_CLIENT_REFUSED: int
    UM_SOURCE_EVENTS_MAX: int
    UM_SOURCE_RECEIVER_CUT_OFF: int
    UM_SOURCE_RECEIVER_GONE: int
    UM_SOURCE_RECEIVER_KNOWN: int
    UM_SOURCE_RECEIVER_LOSES: int
    UM_SOURCE_RECEIVER_NOISY: int
    UM_SOURCE_RECEIVER_RETURNED: int
    UM_SOURCE_RECEIVER_STALLED: int
    UM_STAMP_COUNT_BITS: int
    UM_STAMP_QUARTER_NS: int
    UM_STATISTICS_FIELDS_MAX: int
    UM_STREAM_DATAGRAM_BYTES_MAX: int
    UM_STREAM_KINDS: int
    UM_STREAM_REQUESTS: int
    UM_STREAM_RESPONSES: int
    UM_STREAM_SESSION: int
    UM_TAG_BYTES: int
    UM_TAG_KEY_UNKNOWN: int
    UM_TAG_MISSING: int
    UM_TAG_OK: int
    UM_TAG_REPLAYED: int
    UM_TAG_STALE: int
    UM_TAG_STATUS_COUNT: int
    UM_TAG_WRONG: int
    UM_TALLY_BLOCK_BITS: int
    UM_TALLY_BUCKET_NS: int
    UM_TALLY_PACKET_MESSAGES_MAX: int
    UM_TALLY_SLOTS: int
    UM_TALLY_STREAMS_MAX: int
    UM_TALLY_UNICAST: int
    UM_TOPIC_HAS_RECEIVER: int
    UM_TOPIC_HAS_SOURCE: int
    UM_TOPIC_INTERESTS: int
    UM_TRAILER_BYTES: int
    UM_TRAILER_COVERED_BYTES: int
    UM_TRANSPORT_LBTRM: int
    UM_TRANSPORT_LBTRU: int
    UM_TRANSPORT_TCP: int
    UM_UDP_CHECKSUM_AT: int
    UM_UDP_HEADER_BYTES: int
    UM_UDP_LENGTH_AT: int
    UM_UDP_TO_AT: int
    UM_VLAN_TAG_BYTES: int
    def um_adaptive_spin_init(self, a1: um_adaptive_spin, a2: int, /) -> None: ...
    def um_adaptive_spin_on_event(self, a1: um_adaptive_spin, a2: int, /) -> None: ...
    def um_adaptive_spin_until_ns(self, a1: um_adaptive_spin, /) -> int: ...
    def um_capture_add_interface(self, a1: um_capture_reader, a2: um_capture_interface, /) -> int: ...
    def um_capture_next(
        self,
        a1: um_capture_reader,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: int,
        a5: Pointer[uint64_t],
        a6: um_capture_packet,
        /,
    ) -> int: ...
    def um_capture_reader_init(self, a1: um_capture_reader, /) -> None: ...
    def um_capture_skip(
        self,
        a1: um_capture_reader,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: int,
        a5: Pointer[uint64_t],
        /,
    ) -> int: ...
    def um_context_close(self, a1: um_context, /) -> None: ...
    def um_context_create(self, a1: um_context_config, a2: Pointer[um_context], /) -> int: ...
    def um_context_ephemeral_ports(self, a1: um_context, /) -> int: ...
    def um_context_failed_step(self, a1: um_context, /) -> Pointer[char]: ...
    def um_context_free(self, a1: um_context, /) -> None: ...
    def um_context_groups(self, a1: um_context, a2: um_address, a3: int, /) -> int: ...
    def um_context_process(self, a1: um_context, a2: int, /) -> int: ...
    def um_context_receive_buffer(self, a1: um_context, /) -> int: ...
    def um_context_session_config(
        self, a1: um_context, a2: um_session_id, a3: um_receiver_session_config, /
    ) -> bool: ...
    def um_context_set_datagram_max(self, a1: um_context, a2: int, /) -> None: ...
    def um_context_set_keys(self, a1: um_context, a2: int, a3: um_key_set, /) -> int: ...
    def um_context_set_nak_cutoff(self, a1: um_context, a2: bool, /) -> None: ...
    def um_context_start(self, a1: um_context, /) -> int: ...
    def um_context_stop(self, a1: um_context, /) -> None: ...
    def um_context_take_ended(self, a1: um_context, a2: um_session_id, /) -> int: ...
    def um_context_take_recoveries(self, a1: um_context, a2: um_begun_recovery, a3: int, /) -> int: ...
    def um_context_tap_datagram(
        self,
        a1: um_context,
        a2: bool,
        a3: um_address | dict[str, Any],
        a4: um_address | dict[str, Any],
        a5: Pointer[char] | Pointer[uint8_t] | bytes,
        a6: int,
        /,
    ) -> None: ...
    def um_context_tap_is_running(self, a1: um_context, /) -> bool: ...
    def um_context_tap_read(self, a1: um_context, a2: um_tap_counters, /) -> None: ...
    def um_context_tap_start(self, a1: um_context, a2: um_tap_config, /) -> int: ...
    def um_context_tap_stop(self, a1: um_context, a2: um_tap_counters, /) -> int: ...
    def um_context_unblock(self, a1: um_context, /) -> None: ...
    def um_context_wait(self, a1: um_context, a2: int, a3: int, /) -> bool: ...
    def um_context_watch_recoveries(self, a1: um_context, a2: int, /) -> None: ...
    def um_datagram_fan_out(
        self,
        a1: int,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: um_address,
        a5: int,
        a6: int,
        /,
    ) -> int: ...
    def um_datagram_frame(
        self,
        a1: Pointer[char] | Pointer[uint8_t] | bytes,
        a2: um_address | dict[str, Any],
        a3: um_address | dict[str, Any],
        a4: int,
        a5: int,
        a6: Pointer[char] | Pointer[uint8_t] | bytes,
        a7: int,
        a8: int,
        /,
    ) -> None: ...
    def um_datagram_receive(
        self,
        a1: int,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: um_received_datagram,
        a5: int,
        /,
    ) -> int: ...
    def um_event_queue_append_event(self, a1: um_event_queue, a2: int, a3: int, a4: int, /) -> bool: ...
    def um_event_queue_arm(self, a1: um_event_queue, /) -> bool: ...
    def um_event_queue_close(self, a1: um_event_queue, /) -> None: ...
    def um_event_queue_descriptor(self, a1: um_event_queue, /) -> int: ...
    def um_event_queue_free(self, a1: um_event_queue, /) -> None: ...
    def um_event_queue_hot_failover(self, a1: um_event_queue, a2: um_hot_failover_config, /) -> int: ...
    def um_event_queue_hot_failover_counters(self, a1: um_event_queue, a2: Pointer[uint64_t], /) -> int: ...
    def um_event_queue_join(self, a1: um_event_queue, a2: um_event_queue, /) -> int: ...
    def um_event_queue_look(self, a1: um_event_queue, a2: int, a3: um_rows, /) -> int: ...
    def um_event_queue_note_service(self, a1: um_event_queue, a2: int, /) -> None: ...
    def um_event_queue_open(
        self, a1: um_context, a2: um_event_queue_config, a3: Pointer[um_event_queue], /
    ) -> int: ...
    def um_event_queue_poll(self, a1: um_event_queue, a2: int, a3: int, a4: um_rows, /) -> int: ...
    def um_event_queue_receive(
        self,
        a1: um_event_queue,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: int,
        a5: um_row,
        /,
    ) -> int: ...
    def um_event_queue_take(self, a1: um_event_queue, a2: int, a3: um_rows, /) -> int: ...
    def um_fetch_begin(self, a1: um_fetch, /) -> None: ...
    def um_fetch_on_connect(self, a1: um_fetch, /) -> None: ...
    def um_fetch_on_disconnect(self, a1: um_fetch, /) -> None: ...
    def um_fetch_request_range(
        self, a1: um_fetch, a2: Pointer[char] | Pointer[uint8_t] | bytes, /
    ) -> int: ...
    def um_generator_init(self, a1: um_generator, a2: um_generate_config, /) -> int: ...
    def um_generator_open_losses(self, a1: um_generator, a2: um_generate_loss, a3: int, /) -> int: ...
    def um_generator_run(
        self,
        a1: um_generator,
        a2: int,
        a3: Pointer[char] | Pointer[uint8_t] | bytes,
        a4: int,
        a5: um_generate_loss,
        a6: int,
        a7: Pointer[uint64_t],
        a8: Pointer[uint32_t],
        /,
    ) -> None: ...
    def um_interface_capture_begin_file(
        self, a1: um_interface_capture, a2: Pointer[char] | Pointer[uint8_t] | bytes, /
    ) -> int: ...
    def um_interface_capture_close(self, a1: um_interface_capture, /) -> None: ...
    def um_interface_capture_end_arrivals(self, a1: um_interface_capture, /) -> int: ...
    def um_interface_capture_end_file(self, a1: um_interface_capture, /) -> int: ...
    def um_interface_capture_failed_step(self, a1: um_interface_capture, /) -> Pointer[char]: ...
    def um_interface_capture_has_file(self, a1: um_interface_capture, /) -> bool: ...
    def um_interface_capture_is_drained(self, a1: um_interface_capture, /) -> bool: ...
    def um_interface_capture_open(
        self, a1: um_interface_capture_config, a2: Pointer[um_interface_capture], /
    ) -> int: ...
    def um_interface_capture_read(
        self, a1: um_interface_capture, a2: um_interface_capture_counters, /
    ) -> None: ...
    def um_interface_capture_splits_runs(self, a1: um_interface_capture, /) -> bool: ...
    def um_interface_capture_wait(self, a1: um_interface_capture, a2: int, /) -> int: ...
    def um_interface_capture_write(
        self, a1: um_interface_capture, a2: um_interface_capture_arrivals, a3: int, /
    ) -> int: ...
    def um_mac_library(self) -> Pointer[char]: ...
    def um_message_properties_is_sound(
        self, a1: Pointer[char] | Pointer[uint8_t] | bytes, a2: int, /
    ) -> bool: ...
    def um_packet_rows_begin(self, a1: um_packet_rows, /) -> None: ...
    def um_packet_rows_decode(
        self,
        a1: um_capture_reader,
        a2: um_packet_rows,
        a3: um_packet_rows_options,
        a4: Pointer[char] | Pointer[uint8_t] | bytes,
        a5: int,
        a6: int,
        a7: int,
        a8: Pointer[uint64_t],
        /,
    ) -> int: ...
    def um_packet_rows_finish(self, a1: um_packet_rows, /) -> None: ...
    def um_pcapng_add_interface(
        self,
        a1: um_pcapng_writer,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: int,
        a5: Pointer[char] | Pointer[uint8_t] | bytes,
        /,
    ) -> None: ...
    def um_pcapng_close(self, a1: um_pcapng_writer, /) -> int: ...
    def um_pcapng_open(
        self, a1: um_pcapng_writer, a2: Pointer[char] | Pointer[uint8_t] | bytes, /
    ) -> int: ...
    def um_pcapng_write(
        self,
        a1: um_pcapng_writer,
        a2: um_pcapng_packet,
        a3: Pointer[char] | Pointer[uint8_t] | bytes,
        a4: int,
        a5: Pointer[char] | Pointer[uint8_t] | bytes,
        a6: int,
        /,
    ) -> None: ...
    def um_publication_abort(self, a1: um_publication, a2: um_source_claim, /) -> None: ...
    def um_publication_claim(
        self, a1: um_publication, a2: int, a3: um_source_claim, a4: int, a5: int, /
    ) -> int: ...
    def um_publication_close(self, a1: um_publication, /) -> None: ...
    def um_publication_commit(self, a1: um_publication, a2: um_source_claim, a3: int, /) -> int: ...
    def um_publication_connected(self, a1: um_publication, /) -> bool: ...
    def um_publication_disown(self, a1: um_publication, /) -> None: ...
    def um_publication_drained(self, a1: um_publication, /) -> bool: ...
    def um_publication_flush(self, a1: um_publication, /) -> int: ...
    def um_publication_free(self, a1: um_publication, /) -> None: ...
    def um_publication_message_max(self, a1: um_publication, /) -> int: ...
    def um_publication_open(
        self, a1: um_publication_session, a2: um_source_config, a3: Pointer[um_publication], /
    ) -> int: ...
    def um_publication_retain(self, a1: um_publication, a2: um_retention_config, /) -> int: ...
    def um_publication_retained(
        self, a1: um_publication, a2: um_range_bounds, a3: Pointer[uint32_t], a4: Pointer[uint32_t], /
    ) -> int: ...
    def um_publication_send(
        self, a1: um_publication, a2: Pointer[char] | Pointer[uint8_t] | bytes, a3: int, a4: int, a5: int, /
    ) -> int: ...
    def um_publication_send_many(
        self,
        a1: um_publication,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: Pointer[uint32_t],
        a5: Pointer[int32_t],
        a6: int,
        a7: int,
        a8: int,
        /,
    ) -> int: ...
    def um_publication_send_with(
        self,
        a1: um_publication,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: um_lbmc_extras,
        a5: int,
        a6: int,
        /,
    ) -> int: ...
    def um_publication_sendable(self, a1: um_publication, /) -> bool: ...
    def um_publication_serve(
        self,
        a1: um_publication,
        a2: um_served,
        a3: Pointer[char] | Pointer[uint8_t] | bytes,
        a4: int,
        a5: Pointer[char] | Pointer[uint8_t] | bytes,
        a6: int,
        /,
    ) -> int: ...
    def um_publication_session_accounts(
        self, a1: um_publication_session, a2: um_receiver_account, /
    ) -> int: ...
    def um_publication_session_cut_off(
        self, a1: um_publication_session, a2: um_address | dict[str, Any], a3: bool, /
    ) -> bool: ...
    def um_publication_session_events(
        self, a1: um_publication_session, a2: int, a3: um_source_event, a4: Pointer[uint64_t], /
    ) -> int: ...
    def um_publication_session_limit_datagram(self, a1: um_publication_session, a2: int, /) -> None: ...
    def um_publication_session_memory(
        self, a1: um_publication_session, a2: Pointer[size_t], /
    ) -> Pointer[void]: ...
    def um_publication_session_open(
        self,
        a1: um_context,
        a2: um_source_session_config,
        a3: int,
        a4: int,
        a5: Pointer[um_publication_session],
        /,
    ) -> int: ...
    def um_publication_session_open_tcp(
        self,
        a1: um_context,
        a2: um_source_session_config,
        a3: um_tcp_source_config,
        a4: Pointer[um_publication_session],
        /,
    ) -> int: ...
    def um_publication_session_shut(self, a1: um_publication_session, /) -> None: ...
    def um_publication_wakeup_fd(self, a1: um_publication, /) -> int: ...
    def um_queue_release(self, a1: um_block, a2: int, /) -> None: ...
    def um_range_request_read(
        self, a1: Pointer[char] | Pointer[uint8_t] | bytes, a2: int, a3: um_range_request, /
    ) -> bool: ...
    def um_range_request_write(
        self, a1: Pointer[char] | Pointer[uint8_t] | bytes, a2: um_range_request, /
    ) -> int: ...
    def um_recovery_write_range(
        self, a1: Pointer[char] | Pointer[uint8_t] | bytes, a2: int, a3: int, a4: int, /
    ) -> int: ...
    def um_relayed_records_footprint(self) -> int: ...
    def um_relayed_records_forget(self, a1: um_relayed_records, /) -> None: ...
    def um_relayed_records_init(
        self, a1: CData | bytes, a2: um_siphash_key | dict[str, Any], /
    ) -> um_relayed_records: ...
    def um_relayed_records_take(
        self,
        a1: um_relayed_records,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: int,
        a5: int,
        a6: int,
        a7: um_relayed_part,
        /,
    ) -> bool: ...
    def um_resolution_tags_append(
        self, a1: um_resolution_tags, a2: Pointer[char] | Pointer[uint8_t] | bytes, a3: int, /
    ) -> int: ...
    def um_resolution_tags_close(self, a1: um_resolution_tags, /) -> None: ...
    def um_resolution_tags_open(
        self, a1: um_key_set, a2: int, a3: um_address | dict[str, Any], a4: int, /
    ) -> um_resolution_tags: ...
    def um_resolution_tags_set_keys(self, a1: um_resolution_tags, a2: um_key_set, /) -> int: ...
    def um_resolution_tags_verify(
        self,
        a1: um_resolution_tags,
        a2: um_address | dict[str, Any],
        a3: Pointer[char] | Pointer[uint8_t] | bytes,
        a4: int,
        /,
    ) -> int: ...
    def um_resolver_cache_add_interest(
        self, a1: um_resolver_cache, a2: Pointer[char] | Pointer[uint8_t] | bytes, a3: int, a4: int, /
    ) -> None: ...
    def um_resolver_cache_count(self, a1: um_resolver_cache, /) -> int: ...
    def um_resolver_cache_evictions(self, a1: um_resolver_cache, /) -> int: ...
    def um_resolver_cache_footprint(self, a1: int, /) -> int: ...
    def um_resolver_cache_init(
        self, a1: CData | bytes, a2: int, a3: um_siphash_key | dict[str, Any], /
    ) -> um_resolver_cache: ...
    def um_resolver_cache_remove_interest(
        self, a1: um_resolver_cache, a2: Pointer[char] | Pointer[uint8_t] | bytes, a3: int, a4: int, /
    ) -> None: ...
    def um_resolver_cache_remove_sessions(
        self, a1: um_resolver_cache, a2: um_session_id, a3: int, /
    ) -> None: ...
    def um_resolver_cache_set_needs_all(self, a1: um_resolver_cache, a2: bool, /) -> None: ...
    def um_resolver_cache_settle(
        self, a1: um_resolver_cache, a2: Pointer[char] | Pointer[uint8_t] | bytes, a3: int, /
    ) -> None: ...
    def um_resolver_cache_sources_of(
        self,
        a1: um_resolver_cache,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: um_known_source,
        a5: int,
        /,
    ) -> int: ...
    def um_resolver_cache_take(
        self,
        a1: um_resolver_cache,
        a2: Pointer[char] | Pointer[uint8_t] | bytes,
        a3: int,
        a4: um_resolver_intake,
        /,
    ) -> bool: ...
    def um_resolver_cache_topics(
        self,
        a1: um_resolver_cache,
        a2: Pointer[uint32_t],
        a3: Pointer[char] | Pointer[uint8_t] | bytes,
        a4: int,
        /,
    ) -> int: ...
    def um_resolver_cache_unsettle(self, a1: um_resolver_cache, /) -> None: ...
    def um_row_kind_of(self, a1: int, /) -> int: ...
    def um_rows_copy(
        self, a1: um_block, a2: int, a3: Pointer[char] | Pointer[uint8_t] | bytes, a4: int, /
    ) -> int: ...
    def um_rows_heads(
        self, a1: um_block, a2: int, a3: int, a4: int, a5: Pointer[char] | Pointer[uint8_t] | bytes, /
    ) -> None: ...
    def um_rows_materialize(self, a1: um_block, a2: int, a3: int, /) -> None: ...
    def um_rows_summarize(self, a1: um_rows, a2: Pointer[int32_t], a3: um_rows_summary, /) -> None: ...
    def um_statistics_context(self, a1: um_context, a2: Pointer[uint64_t], /) -> int: ...
    def um_statistics_event_queue(self, a1: um_event_queue, a2: Pointer[uint64_t], /) -> int: ...
    def um_statistics_latency_histogram(self, a1: um_context, a2: int, a3: Pointer[uint64_t], /) -> int: ...
    def um_statistics_link(self, a1: um_context, a2: Pointer[uint64_t], /) -> int: ...
    def um_statistics_receiver(self, a1: um_subscription, a2: Pointer[uint64_t], /) -> int: ...
    def um_statistics_receiver_transport(
        self, a1: um_context, a2: int, a3: um_session_id, a4: Pointer[uint64_t], /
    ) -> int: ...
    def um_statistics_recovery_histogram(self, a1: um_context, a2: int, a3: Pointer[uint64_t], /) -> int: ...
    def um_statistics_source(self, a1: um_publication, a2: Pointer[uint64_t], /) -> int: ...
    def um_statistics_source_transport(self, a1: um_publication_session, a2: Pointer[uint64_t], /) -> int: ...
    def um_stream_greeting_read(
        self, a1: Pointer[char] | Pointer[uint8_t] | bytes, a2: um_stream_greeting, /
    ) -> bool: ...
    def um_stream_greeting_write(
        self, a1: Pointer[char] | Pointer[uint8_t] | bytes, a2: um_stream_greeting, /
    ) -> int: ...
    def um_stream_key_check(self, a1: um_key, /) -> int: ...
    def um_stream_record_bytes(self, a1: Pointer[char] | Pointer[uint8_t] | bytes, a2: int, /) -> int: ...
    def um_stream_tags_close(self, a1: um_stream_tags, /) -> None: ...
    def um_stream_tags_open(
        self, a1: um_key, a2: int, a3: bool, a4: Pointer[char] | Pointer[uint8_t] | bytes, a5: int, /
    ) -> um_stream_tags: ...
    def um_stream_tags_seal(
        self, a1: um_stream_tags, a2: Pointer[char] | Pointer[uint8_t] | bytes, a3: int, /
    ) -> int: ...
    def um_stream_tags_verify(
        self, a1: um_stream_tags, a2: Pointer[char] | Pointer[uint8_t] | bytes, /
    ) -> int: ...
    def um_streams_load(
        self, a1: um_streams, a2: Pointer[char] | Pointer[uint8_t] | bytes, a3: int, /
    ) -> bool: ...
    def um_streams_read_findings(self, a1: um_streams, a2: um_stream_findings, /) -> None: ...
    def um_streams_set_ports(self, a1: um_streams, a2: int, a3: int, /) -> None: ...
    def um_streams_store(
        self, a1: um_streams, a2: Pointer[char] | Pointer[uint8_t] | bytes, a3: int, /
    ) -> None: ...
    def um_streams_stored_bytes(self, a1: um_streams, /) -> int: ...
    def um_subscription_attend_fetch(self, a1: um_subscription, a2: um_fetch, /) -> int: ...
    def um_subscription_close(self, a1: um_subscription, /) -> None: ...
    def um_subscription_fetch(
        self,
        a1: um_subscription,
        a2: um_fetch,
        a3: Pointer[char] | Pointer[uint8_t] | bytes,
        a4: int,
        a5: Pointer[char] | Pointer[uint8_t] | bytes,
        a6: int,
        /,
    ) -> int: ...
    def um_subscription_free(self, a1: um_subscription, /) -> None: ...
    def um_subscription_map(
        self, a1: um_subscription, a2: um_receiver_session_config, a3: int, a4: int, /
    ) -> int: ...
    def um_subscription_map_late(
        self, a1: um_subscription, a2: um_receiver_session_config, a3: int, a4: int, a5: um_late_mapping, /
    ) -> int: ...
    def um_subscription_open(
        self, a1: um_event_queue, a2: um_receiver_config, a3: Pointer[um_subscription], /
    ) -> int: ...
    def um_subscription_set_nak_cutoff(self, a1: um_subscription, a2: bool, /) -> None: ...
    def um_tally_begin(self, a1: um_tally, /) -> None: ...
    def um_tally_full(self, a1: um_tally, /) -> bool: ...
    def um_unmap(self, a1: CData | bytes, a2: int, /) -> None: ...

class _Core:
    NULL: Any
    errno: int
    def from_buffer(self, cdecl: Any, python_buffer: Any = ..., require_writable: bool = False) -> Any: ...
    def buffer(self, cdata: CData, size: int = -1) -> Any: ...
    def string(self, cdata: CData, maxlen: int = -1) -> bytes: ...
    def unpack(self, cdata: CData, length: int) -> Any: ...
    def gc(self, cdata: _CData, destructor: Any, size: int = 0) -> _CData: ...
    def release(self, cdata: CData) -> None: ...
    def memmove(self, dest: Any, src: Any, n: int) -> None: ...
    def sizeof(self, cdecl: str | CData) -> int: ...
    def typeof(self, cdecl: str | CData) -> Any: ...
    def addressof(self, cdata: CData, *fields: str | int) -> Any: ...
    @overload
    def new(
        self, cdecl: Literal["struct sock_filter *", "struct sock_filter[]"], init: Any = ...
    ) -> sock_filter: ...
    @overload
    def new(self, cdecl: Literal["struct sock_filter **"], init: Any = ...) -> Pointer[sock_filter]: ...
    @overload
    def new(
        self, cdecl: Literal["um_adaptive_spin *", "um_adaptive_spin[]"], init: Any = ...
    ) -> um_adaptive_spin: ...
    @overload
    def new(self, cdecl: Literal["um_adaptive_spin **"], init: Any = ...) -> Pointer[um_adaptive_spin]: ...
    @overload
    def new(self, cdecl: Literal["um_address *", "um_address[]"], init: Any = ...) -> um_address: ...
    @overload
    def new(self, cdecl: Literal["um_address **"], init: Any = ...) -> Pointer[um_address]: ...
    @overload
    def new(
        self, cdecl: Literal["um_begun_recovery *", "um_begun_recovery[]"], init: Any = ...
    ) -> um_begun_recovery: ...
    @overload
    def new(self, cdecl: Literal["um_begun_recovery **"], init: Any = ...) -> Pointer[um_begun_recovery]: ...
    @overload
    def new(self, cdecl: Literal["um_block *", "um_block[]"], init: Any = ...) -> um_block: ...
    @overload
    def new(self, cdecl: Literal["um_block **"], init: Any = ...) -> Pointer[um_block]: ...
    @overload
    def new(
        self, cdecl: Literal["um_capture_findings *", "um_capture_findings[]"], init: Any = ...
    ) -> um_capture_findings: ...
    @overload
    def new(
        self, cdecl: Literal["um_capture_findings **"], init: Any = ...
    ) -> Pointer[um_capture_findings]: ...
    @overload
    def new(
        self, cdecl: Literal["um_capture_interface *", "um_capture_interface[]"], init: Any = ...
    ) -> um_capture_interface: ...
    @overload
    def new(
        self, cdecl: Literal["um_capture_interface **"], init: Any = ...
    ) -> Pointer[um_capture_interface]: ...
    @overload
    def new(
        self, cdecl: Literal["um_capture_packet *", "um_capture_packet[]"], init: Any = ...
    ) -> um_capture_packet: ...
    @overload
    def new(self, cdecl: Literal["um_capture_packet **"], init: Any = ...) -> Pointer[um_capture_packet]: ...
    @overload
    def new(
        self, cdecl: Literal["um_capture_reader *", "um_capture_reader[]"], init: Any = ...
    ) -> um_capture_reader: ...
    @overload
    def new(self, cdecl: Literal["um_capture_reader **"], init: Any = ...) -> Pointer[um_capture_reader]: ...
    @overload
    def new(self, cdecl: Literal["um_claim *", "um_claim[]"], init: Any = ...) -> um_claim: ...
    @overload
    def new(self, cdecl: Literal["um_claim **"], init: Any = ...) -> Pointer[um_claim]: ...
    @overload
    def new(self, cdecl: Literal["um_context *", "um_context[]"], init: Any = ...) -> um_context: ...
    @overload
    def new(self, cdecl: Literal["um_context **"], init: Any = ...) -> Pointer[um_context]: ...
    @overload
    def new(
        self, cdecl: Literal["um_context_config *", "um_context_config[]"], init: Any = ...
    ) -> um_context_config: ...
    @overload
    def new(self, cdecl: Literal["um_context_config **"], init: Any = ...) -> Pointer[um_context_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_egress_ring_maps *", "um_egress_ring_maps[]"], init: Any = ...
    ) -> um_egress_ring_maps: ...
    @overload
    def new(
        self, cdecl: Literal["um_egress_ring_maps **"], init: Any = ...
    ) -> Pointer[um_egress_ring_maps]: ...
    @overload
    def new(
        self, cdecl: Literal["um_event_queue *", "um_event_queue[]"], init: Any = ...
    ) -> um_event_queue: ...
    @overload
    def new(self, cdecl: Literal["um_event_queue **"], init: Any = ...) -> Pointer[um_event_queue]: ...
    @overload
    def new(
        self, cdecl: Literal["um_event_queue_config *", "um_event_queue_config[]"], init: Any = ...
    ) -> um_event_queue_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_event_queue_config **"], init: Any = ...
    ) -> Pointer[um_event_queue_config]: ...
    @overload
    def new(self, cdecl: Literal["um_fetch *", "um_fetch[]"], init: Any = ...) -> um_fetch: ...
    @overload
    def new(self, cdecl: Literal["um_fetch **"], init: Any = ...) -> Pointer[um_fetch]: ...
    @overload
    def new(self, cdecl: Literal["um_fetch_plan *", "um_fetch_plan[]"], init: Any = ...) -> um_fetch_plan: ...
    @overload
    def new(self, cdecl: Literal["um_fetch_plan **"], init: Any = ...) -> Pointer[um_fetch_plan]: ...
    @overload
    def new(
        self, cdecl: Literal["um_frame_merge_config *", "um_frame_merge_config[]"], init: Any = ...
    ) -> um_frame_merge_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_frame_merge_config **"], init: Any = ...
    ) -> Pointer[um_frame_merge_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_frame_merge_filter *", "um_frame_merge_filter[]"], init: Any = ...
    ) -> um_frame_merge_filter: ...
    @overload
    def new(
        self, cdecl: Literal["um_frame_merge_filter **"], init: Any = ...
    ) -> Pointer[um_frame_merge_filter]: ...
    @overload
    def new(
        self, cdecl: Literal["um_generate_config *", "um_generate_config[]"], init: Any = ...
    ) -> um_generate_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_generate_config **"], init: Any = ...
    ) -> Pointer[um_generate_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_generate_counts *", "um_generate_counts[]"], init: Any = ...
    ) -> um_generate_counts: ...
    @overload
    def new(
        self, cdecl: Literal["um_generate_counts **"], init: Any = ...
    ) -> Pointer[um_generate_counts]: ...
    @overload
    def new(
        self, cdecl: Literal["um_generate_loss *", "um_generate_loss[]"], init: Any = ...
    ) -> um_generate_loss: ...
    @overload
    def new(self, cdecl: Literal["um_generate_loss **"], init: Any = ...) -> Pointer[um_generate_loss]: ...
    @overload
    def new(
        self, cdecl: Literal["um_generate_pending *", "um_generate_pending[]"], init: Any = ...
    ) -> um_generate_pending: ...
    @overload
    def new(
        self, cdecl: Literal["um_generate_pending **"], init: Any = ...
    ) -> Pointer[um_generate_pending]: ...
    @overload
    def new(self, cdecl: Literal["um_generator *", "um_generator[]"], init: Any = ...) -> um_generator: ...
    @overload
    def new(self, cdecl: Literal["um_generator **"], init: Any = ...) -> Pointer[um_generator]: ...
    @overload
    def new(
        self, cdecl: Literal["um_hot_failover_config *", "um_hot_failover_config[]"], init: Any = ...
    ) -> um_hot_failover_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_hot_failover_config **"], init: Any = ...
    ) -> Pointer[um_hot_failover_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_interface_capture *", "um_interface_capture[]"], init: Any = ...
    ) -> um_interface_capture: ...
    @overload
    def new(
        self, cdecl: Literal["um_interface_capture **"], init: Any = ...
    ) -> Pointer[um_interface_capture]: ...
    @overload
    def new(
        self,
        cdecl: Literal["um_interface_capture_arrivals *", "um_interface_capture_arrivals[]"],
        init: Any = ...,
    ) -> um_interface_capture_arrivals: ...
    @overload
    def new(
        self, cdecl: Literal["um_interface_capture_arrivals **"], init: Any = ...
    ) -> Pointer[um_interface_capture_arrivals]: ...
    @overload
    def new(
        self,
        cdecl: Literal["um_interface_capture_config *", "um_interface_capture_config[]"],
        init: Any = ...,
    ) -> um_interface_capture_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_interface_capture_config **"], init: Any = ...
    ) -> Pointer[um_interface_capture_config]: ...
    @overload
    def new(
        self,
        cdecl: Literal["um_interface_capture_counters *", "um_interface_capture_counters[]"],
        init: Any = ...,
    ) -> um_interface_capture_counters: ...
    @overload
    def new(
        self, cdecl: Literal["um_interface_capture_counters **"], init: Any = ...
    ) -> Pointer[um_interface_capture_counters]: ...
    @overload
    def new(self, cdecl: Literal["um_key *", "um_key[]"], init: Any = ...) -> um_key: ...
    @overload
    def new(self, cdecl: Literal["um_key **"], init: Any = ...) -> Pointer[um_key]: ...
    @overload
    def new(self, cdecl: Literal["um_key_set *", "um_key_set[]"], init: Any = ...) -> um_key_set: ...
    @overload
    def new(self, cdecl: Literal["um_key_set **"], init: Any = ...) -> Pointer[um_key_set]: ...
    @overload
    def new(
        self, cdecl: Literal["um_known_source *", "um_known_source[]"], init: Any = ...
    ) -> um_known_source: ...
    @overload
    def new(self, cdecl: Literal["um_known_source **"], init: Any = ...) -> Pointer[um_known_source]: ...
    @overload
    def new(
        self, cdecl: Literal["um_late_mapping *", "um_late_mapping[]"], init: Any = ...
    ) -> um_late_mapping: ...
    @overload
    def new(self, cdecl: Literal["um_late_mapping **"], init: Any = ...) -> Pointer[um_late_mapping]: ...
    @overload
    def new(
        self, cdecl: Literal["um_lbmc_extras *", "um_lbmc_extras[]"], init: Any = ...
    ) -> um_lbmc_extras: ...
    @overload
    def new(self, cdecl: Literal["um_lbmc_extras **"], init: Any = ...) -> Pointer[um_lbmc_extras]: ...
    @overload
    def new(
        self, cdecl: Literal["um_lbmc_hot_failover *", "um_lbmc_hot_failover[]"], init: Any = ...
    ) -> um_lbmc_hot_failover: ...
    @overload
    def new(
        self, cdecl: Literal["um_lbmc_hot_failover **"], init: Any = ...
    ) -> Pointer[um_lbmc_hot_failover]: ...
    @overload
    def new(self, cdecl: Literal["um_lbmr_place *", "um_lbmr_place[]"], init: Any = ...) -> um_lbmr_place: ...
    @overload
    def new(self, cdecl: Literal["um_lbmr_place **"], init: Any = ...) -> Pointer[um_lbmr_place]: ...
    @overload
    def new(
        self, cdecl: Literal["um_lbtru_config *", "um_lbtru_config[]"], init: Any = ...
    ) -> um_lbtru_config: ...
    @overload
    def new(self, cdecl: Literal["um_lbtru_config **"], init: Any = ...) -> Pointer[um_lbtru_config]: ...
    @overload
    def new(self, cdecl: Literal["um_network *", "um_network[]"], init: Any = ...) -> um_network: ...
    @overload
    def new(self, cdecl: Literal["um_network **"], init: Any = ...) -> Pointer[um_network]: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_destination *", "um_packet_destination[]"], init: Any = ...
    ) -> um_packet_destination: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_destination **"], init: Any = ...
    ) -> Pointer[um_packet_destination]: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_rows *", "um_packet_rows[]"], init: Any = ...
    ) -> um_packet_rows: ...
    @overload
    def new(self, cdecl: Literal["um_packet_rows **"], init: Any = ...) -> Pointer[um_packet_rows]: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_rows_options *", "um_packet_rows_options[]"], init: Any = ...
    ) -> um_packet_rows_options: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_rows_options **"], init: Any = ...
    ) -> Pointer[um_packet_rows_options]: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_rows_ports *", "um_packet_rows_ports[]"], init: Any = ...
    ) -> um_packet_rows_ports: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_rows_ports **"], init: Any = ...
    ) -> Pointer[um_packet_rows_ports]: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_rows_text *", "um_packet_rows_text[]"], init: Any = ...
    ) -> um_packet_rows_text: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_rows_text **"], init: Any = ...
    ) -> Pointer[um_packet_rows_text]: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_selection *", "um_packet_selection[]"], init: Any = ...
    ) -> um_packet_selection: ...
    @overload
    def new(
        self, cdecl: Literal["um_packet_selection **"], init: Any = ...
    ) -> Pointer[um_packet_selection]: ...
    @overload
    def new(
        self, cdecl: Literal["um_pcapng_packet *", "um_pcapng_packet[]"], init: Any = ...
    ) -> um_pcapng_packet: ...
    @overload
    def new(self, cdecl: Literal["um_pcapng_packet **"], init: Any = ...) -> Pointer[um_pcapng_packet]: ...
    @overload
    def new(
        self, cdecl: Literal["um_pcapng_writer *", "um_pcapng_writer[]"], init: Any = ...
    ) -> um_pcapng_writer: ...
    @overload
    def new(self, cdecl: Literal["um_pcapng_writer **"], init: Any = ...) -> Pointer[um_pcapng_writer]: ...
    @overload
    def new(
        self, cdecl: Literal["um_properties_place *", "um_properties_place[]"], init: Any = ...
    ) -> um_properties_place: ...
    @overload
    def new(
        self, cdecl: Literal["um_properties_place **"], init: Any = ...
    ) -> Pointer[um_properties_place]: ...
    @overload
    def new(
        self, cdecl: Literal["um_publication *", "um_publication[]"], init: Any = ...
    ) -> um_publication: ...
    @overload
    def new(self, cdecl: Literal["um_publication **"], init: Any = ...) -> Pointer[um_publication]: ...
    @overload
    def new(
        self, cdecl: Literal["um_publication_session *", "um_publication_session[]"], init: Any = ...
    ) -> um_publication_session: ...
    @overload
    def new(
        self, cdecl: Literal["um_publication_session **"], init: Any = ...
    ) -> Pointer[um_publication_session]: ...
    @overload
    def new(self, cdecl: Literal["um_random *", "um_random[]"], init: Any = ...) -> um_random: ...
    @overload
    def new(self, cdecl: Literal["um_random **"], init: Any = ...) -> Pointer[um_random]: ...
    @overload
    def new(
        self, cdecl: Literal["um_range_bounds *", "um_range_bounds[]"], init: Any = ...
    ) -> um_range_bounds: ...
    @overload
    def new(self, cdecl: Literal["um_range_bounds **"], init: Any = ...) -> Pointer[um_range_bounds]: ...
    @overload
    def new(
        self, cdecl: Literal["um_range_request *", "um_range_request[]"], init: Any = ...
    ) -> um_range_request: ...
    @overload
    def new(self, cdecl: Literal["um_range_request **"], init: Any = ...) -> Pointer[um_range_request]: ...
    @overload
    def new(
        self, cdecl: Literal["um_received_datagram *", "um_received_datagram[]"], init: Any = ...
    ) -> um_received_datagram: ...
    @overload
    def new(
        self, cdecl: Literal["um_received_datagram **"], init: Any = ...
    ) -> Pointer[um_received_datagram]: ...
    @overload
    def new(
        self, cdecl: Literal["um_receiver_account *", "um_receiver_account[]"], init: Any = ...
    ) -> um_receiver_account: ...
    @overload
    def new(
        self, cdecl: Literal["um_receiver_account **"], init: Any = ...
    ) -> Pointer[um_receiver_account]: ...
    @overload
    def new(
        self, cdecl: Literal["um_receiver_config *", "um_receiver_config[]"], init: Any = ...
    ) -> um_receiver_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_receiver_config **"], init: Any = ...
    ) -> Pointer[um_receiver_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_receiver_session_config *", "um_receiver_session_config[]"], init: Any = ...
    ) -> um_receiver_session_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_receiver_session_config **"], init: Any = ...
    ) -> Pointer[um_receiver_session_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_relayed_part *", "um_relayed_part[]"], init: Any = ...
    ) -> um_relayed_part: ...
    @overload
    def new(self, cdecl: Literal["um_relayed_part **"], init: Any = ...) -> Pointer[um_relayed_part]: ...
    @overload
    def new(
        self, cdecl: Literal["um_relayed_records *", "um_relayed_records[]"], init: Any = ...
    ) -> um_relayed_records: ...
    @overload
    def new(
        self, cdecl: Literal["um_relayed_records **"], init: Any = ...
    ) -> Pointer[um_relayed_records]: ...
    @overload
    def new(
        self, cdecl: Literal["um_repair_bucket *", "um_repair_bucket[]"], init: Any = ...
    ) -> um_repair_bucket: ...
    @overload
    def new(self, cdecl: Literal["um_repair_bucket **"], init: Any = ...) -> Pointer[um_repair_bucket]: ...
    @overload
    def new(self, cdecl: Literal["um_request *", "um_request[]"], init: Any = ...) -> um_request: ...
    @overload
    def new(self, cdecl: Literal["um_request **"], init: Any = ...) -> Pointer[um_request]: ...
    @overload
    def new(
        self, cdecl: Literal["um_resolution_tags *", "um_resolution_tags[]"], init: Any = ...
    ) -> um_resolution_tags: ...
    @overload
    def new(
        self, cdecl: Literal["um_resolution_tags **"], init: Any = ...
    ) -> Pointer[um_resolution_tags]: ...
    @overload
    def new(
        self, cdecl: Literal["um_resolver_cache *", "um_resolver_cache[]"], init: Any = ...
    ) -> um_resolver_cache: ...
    @overload
    def new(self, cdecl: Literal["um_resolver_cache **"], init: Any = ...) -> Pointer[um_resolver_cache]: ...
    @overload
    def new(
        self, cdecl: Literal["um_resolver_intake *", "um_resolver_intake[]"], init: Any = ...
    ) -> um_resolver_intake: ...
    @overload
    def new(
        self, cdecl: Literal["um_resolver_intake **"], init: Any = ...
    ) -> Pointer[um_resolver_intake]: ...
    @overload
    def new(
        self, cdecl: Literal["um_retention_config *", "um_retention_config[]"], init: Any = ...
    ) -> um_retention_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_retention_config **"], init: Any = ...
    ) -> Pointer[um_retention_config]: ...
    @overload
    def new(self, cdecl: Literal["um_rings *", "um_rings[]"], init: Any = ...) -> um_rings: ...
    @overload
    def new(self, cdecl: Literal["um_rings **"], init: Any = ...) -> Pointer[um_rings]: ...
    @overload
    def new(self, cdecl: Literal["um_row *", "um_row[]"], init: Any = ...) -> um_row: ...
    @overload
    def new(self, cdecl: Literal["um_row **"], init: Any = ...) -> Pointer[um_row]: ...
    @overload
    def new(self, cdecl: Literal["um_rows *", "um_rows[]"], init: Any = ...) -> um_rows: ...
    @overload
    def new(self, cdecl: Literal["um_rows **"], init: Any = ...) -> Pointer[um_rows]: ...
    @overload
    def new(
        self, cdecl: Literal["um_rows_summary *", "um_rows_summary[]"], init: Any = ...
    ) -> um_rows_summary: ...
    @overload
    def new(self, cdecl: Literal["um_rows_summary **"], init: Any = ...) -> Pointer[um_rows_summary]: ...
    @overload
    def new(self, cdecl: Literal["um_served *", "um_served[]"], init: Any = ...) -> um_served: ...
    @overload
    def new(self, cdecl: Literal["um_served **"], init: Any = ...) -> Pointer[um_served]: ...
    @overload
    def new(self, cdecl: Literal["um_session_id *", "um_session_id[]"], init: Any = ...) -> um_session_id: ...
    @overload
    def new(self, cdecl: Literal["um_session_id **"], init: Any = ...) -> Pointer[um_session_id]: ...
    @overload
    def new(
        self, cdecl: Literal["um_siphash_key *", "um_siphash_key[]"], init: Any = ...
    ) -> um_siphash_key: ...
    @overload
    def new(self, cdecl: Literal["um_siphash_key **"], init: Any = ...) -> Pointer[um_siphash_key]: ...
    @overload
    def new(
        self, cdecl: Literal["um_source_claim *", "um_source_claim[]"], init: Any = ...
    ) -> um_source_claim: ...
    @overload
    def new(self, cdecl: Literal["um_source_claim **"], init: Any = ...) -> Pointer[um_source_claim]: ...
    @overload
    def new(
        self, cdecl: Literal["um_source_config *", "um_source_config[]"], init: Any = ...
    ) -> um_source_config: ...
    @overload
    def new(self, cdecl: Literal["um_source_config **"], init: Any = ...) -> Pointer[um_source_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_source_event *", "um_source_event[]"], init: Any = ...
    ) -> um_source_event: ...
    @overload
    def new(self, cdecl: Literal["um_source_event **"], init: Any = ...) -> Pointer[um_source_event]: ...
    @overload
    def new(
        self, cdecl: Literal["um_source_session_config *", "um_source_session_config[]"], init: Any = ...
    ) -> um_source_session_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_source_session_config **"], init: Any = ...
    ) -> Pointer[um_source_session_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_stream_findings *", "um_stream_findings[]"], init: Any = ...
    ) -> um_stream_findings: ...
    @overload
    def new(
        self, cdecl: Literal["um_stream_findings **"], init: Any = ...
    ) -> Pointer[um_stream_findings]: ...
    @overload
    def new(
        self, cdecl: Literal["um_stream_greeting *", "um_stream_greeting[]"], init: Any = ...
    ) -> um_stream_greeting: ...
    @overload
    def new(
        self, cdecl: Literal["um_stream_greeting **"], init: Any = ...
    ) -> Pointer[um_stream_greeting]: ...
    @overload
    def new(
        self, cdecl: Literal["um_stream_tags *", "um_stream_tags[]"], init: Any = ...
    ) -> um_stream_tags: ...
    @overload
    def new(self, cdecl: Literal["um_stream_tags **"], init: Any = ...) -> Pointer[um_stream_tags]: ...
    @overload
    def new(self, cdecl: Literal["um_streams *", "um_streams[]"], init: Any = ...) -> um_streams: ...
    @overload
    def new(self, cdecl: Literal["um_streams **"], init: Any = ...) -> Pointer[um_streams]: ...
    @overload
    def new(
        self, cdecl: Literal["um_subscription *", "um_subscription[]"], init: Any = ...
    ) -> um_subscription: ...
    @overload
    def new(self, cdecl: Literal["um_subscription **"], init: Any = ...) -> Pointer[um_subscription]: ...
    @overload
    def new(self, cdecl: Literal["um_tally *", "um_tally[]"], init: Any = ...) -> um_tally: ...
    @overload
    def new(self, cdecl: Literal["um_tally **"], init: Any = ...) -> Pointer[um_tally]: ...
    @overload
    def new(self, cdecl: Literal["um_tally_rate *", "um_tally_rate[]"], init: Any = ...) -> um_tally_rate: ...
    @overload
    def new(self, cdecl: Literal["um_tally_rate **"], init: Any = ...) -> Pointer[um_tally_rate]: ...
    @overload
    def new(
        self, cdecl: Literal["um_tally_reference *", "um_tally_reference[]"], init: Any = ...
    ) -> um_tally_reference: ...
    @overload
    def new(
        self, cdecl: Literal["um_tally_reference **"], init: Any = ...
    ) -> Pointer[um_tally_reference]: ...
    @overload
    def new(self, cdecl: Literal["um_tally_send *", "um_tally_send[]"], init: Any = ...) -> um_tally_send: ...
    @overload
    def new(self, cdecl: Literal["um_tally_send **"], init: Any = ...) -> Pointer[um_tally_send]: ...
    @overload
    def new(self, cdecl: Literal["um_tally_size *", "um_tally_size[]"], init: Any = ...) -> um_tally_size: ...
    @overload
    def new(self, cdecl: Literal["um_tally_size **"], init: Any = ...) -> Pointer[um_tally_size]: ...
    @overload
    def new(
        self, cdecl: Literal["um_tally_stream *", "um_tally_stream[]"], init: Any = ...
    ) -> um_tally_stream: ...
    @overload
    def new(self, cdecl: Literal["um_tally_stream **"], init: Any = ...) -> Pointer[um_tally_stream]: ...
    @overload
    def new(
        self, cdecl: Literal["um_tally_topic *", "um_tally_topic[]"], init: Any = ...
    ) -> um_tally_topic: ...
    @overload
    def new(self, cdecl: Literal["um_tally_topic **"], init: Any = ...) -> Pointer[um_tally_topic]: ...
    @overload
    def new(self, cdecl: Literal["um_tap_config *", "um_tap_config[]"], init: Any = ...) -> um_tap_config: ...
    @overload
    def new(self, cdecl: Literal["um_tap_config **"], init: Any = ...) -> Pointer[um_tap_config]: ...
    @overload
    def new(
        self, cdecl: Literal["um_tap_counters *", "um_tap_counters[]"], init: Any = ...
    ) -> um_tap_counters: ...
    @overload
    def new(self, cdecl: Literal["um_tap_counters **"], init: Any = ...) -> Pointer[um_tap_counters]: ...
    @overload
    def new(
        self, cdecl: Literal["um_tcp_source_config *", "um_tcp_source_config[]"], init: Any = ...
    ) -> um_tcp_source_config: ...
    @overload
    def new(
        self, cdecl: Literal["um_tcp_source_config **"], init: Any = ...
    ) -> Pointer[um_tcp_source_config]: ...
    @overload
    def new(self, cdecl: Literal["bool *", "bool[]"], init: Any = ...) -> Pointer[_Bool]: ...
    @overload
    def new(self, cdecl: Literal["char *", "char[]"], init: Any = ...) -> Pointer[char]: ...
    @overload
    def new(self, cdecl: Literal["int *", "int[]"], init: Any = ...) -> Pointer[c_int]: ...
    @overload
    def new(self, cdecl: Literal["double *", "double[]"], init: Any = ...) -> Pointer[double]: ...
    @overload
    def new(self, cdecl: Literal["int32_t *", "int32_t[]"], init: Any = ...) -> Pointer[int32_t]: ...
    @overload
    def new(self, cdecl: Literal["int64_t *", "int64_t[]"], init: Any = ...) -> Pointer[int64_t]: ...
    @overload
    def new(self, cdecl: Literal["size_t *", "size_t[]"], init: Any = ...) -> Pointer[size_t]: ...
    @overload
    def new(self, cdecl: Literal["uint16_t *", "uint16_t[]"], init: Any = ...) -> Pointer[uint16_t]: ...
    @overload
    def new(self, cdecl: Literal["uint32_t *", "uint32_t[]"], init: Any = ...) -> Pointer[uint32_t]: ...
    @overload
    def new(self, cdecl: Literal["uint64_t *", "uint64_t[]"], init: Any = ...) -> Pointer[uint64_t]: ...
    @overload
    def new(self, cdecl: Literal["uint8_t *", "uint8_t[]"], init: Any = ...) -> Pointer[uint8_t]: ...
    @overload
    def new(
        self, cdecl: Literal["unsigned_char *", "unsigned_char[]"], init: Any = ...
    ) -> Pointer[unsigned_char]: ...
    @overload
    def new(
        self, cdecl: Literal["unsigned_int *", "unsigned_int[]"], init: Any = ...
    ) -> Pointer[unsigned_int]: ...
    @overload
    def new(
        self, cdecl: Literal["unsigned_long_long *", "unsigned_long_long[]"], init: Any = ...
    ) -> Pointer[unsigned_long_long]: ...
    @overload
    def new(
        self, cdecl: Literal["unsigned_short *", "unsigned_short[]"], init: Any = ...
    ) -> Pointer[unsigned_short]: ...
    @overload
    def new(self, cdecl: Literal["void *", "void[]"], init: Any = ...) -> Pointer[void]: ...
    @overload
    def new(self, cdecl: Any, init: Any = ...) -> Any: ...
    @overload
    def cast(
        self, cdecl: Literal["struct sock_filter *", "struct sock_filter[]"], source: Any
    ) -> sock_filter: ...
    @overload
    def cast(self, cdecl: Literal["struct sock_filter **"], source: Any) -> Pointer[sock_filter]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_adaptive_spin *", "um_adaptive_spin[]"], source: Any
    ) -> um_adaptive_spin: ...
    @overload
    def cast(self, cdecl: Literal["um_adaptive_spin **"], source: Any) -> Pointer[um_adaptive_spin]: ...
    @overload
    def cast(self, cdecl: Literal["um_address *", "um_address[]"], source: Any) -> um_address: ...
    @overload
    def cast(self, cdecl: Literal["um_address **"], source: Any) -> Pointer[um_address]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_begun_recovery *", "um_begun_recovery[]"], source: Any
    ) -> um_begun_recovery: ...
    @overload
    def cast(self, cdecl: Literal["um_begun_recovery **"], source: Any) -> Pointer[um_begun_recovery]: ...
    @overload
    def cast(self, cdecl: Literal["um_block *", "um_block[]"], source: Any) -> um_block: ...
    @overload
    def cast(self, cdecl: Literal["um_block **"], source: Any) -> Pointer[um_block]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_capture_findings *", "um_capture_findings[]"], source: Any
    ) -> um_capture_findings: ...
    @overload
    def cast(self, cdecl: Literal["um_capture_findings **"], source: Any) -> Pointer[um_capture_findings]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_capture_interface *", "um_capture_interface[]"], source: Any
    ) -> um_capture_interface: ...
    @overload
    def cast(
        self, cdecl: Literal["um_capture_interface **"], source: Any
    ) -> Pointer[um_capture_interface]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_capture_packet *", "um_capture_packet[]"], source: Any
    ) -> um_capture_packet: ...
    @overload
    def cast(self, cdecl: Literal["um_capture_packet **"], source: Any) -> Pointer[um_capture_packet]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_capture_reader *", "um_capture_reader[]"], source: Any
    ) -> um_capture_reader: ...
    @overload
    def cast(self, cdecl: Literal["um_capture_reader **"], source: Any) -> Pointer[um_capture_reader]: ...
    @overload
    def cast(self, cdecl: Literal["um_claim *", "um_claim[]"], source: Any) -> um_claim: ...
    @overload
    def cast(self, cdecl: Literal["um_claim **"], source: Any) -> Pointer[um_claim]: ...
    @overload
    def cast(self, cdecl: Literal["um_context *", "um_context[]"], source: Any) -> um_context: ...
    @overload
    def cast(self, cdecl: Literal["um_context **"], source: Any) -> Pointer[um_context]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_context_config *", "um_context_config[]"], source: Any
    ) -> um_context_config: ...
    @overload
    def cast(self, cdecl: Literal["um_context_config **"], source: Any) -> Pointer[um_context_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_egress_ring_maps *", "um_egress_ring_maps[]"], source: Any
    ) -> um_egress_ring_maps: ...
    @overload
    def cast(self, cdecl: Literal["um_egress_ring_maps **"], source: Any) -> Pointer[um_egress_ring_maps]: ...
    @overload
    def cast(self, cdecl: Literal["um_event_queue *", "um_event_queue[]"], source: Any) -> um_event_queue: ...
    @overload
    def cast(self, cdecl: Literal["um_event_queue **"], source: Any) -> Pointer[um_event_queue]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_event_queue_config *", "um_event_queue_config[]"], source: Any
    ) -> um_event_queue_config: ...
    @overload
    def cast(
        self, cdecl: Literal["um_event_queue_config **"], source: Any
    ) -> Pointer[um_event_queue_config]: ...
    @overload
    def cast(self, cdecl: Literal["um_fetch *", "um_fetch[]"], source: Any) -> um_fetch: ...
    @overload
    def cast(self, cdecl: Literal["um_fetch **"], source: Any) -> Pointer[um_fetch]: ...
    @overload
    def cast(self, cdecl: Literal["um_fetch_plan *", "um_fetch_plan[]"], source: Any) -> um_fetch_plan: ...
    @overload
    def cast(self, cdecl: Literal["um_fetch_plan **"], source: Any) -> Pointer[um_fetch_plan]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_frame_merge_config *", "um_frame_merge_config[]"], source: Any
    ) -> um_frame_merge_config: ...
    @overload
    def cast(
        self, cdecl: Literal["um_frame_merge_config **"], source: Any
    ) -> Pointer[um_frame_merge_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_frame_merge_filter *", "um_frame_merge_filter[]"], source: Any
    ) -> um_frame_merge_filter: ...
    @overload
    def cast(
        self, cdecl: Literal["um_frame_merge_filter **"], source: Any
    ) -> Pointer[um_frame_merge_filter]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_generate_config *", "um_generate_config[]"], source: Any
    ) -> um_generate_config: ...
    @overload
    def cast(self, cdecl: Literal["um_generate_config **"], source: Any) -> Pointer[um_generate_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_generate_counts *", "um_generate_counts[]"], source: Any
    ) -> um_generate_counts: ...
    @overload
    def cast(self, cdecl: Literal["um_generate_counts **"], source: Any) -> Pointer[um_generate_counts]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_generate_loss *", "um_generate_loss[]"], source: Any
    ) -> um_generate_loss: ...
    @overload
    def cast(self, cdecl: Literal["um_generate_loss **"], source: Any) -> Pointer[um_generate_loss]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_generate_pending *", "um_generate_pending[]"], source: Any
    ) -> um_generate_pending: ...
    @overload
    def cast(self, cdecl: Literal["um_generate_pending **"], source: Any) -> Pointer[um_generate_pending]: ...
    @overload
    def cast(self, cdecl: Literal["um_generator *", "um_generator[]"], source: Any) -> um_generator: ...
    @overload
    def cast(self, cdecl: Literal["um_generator **"], source: Any) -> Pointer[um_generator]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_hot_failover_config *", "um_hot_failover_config[]"], source: Any
    ) -> um_hot_failover_config: ...
    @overload
    def cast(
        self, cdecl: Literal["um_hot_failover_config **"], source: Any
    ) -> Pointer[um_hot_failover_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_interface_capture *", "um_interface_capture[]"], source: Any
    ) -> um_interface_capture: ...
    @overload
    def cast(
        self, cdecl: Literal["um_interface_capture **"], source: Any
    ) -> Pointer[um_interface_capture]: ...
    @overload
    def cast(
        self,
        cdecl: Literal["um_interface_capture_arrivals *", "um_interface_capture_arrivals[]"],
        source: Any,
    ) -> um_interface_capture_arrivals: ...
    @overload
    def cast(
        self, cdecl: Literal["um_interface_capture_arrivals **"], source: Any
    ) -> Pointer[um_interface_capture_arrivals]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_interface_capture_config *", "um_interface_capture_config[]"], source: Any
    ) -> um_interface_capture_config: ...
    @overload
    def cast(
        self, cdecl: Literal["um_interface_capture_config **"], source: Any
    ) -> Pointer[um_interface_capture_config]: ...
    @overload
    def cast(
        self,
        cdecl: Literal["um_interface_capture_counters *", "um_interface_capture_counters[]"],
        source: Any,
    ) -> um_interface_capture_counters: ...
    @overload
    def cast(
        self, cdecl: Literal["um_interface_capture_counters **"], source: Any
    ) -> Pointer[um_interface_capture_counters]: ...
    @overload
    def cast(self, cdecl: Literal["um_key *", "um_key[]"], source: Any) -> um_key: ...
    @overload
    def cast(self, cdecl: Literal["um_key **"], source: Any) -> Pointer[um_key]: ...
    @overload
    def cast(self, cdecl: Literal["um_key_set *", "um_key_set[]"], source: Any) -> um_key_set: ...
    @overload
    def cast(self, cdecl: Literal["um_key_set **"], source: Any) -> Pointer[um_key_set]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_known_source *", "um_known_source[]"], source: Any
    ) -> um_known_source: ...
    @overload
    def cast(self, cdecl: Literal["um_known_source **"], source: Any) -> Pointer[um_known_source]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_late_mapping *", "um_late_mapping[]"], source: Any
    ) -> um_late_mapping: ...
    @overload
    def cast(self, cdecl: Literal["um_late_mapping **"], source: Any) -> Pointer[um_late_mapping]: ...
    @overload
    def cast(self, cdecl: Literal["um_lbmc_extras *", "um_lbmc_extras[]"], source: Any) -> um_lbmc_extras: ...
    @overload
    def cast(self, cdecl: Literal["um_lbmc_extras **"], source: Any) -> Pointer[um_lbmc_extras]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_lbmc_hot_failover *", "um_lbmc_hot_failover[]"], source: Any
    ) -> um_lbmc_hot_failover: ...
    @overload
    def cast(
        self, cdecl: Literal["um_lbmc_hot_failover **"], source: Any
    ) -> Pointer[um_lbmc_hot_failover]: ...
    @overload
    def cast(self, cdecl: Literal["um_lbmr_place *", "um_lbmr_place[]"], source: Any) -> um_lbmr_place: ...
    @overload
    def cast(self, cdecl: Literal["um_lbmr_place **"], source: Any) -> Pointer[um_lbmr_place]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_lbtru_config *", "um_lbtru_config[]"], source: Any
    ) -> um_lbtru_config: ...
    @overload
    def cast(self, cdecl: Literal["um_lbtru_config **"], source: Any) -> Pointer[um_lbtru_config]: ...
    @overload
    def cast(self, cdecl: Literal["um_network *", "um_network[]"], source: Any) -> um_network: ...
    @overload
    def cast(self, cdecl: Literal["um_network **"], source: Any) -> Pointer[um_network]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_packet_destination *", "um_packet_destination[]"], source: Any
    ) -> um_packet_destination: ...
    @overload
    def cast(
        self, cdecl: Literal["um_packet_destination **"], source: Any
    ) -> Pointer[um_packet_destination]: ...
    @overload
    def cast(self, cdecl: Literal["um_packet_rows *", "um_packet_rows[]"], source: Any) -> um_packet_rows: ...
    @overload
    def cast(self, cdecl: Literal["um_packet_rows **"], source: Any) -> Pointer[um_packet_rows]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_packet_rows_options *", "um_packet_rows_options[]"], source: Any
    ) -> um_packet_rows_options: ...
    @overload
    def cast(
        self, cdecl: Literal["um_packet_rows_options **"], source: Any
    ) -> Pointer[um_packet_rows_options]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_packet_rows_ports *", "um_packet_rows_ports[]"], source: Any
    ) -> um_packet_rows_ports: ...
    @overload
    def cast(
        self, cdecl: Literal["um_packet_rows_ports **"], source: Any
    ) -> Pointer[um_packet_rows_ports]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_packet_rows_text *", "um_packet_rows_text[]"], source: Any
    ) -> um_packet_rows_text: ...
    @overload
    def cast(self, cdecl: Literal["um_packet_rows_text **"], source: Any) -> Pointer[um_packet_rows_text]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_packet_selection *", "um_packet_selection[]"], source: Any
    ) -> um_packet_selection: ...
    @overload
    def cast(self, cdecl: Literal["um_packet_selection **"], source: Any) -> Pointer[um_packet_selection]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_pcapng_packet *", "um_pcapng_packet[]"], source: Any
    ) -> um_pcapng_packet: ...
    @overload
    def cast(self, cdecl: Literal["um_pcapng_packet **"], source: Any) -> Pointer[um_pcapng_packet]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_pcapng_writer *", "um_pcapng_writer[]"], source: Any
    ) -> um_pcapng_writer: ...
    @overload
    def cast(self, cdecl: Literal["um_pcapng_writer **"], source: Any) -> Pointer[um_pcapng_writer]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_properties_place *", "um_properties_place[]"], source: Any
    ) -> um_properties_place: ...
    @overload
    def cast(self, cdecl: Literal["um_properties_place **"], source: Any) -> Pointer[um_properties_place]: ...
    @overload
    def cast(self, cdecl: Literal["um_publication *", "um_publication[]"], source: Any) -> um_publication: ...
    @overload
    def cast(self, cdecl: Literal["um_publication **"], source: Any) -> Pointer[um_publication]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_publication_session *", "um_publication_session[]"], source: Any
    ) -> um_publication_session: ...
    @overload
    def cast(
        self, cdecl: Literal["um_publication_session **"], source: Any
    ) -> Pointer[um_publication_session]: ...
    @overload
    def cast(self, cdecl: Literal["um_random *", "um_random[]"], source: Any) -> um_random: ...
    @overload
    def cast(self, cdecl: Literal["um_random **"], source: Any) -> Pointer[um_random]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_range_bounds *", "um_range_bounds[]"], source: Any
    ) -> um_range_bounds: ...
    @overload
    def cast(self, cdecl: Literal["um_range_bounds **"], source: Any) -> Pointer[um_range_bounds]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_range_request *", "um_range_request[]"], source: Any
    ) -> um_range_request: ...
    @overload
    def cast(self, cdecl: Literal["um_range_request **"], source: Any) -> Pointer[um_range_request]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_received_datagram *", "um_received_datagram[]"], source: Any
    ) -> um_received_datagram: ...
    @overload
    def cast(
        self, cdecl: Literal["um_received_datagram **"], source: Any
    ) -> Pointer[um_received_datagram]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_receiver_account *", "um_receiver_account[]"], source: Any
    ) -> um_receiver_account: ...
    @overload
    def cast(self, cdecl: Literal["um_receiver_account **"], source: Any) -> Pointer[um_receiver_account]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_receiver_config *", "um_receiver_config[]"], source: Any
    ) -> um_receiver_config: ...
    @overload
    def cast(self, cdecl: Literal["um_receiver_config **"], source: Any) -> Pointer[um_receiver_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_receiver_session_config *", "um_receiver_session_config[]"], source: Any
    ) -> um_receiver_session_config: ...
    @overload
    def cast(
        self, cdecl: Literal["um_receiver_session_config **"], source: Any
    ) -> Pointer[um_receiver_session_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_relayed_part *", "um_relayed_part[]"], source: Any
    ) -> um_relayed_part: ...
    @overload
    def cast(self, cdecl: Literal["um_relayed_part **"], source: Any) -> Pointer[um_relayed_part]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_relayed_records *", "um_relayed_records[]"], source: Any
    ) -> um_relayed_records: ...
    @overload
    def cast(self, cdecl: Literal["um_relayed_records **"], source: Any) -> Pointer[um_relayed_records]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_repair_bucket *", "um_repair_bucket[]"], source: Any
    ) -> um_repair_bucket: ...
    @overload
    def cast(self, cdecl: Literal["um_repair_bucket **"], source: Any) -> Pointer[um_repair_bucket]: ...
    @overload
    def cast(self, cdecl: Literal["um_request *", "um_request[]"], source: Any) -> um_request: ...
    @overload
    def cast(self, cdecl: Literal["um_request **"], source: Any) -> Pointer[um_request]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_resolution_tags *", "um_resolution_tags[]"], source: Any
    ) -> um_resolution_tags: ...
    @overload
    def cast(self, cdecl: Literal["um_resolution_tags **"], source: Any) -> Pointer[um_resolution_tags]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_resolver_cache *", "um_resolver_cache[]"], source: Any
    ) -> um_resolver_cache: ...
    @overload
    def cast(self, cdecl: Literal["um_resolver_cache **"], source: Any) -> Pointer[um_resolver_cache]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_resolver_intake *", "um_resolver_intake[]"], source: Any
    ) -> um_resolver_intake: ...
    @overload
    def cast(self, cdecl: Literal["um_resolver_intake **"], source: Any) -> Pointer[um_resolver_intake]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_retention_config *", "um_retention_config[]"], source: Any
    ) -> um_retention_config: ...
    @overload
    def cast(self, cdecl: Literal["um_retention_config **"], source: Any) -> Pointer[um_retention_config]: ...
    @overload
    def cast(self, cdecl: Literal["um_rings *", "um_rings[]"], source: Any) -> um_rings: ...
    @overload
    def cast(self, cdecl: Literal["um_rings **"], source: Any) -> Pointer[um_rings]: ...
    @overload
    def cast(self, cdecl: Literal["um_row *", "um_row[]"], source: Any) -> um_row: ...
    @overload
    def cast(self, cdecl: Literal["um_row **"], source: Any) -> Pointer[um_row]: ...
    @overload
    def cast(self, cdecl: Literal["um_rows *", "um_rows[]"], source: Any) -> um_rows: ...
    @overload
    def cast(self, cdecl: Literal["um_rows **"], source: Any) -> Pointer[um_rows]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_rows_summary *", "um_rows_summary[]"], source: Any
    ) -> um_rows_summary: ...
    @overload
    def cast(self, cdecl: Literal["um_rows_summary **"], source: Any) -> Pointer[um_rows_summary]: ...
    @overload
    def cast(self, cdecl: Literal["um_served *", "um_served[]"], source: Any) -> um_served: ...
    @overload
    def cast(self, cdecl: Literal["um_served **"], source: Any) -> Pointer[um_served]: ...
    @overload
    def cast(self, cdecl: Literal["um_session_id *", "um_session_id[]"], source: Any) -> um_session_id: ...
    @overload
    def cast(self, cdecl: Literal["um_session_id **"], source: Any) -> Pointer[um_session_id]: ...
    @overload
    def cast(self, cdecl: Literal["um_siphash_key *", "um_siphash_key[]"], source: Any) -> um_siphash_key: ...
    @overload
    def cast(self, cdecl: Literal["um_siphash_key **"], source: Any) -> Pointer[um_siphash_key]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_source_claim *", "um_source_claim[]"], source: Any
    ) -> um_source_claim: ...
    @overload
    def cast(self, cdecl: Literal["um_source_claim **"], source: Any) -> Pointer[um_source_claim]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_source_config *", "um_source_config[]"], source: Any
    ) -> um_source_config: ...
    @overload
    def cast(self, cdecl: Literal["um_source_config **"], source: Any) -> Pointer[um_source_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_source_event *", "um_source_event[]"], source: Any
    ) -> um_source_event: ...
    @overload
    def cast(self, cdecl: Literal["um_source_event **"], source: Any) -> Pointer[um_source_event]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_source_session_config *", "um_source_session_config[]"], source: Any
    ) -> um_source_session_config: ...
    @overload
    def cast(
        self, cdecl: Literal["um_source_session_config **"], source: Any
    ) -> Pointer[um_source_session_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_stream_findings *", "um_stream_findings[]"], source: Any
    ) -> um_stream_findings: ...
    @overload
    def cast(self, cdecl: Literal["um_stream_findings **"], source: Any) -> Pointer[um_stream_findings]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_stream_greeting *", "um_stream_greeting[]"], source: Any
    ) -> um_stream_greeting: ...
    @overload
    def cast(self, cdecl: Literal["um_stream_greeting **"], source: Any) -> Pointer[um_stream_greeting]: ...
    @overload
    def cast(self, cdecl: Literal["um_stream_tags *", "um_stream_tags[]"], source: Any) -> um_stream_tags: ...
    @overload
    def cast(self, cdecl: Literal["um_stream_tags **"], source: Any) -> Pointer[um_stream_tags]: ...
    @overload
    def cast(self, cdecl: Literal["um_streams *", "um_streams[]"], source: Any) -> um_streams: ...
    @overload
    def cast(self, cdecl: Literal["um_streams **"], source: Any) -> Pointer[um_streams]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_subscription *", "um_subscription[]"], source: Any
    ) -> um_subscription: ...
    @overload
    def cast(self, cdecl: Literal["um_subscription **"], source: Any) -> Pointer[um_subscription]: ...
    @overload
    def cast(self, cdecl: Literal["um_tally *", "um_tally[]"], source: Any) -> um_tally: ...
    @overload
    def cast(self, cdecl: Literal["um_tally **"], source: Any) -> Pointer[um_tally]: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_rate *", "um_tally_rate[]"], source: Any) -> um_tally_rate: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_rate **"], source: Any) -> Pointer[um_tally_rate]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_tally_reference *", "um_tally_reference[]"], source: Any
    ) -> um_tally_reference: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_reference **"], source: Any) -> Pointer[um_tally_reference]: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_send *", "um_tally_send[]"], source: Any) -> um_tally_send: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_send **"], source: Any) -> Pointer[um_tally_send]: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_size *", "um_tally_size[]"], source: Any) -> um_tally_size: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_size **"], source: Any) -> Pointer[um_tally_size]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_tally_stream *", "um_tally_stream[]"], source: Any
    ) -> um_tally_stream: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_stream **"], source: Any) -> Pointer[um_tally_stream]: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_topic *", "um_tally_topic[]"], source: Any) -> um_tally_topic: ...
    @overload
    def cast(self, cdecl: Literal["um_tally_topic **"], source: Any) -> Pointer[um_tally_topic]: ...
    @overload
    def cast(self, cdecl: Literal["um_tap_config *", "um_tap_config[]"], source: Any) -> um_tap_config: ...
    @overload
    def cast(self, cdecl: Literal["um_tap_config **"], source: Any) -> Pointer[um_tap_config]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_tap_counters *", "um_tap_counters[]"], source: Any
    ) -> um_tap_counters: ...
    @overload
    def cast(self, cdecl: Literal["um_tap_counters **"], source: Any) -> Pointer[um_tap_counters]: ...
    @overload
    def cast(
        self, cdecl: Literal["um_tcp_source_config *", "um_tcp_source_config[]"], source: Any
    ) -> um_tcp_source_config: ...
    @overload
    def cast(
        self, cdecl: Literal["um_tcp_source_config **"], source: Any
    ) -> Pointer[um_tcp_source_config]: ...
    @overload
    def cast(self, cdecl: Literal["bool *", "bool[]"], source: Any) -> Pointer[_Bool]: ...
    @overload
    def cast(self, cdecl: Literal["char *", "char[]"], source: Any) -> Pointer[char]: ...
    @overload
    def cast(self, cdecl: Literal["int *", "int[]"], source: Any) -> Pointer[c_int]: ...
    @overload
    def cast(self, cdecl: Literal["double *", "double[]"], source: Any) -> Pointer[double]: ...
    @overload
    def cast(self, cdecl: Literal["int32_t *", "int32_t[]"], source: Any) -> Pointer[int32_t]: ...
    @overload
    def cast(self, cdecl: Literal["int64_t *", "int64_t[]"], source: Any) -> Pointer[int64_t]: ...
    @overload
    def cast(self, cdecl: Literal["size_t *", "size_t[]"], source: Any) -> Pointer[size_t]: ...
    @overload
    def cast(self, cdecl: Literal["uint16_t *", "uint16_t[]"], source: Any) -> Pointer[uint16_t]: ...
    @overload
    def cast(self, cdecl: Literal["uint32_t *", "uint32_t[]"], source: Any) -> Pointer[uint32_t]: ...
    @overload
    def cast(self, cdecl: Literal["uint64_t *", "uint64_t[]"], source: Any) -> Pointer[uint64_t]: ...
    @overload
    def cast(self, cdecl: Literal["uint8_t *", "uint8_t[]"], source: Any) -> Pointer[uint8_t]: ...
    @overload
    def cast(
        self, cdecl: Literal["unsigned_char *", "unsigned_char[]"], source: Any
    ) -> Pointer[unsigned_char]: ...
    @overload
    def cast(
        self, cdecl: Literal["unsigned_int *", "unsigned_int[]"], source: Any
    ) -> Pointer[unsigned_int]: ...
    @overload
    def cast(
        self, cdecl: Literal["unsigned_long_long *", "unsigned_long_long[]"], source: Any
    ) -> Pointer[unsigned_long_long]: ...
    @overload
    def cast(
        self, cdecl: Literal["unsigned_short *", "unsigned_short[]"], source: Any
    ) -> Pointer[unsigned_short]: ...
    @overload
    def cast(self, cdecl: Literal["void *", "void[]"], source: Any) -> Pointer[void]: ...
    @overload
    def cast(self, cdecl: Any, source: Any) -> Any: ...

ffi: _Core
lib: _CoreLib
