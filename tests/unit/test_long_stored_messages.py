"""Messages longer than a datagram, and message properties, through Stores: live, recovered, repeated, played again."""

from __future__ import annotations

import os
import random
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.data_messages import encode_data
from tests.unit.loopback import open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.waiting import SECONDS, collect
from umstack import Message
from umstack.config import Config
from umstack.context import Context
from umstack.errors import BackPressured, MessageTooLong
from umstack.events import BurstLoss
from umstack.message_properties import encoded
from umstack.persistence import assembly
from umstack.persistence.assembly import MESSAGE_BYTES_MAX, Assembly, Item
from umstack.persistence.events import MessageStable
from umstack.persistence.flight import FRAGMENT_HEADERS_BYTES
from umstack.persistence.messages import StoredData, data_of
from umstack.persistence.reader_side import LostRange, ReadMessage
from umstack.persistence.store_replay import replay
from umstack.persistent_source import PersistentSource, _longest_in_flight
from umstack.store.repository import Repository
from umstack.store.wire import MalformedMessage

pytestmark = pytest.mark.usefixtures("way")

PROPERTIES = {"urgent": True, "desk": "rates and credit", "weight": 1.5}
MANY_PROPERTIES = {f"property {at}": "x" * 100 for at in range(12)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PausedStore]:
    """A Store of this process."""
    with running_store(tmp_path) as running:
        yield running


@pytest.fixture
def context() -> Iterator[Context]:
    """A context on loopback for the receivers."""
    with open_context() as opened:
        yield opened


def seeded() -> random.Random:
    """Random numbers that UM_SEED repeats."""
    seed = int(os.environ.get("UM_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"UM_SEED={seed}")
    return random.Random(seed)


def fragment_bytes_of(source: PersistentSource) -> int:
    """Length of the source's fragments: the longest message that takes one number."""
    return source._source._publication.fragment_bytes


def as_sent(message: Message) -> tuple[bytes, dict[str, object], int, int]:
    """A message as its sender gave it, and its numbers."""
    return (
        message.data,
        dict(message.properties),
        message.first_sequence_number,
        message.sequence_number,
    )


def send_all(source: PersistentSource, size: int) -> list[tuple[bytes, dict[str, object], int, int]]:
    """Send messages of every kind; return them as receivers get them."""
    numbers = seeded()
    block = len(encoded(PROPERTIES))
    kinds: list[tuple[int, dict[str, object]]] = [
        (5, {}),
        (size, {}),
        (size + 1, {}),
        (3 * size + 7, {}),
        (5, PROPERTIES),
        (0, PROPERTIES),
        (size - block, PROPERTIES),
        (size - block + 1, PROPERTIES),  # the properties are in two fragments
        (2 * size - 3, PROPERTIES),
        (3, MANY_PROPERTIES),
        (4 * size, MANY_PROPERTIES),
        (9, {}),
    ]
    expected, first = [], source.first_sequence_number
    for length, properties in kinds:
        data = numbers.randbytes(length)
        whole = length + len(encoded(properties))
        last = source.send(data, properties=properties, timeout=SECONDS)
        assert last - first == max(0, -(-whole // size) - 1)
        expected.append((data, properties, first, last))
        first = last + 1
    source.flush()
    return expected


@pytest.mark.parametrize(
    ("transport", "size_option"),
    [
        ("lbtrm", {}),
        ("lbtru", {"transport_lbtru_datagram_max_size": 1200}),
        ("tcp", {"transport_tcp_datagram_max_size": 1200}),
        ("lbtipc", {"transport_lbtipc_datagram_max_size": 1200}),
    ],
)
def test_long_messages_and_properties_reach_everybody(
    store: PausedStore, context: Context, transport: str, size_option: dict[str, int]
) -> None:
    """UP-9: live, recovered and replayed, each is whole and comes once; every number becomes stable."""
    options: dict[str, Any] = {"session_id": 7, "transport": transport, "flow_control": "min"}
    with (
        open_context(**size_option) as publishing,
        context.receiver("orders", session_id=1) as live,
        publishing.source("orders", store=[store.endpoint], **options) as source,
    ):
        source.wait_connected(2, timeout=SECONDS)
        expected = send_all(source, fragment_bytes_of(source))
        assert [as_sent(message) for message in collect(live, len(expected))] == expected
        assert source.wait_stable(SECONDS)
        stable = [event for event in source.take_events() if isinstance(event, MessageStable)]
        numbers = [sqn for event in stable for sqn in range(event.first_sqn, event.last_sqn + 1)]
        assert numbers == list(range(source.first_sequence_number, expected[-1][3] + 1))
        with context.receiver("orders", session_id=2) as late:
            assert [as_sent(message) for message in collect(late, len(expected))] == expected
    found = list(replay("orders", store.endpoint, session_id=3))
    assert [(one.data, dict(one.properties), one.first_sqn, one.sqn) for one in found] == expected
    assert list(replay("orders", store.endpoint, session_id=3)) == []
    with context.receiver("orders", from_store=[store.endpoint]) as receiver:
        events = list(receiver.events(timeout=0))
    assert [as_sent(event) for event in events if isinstance(event, Message)] == expected


def test_a_batch_may_have_long_messages(store: PausedStore, context: Context) -> None:
    """UP-56: also beyond the limits of messages in flight, in parts; the result counts messages."""
    with (
        context.source("orders", store=[store.endpoint], session_id=7, ume_flight_size=4) as source,
        context.receiver("orders", session_id=1) as receiver,
    ):
        size = fragment_bytes_of(source)
        batch = [bytes([at % 256]) * (at % 4 * size + 1) for at in range(30)]
        assert source.send_many(batch, flush=True, timeout=SECONDS) == 30
        assert [message.data for message in collect(receiver, 30)] == batch
        offsets = array("i", [0, 4 * size, 4 * size + 3])
        assert source.send_packed(bytes(4 * size + 3), offsets, flush=True, timeout=SECONDS) == 2
        assert source.wait_stable(SECONDS)


def test_notify_sends_long_messages_beyond_the_limits(store: PausedStore, context: Context) -> None:
    """UP-56: a batch of 20 MB enters the flight in parts, although the limits are suspended."""
    behavior = {"ume_flight_size": 100, "ume_flight_size_behavior": "notify"}
    with context.source("orders", store=[store.endpoint], session_id=7, **behavior) as source:
        assert source.send_many([bytes(100_000)] * 200, flush=True, timeout=SECONDS) == 200
        assert source.wait_stable(SECONDS)


def test_a_message_with_more_fragments_than_the_flight_is_refused(
    store: PausedStore, context: Context
) -> None:
    """UP-55: it could never be sent; one with just as many waits until nothing else is in flight."""
    with context.source("orders", store=[store.endpoint], session_id=7, ume_flight_size=4) as source:
        size = fragment_bytes_of(source)
        assert source.message_maximum_bytes == 4 * size
        with pytest.raises(MessageTooLong, match=str(4 * size + 1)):
            source.send(bytes(4 * size + 1))
        with pytest.raises(MessageTooLong):
            source.send(bytes(4 * size), properties=PROPERTIES)
        store.pause()
        source.send(b"short")
        with pytest.raises(BackPressured, match="1 messages are not stable"):
            source.send(bytes(4 * size), timeout=0.1)
        store.resume()
        first = source.first_sequence_number
        assert source.send(bytes(4 * size), flush=True, timeout=SECONDS) == first + 4
        assert source.wait_stable(SECONDS)


@pytest.mark.parametrize("flight_bytes", [1000, 5000, 30_000, 10_000_000])
def test_a_receiver_paced_message_is_within_the_flight(flight_bytes: int) -> None:
    """UP-57: alone, too, because a Store that stops the source has space for one flight."""
    options = Config().source_options(
        ume_receiver_paced_persistence=1, ume_flight_size=10, ume_flight_size_bytes=flight_bytes
    )
    longest = _longest_in_flight(options, 1400)
    with_headers = longest + -(-longest // 1400) * FRAGMENT_HEADERS_BYTES
    assert flight_bytes - FRAGMENT_HEADERS_BYTES <= with_headers <= flight_bytes or longest == 14_000


def test_a_message_that_its_source_did_not_finish_is_a_loss(tmp_path: Path, context: Context) -> None:
    """UP-24: the source was killed after the Store had a part; its next life sends on behind that part."""
    with Repository(tmp_path) as repository:
        number = repository.register_source("orders", 7).number
        repository.append(number, 0, encode_data(1, 0, b"whole"))
        for sqn in (1, 2):
            part = encode_data(1, sqn, b"part", fragment=(1, (sqn - 1) * 4, 12))
            repository.append(number, sqn, part)
        while repository.commit() is not None:
            pass
    with running_store(tmp_path) as store, open_context() as publishing:
        with (
            publishing.source("orders", store=[store.endpoint], session_id=7) as source,
            context.receiver("orders", session_id=1) as receiver,
        ):
            assert source.send(b"next", flush=True) == 3
            assert source.wait_stable(SECONDS)
            assert [message.data for message in collect(receiver, 2)] == [b"whole", b"next"]
        with context.receiver("orders", from_store=[store.endpoint]) as played:
            events = list(played.events(timeout=0))
        assert [event.data for event in events if isinstance(event, Message)] == [b"whole", b"next"]
        lost = [event for event in events if isinstance(event, BurstLoss)]
        assert [(event.first_sequence_number, event.sequence_number) for event in lost] == [(1, 2)]


# Joining


def part(session_id: int, sqn: int, data: bytes, **more: object) -> ReadMessage:
    """A message as a reader gets it."""
    return ReadMessage(1, session_id, sqn, data_of(encode_data(1, sqn, data, 10, **more)))  # type: ignore[arg-type]


def parts_of(session_id: int, first: int, whole: bytes, size: int, properties: int = 0) -> list[ReadMessage]:
    """The fragments of a message."""
    return [
        part(
            session_id,
            first + at // size,
            whole[at : at + size],
            fragment=(first, at, len(whole)),
            properties_bytes=properties,
        )
        for at in range(0, len(whole), size)
    ]


def test_messages_of_several_sources_are_joined_however_they_are_cut() -> None:
    """Against a model: random messages, losses, and calls with random numbers of items."""
    numbers = seeded()
    for _ in range(200):
        stream: list[ReadMessage | LostRange] = []
        expected: list[tuple[int, object]] = []
        sqns = {7: numbers.randrange(100), 8: 0}
        for _ in range(numbers.randrange(1, 30)):
            session, size = numbers.choice((7, 8)), numbers.randrange(1, 9)
            block = encoded(PROPERTIES) if numbers.random() < 0.3 else b""
            data = numbers.randbytes(numbers.randrange(1, 40))
            cut = parts_of(session, sqns[session], data + block, size, len(block))
            if len(cut) == 1:
                cut = [part(session, sqns[session], data + block, properties_bytes=len(block))]
            last = sqns[session] + len(cut) - 1
            missing = numbers.randrange(len(cut)) if numbers.random() < 0.2 else None
            for at, one in enumerate(cut):
                stream.append(LostRange(session, one.sqn, one.sqn) if at == missing else one)
            if missing is None:
                expected.append((session, (data, bool(block), sqns[session], last)))
            else:
                expected.append((session, cut[missing].sqn))
            sqns[session] = last + 1
        assembly, found = Assembly(), list[Item]()
        while stream:
            count = numbers.randrange(1, 6)
            found += assembly.take(stream[:count])
            del stream[:count]
        assert [
            (one.source_session_id, one.first_sqn)
            if isinstance(one, LostRange)
            else (one.source_session_id, (one.data, bool(one.properties), one.first_sqn, one.sqn))
            for one in found
        ] == expected
        assert assembly.unfinished == {}


def test_fragments_without_a_beginning_are_left_out() -> None:
    """A start inside a message, and one that no source can send: neither is a message, and neither a loss."""
    assembly = Assembly()
    begun = parts_of(7, 5, b"abcdef", 2)
    assert assembly.take(begun[1:]) == []
    assert assembly.take([part(7, 9, b"x", fragment=(9, 0, MESSAGE_BYTES_MAX + 1))]) == []
    assert assembly.unfinished == {}
    assert assembly.take(begun[:2]) == []
    assert assembly.unfinished == {7: 5}
    assert [one.data for one in assembly.take(begun[2:]) if not isinstance(one, LostRange)] == [b"abcdef"]


def test_a_message_of_endless_fragments_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Store that sends a byte at a time fills no memory: the fragments are a loss, and the rest is left out."""
    monkeypatch.setattr(assembly, "FRAGMENTS_MAX", 100)
    joining, found = Assembly(), list[Item]()
    for one in parts_of(7, 0, bytes(1000), 1):
        found += joining.take([one])
    assert found == [LostRange(7, 0, 99)]
    assert joining.unfinished == {}


def test_bytes_of_data_are_read_or_refused() -> None:
    """Any bytes: MalformedMessage, or fields that agree with the bytes."""
    numbers = seeded()
    for _ in range(3000):
        payload = numbers.randbytes(numbers.randrange(1, 30))
        offset = numbers.randrange(50)
        fields = (numbers.randrange(100), offset, offset + len(payload) + numbers.randrange(3))
        fragment = fields if numbers.random() < 0.5 else None
        properties = numbers.choice((0, 17))
        message = encode_data(3, 150, payload, 10, fragment=fragment, properties_bytes=properties)
        assert data_of(message) == StoredData(3, 150, payload, fragment, properties, message)
        damaged = bytearray(message[: numbers.randrange(len(message) + 1)])
        for _ in range(numbers.randrange(4)):
            if damaged:
                damaged[numbers.randrange(len(damaged))] = numbers.randrange(256)
        try:
            found = data_of(bytes(damaged))
        except MalformedMessage:
            continue
        assert bytes(damaged).endswith(found.payload)
        if found.fragment is not None:
            assert found.fragment.offset + len(found.payload) <= found.fragment.total
