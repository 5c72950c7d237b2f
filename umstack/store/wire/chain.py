"""Chains of LBMC options: a control message is a header of 4 bytes and options, each of which names the next.

    type 0x08, first option, length 2 | next option or 255, length 1, flags 1 or 2, ... | ...

All integers are big endian.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from umstack._engine.endpoint import Endpoint

CONTROL, MESSAGE, PROACTIVE, RECOVERED = 8, 0, 2, 10
"""LBMC types: options only; a message; a source's unicast repetition for a Store; a Store's answer to a request."""

HEADER_BYTES = 4
OPTION_HEAD_BYTES = 2
OPTION_MAXIMUM_BYTES = 255
MESSAGE_HEADER_BYTES = 12
MESSAGE_MAXIMUM_BYTES = 0xFFFF

_NONE = 255
_LAST = bytes((_NONE,))
_HEADER = struct.Struct("!BBH")
_IGNORABLE = 0x80


class MalformedMessage(ValueError):
    """The received bytes violate the protocol; the connection must be ended."""


class Option(NamedTuple):
    """An option: its type, and its bytes after next header and length."""

    type: int
    body: bytes


def message_bytes(received: bytes | memoryview) -> int:
    """Return the length of the first message of a stream, or 0 while its header is incomplete.

    Raises MalformedMessage if no message of this protocol starts here.
    """
    if len(received) < HEADER_BYTES:
        return 0
    kind, _, length = _HEADER.unpack_from(received)
    minimum = HEADER_BYTES if kind == CONTROL else MESSAGE_HEADER_BYTES
    if kind not in (CONTROL, MESSAGE, PROACTIVE, RECOVERED) or length < minimum:
        raise MalformedMessage(f"no LBMC message: type and version 0x{kind:02x}, length {length}")
    return int(length)


def with_type(message: bytes, kind: int) -> bytes:
    """Return a copy of a message with another type: a stored message as PROACTIVE or RECOVERED."""
    return bytes((kind,)) + message[1:]


def encode_chain(options: Sequence[Option]) -> bytes:
    """Return a control message. Raises ValueError if an option or the message is too long."""
    kinds = [option.type for option in options] + [_NONE]
    parts = [b""]
    for following, (kind, body) in zip(kinds[1:], options, strict=True):
        size = OPTION_HEAD_BYTES + len(body)
        if size > OPTION_MAXIMUM_BYTES:
            raise ValueError(f"option {kind} has {size} bytes; at most {OPTION_MAXIMUM_BYTES}")
        parts.append(bytes((following, size)) + body)
    length = HEADER_BYTES + sum(map(len, parts))
    if length > MESSAGE_MAXIMUM_BYTES:
        raise ValueError(f"a control message of {length} bytes; at most {MESSAGE_MAXIMUM_BYTES}")
    parts[0] = _HEADER.pack(CONTROL, kinds[0], length)
    return b"".join(parts)


def encode_alike(kind: int, bodies: Sequence[bytes]) -> bytes:
    """Return a control message with options of one type and length. Raises ValueError if it is too long."""
    size = OPTION_HEAD_BYTES + len(bodies[0])
    length = HEADER_BYTES + len(bodies) * size
    if length > MESSAGE_MAXIMUM_BYTES:
        raise ValueError(f"a control message of {length} bytes; at most {MESSAGE_MAXIMUM_BYTES}")
    head, last = bytes((kind, size)), bytes((_NONE, size))
    parts = [head + body for body in bodies[:-1]]
    return b"".join((_HEADER.pack(CONTROL, kind, length), *parts, last, bodies[-1]))


def decode_alike(message: bytes | memoryview, kind: int, layout: struct.Struct) -> list[tuple[Any, ...]]:
    """Return the fields of the options of a control message that has this type only; empty: it is another one."""
    size = OPTION_HEAD_BYTES + layout.size
    count, rest = divmod(len(message) - HEADER_BYTES, size)
    if rest or count < 1 or _HEADER.unpack_from(message) != (CONTROL, kind, len(message)):
        return []
    options = memoryview(message)[HEADER_BYTES:]
    following = bytes(options[::size])
    if bytes(options[1::size]) != bytes((size,)) * count or following != bytes((kind,)) * (count - 1) + _LAST:
        return []
    return [layout.unpack_from(options, at) for at in range(OPTION_HEAD_BYTES, count * size, size)]


def decode_chain(message: bytes | memoryview) -> list[Option]:
    """Return the options of a complete control message, in order. Raises MalformedMessage."""
    message = bytes(message)
    if not message or message_bytes(message) != len(message) or message[0] != CONTROL:
        raise MalformedMessage("not one complete control message")
    options = []
    following, at = message[1], HEADER_BYTES
    while following != _NONE:
        size = message[at + 1] if at + HEADER_BYTES <= len(message) else 0
        if size < HEADER_BYTES or at + size > len(message):
            raise MalformedMessage(f"option {following} does not fit its message")
        options.append(Option(following, message[at + OPTION_HEAD_BYTES : at + size]))
        following, at = message[at], at + size
    if at != len(message):
        raise MalformedMessage(f"{len(message) - at} bytes follow the last option")
    return options


class ReceivedOptions:
    """The options of a received message, by type."""

    def __init__(self, options: Iterable[Option], known: frozenset[int]) -> None:
        """Group the options. Raises MalformedMessage if an unknown one must not be ignored."""
        self.in_order = list(options)
        self._bodies: dict[int, list[bytes]] = {}
        for kind, body in self.in_order:
            if kind not in known and not body[0] & _IGNORABLE:
                raise MalformedMessage(f"option {kind} is unknown and must not be ignored")
            self._bodies.setdefault(kind, []).append(body)

    def every(self, kind: int, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """Return the fields of every option of a type. Raises MalformedMessage."""
        return [unpack(kind, layout, body) for body in self._bodies.get(kind, ())]

    def one(self, kind: int, layout: struct.Struct) -> tuple[Any, ...] | None:
        """Return the fields of the option of a type, or None if it is missing. Raises MalformedMessage."""
        found = self.bodies(kind)
        if len(found) > 1:
            raise MalformedMessage(f"option {kind} is repeated")
        return unpack(kind, layout, found[0]) if found else None

    def bodies(self, kind: int) -> list[bytes]:
        """Return the bytes of every option of a type."""
        return self._bodies.get(kind, [])


def unpack(kind: int, layout: struct.Struct, body: bytes) -> tuple[Any, ...]:
    """Return the fields of an option. Raises MalformedMessage if it has another length."""
    if len(body) != layout.size:
        raise MalformedMessage(
            f"option {kind} has {OPTION_HEAD_BYTES + len(body)} bytes, not {OPTION_HEAD_BYTES + layout.size}"
        )
    return layout.unpack(body)


def encode_text(text: str, maximum_bytes: int) -> bytes:
    """Return text with its final NUL. Raises ValueError if it is too long or contains NUL."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > maximum_bytes or b"\0" in data:
        raise ValueError(f"{text[:20]!r} has {len(data)} bytes; at most {maximum_bytes}, without NUL")
    return data + b"\0"


def decode_text(kind: int, data: bytes, maximum_bytes: int) -> str:
    """Return text before its NUL, which may be missing. Raises MalformedMessage if it is too long, or no UTF-8."""
    text = data.partition(b"\0")[0]
    if len(text) > maximum_bytes:
        raise MalformedMessage(f"the text of option {kind} has {len(text)} bytes; at most {maximum_bytes}")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"the text of option {kind} is no UTF-8") from error


def pack_endpoint(endpoint: Endpoint | None) -> tuple[bytes, int]:
    """Return address and port, 0 without an endpoint. Raises OSError for an invalid address."""
    return (bytes(4), 0) if endpoint is None else (socket.inet_aton(endpoint.ip), endpoint.port)


def unpack_endpoint(ip: bytes, port: int) -> Endpoint | None:
    """Return the endpoint, or None without a port."""
    return Endpoint(socket.inet_ntoa(ip), port) if port else None


__all__ = [
    "CONTROL",
    "HEADER_BYTES",
    "MESSAGE",
    "MESSAGE_HEADER_BYTES",
    "MESSAGE_MAXIMUM_BYTES",
    "PROACTIVE",
    "RECOVERED",
    "MalformedMessage",
    "Option",
    "ReceivedOptions",
    "decode_alike",
    "decode_chain",
    "decode_text",
    "encode_alike",
    "encode_chain",
    "encode_text",
    "message_bytes",
    "pack_endpoint",
    "unpack",
    "unpack_endpoint",
    "with_type",
]
