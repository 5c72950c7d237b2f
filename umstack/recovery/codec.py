"""The control messages of late join and off-transport recovery that Python writes and reads: requests for the range.

Requests for messages, and the messages, are the core's (ffi/core/retention.h). Layout: docs/wire.md.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from umstack.resolution.codec import WireOption

CONTROL = 0x08
OPTION_MESSAGE_REQUEST = 21
OPTION_RANGE_REQUEST = 78
HEADER_BYTES = 4
LATE_JOIN_REQUEST, OFF_TRANSPORT_REQUEST = 0, 1
"""Indices of range requests, which say in a capture what a connection is for; an answer repeats them."""

_TOPIC_OPTION_LATE_JOIN = 4
_OPTION_EXTENDED = 254
_OPTION_NONE = 255
_HAS_LOW, _HAS_COUNT, _HAS_OUTSTANDING = 1, 2, 4
_TOPIC_OPTION = struct.Struct("!HHH4sIII")
_HEADER = struct.Struct("!BBH")
_RANGE_REQUEST = struct.Struct("!BBHIII4sHHIII")
_EXTENDED = struct.Struct("!BBBBHHQQ")
_EXTENDED_ID = 85
_EXTENDED_SUBTYPE = 2
_NS_PER_MS = 1_000_000


class RecoveryEndpoint(NamedTuple):
    """Where a source takes requests."""

    ip: str
    port: int

    @classmethod
    def of_core(cls, address: Any) -> RecoveryEndpoint:
        """A um_address of the core."""
        return cls(str(ipaddress.IPv4Address(address.ip)), address.port)


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """How far back a receiver wants to go; None is no bound."""

    topic_index: int
    request_index: int = LATE_JOIN_REQUEST
    low_sqn: int | None = None
    count: int | None = None
    outstanding: int = 0
    bytes: int | None = None
    age_ns: int | None = None


def endpoint_option(endpoint: RecoveryEndpoint) -> WireOption:
    """The topic option of an advertisement that offers late join (UM-140)."""
    ip = socket.inet_aton(endpoint.ip)
    return WireOption(_TOPIC_OPTION_LATE_JOIN, _TOPIC_OPTION.pack(0, endpoint.port, 0, ip, 0, 0, 0))


def endpoint_of(options: Iterable[WireOption]) -> RecoveryEndpoint | None:
    """The endpoint that an advertisement's options offer; None without one, or one that cannot be."""
    for option in options:
        if option.type == _TOPIC_OPTION_LATE_JOIN and len(option.body) == _TOPIC_OPTION.size:
            _, port, _, ip, *_ = _TOPIC_OPTION.unpack(option.body)
            first = ip[0]
            return RecoveryEndpoint(socket.inet_ntoa(ip), port) if port and 0 < first < 224 else None
    return None


def encode_range_request(request: RangeRequest) -> bytes:
    """A control message with the request, and an extended option where it has bounds the format lacks."""
    bounded = request.bytes is not None or request.age_ns is not None
    extended = b""
    if bounded:
        age_ms = 0 if request.age_ns is None else max(1, request.age_ns // _NS_PER_MS)
        extended = _EXTENDED.pack(
            _OPTION_NONE, _EXTENDED.size, 0xC0, _EXTENDED_ID, _EXTENDED_SUBTYPE, 0, request.bytes or 0, age_ms
        )
    flags = _HAS_OUTSTANDING
    flags |= _HAS_LOW if request.low_sqn is not None else 0
    flags |= _HAS_COUNT if request.count is not None else 0
    option = _RANGE_REQUEST.pack(
        _OPTION_EXTENDED if bounded else _OPTION_NONE,
        _RANGE_REQUEST.size,
        flags,
        request.request_index,
        0,
        request.topic_index,
        bytes(4),
        0,
        0,
        request.low_sqn or 0,
        request.count or 0,
        request.outstanding,
    )
    length = HEADER_BYTES + len(option) + len(extended)
    return _HEADER.pack(CONTROL, OPTION_RANGE_REQUEST, length) + option + extended


def decode_range_request(message: bytes) -> RangeRequest | None:
    """The request in a whole control message; None when it is not well-formed."""
    if len(message) < HEADER_BYTES + _RANGE_REQUEST.size or message[5] != _RANGE_REQUEST.size:
        return None
    following, _, flags, request_index, _, topic_index, _, _, _, low, count, outstanding = (
        _RANGE_REQUEST.unpack_from(message, HEADER_BYTES)
    )
    at = HEADER_BYTES + _RANGE_REQUEST.size
    wanted_bytes = age_ms = 0
    if following == _OPTION_EXTENDED and len(message) == at + _EXTENDED.size:
        *_, subtype, _, wanted_bytes, age_ms = _EXTENDED.unpack_from(message, at)
        if subtype != _EXTENDED_SUBTYPE:
            wanted_bytes = age_ms = 0
    elif following != _OPTION_NONE or len(message) != at:
        return None
    return RangeRequest(
        topic_index,
        request_index,
        low if flags & _HAS_LOW else None,
        count if flags & _HAS_COUNT else None,
        outstanding,
        wanted_bytes or None,
        min(age_ms * _NS_PER_MS, 2**62) or None,
    )


__all__ = [
    "CONTROL",
    "HEADER_BYTES",
    "LATE_JOIN_REQUEST",
    "OFF_TRANSPORT_REQUEST",
    "OPTION_MESSAGE_REQUEST",
    "OPTION_RANGE_REQUEST",
    "RangeRequest",
    "RecoveryEndpoint",
    "decode_range_request",
    "encode_range_request",
    "endpoint_of",
    "endpoint_option",
]
