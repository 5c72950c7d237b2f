"""Messages of late join and off-transport recovery that Python encodes and decodes: offers and range requests.

The core writes and reads the other messages (ffi/core/wire/range_request.h, ffi/core/source/retention.h).
Layout: docs/wire.md.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.endpoint import Endpoint
from umstack.resolution.codec import WireOption

CONTROL = 0x08
OPTION_MESSAGE_REQUEST: int = lib.UM_LBMC_OPTION_MESSAGE_REQUEST
OPTION_RANGE_REQUEST: int = lib.UM_LBMC_OPTION_RANGE_REQUEST
HEADER_BYTES = 4
LATE_JOIN_REQUEST, OFF_TRANSPORT_REQUEST = 0, 1
"""Lowest bit of a request index, which shows a connection's purpose in captures. The other bits name the topic."""

_TOPIC_OPTION_LATE_JOIN = 4
_TOPIC_OPTION = struct.Struct("!HHH4sIII")


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeBounds:
    """The part of the past that a receiver requests; None means unbounded."""

    low_sqn: int | None = None
    count: int | None = None
    bytes: int | None = None
    age_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RangeRequest(RangeBounds):
    """A receiver's request for the range of retained messages."""

    topic_index: int
    request_index: int = LATE_JOIN_REQUEST
    outstanding: int = 0


def endpoint_option(endpoint: Endpoint) -> WireOption:
    """Return the topic option of an advertisement that offers late join (UM-140)."""
    ip = socket.inet_aton(endpoint.ip)
    return WireOption(_TOPIC_OPTION_LATE_JOIN, _TOPIC_OPTION.pack(0, endpoint.port, 0, ip, 0, 0, 0))


def endpoint_of(options: Iterable[WireOption]) -> Endpoint | None:
    """Return the late-join endpoint in an advertisement's options; None if there is none or it is invalid."""
    for option in options:
        if option.type == _TOPIC_OPTION_LATE_JOIN and len(option.body) == _TOPIC_OPTION.size:
            _, port, _, ip, *_ = _TOPIC_OPTION.unpack(option.body)
            first = ip[0]
            return Endpoint(socket.inet_ntoa(ip), port) if port and 0 < first < 224 else None
    return None


def encode_range_request(request: RangeRequest) -> bytes:
    """Return a control message with the request."""
    raw = ffi.new("um_range_request *")
    raw.topic_index, raw.request_index = request.topic_index, request.request_index
    raw.outstanding_max = request.outstanding
    write_bounds(raw.bounds, request)
    out = ffi.new("uint8_t[]", lib.UM_RANGE_REQUEST_BYTES_MAX)
    return bytes(ffi.buffer(out, lib.um_range_request_write(out, raw)))


def write_bounds(raw: Any, bounds: RangeBounds) -> None:
    """Write bounds into a um_range_bounds."""
    for name in ("low_sqn", "count", "bytes", "age_ns"):
        value = getattr(bounds, name)
        if value is not None:
            setattr(raw, "has_" + name.removesuffix("_ns"), True)
            setattr(raw, name, value)


__all__ = [
    "CONTROL",
    "HEADER_BYTES",
    "LATE_JOIN_REQUEST",
    "OFF_TRANSPORT_REQUEST",
    "OPTION_MESSAGE_REQUEST",
    "OPTION_RANGE_REQUEST",
    "RangeBounds",
    "RangeRequest",
    "encode_range_request",
    "endpoint_of",
    "endpoint_option",
    "write_bounds",
]
