"""Packet filter of a capture: a classic BPF program that the kernel runs before copying frames.

Frames are Ethernet with IPv4 or IPv6, without VLAN tags, which the kernel has removed. An IPv6 packet with an extension
header is accepted if it is to one of the groups.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from umstack.config import Config
from umstack.errors import OptionError

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, constant."""

_LOAD_WORD, _LOAD_HALF, _LOAD_BYTE = 0x20, 0x28, 0x30
_LOAD_HALF_BEHIND_HEADER = 0x48
_LOAD_HEADER_LENGTH = 0xB1
_JUMP_EQUAL, _JUMP_GREATER, _JUMP_AT_LEAST, _JUMP_ANY_BIT = 0x15, 0x25, 0x35, 0x45
_RETURN = 0x06
_ACCEPT, _REJECT = "accept", "reject"
_WHOLE = 0x40000

_ETHERTYPE_AT, _IP_AT = 12, 14
_FRAGMENT_AT, _PROTOCOL_AT, _DESTINATION_AT = _IP_AT + 6, _IP_AT + 9, _IP_AT + 16
_SOURCE_PORT_AT, _DESTINATION_PORT_AT = _IP_AT, _IP_AT + 2  # plus the length of the IP header
_IPV4, _UDP, _TCP, _FRAGMENT_OFFSET = 0x0800, 17, 6, 0x1FFF
_IPV6, _IPV6_MULTICAST, _WORD = 0x86DD, 0xFF, 0xFFFFFFFF
_IPV6_PROTOCOL_AT, _IPV6_DESTINATION_AT, _IPV6_PORT_AT = _IP_AT + 6, _IP_AT + 24, _IP_AT + 42
_JUMP_MAXIMUM = 255

GROUP_HINT = "224.1.1.1, 224.1.1.1-224.1.1.9, 224.1.0.0/16 or ff15::7"
AddressRange = (
    tuple[ipaddress.IPv4Address, ipaddress.IPv4Address] | tuple[ipaddress.IPv6Address, ipaddress.IPv6Address]
)
PortRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class PacketFilter:
    """Accepts UDP to `groups` (on `group_ports`, if set), UDP to unicast addresses on `unicast_ports`, and TCP from or
    to `stream_ports`."""

    groups: tuple[AddressRange, ...]
    group_ports: tuple[PortRange, ...] = ()
    unicast_ports: tuple[PortRange, ...] = ()
    stream_ports: tuple[PortRange, ...] = ()

    @classmethod
    def of_configuration(cls, config: Config) -> PacketFilter:
        """Return a filter for all packets of the stack with this configuration: data, session messages, NAKs, topic
        resolution and recovery over every transport."""
        context, source, receiver = (
            config.context_options(),
            config.source_options(),
            config.receiver_options(),
        )
        groups = [
            (context.transport_lbtrm_multicast_address_low, context.transport_lbtrm_multicast_address_high)
        ]
        if source.transport_lbtrm_multicast_address != "0.0.0.0":
            groups.append((source.transport_lbtrm_multicast_address,) * 2)
        resolvers = {context.resolver_incoming, context.resolver_outgoing}
        groups += [(group, group) for group, _ in sorted(resolvers)]
        ports = {source.transport_lbtrm_destination_port, *(port for _, port in resolvers)}
        return cls(
            tuple(_range(low, high) for low, high in groups),
            tuple((port, port) for port in sorted(ports)),
            (
                (context.transport_lbtrm_source_port_low, context.transport_lbtrm_source_port_high),
                (context.transport_lbtru_port_low, context.transport_lbtru_port_high),
                (receiver.transport_lbtru_port_low, receiver.transport_lbtru_port_high),
                *_named(source.transport_lbtru_port),
            ),
            (
                (context.request_tcp_port_low, context.request_tcp_port_high),
                (context.transport_tcp_port_low, context.transport_tcp_port_high),
                *_named(source.transport_tcp_port),
            ),
        )

    def narrowed(self, groups: Sequence[str], ports: Sequence[str]) -> PacketFilter:
        """Restrict to groups ("224.1.1.1", "224.1.1.1-224.1.1.9", "224.1.0.0/16") or ports ("14400", "1-9")."""
        return PacketFilter(
            tuple(map(parse_group, groups)) if groups else self.groups,
            tuple(map(parse_port, ports)) if ports else () if groups else self.group_ports,
            self.unicast_ports,
            self.stream_ports,
        )

    def __str__(self) -> str:
        """Return the filter as a libpcap expression."""
        groups = " or ".join(_group_text(low, high) for low, high in self.groups)
        terms = [f"({groups})" + (f" and ({_ports_text(self.group_ports)})" if self.group_ports else "")]
        if self.unicast_ports:
            terms.append(f"not ip multicast and not ip6 multicast and ({_ports_text(self.unicast_ports)})")
        datagrams = "udp and (" + " or ".join(f"({term})" for term in terms) + ")"
        if not self.stream_ports:
            return datagrams
        return f"({datagrams}) or (tcp and ({_ports_text(self.stream_ports, direction='')}))"

    def program(self) -> list[Instruction]:
        """Return the instructions. The last two accept and reject."""
        assembler = _Assembler()
        assembler.load(_LOAD_HALF, _ETHERTYPE_AT)
        assembler.jump(_JUMP_EQUAL, _IPV4, "", "not IPv4")
        assembler.load(_LOAD_BYTE, _PROTOCOL_AT)
        assembler.jump(_JUMP_EQUAL, _UDP, "", "not UDP")
        assembler.load(_LOAD_WORD, _DESTINATION_AT)
        assembler.in_ranges([(int(low), int(high)) for low, high in self.groups if low.version == 4], "group")
        self._unicast(assembler)
        assembler.label("group")
        if self.group_ports:
            assembler.load(_LOAD_HALF, _FRAGMENT_AT)
            assembler.jump(_JUMP_ANY_BIT, _FRAGMENT_OFFSET, _ACCEPT, "")  # a later fragment has no ports
            assembler.port_in_ranges(self.group_ports)
            assembler.finish(0)
        else:
            assembler.finish(_WHOLE)
        assembler.label("not UDP")
        self._stream(assembler)
        assembler.label("not IPv4")
        self._ipv6(assembler)
        assembler.label(_ACCEPT)
        assembler.finish(_WHOLE)
        assembler.label(_REJECT)
        assembler.finish(0)
        return assembler.resolved()

    def _ipv6(self, assembler: _Assembler) -> None:
        assembler.jump(_JUMP_EQUAL, _IPV6, "", _REJECT)
        for low, high in self.groups:
            if low.version == 6:
                assembler.ipv6_range(int(low), int(high), "IPv6 group")
        assembler.load(_LOAD_BYTE, _IPV6_DESTINATION_AT)
        assembler.jump(_JUMP_EQUAL, _IPV6_MULTICAST, _REJECT, "")
        assembler.load(_LOAD_BYTE, _IPV6_PROTOCOL_AT)
        assembler.jump(_JUMP_EQUAL, _UDP, "", _REJECT)
        assembler.load(_LOAD_HALF, _IPV6_PORT_AT)
        assembler.in_ranges(self.unicast_ports, _ACCEPT)
        assembler.finish(0)
        assembler.label("IPv6 group")
        assembler.load(_LOAD_BYTE, _IPV6_PROTOCOL_AT)
        assembler.jump(_JUMP_EQUAL, _UDP, "", _ACCEPT)
        if self.group_ports:
            assembler.load(_LOAD_HALF, _IPV6_PORT_AT)
            assembler.in_ranges(self.group_ports, _ACCEPT)
            assembler.finish(0)
        else:
            assembler.finish(_WHOLE)

    def _unicast(self, assembler: _Assembler) -> None:
        if self.unicast_ports:
            assembler.jump(_JUMP_AT_LEAST, 0xE0000000, _REJECT, "")
            assembler.load(_LOAD_HALF, _FRAGMENT_AT)
            assembler.jump(_JUMP_ANY_BIT, _FRAGMENT_OFFSET, _REJECT, "")
            assembler.port_in_ranges(self.unicast_ports)
        assembler.finish(0)

    def _stream(self, assembler: _Assembler) -> None:
        if self.stream_ports:
            assembler.jump(_JUMP_EQUAL, _TCP, "", _REJECT)
            assembler.load(_LOAD_HALF, _FRAGMENT_AT)
            assembler.jump(_JUMP_ANY_BIT, _FRAGMENT_OFFSET, _REJECT, "")
            assembler.port_in_ranges(self.stream_ports, _SOURCE_PORT_AT)
            assembler.port_in_ranges(self.stream_ports)
        assembler.finish(0)


def _named(port: int) -> tuple[PortRange, ...]:
    """Return the port of an option as a range; 0 is none."""
    return ((port, port),) if port else ()


class _Assembler:
    """Instructions with labels as jump targets; "" is the next instruction."""

    def __init__(self) -> None:
        self._lines: list[tuple[int, str, str, int]] = []
        self._labels: dict[str, int] = {}

    def load(self, code: int, at: int) -> None:
        self._lines.append((code, "", "", at))

    def jump(self, code: int, constant: int, if_true: str, if_false: str) -> None:
        self._lines.append((code, if_true, if_false, constant))

    def finish(self, keep_bytes: int) -> None:
        self._lines.append((_RETURN, "", "", keep_bytes))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._lines)

    def in_ranges(self, ranges: Iterable[tuple[int, int]], goal: str) -> None:
        """Jump to `goal` if the loaded value is in one of the ranges."""
        for low, high in ranges:
            beyond = f"beyond {len(self._lines)}"
            self.jump(_JUMP_AT_LEAST, low, "", beyond)
            self.jump(_JUMP_GREATER, high, "", goal)
            self.label(beyond)

    def ipv6_range(self, low: int, high: int, goal: str) -> None:
        """Jump to `goal` if the IPv6 destination is in a range whose ends differ in their last 32 bits only."""
        beyond = f"beyond {len(self._lines)}"
        for word in range(3):
            self.load(_LOAD_WORD, _IPV6_DESTINATION_AT + 4 * word)
            self.jump(_JUMP_EQUAL, low >> 32 * (3 - word) & _WORD, "", beyond)
        self.load(_LOAD_WORD, _IPV6_DESTINATION_AT + 12)
        self.jump(_JUMP_AT_LEAST, low & _WORD, "", beyond)
        self.jump(_JUMP_GREATER, high & _WORD, "", goal)
        self.label(beyond)

    def port_in_ranges(self, ranges: Iterable[PortRange], port_at: int = _DESTINATION_PORT_AT) -> None:
        self._lines.append((_LOAD_HEADER_LENGTH, "", "", _IP_AT))
        self.load(_LOAD_HALF_BEHIND_HEADER, port_at)
        self.in_ranges(ranges, _ACCEPT)

    def resolved(self) -> list[Instruction]:
        program = []
        for here, (code, if_true, if_false, constant) in enumerate(self._lines):
            jumps = [self._labels[name] - here - 1 if name else 0 for name in (if_true, if_false)]
            if max(jumps) > _JUMP_MAXIMUM:
                raise OptionError(
                    "too many groups and ports for one filter", hint="name ranges, or use --all"
                )
            program.append((code, *jumps, constant))
        return [(code, yes, no, constant) for code, yes, no, constant in program]


def parse_group(text: str) -> AddressRange:
    """Parse an address, a range "low-high", or a network."""
    low, dash, high = text.partition("-")
    try:
        if not dash:
            network = ipaddress.ip_network(text)
            low, high = str(network[0]), str(network[-1])
        return _range(low, high)
    except ValueError as error:
        raise OptionError(f"{text} is not a group: {error}", hint=GROUP_HINT) from error


def _range(low: str, high: str) -> AddressRange:
    """Return a range of addresses. Raises ValueError, and OptionError for one that a filter cannot express."""
    first, last = ipaddress.ip_address(low), ipaddress.ip_address(high)
    if first.version != last.version or int(first) > int(last):
        raise OptionError(f"{low}-{high} is not a range of groups: {low} is above {high}", hint=GROUP_HINT)
    if isinstance(first, ipaddress.IPv4Address) and isinstance(last, ipaddress.IPv4Address):
        return first, last
    if int(first) >> 32 != int(last) >> 32:
        raise OptionError(
            f"{low}-{high}: the groups of a range differ in their last 32 bits only",
            hint="name several ranges, or use --all",
        )
    return ipaddress.IPv6Address(first), ipaddress.IPv6Address(last)


def parse_port(text: str) -> PortRange:
    """Parse a port or a range "low-high"."""
    low, dash, high = text.partition("-")
    try:
        ports = int(low), int(high if dash else low)
    except ValueError:
        ports = (0, 0)
    if not 0 < ports[0] <= ports[1] <= 65535:
        raise OptionError(f"{text} is not a port", hint="14400 or 14400-14410")
    return ports


def _group_text(
    low: ipaddress.IPv4Address | ipaddress.IPv6Address, high: ipaddress.IPv4Address | ipaddress.IPv6Address
) -> str:
    if low == high:
        return f"dst host {low}"
    if low.version == 6:
        prefix = " and ".join(
            f"ip6[{24 + 4 * word}:4] = {int(low) >> 32 * (3 - word) & _WORD:#x}" for word in range(3)
        )
        return f"({prefix} and ip6[36:4] >= {int(low) & _WORD:#x} and ip6[36:4] <= {int(high) & _WORD:#x})"
    return f"(ip[16:4] >= {int(low):#x} and ip[16:4] <= {int(high):#x})"


def _ports_text(ranges: Iterable[PortRange], direction: str = "dst ") -> str:
    return " or ".join(
        f"{direction}port {low}" if low == high else f"{direction}portrange {low}-{high}"
        for low, high in ranges
    )
