"""Transport sessions of a context: which one a new source goes to, and what identifies one."""

from __future__ import annotations

import errno
import ipaddress
import logging
from contextlib import AbstractContextManager
from random import SystemRandom
from typing import Any, NamedTuple

from umstack._core import ffi, lib
from umstack._engine.core_context import CoreContext
from umstack._engine.session_options import ignored_source_options
from umstack._engine.transport_address import (
    LbtrmAddress,
    LbtruAddress,
    fill_identity,
    transport_name,
)
from umstack.config import ReceiverOptions, SourceOptions, adaptive_timers
from umstack.errors import OptionError, UmError
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


def _source_session_config(core: CoreContext, options: SourceOptions) -> Any:
    """The core's configuration of a source session, but for what its transport alone has."""

    def own(name: str) -> Any:
        return getattr(options, f"transport_{options.transport}_{name}")

    config = ffi.new("um_session_config *")
    config.session_id = SystemRandom().randrange(1, 2**32)
    config.initial_term_id = SystemRandom().getrandbits(32)
    window = own("transmission_window_size_bytes")
    config.term_length = _term_bytes(window, core.datagram_max_bytes)
    config.window_bytes = window
    config.datagram_max_bytes = _datagram_max_bytes(core, options.transport)
    config.coalesce_threshold = own("coalesce_threshold")
    config.batch_minimum_bytes = options.implicit_batching_minimum_length_bytes
    config.batch_interval_ns = options.implicit_batching_interval_ns
    config.ignore_interval_ns = own("ignore_interval_ns")
    config.sm_minimum_interval_ns = own("sm_minimum_interval_ns")
    config.sm_maximum_interval_ns = own("sm_maximum_interval_ns")
    measured = options.adaptive_timers_of(options.transport)
    config.adaptive_timers = sum(_ADAPTIVE_SOURCE_TIMERS[name] for name in measured)
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
    limit = f"transport_{options.transport}_retransmit_rate_limit_bits_per_second"
    config.repair_budget_bps = getattr(core.options, limit)
    config.nak_cutoff_interval_ns = own("nak_cutoff_interval_ns")
    return config


def _datagram_max_bytes(core: CoreContext, transport: str) -> int:
    """The size that a session's memory is for; OptionError when LBT-RU is to send longer datagrams than fit."""
    configured = core.options.lbtru_source_datagram_size_bytes if transport == "lbtru" else 0
    if configured > core.datagram_bytes:
        raise OptionError(
            f"transport_lbtru_datagram_max_size {configured} is more than datagrams of this context have",
            hint=f"set it to {core.datagram_bytes} or less, or to 0",
        )
    return configured or core.datagram_max_bytes


class Place(NamedTuple):
    """Where a source session is: the group and destination port of LBT-RM, the UDP port of LBT-RU (0: of the pool)."""

    group: str
    port: int


def _check_lbtru_interface(core: CoreContext, address: str) -> None:
    if address not in ("0.0.0.0", core.interface.address):
        raise OptionError(
            f"transport_lbtru_interface {address} is not the context's interface, {core.interface.address}",
            hint="open a context on that interface, or leave the option out",
        )


class SourceSession:
    """One source transport session, shared by the sources mapped to it. Made and ended by SessionPool."""

    __slots__ = (
        "_memory",
        "address",
        "handle",
        "key_set",
        "logged_events",
        "name",
        "options",
        "place",
        "source_count",
    )

    def __init__(self, core: CoreContext, place: Place, options: SourceOptions, key_set: int) -> None:
        self.place = place
        self.key_set = key_set
        self.options = options
        self.source_count = 0
        self.logged_events = 0
        config = _source_session_config(core, options)
        config.key_set = key_set
        if options.transport == "lbtru":
            self._open_lbtru(core, config)
            self.address: LbtrmAddress | LbtruAddress = LbtruAddress(
                core.interface.address or "", config.session_id, config.nak_port
            )
        else:
            self._open_lbtrm(core, config)
            self.address = LbtrmAddress(
                core.interface.address or "", place.group, config.session_id, place.port, config.nak_port
            )
        self._memory = LogMemory(self.handle)
        lib.um_session_limit_datagram(self.handle, core.datagram_bytes)
        self.name = transport_name(self.address)

    def _open_lbtrm(self, core: CoreContext, config: Any) -> None:
        config.transport = lib.UM_TRANSPORT_LBTRM
        config.group.ip = int(ipaddress.IPv4Address(self.place.group))
        config.group.port = self.place.port
        low, high = (
            core.options.transport_lbtrm_source_port_low,
            core.options.transport_lbtrm_source_port_high,
        )
        doing = f"transport session on {self.place.group}:{self.place.port}, NAK ports {low}-{high}"
        core.check(self._open(core, config, low, high), doing)

    def _open_lbtru(self, core: CoreContext, config: Any) -> None:
        options = self.options
        _check_lbtru_interface(core, options.transport_lbtru_interface)
        config.transport = lib.UM_TRANSPORT_LBTRU
        if not options.transport_lbtru_use_session_id:
            config.session_id = 0
        config.client_capacity = options.transport_lbtru_maximum_clients
        config.client_buckets = options.transport_lbtru_client_map_size
        config.client_timeout_ns = options.transport_lbtru_client_activity_timeout_ns
        config.client_key.k0 = SystemRandom().getrandbits(64)
        config.client_key.k1 = SystemRandom().getrandbits(64)
        low = self.place.port or core.options.transport_lbtru_port_low
        high = self.place.port or core.options.transport_lbtru_port_high
        result = self._open(core, config, low, high)
        if result == -errno.EADDRINUSE and options.transport_lbtru_allow_ephemeral:
            result = self._open(core, config, 0, 0)
        core.check(result, f"LBT-RU session at UDP port {low}" + (f"-{high}" if high != low else ""))

    def _open(self, core: CoreContext, config: Any, low: int, high: int) -> int:
        handle = ffi.new("um_publication_session **")
        result = int(lib.um_session_open(core.handle, config, low, high, handle))
        self.handle = handle[0]
        return result

    def disown(self) -> None:
        """In the child of a fork: leave the memory alone."""
        self._memory.disown()


class SessionPool:
    """The source sessions of a context and the rule that maps sources to them (UX-10)."""

    __slots__ = ("_core", "_listing", "_next", "_next_lbtru", "sessions")

    def __init__(self, core: CoreContext, listing: AbstractContextManager[Any]) -> None:
        """`listing` is held while a session is removed, so that the statistics may walk them under it."""
        self._core = core
        self._listing = listing
        self._next = 0
        self._next_lbtru = 0
        self.sessions: list[SourceSession] = []

    def acquire(self, options: SourceOptions, key_set: int = 0) -> SourceSession:
        """The session of a new source. Undone by release().

        A named session is that of the name. An explicit group and port is that of these, and joins the pool only
        where the group is one of the pool's; an explicit port of LBT-RU joins it. Without either it is the pool's
        next: one that is not active yet as long as there is one, then those there are in turn. Sources whose topics
        have different keys are never on one session. What a source wants of a session that exists, and does not get,
        is logged.
        """
        if options.transport not in ("lbtrm", "lbtru"):
            raise OptionError(
                f"source option transport: {options.transport!r} is not available yet",
                hint="set it to lbtrm or lbtru",
            )
        session = self._existing(options, key_set)
        if isinstance(session, Place):
            session = self._open(session, options, key_set)
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

    def _peers(self, options: SourceOptions, key_set: int) -> list[SourceSession]:
        """The sessions that a source may go to, by its transport, its keys and the name it gives."""
        return [
            one
            for one in self.sessions
            if one.key_set == key_set
            and one.options.transport == options.transport
            and one.options.transport_session_name == options.transport_session_name
        ]

    def _existing(self, options: SourceOptions, key_set: int) -> SourceSession | Place:
        """The session that a source goes to, or the place of the one that is to be opened for it."""
        peers = self._peers(options, key_set)
        if options.transport_session_name != _UNNAMED and peers:
            return _check_named(peers[0], options)
        if options.transport == "lbtru":
            return self._existing_lbtru(options, peers)
        explicit, port = options.transport_lbtrm_multicast_address, options.transport_lbtrm_destination_port
        place = Place(explicit if explicit != "0.0.0.0" else self._next_group(peers, port), port)
        return next((s for s in peers if s.place == place), place)

    def _existing_lbtru(self, options: SourceOptions, peers: list[SourceSession]) -> SourceSession | Place:
        port = options.transport_lbtru_port
        if port != 0:
            return next((s for s in peers if port in (s.place.port, _port_of(s))), Place("", port))
        count = sum(s.options.transport == "lbtru" for s in self.sessions)
        if not peers or count < self._core.options.transport_lbtru_maximum_ports:
            return Place("", 0)
        return self._next_of(peers)

    def _next_of(self, peers: list[SourceSession]) -> SourceSession:
        self._next_lbtru += 1
        return peers[self._next_lbtru % len(peers)]

    def _open(self, place: Place, options: SourceOptions, key_set: int) -> SourceSession:
        """Open a session there. When every port of LBT-RU's pool is taken, its sessions are shared in turn."""
        try:
            session = SourceSession(self._core, place, options, key_set)
        except UmError as error:
            peers = self._peers(options, key_set)
            if error.errno != errno.EADDRINUSE or place != Place("", 0) or not peers:
                raise
            return self._next_of(peers)
        self.sessions.append(session)
        return session

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
        active = {s.place.group for s in peers if s.place.port == port}
        in_turn = [
            str(ipaddress.IPv4Address(low + (self._next + step) % size))
            for step in range(min(size, len(active) + 1))
        ]
        step = next((step for step, group in enumerate(in_turn) if group not in active), 0)
        self._next = (self._next + step + 1) % size
        return in_turn[step]


def _port_of(session: SourceSession) -> int:
    address = session.address
    return address.source_port if isinstance(address, LbtruAddress) else address.nak_port


def _check_named(session: SourceSession, options: SourceOptions) -> SourceSession:
    """The named session; OptionError when the source wants it elsewhere."""
    if options.transport == "lbtru":
        is_there = options.transport_lbtru_port in (0, _port_of(session))
        where = f"at UDP port {_port_of(session)}"
    else:
        explicit, port = options.transport_lbtrm_multicast_address, options.transport_lbtrm_destination_port
        is_there = explicit in ("0.0.0.0", session.place.group) and port == session.place.port
        where = f"on {session.place.group}:{session.place.port}"
    if not is_there:
        raise OptionError(
            f"transport session {options.transport_session_name!r} is {where}",
            hint="name another session, or leave group and port as they are",
        )
    return session


def receiver_session_config(
    address: LbtrmAddress | LbtruAddress,
    options: ReceiverOptions,
    core: CoreContext,
    key_set: int = 0,
) -> Any:
    """The core's configuration of the receiving side of a session."""
    transport = "lbtru" if isinstance(address, LbtruAddress) else "lbtrm"

    def own(name: str) -> Any:
        return getattr(options, f"transport_{transport}_{name}")

    config = ffi.new("um_receiver_session_config *")
    fill_identity(config.id, address)
    measured = options.adaptive_timers_of(transport)
    config.adaptive_timers = sum(_ADAPTIVE_RECEIVER_TIMERS[name] for name in measured)
    # A ceiling: UM's 0 for LBT-RU would leave nothing to measure.
    is_initial_measured = adaptive_timers.INITIAL_BACKOFF in measured
    initial = options.transport_lbtrm_nak_initial_backoff_interval_ns if is_initial_measured else None
    config.nak_initial_backoff_ns = own("nak_initial_backoff_interval_ns") if initial is None else initial
    config.nak_backoff_ns = own("nak_backoff_interval_ns")
    config.nak_suppress_ns = own("nak_suppress_interval_ns")
    config.nak_generation_ns = (
        options.effective_generation_interval_ns
        if transport == "lbtrm"
        else options.transport_lbtru_nak_generation_interval_ns
    )
    config.activity_timeout_ns = own("activity_timeout_ns")
    config.send_naks = own("send_naks")
    config.nak_rate_limit = own("nak_rate_limit_naks_per_second")
    if transport == "lbtrm":
        config.preactivity_timeout_ns = options.transport_lbtrm_preactivity_timeout_ns
    else:
        _check_lbtru_interface(core, options.transport_lbtru_interface)
        config.connect_interval_ns = options.transport_lbtru_connect_interval_ns
        config.maximum_connect_attempts = options.transport_lbtru_maximum_connect_attempts
        config.acknowledgement_interval_ns = options.transport_lbtru_acknowledgement_interval_ns
        config.port_low = options.transport_lbtru_port_low
        config.port_high = options.transport_lbtru_port_high
    config.datagram_max_bytes = core.datagram_bytes
    config.receive_max_bytes = core.options.transport_lbtrm_receiver_datagram_max_size_bytes
    config.loss_capacity = _LOSS_MAP_CAPACITY
    config.topic_capacity = _TOPICS_PER_SESSION
    config.window_bytes = options.flow_control_receiver_window_bytes
    config.status_interval_ns = _STATUS_INTERVAL_NS
    config.receiver_id = core.receiver_id
    config.group_tag = options.flow_control_group_tag
    config.random_seed = SystemRandom().getrandbits(64)
    config.key_set = key_set
    return config
