"""Acknowledgements: of a Store to a source, of a receiver to a Store, of a receiver to a source."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from umstack.store.wire import option_types as layout
from umstack.store.wire.chain import CONTROL, MalformedMessage, Option, ReceivedOptions, encode_chain
from umstack.store.wire.option_types import OptionType
from umstack.store.wire.registration import STORE_INDEX_MAXIMUM, decode_session_id, decode_store_index

_CONSUMPTION, _STABILITY = 0, 1
_NOT_FORWARDED, _USER_REG_ID, _EXPLICIT = 0x20, 0x10, 0x08
_LOST = 0x04
"""The stability NAK. Ultra Messaging's bit is not known: this one is ours."""

RANGES_MAXIMUM = 5000
"""Maximum number of ranges in one acknowledgement, so that it fits a message."""

_HALF = 1 << 31
_RANGE_BYTES = 12
_ONE_RANGE = struct.Struct("!BBHBBBBIIIIBBHBBHII")
"""An acknowledgement of one range, which is the usual one: header, acknowledgement, store id, range."""
_ONE_RANGE_CONSTANTS = (
    *(CONTROL, OptionType.ACKNOWLEDGEMENT, _ONE_RANGE.size, OptionType.STORE_ID, 20, _STABILITY),
    *(OptionType.RANGED_ACKNOWLEDGEMENT, 4, 255, _RANGE_BYTES),
)


class SqnRange(NamedTuple):
    """Consecutive sqns, both included; sqns are 32 bits and wrap."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StabilityAck:
    """A Store has messages of a source on its medium, or has given them up."""

    transport_index: int
    topic_index: int
    store_index: int
    ranges: tuple[SqnRange, ...]
    """At least one, oldest first."""
    is_lost: bool = False
    """The Store has declared these messages lost; sending them again is useless."""

    def encode(self) -> bytes:
        """Return the control message. Raises struct.error if a value is out of range."""
        flags, last = self.is_lost * _LOST, self.ranges[-1].last
        if len(self.ranges) == 1:
            return _ONE_RANGE.pack(
                CONTROL, OptionType.ACKNOWLEDGEMENT, _ONE_RANGE.size,
                OptionType.STORE_ID, 20, flags, _STABILITY, self.transport_index, self.topic_index, 0, last,
                OptionType.RANGED_ACKNOWLEDGEMENT, 4, self.store_index,
                255, _RANGE_BYTES, 0, *self.ranges[0],
            )  # fmt: skip
        options = _acknowledgement(flags, _STABILITY, self.transport_index, self.topic_index, 0, last)
        options.append(Option(OptionType.STORE_ID, layout.STORE_ID.pack(self.store_index)))
        options += [
            Option(OptionType.RANGED_ACKNOWLEDGEMENT, layout.RANGED_ACKNOWLEDGEMENT.pack(0, *each))
            for each in self.ranges
        ]
        return encode_chain(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumptionAck:
    """A receiver has consumed every message up to `sqn` of a source; sent to a Store."""

    transport_index: int
    source_reg_id: int
    receiver_reg_id: int
    sqn: int
    store_index: int
    is_explicit: bool = False
    """The application acknowledged; otherwise the receiver did when the messages were consumed."""
    is_start: bool = False
    """Nothing was consumed: the receiver begins behind `sqn`. Such an acknowledgement is not forwarded."""

    def encode(self) -> bytes:
        """Return the control message. Raises struct.error if a value is out of range."""
        flags = self.is_start * _NOT_FORWARDED | self.is_explicit * _EXPLICIT
        options = _acknowledgement(
            flags, _CONSUMPTION, self.transport_index, self.source_reg_id, self.receiver_reg_id, self.sqn
        )
        options.append(Option(OptionType.STORE_ID, layout.STORE_ID.pack(self.store_index)))
        return encode_chain(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryConfirmation:
    """The application of a receiver has consumed every message up to `sqn`; a Store forwards it to the source."""

    transport_index: int
    topic_index: int
    user_reg_id: int
    """Number that the receiver's application chose; 0: none."""
    sqn: int
    ack_id: int
    """Counts the receiver's confirmations."""
    session_id: int = 0
    """Session id of the receiver; 0: not stated."""
    is_explicit: bool = False

    def encode(self) -> bytes:
        """Return the control message. Raises struct.error if a value is out of range."""
        flags = self.is_explicit * _EXPLICIT | bool(self.user_reg_id) * _USER_REG_ID
        options = _acknowledgement(
            flags, _CONSUMPTION, self.transport_index, self.topic_index, self.user_reg_id, self.sqn
        )
        options.append(Option(OptionType.ACKNOWLEDGEMENT_ID, layout.ACKNOWLEDGEMENT_ID.pack(0, self.ack_id)))
        if self.session_id:
            options.append(Option(OptionType.SESSION_ID, layout.SESSION_ID.pack(0, self.session_id)))
        return encode_chain(options)


def _acknowledgement(
    flags: int, kind: int, transport_index: int, identity: int, reg_id: int, sqn: int
) -> list[Option]:
    body = layout.ACKNOWLEDGEMENT.pack(flags, kind, transport_index, identity, reg_id, sqn)
    return [Option(OptionType.ACKNOWLEDGEMENT, body)]


def decode_acknowledgement(received: ReceivedOptions) -> StabilityAck | ConsumptionAck | DeliveryConfirmation:
    """Return the acknowledgement in these options. Raises MalformedMessage."""
    fields = received.one(OptionType.ACKNOWLEDGEMENT, layout.ACKNOWLEDGEMENT)
    assert fields is not None
    flags, kind, transport_index, identity, reg_id, sqn = fields
    if kind == _STABILITY:
        return StabilityAck(
            transport_index=transport_index,
            topic_index=identity,
            store_index=decode_store_index(received),
            ranges=_decode_ranges(received, sqn),
            is_lost=bool(flags & _LOST),
        )
    if kind != _CONSUMPTION:
        raise MalformedMessage(f"acknowledgement of type {kind}")
    ack_id = received.one(OptionType.ACKNOWLEDGEMENT_ID, layout.ACKNOWLEDGEMENT_ID)
    if ack_id is not None:
        return DeliveryConfirmation(
            transport_index=transport_index,
            topic_index=identity,
            user_reg_id=reg_id if flags & _USER_REG_ID else 0,
            sqn=sqn,
            ack_id=ack_id[1],
            session_id=decode_session_id(received),
            is_explicit=bool(flags & _EXPLICIT),
        )
    return ConsumptionAck(
        transport_index=transport_index,
        source_reg_id=identity,
        receiver_reg_id=reg_id,
        sqn=sqn,
        store_index=decode_store_index(received),
        is_explicit=bool(flags & _EXPLICIT),
        is_start=bool(flags & _NOT_FORWARDED),
    )


def decode_one_range(message: bytes | memoryview) -> StabilityAck | None:
    """Return the acknowledgement if it has exactly the usual layout, of one range. Faster than option by option."""
    if len(message) != _ONE_RANGE.size:
        return None
    (
        *head, flags, kind, transport_index, topic_index, _, sqn, second, second_bytes, store_index,
        third, third_bytes, _, first, last,
    ) = _ONE_RANGE.unpack(message)  # fmt: skip
    is_usual = (*head, kind, second, second_bytes, third, third_bytes) == _ONE_RANGE_CONSTANTS
    if not is_usual or last != sqn or (last - first) % (1 << 32) >= _HALF:
        return None
    return StabilityAck(
        transport_index=transport_index,
        topic_index=topic_index,
        store_index=store_index & STORE_INDEX_MAXIMUM,
        ranges=(SqnRange(first, last),),
        is_lost=bool(flags & _LOST),
    )


def _decode_ranges(received: ReceivedOptions, sqn: int) -> tuple[SqnRange, ...]:
    """Return the ranges: ascending, apart, the last ending with `sqn`. Raises MalformedMessage."""
    found = received.every(OptionType.RANGED_ACKNOWLEDGEMENT, layout.RANGED_ACKNOWLEDGEMENT)
    if not found:
        return (SqnRange(sqn, sqn),)
    ranges = tuple(SqnRange(first, last) for _, first, last in found)
    start, following = ranges[0].first, 0
    for each in ranges:
        first, last = (each.first - start) % (1 << 32), (each.last - start) % (1 << 32)
        if not following <= first <= last < _HALF:
            raise MalformedMessage("the ranges of an acknowledgement are not in order")
        following = last + 1
    if ranges[-1].last != sqn:
        raise MalformedMessage("the last range of an acknowledgement does not end with its sqn")
    return ranges


__all__ = [
    "RANGES_MAXIMUM",
    "ConsumptionAck",
    "DeliveryConfirmation",
    "SqnRange",
    "StabilityAck",
    "decode_acknowledgement",
    "decode_one_range",
]
