"""Message properties over loopback: every type, transport and delivery path, and the values that are refused."""

from __future__ import annotations

import asyncio
import enum
import pickle
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import umstack
from tests.unit.loopback import PORTS, SHARED, connect, open_context
from tests.unit.test_late_join import RETAINED
from tests.unit.ways import EVERY_WAY, ITS_FRAGMENTS, ITS_LOSSES, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import Byte, Context, Float, Long, Message, MessageProperties, Short
from umstack.errors import InvalidArgument, MessageTooLong
from umstack.message_properties import encoded, is_sound, read_block

pytestmark = pytest.mark.usefixtures("way")

ALL: dict[str, Any] = {
    "switch": True,
    "off": False,
    "byte": Byte(-128),
    "short": Short(-32768),
    "int": -(2**31),
    "long": Long(7),
    "longer": 2**63 - 1,
    "float": Float(0.1),
    "double": 0.1,
    "text": "Grüße",
    "empty": "",
}
LONG = bytes(range(256)) * 20
SMALL = {"region": "eu", "priority": 3}


@pytest.fixture
def contexts() -> Iterator[list[Context]]:
    """A publisher and a subscriber."""
    with ExitStack() as stack:
        yield [stack.enter_context(open_context(**PORTS)) for _ in range(2)]


def _kinds(properties: MessageProperties) -> list[type]:
    return [type(value) for value in properties.values()]


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
@pytest.mark.parametrize("transport", ["lbtrm", "lbtru", "tcp", "lbtipc"])
@pytest.mark.parametrize("data", [b"", b"short", LONG], ids=["empty", "short", "long"])
def test_every_type_arrives_over_every_transport(transport: str, data: bytes, mode: str) -> None:
    """Names, types and values arrive as sent, with the data, in one datagram and in several."""
    with open_context(mode, **PORTS) as context:
        receiver = context.receiver("typed")
        source = context.source("typed", flow_control="min", transport=transport)
        source.wait_connected(timeout=SECONDS)
        source.send(data, flush=True, properties=ALL)
        source.send(data, flush=True)
        first, second = collect(receiver, 2)
    assert first.data == second.data == data
    assert first.message_length == second.message_length == len(data)
    assert dict(first.properties) == {**ALL, "longer": 2**63 - 1}
    assert _kinds(first.properties) == [
        *(bool, bool, Byte, Short, int, Long, Long, Float, float, str, str),
    ]
    assert first.properties["float"] == struct.unpack("f", struct.pack("f", 0.1))[0] != 0.1
    assert isinstance(first, Message)
    assert first.flags & 0x1000
    assert not second.flags & 0x1000
    assert dict(second.properties) == {}


@alone(ITS_FRAGMENTS)
def test_fragments_are_reassembled_in_arrival_order_too(contexts: list[Context]) -> None:
    """UM-56, UM-58: with ordered_delivery -1 messages arrive whole; with 0 the properties arrive with the fragment
    that carries them."""
    source = contexts[0].source("parts", flow_control="min", **SHARED)
    arrival = contexts[1].receiver("parts", ordered_delivery=-1)
    pieces = contexts[1].receiver("parts", ordered_delivery=0)
    source.wait_connected(timeout=SECONDS)
    wait_for(lambda: pieces.stats()["delivery_controllers"], "the source")
    source.send(LONG, flush=True, properties=SMALL)
    (whole,) = collect(arrival, 1)
    assert (whole.data, dict(whole.properties)) == (LONG, SMALL)
    parts = collect(pieces, 4)
    assert b"".join(part.data for part in parts) == LONG
    assert [dict(part.properties) for part in parts] == [{}, {}, {}, SMALL]
    assert {part.message_length for part in parts} == {len(LONG)}


def test_received_properties_can_be_sent_again(contexts: list[Context]) -> None:
    """A received mapping has the types that were sent, so a relay changes nothing."""
    source, receiver = connect(contexts[0], "relay")
    source.send(b"1", flush=True, properties=ALL)
    (first,) = collect(receiver, 1)
    source.send(b"2", flush=True, properties=dict(first.properties))
    source.send(b"3", flush=True, properties=first.properties)
    second, third = collect(receiver, 2)
    assert (
        encoded(first.properties) == encoded(second.properties) == encoded(third.properties) == encoded(ALL)
    )


def test_a_batch_has_them_by_row(contexts: list[Context]) -> None:
    """properties() returns one entry per row; payloads and offsets cover the data alone."""
    source, receiver = connect(contexts[0], "rows")
    for number in range(50):
        with_some = {"properties": {"number": number}} if number % 3 == 0 else {}
        source.send(b"%d" % number, **with_some)
    source.flush()
    rows: list[tuple[bytes, dict[str, Any], bool]] = []
    while len(rows) < 50:
        batch = receiver.poll(100, SECONDS)
        is_message = [flags & 0xF00 == 0 for flags in batch.flags]
        views = [bytes(view) for view in batch.views()]
        assert views == batch.payloads()
        listed = list(zip(views, map(dict, batch.properties()), is_message, strict=True))
        rows += [row for row in listed if row[2]]
        assert [dict(message.properties) for message in batch] == [row[1] for row in listed if row[2]]
    assert rows == [
        (b"%d" % number, {"number": number} if number % 3 == 0 else {}, True) for number in range(50)
    ]
    assert receiver.poll(1, 0).properties() == []


def test_properties_outlive_the_batch_and_the_context() -> None:
    """A message owns its properties: they can be kept, compared, shown and pickled after everything else is
    closed."""
    with open_context() as context:
        source, receiver = connect(context, "kept")
        source.send(b"x", flush=True, properties=SMALL)
        (message,) = collect(receiver, 1)
    copy = pickle.loads(pickle.dumps(message))
    assert copy == message
    assert copy.properties == message.properties == SMALL
    assert "properties={'region': 'eu', 'priority': 3}" in repr(message)


def test_arrow_has_them_on_request(contexts: list[Context]) -> None:
    """to_arrow(properties=True) adds a map of texts, null if there are none; plain to_arrow() has the same columns as
    before."""
    pytest.importorskip("pyarrow")
    source, receiver = connect(contexts[0], "arrow")
    source.send(b"a", properties={"region": "eu", "urgent": True, "price": 2.5, "count": Byte(3)})
    source.send(b"b", flush=True)
    rows: list[Any] = []
    while len(rows) < 2:
        batch = receiver.poll(100, SECONDS)
        assert "properties" not in batch.to_arrow().schema.names
        rows += batch.to_arrow(properties=True).to_pylist()
    assert [row["payload"] for row in rows] == [b"a", b"b"]
    assert dict(rows[0]["properties"]) == {"region": "eu", "urgent": "true", "price": "2.5", "count": "3"}
    assert rows[1]["properties"] is None


@EVERY_WAY
def test_late_join_delivers_them(contexts: list[Context]) -> None:
    """Retained messages have their properties, in one datagram or several."""
    source = contexts[0].source("past", **RETAINED)
    sent = [b"short", LONG, b""]
    for number, data in enumerate(sent):
        source.send(data, flush=True, properties={"number": number})
    assert source.wait_drained(timeout=SECONDS)
    receiver = contexts[1].receiver("past", use_late_join=True)
    messages = collect(receiver, 3)
    assert [message.data for message in messages] == sent
    assert [dict(message.properties) for message in messages] == [{"number": n} for n in range(3)]
    assert all(message.flags & 8 for message in messages)
    assert receiver.stats()["properties_dropped"] == 0


@alone(ITS_LOSSES)
def test_off_transport_recovery_delivers_them(contexts: list[Context]) -> None:
    """Messages that the transport does not recover arrive from the source over TCP with their properties."""
    publisher = contexts[0]
    with open_context(transport_lbtrm_receiver_datagram_max_size=1440, **PORTS) as subscriber:
        source = publisher.source("otr", flow_control="min", **RETAINED)
        receiver = subscriber.receiver(
            "otr",
            transport_lbtrm_send_naks=0,
            otr_request_initial_delay=50,
            otr_request_message_timeout=5000,
        )
        source.wait_connected(timeout=SECONDS)
        source.send(b"first", flush=True, properties={"number": 0})
        source.send(bytes(1385), flush=True, properties={"number": 1})  # longer than the subscriber accepts
        source.send(b"last", flush=True, properties={"number": 2})
        messages = collect(receiver, 3)
    assert [dict(message.properties) for message in messages] == [{"number": n} for n in range(3)]
    assert [bool(message.flags & 0x20) for message in messages] == [False, True, False]


@EVERY_WAY
def test_hot_failover_numbers_and_properties_combine(contexts: list[Context]) -> None:
    """W1: two elements are in one chain; the first copy of each number is delivered with the properties of
    that copy.
    """
    receiver = contexts[1].hot_failover_receiver("copies")
    with open_context(**PORTS) as other:
        sources = [context.source("copies", flow_control="min") for context in (contexts[0], other)]
        for source in sources:
            source.wait_connected(timeout=SECONDS)
        for number in range(3):
            for source in sources:
                data = LONG if number == 1 else b"%d" % number
                source.send_hot_failover(data, number + 5, flush=True, properties={"number": number})
        sources[0].send_hot_failover(b"none", 8, flush=True)
        sources[0].send(b"without a number", flush=True, properties=SMALL)
        messages = collect(receiver, 5)
    numbered = [message for message in messages if message.flags & 0x10]
    assert [message.hot_failover_sequence_number for message in numbered] == [5, 6, 7, 8]
    for message in numbered[:-1]:
        number = message.hot_failover_sequence_number - 5
        assert dict(message.properties) == {"number": number}
        assert message.data == (LONG if number == 1 else b"%d" % number)
    assert dict(numbered[-1].properties) == {}
    (plain,) = [message for message in messages if not message.flags & 0x10]
    assert (plain.data, dict(plain.properties)) == (b"without a number", SMALL)


def test_wildcard_receivers_event_queues_and_callbacks_have_them(contexts: list[Context]) -> None:
    """Every way to read the rows returns the properties."""
    seen: list[Message] = []
    wildcard = contexts[1].wildcard_receiver(r"^kinds\.")
    contexts[1].receiver("kinds.of", on_message=seen.append)
    source = contexts[0].source("kinds.of", flow_control="min", **SHARED)
    source.wait_connected(timeout=SECONDS)
    wait_for(lambda: wildcard.topics(), "the topic")
    source.send(b"x", flush=True, properties=SMALL)
    (message,) = collect(wildcard, 1)
    wait_for(lambda: any(isinstance(event, Message) for event in seen), "the callback")
    called = next(event for event in seen if isinstance(event, Message))
    assert dict(message.properties) == dict(called.properties) == SMALL


@pytest.mark.parametrize("data", [b"short", LONG], ids=["short", "long"])
def test_a_request_has_them(contexts: list[Context], data: bytes) -> None:
    """A request with properties arrives as a request, and its responses arrive."""
    receiver = contexts[1].receiver("asked")
    source = contexts[0].source("asked", flow_control="min")
    source.wait_connected(timeout=SECONDS)
    with source.request(data, timeout=SECONDS, properties=SMALL) as pending:
        (request,) = collect(receiver, 1)
        assert request.is_request
        assert (request.data, dict(request.properties)) == (data, SMALL)
        request.respond(b"yes")
        assert pending.first(timeout=SECONDS).data == b"yes"
    with source.request(data, timeout=SECONDS):
        assert dict(collect(receiver, 1)[0].properties) == {}


def test_asynchronous_sends_and_reads_have_them(contexts: list[Context]) -> None:
    """Properties arrive with send_async() and async for."""
    source, receiver = connect(contexts[0], "async")

    async def both() -> Message:
        await source.send_async(b"x", flush=True, properties=SMALL)
        async for message in receiver:
            return message
        raise AssertionError("no message arrived")

    assert dict(asyncio.run(asyncio.wait_for(both(), SECONDS)).properties) == SMALL


def test_any_buffer_can_have_properties(contexts: list[Context]) -> None:
    """Properties can be sent with every kind of data that send() accepts."""
    source, receiver = connect(contexts[0], "buffers")
    for data in (bytearray(b"abcd"), memoryview(b"abcd"), memoryview(b"abcd").cast("H")):
        source.send(data, flush=True, properties=SMALL)
    assert [(m.data, dict(m.properties)) for m in collect(receiver, 3)] == [(b"abcd", SMALL)] * 3


def test_messages_of_empty_mappings_are_plain(contexts: list[Context]) -> None:
    """Without properties there is no element on the wire."""
    source, receiver = connect(contexts[0], "plain")
    for properties in ({}, MessageProperties(), None):
        source.send(b"x", flush=True, properties=properties)
    assert [message.flags for message in collect(receiver, 3)] == [0, 0, 0]


def test_a_mapping_can_be_reused(contexts: list[Context]) -> None:
    """MessageProperties is immutable, checks its contents once, and equals the mapping it was made from."""
    once = MessageProperties(SMALL)
    assert once == SMALL
    assert list(once) == ["region", "priority"]
    assert len(once) == 2
    assert "region" in once
    assert once.get("none") is None
    with pytest.raises(KeyError):
        once["none"]
    with pytest.raises(TypeError):
        once["region"] = "us"  # type: ignore[index]
    source, receiver = connect(contexts[0], "once")
    for _ in range(3):
        source.send(b"x", flush=True, properties=once)
    assert [message.properties for message in collect(receiver, 3)] == [once] * 3


# Refused values


class _Level(enum.IntEnum):
    HIGH = 3


def test_subclasses_are_their_types() -> None:
    """An IntEnum counts as an int."""
    found = MessageProperties({"level": _Level.HIGH})
    assert type(found["level"]) is int
    assert found["level"] == 3


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("", 1, "has 0 bytes"),
        ("n" * 251, 1, "has 251 bytes"),
        ("ü" * 126, 1, "has 252 bytes"),
        ("a\0b", 1, "has a NUL"),
        ("a\ud800", 1, "no text that UTF-8 has"),
        (7, 1, "not text"),
        ("a", "b\0c", "has a NUL"),
        ("a", "\ud800", "no text that UTF-8 has"),
        ("a", None, "NoneType, which no property can be"),
        ("a", b"bytes", "bytes, which no property can be"),
        ("a", [1], "list, which no property can be"),
        ("a", 2**63, "does not fit Long"),
        ("a", -(2**63) - 1, "does not fit Long"),
    ],
)
def test_values_that_cannot_be_encoded_are_refused(name: Any, value: Any, expected: str) -> None:
    """The error names the property, and nothing is sent."""
    with open_context() as context:
        source = context.source("refused", flow_control="none")
        with pytest.raises(InvalidArgument, match=expected):
            source.send(b"x", properties={name: value})
        assert source.send(b"y") == 0


def test_names_have_length_limits() -> None:
    """A name has 1 to 250 bytes, as documented."""
    for name in ("n", "n" * 250, "ü" * 125):
        assert dict(read_block(encoded({name: 1}))) == {name: 1}


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [(Byte, -(2**7), 2**7 - 1), (Short, -(2**15), 2**15 - 1), (Long, -(2**63), 2**63 - 1)],
)
def test_integers_have_a_range(kind: type[int], least: int, most: int) -> None:
    """A number outside the range of its type is refused when it is made."""
    assert [kind(least), kind(most)] == [least, most]
    for number in (least - 1, most + 1):
        with pytest.raises(InvalidArgument, match=f"{kind.__name__}, which holds {least} to {most}"):
            kind(number)
    with pytest.raises(InvalidArgument, match="32 bits"):
        Float(1e39)
    assert (repr(kind(5)), str(kind(5))) == (f"{kind.__name__}(5)", "5")
    assert (repr(Float(0.5)), str(Float(0.5))) == ("Float(0.5)", "0.5")


def test_a_block_has_a_maximum_length() -> None:
    """A block has at most 65535 bytes including names and table; the error states the limit, and a receiver accepts
    the longest."""
    fits = 65535 - len(encoded({"long": ""}))
    with open_context() as context:
        source, receiver = connect(context, "longest")
        source.send(b"x", flush=True, properties={"long": "v" * fits})
        (message,) = collect(receiver, 1)
        assert message.properties["long"] == "v" * fits
        with pytest.raises(MessageTooLong, match="65536 bytes, at most 65535"):
            source.send(b"x", properties={"long": "v" * (fits + 1)})


def test_properties_count_towards_the_longest_message() -> None:
    """A message and its properties together are limited to the longest message."""
    with open_context() as context:
        source = context.source("sum", flow_control="none")
        block = encoded(SMALL)
        longest = bytes(source.message_maximum_bytes - len(block))
        source.send(longest, properties=SMALL)
        with pytest.raises(MessageTooLong, match=f"{source.message_maximum_bytes} bytes"):
            source.send(longest + b"x", properties=SMALL)


def test_explicit_batches_carry_none(contexts: list[Context]) -> None:
    """A message with properties and a mark, or in an open batch, is refused, and the error names the
    reason.
    """
    source, receiver = connect(contexts[0], "batch")
    with pytest.raises(InvalidArgument, match="explicit batch carries no properties"):
        source.send(b"x", batch="complete", properties=SMALL)
    source.send(b"1", batch="start")
    with pytest.raises(InvalidArgument, match="an explicit batch is open"):
        source.send(b"x", properties=SMALL)
    source.send(b"2", batch="end", flush=True)
    source.send(b"3", flush=True, properties=SMALL)
    assert [message.data for message in collect(receiver, 3)] == [b"1", b"2", b"3"]


# Blocks of other implementations


def _block(order: str, *properties: tuple[bytes, int, bytes]) -> bytes:
    """Return a block made by hand."""
    table, tail = b"", b""
    for name, kind, value in properties:
        at = 8 + 16 * len(properties) + len(tail)
        table += struct.pack(f"{order}IIII", at, at + len(name) + 1, 0x12345678, kind)
        tail += name + b"\0" + value
    return struct.pack(f"{order}IHBB", 0xABACDABA, len(properties), 0x10, 0) + table + tail


@pytest.mark.parametrize("order", ["<", ">"])
def test_blocks_of_either_byte_order_are_read(order: str) -> None:
    """W1: the magic sets the byte order of everything, independent of hash and version."""
    block = _block(
        order,
        (b"flag", 1, b"\2"),
        (b"short", 3, struct.pack(f"{order}h", -300)),
        (b"long", 5, struct.pack(f"{order}q", -7)),
        (b"double", 7, struct.pack(f"{order}d", 2.5)),
        (b"text", 8, b"abc\0"),
    )
    assert is_sound(block)
    assert dict(read_block(block)) == {"flag": True, "short": -300, "long": -7, "double": 2.5, "text": "abc"}


def test_unusual_blocks_are_read_as_documented() -> None:
    """W1: the first entry of a name counts, unknown types are omitted, and text that is not UTF-8 can be sent again
    unchanged."""
    block = _block(
        "<", (b"a", 2, b"\1"), (b"a", 2, b"\2"), (b"b", 0, b""), (b"c", 99, b"\1"), (b"d", 8, b"\xff\0")
    )
    found = read_block(block)
    assert dict(found) == {"a": 1, "d": "\udcff"}
    assert encoded(dict(found)).endswith(b"\xff\0")


@pytest.mark.parametrize("bad", [b"", b"x" * 40, _block("<", (b"a", 4, b"\1")), _block("<", (b"", 2, b"\1"))])
def test_invalid_blocks_are_refused(bad: bytes) -> None:
    """W1: a block with invalid offsets, magic or names raises an error, and no read exceeds its end."""
    assert not is_sound(bad)
    with pytest.raises(InvalidArgument, match="no message properties"):
        read_block(bad)


def test_public_types_are_exported() -> None:
    """The package exports the names that a publisher needs."""
    assert {"Byte", "Float", "Long", "MessageProperties", "Short"} <= set(umstack.__all__)
