"""The options of a receiver. Those of a transport session are taken from the first receiver that joins it.

One file, because it is one table: each option of the scope once, with its unit, range and default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from umstack.config.adaptive_timers import ADAPTIVE_RECEIVER_TIMERS, adaptive, adaptive_of
from umstack.config.option import Kind, Scope, option

_FOREVER = "forever"
_OFF = "off"
_NO_LIMIT = "no limit"


@dataclass(frozen=True, slots=True)
class ReceiverOptions:
    """Options of scope `receiver`, as Config.receiver_options() makes them."""

    SCOPE: ClassVar[Scope] = Scope.RECEIVER

    # TCP

    transport_tcp_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=0,
        ours=60000,
        maximum=3_600_000,
        zero=_OFF,
        reason="Without it, a receiver would not notice that a source's host is gone.",
        doc="Disconnect from a source whose host acknowledges nothing for this long; an idle connection is probed.",
    )
    transport_tcp_reconnect_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=100,
        minimum=1,
        maximum=60_000,
        doc="Interval before the next attempt to connect to a source; it doubles, up to eight times this.",
    )
    transport_tcp_reconnect_timeout_ns: int = option(
        Kind.MILLISECONDS,
        ours=10000,
        minimum=1,
        maximum=3_600_000,
        doc="A session ends if its source could not be connected to for this long. Messages sent meanwhile are "
        "lost, or recovered off the transport.",
    )

    # LBT-IPC

    transport_lbtipc_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=60000,
        minimum=100,
        maximum=3_600_000,
        doc="A session ends if its source shows no sign of life for this long. The end of a source's process is "
        "noticed at once.",
    )

    # Loss recovery

    transport_lbtrm_send_naks: bool = option(Kind.SWITCH, um=1, doc="Send NAKs for lost datagrams.")
    transport_lbtrm_loss_declaration_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=10000,
        maximum=3_600_000,
        zero="at once",
        doc="With transport_lbtrm_send_naks 0, how long after its detection a gap is declared lost; until then a "
        "reordered datagram, or a retransmission for another receiver, still fills it. Not set: "
        "transport_lbtrm_nak_generation_interval.",
    )
    transport_lbtrm_nak_initial_backoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=50,
        maximum=3_600_000,
        zero="at once",
        doc="Time from detecting a lost datagram to the first NAK, drawn from half to one and a half of this.",
    )
    transport_lbtrm_nak_backoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=200,
        minimum="0.01",
        maximum=3_600_000,
        doc="Interval between NAKs for one sequence number, drawn likewise.",
    )
    recovery_timing: str = option(
        Kind.CHOICE,
        ours="adaptive",
        choices=("adaptive", "fixed"),
        doc="adaptive: initial back-off, back-off and suppress interval are measured, with their defaults as upper "
        "bounds; intervals that are set keep their values. fixed: all are as configured, and like UM the "
        "receiver sends no status messages, unless flow_control_receiver_window is set.",
    )
    transport_lbtrm_nak_suppress_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        maximum=3_600_000,
        doc="No NAKs for a sequence number until this long after its NCF.",
    )
    transport_lbtrm_nak_generation_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum=5,
        maximum=3_600_000,
        doc="A lost datagram is given up after this long.",
    )
    transport_lbtrm_nak_rate_limit_naks_per_second: int = option(
        Kind.NAKS_PER_SECOND,
        ours=50_000,
        maximum=100_000_000,
        zero="no limit",
        doc="Maximum sequence numbers NAKed per second and session; a quarter of it may be sent at once. Further "
        "NAKs wait, so that gaps faked by a forged datagram do not cause a storm of NAKs.",
    )
    transport_lbtrm_nak_cutoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=0,
        minimum=1,
        maximum=3_600_000,
        zero="never",
        doc="A session whose NAKs have been at transport_lbtrm_nak_rate_limit for this long, without a pause of a "
        "second, stops sending them (event NakCutoff) until nak_cutoff(False) resumes them (UX-21). Missing "
        "messages are then recovered off the transport if the source offers that, or by retransmissions for "
        "other receivers; otherwise they time out.",
    )
    transport_lbtrm_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=60000,
        minimum=1,
        maximum=86_400_000,
        doc="A session that is idle for this long has ended (EndOfSession).",
    )
    transport_lbtrm_preactivity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=0,
        ours=30_000,
        reason="An advertised source that does not exist is given up before it blocks others; an existing source sends "
        "a session message at least every 10 s.",
        maximum=86_400_000,
        zero="as transport_lbtrm_activity_timeout",
        doc="Activity timeout before the first datagram of the session.",
    )

    # LBT-RU

    transport_lbtru_send_naks: bool = option(Kind.SWITCH, um=1, doc="As transport_lbtrm_send_naks.")
    transport_lbtru_nak_initial_backoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=0,
        maximum=3_600_000,
        zero="at once; with recovery_timing adaptive measured, at most 50",
        doc="As transport_lbtrm_nak_initial_backoff_interval.",
    )
    transport_lbtru_nak_backoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=200,
        minimum="0.01",
        maximum=3_600_000,
        doc="As transport_lbtrm_nak_backoff_interval.",
    )
    transport_lbtru_nak_suppress_interval_ns: int = option(
        Kind.MILLISECONDS, um=1000, maximum=3_600_000, doc="As transport_lbtrm_nak_suppress_interval."
    )
    transport_lbtru_nak_generation_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum=5,
        maximum=3_600_000,
        doc="As transport_lbtrm_nak_generation_interval.",
    )
    transport_lbtru_nak_rate_limit_naks_per_second: int = option(
        Kind.NAKS_PER_SECOND,
        ours=50_000,
        maximum=100_000_000,
        zero="no limit",
        doc="As transport_lbtrm_nak_rate_limit.",
    )
    transport_lbtru_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=60000,
        minimum=1,
        maximum=86_400_000,
        doc="As transport_lbtrm_activity_timeout.",
    )
    transport_lbtru_acknowledgement_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=500,
        minimum=1,
        maximum=3_600_000,
        doc="Interval between acknowledgements, which show a source that this receiver is alive.",
    )
    transport_lbtru_connect_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=100,
        minimum=1,
        maximum=3_600_000,
        doc="Interval between the first two connection requests that get no response; it doubles, up to 32 times this.",
    )
    transport_lbtru_maximum_connect_attempts: int = option(
        Kind.INTEGER,
        um=600,
        minimum=1,
        maximum=2**31 - 1,
        doc="The session has ended (EndOfSession) after this many initial intervals without a response.",
    )
    transport_lbtru_port_low: int = option(
        Kind.INTEGER,
        um=14360,
        minimum=1,
        maximum=65535,
        doc="First UDP port for receiving LBT-RU sessions, one each.",
    )
    transport_lbtru_port_high: int = option(
        Kind.INTEGER,
        um=14379,
        minimum=1,
        maximum=65535,
        doc="Last UDP port of that range. If all are in use, the system chooses one, with a warning.",
    )
    transport_lbtru_interface: str = option(
        Kind.IPV4_INTERFACE,
        um="0.0.0.0",
        doc="Interface for receiving LBT-RU sessions, which must be the context's: a name, an IPv4 address or a "
        "network. 0.0.0.0 is the same.",
    )

    # Delivery

    ordered_delivery: int = option(
        Kind.INTEGER,
        um=1,
        choices=(1, -1, 0),
        doc="1: in order, whole messages. -1: whole messages as they arrive. 0: fragments as they arrive.",
    )
    delivery_control_loss_check_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=0,
        ours=2500,
        minimum=1,
        maximum=3_600_000,
        zero="off: loss is only noticed when something arrives",
        reason="With 0, a message behind a gap is lost without an event when its publisher becomes idle. UM recommends "
        "2500: a quarter of nak_generation_interval, its upper bound.",
        doc="Interval between checks for gaps that have timed out.",
    )
    delivery_control_maximum_burst_loss: int = option(
        Kind.INTEGER,
        um=1024,
        ours=1_000_000_000,
        minimum=2,
        maximum=2**31 - 1,
        reason="At the threshold, messages already received are discarded. UM recommends switching it off with this "
        "value; the order map and the loss map bound memory anyway.",
        doc="A gap of more fragments than this is declared lost at once, as one BurstLoss event.",
    )
    receiver_queue_block_length_bytes: int = option(
        Kind.BYTES,
        ours=524288,
        minimum=4096,
        maximum=2**30,
        doc="Size of one block of the queue between the context and the application.",
    )
    receiver_queue_block_count: int = option(
        Kind.INTEGER,
        ours=8,
        minimum=2,
        maximum=65536,
        doc="Number of blocks of that queue. When all are full, delivery pauses. If they hold no more than "
        "flow_control_receiver_window, messages that the application has not read yet hold the source back.",
    )
    receiver_full_queue: str = option(
        Kind.CHOICE,
        ours="hold",
        choices=("hold", "lose", "conflate"),
        doc="What a full queue does. hold: it holds back the sources of its topics for at most "
        "receiver_full_queue_hold_interval, then the receiver is cut loose. lose: it is cut loose at once and never "
        "holds a source back. conflate: the reader gets the newest message per source and key only, whether the queue "
        "is full or not; no source is held back. Other queues are not affected.",
    )
    receiver_conflation_key_length_bytes: int = option(
        Kind.BYTES,
        ours=0,
        minimum=0,
        maximum=64,
        doc="receiver_full_queue conflate: messages that begin with the same bytes replace each other; this many bytes "
        "are compared. 0: each message replaces the previous one of its source.",
    )
    receiver_full_queue_hold_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=5000,
        minimum=1,
        maximum=3_600_000,
        doc="Maximum time for which a full queue holds sources back. After it the receiver is cut loose: its messages "
        "are dropped until half of the queue is free, then they are fetched (use_otr) or reported as lost.",
    )
    receiver_maximum_message_length_bytes: int = option(
        Kind.BYTES,
        ours=2097152,
        minimum=1,
        maximum=2**30,
        doc="A longer message is dropped and counted, so that a forged length costs no memory. The default is the "
        "longest message of a source with default options. Sources log a longer message that they send, with this "
        "receiver and its limit.",
    )

    source_notification: bool = option(
        Kind.SWITCH,
        ours=0,
        doc="1: SourceCreated and SourceDeleted events, in order with the messages, when a source is discovered or "
        "ends (UM's source_notification_function).",
    )

    # Hot failover

    hf_optional_messages: bool = option(
        Kind.SWITCH, um=1, doc="Hot failover receivers: deliver optional messages."
    )
    hf_duplicate_delivery: bool = option(
        Kind.SWITCH,
        um=0,
        doc="Hot failover receivers: also deliver further copies of a message, with flag 0x80.",
    )
    hf_maximum_delay_ns: int = option(
        Kind.MILLISECONDS,
        ours=10000,
        maximum=3_600_000,
        zero="at once",
        doc="Hot failover receivers: a number that is still missing this long after a later one arrived is declared "
        "lost (UM's delivery_control_max_delay of scope hfx).",
    )
    hf_maximum_waiting_messages: int = option(
        Kind.INTEGER,
        ours=65536,
        minimum=256,
        maximum=2**24,
        doc="Hot failover receivers: maximum number of messages that may wait for an earlier one, rounded up to a "
        "power of two.",
    )

    # Late join

    use_late_join: bool = option(
        Kind.SWITCH, um=1, doc="Start with the messages that a source retains, if it offers them (UM-136)."
    )
    late_join_info_request_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        minimum=1,
        maximum=3_600_000,
        doc="Interval between attempts to connect to the source.",
    )
    late_join_info_request_maximum: int = option(
        Kind.INTEGER,
        um=60,
        minimum=1,
        maximum=1_000_000,
        doc="Maximum number of attempts; then the receiver starts with new messages.",
    )
    retransmit_request_maximum: int = option(
        Kind.INTEGER,
        um=0,
        maximum=2**31 - 1,
        zero="all",
        doc="Maximum number of past messages to fetch by late join, and from Stores, in sequence numbers.",
    )
    retransmit_request_bytes_maximum_bytes: int = option(
        Kind.BYTES, ours=0, maximum=10**12, zero="all", doc="Maximum bytes of past messages to fetch."
    )
    retransmit_request_age_maximum_ns: int = option(
        Kind.SECONDS, ours=0, maximum=10_000_000, zero="all", doc="Maximum age of past messages to fetch."
    )
    retransmit_request_low_sequence_number: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=2**32 - 1,
        zero="the oldest",
        doc="First topic sequence number to fetch.",
    )
    retransmit_request_outstanding_maximum: int = option(
        Kind.INTEGER,
        um=10,
        ours=8192,
        minimum=1,
        maximum=1_000_000,
        reason="Requests are chained, hundreds per message: 10 would cost a round trip for every ten messages.",
        doc="Maximum sequence numbers requested and not yet delivered.",
    )
    retransmit_request_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=500,
        minimum=1,
        maximum=3_600_000,
        doc="Outstanding messages are requested again after this long without progress.",
    )
    retransmit_request_message_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum=1,
        maximum=3_600_000,
        doc="Missing messages are declared lost after this long without progress.",
    )
    retransmit_message_caching_proximity: int = option(
        Kind.INTEGER,
        um=5000,
        minimum=1,
        maximum=200_000,
        doc="Live messages closer than this to the delivered position wait in the order map; others are dropped and "
        "fetched, too.",
    )

    # Off-transport recovery

    use_otr: int = option(
        Kind.INTEGER,
        um=2,
        ours=1,
        choices=(0, 1, 2),
        reason="A source that retains messages can also serve receivers that lost them: with late_join at the source, "
        "receivers need no option.",
        doc="1: fetch messages that the transport did not recover from those the source retains, if it offers late "
        "join (UM-142). 0 and 2 (persistent receivers only, which this stack does not have): off.",
    )
    otr_request_initial_delay_ns: int = option(
        Kind.MILLISECONDS,
        um=2000,
        maximum=3_600_000,
        zero="at once",
        doc="Time from detecting a gap to off-transport recovery; it starts sooner when the transport gives up.",
    )
    otr_message_caching_threshold: int = option(
        Kind.INTEGER,
        um=10000,
        minimum=1,
        maximum=200_000,
        doc="With this many messages behind a gap, recovery starts without the delay (UM-143); live messages beyond "
        "them are dropped and fetched, too.",
    )
    otr_request_minimum_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        minimum=1,
        maximum=3_600_000,
        doc="Outstanding messages are requested again after this long without progress; the interval doubles, as "
        "does the interval between attempts to connect to the source.",
    )
    otr_request_maximum_interval_ns: int = option(
        Kind.MILLISECONDS, um=10000, minimum=1, maximum=3_600_000, doc="Upper bound of those intervals."
    )
    otr_request_message_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=60000,
        minimum=1,
        maximum=3_600_000,
        doc="Messages not fetched after this long are left to the transport, and are lost when it gives up as well.",
    )
    otr_request_outstanding_maximum: int = option(
        Kind.INTEGER,
        um=200,
        ours=8192,
        maximum=1_000_000,
        zero=_NO_LIMIT,
        reason="Requests are chained, hundreds per message: 200 would cost a round trip for every 200 messages.",
        doc="Maximum sequence numbers requested and not yet delivered.",
    )
    otr_request_log_alert_cooldown_ns: int = option(
        Kind.SECONDS,
        um=300,
        maximum=10_000_000,
        zero="every time",
        doc="Minimum interval between log records about off-transport recovery of one topic.",
    )

    # Flow control

    flow_control_receiver_window_bytes: int = option(
        Kind.BYTES,
        ours=2097152,
        minimum=65536,
        maximum=2**30,
        doc="Bytes that a source with flow control may send beyond the data this receiver has consumed; one "
        "datagram must fit. Aeron's default is 128 KiB, or half a term if that is less, which 10 Gbit/s use up in "
        "0.1 ms; 2 MiB last 1.7 ms.",
    )
    flow_control_receiver_report_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=30_000,
        minimum=200,
        maximum=60_000,
        doc="Maximum interval between a receiver's status messages. It is 200 ms while data arrives and doubles up to "
        "this while the session is idle, or if the source has no flow control. A source forgets a receiver that died "
        "idle after this and its flow_control_receiver_timeout, or within that timeout once it sends.",
    )
    flow_control_group_tag: int = option(
        Kind.INTEGER, ours=0, maximum=2**32 - 1, zero="no group", doc="The group this receiver belongs to."
    )

    # Topic resolution

    resolver_query_minimum_initial_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=20,
        minimum=1,
        maximum=3_600_000,
        zero="no initial phase",
        doc="First interval of the initial phase; it doubles.",
    )
    resolver_query_maximum_initial_interval_ns: int = option(
        Kind.MILLISECONDS, um=200, minimum=1, maximum=3_600_000, doc="Longest interval of the initial phase."
    )
    resolver_query_minimum_initial_duration_ns: int = option(
        Kind.MILLISECONDS, um=5000, maximum=3_600_000, zero=_FOREVER, doc="Length of the initial phase."
    )
    resolver_query_initial_until_resolved: bool = option(
        Kind.SWITCH,
        ours=1,
        doc="End the initial phase once a source of the topic is known; the sustaining phase finds further sources. "
        "0, as in Ultra Messaging: five queries per second in any case, and a response to each.",
    )
    resolver_query_sustain_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        minimum=1,
        maximum=3_600_000,
        zero="no sustaining phase",
        doc="Interval of the sustaining phase.",
    )
    resolver_query_minimum_sustain_duration_ns: int = option(
        Kind.SECONDS, um=60, maximum=10_000_000, zero=_FOREVER, doc="Length of the sustaining phase."
    )
    resolution_number_of_sources_query_threshold: int = option(
        Kind.INTEGER,
        um=10_000_000,
        minimum=1,
        maximum=2**31 - 1,
        doc="Queries stop once this many sources of the topic are known.",
    )

    ume_explicit_ack_only: bool = option(
        Kind.SWITCH,
        um=0,
        doc="For a receiver with a session id: messages count as consumed when acknowledge() is called, not when the "
        "application reads again.",
    )
    ume_allow_confirmed_delivery: bool = option(
        Kind.SWITCH,
        um=1,
        doc="For a receiver with a session id: the Stores forward its acknowledgements to sources that want them.",
    )
    ume_receiver_paced_persistence: int = option(
        Kind.INTEGER,
        um=0,
        maximum=2,
        doc="For a receiver with a session id of receiver-paced sources: 1 blocks the source when it lags and a Store "
        "has no space for more; 2 does not, and may lose messages. 0: the receiver wants source-paced sources.",
    )

    resolution_no_source_notification_threshold: int = option(
        Kind.INTEGER,
        um=0,
        maximum=2**31 - 1,
        zero="off",
        doc="A NoSource event after this many queries without a response from a source, and again after each "
        "further multiple.",
    )

    given: frozenset[str] = frozenset()
    """Names of the options that were set; the others have their defaults."""

    @property
    def reported_window_bytes(self) -> int:
        """Return the window offered to sources; 0: none, because `fixed` sends what Ultra Messaging sends."""
        is_silent = self.recovery_timing == "fixed" and "flow_control_receiver_window" not in self.given
        return 0 if is_silent else self.flow_control_receiver_window_bytes

    @property
    def adaptive_timers(self) -> frozenset[str]:
        """Names of the measured timers."""
        return adaptive(self.recovery_timing, ADAPTIVE_RECEIVER_TIMERS, self.given)

    def adaptive_timers_of(self, transport: str) -> frozenset[str]:
        """Return the measured timers of a transport under the names of LBT-RM's options."""
        return adaptive_of(transport, self.recovery_timing, ADAPTIVE_RECEIVER_TIMERS, self.given)

    @property
    def effective_generation_interval_ns(self) -> int:
        """How long after its detection a gap is given up, with NAKs or without."""
        if self.transport_lbtrm_send_naks or "transport_lbtrm_loss_declaration_interval" not in self.given:
            return self.transport_lbtrm_nak_generation_interval_ns
        return self.transport_lbtrm_loss_declaration_interval_ns

    @property
    def effective_preactivity_timeout_ns(self) -> int:
        """Idle time allowed before the first datagram of a session."""
        return self.transport_lbtrm_preactivity_timeout_ns or self.transport_lbtrm_activity_timeout_ns
