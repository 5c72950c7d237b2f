"""Types of options as keyword arguments, for type checkers.

Generated from the option tables by `python -m umstack.config --keywords`; edit the tables instead.
"""

from __future__ import annotations

from typing import TypedDict

from umstack.config.option import OptionValue


class ContextKeywords(TypedDict, total=False):
    """Context options of Context()."""

    statistics_ended_maximum: OptionValue
    statistics_ended_interval: OptionValue
    tcp_connections_allowed: str
    transport_tcp_datagram_max_size: OptionValue
    transport_tcp_port_low: OptionValue
    transport_tcp_port_high: OptionValue
    transport_tcp_maximum_ports: OptionValue
    transport_tcp_receiver_socket_buffer: OptionValue
    transport_lbtipc_datagram_max_size: OptionValue
    transport_lbtipc_id_low: OptionValue
    transport_lbtipc_id_high: OptionValue
    transport_lbtipc_receiver_thread_behavior: str
    request_tcp_bind_request_port: OptionValue
    request_tcp_interface: str
    request_tcp_port: OptionValue
    request_tcp_port_low: OptionValue
    request_tcp_port_high: OptionValue
    request_tcp_listen_backlog: OptionValue
    request_tcp_reuseaddr: OptionValue
    request_tcp_activity_timeout: OptionValue
    recovery_connections_maximum: OptionValue
    recovery_data_rate_limit: OptionValue
    recovery_idle_timeout: OptionValue
    request_pending_maximum: OptionValue
    request_responders_maximum: OptionValue
    request_response_buffer: OptionValue
    response_maximum_message_length: OptionValue
    response_connections_maximum: OptionValue
    response_session_maximum_buffer: OptionValue
    response_session_sender_socket_buffer: OptionValue
    response_tcp_deletion_timeout: OptionValue
    response_tcp_interface: str
    response_tcp_nodelay: OptionValue
    operational_mode: str
    file_descriptor_management_behavior: str
    pend_linger_interval: OptionValue
    pend_adaptive_linger_limit: OptionValue
    pend_busy_poll_limit: OptionValue
    pend_coalescing_limit: OptionValue
    multiple_receive_maximum_datagrams: OptionValue
    link_gso: OptionValue
    link_gro: OptionValue
    link_xdp_queues: OptionValue
    link_xdp_receive_frames: OptionValue
    link_xdp_checksum: OptionValue
    link_xdp_busy_poll: OptionValue
    link_xdp_nic_timestamps: OptionValue
    link_xdp_broker: str
    driver_search_timeout: OptionValue
    default_interface: str
    resolver_multicast_interface: str
    resolver_multicast_ttl: OptionValue
    ip_dscp: OptionValue
    transport_lbtrm_datagram_max_size: OptionValue
    transport_lbtrm_source_datagram_max_size: OptionValue
    transport_lbtrm_receiver_datagram_max_size: OptionValue
    dynamic_fragmentation_reduction: OptionValue
    resolver_datagram_max_size: OptionValue
    transport_lbtrm_receiver_socket_buffer: OptionValue
    transport_lbtrm_source_socket_buffer: OptionValue
    transport_lbtrm_data_rate_limit: OptionValue
    transport_lbtrm_retransmit_rate_limit: OptionValue
    transport_lbtrm_rate_interval: OptionValue
    transport_lbtrm_receiver_timestamp: OptionValue
    transport_lbtrm_multicast_address_low: str
    transport_lbtrm_multicast_address_high: str
    transport_lbtrm_multicast_sources: str
    transport_lbtrm_source_port_low: OptionValue
    transport_lbtrm_source_port_high: OptionValue
    transport_lbtru_datagram_max_size: OptionValue
    transport_lbtru_source_datagram_max_size: OptionValue
    transport_lbtru_receiver_socket_buffer: OptionValue
    transport_lbtru_source_socket_buffer: OptionValue
    transport_lbtru_data_rate_limit: OptionValue
    transport_lbtru_retransmit_rate_limit: OptionValue
    transport_lbtru_rate_interval: OptionValue
    transport_lbtru_port_low: OptionValue
    transport_lbtru_port_high: OptionValue
    transport_lbtru_maximum_ports: OptionValue
    authentication_scope: str
    authentication_key_file: str
    encryption: str
    authentication_time_tolerance: OptionValue
    delivery_control_maximum_total_map_entries: OptionValue
    delivery_hold_datagrams: OptionValue
    resolver_multicast_address: str
    resolver_multicast_port: OptionValue
    resolver_multicast_incoming_address: str
    resolver_multicast_incoming_port: OptionValue
    resolver_multicast_outgoing_address: str
    resolver_multicast_outgoing_port: OptionValue
    resolver_multicast_receiver_socket_buffer: OptionValue
    resolver_unicast_daemon: str
    resolver_unicast_port_low: OptionValue
    resolver_unicast_port_high: OptionValue
    resolver_unicast_activity_timeout: OptionValue
    resolver_unicast_keepalive_interval: OptionValue
    resolver_cache: OptionValue
    resolver_cache_maximum_entries: OptionValue
    resolver_initial_advertisements_per_second: OptionValue
    resolver_initial_advertisement_bps: OptionValue
    resolver_sustain_advertisements_per_second: OptionValue
    resolver_sustain_advertisement_bps: OptionValue
    resolver_initial_queries_per_second: OptionValue
    resolver_initial_query_bps: OptionValue
    resolver_sustain_queries_per_second: OptionValue
    resolver_sustain_query_bps: OptionValue
    resolver_wildcard_queries_per_second: OptionValue
    resolver_wildcard_query_bps: OptionValue


class ContextOptionKeywords(ContextKeywords, total=False):
    """All context options."""

    link: str


class SourceKeywords(TypedDict, total=False):
    """Source options."""

    transport: str
    transport_session_name: str
    transport_lbtrm_multicast_address: str
    transport_lbtrm_destination_port: OptionValue
    transport_lbtru_port: OptionValue
    transport_lbtru_allow_ephemeral: OptionValue
    transport_lbtru_interface: str
    transport_lbtru_use_session_id: OptionValue
    transport_tcp_port: OptionValue
    transport_tcp_multiple_receiver_behavior: str
    transport_session_maximum_buffer: OptionValue
    transport_source_side_filtering_behavior: str
    transport_tcp_nodelay: OptionValue
    transport_tcp_use_session_id: OptionValue
    transport_tcp_activity_timeout: OptionValue
    transport_tcp_listen_backlog: OptionValue
    transport_tcp_sender_socket_buffer: OptionValue
    transport_lbtipc_id: OptionValue
    transport_lbtipc_transmission_window_size: OptionValue
    transport_lbtipc_behavior: str
    transport_lbtipc_sm_interval: OptionValue
    transport_lbtipc_maximum_receivers_per_transport: OptionValue
    implicit_batching_interval: OptionValue
    implicit_batching_minimum_length: OptionValue
    transport_lbtrm_coalesce_threshold: OptionValue
    transport_lbtrm_transmission_window_size: OptionValue
    recovery_timing: str
    transport_lbtrm_path_datagram_minimum_size: OptionValue
    transport_lbtrm_ignore_interval: OptionValue
    transport_lbtrm_sm_minimum_interval: OptionValue
    transport_lbtrm_sm_maximum_interval: OptionValue
    transport_topic_sequence_number_info_interval: OptionValue
    transport_topic_sequence_number_info_active_threshold: OptionValue
    late_join: OptionValue
    retransmit_retention_size_threshold: OptionValue
    retransmit_retention_age_threshold: OptionValue
    retransmit_retention_size_limit: OptionValue
    flow_control: str
    flow_control_group_tag: OptionValue
    flow_control_group_minimum_size: OptionValue
    flow_control_without_receivers: str
    flow_control_receiver_timeout: OptionValue
    flow_control_stall_timeout: OptionValue
    blocked_send_warning_interval: OptionValue
    flow_control_receivers_allowed: str
    transport_lbtrm_nak_cutoff_interval: OptionValue
    transport_lbtru_transmission_window_size: OptionValue
    transport_lbtru_coalesce_threshold: OptionValue
    transport_lbtru_ignore_interval: OptionValue
    transport_lbtru_sm_minimum_interval: OptionValue
    transport_lbtru_sm_maximum_interval: OptionValue
    transport_lbtru_nak_cutoff_interval: OptionValue
    transport_lbtru_client_activity_timeout: OptionValue
    transport_lbtru_client_map_size: OptionValue
    transport_lbtru_maximum_clients: OptionValue
    publication_unblock_timeout: OptionValue
    send_timestamps: OptionValue
    initial_sequence_number: OptionValue
    ume_flight_size: OptionValue
    ume_flight_size_bytes: OptionValue
    ume_flight_size_behavior: str
    ume_retention_intragroup_stability_behavior: str
    ume_registration_interval: OptionValue
    ume_store_activity_timeout: OptionValue
    ume_message_stability_timeout: OptionValue
    ume_message_stability_lifetime: OptionValue
    ume_retention_unique_confirmations: OptionValue
    ume_confirmed_delivery_notification: OptionValue
    ume_receiver_paced_persistence: OptionValue
    ume_repository_disk_file_size_limit: OptionValue
    resolver_send_initial_advertisement: OptionValue
    resolver_send_final_advertisements: OptionValue
    resolver_advertisement_send_immediate_response: OptionValue
    resolver_advertisement_minimum_initial_interval: OptionValue
    resolver_advertisement_maximum_initial_interval: OptionValue
    resolver_advertisement_minimum_initial_duration: OptionValue
    resolver_advertisement_sustain_interval: OptionValue
    resolver_advertisement_minimum_sustain_duration: OptionValue


class ReceiverKeywords(TypedDict, total=False):
    """Receiver options."""

    transport_tcp_activity_timeout: OptionValue
    transport_tcp_reconnect_interval: OptionValue
    transport_tcp_reconnect_timeout: OptionValue
    transport_lbtipc_activity_timeout: OptionValue
    transport_lbtrm_send_naks: OptionValue
    transport_lbtrm_loss_declaration_interval: OptionValue
    transport_lbtrm_nak_initial_backoff_interval: OptionValue
    transport_lbtrm_nak_backoff_interval: OptionValue
    recovery_timing: str
    transport_lbtrm_nak_suppress_interval: OptionValue
    transport_lbtrm_nak_generation_interval: OptionValue
    transport_lbtrm_nak_rate_limit: OptionValue
    transport_lbtrm_nak_cutoff_interval: OptionValue
    transport_lbtrm_activity_timeout: OptionValue
    transport_lbtrm_preactivity_timeout: OptionValue
    transport_lbtru_send_naks: OptionValue
    transport_lbtru_nak_initial_backoff_interval: OptionValue
    transport_lbtru_nak_backoff_interval: OptionValue
    transport_lbtru_nak_suppress_interval: OptionValue
    transport_lbtru_nak_generation_interval: OptionValue
    transport_lbtru_nak_rate_limit: OptionValue
    transport_lbtru_activity_timeout: OptionValue
    transport_lbtru_acknowledgement_interval: OptionValue
    transport_lbtru_connect_interval: OptionValue
    transport_lbtru_maximum_connect_attempts: OptionValue
    transport_lbtru_port_low: OptionValue
    transport_lbtru_port_high: OptionValue
    transport_lbtru_interface: str
    ordered_delivery: OptionValue
    delivery_control_loss_check_interval: OptionValue
    delivery_control_maximum_burst_loss: OptionValue
    receiver_queue_block_length: OptionValue
    receiver_queue_block_count: OptionValue
    receiver_full_queue: str
    receiver_conflation_key_length: OptionValue
    receiver_full_queue_hold_interval: OptionValue
    receiver_maximum_message_length: OptionValue
    source_notification: OptionValue
    hf_optional_messages: OptionValue
    hf_duplicate_delivery: OptionValue
    hf_maximum_delay: OptionValue
    hf_maximum_waiting_messages: OptionValue
    use_late_join: OptionValue
    late_join_info_request_interval: OptionValue
    late_join_info_request_maximum: OptionValue
    retransmit_request_maximum: OptionValue
    retransmit_request_bytes_maximum: OptionValue
    retransmit_request_age_maximum: OptionValue
    retransmit_request_low_sequence_number: OptionValue
    retransmit_request_outstanding_maximum: OptionValue
    retransmit_request_interval: OptionValue
    retransmit_request_message_timeout: OptionValue
    retransmit_message_caching_proximity: OptionValue
    use_otr: OptionValue
    otr_request_initial_delay: OptionValue
    otr_message_caching_threshold: OptionValue
    otr_request_minimum_interval: OptionValue
    otr_request_maximum_interval: OptionValue
    otr_request_message_timeout: OptionValue
    otr_request_outstanding_maximum: OptionValue
    otr_request_log_alert_cooldown: OptionValue
    flow_control_receiver_window: OptionValue
    flow_control_receiver_report_interval: OptionValue
    flow_control_group_tag: OptionValue
    resolver_query_minimum_initial_interval: OptionValue
    resolver_query_maximum_initial_interval: OptionValue
    resolver_query_minimum_initial_duration: OptionValue
    resolver_query_initial_until_resolved: OptionValue
    resolver_query_sustain_interval: OptionValue
    resolver_query_minimum_sustain_duration: OptionValue
    resolution_number_of_sources_query_threshold: OptionValue
    ume_explicit_ack_only: OptionValue
    ume_allow_confirmed_delivery: OptionValue
    ume_receiver_paced_persistence: OptionValue
    resolution_no_source_notification_threshold: OptionValue


class WildcardKeywords(TypedDict, total=False):
    """Options of scope wildcard_receiver."""

    resolver_query_minimum_interval: OptionValue
    resolver_query_maximum_interval: OptionValue
    resolver_query_minimum_duration: OptionValue
    resolver_no_source_linger_timeout: OptionValue
    resolution_no_source_notification_threshold: OptionValue
    wildcard_maximum_topics: OptionValue


class EventQueueKeywords(TypedDict, total=False):
    """Options of scope event_queue."""

    queue_size_warning: OptionValue
    queue_delay_warning: OptionValue
    queue_age_enabled: OptionValue
    queue_service_time_enabled: OptionValue


class QueueKeywords(ReceiverKeywords, EventQueueKeywords, total=False):
    """Options of event_queue()."""


class WildcardReceiverKeywords(QueueKeywords, WildcardKeywords, total=False):
    """Options of wildcard_receiver()."""
