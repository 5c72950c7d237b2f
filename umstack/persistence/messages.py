"""Data messages as a Store keeps them: the header of LBMC with topic index and sqn, then the payload."""

from __future__ import annotations

import struct
from typing import NamedTuple

from umstack.store.wire import MESSAGE, MalformedMessage

_DATA = struct.Struct("!BBHII")
DATA_HEADER_BYTES = _DATA.size
_DATA_FOLLOWS = 0
"""Next header of a message without options: the payload."""
_SPACE = 1 << 32
NEXT_MAX = 1 << 20
"""How far ahead of the newest message a reader may begin beyond the wrap of the numbers: more are not in flight."""


class StoredData(NamedTuple):
    """The fields of an unfragmented message."""

    topic_index: int
    sqn: int
    """32 bits."""
    payload: bytes


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


def encode_data(topic_index: int, sqn: int, payload: bytes, kind: int = MESSAGE) -> bytes:
    """Return a message without options. Raises struct.error if the payload is too long."""
    return _DATA.pack(kind, _DATA_FOLLOWS, _DATA.size + len(payload), topic_index, sqn % _SPACE) + payload


def data_of(message: bytes) -> StoredData:
    """Return the fields of a stored or received message. Raises MalformedMessage."""
    if len(message) < _DATA.size:
        raise MalformedMessage(f"data of {len(message)} bytes")
    _, option, length, topic_index, sqn = _DATA.unpack_from(message)
    if option != _DATA_FOLLOWS or length != len(message):
        raise MalformedMessage("data with options, or of a wrong length")
    return StoredData(topic_index, sqn, message[_DATA.size :])
