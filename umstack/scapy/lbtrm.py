"""LBT-RM, reliable multicast: data, session messages, NAKs and their confirmations."""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.fields import (
    BitEnumField,
    BitField,
    ByteField,
    FlagsField,
    IntField,
    ShortField,
    XIntField,
    XShortField,
    XStrField,
)
from scapy.packet import Packet, bind_layers

from umstack.scapy.fields import (
    NAK_FORMATS,
    NCF_REASONS,
    ChainedOption,
    ChainField,
    WirePacket,
    first_option,
    nak_fields,
    ncf_answers,
    ncf_fields,
    with_chain_start,
)
from umstack.scapy.lbmc import LBMCStatus, MessageListField

LBTRM_TYPES = {0: "DATA", 2: "SM", 3: "NAK", 4: "NCF"}
FLAG_NAMES = ["late_join", "retransmission", "multicast_naks", "unicast_naks"]
"""The high four bits of the byte: 0x10, 0x20, 0x40, 0x80."""

_UNICAST_NAKS = 0x8
_ELICIT = 0x01


class LBTRMOption(ChainedOption):
    """A header option of LBT-RM. No numbers are defined; any option is dissected."""

    name = "LBT-RM option"
    option_type = 1
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        ByteField("next_header", None),
        ByteField("length", None),
        XShortField("reserved", 0),
        XStrField("data", b""),
    ]


def _options() -> ChainField:
    return ChainField("options", lambda kind, data: LBTRMOption, first_option)


class LBTRM(WirePacket):
    """The main header. `type` follows from the payload, `next_header` None from the options."""

    name = "LBT-RM"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [
        BitField("version", 0, 4),
        BitEnumField("type", 0, 4, LBTRM_TYPES),
        ByteField("next_header", None),
        ShortField("nak_port", 14390),
        XIntField("session_id", 0),
    ]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the type of the first option."""
        return with_chain_start(self, built) + payload

    def hashret(self) -> bytes:
        """Return the common key of a request and its response."""
        return bytes(self.session_id.to_bytes(4, "big"))

    def answers(self, other: Packet) -> int:
        """Return true if this is a response of the session to the other packet."""
        if not isinstance(other, LBTRM) or other.session_id != self.session_id:
            return 0
        # Malformed packets are Raw, which answers everything.
        return int(isinstance(self.payload, WirePacket) and bool(self.payload.answers(other.payload)))

    def mysummary(self) -> str:
        """Return a summary of one line."""
        return f"LBT-RM {LBTRM_TYPES.get(self.type, self.type)} session {self.session_id:08x}"


class LBTRMData(WirePacket):
    """Messages with one transport sqn; the flag `retransmission` marks a retransmission."""

    name = "LBT-RM DATA"
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [
        IntField("sqn", 0),
        IntField("trail", 0),
        FlagsField("flags", _UNICAST_NAKS, 4, FLAG_NAMES),
        BitField("fec_type", 0, 4),
        ByteField("tgsz", 0),
        ShortField("fec_symbol", 0),
        _options(),
        MessageListField("messages"),
    ]

    def answers(self, other: Packet) -> int:
        """Return true if this is a retransmission requested by the NAK."""
        return int(isinstance(other, LBTRMNak) and bool(self.flags.retransmission) and self.sqn in other.sqns)

    def status(self) -> LBMCStatus | None:
        """Return its status message, or None."""
        found = (message.option(LBMCStatus) for message in self.messages)
        return next((status for status in found if status is not None), None)


class LBTRMSm(WirePacket):
    """A session message: the position of an idle session."""

    name = "LBT-RM SM"
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        IntField("sm_sqn", 0),
        IntField("lead", 0),
        IntField("trail", 0),
        FlagsField("flags", _UNICAST_NAKS, 4, FLAG_NAMES),
        BitField("fec_type", 0, 4),
        ByteField("tgsz", 0),
        XShortField("reserved", 0),
        _options(),
    ]

    def answers(self, other: Packet) -> int:
        """Return true if the other is a status message of a receiver without a position."""
        status = other.status() if isinstance(other, LBTRMData) else None
        return int(status is not None and bool(status.status_flags.elicit))


class LBTRMNak(WirePacket):
    """Requests retransmissions from the source. `count` None is computed."""

    name = "LBT-RM NAK"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = nak_fields(_options())


class LBTRMNcf(WirePacket):
    """Confirms NAKs without an immediate retransmission, with the reason. `count` None is computed."""

    name = "LBT-RM NCF"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = ncf_fields(_options())

    def answers(self, other: Packet) -> int:
        """Return true if the NAK requested one of its sqns."""
        return ncf_answers(self, other) if isinstance(other, LBTRMNak) else 0


bind_layers(LBTRM, LBTRMData, type=0)
bind_layers(LBTRM, LBTRMSm, type=2)
bind_layers(LBTRM, LBTRMNak, type=3)
bind_layers(LBTRM, LBTRMNcf, type=4)

__all__ = [
    "LBTRM",
    "LBTRM_TYPES",
    "NAK_FORMATS",
    "NCF_REASONS",
    "LBTRMData",
    "LBTRMNak",
    "LBTRMNcf",
    "LBTRMOption",
    "LBTRMSm",
]
