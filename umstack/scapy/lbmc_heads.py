"""The first fields of LBMC options, and the names of their types."""

from __future__ import annotations

from typing import Any

from scapy.fields import ByteEnumField, ByteField, FlagsField, ShortField

LBMC_OPTION_NAMES = {
    0: "data",
    1: "fragment",
    2: "batch",
    4: "request",
    5: "topic_name",
    6: "application_header",
    7: "chain",
    14: "source_index",
    18: "registration",
    19: "registration_response",
    20: "acknowledgement",
    21: "retransmission_request",
    22: "keepalive",
    23: "store_id",
    24: "ranged_acknowledgement",
    25: "acknowledgement_id",
    26: "capability",
    27: "proxy_source",
    28: "store_group",
    29: "store",
    30: "late_join_info",
    32: "tsni",
    60: "store_context_instance",
    61: "store_name",
    65: "proxy_election",
    66: "context_instance",
    70: "client_lifetime",
    71: "client_session_id",
    75: "stream_info",
    78: "late_join_request",
    80: "receiver_keepalive",
    83: "registration_information_request",
    84: "store_domain",
    85: "registration_information",
    98: "hmac",
    105: "store_extended",
    106: "election_token",
    107: "tcp_session_id",
    254: "extended",
    255: "none",
}
EXTENDED_TYPE = 254

_IGNORE_16 = 0x8000
_IGNORE_8 = 0x80
FLAG_BYTE = {_IGNORE_8: "ignore"} | {1 << bit: f"b{bit}" for bit in range(7)}
"""Names of eight flags, of which 0x80 lets a reader ignore the option."""
_EXTENDED_FLAGS = FLAG_BYTE | {0x40: "ignore_subtype", 0x20: "more_fragments"}


def option_head() -> list[Any]:
    """Return the first two fields of every option."""
    return [ByteEnumField("next_header", None, LBMC_OPTION_NAMES), ByteField("length", None)]


def option_flags(default: int, **bits: int) -> FlagsField:
    """Return sixteen flags, of which 0x8000 lets a reader ignore the option."""
    names = {1 << bit: f"b{bit}" for bit in range(16)} | {_IGNORE_16: "ignore"}
    return FlagsField("flags", default, 16, names | {value: name for name, value in bits.items()})


def option_flag_byte(default: int, **bits: int) -> FlagsField:
    """Return eight flags, of which 0x80 lets a reader ignore the option."""
    return FlagsField("flags", default, 8, FLAG_BYTE | {value: name for name, value in bits.items()})


def extended_head(option_id: int, subtype: int) -> list[Any]:
    """Return the first fields of every extended option."""
    return [
        *option_head(),
        FlagsField("flags", 0xC0, 8, _EXTENDED_FLAGS),
        ByteField("id", option_id),
        ShortField("subtype", subtype),
        ShortField("fragment_offset", 0),
    ]


__all__ = [
    "EXTENDED_TYPE",
    "FLAG_BYTE",
    "LBMC_OPTION_NAMES",
    "extended_head",
    "option_flag_byte",
    "option_flags",
    "option_head",
]
