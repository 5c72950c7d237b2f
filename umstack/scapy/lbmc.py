"""LBMC, the topic layer: messages with a chain of options, in LBT-RM and LBT-RU data or on TCP.

One file, because a message dissects its chain with the classes of all options.
"""

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
    IPField,
    LongField,
    ShortField,
    StrField,
    X3BytesField,
    XLongField,
    XShortField,
    XStrField,
)
from scapy.packet import Packet, Raw

from umstack.message_properties import is_sound
from umstack.scapy.fields import (
    END_DATA,
    END_NONE,
    ChainedOption,
    ChainField,
    PartListField,
    Record,
    UnknownOption,
    WirePacket,
    chain_start,
)
from umstack.scapy.lbmc_heads import (
    EXTENDED_TYPE,
    FLAG_BYTE,
    LBMC_OPTION_NAMES,
    extended_head,
    option_flags,
    option_head,
)
from umstack.scapy.lbmc_persistence import CONFIGURATION_SUBTYPE, PERSISTENCE_OPTIONS, LBMCConfiguration
from umstack.scapy.lbmc_properties import block_class

LBMC_TYPES = {0: "MESSAGE", 1: "EOT", 2: "PRORX", 8: "CONTROL", 10: "RETRANSMISSION"}
STATUS_OPTION_ID = 85
STATUS_OPTION_SUBTYPE = 1
GROUP_REPORT_OPTION_SUBTYPE = 2
INTEREST_OPTION_SUBTYPE = 5
FILTER_REPORT_OPTION_SUBTYPE = 6
SEND_TIME_OPTION_SUBTYPE = 4
COOKIE_OPTION_SUBTYPE = 8
COOKIE_BYTES = 8

_TYPES_WITH_TOPIC = (0, 2, 10)
_CONTROL_BYTES = 4
_MESSAGE_BYTES = 12
_TSNI_RECORD_BYTES = 8


class LBMCFragment(ChainedOption):
    """The position of a fragment in its message."""

    name = "LBMC fragment"
    option_type = 1
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0),
        IntField("first_sqn", 0),
        IntField("offset", 0),
        IntField("total", 0),
    ]


class LBMCBatch(ChainedOption):
    """Marks the first and last message of an explicit batch."""

    name = "LBMC batch"
    option_type = 2
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0, end=0x0001, start=0x0002)]


class LBMCRequest(ChainedOption):
    """The address for the response to a request."""

    name = "LBMC request"
    option_type = 4
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        FlagsField("flags", 0, 8, FLAG_BYTE),
        ByteEnumField("transport", 0, {0: "TCP"}),
        IntField("request_index", 0),
        ShortField("port", 0),
        ShortField("reserved", 0),
        IPField("ip", "0.0.0.0"),
    ]


class LBMCTopicName(ChainedOption):
    """The name of the topic."""

    name = "LBMC topic name"
    option_type = 5
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), StrField("topic", b"")]


class LBMCApplicationHeader(ChainedOption):
    """Bytes of the application besides its message."""

    name = "LBMC application header"
    option_type = 6
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        BitField("ignore", 1, 1),
        BitField("code", 0, 15),
        XStrField("data", b""),
    ]


LBMC_ELEMENT_NAMES = {
    1: "channel",
    2: "hot_failover",
    3: "gateway_info",
    4: "application_header",
    5: "user_data",
    6: "properties_length",
    255: "none",
}


class LBMCElement(ChainedOption):
    """An element of a chain of application headers. The element before it holds its type."""

    name = "LBMC element"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        ByteEnumField("next_header", None, LBMC_ELEMENT_NAMES),
        ByteField("length", None),
        XShortField("reserved", 0),
        XStrField("data", b""),
    ]


def _number_head() -> list[Any]:
    flags = {1 << bit: f"b{bit}" for bit in range(16)} | {0x4000: "optional", 0x2000: "reset"}
    return [*LBMCElement.fields_desc[:2], FlagsField("flags", 0, 16, flags)]


class LBMCHotFailover(LBMCElement):
    """The number of a message in a hot failover stream."""

    name = "LBMC hot failover"
    option_type = 2
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [*_number_head(), LongField("sqn", 0)]


class LBMCHotFailover32(LBMCElement):
    """The number of a message in a hot failover stream, 32 bits."""

    name = "LBMC hot failover of 32 bits"
    option_type = 2
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*_number_head(), IntField("sqn", 0)]


class LBMCPropertiesLength(LBMCElement):
    """The length of the message properties at the end of the message."""

    name = "LBMC properties length"
    option_type = 6
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*LBMCElement.fields_desc[:3], IntField("bytes", 0)]


def _element_class(kind: int, data: bytes) -> type[ChainedOption]:
    for chosen in (LBMCHotFailover, LBMCHotFailover32, LBMCPropertiesLength):
        if kind == chosen.option_type and len(data) == chosen.minimum_bytes:
            return chosen
    return LBMCElement


class LBMCChain(ChainedOption):
    """A chain of application headers: hot failover number, length of the properties, and others.

    `first_element` None is the type of the first of `elements`.
    """

    name = "LBMC chain"
    option_type = 7
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        FlagsField("flags", 0x80, 8, FLAG_BYTE),
        ByteEnumField("first_element", None, LBMC_ELEMENT_NAMES),
        ChainField("elements", _element_class, lambda packet: packet.first_element, lambda packet: END_NONE),
    ]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the type of the first element, and the length."""
        if self.first_element is None:
            built = built[:3] + bytes((chain_start(self.elements, END_NONE),)) + built[4:]
        return super().post_build(built, payload)


class LBMCSourceIndex(ChainedOption):
    """The number of the source."""

    name = "LBMC source index"
    option_type = 14
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), LongField("source_index", 0)]


class LBMCRetransmissionRequest(ChainedOption):
    """Requests one topic sqn from a source over TCP."""

    name = "LBMC retransmission request"
    option_type = 21
    minimum_bytes = 28
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        BitField("ignore", 0, 1),
        BitField("tsni", 0, 1),
        BitField("reserved_flags", 0, 6),
        BitField("marker", 0, 8),
        IntField("request_index", 0),
        IntField("transport_index", 0),
        IntField("topic_index", 0),
        IntField("sqn", 0),
        ShortField("port", 0),
        ShortField("reserved", 0),
        IPField("ip", "0.0.0.0"),
    ]


class LBMCLateJoinInfo(ChainedOption):
    """The range that a source retains."""

    name = "LBMC late join info"
    option_type = 30
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0),
        IntField("low_sqn", 0),
        IntField("high_sqn", 0),
        IntField("request_index", 0),
    ]


class LBMCTsniRecord(Record):
    """A topic and its last sqn."""

    name = "LBMC TSNI record"
    minimum_bytes = _TSNI_RECORD_BYTES
    fields_desc: ClassVar[list[Any]] = [IntField("topic_index", 0), IntField("sqn", 0)]


def _next_record(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    return (LBMCTsniRecord, _TSNI_RECORD_BYTES) if len(data) >= _TSNI_RECORD_BYTES else None


class LBMCTsni(ChainedOption):
    """Topic sequence number information: the last sqns of idle topics. `count` None is computed."""

    name = "LBMC TSNI"
    option_type = 32
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        BitField("ignore", 0, 1),
        BitField("count", None, 15),
        PartListField("records", _next_record),
    ]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the count, then the length."""
        if self.count is None:
            built = built[:2] + (self.ignore << 15 | len(self.records)).to_bytes(2, "big") + built[4:]
        return super().post_build(built, payload)


class LBMCContextInstance(ChainedOption):
    """The context instance of the sender."""

    name = "LBMC context instance"
    option_type = 66
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), XLongField("instance", 0)]


class LBMCStreamInfo(ChainedOption):
    """The stream of a unicast message, and its number in the stream."""

    name = "LBMC stream info"
    option_type = 75
    minimum_bytes = 20
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0),
        IntField("stream_id", 0),
        IntField("sqn", 0),
        XLongField("instance", 0),
    ]


class LBMCLateJoinRequest(ChainedOption):
    """Requests the retained range from a source over TCP."""

    name = "LBMC late join request"
    option_type = 78
    minimum_bytes = 36
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(7, low_sqn_present=0x0001, request_max_present=0x0002, outstanding_max_present=0x0004),
        IntField("request_index", 0),
        IntField("transport_index", 0),
        IntField("topic_index", 0),
        IPField("ip", "0.0.0.0"),
        ShortField("port", 0),
        ShortField("reserved", 0),
        IntField("low_sqn", 0),
        IntField("request_max", 0),
        IntField("outstanding_max", 0),
    ]


class LBMCHmac(ChainedOption):
    """A tag of 20 bytes. A padding of 1 states that the payloads of the datagram are encrypted."""

    name = "LBMC HMAC"
    option_type = 98
    minimum_bytes = 24
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        FlagsField("flags", 0x80, 8, FLAG_BYTE),
        ByteField("padding", 0),
        XStrField("data", bytes(20)),
    ]


_SSF_INIT_FLAGS = FLAG_BYTE | {0x40: "default_inclusions", 0x20: "default_exclusions", 0x01: "answering"}


class LBMCSsfInit(ChainedOption):
    """A source offers to send only requested topics."""

    name = "LBMC source-side filtering init"
    option_type = 16
    minimum_bytes = 20
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        FlagsField("flags", 0xA0, 8, _SSF_INIT_FLAGS),
        ByteEnumField("transport", 0, {0: "TCP"}),
        IntField("session_id", 0),
        IntField("client_index", 0),
        ShortField("port", 0),
        ShortField("reserved", 0),
        IPField("ip", "0.0.0.0"),
    ]


class LBMCSsfRequest(ChainedOption):
    """A receiver requests or cancels a topic; from a source: the last effective request, and their number."""

    name = "LBMC source-side filtering request"
    option_type = 17
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        FlagsField("flags", 0, 8, FLAG_BYTE),
        ByteEnumField("mode", 0, {0: "include", 1: "exclude"}),
        IntField("session_id", 0),
        IntField("topic_index", 0),
        IntField("client_index", 0),
    ]


class LBMCTcpSessionId(ChainedOption):
    """The session id of a TCP connection."""

    name = "LBMC TCP session id"
    option_type = 107
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), IntField("session_id", 0)]


class LBMCExtended(ChainedOption):
    """An extended option: a private id and subtype, and data."""

    name = "LBMC extended option"
    option_type = EXTENDED_TYPE
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [
        *extended_head(0, 0),
        XStrField("data", b""),
    ]


class LBMCStatus(ChainedOption):
    """The status message of flow control: an extended option of umstack (docs/wire.md)."""

    name = "LBMC status message"
    option_type = EXTENDED_TYPE
    minimum_bytes = 36
    fields_desc: ClassVar[list[Any]] = [
        *extended_head(STATUS_OPTION_ID, STATUS_OPTION_SUBTYPE),
        ByteField("status_version", 1),
        FlagsField(
            "status_flags",
            0,
            8,
            ["elicit", "leave", "slow", "cut_loose", *(f"b{bit}" for bit in range(4, 8))],
        ),
        ShortField("interval_100ms", 0),
        IntField("next_sqn", 0),
        IntField("window_bytes", 0),
        IntField("group_tag", 0),
        XLongField("receiver_id", 0),
        IntField("round_trip_us", 0),
        XStrField("cookie", b""),
    ]


class LBMCProbedStatus(LBMCStatus):
    """A status message that also reports the newest path probe that has arrived."""

    name = "LBMC status message with path probe"
    minimum_bytes = 40
    fields_desc: ClassVar[list[Any]] = [
        *LBMCStatus.fields_desc[:-1],
        ShortField("probe_round", 0),
        ShortField("probe_bytes", 0),
        XStrField("cookie", b""),
    ]


class LBMCSendTime(ChainedOption):
    """The publisher's send time of the message: an extended option of umstack (docs/wire.md)."""

    name = "LBMC send time"
    option_type = EXTENDED_TYPE
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *extended_head(STATUS_OPTION_ID, SEND_TIME_OPTION_SUBTYPE),
        LongField("sent_ns", 0),
    ]


class LBMCGroupReport(ChainedOption):
    """A source's report on its group of receivers: an extended option of umstack (docs/wire.md)."""

    name = "LBMC group report"
    option_type = EXTENDED_TYPE
    minimum_bytes = 20
    fields_desc: ClassVar[list[Any]] = [
        *extended_head(STATUS_OPTION_ID, GROUP_REPORT_OPTION_SUBTYPE),
        ByteField("report_version", 1),
        X3BytesField("reserved", 0),
        IntField("receivers", 0),
        IntField("round_trip_us", 0),
    ]


class LBMCInterest(ChainedOption):
    """A part of an LBT-RU receiver's interest; the topics follow in separate messages (docs/wire.md)."""

    name = "LBMC interest"
    option_type = EXTENDED_TYPE
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *extended_head(STATUS_OPTION_ID, INTEREST_OPTION_SUBTYPE),
        ByteField("interest_version", 1),
        FlagsField("interest_flags", 0, 8, ["wants_all", *(f"b{bit}" for bit in range(1, 8))]),
        ByteField("part", 0),
        ByteField("part_count", 1),
        IntField("number", 0),
    ]


class LBMCFilterReport(ChainedOption):
    """The sqns that an LBT-RU source did not send to a receiver, and its effective interest (docs/wire.md)."""

    name = "LBMC filter report"
    option_type = EXTENDED_TYPE
    minimum_bytes = 28
    fields_desc: ClassVar[list[Any]] = [
        *extended_head(STATUS_OPTION_ID, FILTER_REPORT_OPTION_SUBTYPE),
        ByteField("report_version", 1),
        X3BytesField("reserved", 0),
        IntField("first_sqn", 0),
        IntField("count", 0),
        IntField("number", 0),
        IntField("since_sqn", 0),
    ]


_KNOWN_OPTIONS: tuple[type[ChainedOption], ...] = (
    LBMCFragment,
    LBMCBatch,
    LBMCRequest,
    LBMCTopicName,
    LBMCApplicationHeader,
    LBMCChain,
    LBMCSourceIndex,
    LBMCSsfInit,
    LBMCSsfRequest,
    LBMCRetransmissionRequest,
    LBMCLateJoinInfo,
    LBMCTsni,
    LBMCContextInstance,
    LBMCStreamInfo,
    LBMCLateJoinRequest,
    LBMCHmac,
    LBMCTcpSessionId,
    LBMCExtended,
    *PERSISTENCE_OPTIONS,
)
_OPTIONS = {each.option_type: each for each in _KNOWN_OPTIONS}


_OWN_OPTIONS: dict[tuple[int, int], type[ChainedOption]] = {
    (subtype, own.minimum_bytes + extra): own
    for subtype, own, extra in (
        (STATUS_OPTION_SUBTYPE, LBMCStatus, 0),
        (STATUS_OPTION_SUBTYPE, LBMCStatus, COOKIE_BYTES),
        (STATUS_OPTION_SUBTYPE, LBMCProbedStatus, 0),
        (STATUS_OPTION_SUBTYPE, LBMCProbedStatus, COOKIE_BYTES),
        (GROUP_REPORT_OPTION_SUBTYPE, LBMCGroupReport, 0),
        (SEND_TIME_OPTION_SUBTYPE, LBMCSendTime, 0),
        (INTEREST_OPTION_SUBTYPE, LBMCInterest, 0),
        (FILTER_REPORT_OPTION_SUBTYPE, LBMCFilterReport, 0),
    )
}
"""The stack's own extended options by subtype and length."""


def _option_class(kind: int, data: bytes) -> type[ChainedOption]:
    if kind == EXTENDED_TYPE and len(data) >= LBMCExtended.minimum_bytes and data[3] == STATUS_OPTION_ID:
        own = _OWN_OPTIONS.get((int.from_bytes(data[4:6], "big"), len(data)))
        if own is not None:
            return own
    if kind == EXTENDED_TYPE and int.from_bytes(data[4:6], "big") == CONFIGURATION_SUBTYPE:
        return LBMCConfiguration
    return _OPTIONS.get(kind, UnknownOption)


def _has_topic(packet: Packet) -> bool:
    return packet.type in _TYPES_WITH_TOPIC


def _chain_end(packet: Packet) -> int:
    return END_DATA if _has_topic(packet) else END_NONE


def _space(packet: Packet) -> int:
    size: int = packet.length - (_MESSAGE_BYTES if _has_topic(packet) else _CONTROL_BYTES)
    return size


def message_bytes(data: bytes) -> int | None:
    """Return the length of the LBMC message at the start of these bytes, or None if it is incomplete."""
    if len(data) < _CONTROL_BYTES:
        return None
    length = int.from_bytes(data[2:4], "big")
    header = _MESSAGE_BYTES if data[0] & 0x0F in _TYPES_WITH_TOPIC else _CONTROL_BYTES
    return length if header <= length <= len(data) else None


def is_cookie(data: bytes) -> bool:
    """Return true if these bytes are the cookie behind a session message."""
    option = LBMC(data).option(LBMCExtended) if message_bytes(data) == len(data) else None
    return option is not None and (option.id, option.subtype, len(option.data)) == (
        STATUS_OPTION_ID,
        COOKIE_OPTION_SUBTYPE,
        COOKIE_BYTES,
    )


class LBMC(WirePacket):
    """A message (with its content as payload), or a control message (options only).

    `next_header` and `length` None are computed, also in the options.
    """

    name = "LBMC"
    minimum_bytes = _CONTROL_BYTES
    fields_desc: ClassVar[list[Any]] = [
        BitField("version", 0, 4),
        BitEnumField("type", 0, 4, LBMC_TYPES),
        ByteEnumField("next_header", None, LBMC_OPTION_NAMES),
        ShortField("length", None),
        ConditionalField(IntField("topic_index", 0), _has_topic),
        ConditionalField(IntField("sqn", 0), _has_topic),
        ChainField("options", _option_class, lambda packet: packet.next_header, _chain_end, _space),
    ]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if the message is complete."""
        return message_bytes(data) is not None

    def extract_padding(self, data: bytes) -> tuple[bytes, bytes]:
        """Cut the payload at the end of the message."""
        end = self.length - (len(self.original) - len(data))
        return data[:end], data[end:]

    def do_dissect_payload(self, data: bytes) -> None:
        """Split the properties from the end of the content; they may span fragments, which are not split."""
        length = self._properties_bytes(data)
        if length == 0:
            super().do_dissect_payload(data)
            return
        content, block = data[:-length], data[-length:]
        packet = block_class(block)(block, _internal=1)
        self.add_payload(Raw(content, _internal=1) / packet if content else packet)

    def _properties_bytes(self, data: bytes) -> int:
        chain = self.option(LBMCChain)
        if chain is None or self.option(LBMCFragment) is not None:
            return 0
        for element in chain.elements:
            if isinstance(element, LBMCPropertiesLength):
                length: int = element.bytes
                return length if 0 < length <= len(data) and is_sound(data[-length:]) else 0
        return 0

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the type of the first option, and the length."""
        next_header: int | None = self.next_header
        length: int | None = self.length
        if next_header is None:
            next_header = chain_start(self.options, _chain_end(self))
        if length is None:
            length = len(built) + len(payload)
        return built[:1] + bytes((next_header,)) + (length & 0xFFFF).to_bytes(2, "big") + built[4:] + payload

    def option(self, kind: type[Packet]) -> Packet | None:
        """Return the first option of a class, or None."""
        return next((option for option in self.options if isinstance(option, kind)), None)

    def mysummary(self) -> str:
        """Return a summary of one line."""
        where = f" topic {self.topic_index} sqn {self.sqn}" if _has_topic(self) else ""
        return f"LBMC {LBMC_TYPES.get(self.type, self.type)}{where}"


def _next_message(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    size = message_bytes(data)
    return None if size is None else (LBMC, size)


class MessageListField(PartListField):
    """LBMC messages back to back. An incomplete message remains as `Raw`, with everything behind it."""

    def __init__(self, name: str) -> None:
        """Create an empty list."""
        super().__init__(name, _next_message)


class LBMCStream(WirePacket):
    """LBMC messages on TCP, as in late join and recovery requests; use with scapy's TCPSession."""

    name = "LBMC stream"
    fields_desc: ClassVar[list[Any]] = [MessageListField("messages")]

    @classmethod
    def tcp_reassemble(cls, data: bytes, metadata: dict[str, Any], session: dict[str, Any]) -> Packet | None:
        """Wait until the last message is complete; bytes that cannot become one are returned as `Raw`."""
        at = 0
        while size := message_bytes(data[at:]):
            at += size
        head = data[at : at + _CONTROL_BYTES]
        partial = len(head) < _CONTROL_BYTES or int.from_bytes(head[2:4], "big") > len(data) - at
        return None if at < len(data) and partial else cls(data)


__all__ = [
    "LBMC",
    "LBMC_ELEMENT_NAMES",
    "LBMC_OPTION_NAMES",
    "LBMC_TYPES",
    "SEND_TIME_OPTION_SUBTYPE",
    "STATUS_OPTION_ID",
    "STATUS_OPTION_SUBTYPE",
    "LBMCApplicationHeader",
    "LBMCBatch",
    "LBMCChain",
    "LBMCContextInstance",
    "LBMCElement",
    "LBMCExtended",
    "LBMCFragment",
    "LBMCHmac",
    "LBMCHotFailover",
    "LBMCHotFailover32",
    "LBMCLateJoinInfo",
    "LBMCLateJoinRequest",
    "LBMCProbedStatus",
    "LBMCPropertiesLength",
    "LBMCRequest",
    "LBMCRetransmissionRequest",
    "LBMCSendTime",
    "LBMCSourceIndex",
    "LBMCStatus",
    "LBMCStream",
    "LBMCStreamInfo",
    "LBMCTcpSessionId",
    "LBMCTopicName",
    "LBMCTsni",
    "LBMCTsniRecord",
    "MessageListField",
    "message_bytes",
]
