"""StoreServer: one Store on a thread of the caller. It receives as any subscriber does, writes, and serves clients.

One thread: receive what has arrived, commit it, acknowledge it, serve the clients. While a commit waits for the disk,
the context's threads receive into the queue.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from umstack._engine.endpoint import Endpoint
from umstack.context import Context
from umstack.errors import OptionError
from umstack.events import Message
from umstack.key_file import Key
from umstack.receiver import Receiver
from umstack.repeated_records import RepeatedRecords
from umstack.store.protocol import StoreLimits, StoreSide, encode_data
from umstack.store.repository import DiskFull, Repository, RepositorySettings
from umstack.store.wire import MalformedMessage, StoreStream

_FRAGMENT_FLAG = 4
_POLL_ROWS = 4096
_OUTPUT_BYTES = 1 << 20
_WAIT_SECONDS = 0.05
"""Pause without events, after which joined sessions and times are checked."""
_WRITE_ACKS_NS = 100_000_000
_IDLE_NS = 30_000_000_000
"""Time without bytes from a client after which its connection is ended."""


class NoKeys:
    """No keys: connections to Stores do not have any yet."""

    def has(self, key: Key) -> bool:
        """Return false."""
        del key
        return False

    def find(self, is_meant: Callable[[Key], bool]) -> Key | None:
        """Return None."""
        del is_meant
        return None


class _Client:
    """A client's connection."""

    def __init__(self, peer: socket.socket, endpoint: Endpoint, now_ns: int) -> None:
        self.peer = peer
        self.stream = StoreStream(endpoint, NoKeys(), _OUTPUT_BYTES, is_store=True)
        self.active_ns = now_ns


class StoreServer:
    """A Store: keeps the messages of the sources that register with it, until its repository drops them.

    Args:
        context: Context that receives; the caller closes it after the Store.
        directory: Directory of its repository, used by this Store only.
        listen: Address and TCP port for clients; port 0: any.
        settings: Sizes, limits and durability of the repository.
        connections_maximum: Maximum number of connected clients.
        limits: Limits of each connection.

    Raises:
        OptionError: The context has keys: connections of a Store are not authenticated yet.
        RepositoryError: The repository cannot be opened.
        OSError: The address is in use.

    Example:
        ```python
        with umstack.Context("lo") as ctx, StoreServer(ctx, "store", ("127.0.0.1", 0)) as store:
            print(store.endpoint)  # serve() keeps messages until another thread calls stop()
        ```
    """

    def __init__(
        self,
        context: Context,
        directory: str | Path,
        listen: tuple[str, int],
        settings: RepositorySettings | None = None,
        *,
        connections_maximum: int = 1024,
        limits: StoreLimits | None = None,
    ) -> None:
        if context.options.authentication_scope != "none":
            raise OptionError(
                "a Store cannot use keys: its connections would not be protected",
                hint="set authentication_scope none, and keep the Store's network closed",
            )
        self._connections_maximum = connections_maximum
        self._limits = limits or StoreLimits()
        self._clients: dict[int, _Client] = {}
        self._next_client = 0
        self._receivers: dict[str, Receiver] = {}
        self._log = RepeatedRecords(logging.getLogger(__name__))
        self._stopping = threading.Event()
        self._is_full = False
        """True: the disk had no space for a commit since the last reclaim."""
        self.refused_fragments = 0
        """Fragments of messages longer than a datagram, which a Store does not keep yet."""
        with contextlib.ExitStack() as opened:
            self._repository = opened.enter_context(Repository(directory, settings))
            self._listener = opened.enter_context(socket.create_server(listen, backlog=128))
            self._listener.setblocking(False)
            self.endpoint = Endpoint(*self._listener.getsockname()[:2])
            """Address at which clients connect."""
            self._context = context
            self._queue = opened.enter_context(context.event_queue())
            self._selector = opened.enter_context(selectors.DefaultSelector())
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            opened.callback(os.close, self._wake_fd)
            opened.callback(self._end_clients)
            opened.callback(self._close_receivers)
            for readable in (self._listener, self._queue, self._wake_fd):
                self._selector.register(readable, selectors.EVENT_READ)
            self.side = StoreSide(self._repository, self.endpoint, time.time_ns, self._joins, self._limits)
            """The protocol of this Store, with its counters."""
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Commit what has arrived and release everything. serve() must have returned."""
        self._opened.close()

    def stop(self) -> None:
        """Make serve() return soon. Any thread, and signal handlers."""
        self._stopping.set()
        os.eventfd_write(self._wake_fd, 1)

    def serve(self) -> None:
        """Receive, write and serve until stop() is called.

        Raises:
            RepositoryEnded: The disk failed: nothing more can be promised.
        """
        written_ns = time.monotonic_ns()
        while not self._stopping.is_set():
            is_idle = not self._receive()
            for key, _ in self._selector.select(_WAIT_SECONDS if is_idle and not self._queue.arm() else 0):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, int):
                    self._read(key.data)
            self._commit()
            self.side.tick()
            now_ns = time.monotonic_ns()
            if now_ns - written_ns >= _WRITE_ACKS_NS:
                written_ns = now_ns
                self.side.write_consumption()
                if self._repository.needs_reclaim or self._is_full:
                    self._is_full = False
                    self._repository.reclaim()
                self._end_idle(now_ns)
            for client in list(self._clients):
                self._write(client)
        self.side.write_consumption()

    def status(self) -> dict[str, Any]:
        """Return the Store's counters, by name."""
        return {
            **self.side.counters,
            "clients": len(self._clients),
            "topics": len(self._receivers),
            "staged_bytes": self._repository.staged_bytes,
            "refused_fragments": self.refused_fragments,
        }

    # Messages

    def _joins(self, topic: str, source: str) -> bool:
        receiver = self._receivers.get(topic)
        if receiver is None:
            receiver = self._context.receiver(topic, queue=self._queue, ordered_delivery=0)
            self._receivers[topic] = receiver
        return source in receiver.sources

    def _receive(self) -> bool:
        """Stage the messages that have arrived. Returns true if there were any."""
        batch = self._queue.poll(_POLL_ROWS, 0.0)
        for message in batch:
            if isinstance(message, Message):
                self._keep(message)
        return len(batch) > 0

    def _keep(self, message: Message) -> None:
        if message.flags & _FRAGMENT_FLAG:
            self.refused_fragments += 1
            return
        transport, _, rest = message.source.rpartition("[")
        topic_index = int(rest[:-1])
        data = encode_data(topic_index, message.sequence_number, message.data)
        while not self.side.data(transport, topic_index, data, message.received_ns):
            if not self._commit():
                return  # the disk is full: the source repeats the message

    def _commit(self) -> bool:
        """Commit what is staged and queue the acknowledgements. Returns false if the disk is full."""
        try:
            while (commit := self._repository.commit()) is not None:
                self.side.committed(commit)
        except DiskFull as error:
            self._is_full = True
            self._log.write(
                "full", logging.ERROR, "%s: messages are not acknowledged until there is space", error
            )
            return False
        return True

    # Clients

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            peer, _ = self._listener.accept()
            if len(self._clients) >= self._connections_maximum:
                peer.close()
                return
            peer.setblocking(False)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number, self._next_client = self._next_client, self._next_client + 1
            self._clients[number] = _Client(peer, self.endpoint, time.monotonic_ns())
            self.side.connected(number)
            self._selector.register(peer, selectors.EVENT_READ, number)

    def _read(self, number: int) -> None:
        client = self._clients[number]
        client.active_ns = time.monotonic_ns()
        try:
            if not client.stream.receive(client.peer):
                self._end(number)
                return
            for message in client.stream.messages():
                self.side.received(number, message)
        except (MalformedMessage, OSError) as error:
            self._log.write("client", logging.WARNING, "the connection of a client ended: %s", error)
            self._end(number)

    def _write(self, number: int) -> None:
        client = self._clients[number]
        try:
            client.stream.put(self.side.take_output(number, client.stream.free_bytes))
            if client.stream.waiting_bytes:
                client.stream.flush(client.peer)
        except OSError:
            self._end(number)
            return
        mask = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.stream.waiting_bytes else 0)
        if self._selector.get_key(client.peer).events != mask:
            self._selector.modify(client.peer, mask, number)

    def _end_idle(self, now_ns: int) -> None:
        for number, client in list(self._clients.items()):
            if now_ns - client.active_ns >= _IDLE_NS:
                self._end(number)

    def _end(self, number: int) -> None:
        client = self._clients.pop(number)
        self._selector.unregister(client.peer)
        client.peer.close()
        self.side.disconnected(number)

    def _close_receivers(self) -> None:
        for receiver in self._receivers.values():
            receiver.close()

    def _end_clients(self) -> None:
        for client in self._clients.values():
            client.peer.close()
        self._clients.clear()


__all__ = ["NoKeys", "StoreServer"]
