"""Addresses of both families as text and as the core's `um_ip` and `um_address`: the only place that converts them.

The core stores an IPv4 address in its IPv4-mapped form, and no address (0.0.0.0) as zeros
(`ffi/core/foundation/address.h`).
"""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Any

UNKNOWN_IP = "0.0.0.0"
"""No address, in a place for one."""
_WORD_BITS = 64
_WORD = (1 << _WORD_BITS) - 1
_IPV4_BITS = 32
_IPV4_MAPPED = 0xFFFF << _IPV4_BITS

CoreIp = tuple[int, int]
"""Both words of a `um_ip`, as cffi takes them: a field of that type can be assigned this."""


@lru_cache(maxsize=4096)
def core_ip(text: str) -> CoreIp:
    """Return an address as a `um_ip`. Raises ValueError if it is none."""
    address = ipaddress.ip_address(text)
    if address.version == 4:
        return 0, _IPV4_MAPPED | int(address) if int(address) else 0
    return divmod(int(address), 1 << _WORD_BITS)


def number_ip(number: int) -> CoreIp:
    """Return a host id or a process id of LBT-IPC, which takes the place of an IPv4 address, as a `um_ip`."""
    return 0, _IPV4_MAPPED | number


def core_number(ip: Any) -> int:
    """Return the number in such a `um_ip`."""
    return int(ip.low & 0xFFFFFFFF)


def core_address(address: tuple[str, int]) -> tuple[CoreIp, int]:
    """Return an address and a port as a `um_address`, as cffi takes it. Raises ValueError if it is none."""
    return core_ip(address[0]), address[1]


def core_network(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> tuple[CoreIp, CoreIp]:
    """Return a network as a `um_network`: its first address and its mask."""
    first, mask = int(network.network_address), int(network.netmask)
    if network.version == 4:
        return (0, _IPV4_MAPPED | first), (_WORD, _WORD ^ 0xFFFFFFFF | mask)
    return divmod(first, 1 << _WORD_BITS), divmod(mask, 1 << _WORD_BITS)


def is_ipv6(host: str) -> bool:
    """Return true for the text of an IPv6 address."""
    return ":" in host


def ip_text(ip: Any) -> str:
    """Return a `um_ip` as text."""
    return _text(ip.high, ip.low)


def named(host: str, port: int) -> str:
    """Return an address and a port in their usual notation: `10.1.2.3:14400`, `[ff15::7]:14400`."""
    return f"[{host}]:{port}" if is_ipv6(host) else f"{host}:{port}"


def address_text(address: Any) -> str:
    """Return a `um_address` in the same notation."""
    return named(ip_text(address.ip), address.port)


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of a text in that notation. Raises ValueError."""
    host, _, port = text.rpartition(":")
    address = ipaddress.ip_address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    if (address.version == 6) != host.startswith("["):
        raise ValueError(f"{text!r} is not an address and a port")
    return str(address), int(port)


@lru_cache(maxsize=4096)
def _text(high: int, low: int) -> str:
    if high == 0 and (low == 0 or low >> _IPV4_BITS == _IPV4_MAPPED >> _IPV4_BITS):
        return str(ipaddress.IPv4Address(low & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(high << _WORD_BITS | low))
