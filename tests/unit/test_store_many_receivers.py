"""Ten thousand receivers that register at a Store at once, while a source of it sends on."""

from __future__ import annotations

import contextlib
import json
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tests.forked_processes import ForkedProcesses
from tests.unit.loopback import OWN_ADDRESSES, open_context
from umstack._engine.endpoint import Endpoint
from umstack.key_file import NO_KEYS
from umstack.persistence.reader_side import ReaderSide
from umstack.store.repository import Repository
from umstack.store.wire import StoreStream

RECEIVERS = 10_000
SECONDS = 120.0


class Client:
    """One receiver on its connection."""

    def __init__(self, store: Endpoint, session_id: int) -> None:
        self.side = ReaderSide("orders", session_id)
        self.stream = StoreStream.of_client(store, NO_KEYS, "orders", 1 << 16)
        self.peer = socket.create_connection(store)
        self.peer.setblocking(False)

    def exchange(self) -> None:
        """Send what is to be sent, and read what has arrived."""
        with contextlib.suppress(BlockingIOError):
            assert self.stream.receive(self.peer)
        for received in self.stream.messages():
            self.side.received(received, time.monotonic_ns())
        self.stream.put(self.side.take_output())
        self.stream.flush(self.peer)


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    """Allow a process, and those that it starts, one descriptor for each receiver."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, RECEIVERS + 1000), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_ten_thousand_receivers_register_at_once(tmp_path: Path) -> None:
    """Each gets a registration that the Store keeps, and messages become stable meanwhile. UP-14."""
    with (
        many_descriptors(),
        ForkedProcesses("tests.store_processes", json.dumps(OWN_ADDRESSES)) as processes,
        open_context() as publishing,
        contextlib.ExitStack() as closing,
    ):
        process, port = processes.start(f"{tmp_path} 0 {RECEIVERS + 10}")
        store = Endpoint("127.0.0.1", int(port))
        source = closing.enter_context(publishing.source("orders", store=[store], session_id=7))
        source.send(b"first", flush=True)
        assert source.wait_stable(SECONDS)
        selector = closing.enter_context(selectors.DefaultSelector())
        for session_id in range(1, RECEIVERS + 1):
            client = Client(store, session_id)
            closing.callback(client.peer.close)
            client.exchange()
            selector.register(client.peer, selectors.EVENT_READ, client)
        source.send(b"meanwhile", flush=True)
        waiting, deadline = RECEIVERS, time.monotonic() + SECONDS
        while waiting:
            assert time.monotonic() < deadline, f"{waiting} receivers have no registration"
            for key, _ in selector.select(1.0):
                client = key.data
                client.exchange()
                if client.side.is_registered:
                    selector.unregister(client.peer)
                    waiting -= 1
        assert source.wait_stable(SECONDS)
        process.end()
    with Repository(tmp_path) as repository:
        assert repository.state.counts() == (1, RECEIVERS)
