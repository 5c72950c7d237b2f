"""Binds the layers to UDP and TCP payloads: by the default ports, by other ports, or by their structure.

Importing the layers binds nothing; `load()` does, and `unload()` undoes it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scapy.config import conf
from scapy.layers.inet import TCP, UDP
from scapy.packet import (
    Packet,
    bind_bottom_up,
    bind_top_down,
    split_bottom_up,
    split_top_down,
)

from umstack.scapy.lbmc import STATUS_OPTION_ID, LBMCStream, is_cookie
from umstack.scapy.lbmr import LBMR, LBMRTopicManagement
from umstack.scapy.lbtrm import LBTRM, LBTRMSm
from umstack.scapy.lbtru import LBTRU

LBTRM_PORT = 14400
LBTRM_NAK_PORTS = range(14390, 14400)
LBMR_PORT = 12965
LBMR_UNICAST_PORTS = (*range(14402, 14407), 15380)
LBTRU_SOURCE_PORTS = range(14380, 14390)
LBTRU_RECEIVER_PORTS = range(14360, 14380)
TCP_REQUEST_PORTS = range(14391, 14396)

_LBTRM_TYPES = (0, 2, 3, 4)
_LBMR_TYPES = (0, 1, 2, 3, 4, 6, 7)
_LBTRU_TYPES = (0, 2, 3, 4, 5, 6, 7)
_SM = 2
_SM_BYTES = 24
_OPTION_ID_AT = 7
_PATH_SUBTYPES = (10, 11)
_REQUEST_SUBTYPES = range(1, 8)


def load() -> None:
    """Bind the layers to the default ports. A second call has no effect.

    Example:
        ```python
        from scapy.layers.inet import IP, UDP

        umstack.scapy.load()
        packet = IP() / UDP(dport=14400) / umstack.scapy.LBTRM()
        print(IP(bytes(packet)).summary())
        umstack.scapy.unload()
        ```
    """
    unload()
    bind_ports(
        lbtrm=(*LBTRM_NAK_PORTS, LBTRM_PORT),
        lbmr=(*LBMR_UNICAST_PORTS, LBMR_PORT),
        lbtru=(*LBTRU_RECEIVER_PORTS, *LBTRU_SOURCE_PORTS),
        tcp=TCP_REQUEST_PORTS,
    )
    bind_top_down(UDP, LBTRM, dport=LBTRM_PORT)
    bind_top_down(UDP, LBMR, dport=LBMR_PORT)


def unload() -> None:
    """Remove all bindings of the layers to UDP and TCP, by any caller, and stop guessing.

    Example:
        ```python
        umstack.scapy.load()
        umstack.scapy.unload()
        ```
    """
    for lower, uppers in ((UDP, (LBTRM, LBMR, LBTRU, UmGuess)), (TCP, (LBMCStream,))):
        for match, upper in list(lower.payload_guess):
            if upper in uppers:
                split_bottom_up(lower, upper, **match)
    for upper in (LBTRM, LBMR):
        for lower, match in list(upper._overload_fields.items()):
            split_top_down(lower, upper, **match)


def bind_ports(
    *,
    lbtrm: Iterable[int] = (),
    lbmr: Iterable[int] = (),
    lbtru: Iterable[int] = (),
    tcp: Iterable[int] = (),
) -> None:
    """Dissect payloads to these ports as these layers.

    Args:
        lbtrm: UDP destination ports of LBT-RM.
        lbmr: UDP destination ports of topic resolution.
        lbtru: UDP destination ports of LBT-RU.
        tcp: TCP ports of requests and LBT-TCP, as source or destination.

    Example:
        ```python
        umstack.scapy.bind_ports(lbtrm=[20000], tcp=range(20001, 20005))
        umstack.scapy.unload()
        ```
    """
    for lower, upper, ports in ((UDP, LBTRM, lbtrm), (UDP, LBMR, lbmr), (UDP, LBTRU, lbtru)):
        for port in ports:
            _bind_first(lower, upper, dport=port)
    for port in tcp:
        _bind_first(TCP, LBMCStream, dport=port)
        _bind_first(TCP, LBMCStream, sport=port)


def _bind_first(lower: type[Packet], upper: type[Packet], **match: int) -> None:
    """Bind with priority over other bindings to the same port."""
    split_bottom_up(lower, upper, **match)
    bind_bottom_up(lower, upper, **match)
    lower.payload_guess.insert(0, lower.payload_guess.pop())


def guess_everywhere() -> None:
    """Dissect every UDP payload without a bound port by its structure, see `guess`.

    Example:
        ```python
        umstack.scapy.guess_everywhere()
        umstack.scapy.unload()
        ```
    """
    split_bottom_up(UDP, UmGuess)
    bind_bottom_up(UDP, UmGuess)


def guess(data: bytes) -> type[Packet] | None:
    """Return the layer of these bytes by their structure alone: all lengths and counts must agree.

    This is stricter than tshark, which checks addresses and ports, and version, type and next header of LBT-RM. Some
    datagrams are valid in several layers: LBT-RM is tried first, then LBMR, and LBT-RU only for its own types.

    Args:
        data: The UDP payload.

    Returns:
        The class of the layer, or None if no layer fits.

    Example:
        ```python
        print(umstack.scapy.guess(bytes(umstack.scapy.LBTRM() / umstack.scapy.LBTRMSm())))
        ```
    """
    return next((layer for layer, fits in _LOOKS.items() if fits(data)), None)


def _whole(data: bytes, layer: type[Packet]) -> Packet | None:
    """Return the dissection if it covers every byte, otherwise None."""
    packet = layer(data)
    rest = packet.lastlayer()
    if isinstance(rest.underlayer, LBTRMSm) and is_cookie(bytes(rest)):
        return packet
    return None if isinstance(rest, conf.raw_layer | conf.padding_layer) else packet


def _lists_agree(packet: Packet) -> bool:
    body = packet.payload
    sqns = getattr(body, "sqns", None)
    return sqns is None or (0 < len(sqns) == body.count)


def _carries_messages(packet: Packet) -> bool:
    messages = getattr(packet.payload, "messages", None)
    return messages is None or (bool(messages) and all(message.version == 0 for message in messages))


def _is_path_control(data: bytes) -> bool:
    """Return true if the control message of a path probe or of a piece of a datagram begins here."""
    is_own = data[:2] == b"\x08\xfe" and data[_OPTION_ID_AT : _OPTION_ID_AT + 1] == bytes([STATUS_OPTION_ID])
    return is_own and int.from_bytes(data[_OPTION_ID_AT + 1 : _OPTION_ID_AT + 3], "big") in _PATH_SUBTYPES


def _looks_like_lbtrm(data: bytes) -> bool:
    if len(data) < 8 or data[0] not in _LBTRM_TYPES or data[1] != 0:
        return False
    if data[0] == _SM and len(data) > _SM_BYTES and _is_path_control(data[_SM_BYTES:]):
        data = data[:_SM_BYTES]
    packet = _whole(data, LBTRM)
    return packet is not None and bool(packet.payload) and _lists_agree(packet) and _carries_messages(packet)


def _looks_like_lbmr(data: bytes) -> bool:
    if len(data) < 4 or data[0] >> 4 or data[0] & 0x07 not in _LBMR_TYPES:
        return False
    packet = _whole(data, LBMR)
    if packet is None:
        return False
    if packet.type == 7:
        return packet.extended_type in _REQUEST_SUBTYPES and (len(data) == 4 or bool(packet.payload))
    if isinstance(packet.payload, LBMRTopicManagement):
        return len(packet.payload.tmrs) == int(packet.payload.count)
    return packet.type in (0, 1) and (len(packet.tqrs), len(packet.tirs)) == (
        packet.tqr_count,
        packet.tir_count,
    )


def _looks_like_lbtru(data: bytes) -> bool:
    if len(data) < 4 or data[0] not in _LBTRU_TYPES or data[1] > 2:
        return False
    packet = _whole(data, LBTRU)
    if packet is None or not (_lists_agree(packet) and _carries_messages(packet)):
        return False
    return bool(packet.payload) or packet.type in (6, 7)


_LOOKS = {LBTRM: _looks_like_lbtrm, LBMR: _looks_like_lbmr, LBTRU: _looks_like_lbtru}


class UmGuess(Packet):  # type: ignore[misc, unused-ignore]
    """Placeholder for the layer that `guess` returns; it never appears in a packet."""

    name = "UM datagram"

    @classmethod
    def dispatch_hook(cls, _pkt: bytes = b"", *args: Any, **kwargs: Any) -> type[Packet]:
        """Return the layer."""
        return guess(bytes(_pkt)) or conf.raw_layer


__all__ = ["bind_ports", "guess", "guess_everywhere", "load", "unload"]
