"""Keys on the request protocol: late join between contexts that have them, and what either side refuses.

The other side is tests/tag_oracle.py, which makes and checks tags without the product's code.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tag_oracle import TRAILER_BYTES, RecordStream
from tests.unit.keyed_peers import OTHER, SECRET, KeyedPeer, write_keys
from tests.unit.loopback import PORTS, open_context, recovery_server
from tests.unit.test_late_join import FAST, RETAINED, Peer, _message, _numbers, _range, _send
from tests.unit.ways import ITS_PEERS, from_own_link
from tests.waiting import SECONDS, wait_for
from umstack import Context, Source
from umstack._engine.endpoint import Endpoint
from umstack.recovery.codec import RangeRequest, encode_range_request, endpoint_option

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = ("alone",)
"""Most of these tests have peers of their own, which connect to the source itself."""

TOPIC = "keyed"


def _write_keys(file: Path, *keys: tuple[int, bytes]) -> None:
    write_keys(file, f"{TOPIC}*", *keys)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key file with key 7; topics of other names have none."""
    _write_keys(tmp_path / "keys", (7, SECRET))
    return tmp_path / "keys"


def _open(keys: Path, scope: str = "all", **options: Any) -> Context:
    return open_context(authentication_scope=scope, authentication_key_file=str(keys), **{**PORTS, **options})


@pytest.fixture
def publisher(keys: Path) -> Iterator[Context]:
    with _open(keys) as context:
        yield context


@pytest.fixture
def subscriber(keys: Path) -> Iterator[Context]:
    with _open(keys) as context:
        yield context


def _counted(context: Context, reason: str) -> int:
    return int(context.stats()["context"][f"recovery_dropped_tag_{reason}"])


class Asker(KeyedPeer):
    """A receiver of the request protocol with a key, or with one that is wrong."""

    def __init__(
        self, context: Context, source: Source, key_id: int = 7, secret: bytes = SECRET, topic: str = TOPIC
    ) -> None:
        endpoint = "127.0.0.1", recovery_server(context).endpoint.port
        tags = RecordStream(secret, key_id, topic, source.topic_index, is_server=False)
        super().__init__(socket.create_connection(endpoint, timeout=SECONDS), tags, endpoint)
        self.source = source

    def range_request(self) -> bytes:
        return encode_range_request(RangeRequest(self.source.topic_index, outstanding=10))


@pytest.fixture
def asked(publisher: Context) -> Iterator[Callable[..., Asker]]:
    """Makes receivers of a source with ten messages."""
    source = publisher.source(TOPIC, flow_control="none", **RETAINED)
    _send(source, 0, 10)
    askers: list[Asker] = []

    def make(**key: Any) -> Asker:
        askers.append(Asker(publisher, source, **key))
        return askers[-1]

    yield make
    for asker in askers:
        asker.close()


@from_own_link(ITS_PEERS)
@pytest.mark.parametrize("scope", ["control", "all"])
def test_a_late_join_with_keys(keys: Path, scope: str) -> None:
    """UM-136, UM-140: all of the past by tagged records, then the present; a topic without keys goes on without."""
    with _open(keys, scope) as publisher, _open(keys, scope) as subscriber:
        for topic in (TOPIC, "open"):
            source = publisher.source(topic, flow_control="none", **RETAINED)
            _send(source, 0, 20_000, size=100)
            receiver = subscriber.receiver(topic)
            numbers, others = _numbers(receiver, 20_000)
            _send(source, 20_000, 100)
            more, _ = _numbers(receiver, 100)
            assert numbers + more == list(range(20_100))
            assert not others
            assert receiver.stats()["late_join_messages"] > 10_000
        for context in (publisher, subscriber):
            assert not any(_counted(context, reason) for reason in ("missing", "key", "wrong", "replayed"))


@from_own_link(ITS_PEERS)
def test_topics_with_the_same_key_share_a_connection(keys: Path) -> None:
    """A connection has the tags of one key: topics with other keys, or without, have another one."""
    other = f"topic other* 8 {OTHER.hex()}\n"
    keys.write_text(keys.read_text() + other)
    topics = [f"{name}{n}" for name in (TOPIC, "other", "open") for n in range(3)]
    with _open(keys) as publisher, _open(keys) as subscriber:
        for topic in topics:
            _send(publisher.source(topic, flow_control="none", **RETAINED), 0, 20)
        for receiver in [subscriber.receiver(topic) for topic in topics]:
            assert _numbers(receiver, 20)[0] == list(range(20))
        assert publisher.stats()["context"]["recovery_connections"] == 3
        for context in (publisher, subscriber):
            assert not any(_counted(context, reason) for reason in ("missing", "key", "wrong", "replayed"))


def test_a_connection_does_not_serve_topics_of_other_keys(
    asked: Callable[..., Asker], publisher: Context
) -> None:
    """A receiver that has the key of one topic gets nothing of a topic without that key."""
    asker = asked()
    other = publisher.source("open", flow_control="none", **RETAINED)
    _send(other, 0, 10)
    asker.greet()
    asker.send(asker.tags.seal(asker.range_request()))
    assert asker.record()[:16] == _range(0, 9)[:16]
    asker.send(asker.tags.seal(encode_range_request(RangeRequest(other.topic_index, outstanding=10))))
    wait_for(lambda: _counted(publisher, "key"), "the refusal")


def test_what_a_source_answers_has_the_documented_tags(asked: Callable[..., Asker]) -> None:
    """Greeting, range and messages are each in a record as described in docs/authentication.md."""
    asker = asked()
    asker.greet()
    asker.send(asker.tags.seal(asker.range_request()))
    assert asker.record()[:16] == _range(0, 9)[:16]


def _without_tags(asker: Asker) -> None:
    asker.send(asker.range_request())


def _without_a_record(asker: Asker) -> None:
    asker.greet()
    asker.send(asker.range_request())


def _of_no_key(asker: Asker) -> None:
    asker.send(asker.tags.greeting)


def _wrong(asker: Asker) -> None:
    asker.greet()
    asker.send(asker.tags.seal(asker.range_request()))


def _changed(asker: Asker) -> None:
    asker.greet()
    record = bytearray(asker.tags.seal(asker.range_request()))
    record[-1] ^= 1
    asker.send(bytes(record))


def _twice(asker: Asker) -> None:
    asker.greet()
    record = asker.tags.seal(asker.range_request())
    asker.send(record)
    asker.record()
    asker.send(record)


def _with_one_left_out(asker: Asker) -> None:
    asker.greet()
    asker.tags.seal(asker.range_request())
    asker.send(asker.tags.seal(asker.range_request()))


def _before_the_first(asker: Asker) -> None:
    """The record one place before the first: all 64 bits of its number are set."""
    asker.greet()
    asker.tags.leave_out(2**64 - 1)
    asker.send(asker.tags.seal(asker.range_request()))


def _with_the_lower_half_only(asker: Asker) -> None:
    """A record with the same lower half of its number, whose nonce is that of a record 2^32 - 1 places later."""
    asker.greet()
    asker.tags.leave_out(2**32 - 1)
    asker.send(asker.tags.seal(asker.range_request()))


def _reflected(asker: Asker) -> None:
    asker.greet()
    asker.send(asker.tags.seal(asker.range_request()))
    asker.send(asker.raw_record())


@pytest.mark.parametrize(
    ("attack", "key", "reason"),
    [
        (_without_tags, {}, "missing"),
        (_without_a_record, {}, "missing"),
        (_of_no_key, {"key_id": 8}, "key"),
        (_wrong, {"secret": OTHER}, "wrong"),
        (_wrong, {"topic": "keyed.other"}, "wrong"),
        (_changed, {}, "wrong"),
        (_reflected, {}, "wrong"),
        (_twice, {}, "replayed"),
        (_with_one_left_out, {}, "replayed"),
        (_before_the_first, {}, "replayed"),
        (_with_the_lower_half_only, {}, "wrong"),
    ],
)
def test_a_source_ends_a_connection_without_the_right_tags(
    publisher: Context,
    asked: Callable[..., Asker],
    attack: Callable[[Asker], None],
    key: dict[str, Any],
    reason: str,
) -> None:
    """Whatever is not the next record of the connection ends it, and is counted by its reason."""
    asker = asked(**key)
    attack(asker)
    assert asker.is_ended()
    assert _counted(publisher, reason) == 1


def test_what_a_receiver_said_is_no_good_on_another_connection(
    publisher: Context, asked: Callable[..., Asker]
) -> None:
    """A recorded connection, sent again as it was, meets another nonce."""
    first = asked()
    first.greet()
    first.send(first.tags.seal(first.range_request()))
    first.record()
    second = asked()
    second.send(bytes(first.sent))
    wait_for(lambda: _counted(publisher, "wrong"), "the refusal")


def test_two_keys_are_accepted_until_the_old_one_is_removed(
    keys: Path, publisher: Context, asked: Callable[..., Asker]
) -> None:
    """Rotation: both keys at once; a connection with a key that is removed ends with its next record."""
    _write_keys(keys, (8, OTHER), (7, SECRET))
    wait_for(lambda: len(publisher._engine.keyring.keys_of(TOPIC)) == 2, "the new key")
    askers = [asked(), asked(key_id=8, secret=OTHER)]
    for asker in askers:
        asker.greet()
        asker.send(asker.tags.seal(asker.range_request()))
        asker.record()
    _write_keys(keys, (8, OTHER))
    wait_for(lambda: len(publisher._engine.keyring.keys_of(TOPIC)) == 1, "the end of the old key")
    for asker in askers:
        asker.send(asker.tags.seal(asker.range_request()))
    assert askers[0].is_ended()
    assert askers[1].record()
    assert _counted(publisher, "key") == 1


# Refused by a receiver: an advertisement of the source leads to a peer


@pytest.fixture
def led(publisher: Context, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Source]]:
    """Makes a source whose advertisement leads to a peer."""
    peers: list[Peer] = []

    def make(answer: Callable[[socket.socket, Peer], None]) -> Source:
        peer = Peer(publisher, answer)
        peers.append(peer)
        at = Endpoint("127.0.0.1", peer.listener.getsockname()[1])
        monkeypatch.setattr("umstack.context.endpoint_option", lambda _real: endpoint_option(at))
        return publisher.source(TOPIC, flow_control="none", **RETAINED)

    yield make
    for peer in peers:
        peer.close()


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError
        data += part
    return data


class Answerer:
    """A source of the request protocol, on one connection."""

    def __init__(self, connection: socket.socket, topic_index: int, secret: bytes = SECRET, key_id: int = 7):
        self.connection = connection
        self.tags = RecordStream(secret, key_id, TOPIC, topic_index, is_server=True)

    def greet(self) -> None:
        theirs = _read(self.connection, TRAILER_BYTES)
        self.connection.sendall(self.tags.greeting)
        self.tags.begin(theirs, self.connection.getsockname())

    def record(self) -> bytes:
        head = _read(self.connection, TRAILER_BYTES)
        return self.tags.opened(head + _read(self.connection, int.from_bytes(head[8:12])))

    def send(self, messages: bytes) -> bytes:
        record = self.tags.seal(messages)
        self.connection.sendall(record)
        return record


@from_own_link(ITS_PEERS)
def test_a_receiver_takes_what_is_tagged_right(led: Callable[..., Source], subscriber: Context) -> None:
    """UM-136: several records, whatever the pieces in which they come."""
    index = [0]

    def answer(connection: socket.socket, peer: Peer) -> None:
        answerer = Answerer(connection, index[0])
        answerer.greet()
        assert answerer.record()[:2] == b"\x08\x4e"
        answerer.send(_range(0, 5))
        answerer.record()
        pieces = [
            answerer.tags.seal(b"".join(_message(index[0], n, b"%d" % n) for n in pair))
            for pair in ((0, 1), (2, 3), (4, 5))
        ]
        for byte in b"".join(pieces[:2]):
            connection.sendall(bytes([byte]))
        connection.sendall(pieces[2])
        peer.done.wait(SECONDS)

    source = led(answer)
    index[0] = source.topic_index
    receiver = subscriber.receiver(TOPIC, retransmit_request_maximum=6)
    assert _numbers(receiver, 6)[0] == list(range(6))


def _untagged_answer(answerer: Answerer, _earlier: list[bytes]) -> None:
    answerer.connection.sendall(_range(0, 5) + _message(1, 0, b"0"))


def _answer_of_another_key(answerer: Answerer, _earlier: list[bytes]) -> None:
    answerer.greet()


def _wrong_answer(answerer: Answerer, _earlier: list[bytes]) -> None:
    answerer.greet()
    answerer.send(_range(0, 5))


def _replayed_record(answerer: Answerer, _earlier: list[bytes]) -> None:
    answerer.greet()
    answerer.connection.sendall(answerer.send(_range(0, 5)))


def _replayed_connection(answerer: Answerer, earlier: list[bytes]) -> None:
    if not earlier:
        answerer.greet()
        earlier += [answerer.tags.greeting, answerer.send(_range(0, 5))]
    else:
        _read(answerer.connection, TRAILER_BYTES)
        answerer.connection.sendall(b"".join(earlier))


@from_own_link(ITS_PEERS)
@pytest.mark.parametrize(
    ("attack", "key", "reason"),
    [
        (_untagged_answer, {}, "missing"),
        (_answer_of_another_key, {"key_id": 8}, "key"),
        (_wrong_answer, {"secret": OTHER}, "wrong"),
        (_replayed_record, {}, "replayed"),
        (_replayed_connection, {}, "wrong"),
    ],
)
def test_a_receiver_ends_a_connection_without_the_right_tags(
    led: Callable[..., Source],
    subscriber: Context,
    attack: Callable[[Answerer, list[bytes]], None],
    key: dict[str, Any],
    reason: str,
) -> None:
    """A peer without the key delivers nothing of its own; the present goes on."""
    index, earlier = [0], list[bytes]()

    def answer(connection: socket.socket, peer: Peer) -> None:
        attack(Answerer(connection, index[0], **key), earlier)
        time.sleep(0.1)  # the end of the connection is to be the receiver's

    source = led(answer)
    index[0] = source.topic_index
    receiver = subscriber.receiver(TOPIC, **FAST)
    wait_for(lambda: _counted(subscriber, reason), f"a tag {reason}")
    wait_for(lambda: subscriber.stats()["context"]["late_joins_given_up"], "the present without the past")
    _send(source, 0, 10)
    assert _numbers(receiver, 10)[0] == list(range(10))


_LONG_REQUEST = b"\x08\x4e\xff\xff".ljust(65535, b"\xff")


def test_bytes_that_drip_hold_no_connection(keys: Path) -> None:
    """A receiver replaces connections that send single bytes and request nothing."""
    with _open(keys, recovery_connections_maximum=4) as publisher, _open(keys) as subscriber:
        source = publisher.source(TOPIC, flow_control="none", **RETAINED)
        _send(source, 0, 10)
        done = threading.Event()

        def drip() -> None:
            at = "127.0.0.1", recovery_server(publisher).endpoint.port
            peers = [socket.create_connection(at, timeout=SECONDS) for _ in range(4)]
            turn = -1
            while not done.wait(0.01):
                turn += 1
                for peer in peers:
                    try:
                        peer.sendall(_LONG_REQUEST[turn : turn + 1])
                    except OSError:
                        continue
            for peer in peers:
                peer.close()

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            receiver = subscriber.receiver(TOPIC, late_join_info_request_interval=50)
            assert _numbers(receiver, 10)[0] == list(range(10))
        finally:
            done.set()
            thread.join()
