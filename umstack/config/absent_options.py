"""UM options that this stack does not have, with the reason, which errors about UM configuration files report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AbsentOptions:
    """Names, or prefixes of names ending in `*`, and why there is no such option."""

    names: tuple[str, ...]
    reason: str

    def covers(self, name: str) -> bool:
        return any(
            name.startswith(known[:-1]) if known.endswith("*") else name == known for known in self.names
        )


ABSENT_IN_SCOPES = {
    ("receiver", "ume_registration_interval"): "receivers repeat a registration every 200 ms",
}
"""Options that exist here in another scope only, by scope and name."""
ABSENT_SCOPES = {
    "hfx": "a hot failover receiver over several contexts has receiver options: hf_maximum_delay for "
    "delivery_control_max_delay",
    "xsp": "there are no extra receive threads: use a second context",
}

ABSENT_OPTIONS = (
    AbsentOptions(
        ("transport_lbtru_transmission_window_limit",),
        "the window's memory is allocated once, at creation, and never grows",
    ),
    AbsentOptions(
        ("transport_lbtru_receiver_datagram_max_size",),
        "LBT-RU has the limit of LBT-RM: see transport_lbtrm_receiver_datagram_max_size",
    ),
    AbsentOptions(
        ("resolver_source_datagram_max_size", "resolver_receiver_datagram_max_size"),
        "resolver_datagram_max_size limits all datagrams sent; received datagrams have no limit",
    ),
    AbsentOptions(("queue_count_enabled",), "rows are always counted (events, events_tot)"),
    AbsentOptions(
        ("queue_objects_purged_on_close",),
        "closing a queue discards its rows; batches already taken stay readable",
    ),
    AbsentOptions(
        ("queue_cancellation_callbacks_enabled", "queue_enqueue_notification"),
        "close() waits for a running callback; fileno() with arm() signals the first row",
    ),
    AbsentOptions(
        ("transport_tcp_coalesce_threshold", "transport_tcp_exclusiveaddr", "transport_tcp_reuseaddr"),
        "other options determine how messages are combined and ports are bound",
    ),
    AbsentOptions(
        ("transport_tcp_interface", "transport_tcp_dro_loss_recovery_timeout"),
        "a context has one interface, and there is no DRO",
    ),
    AbsentOptions(
        ("transport_lbtipc_pend_behavior_linger_loop_count",),
        "the context's adaptive spin decides how long a thread polls before it sleeps: see pend_adaptive_linger_limit",
    ),
    AbsentOptions(
        ("transport_lbtipc_receiver_operational_mode",),
        "the context's own loop receives: see operational_mode",
    ),
    AbsentOptions(("transport_lbtipc_dro_loss_recovery_timeout",), "there is no DRO"),
    AbsentOptions(("transport_lbtsmx_*",), "LBT-SMX is not a transport of this stack"),
    AbsentOptions(("mim_*",), "there is no multicast immediate messaging"),
    AbsentOptions(
        ("request_tcp_exclusiveaddr", "response_tcp_activity_timeout"),
        "not a setting of requests and responses here: the kernel detects a dead requester when data is sent to it",
    ),
    AbsentOptions(
        ("ume_store", "ume_store_name", "ume_session_id"),
        "give store= and session_id= to Context.source(), and session_id= to Context.receiver()",
    ),
    AbsentOptions(
        ("ume_store_group", "ume_store_behavior", "ume_retention_intergroup_stability_behavior"),
        "the Stores of a source are one group, with quorum and consensus",
    ),
    AbsentOptions(("ume_use_store",), "a receiver without a session id uses no Store"),
    AbsentOptions(
        ("ume_sri_*",),
        "advertisements name the Stores, so there is no registration information to send or request",
    ),
    AbsentOptions(("ume_proxy_source",), "there are no proxy sources: receivers read from the Stores"),
    AbsentOptions(
        (
            "ume_receiver_liveness_interval",
            "ume_source_liveness_timeout",
            "ume_user_receiver_registration_id",
        ),
        "sources do not watch receivers through Stores",
    ),
    AbsentOptions(
        ("ume_message_stability_notification",), "MessageStable events name ranges, and are always there"
    ),
    AbsentOptions(
        ("ume_consensus_sequence_number_behavior",),
        "a source starts behind the highest number, a receiver behind the highest acknowledgement",
    ),
    AbsentOptions(("ume_activity_timeout", "ume_state_lifetime"), "the Store's limits apply"),
    AbsentOptions(
        ("ume_use_ack_batching", "ume_ack_batching_interval"), "acknowledgements are sent every 100 ms"
    ),
    AbsentOptions(
        ("ume_store_check_interval", "ume_proactive_keepalive_interval"),
        "Stores are checked every 100 ms, and sent a keepalive every 2 s",
    ),
    AbsentOptions(("ume_application_outstanding_maximum",), "the receiver's queue limits what is not read"),
    AbsentOptions(
        ("ume_write_delay", "ume_repository_ack_on_reception"),
        "a commit waits for the disk only, and one sync covers all sources; `--durability` acknowledges earlier",
    ),
    AbsentOptions(
        ("ume_repository_*",),
        "a Store's memory does not grow with the messages that it keeps",
    ),
    AbsentOptions(("ume_*",), "an option of the vendor's API or store that has no counterpart here"),
    AbsentOptions(("umq_*",), "there is no broker"),
    AbsentOptions(
        ("retransmit_initial_sequence_number_request", "retransmit_request_generation_interval"),
        "a source that has never sent responds with an empty range; the generation interval is deprecated",
    ),
    AbsentOptions(
        ("resolver_unicast_check_interval", "resolver_unicast_change_interval"),
        "daemons are checked before each datagram is sent, and the first that responds is used at once",
    ),
    AbsentOptions(
        ("resolver_unicast_*", "resolver_disable_udp_topic_resolution"),
        "not a setting of unicast topic resolution here",
    ),
    AbsentOptions(
        ("pattern_type",), "a pattern is a regular expression as in PCRE, or the prefix= of the call"
    ),
    AbsentOptions(
        ("resolver_source_map_tablesz", "resolver_receiver_map_tablesz", "resolver_string_hash_function"),
        "the tables of topic resolution size themselves",
    ),
    AbsentOptions(("transport_demux_tablesz",), "the de-multiplexing table sizes itself"),
    AbsentOptions(
        ("transport_lbtrm_transmission_window_limit",),
        "the window's memory is allocated once, at creation, and never grows",
    ),
    AbsentOptions(("transport_lbtrm_tgsz",), "there is no forward error correction"),
    AbsentOptions(
        ("transport_lbtrm_source_timestamp",),
        "NIC transmit timestamps are not supported; send_timestamps adds the publisher's time to messages",
    ),
    AbsentOptions(("transport_lbtrm_recycle_receive_buffers",), "receive buffers are always reused"),
    AbsentOptions(
        ("delivery_control_message_batching",),
        "the application always takes messages in batches and chooses their size",
    ),
    AbsentOptions(
        ("source_notification_function",),
        "set source_notification to 1: SourceCreated and SourceDeleted are events, also for on_message",
    ),
    AbsentOptions(
        ("transport_topic_sequence_number_info_request_*",),
        "receivers do not request TSNIs: sources send them",
    ),
    AbsentOptions(("fd_management_type",), "the context chooses how it waits"),
    AbsentOptions(
        ("monitor_*",), "statistics are read with `umstack stat`, the exporter or the recorder instead"
    ),
    AbsentOptions(("resolver_ttl",), "its scope and name are: context resolver_multicast_ttl"),
    AbsentOptions(
        ("implicit_batching_type",), "batching is as with the type default; there is no adaptive batching"
    ),
    AbsentOptions(
        ("transport_tcp_multiple_receiver_send_order",), "the receivers are served in turn, none first"
    ),
    AbsentOptions(
        ("transport_tcp_activity_method",), "the kernel's timer and transport_tcp_activity_timeout decide"
    ),
    AbsentOptions(
        ("use_extended_reclaim_notifications",), "there are no notifications of reclaimed messages"
    ),
    AbsentOptions(("smart_src_*",), "there is no smart source: send_many() and claim() serve its purpose"),
    AbsentOptions(("transport_lbtrdma_*",), "LBT-RDMA is not a transport of this stack"),
    AbsentOptions(
        ("use_tls", "tls_*"),
        "there is no TLS: keys authenticate and encrypt datagrams and connections, see encryption",
    ),
    AbsentOptions(("compression",), "messages are sent as they are: compress them before sending"),
    AbsentOptions(("receive_thread_pool_size",), "a context receives on one thread: use several contexts"),
    AbsentOptions(
        ("transport_session_multiple_sending_threads", "transport_session_single_receiving_thread"),
        "any number of threads may send, and one thread of the context receives",
    ),
    AbsentOptions(("use_transport_thread",), "one thread of the context receives for all transports"),
    AbsentOptions(("transport_lbtru_recycle_receive_buffers",), "receive buffers are always reused"),
    AbsentOptions(
        ("resolver_context_*", "resolver_service*", "resolver_event_*", "resolver_domain_id"),
        "names of contexts, domains and the TCP resolution service are not resolved here",
    ),
    AbsentOptions(("network_compatibility_mode",), "the wire format has one version"),
    AbsentOptions(
        ("dbl_*", "onload_*", "resolver_ud_acceleration", "transport_lbtrm_ud_acceleration"),
        "kernel bypass is set with link=xdp, not with a vendor's library",
    ),
    AbsentOptions(("delivery_latency_sampling",), "send_timestamps measures the latency of every message"),
    AbsentOptions(
        ("delivery_control_loss_tablesz", "delivery_control_order_tablesz", "channel_map_tablesz"),
        "the tables of delivery size themselves",
    ),
    AbsentOptions(("null_channel_behavior", "unrecognized_channel_behavior"), "messages have no channels"),
    AbsentOptions(("message_selector",), "there are no message selectors: filter by message properties"),
    AbsentOptions(
        ("multitransport_*", "dro_*", "daemon_*", "broker*"), "there is no DRO, daemon mode or broker"
    ),
    AbsentOptions(("debug_*",), "logging is Python's: see docs/operations-logging.md"),
)


def why_absent(name: str) -> str | None:
    """Return why this stack does not have UM option `name`; None if it does, or if UM does not."""
    for absent in ABSENT_OPTIONS:
        if absent.covers(name):
            return absent.reason
    return None
