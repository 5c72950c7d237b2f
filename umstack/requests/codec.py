"""Responses as LBMC messages on a TCP stream (layout: docs/wire.md).

    header 12 | request 16: the request's index, no port | stream 20: responder, response number | fragment 16 | payload

A request option without a port is not a request: it names the request that the message responds to. The stream option
identifies the stream and numbers its responses, so that duplicates are detected.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

HEADER_BYTES = 12
MESSAGE_MAX_BYTES = 65535

_MESSAGE = 0
_DATA, _FRAGMENT, _REQUEST, _STREAM, _NONE = 0, 1, 4, 75, 255
_HEADER = struct.Struct("!BBHII")
_REQUEST_OPTION = struct.Struct("!BBBBIHHI")
_STREAM_OPTION = struct.Struct("!BBHII8s")
_FRAGMENT_OPTION = struct.Struct("!BBHIII")
_WHOLE = struct.Struct("!BBHII BBBBIHHI BBHII8s")
"""The header and the two options of a response that is not fragmented."""
_HEADS_BYTES = HEADER_BYTES + _REQUEST_OPTION.size + _STREAM_OPTION.size
_IGNORABLE = 0x80

FRAGMENT_MAX_BYTES = MESSAGE_MAX_BYTES - _HEADS_BYTES - _FRAGMENT_OPTION.size
"""Payload bytes of every fragment but the last."""
WHOLE_MAX_BYTES = MESSAGE_MAX_BYTES - _HEADS_BYTES
"""Maximum payload bytes of a response that is not fragmented."""


class ResponseStream(NamedTuple):
    """The stream of responses on one connection."""

    instance: bytes
    """8 random bytes that identify the responder's context."""
    id: int


class ResponsePart(NamedTuple):
    """One LBMC message of a stream: a response or a fragment of one."""

    request_index: int
    sqn: int
    stream: ResponseStream | None
    stream_sqn: int
    first_sqn: int
    """Sequence number of the first fragment, or of the message if it is not fragmented."""
    offset: int
    total: int
    payload_from: int
    """Offset of the payload, which extends to the end of the message."""


class MalformedResponse(Exception):
    """The peer violates the protocol."""


def encode_head(request_index: int, sqn: int, stream: ResponseStream, stream_sqn: int, length: int) -> bytes:
    """Return the header and options of an unfragmented response with a payload of `length` bytes."""
    return _WHOLE.pack(
        _MESSAGE, _REQUEST, _HEADS_BYTES + length, 0, sqn,
        _STREAM, _REQUEST_OPTION.size, _IGNORABLE, 0, request_index, 0, 0, 0,
        _DATA, _STREAM_OPTION.size, _IGNORABLE << 8, stream.id, stream_sqn, stream.instance,
    )  # fmt: skip


def encode_fragment_head(
    request_index: int,
    sqn: int,
    stream: ResponseStream,
    stream_sqn: int,
    first_sqn: int,
    offset: int,
    length: int,
    total: int,
) -> bytes:
    """Return the header and options of a fragment with a payload of `length` bytes."""
    return (
        _HEADER.pack(_MESSAGE, _REQUEST, _HEADS_BYTES + _FRAGMENT_OPTION.size + length, 0, sqn)
        + _REQUEST_OPTION.pack(_STREAM, _REQUEST_OPTION.size, _IGNORABLE, 0, request_index, 0, 0, 0)
        + _STREAM_OPTION.pack(
            _FRAGMENT, _STREAM_OPTION.size, _IGNORABLE << 8, stream.id, stream_sqn, stream.instance
        )
        + _FRAGMENT_OPTION.pack(_DATA, _FRAGMENT_OPTION.size, 0, first_sqn, offset, total)
    )


def message_length(data: memoryview) -> int:
    """Return the length of the message that starts here with at least 4 bytes. Raises MalformedResponse."""
    length = data[2] << 8 | data[3]
    if data[0] != _MESSAGE or length < HEADER_BYTES:
        raise MalformedResponse
    return length


def _is_whole(message: memoryview) -> bool:
    """Return true if the message has exactly the header and options of an unfragmented response."""
    return (
        len(message) >= _HEADS_BYTES
        and message[1] == _REQUEST
        and message[12] == _STREAM
        and message[13] == _REQUEST_OPTION.size
        and message[28] == _DATA
        and message[29] == _STREAM_OPTION.size
    )


def _decode_whole(message: memoryview) -> ResponsePart:
    """Decode a response written by encode_head, the usual case."""
    (
        *_, sqn, _, _, _, transport, index, port, _, _, _, _, _, stream_id, stream_sqn, instance
    ) = _WHOLE.unpack_from(message)  # fmt: skip
    if transport or port:
        raise MalformedResponse  # a request; this side does not respond to any
    total = len(message) - _HEADS_BYTES
    return ResponsePart(
        index, sqn, ResponseStream(instance, stream_id), stream_sqn, sqn, 0, total, _HEADS_BYTES
    )


def decode_part(message: memoryview) -> ResponsePart:
    """Decode a complete message. Raises MalformedResponse."""
    return _decode_whole(message) if _is_whole(message) else _decode_chain(message)


def _decode_chain(message: memoryview) -> ResponsePart:
    """Decode a message option by option."""
    following = message[1]
    _, _, end, _, sqn = _HEADER.unpack_from(message)
    at = HEADER_BYTES
    index = -1
    stream: ResponseStream | None = None
    stream_sqn = offset = 0
    first_sqn, total = sqn, -1
    while following != _DATA:
        if at + 4 > end or following == _NONE:
            raise MalformedResponse
        length = message[at + 1]
        if length < 4 or at + length > end:
            raise MalformedResponse
        if following == _REQUEST and length == _REQUEST_OPTION.size:
            _, _, _, transport, index, port, _, _ = _REQUEST_OPTION.unpack_from(message, at)
            if transport or port:
                raise MalformedResponse  # a request; this side does not respond to any
        elif following == _STREAM and length == _STREAM_OPTION.size:
            *_, stream_id, stream_sqn, instance = _STREAM_OPTION.unpack_from(message, at)
            stream = ResponseStream(instance, stream_id)
        elif following == _FRAGMENT and length == _FRAGMENT_OPTION.size:
            *_, first_sqn, offset, total = _FRAGMENT_OPTION.unpack_from(message, at)
        elif not message[at + 2] & _IGNORABLE:
            raise MalformedResponse
        following = message[at]
        at += length
    if index < 0:
        raise MalformedResponse
    if total < 0:
        total = end - at
    elif not offset < total or end == at or end - at > total - offset:
        raise MalformedResponse
    return ResponsePart(index, sqn, stream, stream_sqn, first_sqn, offset, total, at)


__all__ = [
    "FRAGMENT_MAX_BYTES",
    "HEADER_BYTES",
    "MESSAGE_MAX_BYTES",
    "WHOLE_MAX_BYTES",
    "MalformedResponse",
    "ResponsePart",
    "ResponseStream",
    "decode_part",
    "encode_fragment_head",
    "encode_head",
    "message_length",
]
