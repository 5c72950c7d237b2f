"""The messages of a chaos run: each states its source, its number and its length, and the rest follows from these."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass

_HEADER = struct.Struct("<8sQI")
HEADER_BYTES = _HEADER.size
LENGTH_MAX_BYTES = 64 << 10
_POOL = random.Random("chaos").randbytes(2 * LENGTH_MAX_BYTES)


@dataclass(frozen=True, slots=True)
class Stamp:
    """The header of a message."""

    incarnation: bytes
    """Eight random bytes of the source object that sent it: a restarted publisher has others."""
    number: int
    """The position of the message among those of its incarnation, from 0."""


def payload(incarnation: bytes, number: int, length_bytes: int) -> bytes:
    """Return the only valid message of this incarnation with this number and length."""
    header = _HEADER.pack(incarnation, number, length_bytes)
    start = number * 40503 % LENGTH_MAX_BYTES
    return header + _POOL[start : start + length_bytes - HEADER_BYTES]


def stamp_of(data: bytes) -> Stamp | None:
    """Return the header of a message, or None if any byte of the message differs."""
    if len(data) < HEADER_BYTES:
        return None
    incarnation, number, length_bytes = _HEADER.unpack_from(data)
    if length_bytes != len(data) or data != payload(incarnation, number, length_bytes):
        return None
    return Stamp(incarnation, number)
