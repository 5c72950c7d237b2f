"""The address that identifies a transport session, for each transport, and its name in UM's notation.

Addresses are tuples, because they are part of keys that topic resolution looks up for every record it receives. Those
of different transports are never equal.
"""

from __future__ import annotations

import re
from typing import Any, Literal, NamedTuple

from umstack._core import lib
from umstack._engine.core_address import core_ip, core_number, ip_text, named, number_ip


class LbtrmAddress(NamedTuple):
    """Everything needed to join an LBT-RM session and to send it NAKs."""

    source_ip: str
    group: str
    session_id: int
    destination_port: int
    nak_port: int


class LbtruAddress(NamedTuple):
    """Everything needed to connect to an LBT-RU session. Its UDP port sends data and receives NAKs.

    `session_id` is 0 if the session has none.
    """

    source_ip: str
    session_id: int
    source_port: int
    transport: Literal["LBTRU"] = "LBTRU"


class TcpAddress(NamedTuple):
    """Everything needed to connect to an LBT-TCP session: the TCP port on which its source listens.

    `session_id` is 0 if the session has none.
    """

    source_ip: str
    session_id: int
    source_port: int
    transport: Literal["TCP"] = "TCP"


class LbtipcAddress(NamedTuple):
    """Everything needed to attach to an LBT-IPC session, in a process of the host with this id (host_identity.py)."""

    host_id: int
    session_id: int
    transport_id: int
    transport: Literal["LBTIPC"] = "LBTIPC"


_IP = r"(\[[0-9a-f:.]+\]|[0-9.]+)"
_LBTRM_NAME = re.compile(f"LBTRM:{_IP}:([0-9]+):([0-9a-f]+):{_IP}:([0-9]+)")
_UNICAST_NAME = re.compile(r"(LBTRU|TCP):([0-9.]+):([0-9]+)(?::([0-9a-f]+))?")

TransportAddress = LbtrmAddress | LbtruAddress | TcpAddress | LbtipcAddress


def transport_name(address: TransportAddress) -> str:
    """Return the name of the session in Ultra Messaging's notation.

    LBT-RM: source address, NAK port, session id, group, port; IPv6 addresses are in brackets. LBT-RU and TCP: source
    address, port, session id. LBT-IPC: session id, transport id.
    """
    if isinstance(address, LbtipcAddress):
        return f"LBTIPC:{address.session_id:x}:{address.transport_id}"
    if isinstance(address, LbtrmAddress):
        return (
            f"LBTRM:{named(address.source_ip, address.nak_port)}:{address.session_id:08x}:"
            f"{named(address.group, address.destination_port)}"
        )
    name = f"{address.transport}:{address.source_ip}:{address.source_port}"
    return f"{name}:{address.session_id:08x}" if address.session_id else name


def address_of_name(name: str) -> TransportAddress | None:
    """Return the address of an LBT-RM, LBT-RU or TCP session with this name of transport_name(), else None."""
    if (found := _LBTRM_NAME.fullmatch(name)) is not None:
        ip, nak_port, session_id, group, port = found.groups()
        return LbtrmAddress(ip.strip("[]"), group.strip("[]"), int(session_id, 16), int(port), int(nak_port))
    if (found := _UNICAST_NAME.fullmatch(name)) is None:
        return None
    transport, ip, port, session_id = found.groups()
    kind = LbtruAddress if transport == "LBTRU" else TcpAddress
    return kind(ip, int(session_id or "0", 16), int(port))


def is_session_of(name: str, ip: str) -> bool:
    """Return true if the session, or source, of this name is at this IPv4 address."""
    return name.split(":", 2)[1:2] == [ip]


def address_of(identity: Any) -> TransportAddress:
    """Return the address in a `um_session_id` of the core."""
    if identity.transport == lib.UM_TRANSPORT_LBTIPC:
        return LbtipcAddress(core_number(identity.source.ip), identity.session_id, identity.source.port)
    source_ip = ip_text(identity.source.ip)
    if identity.transport == lib.UM_TRANSPORT_LBTRU:
        return LbtruAddress(source_ip, identity.session_id, identity.source.port)
    if identity.transport == lib.UM_TRANSPORT_TCP:
        return TcpAddress(source_ip, identity.session_id, identity.source.port)
    return LbtrmAddress(
        source_ip=source_ip,
        group=ip_text(identity.group.ip),
        session_id=identity.session_id,
        destination_port=identity.group.port,
        nak_port=identity.source.port,
    )


def fill_identity(identity: Any, address: TransportAddress) -> None:
    """Write the address into a `um_session_id` of the core. It must be zeroed."""
    identity.session_id = address.session_id
    if isinstance(address, LbtipcAddress):
        identity.transport = lib.UM_TRANSPORT_LBTIPC
        identity.source.ip, identity.source.port = number_ip(address.host_id), address.transport_id
        return
    identity.source.ip = core_ip(address.source_ip)
    if isinstance(address, LbtrmAddress):
        identity.transport = lib.UM_TRANSPORT_LBTRM
        identity.source.port = address.nak_port
        identity.group.ip = core_ip(address.group)
        identity.group.port = address.destination_port
    else:
        is_tcp = isinstance(address, TcpAddress)
        identity.transport = lib.UM_TRANSPORT_TCP if is_tcp else lib.UM_TRANSPORT_LBTRU
        identity.source.port = address.source_port
