"""Relay: the resolution daemon. It sends each topic resolution datagram of a client to all other clients.

A client is an address that has sent a keepalive or anything else of topic resolution, and stays one until it has been
silent for the timeout. A keepalive is answered and not relayed. The daemon keeps no topics, so that another can take
over at any moment. What is no topic resolution is dropped.

A relayed datagram costs a system call for 64 clients (ffi/io/datagram_batch.h), and is checked in C: with a hundred
contexts a daemon sends a hundred times what it receives. When it cannot keep up it relays what it has not relayed for
five seconds, and passes over repeats: so nothing new waits behind them.

`Relay` is the table, without I/O; `RelayServer` is the socket and its loop.
"""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from umstack._core import ffi, lib
from umstack.errors import error_from_os
from umstack.resolution.codec import KEEPALIVE, Rejected, decode, record_counts
from umstack.resolution.datagrams import BATCH, ReceivedDatagrams
from umstack.resolution.repeats import RepeatedDatagrams
from xdp.closing import Closing

Address = tuple[str, int]
_NS_PER_S = 1_000_000_000
_REPEAT_NS = 5 * _NS_PER_S
_BUFFER_BYTES = 8 * 1024 * 1024
# Each with the option that goes past the system's limit, for the privileged.
_BUFFERS = ((33, socket.SO_RCVBUF), (32, socket.SO_SNDBUF))


@dataclass(slots=True)
class RelayCounters:
    """What a relay has done since it began."""

    datagrams_received: int = 0
    datagrams_relayed: int = 0
    queries: int = 0
    advertisements: int = 0
    keepalives: int = 0
    dropped_malformed: int = 0
    dropped_not_allowed: int = 0
    dropped_rate: int = 0
    dropped_repeated: int = 0
    clients_refused: int = 0
    clients_timed_out: int = 0
    send_failed: int = 0


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """Bounds of a relay. `networks` are those clients may be in; none: any."""

    networks: tuple[ipaddress.IPv4Network, ...] = ()
    clients_max: int = 4096
    client_timeout_s: float = 5.0
    client_datagrams_per_second: int = 2000


class _Client:
    __slots__ = ("allowance", "last_received_ns")

    def __init__(self, now_ns: int, allowance: float) -> None:
        self.last_received_ns = now_ns
        self.allowance = allowance


@dataclass(slots=True)
class _Known:
    """A datagram that was decoded, and when it was last relayed."""

    queries: int
    advertisements: int
    relayed_ns: int | None = None


class Fate(Enum):
    """What becomes of a datagram."""

    DROPPED = "dropped"
    ANSWERED = "answered"
    """By a keepalive, to the client that sent it."""
    RELAYED = "relayed"
    """To every other client."""


class Relay:
    """The table of clients. Not thread-safe; `now_ns` must never go back."""

    def __init__(self, policy: RelayPolicy) -> None:
        self._policy = policy
        self._clients: OrderedDict[Address, _Client] = OrderedDict()
        self._known: RepeatedDatagrams[_Known] = RepeatedDatagrams()
        self.counters = RelayCounters()
        self.change_count = 0
        """How often a client came or went."""

    @property
    def clients(self) -> list[Address]:
        """Those that are relayed to now."""
        return list(self._clients)

    def received(self, data: bytes, source: Address, now_ns: int, *, is_busy: bool = False) -> Fate:
        """Take in a datagram, and decide what becomes of it. `is_busy`: more have come than can be relayed."""
        counters = self.counters
        counters.datagrams_received += 1
        self._drop_silent(now_ns)
        if self._client(source, now_ns) is None:
            return Fate.DROPPED
        if data == KEEPALIVE:
            counters.keepalives += 1
            return Fate.ANSWERED
        known = self._known.find(data) or self._decoded(data)
        if known is None:
            counters.dropped_malformed += 1
            return Fate.DROPPED
        if is_busy and known.relayed_ns is not None and now_ns - known.relayed_ns < _REPEAT_NS:
            counters.dropped_repeated += 1
            return Fate.DROPPED
        known.relayed_ns = now_ns
        counters.queries += known.queries
        counters.advertisements += known.advertisements
        return Fate.RELAYED

    def _decoded(self, data: bytes) -> _Known | None:
        """What is in a datagram that was not received before; None when it is no topic resolution."""
        counts = record_counts(data)
        if counts is None and isinstance(decode(data), Rejected):
            return None
        known = _Known(*(counts or (0, 0)))
        self._known.remember(data, known)
        return known

    def _client(self, source: Address, now_ns: int) -> _Client | None:
        """The client that sent, a new one included; None when it may not, or not so much."""
        policy, counters = self._policy, self.counters
        rate = policy.client_datagrams_per_second
        client = self._clients.get(source)
        if client is None:
            if policy.networks and not any(
                ipaddress.IPv4Address(source[0]) in network for network in policy.networks
            ):
                counters.dropped_not_allowed += 1
                return None
            if len(self._clients) >= policy.clients_max:
                counters.clients_refused += 1
                return None
            client = self._clients[source] = _Client(now_ns, rate)
            self.change_count += 1
        client.allowance = min(rate, client.allowance + (now_ns - client.last_received_ns) * rate / _NS_PER_S)
        client.last_received_ns = now_ns
        self._clients.move_to_end(source)
        if client.allowance < 1:
            counters.dropped_rate += 1
            return None
        client.allowance -= 1
        return client

    def _drop_silent(self, now_ns: int) -> None:
        limit_ns = now_ns - int(self._policy.client_timeout_s * _NS_PER_S)
        while self._clients:
            address, client = next(iter(self._clients.items()))
            if client.last_received_ns > limit_ns:
                return
            del self._clients[address]
            self.change_count += 1
            self.counters.clients_timed_out += 1


class RelayServer(Closing):
    """A relay on a UDP socket. One thread serves; stop() may be called from any."""

    def __init__(self, address: Address, policy: RelayPolicy) -> None:
        """Bind; raises the UmError that tells why that cannot be."""
        self.relay = Relay(policy)
        self._stopping = False
        self._received = ReceivedDatagrams()
        self._addresses: Any = ffi.new("um_address[]", 0)
        self._positions: dict[Address, int] = {}
        self._changes_seen = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            for forced, plain in _BUFFERS:
                with contextlib.suppress(PermissionError):
                    self._socket.setsockopt(socket.SOL_SOCKET, forced, _BUFFER_BYTES)
                    continue
                self._socket.setsockopt(socket.SOL_SOCKET, plain, _BUFFER_BYTES)
            self._socket.bind(address)
        except OSError as error:
            self._socket.close()
            raise error_from_os(error, f"serving topic resolution at {address[0]}:{address[1]}") from error
        self.address: Address = self._socket.getsockname()

    def serve(self, on_pass: Callable[[], None] = lambda: None) -> None:
        """Relay until stop(); `on_pass` is called at least once a second."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            while not self._stopping:
                if selector.select(1.0):
                    self._pass()
                on_pass()

    def stop(self) -> None:
        """End serve() within a second."""
        self._stopping = True

    def _pass(self) -> None:
        try:
            received = list(self._received.take(self._socket))
        except OSError:
            return  # a client that has gone, and is forgotten when its time is over
        for data, source in received:
            fate = self.relay.received(data, source, time.monotonic_ns(), is_busy=len(received) == BATCH)
            if fate is Fate.RELAYED:
                self._relay(data, source)
            elif fate is Fate.ANSWERED:
                self._answer(source)

    def _answer(self, client: Address) -> None:
        try:
            self._socket.sendto(KEEPALIVE, client)
        except OSError:
            self.relay.counters.send_failed += 1

    def _relay(self, data: bytes, source: Address) -> None:
        """Send to all but the source. Topic resolution repeats itself: what a full buffer costs is said again."""
        if self._changes_seen != self.relay.change_count:
            self._list_clients()
        count = len(self._positions)
        sent = lib.um_datagram_fan_out(
            self._socket.fileno(), data, len(data), self._addresses, count, self._positions[source]
        )
        self.relay.counters.datagrams_relayed += sent
        self.relay.counters.send_failed += count - 1 - sent

    def _list_clients(self) -> None:
        clients = self.relay.clients
        self._addresses = ffi.new("um_address[]", len(clients))
        for entry, (ip, port) in zip(self._addresses, clients, strict=True):
            entry.ip, entry.port = int(ipaddress.IPv4Address(ip)), port
        self._positions = {client: number for number, client in enumerate(clients)}
        self._changes_seen = self.relay.change_count

    def stats(self) -> dict[str, int]:
        """The counters by name, and how many clients there are."""
        return {"clients": len(self.relay.clients), **asdict(self.relay.counters)}

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.close()
