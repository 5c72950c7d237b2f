"""LbtrmAddress: what identifies an LBT-RM transport session, and its name as UM writes it."""

from __future__ import annotations

import ipaddress
from typing import Any, NamedTuple


class LbtrmAddress(NamedTuple):
    """Everything needed to join an LBT-RM session and to send it NAKs.

    A tuple, because it is part of keys that topic resolution looks up for every record it receives.
    """

    source_ip: str
    group: str
    session_id: int
    destination_port: int
    nak_port: int


def transport_name(address: LbtrmAddress) -> str:
    """The session as UM writes it: type, source address, NAK port, session id, group, port."""
    return (
        f"LBTRM:{address.source_ip}:{address.nak_port}:{address.session_id:08x}:"
        f"{address.group}:{address.destination_port}"
    )


def address_of(identity: Any) -> LbtrmAddress:
    """The address in a `um_session_id` of the core."""
    return LbtrmAddress(
        source_ip=str(ipaddress.IPv4Address(identity.source.ip)),
        group=str(ipaddress.IPv4Address(identity.group.ip)),
        session_id=identity.session_id,
        destination_port=identity.group.port,
        nak_port=identity.source.port,
    )
