"""Base classes of the layers: packets that tolerate short datagrams, and lists that end with the bytes.

A count or length in a datagram is used only as far as there are bytes. Bytes that do not fit the layout remain as
`Raw`, so dissecting never raises, and building returns the dissected bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    FieldLenField,
    FieldListField,
    IntField,
    PacketListField,
    StrField,
    XByteField,
)
from scapy.packet import Packet

END_DATA = 0
"""Ends a chain of options; the payload follows."""

END_NONE = 255
"""Ends a chain of options; nothing follows (LBMC control messages)."""

NCF_REASONS = {0: "no_retry", 1: "ignored", 2: "rx_delay", 3: "shed"}
NAK_FORMATS = {0: "selective", 1: "parity"}

_CHAINED_HEAD_BYTES = 4
_TYPED_HEAD_BYTES = 2
_SQN_BYTES = 4


class WirePacket(Packet):  # type: ignore[misc, unused-ignore]
    """A layer with a minimum length: shorter data becomes `Raw`."""

    minimum_bytes: ClassVar[int] = 0

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give every layer a separate dispatch hook, because scapy ignores inherited ones."""
        super().__init_subclass__(**kwargs)
        if "dispatch_hook" not in cls.__dict__:
            cls.dispatch_hook = classmethod(_raw_if_short)  # type: ignore[attr-defined, unused-ignore]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if these bytes can start with this layer."""
        return len(data) >= cls.minimum_bytes

    def answers(self, other: Packet) -> int:
        """Return 0 unless overridden: by default, scapy lets a packet answer its own class."""
        return 0


def _raw_if_short(cls: type[WirePacket], _pkt: bytes = b"", *args: Any, **kwargs: Any) -> type[Packet]:
    if _pkt and not cls.accepts(bytes(_pkt)):
        raw: type[Packet] = conf.raw_layer
        return raw
    return cls


class Part(WirePacket):
    """A record or option inside a layer: its bytes were cut out before, so it has no payload."""

    def extract_padding(self, data: bytes) -> tuple[bytes, bytes]:
        """Treat the rest as the part's own bytes."""
        return data, b""


class Record(Part):
    """A part of fixed layout in a list: the next part follows."""

    def extract_padding(self, data: bytes) -> tuple[bytes, bytes]:
        """Leave the rest to the next record."""
        return b"", data


class MeasuredOption(Part):
    """An option whose second byte is its length; `length` None is computed."""

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the length."""
        built += payload
        return built if self.length is not None else built[:1] + bytes((len(built) & 0xFF,)) + built[2:]


class ChainedOption(MeasuredOption):
    """An option of a chain: next header, length, body. The header before it holds its type.

    `next_header` None becomes the type of the next option, or the end; `length` None the bytes built.
    """

    minimum_bytes: ClassVar[int] = _CHAINED_HEAD_BYTES
    option_type: ClassVar[int | None] = None


class UnknownOption(ChainedOption):
    """An unknown option, or one too short for its layout. The header before it must hold its type."""

    name = "Unknown option"
    fields_desc: ClassVar[list[Any]] = [
        ByteField("next_header", None),
        ByteField("length", None),
        StrField("data", b""),
    ]


def chain_start(options: Iterable[Packet], end: int) -> int:
    """Return the next-header value for these options."""
    for option in options:
        kind: int | None = getattr(option, "option_type", None)
        if kind is None:
            raise ValueError(f"{option!r} has no type of its own: set next_header of the header before it")
        return kind
    return end


def first_option(packet: Packet) -> int:
    """Return the type of the first option, from the main header below."""
    below = packet.underlayer
    return END_DATA if below is None else getattr(below, "next_header", END_DATA)


def with_chain_start(header: Packet, built: bytes) -> bytes:
    """Return the main header with `next_header` None, its second byte, replaced by the type of the first option."""
    if header.next_header is not None:
        return built
    options = getattr(header.payload, "options", [])
    return built[:1] + bytes((chain_start(options, END_DATA),)) + built[2:]


class ChainField(PacketListField):  # type: ignore[misc, unused-ignore]
    """The options of a layer, each of which holds the type of the next."""

    __slots__ = ("_choose", "_end", "_first", "_space")

    def __init__(
        self,
        name: str,
        choose: Callable[[int, bytes], type[ChainedOption]],
        first: Callable[[Packet], int],
        end: Callable[[Packet], int] = lambda packet: END_DATA,
        space: Callable[[Packet], int | None] = lambda packet: None,
    ) -> None:
        """Set how a type maps to a class, where the first type is, what ends a chain, and what bounds it."""
        super().__init__(name, [], ChainedOption)
        self._choose, self._first, self._end, self._space = choose, first, end, space

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Any]:
        """Dissect options until the chain ends or is malformed."""
        space = self._space(pkt)
        remain, rest = (s, b"") if space is None else (s[:space], s[space:])
        kind, options = self._first(pkt), []
        while kind not in (END_DATA, END_NONE) and len(remain) >= _CHAINED_HEAD_BYTES:
            size = remain[1]
            if not _CHAINED_HEAD_BYTES <= size <= len(remain):
                break
            chosen = self._choose(kind, remain[:size])
            option = (chosen if chosen.accepts(remain[:size]) else UnknownOption)(remain[:size], _parent=pkt)
            options.append(option)
            kind, remain = remain[0], remain[size:]
        return remain + rest, options

    def addfield(self, pkt: Packet, s: bytes, val: Any) -> bytes:
        """Build the options, each with the type of the next."""
        for option, following in pairwise([*val, None]):
            built = bytes(option)
            if isinstance(option, ChainedOption) and option.next_header is None:
                kind = chain_start([following] if following is not None else [], self._end(pkt))
                built = bytes((kind,)) + built[1:]
            s += built
        return s


class TypedOption(MeasuredOption):
    """An option that starts with its own type and length, as in LBMR; `length` None is computed."""

    minimum_bytes: ClassVar[int] = _TYPED_HEAD_BYTES


class PartListField(PacketListField):  # type: ignore[misc, unused-ignore]
    """A list of parts; `measure` returns class and length of the next part, or None at the end."""

    __slots__ = ("_measure",)

    def __init__(
        self,
        name: str,
        measure: Callable[[Packet, list[Packet], bytes], tuple[type[Packet], int] | None],
    ) -> None:
        """Set how the next part is found."""
        super().__init__(name, [], Packet)
        self._measure = measure

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Any]:
        """Dissect parts until there is none."""
        parts: list[Packet] = []
        while s and (found := self._measure(pkt, parts, s)) is not None:
            kind, size = found
            parts.append(kind(s[:size], _parent=pkt))
            s = s[size:]
        return s, parts


class SqnListField(FieldListField):  # type: ignore[misc, unused-ignore]
    """At most `count` sqns, as many as the remaining bytes hold."""

    def __init__(self, name: str) -> None:
        """Create an empty list."""
        super().__init__(name, [], IntField("", 0))

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, list[int]]:
        """Dissect the sqns."""
        end = min(pkt.count, len(s) // _SQN_BYTES) * _SQN_BYTES
        return s[end:], [int.from_bytes(s[at : at + _SQN_BYTES], "big") for at in range(0, end, _SQN_BYTES)]


def nak_fields(options: ChainField) -> list[Any]:
    """Return the layout of a NAK in LBT-RM and LBT-RU."""
    return [
        FieldLenField("count", None, count_of="sqns", fmt="!H"),
        BitField("reserved", 0, 12),
        BitEnumField("format", 0, 4, NAK_FORMATS),
        SqnListField("sqns"),
        options,
    ]


def ncf_fields(options: ChainField) -> list[Any]:
    """Return the layout of an NCF in LBT-RM and LBT-RU."""
    return [
        IntField("trail", 0),
        FieldLenField("count", None, count_of="sqns", fmt="!H"),
        XByteField("reserved", 0),
        BitEnumField("reason", 1, 4, NCF_REASONS),
        BitEnumField("format", 0, 4, NAK_FORMATS),
        SqnListField("sqns"),
        options,
    ]


def ncf_answers(ncf: Packet, nak: Packet) -> int:
    """Return true if the NCF confirms one of the NAK's sqns."""
    return int(not set(ncf.sqns).isdisjoint(nak.sqns))
