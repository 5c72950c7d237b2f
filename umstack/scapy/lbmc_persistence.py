"""LBMC options of persistence: registrations, acknowledgements, keepalives, and lists of Stores (docs/wire.md)."""

from __future__ import annotations

from typing import Any, ClassVar

from scapy.fields import (
    BitField,
    ByteEnumField,
    ByteField,
    FlagsField,
    IntField,
    IPField,
    LongField,
    ShortField,
    StrField,
    StrNullField,
    XIntField,
    XLongField,
)
from scapy.packet import Packet

from umstack.scapy.fields import ChainedOption, PartListField, Record
from umstack.scapy.lbmc_heads import EXTENDED_TYPE, extended_head, option_flag_byte, option_flags, option_head

CONFIGURATION_SUBTYPE = 256


def _party() -> list[Any]:
    return [BitField("is_source", 1, 1), BitField("marker", 0, 7)]


class LBMCRegistration(ChainedOption):
    """A source or receiver registers with a Store, or deregisters."""

    name = "LBMC registration"
    option_type = 18
    minimum_bytes = 28
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flag_byte(0, no_ack_forwarding=0x40, proxy=0x20, receiver_paced=0x10, deregister=0x08),
        *_party(),
        IntField("reg_id", 0),
        IntField("transport_index", 0),
        IntField("topic_index", 0),
        IntField("source_reg_id", 0),
        ShortField("port", 0),
        ShortField("reserved", 0),
        IPField("ip", "0.0.0.0"),
    ]


class LBMCRegistrationResponse(ChainedOption):
    """A Store's answer. With the flag error, `code` is the error; otherwise 2 is receiver-paced, 1 deregistered."""

    name = "LBMC registration response"
    option_type = 19
    minimum_bytes = 24
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        FlagsField("flags", 0, 4, ["no_acks", "error", "known", "ignore"]),
        BitField("code", 0, 4),
        *_party(),
        IntField("reg_id", 0),
        IntField("transport_index", 0),
        IntField("topic_index", 0),
        IntField("low_sqn", 0),
        IntField("high_sqn", 0),
    ]


class LBMCAcknowledgement(ChainedOption):
    """A Store has messages on its medium, or a receiver has consumed them. `id_2`: topic index or source's id."""

    name = "LBMC acknowledgement"
    option_type = 20
    minimum_bytes = 20
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flag_byte(
            0, arrival_order=0x40, no_forwarding=0x20, user_reg_id=0x10, explicit=0x08, lost=0x04
        ),
        ByteEnumField("type", 1, {0: "consumption", 1: "stable"}),
        IntField("transport_index", 0),
        IntField("id_2", 0),
        IntField("receiver_reg_id", 0),
        IntField("sqn", 0),
    ]


class LBMCRangedAcknowledgement(ChainedOption):
    """One range of the acknowledgement before it."""

    name = "LBMC ranged acknowledgement"
    option_type = 24
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0),
        IntField("first_sqn", 0),
        IntField("last_sqn", 0),
    ]


class LBMCAcknowledgementId(ChainedOption):
    """Counts the confirmations of a receiver."""

    name = "LBMC acknowledgement id"
    option_type = 25
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), IntField("id", 0)]


class LBMCKeepalive(ChainedOption):
    """The sender is alive."""

    name = "LBMC keepalive"
    option_type = 22
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flag_byte(0, needs_response=0x40, topic_not_seen=0x20),
        ByteEnumField("type", 0, {0: "store", 1: "receiver", 2: "source"}),
        IntField("transport_index", 0),
        IntField("topic_index", 0),
        IntField("reg_id", 0),
    ]


class LBMCReceiverKeepalive(ChainedOption):
    """A receiver is alive, for the source."""

    name = "LBMC receiver keepalive"
    option_type = 80
    minimum_bytes = 24
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0),
        IntField("receiver_reg_id", 0),
        LongField("session_id", 0),
        XLongField("instance", 0),
    ]


class LBMCStoreId(ChainedOption):
    """The position of the addressed or sending Store in the source's list."""

    name = "LBMC store id"
    option_type = 23
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        BitField("ignore", 0, 1),
        BitField("store_index", 0, 15),
    ]


class LBMCCapability(ChainedOption):
    """Abilities of the sender."""

    name = "LBMC capability"
    option_type = 26
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0, quorum_consensus=0x4000, client_lifetime=0x2000),
    ]


class LBMCProxySource(ChainedOption):
    """The source wants a stand-in when it is absent."""

    name = "LBMC proxy source"
    option_type = 27
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0, enable=0x4000, compatibility=0x2000)]


class LBMCStoreGroup(ChainedOption):
    """A group of Stores."""

    name = "LBMC store group"
    option_type = 28
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flag_byte(0),
        ByteField("group", 0),
        ShortField("size", 0),
        ShortField("reserved", 0),
    ]


class LBMCStore(ChainedOption):
    """A Store of the source's list."""

    name = "LBMC store"
    option_type = 29
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flag_byte(0),
        ByteField("group", 0),
        ShortField("port", 0),
        ShortField("store_index", 0),
        IPField("ip", "0.0.0.0"),
        IntField("source_reg_id", 0),
    ]


class LBMCStoreExtended(ChainedOption):
    """A Store of the source's list, with domain and version."""

    name = "LBMC store, extended"
    option_type = 105
    minimum_bytes = 24
    fields_desc: ClassVar[list[Any]] = [
        *LBMCStore.fields_desc,
        IntField("domain", 0),
        IntField("version", 0),
    ]


class LBMCStoreContextInstance(ChainedOption):
    """The context instance of the Store before it."""

    name = "LBMC store context instance"
    option_type = 60
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), XLongField("instance", 0)]


class LBMCStoreName(ChainedOption):
    """The name of the Store before it."""

    name = "LBMC store name"
    option_type = 61
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), StrField("store", b"")]


class LBMCStoreDomain(ChainedOption):
    """The resolution domain of a Store."""

    name = "LBMC store domain"
    option_type = 84
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), IntField("domain", 0)]


class LBMCClientLifetime(ChainedOption):
    """How long a client may be idle, in ms."""

    name = "LBMC client lifetime"
    option_type = 70
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0),
        IntField("activity_timeout", 0),
        IntField("lifetime", 0),
        IntField("ttl", 0),
    ]


class LBMCSessionId(ChainedOption):
    """The session id of a client, by which a Store recognizes it."""

    name = "LBMC client session id"
    option_type = 71
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [*option_head(), option_flags(0), LongField("session_id", 0)]


class LBMCRegistrationInformation(ChainedOption):
    """SRI: where a source is registered."""

    name = "LBMC source registration information"
    option_type = 85
    minimum_bytes = 16
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0, acks_to_source=0x0001, initial_sqn_known=0x0002),
        IntField("version", 0),
        IntField("low_sqn", 0),
        IntField("high_sqn", 0),
    ]


class LBMCRegistrationInformationRequest(ChainedOption):
    """A receiver requests the SRI of a source."""

    name = "LBMC source registration information request"
    option_type = 83
    minimum_bytes = 12
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0),
        IntField("transport_index", 0),
        IntField("topic_index", 0),
    ]


class LBMCElectionToken(ChainedOption):
    """A Store's token in the election of a proxy source."""

    name = "LBMC proxy election token"
    option_type = 106
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flag_byte(0),
        ByteField("store_index", 0),
        XIntField("token", 0),
    ]


class LBMCProxyElection(ChainedOption):
    """The record of an election of a proxy source."""

    name = "LBMC proxy source election record"
    option_type = 65
    minimum_bytes = 40
    fields_desc: ClassVar[list[Any]] = [
        *option_head(),
        option_flags(0, source_instance=0x4000, store_instance=0x2000, reelect=0x1000),
        IPField("source_ip", "0.0.0.0"),
        IPField("store_ip", "0.0.0.0"),
        IntField("transport_index", 0),
        IntField("topic_index", 0),
        ShortField("source_port", 0),
        ShortField("store_port", 0),
        XLongField("source_instance", 0),
        XLongField("store_instance", 0),
    ]


class LBMCConfigurationValue(Record):
    """An option of the sender's configuration."""

    name = "LBMC configuration value"
    minimum_bytes = 4
    fields_desc: ClassVar[list[Any]] = [
        ByteEnumField("scope", 1, {1: "source", 2: "receiver", 3: "context"}),
        ByteField("parent", 0),
        StrNullField("option", b""),
        StrNullField("value", b""),
    ]


def _next_value(packet: Packet, found: list[Packet], data: bytes) -> tuple[type[Packet], int] | None:
    """Return the next value if both of its texts are terminated."""
    end = data.find(b"\0", data.find(b"\0", 2) + 1) if data.find(b"\0", 2) > 0 else -1
    return None if end < 0 else (LBMCConfigurationValue, end + 1)


class LBMCConfiguration(ChainedOption):
    """Configuration values, in an extended option."""

    name = "LBMC configuration"
    option_type = EXTENDED_TYPE
    minimum_bytes = 8
    fields_desc: ClassVar[list[Any]] = [
        *extended_head(0, CONFIGURATION_SUBTYPE),
        PartListField("values", _next_value),
    ]


PERSISTENCE_OPTIONS: tuple[type[ChainedOption], ...] = (
    LBMCRegistration,
    LBMCRegistrationResponse,
    LBMCAcknowledgement,
    LBMCKeepalive,
    LBMCStoreId,
    LBMCRangedAcknowledgement,
    LBMCAcknowledgementId,
    LBMCCapability,
    LBMCProxySource,
    LBMCStoreGroup,
    LBMCStore,
    LBMCStoreContextInstance,
    LBMCStoreName,
    LBMCProxyElection,
    LBMCClientLifetime,
    LBMCSessionId,
    LBMCReceiverKeepalive,
    LBMCRegistrationInformationRequest,
    LBMCStoreDomain,
    LBMCRegistrationInformation,
    LBMCStoreExtended,
    LBMCElectionToken,
)
"""The options of persistence, besides those of late join, by type."""

__all__ = [
    "CONFIGURATION_SUBTYPE",
    "PERSISTENCE_OPTIONS",
    "LBMCConfiguration",
    "LBMCConfigurationValue",
    *(option.__name__ for option in PERSISTENCE_OPTIONS),
]
