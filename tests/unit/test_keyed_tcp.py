"""Topics with keys over LBT-TCP: what test_tcp.py shows of topics without, and what either end refuses.

The other end of the attacks is tests/tag_oracle.py, which makes and checks tags without the product's code.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tag_oracle import TRAILER_BYTES, RecordStream
from tests.unit.keyed_peers import KEY_ID, OTHER, SECRET, KeyedPeer, write_keys
from tests.unit.loopback import SMALL_QUEUE, open_context, payloads
from tests.unit.tcp_peers import ANSWER, RawClient, RawSource, control_session_id, message, ssf_request
from tests.unit.test_tcp import (
    connected,
    test_a_broken_connection_is_reopened_and_the_gap_is_declared,
    test_a_gap_of_a_broken_connection_is_recovered_off_transport,
    test_a_late_joiner_gets_the_past_over_tcp,
    test_a_session_starts_and_ends_with_its_source,
    test_a_slow_receiver_blocks_the_source_and_loses_nothing,
    test_a_slow_receiver_of_a_source_paced_source_loses_whole_messages,
    test_a_topic_requested_again_starts_without_losses,
    test_messages_sent_before_close_arrive,
    test_small_messages_are_batched_until_a_flush,
)
from tests.unit.ways import FROM_AND_TO_A_DRIVER, ITS_COUNTERS, ITS_SESSION, MAPS_ITSELF, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, EndOfSession, Receiver, Source
from umstack._engine.transport_address import TcpAddress
from umstack.streams.tags import PROOF

__all__ = [
    "test_a_broken_connection_is_reopened_and_the_gap_is_declared",
    "test_a_gap_of_a_broken_connection_is_recovered_off_transport",
    "test_a_late_joiner_gets_the_past_over_tcp",
    "test_a_session_starts_and_ends_with_its_source",
    "test_a_slow_receiver_blocks_the_source_and_loses_nothing",
    "test_a_slow_receiver_of_a_source_paced_source_loses_whole_messages",
    "test_a_topic_requested_again_starts_without_losses",
    "test_messages_sent_before_close_arrive",
    "test_small_messages_are_batched_until_a_flush",
]
"""Run here with keys."""

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = FROM_AND_TO_A_DRIVER
REASONS = "missing", "key", "wrong", "replayed"
SOON: dict[str, Any] = {"transport_tcp_reconnect_interval": 5, "transport_tcp_reconnect_timeout": 200}


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key 7 for every topic."""
    file = tmp_path_factory.mktemp("keyed") / "keys"
    write_keys(file, "*", (KEY_ID, SECRET))
    return file


def _options(key_file: Path, scope: str = "all") -> dict[str, Any]:
    return {"authentication_scope": scope, "authentication_key_file": str(key_file)}


@pytest.fixture(scope="module")
def both(key_file: Path) -> dict[str, Any]:
    return _options(key_file)


def _counted(stats: dict[str, Any]) -> dict[str, int]:
    counts = {reason: int(stats[f"dgrams_dropped_tag_{reason}"]) for reason in REASONS}
    return {reason: count for reason, count in counts.items() if count}


def _received(context: Context, transport: str = "") -> dict[str, Any]:
    """The counters of a context's session over TCP, or of the named one."""
    sessions = context.stats()["receiver_transports"]
    found: dict[str, Any] = next(one for one in sessions if transport in ("", one["transport"]))
    return found


# Between contexts


@pytest.mark.parametrize("scope", ["control", "all"])
@pytest.mark.parametrize("has_session_id", [0, 1])
def test_messages_of_every_length_with_keys(key_file: Path, scope: str, has_session_id: int) -> None:
    """Whatever the scope, with and without session ids; nothing is refused."""
    lengths = [0, 1, 100, 1472, 8192, 65523, 65524, 300_000]
    keyed = _options(key_file, scope)
    with open_context(**keyed) as sender, open_context(**keyed) as reader:
        source, receiver = connected(sender, reader, "lengths", transport_tcp_use_session_id=has_session_id)
        for length in lengths:
            source.send(bytes(length), flush=True)
        source.send_many([b"%d" % n for n in range(5000)], flush=True)
        rows = collect(receiver, len(lengths) + 5000)
        assert [len(row.data) for row in rows[: len(lengths)]] == lengths
        assert payloads(rows[len(lengths) :]) == [b"%d" % n for n in range(5000)]
        assert not _counted(source.stats())
        assert not _counted(_received(reader))


@alone(ITS_COUNTERS)
def test_topics_are_filtered_at_the_source_with_keys(sending: Context, receiving: Context) -> None:
    """UX-27: what a receiver wants comes in records, and the source sends it nothing else."""
    options: dict[str, Any] = {
        "transport": "tcp",
        "transport_tcp_port": 29_321,
        "transport_source_side_filtering_behavior": "inclusion",
    }
    with (
        sending.source("filtered.a", **options) as wanted,
        sending.source("filtered.b", **options) as other,
        receiving.receiver("filtered.a") as receiver,
    ):
        assert wanted.transport == other.transport
        wanted.wait_connected(timeout=SECONDS)

        def is_asked_for() -> bool:
            wanted.send(b"?", flush=True)
            return bool(receiver.poll(10, 0.01).messages())

        wait_for(is_asked_for, "the topic that is wanted")
        before = _received(receiving, wanted.transport)["bytes_rcved"]
        other.send_many([bytes(1000)] * 100, flush=True)
        wanted.send(b"last", flush=True)
        assert collect(receiver, 1)[-1].data in (b"?", b"last")
        assert _received(receiving, wanted.transport)["bytes_rcved"] - before < 10_000


def test_nothing_is_lost_while_keys_are_exchanged(tmp_path: Path) -> None:
    """Rotation: a connection goes on while a key is added, put first, and the old one removed; a new one as well."""
    file = tmp_path / "keys"
    old, new = (KEY_ID, SECRET), (8, OTHER)
    write_keys(file, "*", old)
    keyed = _options(file)
    with open_context(**keyed) as sender, open_context(**keyed) as reader:
        source, receiver = connected(
            sender, reader, "rotated", transport_source_side_filtering_behavior="inclusion"
        )
        wait_for(lambda: source.send(b"?", flush=True) or receiver.poll(10, 0.01).messages(), "the topic")
        source.send(b"begin", flush=True)
        while collect(receiver, 1)[0].data != b"begin":
            pass
        number = 0
        for held in ((old,), (old, new), (new, old), (new,)):
            write_keys(file, "*", *held)
            for context in (sender, reader):
                keyring = context._engine.keyring
                wait_for(
                    lambda of=keyring, wanted=held: (
                        [key.id for key in of.keys_of("rotated")] == [key_id for key_id, _ in wanted]
                    ),
                    "the keys",
                )
            source.send_many([b"%d" % n for n in range(number, number + 100)], flush=True)
            assert payloads(collect(receiver, 100)) == [b"%d" % n for n in range(number, number + 100)]
            number += 100
        session = _received(reader)
        assert (session["connects"], session["disconnects"]) == (1, 0)
        assert not _counted(session)
        assert not _counted(source.stats())
        with open_context(**keyed) as late, late.receiver("rotated") as other:
            source.wait_connected(2, SECONDS)
            wait_for(
                lambda: source.send(b"new", flush=True) or other.poll(10, 0.01).messages(), "the message"
            )


@alone(ITS_COUNTERS)
def test_a_receiver_without_a_key_is_refused_with_a_reason(key_file: Path) -> None:
    """Downgrade: the source reports that the receiver has no key, the receiver that the source has one."""
    with open_context(**_options(key_file)) as sender, open_context() as reader:
        source = sender.source("refused", transport="tcp")
        reader.receiver("refused", **SOON)
        wait_for(lambda: _counted(source.stats()).get("missing"), "the refusal at the source")
        wait_for(lambda: any(_refusals(reader, "key")), "the refusal at the receiver")
        event = next(event for event in source.receiver_events() if event.kind == "refused")
        assert event.amount == 1
        assert source.stats()["clients_connected"] == 0


@alone(ITS_COUNTERS)
def test_a_source_without_a_key_is_refused_with_a_reason(key_file: Path) -> None:
    """Downgrade: and the other way round."""
    with open_context() as sender, open_context(**_options(key_file)) as reader:
        source = sender.source("refused", transport="tcp")
        reader.receiver("refused", **SOON)
        wait_for(lambda: _counted(source.stats()).get("key"), "the refusal at the source")
        wait_for(lambda: any(_refusals(reader, "missing")), "the refusal at the receiver")
        event = next(event for event in source.receiver_events() if event.kind == "refused")
        assert event.amount == 2
        assert source.stats()["clients_connected"] == 0


@alone(ITS_COUNTERS)
def test_different_keys_are_refused(key_file: Path, tmp_path: Path) -> None:
    """One identifier with another secret is a wrong tag; another identifier is reported as such."""
    for key, at_source in (((KEY_ID, OTHER), "wrong"), ((8, SECRET), "key")):
        write_keys(tmp_path / "others", "*", key)
        with (
            open_context(**_options(key_file)) as sender,
            open_context(**_options(tmp_path / "others")) as reader,
        ):
            source = sender.source("refused", transport="tcp")
            reader.receiver("refused", **SOON)
            wait_for(lambda of=source, why=at_source: _counted(of.stats()).get(why), "the refusal")
            assert source.stats()["clients_connected"] == 0


def _refusals(context: Context, reason: str) -> list[int]:
    return [one[f"dgrams_dropped_tag_{reason}"] for one in context.stats()["receiver_transports"]]


# Refused by a source


class Client(KeyedPeer):
    """A receiver with a key, or with one that is wrong."""

    def __init__(self, source: Source, *, key_id: int = KEY_ID, secret: bytes = SECRET) -> None:
        self.raw = RawClient(source.transport)
        _, address, port, _ = source.transport.split(":")
        tags = RecordStream(
            secret, key_id, "", self.raw.session_id, is_server=False, kind=RecordStream.SESSION
        )
        super().__init__(self.raw.socket, tags, (address, int(port)))

    def join(self) -> None:
        self.greet()
        self.send(self.tags.seal(control_session_id(self.raw.session_id)))
        assert self.record().startswith(ANSWER)


@pytest.fixture
def clients(sending: Context) -> Iterator[tuple[Source, Callable[..., Client]]]:
    """A source, and what makes clients of it."""
    made: list[Client] = []
    with sending.source("attacked", transport="tcp") as source:

        def make(**key: Any) -> Client:
            made.append(Client(source, **key))
            return made[-1]

        yield source, make
        for one in made:
            one.close()


@alone(ITS_SESSION)
def test_what_a_source_sends_has_the_documented_tags(clients: tuple[Source, Callable[..., Client]]) -> None:
    """A batch of messages is one record, whose tag is right byte for byte."""
    source, make = clients
    one = make()
    one.join()
    source.send_many([b"%03d" % n for n in range(100)], flush=True)
    records = []
    while sum(map(len, records)) < 100 * 15:
        records.append(one.record())
    whole = b"".join(records)
    assert [whole[at + 12 : at + 15] for at in range(0, len(whole), 15)] == [b"%03d" % n for n in range(100)]
    assert len(records) < 20


def _without_tags(one: Client) -> None:
    one.send(control_session_id(one.raw.session_id))
    assert one.receive(TRAILER_BYTES)[:8] == one.tags.greeting[:8], "the answer with the reason"


def _without_a_record(one: Client) -> None:
    one.greet()
    one.send(control_session_id(one.raw.session_id))


def _greeting_only(one: Client) -> None:
    one.send(one.tags.greeting)
    one.receive(TRAILER_BYTES)


def _sealed(one: Client) -> None:
    one.greet()
    one.send(one.tags.seal(control_session_id(one.raw.session_id)))


def _changed(one: Client) -> None:
    one.greet()
    record = bytearray(one.tags.seal(control_session_id(one.raw.session_id)))
    record[-1] ^= 1
    one.send(bytes(record))


def _shortened(one: Client) -> None:
    one.greet()
    session_id = control_session_id(one.raw.session_id)
    record = bytearray(one.tags.seal(session_id + session_id))
    record[8:12] = struct.pack(">I", len(session_id))
    one.send(bytes(record[: -len(session_id)]))


def _twice(one: Client) -> None:
    one.greet()
    record = one.tags.seal(control_session_id(one.raw.session_id))
    one.send(record + record)


def _with_one_left_out(one: Client) -> None:
    one.greet()
    one.tags.seal(PROOF)
    one.send(one.tags.seal(control_session_id(one.raw.session_id)))


def _reflected(one: Client) -> None:
    one.join()
    one.send(one.tags._record(1, PROOF, 0))


def _of_a_key_that_is_named(one: Client) -> None:
    one.greet()
    one.tags.change_key(OTHER, 9, ours=True)
    one.send(one.tags.seal(control_session_id(one.raw.session_id)))


@alone(ITS_SESSION)
@pytest.mark.parametrize(
    ("attack", "key", "reason"),
    [
        (_without_tags, {}, "missing"),
        (_without_a_record, {}, "missing"),
        (_greeting_only, {"key_id": 8}, "key"),
        (_of_a_key_that_is_named, {}, "key"),
        (_sealed, {"secret": OTHER}, "wrong"),
        (_changed, {}, "wrong"),
        (_shortened, {}, "wrong"),
        (_reflected, {}, "wrong"),
        (_twice, {}, "replayed"),
        (_with_one_left_out, {}, "replayed"),
    ],
)
def test_a_source_ends_a_connection_without_the_right_tags(
    clients: tuple[Source, Callable[..., Client]],
    attack: Callable[[Client], None],
    key: dict[str, Any],
    reason: str,
) -> None:
    """Any bytes but the next record end the connection, and are counted by their reason."""
    source, make = clients
    before = _counted(source.stats())
    one = make(**key)
    attack(one)
    assert one.raw.is_closed()
    wait_for(lambda: source.stats()["num_clients"] == 0, "the end")
    after = _counted(source.stats())
    assert after.pop(reason) == before.pop(reason, 0) + 1
    assert after == before


@alone(ITS_SESSION)
def test_a_connection_that_was_recorded_is_no_good_again(
    clients: tuple[Source, Callable[..., Client]],
) -> None:
    """Splicing: neither a whole connection, nor a record of it on another one."""
    source, make = clients
    first = make()
    first.join()
    for spliced in (first.sent, first.sent[TRAILER_BYTES:]):
        before = _counted(source.stats()).get("wrong", 0)
        other = make()
        if spliced is first.sent:
            other.send(bytes(spliced))
        else:
            other.greet()
            other.send(bytes(spliced))
        assert other.raw.is_closed()
        assert _counted(source.stats())["wrong"] == before + 1
    assert source.stats()["num_clients"] == 1


@alone(ITS_SESSION)
def test_a_client_that_drips_its_greeting_joins(clients: tuple[Source, Callable[..., Client]]) -> None:
    """A greeting that arrives one byte at a time is accepted."""
    source, make = clients
    one = make()
    for byte in one.tags.greeting:
        one.socket.sendall(bytes([byte]))
    one.tags.begin(one.receive(TRAILER_BYTES), one.endpoint)
    for byte in one.tags.seal(control_session_id(one.raw.session_id)):
        one.socket.sendall(bytes([byte]))
    assert one.record().startswith(ANSWER)
    one.send(one.tags.seal(ssf_request(one.raw.session_id, 0, 1)))
    assert one.record()[1] == 17  # the answer to the request
    source.send(b"x", flush=True)
    assert one.record()[12:] == b"x"


# Refused by a receiver


class Served(KeyedPeer):
    """A source that a test plays, on one connection."""

    def __init__(self, raw: RawSource, *, key_id: int = KEY_ID, secret: bytes = SECRET) -> None:
        tags = RecordStream(secret, key_id, "", raw.session_id, is_server=True, kind=RecordStream.SESSION)
        super().__init__(raw.accept(), tags, ("127.0.0.1", raw.port))
        self.raw = raw

    def join(self) -> None:
        self.greet()
        assert self.record() == control_session_id(self.raw.session_id)

    def is_left(self) -> bool:
        """Whether the receiver has closed the connection, once all that it sent was read."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            pass
        return True


def _follow(receiving: Context, raw: RawSource, **options: Any) -> Receiver:
    receiver = receiving.receiver("played", **{"transport_tcp_reconnect_interval": 5, **options})
    receiving._engine.map_source("played", 7, TcpAddress("127.0.0.1", raw.session_id, raw.port))
    return receiver


@alone(MAPS_ITSELF)
def test_a_stream_of_records_cut_anywhere_is_read(receiving: Context) -> None:
    """Several messages in a record, a long message, records in pieces of one byte; the end is the end."""
    with RawSource() as raw, _follow(receiving, raw) as receiver:
        peer = Served(raw)
        peer.join()
        peer.send(peer.tags.seal(PROOF))
        pieces = [
            peer.tags.seal(message(7, n, b"%d" % n) + message(7, n + 1, b"%d" % (n + 1))) for n in (0, 2)
        ]
        for byte in b"".join(pieces):
            peer.socket.sendall(bytes([byte]))
        whole = b"".join(message(7, n, bytes(30_000)) for n in range(4, 8))
        peer.send(peer.tags.seal(whole))
        assert payloads(collect(receiver, 8)) == [b"0", b"1", b"2", b"3", *[bytes(30_000)] * 4]
        peer.send(peer.tags.seal(b"\x01\xff\x00\x04"))
        assert any(isinstance(row, EndOfSession) for row in receiver.poll(10, SECONDS).events())


@alone(MAPS_ITSELF)
def test_a_source_may_change_its_key(receiving: Context, tmp_path: Path) -> None:
    """Rotation: a record names the key that it and those after it are made with, if that is in use."""
    file = tmp_path / "keys"
    write_keys(file, "*", (KEY_ID, SECRET), (8, OTHER))
    with open_context(**_options(file)) as context, RawSource() as raw, _follow(context, raw) as receiver:
        peer = Served(raw)
        peer.join()
        peer.send(peer.tags.seal(message(7, 0, b"old")))
        peer.tags.change_key(OTHER, 8, ours=True)
        for n in (1, 2):
            peer.send(peer.tags.seal(message(7, n, b"new")))
        assert payloads(collect(receiver, 3)) == [b"old", b"new", b"new"]
        assert not _counted(_received(context))


def _untagged(peer: Served) -> None:
    peer.receive(TRAILER_BYTES)
    peer.send(message(7, 0, b"forged"))


def _untagged_later(peer: Served) -> None:
    peer.join()
    peer.send(message(7, 0, b"forged"))


def _another_key(peer: Served) -> None:
    peer.greet()


def _forged(peer: Served) -> None:
    peer.greet()
    peer.send(peer.tags.seal(message(7, 0, b"forged")))


def _flipped(peer: Served) -> None:
    peer.join()
    record = bytearray(peer.tags.seal(message(7, 0, b"forged")))
    record[-1] ^= 0x80
    peer.send(bytes(record))


def _cut_short(peer: Served) -> None:
    peer.join()
    last = message(7, 1, b"lost")
    record = bytearray(peer.tags.seal(message(7, 0, b"forged") + last))
    record[8:12] = struct.pack(">I", len(record) - TRAILER_BYTES - len(last))
    peer.send(bytes(record[: -len(last)]))


def _reordered(peer: Served) -> None:
    peer.join()
    first, second = (peer.tags.seal(message(7, n, b"forged")) for n in (0, 1))
    peer.send(second + first)


def _repeated(peer: Served) -> None:
    peer.join()
    record = peer.tags.seal(PROOF)
    peer.send(record + record)


def _mirrored(peer: Served) -> None:
    peer.greet()
    peer.send(peer.raw_record())


@alone(MAPS_ITSELF)
@pytest.mark.parametrize(
    ("attack", "key", "reason"),
    [
        (_untagged, {}, "missing"),
        (_untagged_later, {}, "missing"),
        (_another_key, {"key_id": 8}, "key"),
        (_forged, {"secret": OTHER}, "wrong"),
        (_flipped, {}, "wrong"),
        (_cut_short, {}, "wrong"),
        (_mirrored, {}, "wrong"),
        (_reordered, {}, "replayed"),
        (_repeated, {}, "replayed"),
    ],
)
def test_a_receiver_ends_a_connection_without_the_right_tags(
    receiving: Context, attack: Callable[[Served], None], key: dict[str, Any], reason: str
) -> None:
    """Nothing of it is delivered, and the receiver connects again."""
    with RawSource() as raw, _follow(receiving, raw) as receiver:
        peer = Served(raw, **key)
        attack(peer)
        assert peer.is_left()
        again = Served(raw)
        found = _received(receiving)
        assert _counted(found) == {reason: 1}
        again.join()
        again.send(again.tags.seal(message(7, 0, b"right")))
        assert payloads(collect(receiver, 1)) == [b"right"]


@alone(MAPS_ITSELF)
def test_a_source_that_was_recorded_is_not_believed_again(receiving: Context) -> None:
    """Replay: a whole connection meets another nonce."""
    with RawSource() as raw, _follow(receiving, raw) as receiver:
        first = Served(raw)
        first.join()
        first.send(first.tags.seal(message(7, 0, b"once")))
        assert payloads(collect(receiver, 1)) == [b"once"]
        first.close()
        second = Served(raw)
        second.receive(TRAILER_BYTES)
        second.send(bytes(first.sent))
        assert second.is_left()
        Served(raw)
        assert _counted(_received(receiving)) == {"wrong": 1}
        assert not receiver.poll(10, 0).messages()


@alone(MAPS_ITSELF)
def test_a_source_that_never_proves_its_key_is_given_up(receiving: Context) -> None:
    """A peer that sends only a greeting, or nothing, delays a receiver for five seconds."""
    with RawSource() as raw, _follow(receiving, raw, transport_tcp_reconnect_timeout=100) as receiver:
        peer = Served(raw)
        peer.join()
        assert peer.is_left()
        rows = receiver.poll(10, SECONDS).events()
        assert [type(row) for row in rows] == [EndOfSession]


@alone(MAPS_ITSELF)
def test_an_advertisement_of_tcp_leads_no_keyed_receiver_away(receiving: Context) -> None:
    """An advertised peer without the key delivers nothing to a receiver of a topic with a key."""
    with RawSource() as raw, _follow(receiving, raw, **SMALL_QUEUE) as receiver:
        peer = raw.accept()
        peer.recv(TRAILER_BYTES)
        peer.sendall(message(7, 0, b"forged"))
        raw.accept()
        assert not receiver.poll(10, 0).messages()
