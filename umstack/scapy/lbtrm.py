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
"""Of the high four bits: 0x10, 0x20, 0x40, 0x80 of the byte."""

_UNICAST_NAKS = 0x8
_ELICIT = 0x01


class LBTRMOption(ChainedOption):
    """A header option of LBT-RM. None is known by number; any is carried."""

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
    """The main header. `type` follows from what is put on it, `next_header` None from its options."""

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
        """Fill in what leads to the options."""
        return with_chain_start(self, built) + payload

    def hashret(self) -> bytes:
        """What a question and its answer have in common."""
        return bytes(self.session_id.to_bytes(4, "big"))

    def answers(self, other: Packet) -> int:
        """Whether this is what the session says to the other."""
        if not isinstance(other, LBTRM) or other.session_id != self.session_id:
            return 0
        # What could not be read is Raw, which answers everything.
        return int(isinstance(self.payload, WirePacket) and bool(self.payload.answers(other.payload)))

    def mysummary(self) -> str:
        """Show one line."""
        return f"LBT-RM {LBTRM_TYPES.get(self.type, self.type)} session {self.session_id:08x}"


class LBTRMData(WirePacket):
    """Messages under one transport sequence number; with the flag `retransmission`, once more."""

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
        """A retransmission answers the NAK that asked for it."""
        return int(isinstance(other, LBTRMNak) and bool(self.flags.retransmission) and self.sqn in other.sqns)

    def status(self) -> LBMCStatus | None:
        """The status message in it, if it carries one."""
        found = (message.option(LBMCStatus) for message in self.messages)
        return next((status for status in found if status is not None), None)


class LBTRMSm(WirePacket):
    """A session message: where the session stands while it is idle."""

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
        """It answers a status message whose sender knows no position yet."""
        status = other.status() if isinstance(other, LBTRMData) else None
        return int(status is not None and bool(status.status_flags.elicit))


class LBTRMNak(WirePacket):
    """Asks the source for datagrams again. `count` None is computed."""

    name = "LBT-RM NAK"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = nak_fields(_options())


class LBTRMNcf(WirePacket):
    """Confirms NAKs that are not answered at once, and says why. `count` None is computed."""

    name = "LBT-RM NCF"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = ncf_fields(_options())

    def answers(self, other: Packet) -> int:
        """It answers a NAK that asked for one of its numbers."""
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
