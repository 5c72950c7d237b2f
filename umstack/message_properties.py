"""Message properties: names with typed values that travel beside a message's payload, as Ultra Messaging has them.

The layout of a block is that of ffi/core/wire/message_properties.h; the core delivers no block that it has not checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Self, TypeAlias

from umstack._core import ffi, lib
from umstack.errors import InvalidArgument, MessageTooLong

_HEAD = "IHBB"
_PROPERTY = "IIII"
_LITTLE, _BIG = "<", ">"
_WRITTEN = _LITTLE
"""Ultra Messaging writes in the byte order of the host, and its hosts are little-endian."""
_HEAD_BYTES = lib.UM_PROPERTIES_HEAD_BYTES
_PROPERTY_BYTES = lib.UM_PROPERTY_BYTES
_NAME_BYTES_MAX = lib.UM_PROPERTY_NAME_BYTES_MAX
_BYTES_MAX = lib.UM_PROPERTIES_BYTES_MAX
_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1
_ERRORS = "surrogateescape"
"""Text that is no UTF-8 can be read, and sent on as it was."""


class _Integer(int):
    """An integer of a fixed number of bits."""

    _bits = 64

    def __new__(cls, value: int) -> Self:
        """Make the integer.

        Args:
            value: The number.

        Raises:
            InvalidArgument: The number does not fit the type.
        """
        half = 1 << (cls._bits - 1)
        if not -half <= value < half:
            raise InvalidArgument(
                f"{value} does not fit {cls.__name__}, which holds {-half} to {half - 1}",
                hint="give a wider type: Byte, Short, int, Long",
            )
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    __str__ = int.__repr__


class Byte(_Integer):
    """A property of 8 bits: -128 to 127.

    Example:
        ```python
        src.send(b"hello", properties={"level": umstack.Byte(7)})
        ```
    """

    _bits = 8


class Short(_Integer):
    """A property of 16 bits: -32768 to 32767.

    Example:
        ```python
        src.send(b"hello", properties={"level": umstack.Short(7)})
        ```
    """

    _bits = 16


class Long(_Integer):
    """A property of 64 bits, even for a small number.

    Example:
        ```python
        src.send(b"hello", properties={"level": umstack.Long(7)})
        ```
    """

    _bits = 64


class Float(float):
    """A property of 32 bits: the nearest number that 32 bits can represent.

    Example:
        ```python
        src.send(b"hello", properties={"price": umstack.Float(0.5)})
        ```
    """

    def __new__(cls, value: float) -> Self:
        """Round the number to 32 bits.

        Args:
            value: The number.

        Raises:
            InvalidArgument: The number is too large.
        """
        try:
            rounded = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError as error:
            raise InvalidArgument(
                f"{value} does not fit Float, which has 32 bits",
                hint="give a float, which is sent with 64 bits",
            ) from error
        return super().__new__(cls, rounded)

    def __repr__(self) -> str:
        return f"Float({float(self)!r})"

    __str__ = float.__repr__


PropertyValue: TypeAlias = bool | int | float | str
"""bool, Byte, Short, int, Long, Float, float or str; see MessageProperties."""

_CODES: dict[int, tuple[str, type]] = {
    lib.UM_PROPERTY_BOOLEAN: ("?", bool),
    lib.UM_PROPERTY_BYTE: ("b", Byte),
    lib.UM_PROPERTY_SHORT: ("h", Short),
    lib.UM_PROPERTY_INT: ("i", int),
    lib.UM_PROPERTY_LONG: ("q", Long),
    lib.UM_PROPERTY_FLOAT: ("f", Float),
    lib.UM_PROPERTY_DOUBLE: ("d", float),
}
"""By the type's number: the format of a value and what it is in Python. Strings are apart."""
_NUMBERS = {kind: number for number, (_, kind) in _CODES.items()} | {str: lib.UM_PROPERTY_STRING}


class MessageProperties(Mapping[str, PropertyValue]):
    """The properties of a message by name: an immutable mapping.

    Types are Ultra Messaging's: bool is boolean; Byte, Short, Long and Float are byte, short, long and float; float is
    double, str is string, and int is int, or long if it needs more than 32 bits. Received properties have the same
    types.

    Args:
        values: Values by name; a name is 1 to 250 bytes of UTF-8 without NUL. None: no properties. Make the object once
            to send it with many messages.

    Raises:
        InvalidArgument: A name or a value cannot be sent.
        MessageTooLong: Names and values take more than 65535 bytes.

    Example:
        ```python
        properties = umstack.MessageProperties({"urgent": True, "price": 1.5})
        src.send(b"hello", properties=properties)
        ```
    """

    __slots__ = ("_block", "_values")

    def __init__(self, values: Mapping[str, PropertyValue] | None = None) -> None:
        self._values: dict[str, PropertyValue] | None = {}
        self._block = b""
        if values:
            typed = {name: _typed(name, value) for name, value in values.items()}
            self._values = {name: value for name, (_, value) in typed.items()}
            self._block = _encode(typed)

    @classmethod
    def _of_block(cls, block: bytes) -> MessageProperties:
        """Wrap a block that the core has checked; it is decoded on first use."""
        found = cls.__new__(cls)
        found._values = None
        found._block = block
        return found

    def _read(self) -> dict[str, PropertyValue]:
        if self._values is None:
            self._values = _decode(self._block)
        return self._values

    def __getitem__(self, name: str) -> PropertyValue:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __repr__(self) -> str:
        return f"MessageProperties({self._read()!r})"

    def __reduce__(self) -> tuple[type[MessageProperties], tuple[dict[str, PropertyValue]]]:
        return MessageProperties, (self._read(),)


NO_PROPERTIES = MessageProperties()


def encoded(properties: Mapping[str, PropertyValue] | None) -> bytes:
    """Return the block that follows the payload; empty without properties. Raises as MessageProperties does."""
    if properties is None:
        return b""
    if not isinstance(properties, MessageProperties):
        properties = MessageProperties(properties)
    return properties._block


def typed_text(text: str, kind: str) -> PropertyValue:
    """Parse the value of a property from text, by Ultra Messaging's name of its type.

    Raises InvalidArgument for an unknown type or a text that is not a value of it.
    """
    try:
        return _OF_TEXT[kind](text)
    except KeyError:
        raise InvalidArgument(
            f"{kind} is no type of a property", hint=f"the types are {', '.join(_OF_TEXT)}"
        ) from None
    except ValueError as error:
        raise InvalidArgument(f"{text} is no {kind}", hint="see docs/message-properties.md") from error


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _int(text: str) -> int:
    value = int(text)
    if not _INT_MIN <= value <= _INT_MAX:
        raise ValueError(text)
    return value


_OF_TEXT: dict[str, Callable[[str], PropertyValue]] = {
    "boolean": _truth,
    "byte": lambda text: Byte(int(text)),
    "short": lambda text: Short(int(text)),
    "int": _int,
    "long": lambda text: Long(int(text)),
    "float": lambda text: Float(float(text)),
    "double": float,
    "string": str,
}


def is_sound(block: bytes) -> bool:
    """Return true if the core would deliver this block: see ffi/core/wire/message_properties.h."""
    return bool(lib.um_message_properties_is_sound(ffi.from_buffer("uint8_t[]", block), len(block)))


def read_block(block: bytes) -> MessageProperties:
    """Read the properties of a block, for example from a capture; InvalidArgument if the core would reject it."""
    if not is_sound(block):
        raise InvalidArgument(
            "these bytes are no message properties",
            hint="docs/message-properties.md has the layout of a block",
        )
    return MessageProperties._of_block(block)


def _typed(name: str, value: PropertyValue) -> tuple[int, PropertyValue]:
    """Return the type number of a property and its value as an object of that type."""
    kind = type(value)
    if kind is int or (kind not in _NUMBERS and isinstance(value, int)):
        whole = int(value)
        value = whole if _INT_MIN <= whole <= _INT_MAX else Long(whole)
    elif kind not in _NUMBERS and isinstance(value, float):
        value = float(value)
    elif kind not in _NUMBERS and isinstance(value, str):
        value = str(value)
    number = _NUMBERS.get(type(value))
    if number is None:
        raise InvalidArgument(
            f"property {name!r} is {kind.__name__}, which no property can be",
            hint="give bool, int, float or str, or Byte, Short, Long or Float of umstack",
        )
    return number, value


def _text(text: str, what: str) -> bytes:
    """Encode a name or a string with its terminating NUL."""
    try:
        data = text.encode(errors=_ERRORS)
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{what} is no text that UTF-8 has", hint="give text without surrogates"
        ) from error
    if b"\0" in data:
        raise InvalidArgument(f"{what} has a NUL, which ends it on the wire", hint="leave the NUL out")
    return data + b"\0"


def _name(name: str) -> bytes:
    if not isinstance(name, str):
        raise InvalidArgument(f"the name of a property is {name!r}, not text", hint="give names as str")
    data = _text(name, f"property name {name!r}")
    if not 1 <= len(data) - 1 <= _NAME_BYTES_MAX:
        raise InvalidArgument(
            f"property name {name!r} has {len(data) - 1} bytes",
            hint=f"give a name of 1 to {_NAME_BYTES_MAX} bytes",
        )
    return data


def _encode(typed: Mapping[str, tuple[int, PropertyValue]]) -> bytes:
    table: list[int] = []
    tail: list[bytes] = []
    at = _HEAD_BYTES + _PROPERTY_BYTES * len(typed)
    for name, (number, value) in typed.items():
        key = _name(name)
        if number == lib.UM_PROPERTY_STRING:
            data = _text(str(value), f"property {name!r}")
        else:
            data = struct.pack(_WRITTEN + _CODES[number][0], value)
        table += (at, at + len(key), 0, number)
        tail += (key, data)
        at += len(key) + len(data)
    if at > _BYTES_MAX:
        raise MessageTooLong(
            f"the properties of a message take {at} bytes, at most {_BYTES_MAX} can be sent",
            hint="shorten them, or carry long values in the message's data",
        )
    head = struct.pack(_WRITTEN + _HEAD, lib.UM_PROPERTIES_MAGIC, len(typed), 0, 0)
    return head + struct.pack(f"{_WRITTEN}{len(table)}I", *table) + b"".join(tail)


def _decode(block: bytes) -> dict[str, PropertyValue]:
    """Decode a checked block. The first of two equal names wins; values of unknown types are skipped."""
    order = _LITTLE if struct.unpack_from("<I", block)[0] == lib.UM_PROPERTIES_MAGIC else _BIG
    count = struct.unpack_from(f"{order}{_HEAD}", block)[1]
    found: dict[str, PropertyValue] = {}
    for at in range(_HEAD_BYTES, _HEAD_BYTES + _PROPERTY_BYTES * count, _PROPERTY_BYTES):
        name_at, value_at, _, number = struct.unpack_from(f"{order}{_PROPERTY}", block, at)
        if number == lib.UM_PROPERTY_STRING:
            value: PropertyValue = _text_at(block, value_at)
        elif number in _CODES:
            code, kind = _CODES[number]
            value = kind(struct.unpack_from(order + code, block, value_at)[0])
        else:
            continue
        found.setdefault(_text_at(block, name_at), value)
    return found


def _text_at(block: bytes, at: int) -> str:
    return block[at : block.index(b"\0", at)].decode(errors=_ERRORS)
