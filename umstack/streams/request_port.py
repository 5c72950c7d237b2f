"""RequestPort: the TCP port of a context for retransmission requests of receivers and responses of responders.

    accepted --first bytes--> LBMC message, greeting of responses: responses
                              other LBMC control: recovery
                              anything else: closed, malformed

The number of connections and their idle time are bounded. At the limit a new connection replaces an unproductive one.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
from collections import Counter
from enum import Enum
from typing import Protocol

from umstack._engine.endpoint import Endpoint
from umstack._engine.interface_addresses import interface_address
from umstack.config import ContextOptions
from umstack.errors import OptionError, ResourceLimit
from umstack.streams.counters import StreamCounters
from umstack.streams.loop import StreamLoop
from umstack.streams.tags import KIND_BYTES, StreamKind, kind_of, may_become_greeting

_log = logging.getLogger("umstack.requests")

_CONTROL = 8
_MESSAGE = 0
"""LBMC types of the first message of a connection."""


_PAUSE_NS = 100_000_000
IDLE_PEER_NS = 200_000_000
"""A peer that has sent nothing for this long may be replaced; legitimate peers send immediately."""


class PeerKind(Enum):
    """The purpose of a peer's connection."""

    RECOVERY = 1
    RESPONSES = 2


class PeerService(Protocol):
    """Serves one kind of peer. The loop's thread calls it."""

    def adopt(self, peer: socket.socket, now_ns: int) -> None:
        """Serve a connection from which nothing was read, or close it; the port no longer counts it."""

    def make_space(self, now_ns: int, newcomer_ip: str) -> bool:
        """End the least useful connection for one of this address, if that frees a slot of the port; return false
        otherwise."""

    @property
    def connection_count(self) -> int:
        """Number of connections that count towards the limit of the port."""


class RequestPort:
    """The port, and the connections of unknown kind. Used only by the loop's thread."""

    def __init__(
        self, options: ContextOptions, address: str, loop: StreamLoop, counters: StreamCounters
    ) -> None:
        """Open the first free port of the range. Raises ResourceLimit if none is free, OptionError, Closed."""
        if not options.request_tcp_bind_request_port:
            raise OptionError(
                "request_tcp_bind_request_port 0: there is no request port",
                hint="requests, late join and off-transport recovery need one: leave the option at 1",
            )
        self._counters = counters
        self._connections_max = options.recovery_connections_maximum
        self._idle_ns = options.recovery_idle_timeout_ns
        self._activity_ns = options.request_tcp_activity_timeout_ns
        self._nodelay = options.response_tcp_nodelay
        self._services: dict[PeerKind, PeerService] = {}
        self._unidentified: dict[socket.socket, tuple[int, str]] = {}
        """When each was accepted, and its address, the oldest first."""
        self._resume_ns = 0
        self._selector = loop.open()
        chosen = interface_address("request_tcp_interface", options.request_tcp_interface)
        self._listener = _listen(options, chosen or address)
        self.endpoint = Endpoint(*self._listener.getsockname())
        loop.submit(self._begin)
        loop.add_work(self._run)

    def serve(self, kind: PeerKind, service: PeerService) -> None:
        """Pass connections of this kind to a service. Any thread."""
        self._services[kind] = service

    def close(self) -> None:
        """Close the port and unassigned connections. The loop's thread has ended."""
        for peer in list(self._unidentified):
            self._drop(peer)
        with contextlib.suppress(KeyError):
            self._selector.unregister(self._listener)
        self._listener.close()

    # Connections

    def _begin(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _mask: int, now_ns: int) -> None:
        try:
            peer, (newcomer_ip, _) = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):
            return
        except OSError:  # no descriptor or memory is left, so wait until some is free
            self._counters.recovery_connections_refused += 1
            self._selector.unregister(self._listener)
            self._resume_ns = now_ns + _PAUSE_NS
            return
        if self._count() >= self._connections_max and not self._make_space(now_ns, newcomer_ip):
            self._counters.recovery_connections_refused += 1
            peer.close()
            return
        try:
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, self._nodelay)
            if self._activity_ns:
                keep_alive(peer, self._activity_ns)
        except OSError:
            peer.close()
            return
        self._unidentified[peer] = (now_ns, newcomer_ip)
        self._selector.register(peer, selectors.EVENT_READ, lambda _, at_ns: self._on_ready(peer, at_ns))
        self._count()

    def _count(self) -> int:
        """Return the number of connections that count towards the limit."""
        served = sum(service.connection_count for service in self._services.values())
        self._counters.recovery_connections = len(self._unidentified) + served
        return self._counters.recovery_connections

    def _make_space(self, now_ns: int, newcomer_ip: str) -> bool:
        """End the oldest unproductive connection, or of those that have sent nothing yet the oldest of the address that
        has the most, so that one host displaces its own; return false if there is none."""
        oldest = next(iter(self._unidentified), None)
        if oldest is not None and now_ns - self._unidentified[oldest][0] <= IDLE_PEER_NS:
            counts = Counter(ip for _, ip in self._unidentified.values())
            most_ip, most = max(counts.items(), key=lambda item: item[1])
            of_most = (one for one, (_, ip) in self._unidentified.items() if ip == most_ip)
            oldest = next(of_most) if most > counts[newcomer_ip] + 1 else None
        if oldest is not None:
            self._counters.recovery_connections_idle += 1
            self._drop(oldest)
            return True
        return any(service.make_space(now_ns, newcomer_ip) for service in self._services.values())

    def _on_ready(self, peer: socket.socket, now_ns: int) -> None:
        """Determine the kind of a peer from its first bytes.

        If too few bytes have arrived, wait for more or for the end of the stream.
        """
        try:
            first = peer.recv(KIND_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        is_short = bool(first) and may_become_greeting(first)
        if is_short and peer.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) < KIND_BYTES:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, KIND_BYTES)
            return
        kind = None if is_short else _kind_of(first)
        service = self._services.get(kind) if kind is not None else None
        if service is None:
            if first:
                self._counters.recovery_malformed += 1
                discard_received(peer)
            self._drop(peer)
            return
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        del self._unidentified[peer]
        self._selector.unregister(peer)
        service.adopt(peer, now_ns)
        self._count()

    def _drop(self, peer: socket.socket) -> None:
        del self._unidentified[peer]
        self._selector.unregister(peer)
        peer.close()
        self._count()

    def _run(self, now_ns: int) -> int | None:
        """End connections that have sent nothing; accept again after a pause. Returns when to call again."""
        self._count()
        if self._resume_ns:
            if now_ns < self._resume_ns:
                return self._resume_ns
            self._resume_ns = 0
            self._begin()
        for peer, (since_ns, _) in list(self._unidentified.items()):
            if now_ns - since_ns <= self._idle_ns:
                return now_ns + self._idle_ns // 4
            self._counters.recovery_connections_idle += 1
            self._drop(peer)
        return None


def _kind_of(first: bytes) -> PeerKind | None:
    """Return the purpose of a peer from its first bytes; None if unknown."""
    if first[:1] == bytes([_MESSAGE]) or kind_of(first) is StreamKind.RESPONSES:
        return PeerKind.RESPONSES
    return PeerKind.RECOVERY if first[:1] == bytes([_CONTROL]) else None


def discard_received(peer: socket.socket) -> None:
    """Read pending data so that closing ends the stream in order instead of resetting it."""
    with contextlib.suppress(OSError):
        peer.recv(1 << 16)


def keep_alive(peer: socket.socket, timeout_ns: int) -> None:
    """Make the kernel detect within about this time that the peer is gone (RFC 1122, 4.2.3.6)."""
    seconds = max(1, timeout_ns // 1_000_000_000)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, seconds // 2))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // 8))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)


def _listen(options: ContextOptions, address: str) -> socket.socket:
    one = options.request_tcp_port
    low, high = (one, one) if one else (options.request_tcp_port_low, options.request_tcp_port_high)
    ports = (one,) if one else (*range(low, high + 1), 0)
    for port in ports:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, options.request_tcp_reuseaddr)
            listener.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, options.traffic_class)
            listener.bind((address, port))
            listener.listen(options.request_tcp_listen_backlog)
            listener.setblocking(False)
        except OSError:
            listener.close()
        else:
            if port == 0:
                _log.warning(
                    "every TCP port of request_tcp_port_low to request_tcp_port_high (%d-%d) is taken: requests "
                    "arrive at port %d, which a firewall may not let through",
                    low,
                    high,
                    listener.getsockname()[1],
                )
            return listener
    raise ResourceLimit(
        f"no free TCP port for requests on {address}, {low}-{high}",
        hint="widen request_tcp_port_low and request_tcp_port_high",
    )


__all__ = [
    "IDLE_PEER_NS",
    "PeerKind",
    "PeerService",
    "RequestPort",
    "discard_received",
    "keep_alive",
]
