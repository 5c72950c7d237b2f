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
        reason="A source's host that is gone without a word would not be missed.",
        doc="A source whose host acknowledges nothing for so long is disconnected from; an idle connection is probed.",
    )
    transport_tcp_reconnect_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=100,
        minimum=1,
        maximum=60_000,
        doc="Before a source is connected to again; the interval doubles, up to eight times this.",
    )
    transport_tcp_reconnect_timeout_ns: int = option(
        Kind.MILLISECONDS,
        ours=10000,
        minimum=1,
        maximum=3_600_000,
        doc="A session whose source could not be connected to for so long has ended. What was sent meanwhile is "
        "lost, or recovered off the transport.",
    )

    # Loss recovery

    transport_lbtrm_send_naks: bool = option(Kind.SWITCH, um=1, doc="Send NAKs for lost datagrams.")
    transport_lbtrm_loss_declaration_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=10000,
        maximum=3_600_000,
        zero="at once",
        doc="With transport_lbtrm_send_naks 0, how long after it was found a gap is declared lost; until then a "
        "datagram that was overtaken, or sent again for another receiver, still fills it. Not set: "
        "transport_lbtrm_nak_generation_interval.",
    )
    transport_lbtrm_nak_initial_backoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=50,
        maximum=3_600_000,
        zero="at once",
        doc="From finding a datagram missing to the first NAK, drawn from half to one and a half of this.",
    )
    transport_lbtrm_nak_backoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=200,
        minimum="0.01",
        maximum=3_600_000,
        doc="Between NAKs for one sequence number, drawn likewise.",
    )
    recovery_timing: str = option(
        Kind.CHOICE,
        ours="adaptive",
        choices=("adaptive", "fixed"),
        doc="adaptive: initial back-off, back-off and suppress interval are measured, with their defaults as ceilings; "
        "one that is set is as set. fixed: all are as configured, as UM's.",
    )
    transport_lbtrm_nak_suppress_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        maximum=3_600_000,
        doc="No NAKs for a sequence number this long after its NCF.",
    )
    transport_lbtrm_nak_generation_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum=5,
        maximum=3_600_000,
        doc="After this long a missing datagram is given up.",
    )
    transport_lbtrm_nak_rate_limit_naks_per_second: int = option(
        Kind.NAKS_PER_SECOND,
        ours=50_000,
        maximum=100_000_000,
        zero="no limit",
        doc="Sequence numbers NAKed a second, by session; a quarter of it may be sent at once. What is over it waits, "
        "so that losses that a forged datagram made up do not become a storm of NAKs.",
    )
    transport_lbtrm_nak_cutoff_interval_ns: int = option(
        Kind.MILLISECONDS,
        ours=0,
        minimum=1,
        maximum=3_600_000,
        zero="never",
        doc="A session whose NAKs have been at transport_lbtrm_nak_rate_limit for this long, without a second of rest, "
        "stops sending them (event NakCutoff), until nak_cutoff(False) starts them again (UX-21). What lacks comes off "
        "the transport where that is offered, and with what other receivers NAK; else it is lost in time.",
    )
    transport_lbtrm_activity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=60000,
        minimum=1,
        maximum=86_400_000,
        doc="Idle time after which a session is taken for dead (EndOfSession).",
    )
    transport_lbtrm_preactivity_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=0,
        ours=30_000,
        reason="an advertised source that does not exist is given up before it keeps others out; "
        "a source that exists sends a session message at least every 10 s",
        maximum=86_400_000,
        zero="as transport_lbtrm_activity_timeout",
        doc="The same before the first datagram of the session.",
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
        doc="Between acknowledgements, by which a source knows that this receiver lives.",
    )
    transport_lbtru_connect_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=100,
        minimum=1,
        maximum=3_600_000,
        doc="Between connection requests without an answer.",
    )
    transport_lbtru_maximum_connect_attempts: int = option(
        Kind.INTEGER,
        um=600,
        minimum=1,
        maximum=2**31 - 1,
        doc="After so many without an answer the session is taken for dead (EndOfSession).",
    )
    transport_lbtru_port_low: int = option(
        Kind.INTEGER,
        um=14360,
        minimum=1,
        maximum=65535,
        doc="First UDP port to receive LBT-RU sessions at, one each.",
    )
    transport_lbtru_port_high: int = option(
        Kind.INTEGER,
        um=14379,
        minimum=1,
        maximum=65535,
        doc="Last of those ports. When all are taken, one of the system's choice is used, with a warning.",
    )
    transport_lbtru_interface: str = option(
        Kind.TEXT,
        um="0.0.0.0",
        doc="Address to receive LBT-RU sessions at: that of the context's interface. 0.0.0.0 is the same.",
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
        reason="With 0, a message behind a gap is lost without an event when its publisher becomes idle. "
        "2500 is UM's own advice and a quarter of nak_generation_interval, its upper bound.",
        doc="How often to look for gaps whose time is up.",
    )
    delivery_control_maximum_burst_loss: int = option(
        Kind.INTEGER,
        um=1024,
        ours=1_000_000_000,
        minimum=2,
        maximum=2**31 - 1,
        reason="At the threshold, good messages already received are thrown away. UM's own advice is "
        "to switch it "
        "off with this value; the order map and the loss map bound memory anyway.",
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
        doc="Blocks of that queue. When all are full, delivery pauses. Where they hold no more than "
        "flow_control_receiver_window, what the application has not taken yet holds the source back.",
    )
    receiver_maximum_message_length_bytes: int = option(
        Kind.BYTES,
        ours=1048576,
        minimum=1,
        maximum=2**30,
        doc="A longer message is dropped and counted, so that a forged length costs no memory.",
    )

    source_notification: bool = option(
        Kind.SWITCH,
        ours=0,
        doc="1: SourceCreated and SourceDeleted events, in order with the messages, as a source comes and goes "
        "(UM's source_notification_function).",
    )

    # Hot failover

    hf_optional_messages: bool = option(
        Kind.SWITCH, um=1, doc="Hot failover receivers: deliver messages that were sent as optional."
    )
    hf_duplicate_delivery: bool = option(
        Kind.SWITCH,
        um=0,
        doc="Hot failover receivers: deliver other copies of a message, too, with flag 0x80.",
    )
    hf_maximum_delay_ns: int = option(
        Kind.MILLISECONDS,
        ours=10000,
        maximum=3_600_000,
        zero="at once",
        doc="Hot failover receivers: a number that no source has brought this long after a later one came is declared "
        "lost (UM's delivery_control_max_delay of scope hfx).",
    )
    hf_maximum_waiting_messages: int = option(
        Kind.INTEGER,
        ours=65536,
        minimum=256,
        maximum=2**24,
        doc="Hot failover receivers: so many numbers may wait for an earlier one, rounded up to a power of two.",
    )

    # Late join

    use_late_join: bool = option(
        Kind.SWITCH, um=1, doc="Begin with what a source retains, where it offers that (UM-136)."
    )
    late_join_info_request_interval_ns: int = option(
        Kind.MILLISECONDS, um=1000, minimum=1, maximum=3_600_000, doc="Between attempts to reach the source."
    )
    late_join_info_request_maximum: int = option(
        Kind.INTEGER, um=60, minimum=1, maximum=1_000_000, doc="So many attempts; then without the past."
    )
    retransmit_request_maximum: int = option(
        Kind.INTEGER, um=0, maximum=2**31 - 1, zero="all", doc="How many sequence numbers to go back at most."
    )
    retransmit_request_bytes_maximum_bytes: int = option(
        Kind.BYTES, ours=0, maximum=10**12, zero="all", doc="How many bytes to go back at most."
    )
    retransmit_request_age_maximum_ns: int = option(
        Kind.SECONDS, ours=0, maximum=10_000_000, zero="all", doc="How long to go back at most."
    )
    retransmit_request_low_sequence_number: int = option(
        Kind.INTEGER,
        ours=0,
        maximum=2**32 - 1,
        zero="the oldest",
        doc="The topic sequence number to begin with.",
    )
    retransmit_request_outstanding_maximum: int = option(
        Kind.INTEGER,
        um=10,
        ours=8192,
        minimum=1,
        maximum=1_000_000,
        reason="Requests travel chained, hundreds in a message: 10 would be a round trip for every ten messages.",
        doc="Sequence numbers requested and not delivered yet.",
    )
    retransmit_request_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=500,
        minimum=1,
        maximum=3_600_000,
        doc="Without progress for this long, what is outstanding is requested again.",
    )
    retransmit_request_message_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=10000,
        minimum=1,
        maximum=3_600_000,
        doc="Without progress for this long, what lacks is declared lost.",
    )
    retransmit_message_caching_proximity: int = option(
        Kind.INTEGER,
        um=5000,
        minimum=1,
        maximum=200_000,
        doc="Live messages wait in the order map when they are nearer than this to what is delivered; others "
        "are dropped and fetched, too.",
    )

    # Off-transport recovery

    use_otr: int = option(
        Kind.INTEGER,
        um=2,
        ours=1,
        choices=(0, 1, 2),
        reason="A source that retains messages retains them for receivers that lost them, too: with late_join at "
        "the source no option is needed at every receiver.",
        doc="1: fetch what the transport did not recover from what the source retains, where it offers late join "
        "(UM-142). 0 and 2 (persistent receivers only, of which there are none): do not.",
    )
    otr_request_initial_delay_ns: int = option(
        Kind.MILLISECONDS,
        um=2000,
        maximum=3_600_000,
        zero="at once",
        doc="From finding a sequence number missing to off-transport recovery; sooner when the transport gives up.",
    )
    otr_message_caching_threshold: int = option(
        Kind.INTEGER,
        um=10000,
        minimum=1,
        maximum=200_000,
        doc="With so many messages behind a gap it begins without the delay (UM-143); live messages beyond them are "
        "dropped and fetched, too.",
    )
    otr_request_minimum_interval_ns: int = option(
        Kind.MILLISECONDS,
        um=1000,
        minimum=1,
        maximum=3_600_000,
        doc="Without progress for this long, what is outstanding is requested again; it doubles. So does the time "
        "between attempts to reach the source.",
    )
    otr_request_maximum_interval_ns: int = option(
        Kind.MILLISECONDS, um=10000, minimum=1, maximum=3_600_000, doc="The longest of those intervals."
    )
    otr_request_message_timeout_ns: int = option(
        Kind.MILLISECONDS,
        um=60000,
        minimum=1,
        maximum=3_600_000,
        doc="What has not come after this long is left to the transport, and lost when its time is up, too.",
    )
    otr_request_outstanding_maximum: int = option(
        Kind.INTEGER,
        um=200,
        ours=8192,
        maximum=1_000_000,
        zero=_NO_LIMIT,
        reason="Requests travel chained, hundreds in a message: 200 would be a round trip for every 200 messages.",
        doc="Sequence numbers requested and not delivered yet.",
    )
    otr_request_log_alert_cooldown_ns: int = option(
        Kind.SECONDS,
        um=300,
        maximum=10_000_000,
        zero="every time",
        doc="How long a topic whose off-transport recovery was logged is not logged again.",
    )

    # Flow control

    flow_control_receiver_window_bytes: int = option(
        Kind.BYTES,
        ours=2097152,
        minimum=65536,
        maximum=2**30,
        doc="Bytes a source with flow control may send beyond what this receiver has taken; one datagram must fit.",
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
        doc="The initial phase ends once a source of the topic is known; others are found in the sustaining phase. "
        "0, as Ultra Messaging has it: five queries a second whatever is known, and an answer to each.",
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

    resolution_no_source_notification_threshold: int = option(
        Kind.INTEGER,
        um=0,
        maximum=2**31 - 1,
        zero="off",
        doc="A NoSource event after this many queries that no source answered, and after each so many more.",
    )

    given: frozenset[str] = frozenset()
    """Names of the options that were set; the others have their defaults."""

    @property
    def adaptive_timers(self) -> frozenset[str]:
        """Names of the timers that are measured."""
        return adaptive(self.recovery_timing, ADAPTIVE_RECEIVER_TIMERS, self.given)

    def adaptive_timers_of(self, transport: str) -> frozenset[str]:
        """The same for a transport, under the names of LBT-RM's options."""
        return adaptive_of(transport, self.recovery_timing, ADAPTIVE_RECEIVER_TIMERS, self.given)

    @property
    def effective_generation_interval_ns(self) -> int:
        """How long after it was found a gap is given up, with NAKs or without."""
        if self.transport_lbtrm_send_naks or "transport_lbtrm_loss_declaration_interval" not in self.given:
            return self.transport_lbtrm_nak_generation_interval_ns
        return self.transport_lbtrm_loss_declaration_interval_ns

    @property
    def effective_preactivity_timeout_ns(self) -> int:
        """Idle time allowed before the first datagram of a session."""
        return self.transport_lbtrm_preactivity_timeout_ns or self.transport_lbtrm_activity_timeout_ns
