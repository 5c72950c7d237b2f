"""Source sessions of a context, and the rule that assigns a new source to a session.

One file, because the rule depends on how each transport's session is opened and addressed.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
from contextlib import AbstractContextManager
from random import SystemRandom
from typing import Any, NamedTuple

from umstack._core import ffi, lib
from umstack._engine.core_address import core_ip, core_network, ip_text, is_ipv6, named
from umstack._engine.core_context import CoreContext
from umstack._engine.host_identity import host_id
from umstack._engine.receiver_sessions import NEVER_NS, check_lbtru_interface
from umstack._engine.session_options import ignored_source_options
from umstack._engine.transport_address import (
    LbtipcAddress,
    LbtrmAddress,
    LbtruAddress,
    TcpAddress,
    TransportAddress,
    transport_name,
)
from umstack.config import SourceOptions, adaptive_timers
from umstack.config.datagram_options import rates_of, source_of
from umstack.config.networks import Networks, networks_of
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
_EMBEDDED_SM_FLOOR_NS = 1_000_000
"""Each session message wakes the context's thread, which may share a processor with the publisher."""
_STREAM_TERM_BYTES = 8 * 2**20
_LONGEST_MESSAGES_PER_TERM = 16
"""Term length over TCP and LBT-IPC. The log keeps nothing for retransmission, so three terms that fit the caches are
enough."""
_STREAM_PUBLICATION_WINDOW_BYTES = 512 * 1024
"""How many bytes publishers may be ahead of connections that are full."""
_SHARED_CAPACITY_STEP_BYTES = 64
_HEADERS_BYTES = 128
"""Space for the headers of a datagram with one message."""
_UNNAMED = "auto"
_records = RepeatedRecords(logging.getLogger("umstack.source"))


def _power_of_two_at_least(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


def _term_bytes(window_bytes: int, datagram_max_bytes: int) -> int:
    """Return the length of a term of the publication log, which is also the transmission window."""
    return max(
        _power_of_two_at_least(window_bytes),
        int(lib.UM_LOG_TERM_BYTES_MIN),
        _power_of_two_at_least(8 * datagram_max_bytes),
    )


def longest_message_bytes(options: SourceOptions) -> int:
    """Return the longest message of a source whose transmission window is set; 0 if its window is not set."""
    windows = {
        "lbtrm": (
            "transport_lbtrm_transmission_window_size",
            options.transport_lbtrm_transmission_window_size_bytes,
        ),
        "lbtru": (
            "transport_lbtru_transmission_window_size",
            options.transport_lbtru_transmission_window_size_bytes,
        ),
    }
    name, window_bytes = windows.get(options.transport, ("", 0))
    return _power_of_two_at_least(window_bytes) // _LONGEST_MESSAGES_PER_TERM if name in options.given else 0


def allowed_networks(text: str) -> Networks:
    """Return the networks of flow_control_receivers_allowed. If empty, every address is allowed."""
    if text.strip() == "any":
        return ()
    networks = networks_of("flow_control_receivers_allowed", text)
    if len(networks) > lib.UM_FLOW_NETWORKS_MAX:
        raise OptionError(
            f"flow_control_receivers_allowed has {len(networks)} networks",
            hint=f"give at most {lib.UM_FLOW_NETWORKS_MAX}",
        )
    return networks


class LogMemory:
    """A session's publication log. It stays mapped while a source refers to it, because a claim may write into it."""

    __slots__ = ("_address", "_bytes")

    def __init__(self, handle: Any) -> None:
        size = ffi.new("size_t *")
        self._address: Any = lib.um_publication_session_memory(handle, size)
        self._bytes = size[0]

    def disown(self) -> None:
        """Leave the memory alone, in a forked child."""
        self._address = None

    def __del__(self) -> None:
        if self._address is not None:
            lib.um_unmap(self._address, self._bytes)


def source_session_config(core: CoreContext, options: SourceOptions) -> Any:
    """Return the core's configuration of the source side of a session, without its addresses."""
    config = ffi.new("um_source_session_config *")
    config.session_id = SystemRandom().randrange(1, 2**32)
    config.initial_term_id = SystemRandom().getrandbits(32)
    config.batch_minimum_bytes = options.implicit_batching_minimum_length_bytes
    config.batch_interval_ns = options.implicit_batching_interval_ns
    config.unblock_timeout_ns = options.publication_unblock_timeout_ns
    if not options.is_stream:
        _fill_datagram_source(config, core, options)
    return config


def _fill_datagram_source(config: Any, core: CoreContext, options: SourceOptions) -> None:
    """Set the options that LBT-RM and LBT-RU share."""
    own = source_of(options, options.transport)
    window = own.transmission_window_bytes
    config.term_length = _term_bytes(window, core.datagram_max_bytes)
    config.window_bytes = window
    config.datagram_max_bytes = _datagram_max_bytes(core, options.transport)
    config.coalesce_threshold = own.coalesce_threshold
    config.ignore_interval_ns = own.ignore_interval_ns
    config.sm_minimum_interval_ns = own.sm_minimum_interval_ns
    config.sm_maximum_interval_ns = own.sm_maximum_interval_ns
    measured = options.adaptive_timers_of(options.transport)
    config.adaptive_timers = sum(_ADAPTIVE_SOURCE_TIMERS[name] for name in measured)
    if options.recovery_timing == "adaptive":
        config.adaptive_timers |= lib.UM_ADAPTIVE_REPORTS
    if options.recovery_timing == "adaptive" and options.transport == "lbtrm" and not core.is_fragmented:
        config.path_floor_bytes = options.transport_lbtrm_path_datagram_minimum_size_bytes
    is_sequential = core.options.operational_mode == "sequential"
    config.sm_floor_ns = 0 if is_sequential else _EMBEDDED_SM_FLOOR_NS
    config.flow_policy = _FLOW_POLICIES[options.flow_control]
    config.flow_group_tag = options.flow_control_group_tag
    config.flow_group_minimum_size = options.flow_control_group_minimum_size
    config.flow_receiver_timeout_ns = options.flow_control_receiver_timeout_ns
    config.flow_stall_timeout_ns = options.flow_control_stall_timeout_ns
    config.flow_publishes_without_receivers = options.flow_control_without_receivers == "publish"
    networks = allowed_networks(options.flow_control_receivers_allowed)
    config.flow_network_count = len(networks)
    for place, network in zip(config.flow_networks, networks, strict=False):
        place.ip, place.mask = core_network(network)
    config.repair_budget_bps = rates_of(core.options, options.transport).retransmit
    config.nak_cutoff_interval_ns = own.nak_cutoff_interval_ns


def fixed_fragment_bytes(core: CoreContext, transport: str) -> int:
    """Return the length of fragments that does not depend on the path: what one datagram carries now.

    Raises:
        OptionError: As for the session.
    """
    of_streams = {
        "tcp": core.options.transport_tcp_datagram_max_size_bytes,
        "lbtipc": core.options.transport_lbtipc_datagram_max_size_bytes,
    }
    longest = of_streams.get(transport) or _datagram_max_bytes(core, transport)
    return min(core.datagram_bytes, longest) - _HEADERS_BYTES


def _datagram_max_bytes(core: CoreContext, transport: str) -> int:
    """Return the datagram size of a session. Raises OptionError if the size set for LBT-RU exceeds the context's."""
    configured = core.options.lbtru_source_datagram_size_bytes if transport == "lbtru" else 0
    if configured > core.datagram_bytes:
        raise OptionError(
            f"transport_lbtru_datagram_max_size {configured} exceeds the datagram size of this context",
            hint=f"set it to {core.datagram_bytes} or less, or to 0",
        )
    return configured or core.datagram_max_bytes


class Place(NamedTuple):
    """The address of a source session: group and destination port for LBT-RM, else the port (0: any of the pool)."""

    group: str
    port: int


class SourceSession:
    """One source transport session, shared by the sources assigned to it. SessionPool creates and ends it."""

    __slots__ = (
        "_memory",
        "address",
        "datagram_max_bytes",
        "handle",
        "key_set",
        "log_key",
        "logged_events",
        "message_max_bytes",
        "name",
        "options",
        "place",
        "source_count",
    )

    def __init__(
        self,
        core: CoreContext,
        place: Place,
        options: SourceOptions,
        key_set: int,
        *,
        ephemeral: bool = False,
        log_key: int = 0,
        message_max_bytes: int = 0,
    ) -> None:
        """Open it; with `ephemeral`, LBT-TCP takes a port chosen by the system if those of the pool are in use.

        With a `log_key`, the log of LBT-IPC admits only receivers that have it. LBT-TCP and LBT-IPC take messages of
        `message_max_bytes`, or 512 KiB if that is more.
        """
        self.place = place
        self.key_set = key_set
        self.log_key = log_key
        self.message_max_bytes = message_max_bytes
        self.options = options
        self.source_count = 0
        self.logged_events = 0
        config = source_session_config(core, options)
        config.key_set = key_set
        ip = core.interface.address or ""
        datagram_bytes = core.datagram_bytes
        if options.transport == "tcp":
            self._open_tcp(core, config, ephemeral=ephemeral)
            self.address: TransportAddress = TcpAddress(ip, config.session_id, config.nak_port)
        elif options.transport == "lbtipc":
            self._open_lbtipc(core, config)
            self.address = LbtipcAddress(host_id(), config.session_id, config.nak_port)
        elif options.transport == "lbtru":
            self._open_lbtru(core, config)
            self.address = LbtruAddress(ip, config.session_id, config.nak_port)
        else:
            if is_ipv6(place.group):
                ip, datagram_bytes = core.ipv6_address(place.group), core.ipv6_datagram_bytes
            self._open_lbtrm(core, config)
            self.address = LbtrmAddress(ip, place.group, config.session_id, place.port, config.nak_port)
        self._memory = LogMemory(self.handle)
        self.datagram_max_bytes = int(config.datagram_max_bytes)
        """The longest datagram that the session has space for; its path may carry less."""
        lib.um_publication_session_limit_datagram(self.handle, datagram_bytes)
        self.name = transport_name(self.address)

    def _open_lbtrm(self, core: CoreContext, config: Any) -> None:
        config.transport = lib.UM_TRANSPORT_LBTRM
        config.group.ip = core_ip(self.place.group)
        config.group.port = self.place.port
        if config.flow_policy != lib.UM_FLOW_NONE:
            config.flow_cookie = SystemRandom().getrandbits(63) + 1
        low, high = (
            core.options.transport_lbtrm_source_port_low,
            core.options.transport_lbtrm_source_port_high,
        )
        result = self._open(core, config, low, high)
        if result == -errno.EADDRINUSE:
            result = self._open(core, config, 0, 0)
            _warn_of_port("UDP", "transport_lbtrm_source_port", low, high, config.nak_port)
        core.check(result, f"transport session on {named(self.place.group, self.place.port)}")

    def _open_lbtru(self, core: CoreContext, config: Any) -> None:
        options = self.options
        check_lbtru_interface(core, options.transport_lbtru_interface)
        config.transport = lib.UM_TRANSPORT_LBTRU
        if not options.transport_lbtru_use_session_id:
            config.session_id = 0
        config.client_capacity = options.transport_lbtru_maximum_clients
        config.client_buckets = options.transport_lbtru_client_map_size
        config.client_timeout_ns = options.transport_lbtru_client_activity_timeout_ns
        config.has_filter = options.transport_source_side_filtering_behavior == "inclusion"
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
        result = int(lib.um_publication_session_open(core.handle, config, low, high, handle))
        self.handle = handle[0]
        return result

    def adopt_address(self) -> bool:
        """Adopt the address of the core's session. Returns true if it has changed."""
        local = lib.um_publication_session_local(self.handle)
        source_ip = ip_text(local.ip)
        if not isinstance(self.address, LbtrmAddress) or source_ip == self.address.source_ip:
            return False
        self.address = self.address._replace(source_ip=source_ip, nak_port=local.port)
        self.name = transport_name(self.address)
        return True

    def follow_clock(self, core: CoreContext) -> bool:
        """With keys, begin the session again if the clock was set back. Returns true if its address has changed."""
        session_id = SystemRandom().randrange(1, 2**32)
        result = lib.um_publication_session_follow_clock(self.handle, session_id)
        if not core.check(result, f"new session of {self.name}"):
            return False
        self.address = self.address._replace(session_id=session_id)
        self.name = transport_name(self.address)
        return True

    def _open_tcp(self, core: CoreContext, config: Any, *, ephemeral: bool) -> None:
        options = self.options
        config.transport = lib.UM_TRANSPORT_TCP
        if not options.transport_tcp_use_session_id:
            config.session_id = 0
        self._fill_stream(config, core.options.transport_tcp_datagram_max_size_bytes)
        tcp = ffi.new("um_tcp_source_config *")
        tcp.interface_ip = int(ipaddress.IPv4Address(core.interface.address or "0.0.0.0"))
        tcp.traffic_class = core.options.traffic_class
        tcp.port_low = self.place.port or core.options.transport_tcp_port_low
        tcp.port_high = self.place.port or core.options.transport_tcp_port_high
        tcp.listen_backlog = options.transport_tcp_listen_backlog
        tcp.send_buffer_bytes = options.transport_tcp_sender_socket_buffer_bytes
        tcp.backlog_bytes = options.transport_session_maximum_buffer_bytes
        tcp.is_source_paced = options.transport_tcp_multiple_receiver_behavior == "source_paced"
        tcp.has_filter = options.transport_source_side_filtering_behavior == "inclusion"
        tcp.no_delay = options.transport_tcp_nodelay
        tcp.wants_session_id = options.transport_tcp_use_session_id
        tcp.activity_timeout_ns = options.transport_tcp_activity_timeout_ns
        tcp.stall_timeout_ns = options.flow_control_stall_timeout_ns
        handle = ffi.new("um_publication_session **")
        low, high = tcp.port_low, tcp.port_high
        result = lib.um_publication_session_open_tcp(core.handle, config, tcp, handle)
        if result == -errno.EADDRINUSE and ephemeral:
            tcp.port_low = tcp.port_high = 0
            result = lib.um_publication_session_open_tcp(core.handle, config, tcp, handle)
            _warn_of_port("TCP", "transport_tcp_port", low, high, config.nak_port)
        core.check(result, f"session over TCP, ports {low}-{high}")
        self.handle = handle[0]

    def _open_lbtipc(self, core: CoreContext, config: Any) -> None:
        options = self.options
        if config.key_set:
            raise OptionError(
                "messages over lbtipc carry no tags, and the topic has keys",
                hint="leave the topic's keys out, or use lbtrm, lbtru or tcp",
            )
        config.transport = lib.UM_TRANSPORT_LBTIPC
        self._fill_stream(config, core.options.transport_lbtipc_datagram_max_size_bytes)
        ipc = ffi.new("um_ipc_source_config *")
        window = max(options.transport_lbtipc_transmission_window_size_bytes, lib.UM_SHARED_CAPACITY_MIN)
        ipc.capacity_bytes = -(-window // _SHARED_CAPACITY_STEP_BYTES) * _SHARED_CAPACITY_STEP_BYTES
        ipc.transport_id = self.place.port
        ipc.key = self.log_key
        ipc.receivers_max = options.transport_lbtipc_maximum_receivers_per_transport
        ipc.is_source_paced = options.transport_lbtipc_behavior == "source_paced"
        ipc.sm_interval_ns = options.transport_lbtipc_sm_interval_ns
        ipc.stall_timeout_ns = options.flow_control_stall_timeout_ns
        handle = ffi.new("um_publication_session **")
        result = lib.um_publication_session_open_ipc(core.handle, config, ipc, handle)
        core.check(result, f"session over LBT-IPC, transport id {self.place.port}")
        self.handle = handle[0]

    def _fill_stream(self, config: Any, datagram_max_bytes: int) -> None:
        """Set the sizes of a session over TCP or LBT-IPC, and that it sends no session messages of LBT-RM."""
        size = datagram_max_bytes + lib.UM_LBTRM_DATA_BYTES
        config.datagram_max_bytes = size
        config.coalesce_threshold = self.options.transport_lbtrm_coalesce_threshold
        config.term_length = config.window_bytes = _term_bytes(
            max(_STREAM_TERM_BYTES, _LONGEST_MESSAGES_PER_TERM * self.message_max_bytes), size
        )
        config.publication_window_bytes = _STREAM_PUBLICATION_WINDOW_BYTES
        config.sm_minimum_interval_ns = config.sm_maximum_interval_ns = NEVER_NS

    def disown(self) -> None:
        """Leave the memory alone, in a forked child."""
        self._memory.disown()


class SessionPool:
    """The source sessions of a context and the rule that maps sources to them (UX-10)."""

    __slots__ = ("_core", "_listing", "_next", "_next_unicast", "sessions")

    def __init__(self, core: CoreContext, listing: AbstractContextManager[Any]) -> None:
        """Create it. `listing` is held while a session is removed, so the statistics can walk sessions under it."""
        self._core = core
        self._listing = listing
        self._next = 0
        self._next_unicast = 0
        self.sessions: list[SourceSession] = []

    def acquire(self, options: SourceOptions, key_set: int = 0) -> SourceSession:
        """Return the session for a new source, opened if necessary. release() undoes it.

        A source with a session name gets the session of that name. A source with an explicit group and port gets the
        session there; that session joins the pool only if its group is one of the pool's. A session at an explicit
        port of LBT-RU or TCP always joins the pool. Any other source gets the next session of the pool: first those
        not active yet, then all of them in turn. Sources whose topics have different keys never share a session.
        Options of the source that differ from those of an existing session are logged.
        """
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

    def open_own(self, options: SourceOptions, message_max_bytes: int = 0) -> SourceSession:
        """Open an LBT-IPC session that no other source joins, at transport id 0. release() ends it.

        Its log admits only receivers that have the session's `log_key`, which the caller hands out, and takes messages
        of `message_max_bytes`, or 512 KiB if that is more.
        """
        key = SystemRandom().randrange(1, 2**64)
        session = SourceSession(
            self._core, Place("", 0), options, 0, log_key=key, message_max_bytes=message_max_bytes
        )
        session.source_count = 1
        with self._listing:
            self.sessions.append(session)
        return session

    def _peers(self, options: SourceOptions, key_set: int) -> list[SourceSession]:
        """Return the sessions that match a source's transport, keys and session name."""
        return [
            one
            for one in self.sessions
            if one.key_set == key_set
            and one.options.transport == options.transport
            and one.options.transport_session_name == options.transport_session_name
        ]

    def _existing(self, options: SourceOptions, key_set: int) -> SourceSession | Place:
        """Return the session for a source, or the place at which to open one."""
        peers = self._peers(options, key_set)
        if options.transport_session_name != _UNNAMED and peers:
            return _check_named(peers[0], options)
        if options.transport == "lbtru":
            most = self._core.options.transport_lbtru_maximum_ports
            return self._existing_at_port(options, peers, options.transport_lbtru_port, most)
        if options.transport == "tcp":
            most = self._core.options.transport_tcp_maximum_ports
            return self._existing_at_port(options, peers, options.transport_tcp_port, most)
        if options.transport == "lbtipc":
            return self._existing_in_memory(options, peers)
        explicit, port = options.transport_lbtrm_multicast_address, options.transport_lbtrm_destination_port
        place = Place(explicit if explicit != "0.0.0.0" else self._next_group(peers, port), port)
        return next((s for s in peers if s.place == place), place)

    def follow_interface(self) -> dict[TransportAddress, TransportAddress]:
        """Adopt the addresses that the core has moved sessions to. Returns each new address by the former one."""
        moved = {}
        for session in self.sessions:
            former = session.address
            if session.adopt_address():
                moved[former] = session.address
        return moved

    def follow_clock(self) -> dict[TransportAddress, TransportAddress]:
        """Begin sessions with keys again if the clock was set back. Returns each new address by the former one."""
        moved = {}
        for session in [one for one in self.sessions if one.key_set]:
            former = session.address
            if session.follow_clock(self._core):
                moved[former] = session.address
        return moved

    def _existing_at_port(
        self, options: SourceOptions, peers: list[SourceSession], port: int, most: int
    ) -> SourceSession | Place:
        """Return the session of a unicast transport at the port, or the next of the pool, or the place for one."""
        if port != 0:
            return next((s for s in peers if port in (s.place.port, _port_of(s))), Place("", port))
        count = sum(s.options.transport == options.transport for s in self.sessions)
        if not peers or count < most:
            return Place("", 0)
        return self._next_of(peers)

    def _existing_in_memory(
        self, options: SourceOptions, peers: list[SourceSession]
    ) -> SourceSession | Place:
        """Return the LBT-IPC session with the transport id, or the next of the pool, or the place for one."""
        explicit = options.transport_lbtipc_id
        if explicit != 0:
            return next((s for s in peers if s.place.port == explicit), Place("", explicit))
        low, high = self._core.options.transport_lbtipc_id_low, self._core.options.transport_lbtipc_id_high
        pool = [one for one in peers if low <= one.place.port <= high]  # without those of open_own()
        active = {one.place.port for one in pool}
        unused = next((number for number in range(low, high + 1) if number not in active), None)
        return self._next_of(pool) if unused is None else Place("", unused)

    def _next_of(self, peers: list[SourceSession]) -> SourceSession:
        self._next_unicast += 1
        return peers[self._next_unicast % len(peers)]

    def _open(self, place: Place, options: SourceOptions, key_set: int) -> SourceSession:
        """Open a session at a place. If all ports of the pool are in use, return the pool's sessions in turn."""
        peers = self._peers(options, key_set)
        ephemeral = place == Place("", 0) and not peers
        try:
            session = SourceSession(self._core, place, options, key_set, ephemeral=ephemeral)
        except UmError as error:
            if error.errno != errno.EADDRINUSE or place != Place("", 0) or not peers:
                raise
            return self._next_of(peers)
        self.sessions.append(session)
        return session

    def release(self, session: SourceSession) -> None:
        """Remove one source from the session. The last one ends the session and its retransmissions (UM-90)."""
        with self._core.lifecycle:
            if self._core.closed:
                return  # closing the core ends every session
            session.source_count -= 1
            if session.source_count == 0:
                with self._listing:
                    self.sessions.remove(session)
                lib.um_publication_session_shut(session.handle)

    def _next_group(self, peers: list[SourceSession], port: int) -> str:
        low = ipaddress.ip_address(self._core.options.transport_lbtrm_multicast_address_low)
        high = ipaddress.ip_address(self._core.options.transport_lbtrm_multicast_address_high)
        size = int(high) - int(low) + 1  # at least 1: the options were checked
        active = {s.place.group for s in peers if s.place.port == port}
        in_turn = [str(low + (self._next + step) % size) for step in range(min(size, len(active) + 1))]
        step = next((step for step, group in enumerate(in_turn) if group not in active), 0)
        self._next = (self._next + step + 1) % size
        return in_turn[step]


def _warn_of_port(protocol: str, options: str, low: int, high: int, port: int) -> None:
    _records.write(
        options,
        logging.WARNING,
        "every %s port of %s_low to %s_high (%d-%d) is taken: a session uses port %d, which a firewall may not let "
        "through",
        protocol,
        options,
        options,
        low,
        high,
        port,
    )


def _port_of(session: SourceSession) -> int:
    address = session.address
    if isinstance(address, LbtipcAddress):
        return address.transport_id
    return address.nak_port if isinstance(address, LbtrmAddress) else address.source_port


def _check_named(session: SourceSession, options: SourceOptions) -> SourceSession:
    """Return the named session. Raises OptionError if the source requires another place for it."""
    if options.transport != "lbtrm":
        kind, port = {
            "tcp": ("TCP port", options.transport_tcp_port),
            "lbtru": ("UDP port", options.transport_lbtru_port),
            "lbtipc": ("transport id", options.transport_lbtipc_id),
        }[options.transport]
        is_there = port in (0, _port_of(session))
        where = f"at {kind} {_port_of(session)}"
    else:
        explicit, port = options.transport_lbtrm_multicast_address, options.transport_lbtrm_destination_port
        is_there = explicit in ("0.0.0.0", session.place.group) and port == session.place.port
        where = f"on {named(session.place.group, session.place.port)}"
    if not is_there:
        raise OptionError(
            f"transport session {options.transport_session_name!r} is {where}",
            hint="name another session, or leave group and port as they are",
        )
    return session
