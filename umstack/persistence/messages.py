"""Data messages as Stores keep, send and get them: the header of LBMC, its options, then the payload."""

from __future__ import annotations

import struct
from typing import NamedTuple

from umstack._core import lib
from umstack.store.wire import MalformedMessage

_HEADER = struct.Struct("!BBHII")
_TOPIC_INDEX = struct.Struct("!I")
_TOPIC_INDEX_AT, _SQN_AT = 4, 8
_OPTION_HEAD_BYTES = 4
_IGNORABLE = 0x80
_FRAGMENT = struct.Struct("!4xIII")
_PROPERTIES, _CHAIN_END = 6, 255
"""Elements of the chain option."""
_ELEMENT = struct.Struct("!BBxxI")
_SPACE = 1 << 32
NEXT_MAX = 1 << 20
"""How far ahead of the newest message a reader may begin beyond the wrap of the numbers: more are not in flight."""


class Fragment(NamedTuple):
    """The place of a fragment in its message."""

    first_sqn: int
    """Number of the message's first fragment, 32 bits."""
    offset: int
    total: int
    """Bytes of the whole message, properties included."""


class StoredData(NamedTuple):
    """A data message."""

    topic_index: int
    sqn: int
    """32 bits."""
    payload: bytes
    fragment: Fragment | None
    """None: a whole message."""
    properties_bytes: int
    """Length of the properties at the end of the whole message's payload, unchecked; 0: none."""
    encoded: bytes


def extended(sqn: int, near: int) -> int:
    """Return the 64-bit number with these lower 32 bits that is nearest to `near`; never negative."""
    found = near + ((sqn - near + (_SPACE >> 1)) % _SPACE) - (_SPACE >> 1)
    return found if found >= 0 else found + _SPACE


def start_near(sqn: int, newest: int) -> int:
    """Return the 64-bit number that a reader means who names the first message by these lower 32 bits.

    It is the one nearest to the newest message, unless that is more than NEXT_MAX ahead of it, and the source has sent
    this number before: then an old message is meant, also where the source is beyond 2^31.
    """
    found = extended(sqn, newest)
    was_sent = sqn % _SPACE <= newest % _SPACE
    return found - _SPACE if was_sent and found - newest > NEXT_MAX else found


def end_near(sqn: int, newest: int) -> int:
    """Return the 64-bit number after a consumed message with these lower 32 bits: from 0 to `newest` + 1."""
    distance = (sqn + 1 - newest + (_SPACE >> 1)) % _SPACE - (_SPACE >> 1)
    return min(max(newest + distance, 0), newest + 1)


def sqn_of(message: bytes) -> int:
    """Return the number of a data message, 32 bits. Raises MalformedMessage."""
    if len(message) < _HEADER.size:
        raise MalformedMessage(f"data of {len(message)} bytes")
    return int(_TOPIC_INDEX.unpack_from(message, _SQN_AT)[0])


def with_topic_index(message: bytes, topic_index: int) -> bytes:
    """Return a copy of a data message with another topic index: each session of a source has its own."""
    return message[:_TOPIC_INDEX_AT] + _TOPIC_INDEX.pack(topic_index) + message[_SQN_AT:]


def data_of(message: bytes) -> StoredData:
    """Return the fields of a data message. Raises MalformedMessage."""
    if len(message) < _HEADER.size:
        raise MalformedMessage(f"data of {len(message)} bytes")
    _, option, length, topic_index, sqn = _HEADER.unpack_from(message)
    if length != len(message):
        raise MalformedMessage(f"data of {len(message)} bytes that counts {length}")
    if option == lib.UM_LBMC_OPTION_DATA:
        return StoredData(topic_index, sqn, message[_HEADER.size :], None, 0, message)
    return _with_options(message, option, topic_index, sqn)


def _with_options(message: bytes, following: int, topic_index: int, sqn: int) -> StoredData:
    at, fragment, properties_bytes = _HEADER.size, None, 0
    while following != lib.UM_LBMC_OPTION_DATA:
        size = message[at + 1] if at + _OPTION_HEAD_BYTES <= len(message) else 0
        if size < _OPTION_HEAD_BYTES or at + size > len(message):
            raise MalformedMessage(f"option {following} does not fit its message")
        option = message[at : at + size]
        if following == lib.UM_LBMC_OPTION_FRAGMENT and size == lib.UM_LBMC_FRAGMENT_BYTES:
            fragment = Fragment(*_FRAGMENT.unpack(option))
        elif following == lib.UM_LBMC_OPTION_CHAIN:
            properties_bytes = _properties_bytes_of(option)
        elif not option[2] & _IGNORABLE:
            raise MalformedMessage(f"option {following} is unknown, or of a wrong length")
        following, at = option[0], at + size
    payload = message[at:]
    if fragment is not None and not (
        0 < len(payload) <= fragment.total - fragment.offset
        and (sqn - fragment.first_sqn) % _SPACE < _SPACE >> 1
    ):
        raise MalformedMessage("a fragment that is outside its message")
    return StoredData(topic_index, sqn, payload, fragment, properties_bytes, message)


def _properties_bytes_of(option: bytes) -> int:
    """Return the length that a chain option has for the properties; 0: none."""
    following, at = option[3], _OPTION_HEAD_BYTES
    while following != _CHAIN_END and at + _OPTION_HEAD_BYTES <= len(option):
        size = option[at + 1]
        if size < _OPTION_HEAD_BYTES or at + size > len(option):
            break
        if following == _PROPERTIES and size == _ELEMENT.size:
            return int(_ELEMENT.unpack_from(option, at)[2])
        following, at = option[at], at + size
    return 0
