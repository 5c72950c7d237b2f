"""The options of a transport session. Those of its first source or receiver are in effect; a warning names options of
later ones that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from umstack._core import lib
from umstack.config import OPTIONS, Scope, SourceOptions
from umstack.config.option import shown

_RECEIVER_FIELDS: Mapping[str, str] = {
    "transport_lbtrm_send_naks": "send_naks",
    "transport_lbtrm_nak_initial_backoff_interval": "nak_initial_backoff_ns",
    "transport_lbtrm_nak_backoff_interval": "nak_backoff_ns",
    "transport_lbtrm_nak_suppress_interval": "nak_suppress_ns",
    "transport_lbtrm_nak_generation_interval": "nak_generation_ns",
    "transport_lbtrm_nak_rate_limit": "nak_rate_limit",
    "transport_lbtrm_nak_cutoff_interval": "nak_cutoff_interval_ns",
    "transport_lbtrm_activity_timeout": "activity_timeout_ns",
    "transport_lbtrm_preactivity_timeout": "preactivity_timeout_ns",
    "flow_control_receiver_window": "window_bytes",
    "flow_control_group_tag": "group_tag",
}
"""Receiver options that apply to the whole session, and their fields of the core's configuration."""

SOURCE_SESSION_OPTIONS: tuple[str, ...] = (
    "transport_lbtrm_transmission_window_size",
    "transport_lbtrm_coalesce_threshold",
    "implicit_batching_minimum_length",
    "implicit_batching_interval",
    "transport_lbtrm_ignore_interval",
    "transport_lbtrm_sm_minimum_interval",
    "transport_lbtrm_sm_maximum_interval",
    "recovery_timing",
    "publication_unblock_timeout",
    "flow_control",
    "flow_control_group_tag",
    "flow_control_group_minimum_size",
    "flow_control_without_receivers",
    "flow_control_receiver_timeout",
    "flow_control_stall_timeout",
    "flow_control_receivers_allowed",
    "transport_lbtrm_nak_cutoff_interval",
)
"""Source options that apply to the whole session. Other transports use the same names with their own prefix."""

LBTRU_SESSION_OPTIONS: tuple[str, ...] = (
    "transport_lbtru_use_session_id",
    "transport_lbtru_client_activity_timeout",
    "transport_lbtru_client_map_size",
    "transport_lbtru_maximum_clients",
    "transport_source_side_filtering_behavior",
)
"""Source options that apply to the whole session and exist for LBT-RU only."""

TCP_SESSION_OPTIONS: tuple[str, ...] = (
    "transport_tcp_multiple_receiver_behavior",
    "transport_session_maximum_buffer",
    "transport_source_side_filtering_behavior",
    "transport_tcp_nodelay",
    "transport_tcp_use_session_id",
    "transport_tcp_activity_timeout",
    "transport_tcp_listen_backlog",
    "transport_tcp_sender_socket_buffer",
    "implicit_batching_minimum_length",
    "implicit_batching_interval",
    "publication_unblock_timeout",
    "flow_control_stall_timeout",
)
"""Source options that apply to a whole session over TCP."""

LBTIPC_SESSION_OPTIONS: tuple[str, ...] = (
    "transport_lbtipc_transmission_window_size",
    "transport_lbtipc_behavior",
    "transport_lbtipc_sm_interval",
    "transport_lbtipc_maximum_receivers_per_transport",
    "implicit_batching_minimum_length",
    "implicit_batching_interval",
    "publication_unblock_timeout",
    "flow_control_stall_timeout",
)
"""Source options that apply to a whole session over LBT-IPC."""

_TCP_RECEIVER_FIELDS: Mapping[str, str] = {
    "transport_tcp_reconnect_interval": "reconnect_interval_ns",
    "transport_tcp_reconnect_timeout": "reconnect_timeout_ns",
    "transport_tcp_activity_timeout": "connection_timeout_ns",
}
_LBTIPC_RECEIVER_FIELDS: Mapping[str, str] = {"transport_lbtipc_activity_timeout": "connection_timeout_ns"}


def _of(transport: str, name: str) -> str:
    """Return the name of the option for a transport."""
    return name.replace("transport_lbtrm_", f"transport_{transport}_")


def ignored_receiver_options(in_force: Any, wanted: Any) -> list[str]:
    """Return the receiver options that differ from the session it joins; both are um_receiver_session_config."""
    transport = "lbtru" if wanted.id.transport == lib.UM_TRANSPORT_LBTRU else "lbtrm"
    own_fields = {
        lib.UM_TRANSPORT_TCP: _TCP_RECEIVER_FIELDS,
        lib.UM_TRANSPORT_LBTIPC: _LBTIPC_RECEIVER_FIELDS,
    }
    ignored = [
        _said(Scope.RECEIVER, _of(transport, name), getattr(wanted, field), getattr(in_force, field))
        for name, field in own_fields.get(wanted.id.transport, _RECEIVER_FIELDS).items()
        if getattr(wanted, field) != getattr(in_force, field)
    ]
    if wanted.adaptive_timers != in_force.adaptive_timers:
        ignored.append("recovery_timing")
    return ignored


def ignored_source_options(in_force: SourceOptions, wanted: SourceOptions) -> list[str]:
    """Return the source options that differ from the session it joins."""
    options = OPTIONS[Scope.SOURCE]
    if wanted.transport == "tcp":
        names = list(TCP_SESSION_OPTIONS)
    elif wanted.transport == "lbtipc":
        names = list(LBTIPC_SESSION_OPTIONS)
    else:
        names = [_of(wanted.transport, name) for name in SOURCE_SESSION_OPTIONS]
    if wanted.transport == "lbtru":
        names += LBTRU_SESSION_OPTIONS
    values = [
        (name, getattr(wanted, options[name].field), getattr(in_force, options[name].field)) for name in names
    ]
    return [_said(Scope.SOURCE, name, one, other) for name, one, other in values if one != other]


def _said(scope: Scope, name: str, wanted: Any, in_force: Any) -> str:
    spec = OPTIONS[scope][name].spec
    return f"{name} {shown(spec, wanted)} (in force: {shown(spec, in_force)})"
