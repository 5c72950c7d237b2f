"""Relay: the resolution daemon. It sends each topic resolution datagram of a client to all other clients.

A client is an address that has sent a keepalive or anything else of topic resolution, and stays one until it has been
silent for the timeout. A keepalive is answered and not relayed. The daemon keeps no topics, so that another can take
over at any moment. What is no topic resolution is dropped.

`Relay` is the table, without I/O; `RelayServer` is the socket and its loop.
"""

from __future__ import annotations

import contextlib
import ipaddress
import selectors
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from umstack.errors import error_from_os
from umstack.resolution.codec import KEEPALIVE, Rejected, decode
from umstack.sizing import UDP_PAYLOAD_MAXIMUM_BYTES
from xdp.closing import Closing

Address = tuple[str, int]
_NS_PER_S = 1_000_000_000
_BATCH = 256
_BUFFER_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class RelayCounters:
    """What a relay has done since it began."""

    datagrams_received: int = 0
    datagrams_relayed: int = 0
    keepalives: int = 0
    dropped_malformed: int = 0
    dropped_not_allowed: int = 0
    dropped_rate: int = 0
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


class Relay:
    """The table of clients. Not thread-safe; `now_ns` must never go back."""

    def __init__(self, policy: RelayPolicy) -> None:
        self._policy = policy
        self._clients: OrderedDict[Address, _Client] = OrderedDict()
        self.counters = RelayCounters()

    @property
    def clients(self) -> list[Address]:
        """Those that are relayed to now."""
        return list(self._clients)

    def received(self, data: bytes, source: Address, now_ns: int) -> list[tuple[bytes, Sequence[Address]]]:
        """Take in a datagram: what to send, and to whom."""
        self.counters.datagrams_received += 1
        self._drop_silent(now_ns)
        client = self._client(source, now_ns)
        if client is None:
            return []
        if data == KEEPALIVE:
            self.counters.keepalives += 1
            return [(KEEPALIVE, [source])]
        if isinstance(decode(data), Rejected):
            self.counters.dropped_malformed += 1
            return []
        others = [address for address in self._clients if address != source]
        self.counters.datagrams_relayed += len(others)
        return [(data, others)]

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
            self.counters.clients_timed_out += 1


class RelayServer(Closing):
    """A relay on a UDP socket. One thread serves; stop() may be called from any."""

    def __init__(self, address: Address, policy: RelayPolicy) -> None:
        """Bind; raises the UmError that tells why that cannot be."""
        self.relay = Relay(policy)
        self._stopping = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
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
        for _ in range(_BATCH):
            try:
                data, source = self._socket.recvfrom(UDP_PAYLOAD_MAXIMUM_BYTES)
            except (BlockingIOError, InterruptedError, ConnectionRefusedError):
                return
            for answer, destinations in self.relay.received(data, source, time.monotonic_ns()):
                for destination in destinations:
                    self._send(answer, destination)

    def _send(self, data: bytes, destination: Address) -> None:
        try:
            self._socket.sendto(data, destination)
        except OSError:
            # Topic resolution repeats itself: what a full buffer or a client that has gone costs is said again.
            self.relay.counters.send_failed += 1

    def stats(self) -> dict[str, int]:
        """The counters by name, and how many clients there are."""
        return {"clients": len(self.relay.clients), **asdict(self.relay.counters)}

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.close()
