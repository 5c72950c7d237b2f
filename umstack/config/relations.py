"""Relations between options: contradictions raise errors, unwise combinations cause warnings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address

from umstack.config.adaptive_timers import IGNORE_INTERVAL
from umstack.config.context_options import ContextOptions
from umstack.config.datagram_options import rates_of, receiver_of, source_of
from umstack.config.receiver_options import ReceiverOptions
from umstack.config.source_options import SourceOptions
from umstack.config.wildcard_receiver_options import WildcardReceiverOptions
from umstack.errors import OptionError
from umstack.sizing import udp_payload_bytes

_DATAGRAM_TRANSPORTS = ("lbtrm", "lbtru")
_BUFFER_BYTES = 1_000_000
_BUFFER_BYTES_PER_SUBSCRIBER = 100_000
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class LintWarning:
    """An unwise relation between `options`; `message` explains what to change."""

    options: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return self.message


def _refuse_reversed(low: str, low_value: int, high: str, high_value: int) -> None:
    if low_value > high_value:
        raise OptionError(f"{low} is above {high}", hint="swap them, or set both")


def check_context(options: ContextOptions) -> None:
    """Refuse context options that contradict each other."""
    low, high = options.transport_lbtrm_multicast_address_low, options.transport_lbtrm_multicast_address_high
    if "0.0.0.0" in (low, high):
        raise OptionError(
            "the pool transport_lbtrm_multicast_address_low/high needs groups",
            hint="give two from 224.0.0.0..239.255.255.255 or from ff00::/8",
        )
    if ip_address(low).version != ip_address(high).version:
        raise OptionError(
            f"the pool transport_lbtrm_multicast_address_low/high is from {low} to {high}, which is of another family",
            hint="give two IPv4 groups or two IPv6 groups",
        )
    _refuse_reversed(
        "transport_lbtrm_multicast_address_low",
        int(ip_address(low)),
        "transport_lbtrm_multicast_address_high",
        int(ip_address(high)),
    )
    _refuse_reversed(
        "transport_lbtipc_id_low",
        options.transport_lbtipc_id_low,
        "transport_lbtipc_id_high",
        options.transport_lbtipc_id_high,
    )
    _refuse_reversed(
        "transport_lbtrm_source_port_low",
        options.transport_lbtrm_source_port_low,
        "transport_lbtrm_source_port_high",
        options.transport_lbtrm_source_port_high,
    )
    _refuse_reversed(
        "transport_lbtru_port_low",
        options.transport_lbtru_port_low,
        "transport_lbtru_port_high",
        options.transport_lbtru_port_high,
    )
    _refuse_reversed(
        "resolver_unicast_port_low",
        options.resolver_unicast_port_low,
        "resolver_unicast_port_high",
        options.resolver_unicast_port_high,
    )
    _check_ports(options)
    if options.encryption != "none" and options.authentication_scope != "all":
        raise OptionError(
            f"encryption {options.encryption} needs authentication_scope all, not {options.authentication_scope}",
            hint="set authentication_scope all and authentication_key_file: the same keys encrypt",
        )
    _ = options.multicast_sources, options.tcp_networks  # raise if an address is wrong
    if options.resolver_daemons and (
        options.resolver_unicast_activity_timeout_ns <= options.resolver_unicast_keepalive_interval_ns
    ):
        raise OptionError(
            "resolver_unicast_activity_timeout is not above resolver_unicast_keepalive_interval",
            hint="make it twice as long or more",
        )
    for name in ("address", "incoming_address", "outgoing_address"):
        if ":" in getattr(options, f"resolver_multicast_{name}"):
            raise OptionError(
                f"resolver_multicast_{name} is an IPv6 group, and topic resolution supports only IPv4",
                hint="give an IPv4 group; LBT-RM may use IPv6 nevertheless",
            )
    if options.resolver_multicast_address == "0.0.0.0":
        raise OptionError(
            "resolver_multicast_address needs a group", hint="give one, or leave it at 224.9.10.11"
        )


def check_wildcard_receiver(options: WildcardReceiverOptions) -> None:
    """Refuse wildcard receiver options that contradict each other."""
    _refuse_reversed(
        "resolver_query_minimum_interval",
        options.resolver_query_minimum_interval_ns,
        "resolver_query_maximum_interval",
        options.resolver_query_maximum_interval_ns,
    )


def _check_ports(options: ContextOptions) -> None:
    _refuse_reversed(
        "request_tcp_port_low",
        options.request_tcp_port_low,
        "request_tcp_port_high",
        options.request_tcp_port_high,
    )
    if 0 < options.request_tcp_activity_timeout_ns < 20 * _NS_PER_S:
        raise OptionError(
            "request_tcp_activity_timeout is below 20000",
            hint="give 0, or 20000 ms or more, as UM requires",
        )


def check_source(options: SourceOptions) -> None:
    """Refuse source options that contradict each other."""
    _refuse_reversed(
        "transport_lbtrm_sm_minimum_interval",
        options.transport_lbtrm_sm_minimum_interval_ns,
        "transport_lbtrm_sm_maximum_interval",
        options.transport_lbtrm_sm_maximum_interval_ns,
    )
    _refuse_reversed(
        "transport_lbtru_sm_minimum_interval",
        options.transport_lbtru_sm_minimum_interval_ns,
        "transport_lbtru_sm_maximum_interval",
        options.transport_lbtru_sm_maximum_interval_ns,
    )
    _refuse_reversed(
        "resolver_advertisement_minimum_initial_interval",
        options.resolver_advertisement_minimum_initial_interval_ns,
        "resolver_advertisement_maximum_initial_interval",
        options.resolver_advertisement_maximum_initial_interval_ns,
    )
    if options.flow_control == "tagged" and options.flow_control_group_tag == 0:
        raise OptionError(
            "flow_control tagged needs a group", hint="set flow_control_group_tag to that of the receivers"
        )
    if options.flow_control_without_receivers == "publish" and options.flow_control_group_minimum_size:
        raise OptionError(
            "flow_control_without_receivers publish waits for no receiver, but flow_control_group_minimum_size is "
            f"{options.flow_control_group_minimum_size}",
            hint="leave one of them out",
        )


def check_receiver(options: ReceiverOptions) -> None:
    """Refuse receiver options that contradict each other."""
    _refuse_reversed(
        "transport_lbtru_port_low",
        options.transport_lbtru_port_low,
        "transport_lbtru_port_high",
        options.transport_lbtru_port_high,
    )
    _refuse_reversed(
        "resolver_query_minimum_initial_interval",
        options.resolver_query_minimum_initial_interval_ns,
        "resolver_query_maximum_initial_interval",
        options.resolver_query_maximum_initial_interval_ns,
    )
    if options.receiver_full_queue == "conflate" and options.ordered_delivery == 0:
        raise OptionError(
            "receiver_full_queue conflate needs whole messages, and ordered_delivery 0 delivers fragments",
            hint="set ordered_delivery to 1 or -1",
        )


def lint(context: ContextOptions, source: SourceOptions, receiver: ReceiverOptions) -> list[LintWarning]:
    """Return a warning for each of UM's recommended relations that the options violate."""
    found = [*_lint_topic_timeouts(source, receiver), *_lint_responses(context, receiver)]
    found += _lint_acknowledgements(source, receiver)
    found += _lint_flow_control(source, receiver)
    for transport in _DATAGRAM_TRANSPORTS:
        found += _lint_naks(transport, source, receiver)
        found += _lint_rates(transport, context)
        found += _lint_session_timeouts(transport, source, receiver)
    return found


def _lint_responses(context: ContextOptions, receiver: ReceiverOptions) -> Iterator[LintWarning]:
    if receiver.otr_request_maximum_interval_ns >= context.response_tcp_deletion_timeout_ns:
        yield LintWarning(
            ("otr_request_maximum_interval", "response_tcp_deletion_timeout"),
            "otr_request_maximum_interval is not below response_tcp_deletion_timeout: Ultra Messaging serves requests "
            "for lost messages on connections that end after it; lengthen response_tcp_deletion_timeout",
        )


def _lint_naks(transport: str, source: SourceOptions, receiver: ReceiverOptions) -> Iterator[LintWarning]:
    of = f"transport_{transport}_"
    own = receiver_of(receiver, transport)
    initial, backoff = own.nak_initial_backoff_ns, own.nak_backoff_ns
    if own.nak_generation_ns < 2 * backoff:
        yield LintWarning(
            (f"{of}nak_generation_interval", f"{of}nak_backoff_interval"),
            f"{of}nak_generation_interval is less than twice {of}nak_backoff_interval: "
            "datagrams are given up after a single NAK; lengthen it",
        )
    is_ignore_measured = IGNORE_INTERVAL in source.adaptive_timers_of(transport)
    if not is_ignore_measured and 2 * source_of(source, transport).ignore_interval_ns > backoff:
        yield LintWarning(
            (f"{of}ignore_interval", f"{of}nak_backoff_interval"),
            f"{of}ignore_interval is more than half of {of}nak_backoff_interval: "
            "NAKs for lost retransmissions are refused; shorten it",
        )
    if initial > backoff:
        yield LintWarning(
            (f"{of}nak_initial_backoff_interval", f"{of}nak_backoff_interval"),
            f"{of}nak_backoff_interval is shorter than {of}nak_initial_backoff_interval; lengthen it",
        )


def _lint_acknowledgements(source: SourceOptions, receiver: ReceiverOptions) -> Iterator[LintWarning]:
    interval = receiver.transport_lbtru_acknowledgement_interval_ns
    if 2 * interval > source.transport_lbtru_client_activity_timeout_ns:
        yield LintWarning(
            ("transport_lbtru_acknowledgement_interval", "transport_lbtru_client_activity_timeout"),
            "transport_lbtru_client_activity_timeout is less than two of transport_lbtru_acknowledgement_interval: "
            "one lost acknowledgement disconnects a receiver; lengthen it",
        )


def _lint_flow_control(source: SourceOptions, receiver: ReceiverOptions) -> Iterator[LintWarning]:
    if source.transport == "lbtrm" and source.flow_control != "none" and not receiver.reported_window_bytes:
        yield LintWarning(
            ("flow_control", "flow_control_receiver_window"),
            f"flow_control {source.flow_control} waits for receivers, but receivers with recovery_timing fixed report "
            "no window; set the receiver option flow_control_receiver_window",
        )


def _lint_rates(transport: str, context: ContextOptions) -> Iterator[LintWarning]:
    data, retransmit = rates_of(context, transport)
    if data != 0 and (retransmit == 0 or retransmit >= data):
        yield LintWarning(
            (f"transport_{transport}_retransmit_rate_limit", f"transport_{transport}_data_rate_limit"),
            f"transport_{transport}_retransmit_rate_limit is not below transport_{transport}_data_rate_limit: "
            "one lossy receiver can take all of it; lower it",
        )


def _lint_session_timeouts(
    transport: str, source: SourceOptions, receiver: ReceiverOptions
) -> Iterator[LintWarning]:
    of = f"transport_{transport}_"
    own = receiver_of(receiver, transport)
    generation, activity = own.nak_generation_ns, own.activity_timeout_ns
    loss_check = receiver.delivery_control_loss_check_interval_ns
    if activity <= loss_check + generation:
        yield LintWarning(
            (f"{of}activity_timeout", "delivery_control_loss_check_interval", f"{of}nak_generation_interval"),
            f"{of}activity_timeout should be longer than delivery_control_loss_check_interval plus "
            f"{of}nak_generation_interval: the session ends before its losses are declared",
        )
    if generation < 4 * loss_check:
        yield LintWarning(
            (f"{of}nak_generation_interval", "delivery_control_loss_check_interval"),
            f"delivery_control_loss_check_interval should be at most a quarter of {of}nak_generation_interval",
        )
    if activity < 3 * source_of(source, transport).sm_maximum_interval_ns:
        yield LintWarning(
            (f"{of}activity_timeout", f"{of}sm_maximum_interval"),
            f"{of}activity_timeout should be three times {of}sm_maximum_interval or more: "
            "a few lost session messages look like a dead source",
        )
    if (
        source.late_join
        and receiver.use_late_join
        and receiver.retransmit_request_message_timeout_ns >= activity
    ):
        yield LintWarning(
            ("retransmit_request_message_timeout", f"{of}activity_timeout"),
            f"retransmit_request_message_timeout should be shorter than {of}activity_timeout: "
            "the session of a late receiver may end while it still fetches past messages",
        )


def _lint_topic_timeouts(source: SourceOptions, receiver: ReceiverOptions) -> Iterator[LintWarning]:
    generation = receiver.transport_lbtrm_nak_generation_interval_ns
    tsni = source.transport_topic_sequence_number_info_interval_ns
    threshold = source.transport_topic_sequence_number_info_active_threshold_ns
    if tsni and threshold and threshold < 4 * tsni + generation:
        needed_s = -(-(4 * tsni + generation) // _NS_PER_S)
        yield LintWarning(
            (
                "transport_topic_sequence_number_info_active_threshold",
                "transport_topic_sequence_number_info_interval",
                "transport_lbtrm_nak_generation_interval",
            ),
            f"transport_topic_sequence_number_info_active_threshold should be {needed_s} or more: "
            "TSNIs end before loss at the end of a stream is detected and declared",
        )


def lint_load(
    context: ContextOptions,
    source: SourceOptions,
    receiver: ReceiverOptions,
    *,
    peak_bytes_per_second: int,
    average_bytes_per_second: int,
    round_trip_ns: int = _NS_PER_MS,
    subscribers: int = 0,
) -> list[LintWarning]:
    """Check the relations that depend on a session's load: window size, retransmit limit and, with the number of an
    LBT-RU session's `subscribers`, the send buffer."""
    warnings = []
    recovery_ns = (
        receiver.transport_lbtrm_nak_initial_backoff_interval_ns
        + 3 * receiver.transport_lbtrm_nak_backoff_interval_ns
        + 2 * round_trip_ns
    )
    needed = -(-peak_bytes_per_second * recovery_ns // _NS_PER_S)
    if source.transport_lbtrm_transmission_window_size_bytes < needed:
        warnings.append(
            LintWarning(
                ("transport_lbtrm_transmission_window_size",),
                f"transport_lbtrm_transmission_window_size should be {needed} or more at this peak rate: "
                "datagrams leave the window before three NAKs for them can be served",
            )
        )
    limit = context.transport_lbtrm_retransmit_rate_limit_bits_per_second
    tenth_bits_per_second = average_bytes_per_second * 8 // 10
    if limit == 0 or limit > tenth_bits_per_second:
        warnings.append(
            LintWarning(
                ("transport_lbtrm_retransmit_rate_limit",),
                f"transport_lbtrm_retransmit_rate_limit should be {tenth_bits_per_second} or less: "
                "a tenth of the average rate",
            )
        )
    buffer = _BUFFER_BYTES + _BUFFER_BYTES_PER_SUBSCRIBER * subscribers
    if subscribers and 0 < context.transport_lbtru_source_socket_buffer_bytes < buffer:
        warnings.append(
            LintWarning(
                ("transport_lbtru_source_socket_buffer",),
                f"transport_lbtru_source_socket_buffer should be {buffer} or more for {subscribers} subscribers: "
                "each datagram is sent to all of them at once",
            )
        )
    return warnings


def lint_datagram_size(context: ContextOptions, interface: str, mtu_bytes: int) -> LintWarning | None:
    """Check the size of LBT-RM datagrams against the MTU of an interface.

    Returns a warning if IP fragments datagrams of that size, otherwise None. Raises OptionError if the link must be
    rings, which do not fragment (UM-49, W4).
    """
    fits, size = udp_payload_bytes(mtu_bytes), context.source_datagram_size_bytes
    if size <= fits:
        return None
    name = (
        "transport_lbtrm_source_datagram_max_size"
        if context.transport_lbtrm_source_datagram_max_size_bytes
        else "transport_lbtrm_datagram_max_size"
    )
    reason = f"{name} {size} does not fit {interface}, whose MTU is {mtu_bytes}"
    if context.link not in ("auto", "socket"):
        raise OptionError(
            f"{reason}, and rings (link={context.link}) do not fragment",
            hint=f"set it to {fits} or less, or to 0 to follow the MTU; or use link=socket",
        )
    return LintWarning(
        (name,),
        f"{reason}: IP sends a datagram in {-(-(size + 8) // (mtu_bytes - 20))} fragments, the loss of one loses all, "
        f"and receivers' rings cannot take them; {fits} or less avoids it",
    )
