"""The options of a source. Those of a transport session are taken from the first source on it (UM-18).

One file, because it is one table: each option of the scope once, with its unit, range and default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from umstack.config.adaptive_timers import ADAPTIVE_SOURCE_TIMERS, adaptive, adaptive_of
from umstack.config.option import Kind, Scope, option

_FOREVER = "forever"
_OFF = "off"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of scope `source`, as Config.source_options() makes them."""

    SCOPE: ClassVar[Scope] = Scope.SOURCE

    # Transport and addressing

    transport: str = option(
        Kind.CHOICE,
        um="tcp",
        ours="lbtrm",
        choices=("lbtrm", "lbtru", "tcp", "lbtipc"),
        reason="Reaching all receivers with one datagram is the purpose of this stack; UM files that rely on the "
        "default must set tcp.",
        doc="Transport of the source's session: lbtrm (reliable multicast), lbtru (reliable unicast), tcp, or "
        "lbtipc (shared memory, to receivers of the same host). Also written lbt-rm, lbt-ru and lbt-ipc.",
    )
    transport_session_name: str = option(
        Kind.TEXT,
        ours="auto",
        doc="Sources of a context with the same name share one transport session, exclusively. auto: the session of "
        "their group and port, or the next one of the pool.",
    )
    transport_lbtrm_multicast_address: str = option(
        Kind.MULTICAST_GROUP,
        um="0.0.0.0",
        doc="Group of the source's session, IPv4 or IPv6. 0.0.0.0 takes one from the pool.",
    )
    transport_lbtrm_destination_port: int = option(
        Kind.INTEGER, um=14400, minimum=1, maximum=65535, doc="UDP port for the group's data."
    )

    transport_lbtru_port: int = option(
        Kind.INTEGER,
        um=0,
        maximum=65535,
        zero="one of the pool",
        doc="UDP port of the source's LBT-RU session, which joins the pool.",
    )
    transport_lbtru_allow_ephemeral: bool = option(
        Kind.SWITCH,
        um=0,
        doc="If the port, or every port of the pool, is in use, let the system choose one instead of failing.",
    )
    transport_lbtru_interface: str = option(
        Kind.IPV4_INTERFACE,
        um="0.0.0.0",
        doc="Interface of the LBT-RU session, which must be the context's: a name, an IPv4 address or a network. "
        "0.0.0.0 is the same.",
    )
    transport_lbtru_use_session_id: bool = option(
        Kind.SWITCH,
        um=1,
        doc="LBT-RU datagrams carry a session id, so that datagrams of other sessions are detected.",
    )

    # TCP

    transport_tcp_port: int = option(
        Kind.INTEGER,
        um=0,
        minimum=0,
        maximum=65535,
        doc="TCP port on which the source's session listens; 0 takes one from the pool. A configured port joins the "
        "pool.",
    )
    transport_tcp_multiple_receiver_behavior: str = option(
        Kind.CHOICE,
        um="normal",
        choices=("normal", "source_paced"),
        doc="Effect of a receiver that is slower than the source: normal, it holds the source back, like flow "
        "control; source_paced, it loses whole messages, which is reported to it and to the source.",
    )
    transport_session_maximum_buffer_bytes: int = option(
        Kind.BYTES,
        um=65536,
        minimum=1,
        maximum=2**28,
        doc="Maximum bytes queued for each TCP receiver before its connection. The minimum in effect is 131072, "
        "which holds any batch of datagrams.",
    )
    transport_source_side_filtering_behavior: str = option(
        Kind.CHOICE,
        um="none",
        choices=("none", "inclusion"),
        doc="inclusion: send a TCP or LBT-RU receiver only datagrams with topics of the session that it receives "
        "(UX-27).",
    )
    transport_tcp_nodelay: bool = option(
        Kind.SWITCH, um=1, doc="Send flushed messages at once, however few bytes they are (TCP_NODELAY)."
    )
    transport_tcp_use_session_id: bool = option(
        Kind.SWITCH,
        um=1,
        doc="The session has an id that is advertised and that receivers must send when they connect, so that a "
        "receiver of an earlier session on this port is rejected.",
    )
    transport_tcp_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=0,
        ours=60000,
        maximum=3_600_000,
        zero=_OFF,
        reason="A receiver's host that vanishes would otherwise hold a source back for a quarter of an hour.",
        doc="Disconnect a receiver whose host acknowledges nothing for this long; an idle connection is probed "
        "(keepalive, TCP_USER_TIMEOUT).",
    )
    transport_tcp_listen_backlog: int = option(
        Kind.INTEGER,
        um=5,
        ours=128,
        minimum=1,
        maximum=4096,
        reason="Many receivers that connect at once would wait until their hosts retry.",
        doc="Maximum number of connections that wait to be accepted.",
    )
    transport_tcp_sender_socket_buffer_bytes: int = option(
        Kind.BYTES,
        um=0,
        maximum=2**30,
        zero="the system's default, which adapts",
        doc="Send buffer of each connection.",
    )

    # LBT-IPC

    transport_lbtipc_id: int = option(
        Kind.INTEGER,
        um=0,
        maximum=65535,
        zero="one of the pool",
        doc="Transport id of the source's LBT-IPC session. A session with an id outside the pool does not join it.",
    )
    transport_lbtipc_transmission_window_size_bytes: int = option(
        Kind.BYTES,
        um=25165824,
        minimum=65536,
        maximum=2**30 - 64,
        doc="Size of the shared log, which all receivers of the session map. The minimum in effect is 131072.",
    )
    transport_lbtipc_behavior: str = option(
        Kind.CHOICE,
        um="source_paced",
        choices=("source_paced", "receiver_paced"),
        doc="Effect of a receiver that is slower than the source: source_paced, it loses the messages that the source "
        "overwrites, which is reported to it; receiver_paced, it holds the source back.",
    )
    transport_lbtipc_sm_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum=10,
        maximum=3_600_000,
        doc="How often an idle source shows its receivers that it is alive (UM-68).",
    )
    transport_lbtipc_maximum_receivers_per_transport: int = option(
        Kind.INTEGER,
        um=20,
        minimum=1,
        maximum=960,
        doc="Maximum number of contexts that may attach to a session; further ones are refused.",
    )

    # Batching

    implicit_batching_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=200,
        minimum=3,
        maximum=60000,
        doc="Maximum time that the first message of a batch waits.",
    )
    implicit_batching_minimum_length_bytes: int = option(
        Kind.BYTES,
        um=2048,
        minimum=1,
        maximum=65535,
        doc="A batch is sent when it reaches this length, or when the next message would not fit the "
        "datagram. "
        "1 sends every message at once.",
    )
    transport_lbtrm_coalesce_threshold: int = option(
        Kind.INTEGER,
        um=15,
        minimum=1,
        maximum=1023,
        doc="Maximum number of messages in a datagram that is sent without copying; a datagram with more messages "
        "is copied into one buffer first.",
    )

    # Reliability

    transport_lbtrm_transmission_window_size_bytes: int = option(
        Kind.BYTES,
        um=25165824,
        minimum=65536,
        maximum=2**30,
        doc="Bytes retained for retransmission. The memory is allocated when the session is created.",
    )
    recovery_timing: str = option(
        Kind.CHOICE,
        ours="adaptive",
        choices=("adaptive", "fixed"),
        doc="adaptive: the ignore interval and the first session message are measured, with the defaults as upper "
        "bounds; intervals that are set keep their values; receivers are sent the results. fixed: all are as "
        "configured; the defaults are UM's, except that of the ignore interval.",
    )
    transport_lbtrm_path_datagram_minimum_size_bytes: int = option(
        Kind.BYTES,
        ours=1200,
        minimum=500,
        maximum=65507,
        zero="no discovery",
        doc="Path MTU discovery never makes datagrams smaller than this. It needs recovery_timing adaptive, and is off "
        "if IP fragments datagrams.",
    )
    transport_lbtrm_ignore_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=500,
        ours=100,
        maximum=3_600_000,
        reason="UM recommends at most half of nak_backoff_interval; its defaults violate that, and a NAK for a lost "
        "retransmission is then refused.",
        doc="NAKs for a sequence number are refused this long after its retransmission.",
    )
    transport_lbtrm_sm_minimum_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=200,
        minimum="0.05",
        maximum=3_600_000,
        doc="Idle time after which the first session message is sent; the interval then doubles.",
    )
    transport_lbtrm_sm_maximum_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum="0.05",
        maximum=3_600_000,
        doc="Longest interval of session messages.",
    )
    transport_topic_sequence_number_info_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=5000,
        minimum=1,
        maximum=3_600_000,
        zero=_OFF,
        doc="Idle time of a topic after which its last sequence number is sent again (TSNI), and the interval of "
        "further TSNIs.",
    )
    transport_topic_sequence_number_info_active_threshold_ns: int = option(
        Kind.SECONDS,
        um=60,
        maximum=10_000_000,
        zero=_FOREVER,
        doc="How long an idle source keeps sending TSNIs.",
    )

    # Late join

    late_join: bool = option(
        Kind.SWITCH, um=0, doc="Retain messages for receivers that join late, and offer them (UM-139)."
    )
    retransmit_retention_size_threshold_bytes: int = option(
        Kind.BYTES,
        um=0,
        ours=25165824,
        maximum=2**36,
        reason="With 0 a source retains one message. The default is the value of retransmit_retention_size_limit.",
        doc="A message is dropped only if newer messages of this total size remain.",
    )
    retransmit_retention_age_threshold_ns: int = option(
        Kind.SECONDS, um=0, maximum=10_000_000, doc="A message is dropped only if it is also this old."
    )
    retransmit_retention_size_limit_bytes: int = option(
        Kind.BYTES,
        um=25165824,
        minimum=65536,
        maximum=2**36,
        doc="Maximum bytes retained, regardless of the thresholds. Memory is allocated when messages outlive the "
        "publication log.",
    )

    # Flow control

    flow_control: str = option(
        Kind.CHOICE,
        ours="none",
        choices=("none", "min", "max", "tagged"),
        doc="Which receivers' windows bound the sender: none (as UM), the slowest (min), the fastest (max), or the "
        "slowest of those with flow_control_group_tag (tagged).",
    )
    flow_control_group_tag: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=2**32 - 1,
        zero="no group",
        doc="With tagged: tag of the group whose receivers count.",
    )
    flow_control_group_minimum_size: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=256,
        doc="With tagged: receivers of the group needed before the source counts as connected.",
    )
    flow_control_without_receivers: str = option(
        Kind.CHOICE,
        ours="wait",
        choices=("wait", "publish"),
        doc="With min, max or tagged, while no receiver counts: wait, sends wait for one; publish, the source "
        "publishes as with none, and follows the receivers from the first status message on.",
    )
    flow_control_receiver_timeout_ns: int = option(
        Kind.MILLISECONDS,
        ours=5000,
        minimum=1,
        maximum=3_600_000,
        doc="A receiver that has sent no status message for this long no longer counts.",
    )
    flow_control_stall_timeout_ns: int = option(
        Kind.MILLISECONDS,
        ours=60_000,
        minimum=1,
        maximum=3_600_000,
        zero=_FOREVER,
        doc="A receiver that reports, holds the source back and does not advance for this long no longer counts, "
        "until it advances within the transmission window. Source.receiver_events(), the log and `umstack stat` "
        "report it.",
    )
    blocked_send_warning_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=5_000,
        minimum=1,
        maximum=3_600_000,
        zero="no warning",
        doc="A send that has waited for this long logs a warning with the topic, the session and the cause.",
    )
    flow_control_receivers_allowed: str = option(
        Kind.ADDRESSES,
        ours="any",
        doc="Addresses and networks of receivers that may count for flow control, at most 16, separated by commas "
        "(10.1.0.0/16,10.2.0.7); any: all. It does not protect against forged source addresses. Over LBT-RU and "
        "LBT-TCP, receivers with other addresses cannot connect.",
    )
    transport_lbtrm_nak_cutoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=0,
        minimum=1,
        maximum=3_600_000,
        zero="never",
        doc="A receiver that has exceeded its share of the retransmit rate limit for this long, without a pause of "
        "a second, is cut off: its NAKs are ignored until Source.nak_cutoff() allows them again (UX-21).",
    )
    # LBT-RU

    transport_lbtru_transmission_window_size_bytes: int = option(
        Kind.BYTES,
        um=25165824,
        minimum=65536,
        maximum=2**30,
        doc="As transport_lbtrm_transmission_window_size.",
    )
    transport_lbtru_coalesce_threshold: int = option(
        Kind.INTEGER, um=15, minimum=1, maximum=1023, doc="As transport_lbtrm_coalesce_threshold."
    )
    transport_lbtru_ignore_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=500,
        ours=100,
        maximum=3_600_000,
        reason="As transport_lbtrm_ignore_interval.",
        doc="As transport_lbtrm_ignore_interval.",
    )
    transport_lbtru_sm_minimum_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=200,
        minimum="0.05",
        maximum=3_600_000,
        doc="As transport_lbtrm_sm_minimum_interval.",
    )
    transport_lbtru_sm_maximum_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum="0.05",
        maximum=3_600_000,
        doc="As transport_lbtrm_sm_maximum_interval.",
    )
    transport_lbtru_nak_cutoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=0,
        minimum=1,
        maximum=3_600_000,
        zero="never",
        doc="As transport_lbtrm_nak_cutoff_interval.",
    )
    transport_lbtru_client_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum=10,
        maximum=86_400_000,
        doc="A receiver that acknowledges nothing for this long is disconnected.",
    )
    transport_lbtru_client_map_size: int = option(
        Kind.INTEGER,
        um=7,
        minimum=1,
        maximum=65536,
        doc="Buckets of the table of receivers, rounded up to 2^n.",
    )
    transport_lbtru_maximum_clients: int = option(
        Kind.INTEGER,
        ours=256,
        minimum=1,
        maximum=4096,
        doc="Maximum number of receivers connected to a session; others wait.",
    )

    publication_unblock_timeout_ns: int = option(
        Kind.MILLISECONDS,
        ours=15000,
        minimum=1,
        maximum=3_600_000,
        doc="A claim that is neither committed nor aborted for this long is abandoned and skipped (AE-35).",
    )

    send_timestamps: bool = option(
        Kind.SWITCH,
        ours=0,
        doc="Messages carry their send time by the publisher's wall clock, in an extended option of 16 bytes. "
        "Receivers then have `sent_ns` and count one-way latency.",
    )

    initial_sequence_number: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=0xFFFFFFFF,
        doc="Topic sequence number of the first message: a restarted source of a Store continues its numbering.",
    )

    # Stores, for a source made with store= (docs/store.md)

    ume_flight_size: int = option(
        Kind.INTEGER,
        um=1000,
        minimum=1,
        maximum=1_000_000,
        doc="Maximum number of messages in flight: sent, and not stable yet.",
    )
    ume_flight_size_bytes_bytes: int = option(
        Kind.BYTES,
        um=0,
        ours=8_388_608,
        minimum=0,
        maximum=2**30,
        reason="Without a limit a slow Store would let the source's memory grow.",
        doc="Maximum bytes of messages in flight; 0: limited by their number. A Store with little memory lowers it.",
    )
    ume_flight_size_behavior: str = option(
        Kind.CHOICE,
        um="block",
        choices=("block", "notify"),
        doc="What a send does at these limits: wait for space, or send all the same and report FlightSize.",
    )
    ume_retention_intragroup_stability_behavior: str = option(
        Kind.CHOICE,
        um="quorum",
        choices=("quorum", "all-active", "all"),
        doc="Stores that must have a message before it is stable: a majority of the list; all that are registered, "
        "and at least a majority; or all.",
    )
    ume_registration_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=3000,
        minimum=1,
        maximum=3_600_000,
        doc="Interval of registrations that a Store does not answer. Afterwards a quorum of Stores suffices.",
    )
    ume_store_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=10_000,
        minimum=1,
        maximum=3_600_000,
        doc="Time without bytes from a Store after which it is unresponsive.",
    )
    ume_message_stability_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=5000,
        ours=1000,
        minimum=1,
        maximum=3_600_000,
        reason="A message that no Store has received holds back the sender meanwhile.",
        doc="Age at which a message in flight is sent again to the Stores that miss it.",
    )
    ume_message_stability_lifetime_ns: int = option(
        Kind.MILLISECONDS,
        um=1_200_000,
        minimum=1,
        maximum=86_400_000,
        doc="Age at which a message in flight is given up, with the event NotStable.",
    )
    ume_retention_unique_confirmations: int = option(
        Kind.INTEGER,
        um=0,
        maximum=1000,
        doc="Receivers with a session id that must have acknowledged a message before it leaves flight.",
    )
    ume_confirmed_delivery_notification: int = option(
        Kind.INTEGER,
        um=0,
        maximum=3,
        zero="none",
        doc="DeliveryConfirmed events, with the session id of a receiver and the range of messages that it has "
        "acknowledged. 1, 2 and 3 are the same.",
    )
    ume_receiver_paced_persistence: bool = option(
        Kind.SWITCH,
        um=0,
        doc="Stores keep each message until all registered receivers have acknowledged it, and a blocking receiver "
        "that lags stops the source. The Stores must allow it.",
    )
    ume_repository_disk_file_size_limit_bytes: int = option(
        Kind.BYTES,
        um=0,
        maximum=2**36,
        zero="the Store's limit",
        doc="With receiver-paced persistence: maximum bytes that a Store keeps of the source. A Store with a lower "
        "limit refuses it.",
    )

    # Topic resolution

    resolver_send_initial_advertisement: bool = option(
        Kind.SWITCH, um=1, doc="Advertise at once when the source is created."
    )
    resolver_send_final_advertisements: bool = option(
        Kind.SWITCH,
        um=0,
        ours=1,
        reason="Otherwise topics(), sources_of() and daemons list a closed source until others take its space.",
        doc="Announce the end of a source when it is closed (an advertisement with TTL 0).",
    )
    resolver_advertisement_send_immediate_response: bool = option(
        Kind.SWITCH, um=1, doc="Respond to a query at once."
    )
    resolver_advertisement_minimum_initial_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10,
        minimum=1,
        maximum=3_600_000,
        zero="no initial phase",
        doc="First interval of the initial phase; it doubles.",
    )
    resolver_advertisement_maximum_initial_interval_ns: int = option(
        Kind.MILLISECONDS, um=500, minimum=1, maximum=3_600_000, doc="Longest interval of the initial phase."
    )
    resolver_advertisement_minimum_initial_duration_ns: int = option(
        Kind.MILLISECONDS, um=5000, maximum=3_600_000, zero=_FOREVER, doc="Length of the initial phase."
    )
    resolver_advertisement_sustain_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        minimum=1,
        maximum=3_600_000,
        zero="no sustaining phase",
        doc="Interval of the sustaining phase.",
    )
    resolver_advertisement_minimum_sustain_duration_ns: int = option(
        Kind.SECONDS, um=60, maximum=10_000_000, zero=_FOREVER, doc="Length of the sustaining phase."
    )

    given: frozenset[str] = frozenset()
    """Names of the options that were set; the others have their defaults."""

    @property
    def is_stream(self) -> bool:
        """True if the session has connections to its receivers instead of datagrams: TCP and LBT-IPC."""
        return self.transport in ("tcp", "lbtipc")

    @property
    def adaptive_timers(self) -> frozenset[str]:
        """Names of the measured timers."""
        return adaptive(self.recovery_timing, ADAPTIVE_SOURCE_TIMERS, self.given)

    def adaptive_timers_of(self, transport: str) -> frozenset[str]:
        """Return the measured timers of a transport under the names of LBT-RM's options."""
        return adaptive_of(transport, self.recovery_timing, ADAPTIVE_SOURCE_TIMERS, self.given)
