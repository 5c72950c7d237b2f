"""Getters of the scapy layers' fields, for comparing them with tshark's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scapy.fields import ConditionalField
from scapy.packet import Packet

Value = int | float | str | bytes
Getter = Callable[[Packet], Value | list[Value] | None]

IGNORE = {"ignore": 0x8000}
IGNORE_BYTE = {"ignore": 0x80}


def held(packet: Packet, name: str) -> Any:
    """Return the value of a field, or None if the packet does not have it."""
    field = packet.get_field(name)
    absent = isinstance(field, ConditionalField) and not field._evalcond(packet)
    return None if absent else packet.getfieldval(name)


def get(name: str) -> Getter:
    """Return a getter of a field."""
    return lambda packet: held(packet, name)


def number(name: str) -> Getter:
    """Return a getter of a field as a number."""
    return lambda packet: None if (value := held(packet, name)) is None else int(value)


def eight(name: str) -> Getter:
    """Return a getter of a 64-bit number that tshark shows as bytes."""
    return lambda packet: packet.getfieldval(name).to_bytes(8, "big")


def fields(prefix: str, **names: str) -> dict[str, Getter]:
    """Return the getters of fields by tshark's names."""
    return {f"{prefix}.{theirs}": get(ours) for theirs, ours in names.items()}


def bit(ours: str, mask: int) -> Getter:
    """Return a getter of a bit of a field."""
    return lambda packet: None if (value := held(packet, ours)) is None else int(bool(int(value) & mask))


def flags(prefix: str, ours: str = "flags", **bits: int) -> dict[str, Getter]:
    """Return the getters of a flags field, whole and bit by bit."""
    return {prefix: number(ours)} | {f"{prefix}.{name}": bit(ours, mask) for name, mask in bits.items()}


def chained(prefix: str) -> dict[str, Getter]:
    """Return the getters of the header of a chained option."""
    return fields(prefix, next_hdr="next_header", hdr_len="length")


def typed(prefix: str) -> dict[str, Getter]:
    """Return the getters of the header of an LBMR option."""
    return fields(prefix, type="type", len="length")
