"""LBT-RU, reliable unicast: the layouts of LBT-RM with a connection, and options behind the body."""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    FlagsField,
    IntField,
    ShortEnumField,
    XIntField,
    XShortField,
)
from scapy.packet import Packet, bind_layers

from umstack.scapy.fields import (
    ChainedOption,
    ChainField,
    UnknownOption,
    WirePacket,
    first_option,
    nak_fields,
    ncf_answers,
    ncf_fields,
    with_chain_start,
)
from umstack.scapy.lbmc import MessageListField

LBTRU_TYPES = {0: "DATA", 2: "SM", 3: "NAK", 4: "NCF", 5: "ACK", 6: "CREQ", 7: "RST"}
LBTRU_OPTION_NAMES = {0: "data", 1: "session_id", 2: "client_id"}

_DATA, _SM, _CREQ, _RST = 0, 2, 6, 7
_BITS = {1 << bit: f"b{bit}" for bit in range(16)}


def _head() -> list[Any]:
    return [ByteEnumField("next_header", None, LBTRU_OPTION_NAMES), ByteField("length", None)]


class LBTRUSessionId(ChainedOption):
    """The session."""

    name = "LBT-RU session id"
    option_type = 1
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*_head(), XShortField("flags", 0), XIntField("session_id", 0)]


class LBTRUClientId(ChainedOption):
    """The client id of a receiver."""

    name = "LBT-RU client id"
    option_type = 2
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*_head(), XShortField("flags", 0), XIntField("client_id", 0)]


_OPTIONS: dict[int, type[ChainedOption]] = {1: LBTRUSessionId, 2: LBTRUClientId}


def _options() -> ChainField:
    return ChainField("options", lambda kind, data: _OPTIONS.get(kind, UnknownOption), first_option)


class LBTRU(WirePacket):
    """The main header. `type` follows from the payload, `next_header` None from the options."""

    name = "LBT-RU"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        BitField("version", 0, 4),
        BitEnumField("type", 0, 4, LBTRU_TYPES),
        ByteEnumField("next_header", None, LBTRU_OPTION_NAMES),
        ConditionalField(
            FlagsField("flags", 0, 16, _BITS | {0x4000: "retransmission", 0x8000: "syn"}),
            lambda packet: packet.type in (_DATA, _SM),
        ),
        ConditionalField(ShortEnumField("request", 0, {0: "syn"}), lambda packet: packet.type == _CREQ),
        ConditionalField(ShortEnumField("reason", 0, {0: "default"}), lambda packet: packet.type == _RST),
        ConditionalField(
            XShortField("reserved", 0), lambda packet: packet.type not in (_DATA, _SM, _CREQ, _RST)
        ),
    ]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the type of the first option."""
        return with_chain_start(self, built) + payload

    def answers(self, other: Packet) -> int:
        """Return true if this is a response to the other packet."""
        # Malformed packets are Raw, which answers everything.
        can_answer = isinstance(other, LBTRU) and isinstance(self.payload, WirePacket)
        return int(can_answer and bool(self.payload.answers(other.payload)))

    def mysummary(self) -> str:
        """Return a summary of one line."""
        return f"LBT-RU {LBTRU_TYPES.get(self.type, self.type)}"


class LBTRUData(WirePacket):
    """Messages with one transport sqn."""

    name = "LBT-RU DATA"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [
        IntField("sqn", 0),
        IntField("trail", 0),
        _options(),
        MessageListField("messages"),
    ]

    def answers(self, other: Packet) -> int:
        """Return true if this is a retransmission requested by the NAK."""
        again = isinstance(self.underlayer, LBTRU) and bool(self.underlayer.flags.retransmission)
        return int(isinstance(other, LBTRUNak) and again and self.sqn in other.sqns)


class LBTRUSm(WirePacket):
    """A session message; with the flag `syn` of the main header, the answer to a connection request."""

    name = "LBT-RU SM"
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [
        IntField("sm_sqn", 0),
        IntField("lead", 0),
        IntField("trail", 0),
        _options(),
    ]

    def answers(self, other: Packet) -> int:
        """Return true if this has SYN and the other is a connection request."""
        accepts = isinstance(self.underlayer, LBTRU) and bool(self.underlayer.flags.syn)
        return int(isinstance(other, LBTRUCreq) and accepts)


class LBTRUNak(WirePacket):
    """Requests retransmissions from the source. `count` None is computed."""

    name = "LBT-RU NAK"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = nak_fields(_options())


class LBTRUNcf(WirePacket):
    """Confirms NAKs without an immediate retransmission. `count` None is computed."""

    name = "LBT-RU NCF"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = ncf_fields(_options())

    def answers(self, other: Packet) -> int:
        """Return true if the NAK requested one of its sqns."""
        return ncf_answers(self, other) if isinstance(other, LBTRUNak) else 0


class LBTRUAck(WirePacket):
    """Acknowledges all datagrams up to a sqn."""

    name = "LBT-RU ACK"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [IntField("sqn", 0), _options()]

    def answers(self, other: Packet) -> int:
        """Return true if the other is a session message or data up to the acknowledged sqn."""
        if isinstance(other, LBTRUSm | LBTRUData):
            reached = other.lead if isinstance(other, LBTRUSm) else other.sqn
            return int((self.sqn - reached) % 2**32 < 2**31)
        return 0


class LBTRUCreq(WirePacket):
    """A request for a connection: options only."""

    name = "LBT-RU CREQ"
    fields_desc: ClassVar[list[Any]] = [_options()]


class LBTRURst(WirePacket):
    """The end of a connection: a main header alone; tshark misreads options there."""

    name = "LBT-RU RST"
    fields_desc: ClassVar[list[Any]] = [_options()]


bind_layers(LBTRU, LBTRUData, type=_DATA)
bind_layers(LBTRU, LBTRUSm, type=_SM)
bind_layers(LBTRU, LBTRUNak, type=3)
bind_layers(LBTRU, LBTRUNcf, type=4)
bind_layers(LBTRU, LBTRUAck, type=5)
bind_layers(LBTRU, LBTRUCreq, type=_CREQ)
bind_layers(LBTRU, LBTRURst, type=_RST)

__all__ = [
    "LBTRU",
    "LBTRU_TYPES",
    "LBTRUAck",
    "LBTRUClientId",
    "LBTRUCreq",
    "LBTRUData",
    "LBTRUNak",
    "LBTRUNcf",
    "LBTRURst",
    "LBTRUSessionId",
    "LBTRUSm",
]
