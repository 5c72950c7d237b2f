"""LBMR parts of persistence: options of advertisements, and names of Stores and other contexts."""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.fields import (
    ByteField,
    FlagsField,
    IntField,
    IPField,
    ShortField,
    StrNullField,
    XByteField,
    XLongField,
    XShortField,
    XStrField,
)
from scapy.packet import Packet

from umstack.scapy.fields import Part, PartListField, TypedOption, WirePacket

_NAME_FLAGS = [
    "name",
    *(f"b{bit}" for bit in range(1, 10)),
    "proxy",
    "router_receives",
    "router_sends",
    "instance",
    "ip",
    "query",
]
_HEAD_BYTES = 4
_CONTEXT_BYTES = 16
_ELECTION_BYTES = 24


def _head(kind: int) -> list[Any]:
    return [XByteField("type", kind), ByteField("length", None)]


class LBMRTopicPersistence(TypedOption):
    """The Store of a source; before version 6 of Ultra Messaging."""

    name = "LBMR topic option: persistence"
    minimum_bytes = 32
    fields_desc: ClassVar[list[Any]] = [
        *_head(1),
        XShortField("flags", 0),
        ShortField("store_port", 0),
        ShortField("source_port", 0),
        IPField("store_ip", "0.0.0.0"),
        IPField("source_ip", "0.0.0.0"),
        IntField("source_reg_id", 0),
        IntField("transport_index", 0),
        IntField("high_sqn", 0),
        IntField("low_sqn", 0),
    ]


class LBMRTopicStore(TypedOption):
    """A Store of the source's list."""

    name = "LBMR topic option: store"
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *_head(2),
        XByteField("flags", 0),
        ByteField("group", 0),
        ShortField("port", 0),
        ShortField("store_index", 0),
        IPField("ip", "0.0.0.0"),
        IntField("source_reg_id", 0),
    ]


class LBMRTopicStoreGroup(TypedOption):
    """A group of Stores."""

    name = "LBMR topic option: store group"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [
        *_head(3),
        XByteField("flags", 0),
        ByteField("group", 0),
        ShortField("size", 0),
        ShortField("reserved", 0),
    ]


class LBMRTopicStoreContextInstance(TypedOption):
    """The context instance of a Store."""

    name = "LBMR topic option: store context instance"
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [
        *_head(10),
        XByteField("flags", 0),
        ByteField("store_index", 0),
        XLongField("instance", 0),
    ]


PERSISTENCE_TOPIC_OPTIONS: dict[int, type[TypedOption]] = {
    1: LBMRTopicPersistence,
    2: LBMRTopicStore,
    3: LBMRTopicStoreGroup,
    10: LBMRTopicStoreContextInstance,
}
"""Options of advertisements by type."""


class LBMRContextInformation(WirePacket):
    """A query for a named context, or its answer: the name of a Store and its address."""

    name = "LBMR context information"
    fields_desc: ClassVar[list[Any]] = [
        FlagsField("flags", 0, 16, _NAME_FLAGS),
        ShortField("port", 0),
        IPField("ip", "0.0.0.0"),
        XLongField("instance", 0),
        StrNullField("context_name", b""),
    ]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if the name is terminated."""
        return b"\0" in data[_CONTEXT_BYTES:]


class LBMRContextRecordOption(TypedOption):
    """An unknown option of a remote context."""

    name = "LBMR remote context option"
    minimum_bytes = _HEAD_BYTES
    fields_desc: ClassVar[list[Any]] = [*_head(0), XShortField("flags", 0), XStrField("data", b"")]


class LBMRContextAddress(TypedOption):
    """The address of a remote context."""

    name = "LBMR remote context address"
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *_head(1),
        XShortField("flags", 0),
        IntField("domain", 0),
        IPField("ip", "0.0.0.0"),
        ShortField("port", 0),
        ShortField("reserved", 0),
    ]


class LBMRContextInstance(TypedOption):
    """The instance of a remote context."""

    name = "LBMR remote context instance"
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [*_head(2), XShortField("flags", 0), XLongField("instance", 0)]


class LBMRContextDomain(TypedOption):
    """The domain in which a remote context's record began."""

    name = "LBMR remote context domain"
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*_head(3), XShortField("flags", 0), IntField("domain", 0)]


class LBMRContextName(TypedOption):
    """The name of a remote context."""

    name = "LBMR remote context name"
    fields_desc: ClassVar[list[Any]] = [*_head(4), XShortField("flags", 0), StrNullField("context_name", b"")]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if the name is terminated."""
        return b"\0" in data[_HEAD_BYTES:]


_RECORD_OPTIONS: dict[int, type[TypedOption]] = {
    1: LBMRContextAddress,
    2: LBMRContextInstance,
    3: LBMRContextDomain,
    4: LBMRContextName,
}


def _next_record_option(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    if len(data) < _HEAD_BYTES or not _HEAD_BYTES <= data[1] <= len(data):
        return None
    chosen = _RECORD_OPTIONS.get(data[0], LBMRContextRecordOption)
    return (chosen if chosen.accepts(data[: data[1]]) else LBMRContextRecordOption), data[1]


class LBMRRemoteContext(Part):
    """A record of a remote context. `length` None is computed."""

    name = "LBMR remote context"
    minimum_bytes = _HEAD_BYTES
    fields_desc: ClassVar[list[Any]] = [
        ShortField("length", None),
        FlagsField("flags", 0, 16, [*(f"b{bit}" for bit in range(15)), "query"]),
        PartListField("options", _next_record_option),
    ]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the length."""
        built += payload
        return built if self.length is not None else (len(built) & 0xFFFF).to_bytes(2, "big") + built[2:]


def _next_context(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    size = int.from_bytes(data[:2], "big")
    more = len(found) < (packet.count or 0)
    return (LBMRRemoteContext, size) if more and _HEAD_BYTES <= size <= len(data) else None


class LBMRRemoteContexts(WirePacket):
    """Information about contexts of other domains. `count` None is computed."""

    name = "LBMR remote context information"
    minimum_bytes = _HEAD_BYTES
    fields_desc: ClassVar[list[Any]] = [
        ShortField("count", None),
        ShortField("reserved", 0),
        PartListField("contexts", _next_context),
    ]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the count."""
        count = len(self.contexts) if self.count is None else self.count
        return (count & 0xFFFF).to_bytes(2, "big") + built[2:] + payload


class LBMRProxyElection(WirePacket):
    """The record of an election of a proxy source. `length`, of the whole datagram, None is computed."""

    name = "LBMR proxy source election record"
    fields_desc: ClassVar[list[Any]] = [
        ShortField("length", None),
        XShortField("flags", 0),
        IPField("source_ip", "0.0.0.0"),
        IPField("store_ip", "0.0.0.0"),
        IntField("transport_index", 0),
        IntField("topic_index", 0),
        ShortField("source_port", 0),
        ShortField("store_port", 0),
        StrNullField("topic", b""),
    ]

    @classmethod
    def accepts(cls, data: bytes) -> bool:
        """Return true if the name is terminated."""
        return b"\0" in data[_ELECTION_BYTES:]

    def post_build(self, built: bytes, payload: bytes) -> bytes:
        """Fill in the length."""
        length = _HEAD_BYTES + len(built) if self.length is None else self.length
        return (length & 0xFFFF).to_bytes(2, "big") + built[2:] + payload


__all__ = [
    "PERSISTENCE_TOPIC_OPTIONS",
    "LBMRContextAddress",
    "LBMRContextDomain",
    "LBMRContextInformation",
    "LBMRContextInstance",
    "LBMRContextName",
    "LBMRContextRecordOption",
    "LBMRProxyElection",
    "LBMRRemoteContext",
    "LBMRRemoteContexts",
    "LBMRTopicPersistence",
    "LBMRTopicStore",
    "LBMRTopicStoreContextInstance",
    "LBMRTopicStoreGroup",
]
