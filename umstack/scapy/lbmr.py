"""LBMR, topic resolution: queries (TQR), advertisements (TIR), topic management, requests, and their options.

One file, because the record types refer to each other.
"""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import (
    BitEnumField,
    BitField,
    ByteEnumField,
    ByteField,
    ConditionalField,
    FlagsField,
    IntField,
    IP6Field,
    IPField,
    PacketField,
    ShortField,
    SignedIntField,
    StrNullField,
    XByteField,
    XIntField,
    XLongField,
    XShortField,
    XStrField,
)
from scapy.packet import Packet, Raw, bind_layers

from umstack.scapy.fields import Part, PartListField, Record, TypedOption, WirePacket
from umstack.scapy.lbmr_persistence import (
    PERSISTENCE_TOPIC_OPTIONS,
    LBMRContextInformation,
    LBMRProxyElection,
    LBMRRemoteContexts,
)

LBMR_TYPES = {
    0: "NORMAL",
    1: "WILDCARD_QUERY",
    2: "RECEIVER_ALIVE",
    3: "SOURCE_ALIVE",
    4: "TOPIC_MANAGEMENT",
    6: "QUEUE",
    7: "EXTENDED",
}
EXTENDED_TYPES = {
    1: "proxy_source_election",
    2: "queue_management",
    3: "context_information",
    4: "resolution_request",
    5: "gateway",
    6: "remote_domain_route",
    7: "remote_context_information",
}
REQUEST_FLAGS = [
    "wildcard_queries",
    "queries",
    "advertisements",
    "gateway_meta",
    "context_advertisements",
    "context_queries",
    "gateway_remote_interest",
    *(f"b{bit}" for bit in range(7, 16)),
]
TRANSPORTS = {0x00: "TCP", 0x01: "LBT-RU", 0x04: "LBT-SMX", 0x10: "LBT-RM", 0x20: "LBT-RDMA", 0x40: "LBT-IPC"}
PATTERN_TYPES = {1: "PCRE", 2: "regex"}

_NORMAL, _WILDCARD, _EXTENDED = 0, 1, 7
_ELECTION, _CONTEXT, _REQUEST, _REMOTE_CONTEXTS = 1, 3, 4, 7
_LBTRM, _TCP, _LBTRU, _SMX, _RDMA, _IPC = 0x10, 0x00, 0x01, 0x04, 0x20, 0x40
_TIR_FIXED_BYTES = 8
_OPTION_HEAD_BYTES = 2
_TOTAL_BYTES = 4
_HAS_OPTIONS_BIT = 0x80
_PACKET_OPTIONS_BIT = 0x08
_RECORD_HEAD_BYTES = 4


def _head(kind: int) -> list[Any]:
    return [XByteField("type", kind), ByteField("length", None)]


def _option_bytes(data: bytes) -> int | None:
    if len(data) < _OPTION_HEAD_BYTES or not _OPTION_HEAD_BYTES <= data[1] <= len(data):
        return None
    return data[1]


class LBMROption(TypedOption):
    """An unknown option of an advertisement or datagram."""

    name = "LBMR option"
    fields_desc: ClassVar[list[Any]] = [*_head(0), XStrField("data", b"")]


class _Total(TypedOption):
    """The total length of all options of the list, including this one; `total` None is computed."""

    minimum_bytes = _TOTAL_BYTES


class _TotalledOptions(PartListField):
    """Options, one of which holds the total length."""

    def addfield(self, pkt: Packet, s: bytes, val: Any) -> bytes:
        """Build the options, and the total length if it is None."""
        built = [bytes(option) for option in val]
        total = sum(map(len, built))
        for at, option in enumerate(val):
            if isinstance(option, _Total) and option.total is None:
                built[at] = built[at][:2] + total.to_bytes(2, "big") + built[at][4:]
        return s + b"".join(built)


class LBMRTopicOptionLength(_Total):
    """Must be the first option of an advertisement."""

    name = "LBMR topic option: length"
    fields_desc: ClassVar[list[Any]] = [*_head(0), ShortField("total", None)]


class LBMRTopicLateJoin(TypedOption):
    """The request address for earlier messages."""

    name = "LBMR topic option: late join"
    minimum_bytes = 24
    fields_desc: ClassVar[list[Any]] = [
        *_head(4),
        XShortField("flags", 0),
        ShortField("port", 0),
        ShortField("reserved", 0),
        IPField("ip", "0.0.0.0"),
        IntField("transport_index", 0),
        IntField("high_sqn", 0),
        IntField("low_sqn", 0),
    ]


class LBMRTopicCost(TypedOption):
    """The cost of the source's path."""

    name = "LBMR topic option: cost"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [
        *_head(7),
        XByteField("flags", 0),
        ByteField("hop_count", 0),
        SignedIntField("cost", 0),
    ]


class LBMRTopicOriginatingTransport(TypedOption):
    """The original transport of a forwarded topic."""

    name = "LBMR topic option: originating transport"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        *_head(8),
        XShortField("flags", 0),
        XStrField("originating_transport", b""),
    ]


class LBMRTopicContextInstance(TypedOption):
    """The context of the source."""

    name = "LBMR topic option: context instance"
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [
        *_head(9),
        XByteField("flags", 0),
        XByteField("reserved", 0),
        XLongField("instance", 0),
    ]


class LBMRTopicDomain(TypedOption):
    """The resolution domain of the source."""

    name = "LBMR topic option: domain"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*_head(13), XShortField("flags", 0), IntField("domain", 0)]


class LBMRTopicExtendedFunction(TypedOption):
    """Further functions of the source, and their address."""

    name = "LBMR topic option: extended function"
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *_head(14),
        XShortField("flags", 0),
        ShortField("port", 0),
        ShortField("reserved", 0),
        IPField("ip", "0.0.0.0"),
        FlagsField("functions", 0, 32, ["late_join", "ume", "umq", "ulb", *(f"b{n}" for n in range(4, 32))]),
    ]


class LBMRTopicIPv6Addresses(TypedOption):
    """The addresses of an LBT-RM session over IPv6, whose transport part has zeros in their place."""

    name = "LBMR topic option: IPv6 addresses"
    minimum_bytes = 36
    fields_desc: ClassVar[list[Any]] = [
        *_head(85),
        XShortField("flags", 0),
        IP6Field("source_ip", "::"),
        IP6Field("group", "::"),
    ]


class LBMROptionLength(_Total):
    """Must be the last option of a datagram."""

    name = "LBMR packet option: length"
    fields_desc: ClassVar[list[Any]] = [*_head(0x80), ShortField("total", None)]


class LBMRSourceId(TypedOption):
    """The id of the datagram's sender."""

    name = "LBMR packet option: source id"
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [*_head(0x81), XShortField("flags", 0), XLongField("source_id", 0)]


class LBMRSourceType(TypedOption):
    """The kind of program that sent the datagram."""

    name = "LBMR packet option: source type"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [*_head(0x82), XByteField("flags", 0), ByteField("source_type", 0)]


class LBMRVersion(TypedOption):
    """The version of the datagram's sender."""

    name = "LBMR packet option: version"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*_head(0x83), XShortField("flags", 0), XIntField("number", 0)]


class LBMRLocalDomain(TypedOption):
    """The resolution domain of the datagram's sender."""

    name = "LBMR packet option: domain"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*_head(0x84), XShortField("flags", 0), IntField("domain", 0)]


_TOPIC_OPTIONS: dict[int, type[TypedOption]] = {
    **PERSISTENCE_TOPIC_OPTIONS,
    0: LBMRTopicOptionLength,
    4: LBMRTopicLateJoin,
    7: LBMRTopicCost,
    8: LBMRTopicOriginatingTransport,
    9: LBMRTopicContextInstance,
    13: LBMRTopicDomain,
    14: LBMRTopicExtendedFunction,
    85: LBMRTopicIPv6Addresses,
}
_PACKET_OPTIONS: dict[int, type[TypedOption]] = {
    0x80: LBMROptionLength,
    0x81: LBMRSourceId,
    0x82: LBMRSourceType,
    0x83: LBMRVersion,
    0x84: LBMRLocalDomain,
}


def _option_class(classes: dict[int, type[TypedOption]], data: bytes) -> type[TypedOption]:
    found = classes.get(data[0], LBMROption)
    return found if found.accepts(data) else LBMROption


def _next_topic_option(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    """Return the next option of an advertisement; malformed bytes within the total are `Raw`."""
    total = int.from_bytes((found[0].original if found else data)[2:4], "big")
    left = total - sum(len(each.original) for each in found)
    if left <= 0:
        return None
    size = _option_bytes(data[:left])
    return (conf.raw_layer, left) if size is None else (_option_class(_TOPIC_OPTIONS, data[:size]), size)


def _next_packet_option(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    broken_off = (len(packet.tqrs), len(packet.tirs)) != (packet.tqr_count, packet.tir_count)
    if broken_off or (found and isinstance(found[-1], LBMROptionLength)):
        return None
    size = _option_bytes(data)
    return None if size is None else (_option_class(_PACKET_OPTIONS, data[:size]), size)


class LBMRQuery(Record):
    """A TQR: a topic that a receiver queries."""

    name = "LBMR TQR"
    fields_desc: ClassVar[list[Any]] = [StrNullField("topic", b"")]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if the name is terminated."""
        return b"\0" in data


class LBMRWildcardQuery(Record):
    """A pattern that a receiver queries."""

    name = "LBMR wildcard TQR"
    minimum_bytes = 2
    fields_desc: ClassVar[list[Any]] = [
        ByteEnumField("pattern_type", 1, PATTERN_TYPES),
        StrNullField("pattern", b""),
    ]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if the pattern is terminated."""
        return b"\0" in data[1:]


class LBMRLbtrmInfo(Part):
    """The parameters to join an LBT-RM session."""

    name = "LBMR LBT-RM transport"
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        IPField("source_ip", "0.0.0.0"),
        IPField("group", "0.0.0.0"),
        XIntField("session_id", 0),
        ShortField("destination_port", 14400),
        ShortField("nak_port", 14390),
    ]


class LBMRUnicastInfo(Part):
    """The address and session id of an LBT-RU, TCP or RDMA source."""

    name = "LBMR unicast transport"
    minimum_bytes = 10
    fields_desc: ClassVar[list[Any]] = [
        IPField("source_ip", "0.0.0.0"),
        XIntField("session_id", 0),
        ShortField("port", 0),
    ]


class LBMRUnicastAddress(Part):
    """The address of an LBT-RU or TCP source without a session id."""

    name = "LBMR unicast address"
    minimum_bytes = 6
    fields_desc: ClassVar[list[Any]] = [IPField("source_ip", "0.0.0.0"), ShortField("port", 0)]


class LBMRHostInfo(Part):
    """The shared memory of a host that an SMX or IPC source uses."""

    name = "LBMR host transport"
    minimum_bytes = 10
    fields_desc: ClassVar[list[Any]] = [
        XIntField("host_id", 0),
        XIntField("session_id", 0),
        XShortField("transport_id", 0),
    ]


_INFO: dict[tuple[int, int], type[Part]] = {
    (_LBTRM, 16): LBMRLbtrmInfo,
    (_LBTRU, 10): LBMRUnicastInfo,
    (_LBTRU, 6): LBMRUnicastAddress,
    (_TCP, 10): LBMRUnicastInfo,
    (_TCP, 6): LBMRUnicastAddress,
    (_RDMA, 10): LBMRUnicastInfo,
    (_SMX, 10): LBMRHostInfo,
    (_IPC, 10): LBMRHostInfo,
}


class _InfoField(PacketField):  # type: ignore[misc, unused-ignore]
    """The transport part of an advertisement, by its kind and length; `Raw` if unknown."""

    def getfield(self, pkt: Packet, s: bytes) -> tuple[bytes, Packet]:
        """Dissect the length given in the advertisement."""
        size = pkt.info_length
        kind = _INFO.get((pkt.transport, size), Raw)
        return s[size:], kind(s[:size], _parent=pkt)


def _tir_bytes(data: bytes) -> int | None:
    """Return the length of the TIR at the start of these bytes, or None if it is incomplete."""
    fixed = data.find(b"\0") + 1
    rest = data[fixed:]
    if fixed == 0 or len(rest) < _TIR_FIXED_BYTES:
        return None
    options = 0
    if rest[0] & _HAS_OPTIONS_BIT:
        head = rest[_TIR_FIXED_BYTES : _TIR_FIXED_BYTES + _TOTAL_BYTES]
        options = int.from_bytes(head[2:], "big")
        if head[:2] != bytes((0, _TOTAL_BYTES)) or options < _TOTAL_BYTES:
            return None
    size = fixed + _TIR_FIXED_BYTES + options + rest[1]
    return size if size <= len(data) else None


class LBMRAdvertisement(Record):
    """A TIR: a topic, its index, and its transport. `options_present` and `info_length` None are computed.

    With options, the first must be LBMRTopicOptionLength.
    """

    name = "LBMR TIR"
    fields_desc: ClassVar[list[Any]] = [
        StrNullField("topic", b""),
        BitField("options_present", None, 1),
        BitEnumField("transport", _LBTRM, 7, TRANSPORTS),
        ByteField("info_length", None),
        ShortField("ttl", 60),
        IntField("index", 0),
        ConditionalField(
            _TotalledOptions("options", _next_topic_option),
            lambda packet: packet.options_present or packet.options_present is None,
        ),
        _InfoField("info", LBMRLbtrmInfo(), LBMRLbtrmInfo),
    ]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if the record is complete."""
        return _tir_bytes(data) is not None

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the flag for options, and the length of the transport part."""
        at = built.index(b"\0") + 1
        kind, size = built[at], built[at + 1]
        if self.options_present is None and self.options:
            kind |= _HAS_OPTIONS_BIT
        if self.info_length is None:
            size = len(bytes(self.info)) & 0xFF
        return built[:at] + bytes((kind, size)) + built[at + 2 :] + payload


def _next_query(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    wildcard = packet.type == _WILDCARD
    end = data.find(b"\0", 1 if wildcard else 0) + 1
    if len(found) >= (packet.tqr_count or 0) or end == 0:
        return None
    return (LBMRWildcardQuery if wildcard else LBMRQuery), end


def _next_advertisement(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    # If the list of queries is malformed, the rest is not dissected.
    if len(found) >= (packet.tir_count or 0) or len(packet.tqrs) < (packet.tqr_count or 0):
        return None
    size = _tir_bytes(data)
    return None if size is None else (LBMRAdvertisement, size)


def _has_counts(packet: Packet) -> bool:
    return bool(packet.type != _EXTENDED)


def _has_records(packet: Packet) -> bool:
    return packet.type in (_NORMAL, _WILDCARD)


def _is_request(packet: Packet) -> bool:
    return bool(packet.type == _EXTENDED and packet.extended_type == _REQUEST)


def _has_packet_options(packet: Packet) -> bool:
    return _has_records(packet) and packet.options_present in (None, 1)


class LBMR(WirePacket):
    """A datagram of topic resolution. Counts, `options_present` and `extended_value` None are computed.

    `extended_value` is a length: of context information in its first byte, of remote contexts in both.
    With packet options, the last must be LBMROptionLength.
    """

    name = "LBMR"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        BitField("version", 0, 4),
        BitField("options_present", None, 1),
        BitEnumField("type", _NORMAL, 3, LBMR_TYPES),
        ConditionalField(ByteField("tqr_count", None), _has_counts),
        ConditionalField(ShortField("tir_count", None), _has_counts),
        ConditionalField(
            ByteEnumField("extended_type", _REQUEST, EXTENDED_TYPES), lambda packet: not _has_counts(packet)
        ),
        ConditionalField(FlagsField("request", 6, 16, REQUEST_FLAGS), _is_request),
        ConditionalField(
            XShortField("extended_value", None),
            lambda packet: packet.type == _EXTENDED and packet.extended_type != _REQUEST,
        ),
        ConditionalField(PartListField("tqrs", _next_query), _has_records),
        ConditionalField(PartListField("tirs", _next_advertisement), _has_records),
        ConditionalField(_TotalledOptions("options", _next_packet_option), _has_packet_options),
    ]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the counts, and the flag for options."""
        first, count, rest = built[0], built[1], built[2:4]
        if self.options_present is None and self.options and _has_records(self):
            first |= _PACKET_OPTIONS_BIT
        if _has_records(self):
            count = len(self.tqrs) & 0xFF if self.tqr_count is None else count
            rest = (len(self.tirs) & 0xFFFF).to_bytes(2, "big") if self.tir_count is None else rest
        elif self.type == _EXTENDED and self.extended_value is None:
            length = len(built) + len(payload)
            value = {_CONTEXT: length << 8, _REMOTE_CONTEXTS: length}.get(self.extended_type)
            rest = rest if value is None else (value & 0xFFFF).to_bytes(2, "big")
        return bytes((first, count)) + rest + built[4:] + payload

    def answers(self, other: Packet) -> int:
        """Return true if this is a TIR for a topic of the other's TQRs, or if the other requests these records."""
        if not isinstance(other, LBMR) or not _has_records(self):
            return 0
        if _is_request(other):
            queries = "wildcard_queries" if self.type == _WILDCARD else "queries"
            wanted, offered = getattr(other.request, queries), bool(other.request.advertisements)
            return int(bool(wanted and self.tqrs) or bool(offered and self.tirs))
        if other.type != _NORMAL:
            return 0
        return int(not {each.topic for each in self.tirs}.isdisjoint(each.topic for each in other.tqrs))

    def mysummary(self) -> str:
        """Return a summary of one line."""
        if not _has_records(self):
            return f"LBMR {LBMR_TYPES.get(self.type, self.type)}"
        return f"LBMR {len(self.tqrs)} TQRs {len(self.tirs)} TIRs"


class LBMRTopicManagementRecord(Part):
    """A TMR: a topic that a context starts or stops using. `length` None is computed."""

    name = "LBMR TMR"
    minimum_bytes = _RECORD_HEAD_BYTES
    fields_desc: ClassVar[list[Any]] = [
        ShortField("length", None),
        ByteEnumField("type", 1, {0: "leave", 1: "use"}),
        FlagsField(
            "flags", 0, 8, [*(f"b{n}" for n in range(5)), "wildcard_regex", "wildcard_pcre", "response"]
        ),
        StrNullField("topic", b""),
    ]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if the name is terminated."""
        return b"\0" in data[_RECORD_HEAD_BYTES:]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the length."""
        built += payload
        return built if self.length is not None else (len(built) & 0xFFFF).to_bytes(2, "big") + built[2:]


def _next_management_record(
    packet: Packet, found: list[Packet], data: bytes
) -> tuple[type[Packet], int] | None:
    size = int.from_bytes(data[:2], "big")
    whole = _RECORD_HEAD_BYTES < size <= len(data) and b"\0" in data[_RECORD_HEAD_BYTES:size]
    if len(found) >= (packet.count or 0) or not whole:
        return None
    return LBMRTopicManagementRecord, size


class LBMRTopicManagement(WirePacket):
    """A block of TMRs. `length` (of the whole block) and `count` None are computed."""

    name = "LBMR topic management"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        ShortField("length", None),
        ShortField("count", None),
        PartListField("tmrs", _next_management_record),
    ]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the length and the count."""
        length = len(built) & 0xFFFF if self.length is None else self.length
        count = len(self.tmrs) if self.count is None else self.count
        return length.to_bytes(2, "big") + count.to_bytes(2, "big") + built[4:] + payload


bind_layers(LBMR, LBMRTopicManagement, type=4)
bind_layers(LBMR, LBMRProxyElection, type=_EXTENDED, extended_type=_ELECTION)
bind_layers(LBMR, LBMRContextInformation, type=_EXTENDED, extended_type=_CONTEXT)
bind_layers(LBMR, LBMRRemoteContexts, type=_EXTENDED, extended_type=_REMOTE_CONTEXTS)

__all__ = [
    "EXTENDED_TYPES",
    "LBMR",
    "LBMR_TYPES",
    "TRANSPORTS",
    "LBMRAdvertisement",
    "LBMRHostInfo",
    "LBMRLbtrmInfo",
    "LBMRLocalDomain",
    "LBMROption",
    "LBMROptionLength",
    "LBMRQuery",
    "LBMRSourceId",
    "LBMRSourceType",
    "LBMRTopicContextInstance",
    "LBMRTopicCost",
    "LBMRTopicDomain",
    "LBMRTopicExtendedFunction",
    "LBMRTopicLateJoin",
    "LBMRTopicManagement",
    "LBMRTopicManagementRecord",
    "LBMRTopicOptionLength",
    "LBMRTopicOriginatingTransport",
    "LBMRUnicastAddress",
    "LBMRUnicastInfo",
    "LBMRVersion",
    "LBMRWildcardQuery",
]
