"""Configures the receiving side of a transport session for the core."""

from __future__ import annotations

from random import SystemRandom
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.core_address import UNKNOWN_IP, core_ip
from umstack._engine.core_context import CoreContext
from umstack._engine.interface_addresses import interface_address
from umstack._engine.transport_address import (
    LbtipcAddress,
    LbtrmAddress,
    LbtruAddress,
    TcpAddress,
    TransportAddress,
    fill_identity,
)
from umstack.config import ReceiverOptions, adaptive_timers
from umstack.config.datagram_options import receiver_of
from umstack.errors import OptionError

_ADAPTIVE_RECEIVER_TIMERS = {
    adaptive_timers.INITIAL_BACKOFF: lib.UM_ADAPTIVE_INITIAL,
    adaptive_timers.BACKOFF: lib.UM_ADAPTIVE_BACKOFF,
    adaptive_timers.SUPPRESS_INTERVAL: lib.UM_ADAPTIVE_SUPPRESS,
}
_LOSS_MAP_CAPACITY = 65536
_TOPICS_PER_SESSION = 16384
_STATUS_INTERVAL_NS = 200_000_000
NEVER_NS = 2**61


def check_lbtru_interface(core: CoreContext, value: str) -> None:
    """Raise OptionError if transport_lbtru_interface is not the interface of the context."""
    if interface_address("transport_lbtru_interface", value) not in (None, core.interface.address):
        raise OptionError(
            f"transport_lbtru_interface {value} is not the context's interface, {core.interface.address}",
            hint="open a context on that interface, or leave the option out",
        )


def receiver_session_config(
    address: TransportAddress,
    options: ReceiverOptions,
    core: CoreContext,
    key_set: int = 0,
    advertiser: str = UNKNOWN_IP,
    log_key: int = 0,
) -> Any:
    """Return the core's configuration of the receiving side of a session that this address advertised.

    `log_key` is that of an LBT-IPC log that admits only receivers that have it.
    """
    config = ffi.new("um_receiver_session_config *")
    fill_identity(config.id, address)
    if isinstance(address, TcpAddress):
        _fill_tcp_receiver(config, options, core)
    elif isinstance(address, LbtipcAddress):
        config.activity_timeout_ns = NEVER_NS
        config.connection_timeout_ns = options.transport_lbtipc_activity_timeout_ns
        config.id.log_key = log_key
    else:
        _fill_datagram_receiver(config, address, options, core)
    config.datagram_max_bytes = core.datagram_bytes
    config.loss_capacity = _LOSS_MAP_CAPACITY
    config.topic_capacity = _TOPICS_PER_SESSION
    config.receiver_id = core.receiver_id
    config.random_seed = SystemRandom().getrandbits(64)
    config.key_set = key_set
    config.advertiser = core_ip(advertiser)
    return config


def _fill_tcp_receiver(config: Any, options: ReceiverOptions, core: CoreContext) -> None:
    """Set the options of TCP. There are no NAKs or status messages, and the session ends with its connection (C16)."""
    config.activity_timeout_ns = NEVER_NS
    config.reconnect_interval_ns = options.transport_tcp_reconnect_interval_ns
    config.reconnect_timeout_ns = options.transport_tcp_reconnect_timeout_ns
    config.connection_timeout_ns = options.transport_tcp_activity_timeout_ns
    config.receive_buffer_bytes = core.options.transport_tcp_receiver_socket_buffer_bytes


def _fill_datagram_receiver(
    config: Any, address: LbtrmAddress | LbtruAddress, options: ReceiverOptions, core: CoreContext
) -> None:
    transport = "lbtru" if isinstance(address, LbtruAddress) else "lbtrm"
    own = receiver_of(options, transport)

    measured = options.adaptive_timers_of(transport)
    config.adaptive_timers = sum(_ADAPTIVE_RECEIVER_TIMERS[name] for name in measured)
    # The ceiling of a measured back-off is that of LBT-RM, because the LBT-RU default of 0 is no range to measure in.
    is_initial_measured = adaptive_timers.INITIAL_BACKOFF in measured
    initial = options.transport_lbtrm_nak_initial_backoff_interval_ns if is_initial_measured else None
    config.nak_initial_backoff_ns = own.nak_initial_backoff_ns if initial is None else initial
    config.nak_backoff_ns = own.nak_backoff_ns
    config.nak_suppress_ns = own.nak_suppress_ns
    config.nak_generation_ns = (
        options.effective_generation_interval_ns if transport == "lbtrm" else own.nak_generation_ns
    )
    config.activity_timeout_ns = own.activity_timeout_ns
    config.send_naks = own.sends_naks
    config.nak_rate_limit = own.nak_rate_limit
    if transport == "lbtrm":
        config.preactivity_timeout_ns = options.transport_lbtrm_preactivity_timeout_ns
        config.nak_cutoff_interval_ns = options.transport_lbtrm_nak_cutoff_interval_ns
    else:
        check_lbtru_interface(core, options.transport_lbtru_interface)
        config.connect_interval_ns = options.transport_lbtru_connect_interval_ns
        config.maximum_connect_attempts = options.transport_lbtru_maximum_connect_attempts
        config.acknowledgement_interval_ns = options.transport_lbtru_acknowledgement_interval_ns
        config.port_low = options.transport_lbtru_port_low
        config.port_high = options.transport_lbtru_port_high
    config.receive_max_bytes = core.options.transport_lbtrm_receiver_datagram_max_size_bytes
    config.window_bytes = options.reported_window_bytes
    config.status_interval_ns = _STATUS_INTERVAL_NS
    config.status_maximum_interval_ns = options.flow_control_receiver_report_interval_ns
    config.group_tag = options.flow_control_group_tag
