"""Keys on requests and responses: between contexts that have them, and what either end refuses.

The other end is tests/tag_oracle.py, which makes and checks tags without the product's code.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tag_oracle import TRAILER_BYTES, RecordStream, key_check
from tests.unit.keyed_peers import KEY_ID, OTHER, SECRET, KeyedPeer, Requester, write_keys
from tests.unit.loopback import PORTS, open_context
from tests.unit.requesting import counter, echo, pair, port_of, whole
from tests.unit.ways import ATTACHED_TOO
from tests.waiting import SECONDS, wait_for
from umstack import Context, PendingRequest, Request, ResponseFailed
from umstack.streams.tags import PROOF

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = ("alone",)
"""Most of these tests have peers of their own, which connect to the application itself."""

TOPIC = "keyed"
REASONS = "missing", "key", "wrong", "replayed"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A key file with key 7 for topics that begin with `keyed`; topics of other names have none."""
    write_keys(tmp_path / "keys", f"{TOPIC}*", (KEY_ID, SECRET))
    return tmp_path / "keys"


def _open(keys: Path, scope: str = "all", **options: Any) -> Context:
    return open_context(authentication_scope=scope, authentication_key_file=str(keys), **{**PORTS, **options})


@pytest.fixture
def context(way: str, keys: Path) -> Iterator[Context]:
    with _open(keys) as opened:
        yield opened


def _counted(context: Context, reason: str) -> int:
    return counter(context, f"responses_dropped_tag_{reason}")


def _refusals(context: Context) -> int:
    return sum(_counted(context, reason) for reason in REASONS)


# Between contexts


@ATTACHED_TOO
@pytest.mark.parametrize("scope", ["control", "all"])
def test_requests_on_topics_with_and_without_keys(keys: Path, scope: str) -> None:
    """Responses of any length come tagged, and those of a topic without keys as before."""
    with _open(keys, scope) as requester, _open(keys, scope) as responder:
        for topic in (TOPIC, "open"):
            receiver = responder.receiver(topic, echo)
            source = requester.source(topic)
            wait_for(lambda found=receiver: found.stats()["delivery_controllers"], "topic resolution")
            for length in (0, 1, 1400, 65487, 65488, 200_000):
                data = bytes(length)
                assert source.request(data).first(timeout=SECONDS).data == b"re:" + data
        assert counter(responder, "response_connections_opened") == 2
        assert not _refusals(requester)
        assert not _refusals(responder)


@ATTACHED_TOO
def test_asyncio_and_many_threads(context: Context) -> None:
    """The caller that waits receives for all, and each gets its own."""
    source, _ = pair(context, TOPIC)

    def ask(n: int) -> None:
        for round_ in range(50):
            data = b"%d.%d" % (n, round_)
            assert source.request(data).first(timeout=SECONDS).data == b"re:" + data
        done.append(n)

    done: list[int] = []
    threads = [threading.Thread(target=ask, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()

    async def ask_async() -> bytes:
        return (await source.request(b"async", timeout=SECONDS)).data

    assert asyncio.run(ask_async()) == b"re:async"
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3]
    assert not _refusals(context)


@ATTACHED_TOO
def test_sequential_mode(keys: Path) -> None:
    """The thread that is donated greets and checks at both ends."""
    with _open(keys, mode="sequential") as requester, _open(keys) as responder:
        receiver = responder.receiver(TOPIC, echo)
        source = requester.source(TOPIC)

        def is_found() -> bool:
            requester.process_events(0.0)
            return bool(receiver.stats()["delivery_controllers"])

        wait_for(is_found, "topic resolution")
        assert source.request(b"x").first(timeout=SECONDS).data == b"re:x"


@ATTACHED_TOO
def test_nothing_is_lost_while_keys_are_exchanged(keys: Path) -> None:
    """Rotation: requests go on while a key is added, put first, and the old one removed."""
    with _open(keys) as requester, _open(keys) as responder:
        receiver = responder.receiver(TOPIC, echo)
        source = requester.source(TOPIC)
        wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
        old, new = (KEY_ID, SECRET), (8, OTHER)
        for held in ((old,), (old, new), (new, old), (new,)):
            write_keys(keys, f"{TOPIC}*", *held)
            for context in (requester, responder):
                keyring = context._engine.keyring
                wait_for(
                    lambda of=keyring, wanted=held: (
                        [key.id for key in of.keys_of(TOPIC)] == [number for number, _ in wanted]
                    ),
                    "the keys",
                )
            for n in range(20):
                assert source.request(b"%d" % n).first(timeout=SECONDS).data == b"re:%d" % n
        assert counter(responder, "response_connections_opened") == 2
        assert counter(responder, "responses_unsent") == 0
        assert not _refusals(requester)


@ATTACHED_TOO
def test_a_requester_without_the_key_gets_nothing(keys: Path) -> None:
    """A responder with keys sends nothing to a requester without; the requester reports the missing key."""
    with open_context(**PORTS) as requester, _open(keys, "control") as responder:
        receiver = responder.receiver(TOPIC, echo)
        source = requester.source(TOPIC, flow_control="none")
        wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
        pending = source.request(b"x")  # without a tag, which this scope allows
        wait_for(lambda: _counted(requester, "key") == 1, "the refusal")
        wait_for(lambda: counter(responder, "response_connections_failed") == 1, "the end at the responder")
        assert pending.receive(timeout=0) is None


@ATTACHED_TOO
def test_a_responder_without_the_key_is_not_believed(keys: Path) -> None:
    """A response without a tag ends its connection where the topic has keys."""
    with _open(keys) as requester, open_context(**PORTS) as responder:
        pending = requester.source(TOPIC, flow_control="none").request(b"x")
        _request_of(pending, responder).respond(b"forged")
        wait_for(lambda: _counted(requester, "missing") == 1, "the refusal")
        assert pending.receive(timeout=0) is None


class _Owner:
    closed = False


def _request_of(pending: PendingRequest, responder: Context, at: tuple[str, int] | None = None) -> Request:
    """A request as a receiver of the responder gets it, to be responded to at an address."""
    fields = (b"x", TOPIC, "", 0, 0, 0, 0, 0, 1, 0)
    request: Request = tuple.__new__(Request, fields[: len(Request._fields)])
    request.request_index = pending.index
    request.requester = at or pending._intake.endpoint
    request._responder = responder._requests.responder
    request._owner = _Owner()
    return request


# Refused by a requester


class Responder(KeyedPeer):
    """A responder with a key, or with one that is wrong."""

    def __init__(
        self,
        context: Context,
        pending: PendingRequest,
        *,
        key_id: int = KEY_ID,
        secret: bytes = SECRET,
        check: int | None = None,
    ) -> None:
        endpoint = "127.0.0.1", port_of(context)
        subject = key_check(secret) if check is None else check
        tags = RecordStream(secret, key_id, "", subject, is_server=False, kind=RecordStream.RESPONSES)
        super().__init__(socket.create_connection(endpoint, timeout=SECONDS), tags, endpoint)
        self.index = pending.index

    def prove(self) -> None:
        self.greet()
        assert self.record() == PROOF

    def response(self, sqn: int = 0, data: bytes = b"forged") -> bytes:
        return whole(self.index, data, sqn)


class Responders:
    """Makes responders to a request that is open, `pending`."""

    def __init__(self, context: Context) -> None:
        self.pending = context.source(TOPIC, flow_control="none").request(b"x")
        self.made: list[Responder] = []
        self._context = context

    def __call__(self, **key: Any) -> Responder:
        self.made.append(Responder(self._context, self.pending, **key))
        return self.made[-1]


@pytest.fixture
def responders(context: Context) -> Iterator[Responders]:
    """Create responders, and close them at the end."""
    make = Responders(context)
    yield make
    for one in make.made:
        one.close()


def test_what_is_tagged_right_is_taken(context: Context, responders: Responders) -> None:
    """Several responses in a record, records in pieces of any size."""
    one = responders()
    one.prove()
    records = [one.tags.seal(one.response(0, b"0") + one.response(1, b"1"))]
    records += [one.tags.seal(one.response(n, b"%d" % n)) for n in range(2, 6)]
    for byte in b"".join(records):
        one.socket.sendall(bytes([byte]))
    got = [response.data for response in itertools.islice(responders.pending, 6)]
    assert got == [b"%d" % n for n in range(6)]
    assert not _refusals(context)


def _without_tags(one: Responder) -> None:
    one.send(one.response())


def _without_a_record(one: Responder) -> None:
    one.prove()
    one.send(one.response())


def _greeting_only(one: Responder) -> None:
    one.send(one.tags.greeting)


def _wrong(one: Responder) -> None:
    one.greet()
    one.raw_record()
    one.send(one.tags.seal(one.response()))


def _changed(one: Responder) -> None:
    one.prove()
    record = bytearray(one.tags.seal(one.response()))
    record[-1] ^= 1
    one.send(bytes(record))


def _shortened(one: Responder) -> None:
    """The last response of a record is truncated, and its length reveals it."""
    one.prove()
    record = bytearray(one.tags.seal(one.response(0) + one.response(1)))
    cut = len(one.response(1))
    record[8:12] = struct.pack(">I", int.from_bytes(record[8:12]) - cut)
    one.send(bytes(record[:-cut]))


def _twice(one: Responder) -> None:
    one.prove()
    record = one.tags.seal(one.response(0, b"good"))
    one.send(record + record)


def _reordered(one: Responder) -> None:
    one.prove()
    first, second = one.tags.seal(one.response(0)), one.tags.seal(one.response(1))
    one.send(second + first)


def _reflected(one: Responder) -> None:
    one.greet()
    one.send(one.raw_record())


def _of_a_message_and_a_half(one: Responder) -> None:
    one.prove()
    one.send(one.tags.seal(one.response()[:-1]))


@pytest.mark.parametrize(
    ("attack", "key", "reason"),
    [
        (_without_tags, {}, "missing"),
        (_without_a_record, {}, "missing"),
        (_greeting_only, {"key_id": 8}, "key"),
        (_greeting_only, {"secret": OTHER}, "key"),
        (_wrong, {"secret": OTHER, "check": key_check(SECRET)}, "wrong"),
        (_changed, {}, "wrong"),
        (_shortened, {}, "wrong"),
        (_reflected, {}, "wrong"),
        (_twice, {}, "replayed"),
        (_reordered, {}, "replayed"),
    ],
)
def test_a_requester_ends_a_connection_without_the_right_tags(
    context: Context,
    responders: Responders,
    attack: Callable[[Responder], None],
    key: dict[str, Any],
    reason: str,
) -> None:
    """Bytes other than the next valid record end the connection, are counted, and deliver nothing."""
    one = responders(**key)
    attack(one)
    assert one.is_ended()
    wait_for(lambda: _refusals(context) == 1, "the refusal")
    assert _counted(context, reason) == 1
    response = responders.pending.receive(timeout=0)
    assert (response.data if response else None) == (b"good" if attack is _twice else None)


def test_a_response_recorded_on_one_connection_is_no_good_on_another(
    context: Context, responders: Responders
) -> None:
    """Neither a whole connection sent again, nor a record of it on another one, is right."""
    first = responders()
    first.prove()
    first.send(first.tags.seal(first.response(0, b"once")))
    assert responders.pending.receive(timeout=SECONDS).data == b"once"
    again = responders()
    again.send(bytes(first.sent))
    wait_for(lambda: _counted(context, "wrong") == 1, "the connection that was replayed")
    other = responders()
    other.prove()
    other.send(bytes(first.sent[TRAILER_BYTES:]))
    wait_for(lambda: _counted(context, "wrong") == 2, "the record that was spliced in")
    assert responders.pending.receive(timeout=0) is None


def test_a_connection_that_is_cut_delivers_no_part(context: Context, responders: Responders) -> None:
    """Of a record that ends early nothing is taken, and it is counted."""
    one = responders()
    one.prove()
    one.send(one.tags.seal(one.response(0) + one.response(1))[:-1])
    one.socket.shutdown(socket.SHUT_WR)
    assert one.is_ended()
    wait_for(lambda: counter(context, "responses_incomplete") == 1, "the count")
    assert responders.pending.receive(timeout=0) is None
    half = responders()
    _of_a_message_and_a_half(half)
    assert half.is_ended()
    assert counter(context, "responses_malformed") == 1


def test_a_key_is_good_for_its_topics_only(keys: Path, context: Context, responders: Responders) -> None:
    """Who has the key of one topic does not respond to requests on another."""
    keys_then = keys.read_text()
    keys.write_text(f"topic other* {KEY_ID} {OTHER.hex()}\n" + keys_then)
    wait_for(lambda: context._engine.keyring.keys_of("other"), "the second key")
    one = responders(secret=OTHER)
    one.prove()
    one.send(one.tags.seal(one.response()))
    assert one.is_ended()
    assert _counted(context, "key") == 1
    assert responders.pending.receive(timeout=0) is None


def test_a_key_that_is_removed_ends_its_connections(
    keys: Path, context: Context, responders: Responders
) -> None:
    """Rotation: with the next record, which is not taken."""
    one = responders()
    one.prove()
    write_keys(keys, f"{TOPIC}*", (8, OTHER))
    wait_for(lambda: context._engine.keyring.keys_of(TOPIC)[0].id == 8, "the other key")
    one.send(one.tags.seal(one.response()))
    assert one.is_ended()
    assert _counted(context, "key") == 1


def test_a_greeting_in_pieces(context: Context, responders: Responders) -> None:
    """A peer that sends its greeting byte by byte is a normal responder; one that stops in it is dropped."""
    one = responders()
    for byte in one.tags.greeting:
        one.socket.sendall(bytes([byte]))
        time.sleep(0.001)  # so that they come one by one
    one.tags.begin(one.receive(TRAILER_BYTES), one.endpoint)
    assert one.record() == PROOF
    for length in (1, 7, 8, 27):
        unknown = responders()
        unknown.send(unknown.tags.greeting[:length])
        unknown.socket.shutdown(socket.SHUT_WR)
        assert unknown.is_ended()
    one.send(one.tags.seal(one.response(0, b"still")))
    assert responders.pending.receive(timeout=SECONDS).data == b"still"


# Refused by a responder


def test_nothing_is_sent_before_the_requester_has_proved_its_key(context: Context) -> None:
    """Greeting, then nothing until the proof, then the responses in records as documented."""
    got: list[bytes] = []

    def talk(peer: KeyedPeer) -> None:
        peer.greet()
        peer.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            peer.socket.recv(1)
        peer.socket.settimeout(SECONDS)
        record = peer.tags.seal(PROOF)
        for byte in record:
            peer.socket.sendall(bytes([byte]))
        got.extend(peer.record() for _ in range(3))

    pending = context.source(TOPIC, flow_control="none").request(b"x")
    requester = Requester(talk)
    for n in range(3):
        _request_of(pending, context, requester.endpoint).respond(b"%d" % n)
    requester.join()
    assert [message[-1:] for message in got] == [b"0", b"1", b"2"]
    assert [message[:1] for message in got] == [b"\0"] * 3


_recorded: list[bytes] = []


def _sends_it_untagged(peer: KeyedPeer) -> None:
    peer.receive(TRAILER_BYTES)
    peer.send(PROOF + bytes(24))


def _proves_untagged(peer: KeyedPeer) -> None:
    peer.greet()
    peer.send(PROOF + bytes(24))


def _proves(peer: KeyedPeer) -> None:
    peer.greet()
    peer.send(peer.tags.seal(PROOF))


def _sends_more(peer: KeyedPeer) -> None:
    peer.greet()
    peer.send(peer.tags.seal(PROOF + PROOF))


def _skips_a_record(peer: KeyedPeer) -> None:
    peer.greet()
    peer.tags.seal(PROOF)
    peer.send(peer.tags.seal(PROOF))


@pytest.mark.parametrize(
    ("talk", "key", "reason"),
    [
        (_sends_it_untagged, {}, "missing"),
        (_proves_untagged, {}, "missing"),
        (_sends_more, {}, "missing"),
        (_proves, {"key_id": 8}, "key"),
        (_proves, {"secret": OTHER}, "wrong"),
        (_skips_a_record, {}, "replayed"),
    ],
)
def test_a_responder_ends_a_connection_without_the_right_tags(
    context: Context, talk: Callable[[KeyedPeer], None], key: dict[str, Any], reason: str
) -> None:
    """A host that listens at the address of a request, but does not have its key, gets no response."""
    received: list[bytes] = []

    def talk_and_listen(peer: KeyedPeer) -> None:
        talk(peer)
        received.append(peer.receive(1000))

    pending = context.source(TOPIC, flow_control="none").request(b"x")
    requester = Requester(talk_and_listen, **key)
    failed = 0
    try:
        _request_of(pending, context, requester.endpoint).respond(b"secret")
    except ResponseFailed:  # the refusal came first
        failed = 1
    requester.join()
    wait_for(lambda: _refusals(context) == 1, "the refusal")
    assert _counted(context, reason) == 1
    assert b"secret" not in b"".join(received)
    assert counter(context, "responses_unsent") + failed == 1


def test_a_requester_that_was_recorded_proves_nothing(context: Context) -> None:
    """Greeting and proof of an earlier connection meet another nonce."""
    said: list[bytes] = []

    def first(peer: KeyedPeer) -> None:
        _proves(peer)
        peer.record()
        said.append(bytes(peer.sent))

    def second(peer: KeyedPeer) -> None:
        peer.receive(TRAILER_BYTES)
        peer.send(said[0])
        peer.receive(1000)

    pending = context.source(TOPIC, flow_control="none").request(b"x")
    for talk in (first, second):
        requester = Requester(talk)
        with contextlib.suppress(ResponseFailed):  # the refusal may come first
            _request_of(pending, context, requester.endpoint).respond(b"x")
        requester.join()
    wait_for(lambda: _counted(context, "wrong") == 1, "the refusal")


def test_a_requester_that_never_greets_costs_a_bounded_time(keys: Path) -> None:
    """Responses that wait for a proof are given up after response_tcp_deletion_timeout."""
    with _open(keys, response_tcp_deletion_timeout=200) as context:
        pending = context.source(TOPIC, flow_control="none").request(b"x")
        requester = Requester(lambda peer: bool(peer.receive(TRAILER_BYTES) and peer.is_ended()))
        _request_of(pending, context, requester.endpoint).respond(b"x")
        requester.join()
        assert counter(context, "response_connections_stalled") == 1
        assert counter(context, "responses_unsent") == 1
