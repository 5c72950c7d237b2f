"""Message properties with Hypothesis: encoded properties decode, and no bytes beyond the block are read."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from umstack import Byte, Float, Long, Short
from umstack.message_properties import PropertyValue, encoded, is_sound, read_block

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_NAMES = _TEXT.filter(lambda name: 1 <= len(name.encode()) <= 250)
_VALUES = st.one_of(
    st.booleans(),
    st.integers(-(2**7), 2**7 - 1).map(Byte),
    st.integers(-(2**15), 2**15 - 1).map(Short),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Long),
    st.floats(width=32).map(Float),
    st.floats(),
    _TEXT,
)
_MAPPINGS = st.dictionaries(_NAMES, _VALUES, min_size=1, max_size=20)


def _bits(value: PropertyValue) -> object:
    """Return a value with its type; NaN equals itself."""
    return type(value), struct.pack("<d", value) if isinstance(value, float) else value


@given(_MAPPINGS)
def test_encoded_properties_decode(properties: dict[str, PropertyValue]) -> None:
    """W1: names, types, values and their order survive encoding and decoding."""
    block = encoded(properties)
    assert is_sound(block)
    found = read_block(block)
    assert [(name, _bits(value)) for name, value in found.items()] == [
        (name, _bits(value)) for name, value in properties.items()
    ]
    assert encoded(dict(found)) == block


@given(_MAPPINGS, st.data())
def test_changed_blocks_are_rejected_or_decoded(
    properties: dict[str, PropertyValue], data: st.DataObject
) -> None:
    """W1: a changed or truncated block is either invalid or decoded to its end without an error."""
    block = bytearray(encoded(properties))
    for _ in range(data.draw(st.integers(1, 4))):
        block[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(block[: data.draw(st.integers(0, len(block)))])
    if is_sound(changed):
        dict(read_block(changed))


@given(st.binary(max_size=200))
def test_any_bytes_behind_a_magic_are_rejected_or_decoded(tail: bytes) -> None:
    """W1: this also holds for random bytes, in both byte orders."""
    for magic in (b"\xba\xda\xac\xab", b"\xab\xac\xda\xba"):
        if is_sound(magic + tail):
            dict(read_block(magic + tail))
