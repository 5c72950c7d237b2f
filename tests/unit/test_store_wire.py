"""The codec of persistence: round trips, golden bytes, and a decoder that refuses what violates the layout."""

from __future__ import annotations

import re
import struct
from functools import partial
from typing import Any

import pytest

from tests.store_messages import MESSAGES, RECEIVER_REG, SOURCE_REG, STORES
from umstack.store import wire
from umstack.store.wire import (
    ConfigurationValue,
    ConsumptionAck,
    MalformedMessage,
    Registration,
    RegistrationError,
    RegistrationResponse,
    RetransmissionRequest,
    RetransmissionRequests,
    SqnRange,
    StabilityAck,
    decode,
    message_bytes,
    with_type,
)
from umstack.store.wire.chain import Option, encode_alike, encode_chain

STABLE = bytes.fromhex("08140028171400010000004d000003e9000000000000002c18040000ff0c00000000002a0000002c")
CONSUMED = bytes.fromhex("0814001c171408000000004d954888bc954888bd0000002cff040000")
ERROR = bytes.fromhex("0813002017182580000003e80000004d000003e90000000000000000ff040001")


@pytest.mark.parametrize("name", MESSAGES)
def test_every_message_is_decoded_to_what_was_encoded(name: str) -> None:
    assert decode(MESSAGES[name].encode()) == MESSAGES[name]


def test_golden_bytes() -> None:
    """The bytes of the reference's capture, which tshark decodes."""
    stable = StabilityAck(transport_index=77, topic_index=1001, store_index=0, ranges=(SqnRange(42, 44),))
    assert (stable.encode(), decode(STABLE)) == (STABLE, stable)
    consumed = ConsumptionAck(
        transport_index=77, source_reg_id=SOURCE_REG, receiver_reg_id=RECEIVER_REG, sqn=44, store_index=0,
        is_explicit=True,
    )  # fmt: skip
    assert (consumed.encode(), decode(CONSUMED)) == (CONSUMED, consumed)
    refused = decode(ERROR)
    assert isinstance(refused, RegistrationResponse)
    assert (refused.error, refused.store_index) == (RegistrationError.USED_BY_SOURCE, 1)


@pytest.mark.parametrize("name", MESSAGES)
def test_truncated_messages_are_refused(name: str) -> None:
    """Cut at every byte, with the original length and with one that agrees."""
    whole = MESSAGES[name].encode()
    for size in range(len(whole)):
        with pytest.raises(MalformedMessage):
            decode(whole[:size])
        if size >= 4:
            with pytest.raises(MalformedMessage):
                decode(whole[:2] + size.to_bytes(2, "big") + whole[4:size])


@pytest.mark.parametrize("name", MESSAGES)
def test_a_flipped_bit_is_refused_or_decoded_to_a_message_that_can_be_encoded(name: str) -> None:
    whole = MESSAGES[name].encode()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            message = decode(changed)
        except MalformedMessage:
            continue
        assert message is None or decode(message.encode()) == message


REQUESTS = RetransmissionRequests(
    transport_index=0,
    source_reg_id=77,
    requests=tuple(RetransmissionRequest(6 + at, 43 + at) for at in range(3)),
).encode()


@pytest.mark.parametrize(
    ("usual", "fast"),
    [
        (STABLE, "umstack.store.wire.decoding.decode_one_range"),
        (REQUESTS, "umstack.store.wire.exchange.decode_alike"),
    ],
)
def test_the_usual_messages_are_decoded_alike_option_by_option(
    monkeypatch: pytest.MonkeyPatch, usual: bytes, fast: str
) -> None:
    """With any bit flipped, and cut anywhere, too."""
    flipped = [bytearray(usual) for _ in range(8 * len(usual))]
    for bit, message in enumerate(flipped):
        message[bit // 8] ^= 1 << bit % 8
    cut = [usual[:size] for size in range(4, len(usual))]

    def decoded() -> list[object]:
        found: list[object] = []
        for message in (usual, *flipped, *cut):
            try:
                found.append(decode(message))
            except MalformedMessage as error:
                found.append(str(error))
        return found

    found = decoded()
    assert isinstance(found[0], (StabilityAck, RetransmissionRequests))
    monkeypatch.setattr(fast, lambda *_: None)
    assert decoded() == found


def test_options_alike_are_encoded_as_any_others() -> None:
    """The messages that a receiver sends most."""
    bodies = [bytes((at,)) * 26 for at in range(5)]
    for count in range(1, 6):
        assert encode_alike(21, bodies[:count]) == encode_chain([Option(21, body) for body in bodies[:count]])
    with pytest.raises(ValueError, match="at most 65535"):
        encode_alike(21, [bytes(26)] * 3000)


def chained(*options: tuple[int, bytes]) -> bytes:
    """Return a control message with these options, whatever their length."""
    kinds = [kind for kind, _ in options] + [255]
    body = b"".join(bytes((kinds[i + 1], 2 + len(data))) + data for i, (_, data) in enumerate(options))
    return struct.pack("!BBH", 8, kinds[0], 4 + len(body)) + body


KEEPALIVE = (22, bytes(14))
ACK = (20, bytes(17) + b"\x09")
STABLE_9 = (20, b"\0\1" + bytes(15) + b"\x09")
RANGE = struct.Struct("!HII")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ([(22, bytes(15))], "option 22 has 17 bytes, not 16"),
        ([KEEPALIVE, KEEPALIVE], "option 22 is repeated"),
        ([KEEPALIVE, ACK], r"one control message with options \[20, 22\]"),
        ([KEEPALIVE, (31, bytes(2))], "option 31 is unknown"),
        ([(22, b"\0\3" + bytes(12))], "keepalive of type 3"),
        ([(20, b"\0\2" + bytes(16))], "acknowledgement of type 2"),
        ([STABLE_9, (24, RANGE.pack(0, 9, 8))], "not in order"),
        ([STABLE_9, (24, RANGE.pack(0, 5, 6)), (24, RANGE.pack(0, 6, 9))], "not in order"),
        ([STABLE_9, (24, RANGE.pack(0, 9 + (1 << 31), 9))], "not in order"),
        ([STABLE_9, (24, RANGE.pack(0, 5, 8))], "does not end with its sqn"),
        ([(85, bytes(14))], "without the topic's index"),
        ([(85, bytes(14)), (14, bytes(10)), (61, b"\0\0NAME\0")], "option 61 follows no Store"),
        ([(85, bytes(14)), (14, bytes(10)), (105, bytes(22)), (105, bytes(22))], "two with the same index"),
        ([KEEPALIVE, (254, b"\0\0\1\0\0\0\1\0name\0value")], "a configuration value is incomplete"),
        ([KEEPALIVE, (254, b"\0\0\1\1\0\0")], "extended option 257 is unknown"),
        ([KEEPALIVE, (254, b"\x80\0\1\0")], "shorter than its head"),
        ([KEEPALIVE, (254, b"\0\0\1\0\0\0\1\0store_flight_size_bytes\0-1\0")], "not a number"),
        ([KEEPALIVE, *2 * [(254, b"\0\0\1\0\0\0" + 33 * b"\1\0a\0\0")]], "66 configuration values"),
        ([(18, bytes(26)), (5, bytes(2)), (5, bytes(2))], "two topic names"),
        ([(18, bytes(26)), (5, b"\0\0" + b"a" * 247)], "has 247 bytes"),
        ([(21, bytes(26)), (21, b"\0" * 10 + b"\1" + bytes(15))], "of several sources"),
    ],
)
def test_violations_are_reported(options: list[tuple[int, bytes]], reason: str) -> None:
    with pytest.raises(MalformedMessage, match=reason):
        decode(chained(*options))


def test_options_that_may_be_ignored_are() -> None:
    """Of any length, also behind those that are read."""
    with_unknown = chained(KEEPALIVE, (31, b"\x80\0" + bytes(9)), (254, b"\x80\0\1\1\0\0other"))
    assert decode(with_unknown) == decode(chained(KEEPALIVE))


def test_messages_of_other_protocols_are_not_decoded() -> None:
    """An empty control message, and the sqns of idle topics."""
    assert decode(bytes.fromhex("08ff0004")) is None
    assert decode(chained((32, b"\0\1" + bytes(8)))) is None


def test_texts_that_are_too_long_are_not_encoded() -> None:
    registration = partial(Registration, is_source=True, transport_index=1, topic_index=2)
    refused: tuple[dict[str, Any], ...] = (
        {"topic": "a" * 247},
        {"topic": "a\0b"},
        {"configuration": (ConfigurationValue("a" * 245, ""),)},
        {"context_instance": b"seven.."},
    )
    for too_long in refused:
        with pytest.raises(ValueError, match=r"bytes"):
            registration(**too_long).encode()
    many = tuple(ConfigurationValue(f"option_{i}", "v" * 200) for i in range(3))
    assert decode(registration(configuration=many).encode()) == registration(configuration=many)
    assert decode(registration(topic="a" * 246, stores=STORES).encode()) == registration(
        topic="a" * 246, stores=STORES
    )


def test_a_stream_is_split_into_messages() -> None:
    """By the length of each; the header of data is longer than that of control messages."""
    assert message_bytes(STABLE[:3]) == 0
    assert message_bytes(STABLE[:4] + b"more") == len(STABLE)
    data = bytes.fromhex("0000000e000003e90000002a") + b"hi"
    recovered = with_type(data, wire.RECOVERED)
    assert (message_bytes(recovered), recovered[0], recovered[1:]) == (14, 10, data[1:])
    for broken in ("02000008", "08ff0003", "18ff0004", "01ff0004"):
        with pytest.raises(MalformedMessage, match=re.escape("no LBMC message")):
            message_bytes(bytes.fromhex(broken))
