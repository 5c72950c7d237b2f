"""Messages in flight without a transport: the steps of um_flight_send."""

from __future__ import annotations

from umstack._core import ffi, lib
from umstack.persistence.source_side import SourceSide


def put_in_flight(side: SourceSide, payload: bytes, now_ns: int, properties_bytes: int = 0) -> bool:
    """Send a message that reaches nobody. Returns false if the limits do not allow it."""
    sqn, offsets = side.flight.next_sqn, ffi.new("int32_t[]", [0, len(payload)])
    taken = lib.um_flight_reserve(side.flight.handle, payload, offsets, 1, properties_bytes, False, now_ns)
    assert taken in (0, 1)
    if taken:
        lib.um_flight_confirm(side.flight.handle, sqn, side.flight.next_sqn - 1, now_ns)
    return bool(taken)
