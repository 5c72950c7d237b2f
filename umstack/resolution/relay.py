"""Relay: the resolution daemon. It forwards each topic resolution datagram of a client to all other clients.

A client is an address that has sent a keepalive with its cookie within the timeout. A cookie is a keyed hash of an
address. The daemon sends it to that address only, as a challenge in reply to a keepalive without it. So nobody can
subscribe another host, and a daemon, which ignores challenges and answers, never becomes a client of another daemon.
Keepalives are not relayed. The daemon stores no topics, so that another daemon can take over at any moment. Other
datagrams, and those of other addresses, are dropped.

Relaying a datagram takes one system call per 64 clients (ffi/io/datagram_batch.h), and C code checks it: with a
hundred contexts a daemon sends a hundred times what it receives. Under overload it relays only records that it has not
relayed for two seconds (ffi/core/resolution/relayed_records.h), packed into few datagrams, so that new records do not
wait behind repeated ones. A client may then receive its own records, as with multicast.

`Relay` is the table, without I/O; `RelayServer` is the socket and its loop.
"""

from __future__ import annotations

import contextlib
import ipaddress
import mmap
import selectors
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from hashlib import blake2b
from hmac import compare_digest
from itertools import islice
from random import SystemRandom
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.core_address import core_address
from umstack.errors import error_from_os
from umstack.resolution.codec import (
    COOKIE_BYTES,
    KEEPALIVE,
    KeepaliveKind,
    Rejected,
    decode,
    decode_keepalive,
    encode_keepalive,
    pack,
)
from umstack.resolution.datagrams import BATCH, ReceivedDatagrams
from umstack_xdp.closing import Closing

Address = tuple[str, int]
_NS_PER_S = 1_000_000_000
_REPEAT_NS = 2 * _NS_PER_S
_BUFFER_BYTES = 8 * 1024 * 1024
# Each option together with the privileged one that can exceed the system's limit.
_BUFFERS = ((33, socket.SO_RCVBUF), (32, socket.SO_SNDBUF))


@dataclass(slots=True)
class RelayCounters:
    """Counters of a relay since its start."""

    datagrams_received: int = 0
    datagrams_relayed: int = 0
    queries: int = 0
    advertisements: int = 0
    keepalives: int = 0
    challenges: int = 0
    dropped_malformed: int = 0
    dropped_not_allowed: int = 0
    dropped_unknown: int = 0
    dropped_rate: int = 0
    dropped_repeated: int = 0
    records_left_out: int = 0
    clients_refused: int = 0
    clients_timed_out: int = 0
    send_failed: int = 0


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """Bounds of a relay. `networks` restricts the addresses of clients; empty: any address."""

    networks: tuple[ipaddress.IPv4Network, ...] = ()
    clients_max: int = 4096
    address_clients_max: int = 256
    client_timeout_s: float = 5.0
    client_datagrams_per_second: int = 2000


class _Client:
    __slots__ = ("allowance", "charged_ns", "kept_ns")

    def __init__(self, now_ns: int, allowance: float) -> None:
        self.kept_ns = self.charged_ns = now_ns
        self.allowance = allowance


class Fate(Enum):
    """The treatment of a received datagram."""

    DROPPED = "dropped"
    ANSWERED = "answered"
    """Reply to the client with a keepalive."""
    CHALLENGED = "challenged"
    """Reply to the sender with its cookie."""
    RELAYED = "relayed"
    """Send to every other client."""


class Relay:
    """The table of clients. Not thread-safe; `now_ns` must not decrease."""

    def __init__(self, policy: RelayPolicy) -> None:
        self._policy = policy
        self._clients: OrderedDict[Address, _Client] = OrderedDict()
        self._clients_of: Counter[str] = Counter()
        self._cookie_key = SystemRandom().randbytes(32)
        self._memory: Any = ffi.from_buffer("uint8_t[]", mmap.mmap(-1, lib.um_relayed_records_footprint()))
        key = ffi.new("um_siphash_key *", [SystemRandom().getrandbits(64) for _ in range(2)])
        self._relayed: Any = lib.um_relayed_records_init(self._memory, key[0])
        self._part: Any = ffi.new("um_relayed_part *")
        self.counters = RelayCounters()
        self.change_count = 0
        """Number of clients added or removed so far."""

    @property
    def clients(self) -> list[Address]:
        """Return the current clients."""
        return list(self._clients)

    def received(self, data: bytes, source: Address, now_ns: int) -> Fate:
        """Account for a datagram, and return its treatment."""
        counters = self.counters
        counters.datagrams_received += 1
        self._drop_idle(now_ns)
        keepalive = (KeepaliveKind.RESPONSE, b"") if data == KEEPALIVE else decode_keepalive(data)
        if keepalive is None:
            return Fate.RELAYED if self._is_within_rate(source, now_ns) else Fate.DROPPED
        kind, cookie = keepalive
        if kind is not KeepaliveKind.RESPONSE:
            counters.dropped_unknown += 1
            return Fate.DROPPED
        if not self._is_allowed(source):
            return Fate.DROPPED
        if not compare_digest(cookie, self.cookie(source)):
            counters.challenges += 1
            return Fate.CHALLENGED
        if not self._keep(source, now_ns):
            return Fate.DROPPED
        counters.keepalives += 1
        return Fate.ANSWERED

    def cookie(self, address: Address) -> bytes:
        """Return the cookie of an address."""
        text = f"{address[0]}:{address[1]}".encode()
        return blake2b(text, key=self._cookie_key, digest_size=COOKIE_BYTES).digest()

    def is_relayable(self, data: bytes, source: Address, now_ns: int) -> bool:
        """Return true if this is a topic resolution datagram that may be relayed; its records then count as relayed."""
        counters, part = self.counters, self._part
        if self._take(data, source, now_ns, 0):
            counters.queries += part.query_count
            counters.advertisements += part.record_count - part.query_count
            return True
        if isinstance(decode(data), Rejected):
            counters.dropped_malformed += 1
            return False
        return True

    def condensed(self, datagrams: list[tuple[bytes, Address]], now_ns: int) -> list[bytes]:
        """Select what to relay under overload: records not relayed lately, packed into datagrams no longer than the
        received ones, and all datagrams without such records."""
        counters, part = self.counters, self._part
        queries: list[bytes] = []
        advertisements: list[bytes] = []
        others: list[bytes] = []
        for data, source in datagrams:
            if not self._take(data, source, now_ns, _REPEAT_NS) or part.has_packet_options:
                if self.is_relayable(data, source, now_ns):
                    others.append(data)
                continue
            counters.records_left_out += part.left_out_count
            counters.dropped_repeated += part.record_count == 0
            for number, place in enumerate(islice(part.records, part.record_count)):
                record = data[place.offset : place.offset + place.bytes]
                if number < part.query_count:
                    queries.append(record + b"\0")
                else:
                    advertisements.append(record)
        counters.queries += len(queries)
        counters.advertisements += len(advertisements)
        return others + pack(queries, advertisements, max((len(data) for data, _ in datagrams), default=0))

    def _take(self, data: bytes, source: Address, now_ns: int, repeat_ns: int) -> bool:
        client = int(ipaddress.IPv4Address(source[0])) << 16 | source[1]
        return bool(
            lib.um_relayed_records_take(self._relayed, data, len(data), client, now_ns, repeat_ns, self._part)
        )

    def _is_allowed(self, source: Address) -> bool:
        """Return true if the sender is a client, or may become one."""
        policy, counters = self._policy, self.counters
        if source in self._clients:
            return True
        if policy.networks and not any(
            ipaddress.IPv4Address(source[0]) in network for network in policy.networks
        ):
            counters.dropped_not_allowed += 1
            return False
        is_full = len(self._clients) >= policy.clients_max
        if is_full or self._clients_of[source[0]] >= policy.address_clients_max:
            counters.clients_refused += 1
            return False
        return True

    def _keep(self, source: Address, now_ns: int) -> bool:
        """Add or refresh a client that proved its address; return false if it exceeds its rate."""
        if source not in self._clients:
            self._clients[source] = _Client(now_ns, self._policy.client_datagrams_per_second)
            self._clients_of[source[0]] += 1
            self.change_count += 1
            lib.um_relayed_records_forget(self._relayed)  # the new client has received no record yet
        self._clients[source].kept_ns = now_ns
        self._clients.move_to_end(source)
        return self._is_within_rate(source, now_ns)

    def _is_within_rate(self, source: Address, now_ns: int) -> bool:
        """Charge a client for a datagram; return false if it exceeds its rate, or is no client."""
        client, rate = self._clients.get(source), self._policy.client_datagrams_per_second
        if client is None:
            self.counters.dropped_unknown += 1
            return False
        client.allowance = min(rate, client.allowance + (now_ns - client.charged_ns) * rate / _NS_PER_S)
        client.charged_ns = now_ns
        if client.allowance < 1:
            self.counters.dropped_rate += 1
            return False
        client.allowance -= 1
        return True

    def _drop_idle(self, now_ns: int) -> None:
        limit_ns = now_ns - int(self._policy.client_timeout_s * _NS_PER_S)
        while self._clients:
            address, client = next(iter(self._clients.items()))
            if client.kept_ns > limit_ns:
                return
            del self._clients[address]
            self._clients_of[address[0]] -= 1
            if not self._clients_of[address[0]]:
                del self._clients_of[address[0]]
            self.change_count += 1
            self.counters.clients_timed_out += 1


class RelayServer(Closing):
    """A relay on a UDP socket. One thread serves; any thread may call stop()."""

    def __init__(self, address: Address, policy: RelayPolicy) -> None:
        """Bind; raises a UmError with the reason on failure."""
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
        """Relay until stop(); call `on_pass` at least once per second."""
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
            return  # a client has gone; the timeout removes it
        now_ns = time.monotonic_ns()
        fates = [(data, source, self.relay.received(data, source, now_ns)) for data, source in received]
        relayed = [(data, source) for data, source, fate in fates if fate is Fate.RELAYED]
        for _, source, fate in fates:
            if fate in (Fate.ANSWERED, Fate.CHALLENGED):
                self._answer(source, fate)
        if len(received) == BATCH:
            for data in self.relay.condensed(relayed, now_ns):
                self._relay(data, None)
            return
        for data, source in relayed:
            if self.relay.is_relayable(data, source, now_ns):
                self._relay(data, source)

    def _answer(self, client: Address, fate: Fate) -> None:
        kind = KeepaliveKind.ANSWER if fate is Fate.ANSWERED else KeepaliveKind.CHALLENGE
        try:
            self._socket.sendto(encode_keepalive(kind, self.relay.cookie(client)), client)
        except OSError:
            self.relay.counters.send_failed += 1

    def _relay(self, data: bytes, source: Address | None) -> None:
        """Send to all clients except the origin. Records lost to a full buffer are repeated by their schedules."""
        if self._changes_seen != self.relay.change_count:
            self._list_clients()
        count = len(self._positions)
        left_out = self._positions.get(source, count) if source is not None else count
        sent = lib.um_datagram_fan_out(
            self._socket.fileno(), data, len(data), self._addresses, count, left_out
        )
        self.relay.counters.datagrams_relayed += sent
        self.relay.counters.send_failed += count - (left_out < count) - sent

    def _list_clients(self) -> None:
        clients = self.relay.clients
        self._addresses = ffi.new("um_address[]", len(clients))
        for entry, (ip, port) in zip(self._addresses, clients, strict=True):
            entry.ip, entry.port = core_address((ip, port))
        self._positions = {client: number for number, client in enumerate(clients)}
        self._changes_seen = self.relay.change_count

    def stats(self) -> dict[str, int]:
        """Return the counters by name, and the number of clients."""
        return {"clients": len(self.relay.clients), **asdict(self.relay.counters)}

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.close()
