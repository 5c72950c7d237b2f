"""The block of message properties behind the content of an LBMC message, in either byte order.

Offsets count from the start of the block. Names and values are behind the table, in `data`; `properties()` returns them
as a mapping, and `encoded()` of umstack.message_properties makes a block of a mapping.
"""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.fields import (
    BitField,
    FieldLenField,
    IntEnumField,
    IntField,
    LEIntEnumField,
    LEIntField,
    PacketListField,
    StrField,
    XByteField,
    XIntField,
    XLEIntField,
)

from umstack.message_properties import MessageProperties, read_block
from umstack.scapy.fields import Record, WirePacket

MAGIC = 0xABACDABA
PROPERTY_TYPES = {
    0: "none",
    1: "boolean",
    2: "byte",
    3: "short",
    4: "int",
    5: "long",
    6: "float",
    7: "double",
    8: "string",
}
_HEAD_BYTES = 8
_PROPERTY_BYTES = 16


class LBMCProperty(Record):
    """The offsets of a property's name and value, and its type."""

    name = "LBMC property"
    minimum_bytes = _PROPERTY_BYTES
    fields_desc: ClassVar[list[Any]] = [
        LEIntField("name_offset", 0),
        LEIntField("value_offset", 0),
        XLEIntField("hash", 0),
        LEIntEnumField("type", 0, PROPERTY_TYPES),
    ]


class LBMCBigProperty(Record):
    """The same in a big-endian block."""

    name = "LBMC big-endian property"
    minimum_bytes = _PROPERTY_BYTES
    fields_desc: ClassVar[list[Any]] = [
        IntField("name_offset", 0),
        IntField("value_offset", 0),
        XIntField("hash", 0),
        IntEnumField("type", 0, PROPERTY_TYPES),
    ]


class _Block(WirePacket):
    """The common part of blocks of both byte orders."""

    minimum_bytes = _HEAD_BYTES

    def properties(self) -> MessageProperties:
        """Return names and typed values; raise InvalidArgument for a block that the stack would not deliver."""
        return read_block(bytes(self))


class LBMCProperties(_Block):
    """The properties of a message, little-endian: as written by the stack and most Ultra Messaging hosts."""

    name = "LBMC properties"
    fields_desc: ClassVar[list[Any]] = [
        XLEIntField("magic", MAGIC),
        FieldLenField("count", None, fmt="<H", count_of="table"),
        BitField("version", 0, 4),
        BitField("type", 0, 4),
        XByteField("reserved", 0),
        PacketListField("table", [], LBMCProperty, count_from=lambda packet: packet.count),
        StrField("data", b""),
    ]


class LBMCBigProperties(_Block):
    """The properties of a message in network order."""

    name = "LBMC big-endian properties"
    fields_desc: ClassVar[list[Any]] = [
        XIntField("magic", MAGIC),
        FieldLenField("count", None, fmt="H", count_of="table"),
        BitField("version", 0, 4),
        BitField("type", 0, 4),
        XByteField("reserved", 0),
        PacketListField("table", [], LBMCBigProperty, count_from=lambda packet: packet.count),
        StrField("data", b""),
    ]


def block_class(block: bytes) -> type[_Block]:
    """Return the class of a valid block, by the byte order of its magic."""
    return LBMCBigProperties if block.startswith(MAGIC.to_bytes(4, "big")) else LBMCProperties


__all__ = [
    "PROPERTY_TYPES",
    "LBMCBigProperties",
    "LBMCBigProperty",
    "LBMCProperties",
    "LBMCProperty",
    "block_class",
]
