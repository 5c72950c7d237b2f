"""StoreServer: one Store on a thread of the caller. It receives as any subscriber does, writes, and serves clients.

The caller's thread receives what has arrived, stages it, acknowledges what was committed, and serves the clients.
Another thread commits, so that a slow disk delays neither clients nor live messages.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from umstack._engine.endpoint import Endpoint
from umstack.context import Context
from umstack.receiver import Receiver
from umstack.store.commits import CommitThread
from umstack.store.connections import ClientConnections
from umstack.store.intake import Intake
from umstack.store.peer_copies import PeerCopies
from umstack.store.protocol import StoreLimits, StoreSide
from umstack.store.repository import DiskFull, Repository, RepositorySettings
from umstack.store.status import disk_levels, write_status
from umstack.telemetry.reading import ReportedStore

_POLL_ROWS = 4096
_WAIT_SECONDS = 0.05
"""Pause without events, after which joined sessions and times are checked."""
_TICK_NS = 20_000_000
"""Time between checks of the sources that wait until their sessions are joined."""
_WRITE_ACKS_NS = 100_000_000
_COPIES_NS = 1_000_000_000
"""Time between looks for messages that other Stores may have. A gap that is seen twice is not just a late message."""
_LIFETIMES_NS = 5_000_000_000
"""Time between checks of the lifetimes of clients."""


class StoreServer:
    """A Store: keeps the messages of the sources that register with it, until its repository drops them.

    Args:
        context: Context that receives; the caller closes it after the Store.
        directory: Directory of its repository, used by this Store only.
        listen: Address and TCP port for clients; port 0: any.
        settings: Sizes, limits and durability of the repository.
        connections_maximum: Maximum number of connected clients.
        limits: Limits of each connection.

    A topic with keys in the context's key file is registered and read only over connections with one of them.

    Raises:
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
        self._receivers: dict[str, Receiver] = {}
        self._ticked_ns = self._checked_ns = self._lifetimes_ns = self._copies_ns = 0
        self._missed: dict[int, tuple[tuple[int, int], ...]] = {}
        """Gaps of each source at the last look."""
        clock_offset_ns = time.time_ns() - time.monotonic_ns()

        def clock_ns() -> int:
            """Return the wall clock as it was at the start and time that passed since: lifetimes do not jump."""
            return clock_offset_ns + time.monotonic_ns()

        self._stopping = threading.Event()
        with contextlib.ExitStack() as opened:
            self._repository = opened.enter_context(Repository(directory, settings, wall_clock_ns=clock_ns))
            listener = opened.enter_context(socket.create_server(listen, backlog=1024))
            listener.setblocking(False)
            self.endpoint = Endpoint(*listener.getsockname()[:2])
            """Address at which clients connect."""
            self._context = context
            self._queue = opened.enter_context(context.event_queue())
            self._queue._memory.keeps_properties = True
            self._selector = opened.enter_context(selectors.DefaultSelector())
            self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            opened.callback(os.close, self._wake_fd)
            self._selector.register(self._queue, selectors.EVENT_READ, lambda _mask: None)
            self._selector.register(self._wake_fd, selectors.EVENT_READ, self._on_wake)
            self.side = StoreSide(self._repository, self.endpoint, clock_ns, self._joins, limits)
            """The protocol of this Store, with its counters."""
            self._intake = Intake(self.side)
            self._clients = ClientConnections(
                listener, self._selector, self.side, context._engine.keyring, connections_maximum
            )
            opened.callback(self._clients.close)
            opened.callback(self._close_receivers)
            self._commits = CommitThread(self._repository, self._wake)
            self._copies = PeerCopies(context._engine.keyring, self._wake)
            self._levels = self._read_levels()
            self.closed = False
            registry = context._engine.registry
            registry.add(self, ReportedStore(str(self._repository.directory), self.status))
            opened.callback(registry.remove, self)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Commit what has arrived and release everything. serve() must have returned."""
        self.closed = True
        self._opened.close()

    def stop(self) -> None:
        """Make serve() return soon. Any thread, and signal handlers."""
        self._stopping.set()
        self._wake()

    def serve(self) -> None:
        """Receive, write and serve until stop() is called. Once only.

        Raises:
            RepositoryEnded: The disk failed: nothing more can be promised.
        """
        self._commits.start()
        self._copies.start()
        try:
            while not self._stopping.is_set():
                self._step()
        finally:
            self._copies.stop()
            self._commits.stop()
        self._acknowledge()
        self.side.write_consumption()
        self._clients.write()
        self._write_status()

    def _step(self) -> None:
        is_busy = self._receive() or self._clients.has_work
        is_waiting = not is_busy and (self._intake.is_waiting or not self._queue.arm())
        ready = self._selector.select(_WAIT_SECONDS if is_waiting else 0)
        try:
            with self._repository.state.grouped():
                for key, mask in ready:
                    key.data(mask)
        except DiskFull:
            self._clients.end_all()  # what was answered is not on the disk: all register again
        self._copy()
        if self._repository.staged_bytes:
            self._commits.request()  # for messages of sessions, and for those that sources repeat to this Store
        self._acknowledge()
        now_ns = time.monotonic_ns()
        if now_ns - self._ticked_ns >= _TICK_NS:
            self._ticked_ns = now_ns
            self.side.tick()
        if now_ns - self._checked_ns >= _WRITE_ACKS_NS:
            self._checked_ns = now_ns
            with contextlib.suppress(DiskFull):  # lost acknowledgements of readers only cause duplicates
                self.side.write_consumption()
            self._clients.check_times(now_ns)
        if now_ns - self._lifetimes_ns >= _LIFETIMES_NS:
            self._lifetimes_ns = now_ns
            with contextlib.suppress(DiskFull), self._repository.state.grouped():
                self.side.check_lifetimes()
            self._write_status()
        self._clients.write()

    def _copy(self) -> None:
        """Stage what was copied from other Stores, and ask them for missing messages."""
        copies = self._copies
        while copies.found and self.side.copied(*copies.found[0]):
            copies.taken()
        while copies.ended and not copies.found:
            self.side.copied_all(copies.ended.popleft())
        now_ns = time.monotonic_ns()
        if now_ns - self._copies_ns >= _COPIES_NS:
            self._copies_ns = now_ns
            missing = list(self.side.missing())
            for one in missing:
                lasting = tuple(gap for gap in one.ranges if gap in self._missed.get(one.source, ()))
                if lasting and copies.request(one._replace(ranges=lasting), now_ns):
                    self.side.copying(one.source)
            self._missed = {one.source: one.ranges for one in missing}

    def status(self) -> dict[str, Any]:
        """Return the Store's counters, by name (docs/counters.md). Any thread."""
        return {
            **self.side.counters,
            **self._clients.counters,
            **self._commits.counters,
            **self._commits.times().summary(),
            **self._levels,
            "damaged_reads": self._repository.damage_count,
            "clients": len(self._clients),
            "topics": len(self._receivers),
            "staged_bytes": self._repository.staged_bytes,
        }

    def _read_levels(self) -> dict[str, int]:
        """Return what takes too long to be read at each scrape, or waits for the disk."""
        sources, receivers = self._repository.state.counts()
        messages, byte_count = self._repository.retained()
        return {
            "sources": sources,
            "receivers": receivers,
            "retained_messages": messages,
            "retained_bytes": byte_count,
            **disk_levels(self._repository.directory),
        }

    def _write_status(self) -> None:
        self._levels = self._read_levels()
        status = {**self.status(), "newest_sqns": self.side.newest_sqns()}
        with contextlib.suppress(OSError):  # on a full disk the file shows its age
            write_status(self._repository.directory, status)

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _on_wake(self, _mask: int) -> None:
        os.eventfd_read(self._wake_fd)

    def _acknowledge(self) -> None:
        for commit in self._commits.take():
            self.side.committed(commit)

    # Messages

    def _joins(self, topic: str, source: str) -> bool:
        receiver = self._receivers.get(topic)
        if receiver is None:
            receiver = self._context.receiver(topic, queue=self._queue, ordered_delivery=0)
            self._receivers[topic] = receiver
        return source in receiver.sources

    def _receive(self) -> bool:
        """Stage the messages that have arrived, as far as there is space. Returns true if any were."""
        if not self._intake.is_waiting:
            self._intake.take(self._queue.poll(_POLL_ROWS, 0.0))
        return self._intake.keep()

    def _close_receivers(self) -> None:
        for receiver in self._receivers.values():
            receiver.close()


__all__ = ["StoreServer"]
