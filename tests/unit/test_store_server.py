"""A Store and its clients' connections: keys, slow and idle clients, exhausted descriptors, and disks that fail."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from tests.unit.loopback import open_context
from tests.waiting import SECONDS, wait_for
from umstack._engine.endpoint import Endpoint
from umstack.cli import command
from umstack.config.keywords import SourceKeywords
from umstack.key_file import Key, read_key_file, write_new_key_file
from umstack.store.client import replay
from umstack.store.medium import SLOW_SYNC_NS, Medium
from umstack.store.protocol import StoreLimits
from umstack.store.protocol.store_receivers import StoreReceivers
from umstack.store.repository import DiskFull, Repository, RepositoryEnded, RepositorySettings
from umstack.store.repository.files import DiskFile
from umstack.store.server import StoreServer
from umstack.store.status import read_status
from umstack.store.wire import (
    Keepalive,
    KeepaliveSender,
    Registration,
    RegistrationError,
    RegistrationResponse,
    StoreStream,
    decode,
)
from umstack.store.wire.decoding import ControlMessage

SETTINGS = RepositorySettings(segment_bytes=1 << 20, staging_bytes=1 << 20)
FAST: SourceKeywords = {"ume_registration_interval": 300, "ume_message_stability_timeout": 100}


class Running:
    """A Store that serves on a thread of this process."""

    def __init__(self, store: StoreServer) -> None:
        self.store = store
        self.failure: RepositoryEnded | None = None
        self.thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        try:
            self.store.serve()
        except RepositoryEnded as error:
            self.failure = error

    def status(self, name: str) -> int:
        """A counter of the Store."""
        return int(self.store.status()[name])


@contextlib.contextmanager
def running(
    directory: Path, *, is_started: bool = True, options: dict[str, Any] | None = None, **arguments: Any
) -> Iterator[Running]:
    """Run a Store; the context has the options."""
    with (
        open_context(**options or {}) as context,
        StoreServer(context, directory, ("127.0.0.1", 0), SETTINGS, **arguments) as store,
    ):
        one = Running(store)
        if is_started:
            one.thread.start()
        try:
            yield one
        finally:
            store.stop()
            if one.thread.ident is not None:
                one.thread.join()


class OneKey:
    """A keyring of one key, or none."""

    def __init__(self, key: Key | None) -> None:
        self.key = key

    def has(self, key: Key) -> bool:
        """True if it is this key."""
        return key == self.key

    def find(self, is_meant: Callable[[Key], bool]) -> Key | None:
        """The key, if it is meant."""
        return self.key if self.key is not None and is_meant(self.key) else None


class Client:
    """A client's side of a connection to a Store."""

    def __init__(self, running: Running, key: Key | None = None) -> None:
        self.peer = socket.create_connection(running.store.endpoint, SECONDS)
        self.stream = StoreStream(running.store.endpoint, OneKey(key), 1 << 20, is_store=False, key=key)
        while key is not None and not self.stream.free_bytes:
            self.stream.flush(self.peer)
            if not self.stream.receive(self.peer):
                raise ConnectionError("the Store refused the greeting")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.peer.close()

    def send(self, *messages: bytes) -> None:
        """Send messages."""
        assert self.stream.put(b"".join(messages))
        self.stream.flush(self.peer)

    def answers(self, count: int) -> list[ControlMessage]:
        """The next control messages of the Store."""
        found: list[ControlMessage] = []
        while len(found) < count:
            assert self.stream.receive(self.peer), "the Store ended the connection"
            decoded = [decode(message) for message in self.stream.messages()]
            found += [message for message in decoded if message is not None]
        return found

    def register(self, topic: str) -> RegistrationResponse:
        """Register a source and return the answer."""
        self.send(source_of(topic))
        (answer,) = self.answers(1)
        assert isinstance(answer, RegistrationResponse)
        return answer

    def is_ended(self) -> bool:
        """True once the Store has ended the connection."""
        try:
            while self.peer.recv(1 << 16):
                pass
        except ConnectionError:
            pass
        return True


def source_of(topic: str, session_id: int = 7) -> bytes:
    return Registration(
        is_source=True, transport_index=0, topic_index=1, session_id=session_id, topic=topic
    ).encode()


KEEPALIVE = Keepalive(
    sender=KeepaliveSender.SOURCE,
    transport_index=0,
    topic_index=1,
    reg_id=0,
    store_index=0,
    needs_response=True,
).encode()


def test_a_topic_with_keys_needs_a_connection_with_one_of_them(tmp_path: Path) -> None:
    """Other topics do not; a key of another topic, or none in use, is refused."""
    file = tmp_path / "keys"
    write_new_key_file(file, ["orders", "trades"])
    keys = {pattern: found[0] for pattern, found in read_key_file(file).topics}
    options = {"authentication_scope": "all", "authentication_key_file": str(file)}
    with running(tmp_path / "store", options=options) as store:
        with Client(store) as plain:
            assert plain.register("orders").error is RegistrationError.CONFIGURATION
            reader = Registration(
                is_source=False, transport_index=0, topic_index=0, session_id=3, topic="orders"
            )
            plain.send(reader.encode())
            (answer,) = plain.answers(1)
            assert isinstance(answer, RegistrationResponse)
            assert answer.error is RegistrationError.CONFIGURATION
            assert plain.register("other").error is None
        with Client(store, keys["orders"]) as keyed:
            assert keyed.register("orders").error is None
            assert keyed.register("trades").error is RegistrationError.CONFIGURATION
            assert keyed.register("other").error is RegistrationError.CONFIGURATION
        with pytest.raises(ConnectionError):
            Client(store, Key(9, bytes(32)))
        wait_for(lambda: store.status("clients_unauthorized") == 1)


def test_a_store_without_free_descriptors_continues(tmp_path: Path) -> None:
    """Connected clients are served, and those that wait are once a descriptor is free."""
    with running(tmp_path) as store, Client(store) as first, socket.socket() as waiting:
        assert first.register("orders").error is None
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            waiting.connect(store.store.endpoint)
            wait_for(lambda: store.status("clients_refused") >= 1)
            assert first.register("trades").error is None
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wait_for(lambda: store.status("clients_accepted") == 2)


def test_a_client_that_does_not_read_is_ended(tmp_path: Path) -> None:
    """Before its answers take more memory than the limit."""
    with running(tmp_path, limits=StoreLimits(output_bytes=1000)) as store, Client(store) as client:
        client.send(*[KEEPALIVE] * 100)
        assert client.is_ended()
        wait_for(lambda: store.status("clients_slow") == 1)
        assert store.status("clients") == 0


def test_garbage_ends_only_its_connection(tmp_path: Path) -> None:
    """Also an incomplete message that never ends, while the limit of connections is not reached."""
    with running(tmp_path) as store, Client(store) as good, Client(store) as incomplete:
        incomplete.peer.send(KEEPALIVE[:10])
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x08\xff\x00\x03", os.urandom(1000) * 100):
            with Client(store) as bad, contextlib.suppress(ConnectionError):
                bad.peer.sendall(b"\x07" + garbage if garbage[0] == 0 else garbage)
                bad.peer.shutdown(socket.SHUT_WR)
                assert bad.is_ended()
        assert good.register("orders").error is None
        wait_for(lambda: store.status("clients") == 2)
        assert store.status("clients_malformed") >= 2


def test_connections_that_register_nothing_give_way(tmp_path: Path) -> None:
    """At the limit the oldest of them is replaced; registered clients stay, and new ones are then refused."""
    with running(tmp_path, connections_maximum=2) as store, Client(store) as first:
        assert first.register("orders").error is None
        with Client(store) as idle:
            wait_for(lambda: store.status("clients") == 2)
            time.sleep(0.25)
            with Client(store) as second:
                assert second.register("trades").error is None
                assert idle.is_ended()
        assert store.status("clients_idle") >= 1


def test_one_pass_accepts_many_clients_and_writes_only_to_those_with_output(tmp_path: Path) -> None:
    """Work grows with the events, not with the square of the clients."""
    count = 100
    with running(tmp_path, is_started=False) as store, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(Client(store)) for _ in range(count)]
        passes, writes = [], []
        select, take = store.store._selector.select, store.store.side.take_output

        def counted_select(timeout: float | None) -> list[Any]:
            passes.append(timeout)
            return select(timeout)

        def counted_take(connection: int, byte_count: int) -> bytes:
            writes.append(connection)
            return take(connection, byte_count)

        store.store._selector.select = counted_select  # type: ignore[method-assign, assignment]
        store.store.side.take_output = counted_take  # type: ignore[method-assign]
        store.thread.start()
        wait_for(lambda: store.status("clients_accepted") == count)
        assert len(passes) < count // 2
        for client in clients:
            assert client.register("orders").error is None
        assert len(writes) <= 3 * count


def test_requests_that_are_left_over_do_not_wait(tmp_path: Path) -> None:
    """The Store never pauses while a client has requests and its socket accepts more."""
    with running(tmp_path, is_started=False) as store, open_context() as context:
        pauses: list[int] = []
        select, server = store.store._selector.select, store.store

        def checked(timeout: float | None) -> list[Any]:
            if timeout:
                side, clients = server.side, server._clients._clients
                pauses.extend(
                    number
                    for number, client in clients.items()
                    if side.has_output(number) and not client.stream.waiting_bytes
                )
            return select(timeout)

        server._selector.select = checked  # type: ignore[method-assign, assignment]
        store.thread.start()
        sent = [bytes([number % 256]) * 1200 for number in range(4000)]
        with context.source("orders", store=[server.endpoint], session_id=7) as source:
            for data in sent:
                source.send(data)
            assert source.close(20) == []
        assert [message.data for message in replay("orders", server.endpoint, 3)] == sent
        assert pauses == []


def test_a_disk_that_stalls_delays_only_acknowledgements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients are answered, live receivers get everything, and the messages are stable when the disk continues.

    UP-1, UP-79, UP-86.
    """
    may_sync = threading.Event()
    may_sync.set()
    sync = DiskFile.sync

    def stalled(file: DiskFile) -> None:
        assert may_sync.wait(SECONDS)
        sync(file)

    monkeypatch.setattr(DiskFile, "sync", stalled)
    with running(tmp_path) as store, open_context() as context, Client(store) as client:
        live = context.receiver("orders")
        source = context.source("orders", store=[store.store.endpoint], session_id=7)
        live.wait_connected(timeout=SECONDS)
        may_sync.clear()
        source.send(b"first")
        assert live.receive(SECONDS) == b"first"
        client.send(KEEPALIVE)
        assert isinstance(client.answers(1)[0], Keepalive)
        assert source._side.unstable == [0]
        may_sync.set()
        assert source.close(SECONDS) == []


def test_a_full_disk_withholds_acknowledgements_until_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Store continues, and no message that was sent meanwhile is lost."""
    is_full = threading.Event()
    allocate = os.posix_fallocate

    def limited(descriptor: int, offset: int, length: int) -> None:
        if is_full.is_set():
            raise OSError(errno.ENOSPC, "planned")
        allocate(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    sent = [b"%04d" % number * 300 for number in range(1500)]  # more than a segment
    with running(tmp_path) as store, open_context() as context:
        source = context.source("orders", store=[store.store.endpoint], session_id=7, **FAST)
        source.send(sent[0])
        wait_for(lambda: not source._side.unstable)
        is_full.set()
        sender = threading.Thread(target=lambda: [source.send(data) for data in sent[1:]])
        sender.start()
        wait_for(lambda: store.store._commits.is_full)
        assert store.status("disk_full") > 0
        with Client(store) as client:
            assert client.register("trades").error is None  # its first registration writes nothing
        is_full.clear()
        sender.join()
        assert source.close(20) == []
        assert [message.data for message in replay("orders", store.store.endpoint, 3)] == sent


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_the_first_error_of_the_disk_ends_the_store(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages acknowledged before are read after a restart; nothing is acknowledged after it."""
    is_broken = threading.Event()

    def breaking(works: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            if is_broken.is_set():
                raise OSError(errno.EIO, "planned")
            works(*arguments)

        return call

    monkeypatch.setattr(DiskFile, operation, breaking(getattr(DiskFile, operation)))
    with open_context() as context:
        with running(tmp_path) as store:
            source = context.source("orders", store=[store.store.endpoint], session_id=7)
            source.send(b"kept")
            wait_for(lambda: not source._side.unstable)
            is_broken.set()
            source.send(b"not kept")
            store.thread.join(SECONDS)
            assert store.failure is not None
            assert store.failure.errno == errno.EIO
            assert store.status("disk_errors") == 1
            assert source.close(0) == [1]
        is_broken.clear()
    with running(tmp_path) as store:
        assert next(message.data for message in replay("orders", store.store.endpoint, 3)) == b"kept"


def test_receivers_that_register_at_once_share_syncs(tmp_path: Path) -> None:
    """A thousand of them over fifty connections are answered after far fewer transactions."""
    connections, each = 50, 20
    with running(tmp_path) as store, open_context() as context, contextlib.ExitStack() as opened:
        with context.source("orders", store=[store.store.endpoint], session_id=7) as source:
            source.send(b"first")
            assert source.close() == []
        statements: list[str] = []
        state = store.store._repository.state
        state._database.set_trace_callback(statements.append)
        reg_id = state.sources()[0].registration_id
        clients = [opened.enter_context(Client(store)) for _ in range(connections)]
        for at, client in enumerate(clients):
            client.send(
                *(
                    Registration(
                        is_source=False,
                        transport_index=0,
                        topic_index=0,
                        source_reg_id=reg_id,
                        session_id=1 + at * each + number,
                        topic="orders",
                    ).encode()
                    for number in range(each)
                )
            )
        answers = [answer for client in clients for answer in client.answers(each)]
        assert len({answer.reg_id for answer in answers if isinstance(answer, RegistrationResponse)}) == 1000
        assert len(state.receivers(0)) == 1000
        assert sum(statement == "COMMIT" for statement in statements) <= 2 * connections


def test_the_status_names_clients_and_how_far_they_are(tmp_path: Path) -> None:
    """While the Store runs and afterwards, as text and as JSON."""
    with running(tmp_path) as store, open_context() as context:
        with context.source("orders", store=[store.store.endpoint], session_id=7) as source:
            for _ in range(3):
                source.send(b"data")
            assert source.close() == []
        assert len(list(replay("orders", store.store.endpoint, 3))) == 3
        assert read_status(tmp_path)["is_running"]
    done = CliRunner().invoke(command, ["store", "status", str(tmp_path), "--json"])
    found = json.loads(done.output)
    assert not found["is_running"]
    assert found["counters"]["messages"] == 3
    (orders,) = found["sources"]
    assert (orders["topic"], orders["session_id"], orders["newest_sqn"]) == ("orders", 7, 2)
    (one,) = orders["receivers"]
    assert (one["session_id"], one["pacing"], one["acknowledged_sqn"]) == (3, "none", 2)
    lines = CliRunner().invoke(command, ["store", "status", str(tmp_path)]).output.splitlines()
    assert "not running, 1 segments" in lines[0]
    assert "source orders  session 7  newest 2" in lines[1]
    assert "receiver  session 3  acknowledged 2" in lines[2]


def test_the_doctor_measures_the_disk(tmp_path: Path) -> None:
    """A slow one and a network file system are named, each with a remedy."""
    line = ["doctor", "lo", "--store", str(tmp_path), "--json"]
    found = json.loads(CliRunner().invoke(command, line).output)["store"]
    assert 0 < found["sync_p50_ns"] <= found["sync_maximum_ns"]
    assert list(tmp_path.iterdir()) == []
    good = Medium("d", "ext4", 1, SLOW_SYNC_NS, SLOW_SYNC_NS)
    assert good.problems() == []
    assert [problem for problem, _ in replace(good, file_system="nfs4").problems()] == ["d is on nfs4"]
    assert "takes 20.0 ms" in replace(good, sync_p50_ns=SLOW_SYNC_NS + 1).problems()[0][0]


def test_acknowledgements_of_readers_wait_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are written once there is space, so that readers get nothing again."""
    with Repository(tmp_path) as repository:
        number = repository.register_source("orders", 1).number
        reader = repository.state.register_receiver(number, 2, now_ns=1).registration_id
        receivers = StoreReceivers(
            repository,
            Endpoint("127.0.0.1", 1),
            time.time_ns,
            cast("Any", None),
            cast("Any", None),
            cast("Any", None),
            lambda _transport, _index: None,
        )
        receivers._consumed[number, reader] = 5

        def refuse(*_: object) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as full:
            full.setattr(repository.state, "acknowledge", refuse)
            with pytest.raises(DiskFull):
                receivers.write_consumption()
        receivers.write_consumption()
        assert repository.state.receivers(number)[0].acknowledged_sqn == 5
