"""Data messages of LBMC, written without the product's code."""

from __future__ import annotations

import struct

_HEADER = struct.Struct("!BBHII")
_FRAGMENT = struct.Struct("!BBHIII")
_CHAIN = struct.Struct("!BBBBBBHI")
_FRAGMENT_OPTION, _CHAIN_OPTION, _DATA = 1, 7, 0
_IGNORABLE, _PROPERTIES, _CHAIN_END, _ELEMENT_BYTES = 0x80, 6, 255, 8


def encode_data(
    topic_index: int,
    sqn: int,
    payload: bytes,
    kind: int = 0,
    *,
    fragment: tuple[int, int, int] | None = None,
    properties_bytes: int = 0,
) -> bytes:
    """Return a data message. `fragment`: first sqn, offset and total; the properties end the whole payload."""
    options, following = b"", _DATA
    if fragment is not None:
        options, following = (
            _FRAGMENT.pack(following, _FRAGMENT.size, 0, *fragment) + options,
            _FRAGMENT_OPTION,
        )
    if properties_bytes:
        chain = _CHAIN.pack(
            following, _CHAIN.size, _IGNORABLE, _PROPERTIES, _CHAIN_END, _ELEMENT_BYTES, 0, properties_bytes
        )
        options, following = chain + options, _CHAIN_OPTION
    length = _HEADER.size + len(options) + len(payload)
    return _HEADER.pack(kind, following, length, topic_index, sqn % (1 << 32)) + options + payload
