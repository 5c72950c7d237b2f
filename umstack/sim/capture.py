"""Writes a simulated run as a pcapng capture with Ethernet frames, as captured at the switch and at each host.

Every datagram of the trace becomes a frame with its virtual time. The switch captures the datagrams that hosts send,
before any fault; a host captures the datagrams that it sends and receives, as a tap on its context would.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.core_address import core_address
from umstack.errors import error_from_path
from umstack.sim.trace import Datagram, Fate
from umstack.sim.world import World

START_NS = 1_700_000_000_000_000_000
"""Default wall-clock time of virtual time 0."""
SWITCH = -1
"""The capture point at the switch."""

_ETHERNET = struct.Struct("!2sIH")
_MAC = struct.Struct("!2sI")
_MULTICAST_MAC = 0x5E000000
_MULTICAST_BITS = 0x7FFFFF
_IPV4, _IPV6 = 0x0800, 0x86DD
_FIRST_HOST_IP = 0x0A000001
_IPV6_NETWORK = 0xFD00 << 112
_TTL = 16
_HEADERS_MAX = int(lib.UM_IPV6_UDP_HEADER_BYTES)


def point_name(point: int) -> str:
    """Return the interface name of a capture point."""
    return "switch" if point == SWITCH else f"host{point}"


def host_address(host: int, is_ipv6: bool = False) -> str:
    """Return the address of a host, in a world of this family."""
    return str(ip_address(_FIRST_HOST_IP + host + (_IPV6_NETWORK if is_ipv6 else 0)))


def hosts_of(datagrams: Iterable[Datagram]) -> list[int]:
    """Return the hosts that sent a datagram, or to which one was sent."""
    return sorted({end for one in datagrams for end in (one.sender, one.receiver) if end >= 0})


def write_capture(
    world: World,
    path: str | os.PathLike[str],
    *,
    points: Iterable[int] | None = None,
    start_ns: int = START_NS,
) -> int:
    """Write the captures of these points (SWITCH, host numbers; default: all), one interface per point.

    Return the number of packets. `start_ns`: wall-clock time of virtual time 0.
    """
    trace = world.trace()
    chosen = [SWITCH, *hosts_of(trace)] if points is None else list(points)
    interfaces = {point: number for number, point in enumerate(chosen)}
    writer = ffi.new("um_pcapng_writer *")
    _check_written(lib.um_pcapng_open(writer, os.fsencode(path)), path)
    for point in chosen:
        name = point_name(point).encode()
        lib.um_pcapng_add_interface(writer, name, lib.UM_PCAPNG_LINK_ETHERNET, 0, ffi.NULL)
    packet = ffi.new("um_pcapng_packet *", {"queue": lib.UM_PCAPNG_UNKNOWN, "verdict": lib.UM_PCAPNG_UNKNOWN})
    count = 0
    for datagram in trace:
        head = None
        for point, direction in _seen_at(datagram):
            if point not in interfaces:
                continue
            head = head or _headers(datagram, datagram.serial)
            packet.time_ns = start_ns + datagram.time_ns
            packet.interface_id = interfaces[point]
            packet.wire_bytes = len(head) + len(datagram.data)
            packet.direction = direction
            lib.um_pcapng_write(writer, packet, head, len(head), datagram.data, len(datagram.data))
            count += 1
    _check_written(lib.um_pcapng_close(writer), path)
    return count


def _check_written(result: int, path: str | os.PathLike[str]) -> None:
    if result < 0:
        raise error_from_path(OSError(-result, os.strerror(-result)), f"writing {os.fspath(path)}")


def _seen_at(datagram: Datagram) -> Iterator[tuple[int, Any]]:
    """Yield the points that capture this trace entry, with the direction."""
    if datagram.fate is Fate.SENT:
        yield SWITCH, lib.UM_PCAPNG_NO_DIRECTION
        yield datagram.sender, lib.UM_PCAPNG_OUTBOUND
    elif datagram.fate is Fate.RECEIVED:
        yield datagram.receiver, lib.UM_PCAPNG_INBOUND


_parsed = lru_cache(1024)(ip_address)


def _headers(datagram: Datagram, number: int) -> bytes:
    """Return the Ethernet, IP and UDP headers with correct checksums."""
    source, destination = (_parsed(host) for host, _ in (datagram.source, datagram.destination))
    last, is_ipv6 = int(destination) & 0xFFFFFFFF, destination.version == 6
    if not destination.is_multicast:
        to_mac = _MAC.pack(b"\x02\x00", last)
    elif is_ipv6:
        to_mac = _MAC.pack(b"\x33\x33", last)
    else:
        to_mac = _MAC.pack(b"\x01\x00", _MULTICAST_MAC | last & _MULTICAST_BITS)
    network = ffi.new("uint8_t[]", _HEADERS_MAX)
    sender, receiver = (
        ffi.new("um_address *", core_address(end))[0] for end in (datagram.source, datagram.destination)
    )
    size = len(datagram.data)
    used = lib.um_datagram_frame(network, sender, receiver, _TTL, number & 0xFFFF, datagram.data, size, size)
    kind = _IPV6 if is_ipv6 else _IPV4
    return (
        to_mac
        + _ETHERNET.pack(b"\x02\x00", int(source) & 0xFFFFFFFF, kind)
        + bytes(ffi.buffer(network, used))
    )
