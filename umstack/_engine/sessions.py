"""Transport sessions of a context: which one a new source goes to, and what identifies one."""

from __future__ import annotations

import ipaddress
import logging
from contextlib import AbstractContextManager
from random import SystemRandom
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.core_context import CoreContext
from umstack._engine.session_options import ignored_source_options
from umstack._engine.transport_address import LbtrmAddress, TransportAddress, fill_identity, transport_name
from umstack.config import ReceiverOptions, SourceOptions, adaptive_timers
from umstack.errors import OptionError
from umstack.foreign_text import displayed
from umstack.repeated_records import RepeatedRecords

_FLOW_POLICIES = {
    "none": lib.UM_FLOW_NONE,
    "min": lib.UM_FLOW_MIN,
    "max": lib.UM_FLOW_MAX,
    "tagged": lib.UM_FLOW_TAGGED,
}
_ADAPTIVE_SOURCE_TIMERS = {
    adaptive_timers.IGNORE_INTERVAL: lib.UM_ADAPTIVE_IGNORE,
    adaptive_timers.FIRST_SESSION_MESSAGE: lib.UM_ADAPTIVE_SM,
}
_ADAPTIVE_RECEIVER_TIMERS = {
    adaptive_timers.INITIAL_BACKOFF: lib.UM_ADAPTIVE_INITIAL,
    adaptive_timers.BACKOFF: lib.UM_ADAPTIVE_BACKOFF,
    adaptive_timers.SUPPRESS_INTERVAL: lib.UM_ADAPTIVE_SUPPRESS,
}
_EMBEDDED_SM_FLOOR_NS = 1_000_000
"""Each session message wakes the context's thread, which may share a processor with the publisher."""
_LOSS_MAP_CAPACITY = 65536
_TOPICS_PER_SESSION = 16384
_STATUS_INTERVAL_NS = 200_000_000
_UNNAMED = "auto"
_records = RepeatedRecords(logging.getLogger("umstack.source"))


def _power_of_two_at_least(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def _term_bytes(window_bytes: int, datagram_max_bytes: int) -> int:
    """The length of a term of the publication log, which is also the transmission window."""
    return max(
        _power_of_two_at_least(window_bytes),
        int(lib.UM_LOG_TERM_BYTES_MIN),
        _power_of_two_at_least(8 * datagram_max_bytes),
    )


def allowed_networks(text: str) -> list[ipaddress.IPv4Network]:
    """The networks of flow_control_receivers_allowed; none: every address is allowed."""
    if text.strip() == "any":
        return []
    try:
        networks = [ipaddress.IPv4Network(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise OptionError(
            f"flow_control_receivers_allowed: {error}",
            hint="give addresses and networks, as in 10.1.0.0/16,10.2.0.7",
        ) from None
    if len(networks) > lib.UM_FLOW_NETWORKS_MAX:
        raise OptionError(
            f"flow_control_receivers_allowed names {len(networks)} networks",
            hint=f"give at most {lib.UM_FLOW_NETWORKS_MAX}",
        )
    return networks


class LogMemory:
    """A session's publication log: unmapped when no source refers to it, so that no claim can write into it."""

    __slots__ = ("_address", "_bytes")

    def __init__(self, handle: Any) -> None:
        size = ffi.new("size_t *")
        self._address: Any = lib.um_session_memory(handle, size)
        self._bytes = size[0]

    def disown(self) -> None:
        """In the child of a fork: leave the memory alone."""
        self._address = None

    def __del__(self) -> None:
        if self._address is not None:
            lib.um_unmap(self._address, self._bytes)


class SourceSession:
    """One source transport session, shared by the sources mapped to it. Made and ended by SessionPool."""

    __slots__ = (
        "_memory",
        "address",
        "group",
        "handle",
        "key_set",
        "logged_events",
        "name",
        "options",
        "source_count",
    )

    def __init__(
        self, core: CoreContext, group: tuple[str, int], options: SourceOptions, key_set: int
    ) -> None:
        self.group = group
        self.key_set = key_set
        self.options = options
        self.source_count = 0
        self.logged_events = 0
        config = ffi.new("um_session_config *")
        config.session_id = SystemRandom().randrange(1, 2**32)
        config.group.ip = int(ipaddress.IPv4Address(group[0]))
        config.group.port = group[1]
        config.initial_term_id = SystemRandom().getrandbits(32)
        window = options.transport_lbtrm_transmission_window_size_bytes
        config.term_length = _term_bytes(window, core.datagram_max_bytes)
        config.window_bytes = window
        config.datagram_max_bytes = core.datagram_max_bytes
        config.coalesce_threshold = options.transport_lbtrm_coalesce_threshold
        config.batch_minimum_bytes = options.implicit_batching_minimum_length_bytes
        config.batch_interval_ns = options.implicit_batching_interval_ns
        config.ignore_interval_ns = options.transport_lbtrm_ignore_interval_ns
        config.sm_minimum_interval_ns = options.transport_lbtrm_sm_minimum_interval_ns
        config.sm_maximum_interval_ns = options.transport_lbtrm_sm_maximum_interval_ns
        config.adaptive_timers = sum(_ADAPTIVE_SOURCE_TIMERS[name] for name in options.adaptive_timers)
        if options.recovery_timing == "adaptive":
            config.adaptive_timers |= lib.UM_ADAPTIVE_REPORTS
        is_sequential = core.options.operational_mode == "sequential"
        config.sm_floor_ns = 0 if is_sequential else _EMBEDDED_SM_FLOOR_NS
        config.unblock_timeout_ns = options.publication_unblock_timeout_ns
        config.flow_policy = _FLOW_POLICIES[options.flow_control]
        config.flow_group_tag = options.flow_control_group_tag
        config.flow_group_minimum_size = options.flow_control_group_minimum_size
        config.flow_receiver_timeout_ns = options.flow_control_receiver_timeout_ns
        config.flow_stall_timeout_ns = options.flow_control_stall_timeout_ns
        networks = allowed_networks(options.flow_control_receivers_allowed)
        config.flow_network_count = len(networks)
        for place, network in zip(config.flow_networks, networks, strict=False):
            place.ip, place.mask = int(network.network_address), int(network.netmask)
        config.repair_budget_bps = core.options.transport_lbtrm_retransmit_rate_limit_bits_per_second
        config.key_set = key_set
        config.nak_cutoff_interval_ns = options.transport_lbtrm_nak_cutoff_interval_ns
        ports = (
            core.options.transport_lbtrm_source_port_low,
            core.options.transport_lbtrm_source_port_high,
        )
        handle = ffi.new("um_publication_session **")
        result = lib.um_session_open(core.handle, config, *ports, handle)
        core.check(result, f"transport session on {group[0]}:{group[1]}, NAK ports {ports[0]}-{ports[1]}")
        self.handle = handle[0]
        self._memory = LogMemory(self.handle)
        lib.um_session_limit_datagram(self.handle, core.datagram_bytes)
        self.address = LbtrmAddress(
            source_ip=core.interface.address or "",
            group=group[0],
            session_id=config.session_id,
            destination_port=group[1],
            nak_port=config.nak_port,
        )
        self.name = transport_name(self.address)

    def disown(self) -> None:
        """In the child of a fork: leave the memory alone."""
        self._memory.disown()


class SessionPool:
    """The source sessions of a context and the rule that maps sources to them (UX-10)."""

    __slots__ = ("_core", "_listing", "_next", "sessions")

    def __init__(self, core: CoreContext, listing: AbstractContextManager[Any]) -> None:
        """`listing` is held while a session is removed, so that the statistics may walk them under it."""
        self._core = core
        self._listing = listing
        self._next = 0
        self.sessions: list[SourceSession] = []

    def acquire(self, options: SourceOptions, key_set: int = 0) -> SourceSession:
        """The session of a new source. Undone by release().

        A named session is that of the name. An explicit group and port is that of these, and joins the pool only
        where the group is one of the pool's. Without either it is the pool's next: one that is not active yet as long
        as there is one, then those there are in turn. Sources whose topics have different keys are never on one
        session. What a source wants of a session that exists, and does not get, is logged.
        """
        if options.transport != "lbtrm":
            raise OptionError(
                f"source option transport: {options.transport!r} is not available yet", hint="set it to lbtrm"
            )
        session = self._existing(options, key_set)
        if isinstance(session, tuple):
            session = SourceSession(self._core, session, options, key_set)
            self.sessions.append(session)
        ignored = ignored_source_options(session.options, options)
        if ignored:
            _records.write(
                session.name,
                logging.WARNING,
                "%s was opened with other options, which stay in force; without effect: %s",
                session.name,
                displayed(", ".join(ignored)),
            )
        session.source_count += 1
        return session

    def _existing(self, options: SourceOptions, key_set: int) -> SourceSession | tuple[str, int]:
        """The session that a source goes to, or the group and port of the one that is to be opened for it."""
        label = options.transport_session_name
        peers = [
            s for s in self.sessions if s.key_set == key_set and s.options.transport_session_name == label
        ]
        if label != _UNNAMED and peers:
            return _check_named(peers[0], options)
        explicit, port = options.transport_lbtrm_multicast_address, options.transport_lbtrm_destination_port
        group = (explicit if explicit != "0.0.0.0" else self._next_group(peers, port), port)
        return next((s for s in peers if s.group == group), group)

    def release(self, session: SourceSession) -> None:
        """Count one source of the session less; the last one ends the session and its retransmissions (UM-90)."""
        with self._core.lifecycle:
            if self._core.closed:
                return  # closing the core ends every session
            session.source_count -= 1
            if session.source_count == 0:
                with self._listing:
                    self.sessions.remove(session)
                lib.um_session_shut(session.handle)

    def _next_group(self, peers: list[SourceSession], port: int) -> str:
        low = int(ipaddress.IPv4Address(self._core.options.transport_lbtrm_multicast_address_low))
        high = int(ipaddress.IPv4Address(self._core.options.transport_lbtrm_multicast_address_high))
        if high < low:
            raise OptionError(
                "transport_lbtrm_multicast_address_low is above _high", hint="swap the two addresses"
            )
        size = high - low + 1
        active = {s.group[0] for s in peers if s.group[1] == port}
        in_turn = [
            str(ipaddress.IPv4Address(low + (self._next + step) % size))
            for step in range(min(size, len(active) + 1))
        ]
        step = next((step for step, group in enumerate(in_turn) if group not in active), 0)
        self._next = (self._next + step + 1) % size
        return in_turn[step]


def _check_named(session: SourceSession, options: SourceOptions) -> SourceSession:
    """The named session; OptionError when the source wants it elsewhere."""
    explicit = options.transport_lbtrm_multicast_address
    group, port = session.group
    if explicit not in ("0.0.0.0", group) or options.transport_lbtrm_destination_port != port:
        raise OptionError(
            f"transport session {options.transport_session_name!r} is on {group}:{port}",
            hint="name another session, or leave group and port as they are",
        )
    return session


def receiver_session_config(
    address: TransportAddress,
    options: ReceiverOptions,
    receiver_id: int,
    datagram_max_bytes: int,
    key_set: int = 0,
    receive_max_bytes: int = 0,
) -> Any:
    """The core's configuration of the receiving side of a session."""
    config = ffi.new("um_receiver_session_config *")
    fill_identity(config.id, address)
    config.nak_initial_backoff_ns = options.transport_lbtrm_nak_initial_backoff_interval_ns
    config.nak_backoff_ns = options.transport_lbtrm_nak_backoff_interval_ns
    config.nak_suppress_ns = options.transport_lbtrm_nak_suppress_interval_ns
    config.adaptive_timers = sum(_ADAPTIVE_RECEIVER_TIMERS[name] for name in options.adaptive_timers)
    config.nak_generation_ns = options.effective_generation_interval_ns
    config.activity_timeout_ns = options.transport_lbtrm_activity_timeout_ns
    config.preactivity_timeout_ns = options.transport_lbtrm_preactivity_timeout_ns
    config.send_naks = options.transport_lbtrm_send_naks
    config.nak_rate_limit = options.transport_lbtrm_nak_rate_limit_naks_per_second
    config.datagram_max_bytes = datagram_max_bytes
    config.receive_max_bytes = receive_max_bytes
    config.loss_capacity = _LOSS_MAP_CAPACITY
    config.topic_capacity = _TOPICS_PER_SESSION
    config.window_bytes = options.flow_control_receiver_window_bytes
    config.status_interval_ns = _STATUS_INTERVAL_NS
    config.receiver_id = receiver_id
    config.group_tag = options.flow_control_group_tag
    config.random_seed = SystemRandom().getrandbits(64)
    config.key_set = key_set
    return config
