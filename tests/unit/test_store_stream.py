"""Connections of Stores: messages in both directions, with the tags of the topics' keys or without."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from tests.data_messages import encode_data
from tests.store_messages import MESSAGES
from tests.tag_oracle import TRAILER_BYTES, RecordStream, key_check
from umstack._engine.endpoint import Endpoint
from umstack.key_file import Key
from umstack.store.wire import MalformedMessage, StoreStream, decode
from umstack.streams.tags import TagRefused

KEY, OTHER = Key(7, bytes(range(32))), Key(7, bytes(range(32, 64)))
STORE = Endpoint("10.9.0.11", 14567)
KIND = RecordStream.STORE
ALL = list(MESSAGES.values())


class FakeKeys:
    """A keyring of these keys."""

    def __init__(self, *keys: Key) -> None:
        self.keys = keys

    def has(self, key: Key) -> bool:
        return key in self.keys

    def find(self, is_meant: object) -> Key | None:
        assert callable(is_meant)
        return next(filter(is_meant, self.keys), None)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection: the client's and the Store's."""
    client, store = socket.socketpair()
    client.setblocking(False)
    store.setblocking(False)
    yield client, store
    client.close()
    store.close()


def stream(*keys: Key, is_store: bool, key: Key | None = None) -> StoreStream:
    return StoreStream(STORE, FakeKeys(*keys), 1 << 20, is_store=is_store, key=key)


def greeted(client: StoreStream, store: StoreStream, ends: tuple[socket.socket, socket.socket]) -> None:
    """Exchange greetings, if there are any."""
    client.flush(ends[0])
    store.receive(ends[1])
    store.flush(ends[1])
    client.receive(ends[0])


@pytest.mark.parametrize(
    "key", [None, KEY, Key(7, KEY.secret, encrypts=True)], ids=["plain", "tags", "encrypted"]
)
def test_messages_arrive_in_both_directions(
    key: Key | None, ends: tuple[socket.socket, socket.socket]
) -> None:
    """One by one, several in a record, and in pieces of the network. UP-7."""
    keys = (key,) if key is not None else ()
    client, store = stream(*keys, is_store=False, key=key), stream(*keys, is_store=True)
    greeted(client, store, ends)
    assert store.key == (None if key is None else key)
    for sender, socket_of, other, receiver in ((client, 0, 1, store), (store, 1, 0, client)):
        for message in ALL[:5]:
            assert sender.put(message.encode())
        assert sender.put(b"".join(message.encode() for message in ALL[5:]))
        sender.flush(ends[socket_of])
        assert receiver.receive(ends[other])
        assert [decode(message) for message in receiver.messages()] == ALL
    assert client.is_allowed(keys)
    assert store.is_allowed(keys)
    assert not store.is_allowed((OTHER,))
    ends[0].close()
    assert not store.receive(ends[1])


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "tags"])
def test_a_window_takes_more_messages_than_a_record(
    key: Key | None, ends: tuple[socket.socket, socket.socket]
) -> None:
    """All bytes that `put` promises space for arrive, as whole messages in as many records as needed."""
    keys = (key,) if key is not None else ()
    client, store = stream(*keys, is_store=False, key=key), stream(*keys, is_store=True)
    greeted(client, store, ends)
    message = encode_data(1, 2, bytes(60_000))
    count = client.free_bytes // len(message)
    rest = encode_data(1, 2, bytes(client.free_bytes - count * len(message) - 12))
    assert client.put(message * count + rest)
    assert count >= 16
    found = []
    while client.waiting_bytes or len(found) < count + 1:
        client.flush(ends[0])
        store.receive(ends[1])
        found += list(store.messages())
    assert found == [message] * count + [rest]


def test_bytes_may_arrive_one_by_one(ends: tuple[socket.socket, socket.socket]) -> None:
    client, store = stream(KEY, is_store=False, key=KEY), stream(KEY, is_store=True)
    found = []

    def trickle() -> None:
        client.flush(ends[0])
        for byte in ends[1].recv(10_000):
            ends[0].send(bytes([byte]))
            store.receive(ends[1])
            found.extend(store.messages())

    trickle()
    store.flush(ends[1])
    client.receive(ends[0])
    client.put(ALL[0].encode())
    trickle()
    assert found == [ALL[0].encode()]


def test_a_full_window_accepts_no_more(ends: tuple[socket.socket, socket.socket]) -> None:
    client = StoreStream(STORE, FakeKeys(), 100, is_store=False)
    assert client.put(bytes(60))
    assert (client.put(bytes(60)), client.waiting_bytes, client.free_bytes) == (False, 60, 40)


class OraclePeer:
    """The other side of a keyed connection, with the tags of the oracle."""

    def __init__(self, end: socket.socket, *, is_store: bool, secret: bytes = KEY.secret) -> None:
        self.end = end
        self.tags = RecordStream(secret, 7, "", key_check(secret), is_server=is_store, kind=KIND)

    def greet(self, ours: StoreStream, ours_end: socket.socket) -> None:
        if self.tags.is_server:
            ours.flush(ours_end)
            theirs = self.end.recv(TRAILER_BYTES)
            self.end.send(self.tags.greeting)
            ours.receive(ours_end)
        else:
            self.end.send(self.tags.greeting)
            ours.receive(ours_end)
            ours.flush(ours_end)
            theirs = self.end.recv(TRAILER_BYTES)
        self.tags.begin(theirs, STORE)


@pytest.mark.parametrize("is_store", [False, True])
def test_tags_are_those_of_the_documentation(
    is_store: bool, ends: tuple[socket.socket, socket.socket]
) -> None:
    """Greetings and records of both sides agree with an independent implementation."""
    ours_end, other_end = ends
    ours = stream(KEY, is_store=is_store, key=None if is_store else KEY)
    peer = OraclePeer(other_end, is_store=not is_store)
    peer.greet(ours, ours_end)
    peer.end.send(peer.tags.seal(ALL[0].encode()))
    ours.receive(ours_end)
    assert list(ours.messages()) == [ALL[0].encode()]
    ours.put(ALL[1].encode())
    ours.flush(ours_end)
    assert peer.tags.opened(peer.end.recv(10_000)) == ALL[1].encode()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda tags: tags.seal(b"\x08\xff\x00\x04")[:-1] + b"\x05", "wrong"),
        (lambda tags: tags.leave_out(1) or tags.seal(b"\x08\xff\x00\x04"), "replayed"),
        (lambda tags: b"\x08\xff\x00\x04" * 7, "missing"),
        (lambda tags: tags.seal(b"\x08\xff\x00\x05"), "wrong"),
    ],
    ids=["changed", "out of order", "without a tag", "no whole message"],
)
def test_what_is_not_tagged_right_ends_the_connection(
    spoil: object, reason: str, ends: tuple[socket.socket, socket.socket]
) -> None:
    assert callable(spoil)
    store = stream(KEY, is_store=True)
    peer = OraclePeer(ends[1], is_store=False)
    peer.greet(store, ends[0])
    peer.end.send(spoil(peer.tags))
    store.receive(ends[0])
    with pytest.raises(TagRefused, match=re.escape(f"tag {reason}")):
        list(store.messages())


def test_a_key_that_is_not_in_use_is_refused(ends: tuple[socket.socket, socket.socket]) -> None:
    """By the Store, by the client if the Store has another one, and later if it is removed."""
    client, store = stream(OTHER, is_store=False, key=OTHER), stream(KEY, is_store=True)
    client.flush(ends[0])
    with pytest.raises(TagRefused, match="tag key"):
        store.receive(ends[1])
    store.flush(ends[1])
    with pytest.raises(TagRefused, match="does not use this key"):
        client.receive(ends[0])
    client = stream(KEY, is_store=False, key=KEY)
    ends[1].send(
        RecordStream(OTHER.secret, 7, "", key_check(OTHER.secret), is_server=True, kind=KIND).greeting
    )
    with pytest.raises(TagRefused, match="tag key"):
        client.receive(ends[0])
    kept = FakeKeys(KEY)
    client, store = stream(KEY, is_store=False, key=KEY), StoreStream(STORE, kept, 1000, is_store=True)
    greeted(client, store, ends)
    client.put(ALL[-1].encode())
    client.flush(ends[0])
    store.receive(ends[1])
    kept.keys = ()
    with pytest.raises(TagRefused, match="tag key"):
        list(store.messages())


def test_greetings_of_other_connections_and_garbage_are_refused(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    requests = RecordStream(KEY.secret, 7, "", key_check(KEY.secret), is_server=False)
    ends[0].send(requests.greeting)
    with pytest.raises(TagRefused, match="tag key"):
        stream(KEY, is_store=True).receive(ends[1])
    plain = stream(KEY, is_store=True)
    ends[0].send(b"GET / HTTP/1.1\r\n")
    plain.receive(ends[1])
    with pytest.raises(MalformedMessage):
        list(plain.messages())
    assert not plain.is_allowed((KEY,))
