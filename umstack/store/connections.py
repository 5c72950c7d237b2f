"""ClientConnections: the TCP connections of a Store's clients. It accepts, reads, writes and ends them."""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time

from umstack._engine.endpoint import Endpoint
from umstack.repeated_records import RepeatedRecords
from umstack.store.protocol import StoreSide
from umstack.store.wire import MalformedMessage, StoreStream, TopicKeys
from umstack.streams.tags import TagRefused

_OUTPUT_BYTES = 1 << 20
_ACCEPTED_PER_PASS = 64
_PAUSE_NS = 100_000_000
"""Pause of accepting after the process had no descriptor left."""
_UNPRODUCTIVE_NS = 200_000_000
"""Age at which a connection that has registered nothing may be replaced: clients register at once."""
_IDLE_NS = 30_000_000_000
"""Time without bytes from a client after which its connection is ended."""


class _Client:
    """A client's connection."""

    def __init__(self, peer: socket.socket, stream: StoreStream, now_ns: int) -> None:
        self.peer = peer
        self.stream = stream
        self.accepted_ns = self.active_ns = now_ns


class ClientConnections:
    """The connections of a Store. One thread.

    At the limit a new connection replaces the oldest one that has registered nothing, or is refused.

    Args:
        listener: Listening socket; the caller closes it after the connections.
        selector: Its keys get a handler as data, which takes the ready events.
        side: The protocol.
        keys: Keys of the connections and of the topics.
        connections_maximum: Maximum number of connections.
    """

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        side: StoreSide,
        keys: TopicKeys,
        connections_maximum: int,
    ) -> None:
        self._listener = listener
        self._selector = selector
        self._side = side
        self._keys = keys
        self._connections_maximum = connections_maximum
        self._endpoint = Endpoint(*listener.getsockname()[:2])
        self._clients: dict[int, _Client] = {}
        self._unproductive: dict[int, None] = {}
        """Connections that have registered nothing, the oldest first."""
        self._writable: set[int] = set()
        """Connections with more output, whose sockets accept it."""
        self._next = 0
        self._resume_ns = 0
        """Time at which accepting continues; 0: it is not paused."""
        self._log = RepeatedRecords(logging.getLogger(__name__))
        self.counters = dict.fromkeys(
            (
                "clients_accepted",
                "clients_refused",
                "clients_ended",
                "clients_idle",
                "clients_malformed",
                "clients_unauthorized",
                "clients_slow",
            ),
            0,
        )
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def __len__(self) -> int:
        return len(self._clients)

    @property
    def has_work(self) -> bool:
        """True if output is left for a socket that accepts it."""
        return bool(self._writable)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.peer.close()
        self._clients.clear()

    def end_all(self) -> None:
        """End every connection: the clients register again."""
        for number in list(self._clients):
            self._end(number)

    def write(self) -> None:
        """Write to every connection that has output, as much as its socket accepts now."""
        for number in self._side.take_overfull():
            if number in self._clients:
                self._end(number, "clients_slow")
        ready = self._side.take_ready() | self._writable
        self._writable.clear()
        for number in ready:
            if number in self._clients:
                self._write(number)

    def check_times(self, now_ns: int) -> None:
        """End idle connections, and accept again after a pause."""
        for number, client in list(self._clients.items()):
            if now_ns - client.active_ns >= _IDLE_NS:
                self._end(number, "clients_idle")
        if self._resume_ns and now_ns >= self._resume_ns:
            self._resume_ns = 0
            self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    # Accepting

    def _accept(self, _mask: int) -> None:
        for _ in range(_ACCEPTED_PER_PASS):
            try:
                peer, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue  # it ended while it waited
            except OSError as error:
                # The process has no descriptor left: connected clients continue, and new ones wait in the kernel.
                self.counters["clients_refused"] += 1
                self._log.write("accept", logging.ERROR, "no client can connect now: %s", error)
                self._selector.unregister(self._listener)
                self._resume_ns = time.monotonic_ns() + _PAUSE_NS
                return
            self._adopt(peer, time.monotonic_ns())

    def _adopt(self, peer: socket.socket, now_ns: int) -> None:
        if len(self._clients) >= self._connections_maximum and not self._make_space(now_ns):
            self.counters["clients_refused"] += 1
            peer.close()
            return
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number, self._next = self._next, self._next + 1
        stream = StoreStream(self._endpoint, self._keys, _OUTPUT_BYTES, is_store=True)
        self._clients[number] = _Client(peer, stream, now_ns)
        self._unproductive[number] = None
        self.counters["clients_accepted"] += 1
        self._side.connected(number, lambda topic: stream.is_allowed(self._keys.keys_of(topic)))
        self._selector.register(peer, selectors.EVENT_READ, lambda mask: self._on_ready(number, mask))

    def _make_space(self, now_ns: int) -> bool:
        """End the oldest connection that has registered nothing in its time; return false if there is none."""
        oldest = next(iter(self._unproductive), None)
        if oldest is None or now_ns - self._clients[oldest].accepted_ns < _UNPRODUCTIVE_NS:
            return False
        self._end(oldest, "clients_idle")
        return True

    # Reading and writing

    def _on_ready(self, number: int, mask: int) -> None:
        if mask & selectors.EVENT_WRITE:
            self._writable.add(number)
        if mask & selectors.EVENT_READ:
            self._read(number)

    def _read(self, number: int) -> None:
        client = self._clients[number]
        client.active_ns = time.monotonic_ns()
        try:
            if not client.stream.receive(client.peer):
                self._end(number)
                return
            for message in client.stream.messages():
                self._side.received(number, message)
        except (MalformedMessage, OSError) as error:
            self._log.write("client", logging.WARNING, "the connection of a client ended: %s", error)
            with contextlib.suppress(OSError):
                client.stream.flush(client.peer)  # a refused key is answered
            kind = "clients_malformed" if isinstance(error, MalformedMessage) else "clients_ended"
            self._end(number, "clients_unauthorized" if isinstance(error, TagRefused) else kind)
            return
        if client.stream.waiting_bytes:
            self._writable.add(number)  # the answer to its greeting
        if number in self._unproductive and self._side.has_registered(number):
            del self._unproductive[number]

    def _write(self, number: int) -> None:
        client = self._clients[number]
        stream = client.stream
        try:
            stream.put(self._side.take_output(number, stream.free_bytes))
            stream.flush(client.peer)
        except OSError:
            self._end(number)
            return
        is_full = stream.waiting_bytes > 0
        if not is_full and self._side.has_output(number):
            self._writable.add(number)
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_full else 0)
        key = self._selector.get_key(client.peer)
        if key.events != mask:
            self._selector.modify(client.peer, mask, key.data)

    def _end(self, number: int, counter: str = "clients_ended") -> None:
        client = self._clients.pop(number)
        self._unproductive.pop(number, None)
        self._writable.discard(number)
        self.counters[counter] += 1
        self._selector.unregister(client.peer)
        client.peer.close()
        self._side.disconnected(number)


__all__ = ["ClientConnections"]
