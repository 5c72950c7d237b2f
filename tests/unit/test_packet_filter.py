"""Packet filter: the program runs over handmade packets in an interpreter in this file and in the kernel."""

from __future__ import annotations

import ipaddress
import random
import struct

import pytest

from umstack.capture.writing.packet_filter import Instruction, PacketFilter, parse_group, parse_port
from umstack.config import Config, Scope
from umstack.errors import OptionError


def is_kept(program: list[Instruction], packet: bytes) -> bool:
    """Return the verdict of the kernel's classic BPF interpreter; a load beyond the packet rejects it."""
    accumulator = index = at = 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        try:
            match code:
                case 0x20:
                    (accumulator,) = struct.unpack_from("!I", packet, constant)
                case 0x28:
                    (accumulator,) = struct.unpack_from("!H", packet, constant)
                case 0x30:
                    accumulator = packet[constant]
                case 0x48:
                    (accumulator,) = struct.unpack_from("!H", packet, index + constant)
                case 0xB1:
                    index = (packet[constant] & 15) * 4
                case 0x06:
                    return constant > 0
                case 0x15 | 0x25 | 0x35 | 0x45:
                    holds = {
                        0x15: accumulator == constant,
                        0x25: accumulator > constant,
                        0x35: accumulator >= constant,
                        0x45: bool(accumulator & constant),
                    }[code]
                    at += if_true if holds else if_false
                case _:
                    raise AssertionError(f"unknown code {code:#x}")
        except (struct.error, IndexError):
            return False


def frame(
    to: str,
    port: int,
    *,
    protocol: int = 17,
    options: int = 0,
    fragment: int = 0,
    kind: int = 0x0800,
    source_port: int = 1000,
) -> bytes:
    """Return an Ethernet frame with an IPv4 and a UDP header."""
    ip = struct.pack("!BBHHHBBH", 0x45 + options, 0, 100, 1, fragment, 16, protocol, 0)
    ip += ipaddress.IPv4Address("10.0.0.1").packed + ipaddress.IPv4Address(to).packed + bytes(4 * options)
    return (
        bytes(12) + struct.pack("!H", kind) + ip + struct.pack("!HHHH", source_port, port, 30, 0) + bytes(22)
    )


DEFAULT = PacketFilter.of_configuration(Config())


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (frame("224.10.10.10", 14400), True),
        (frame("224.10.10.14", 14400), True),
        (frame("224.10.10.15", 14400), False),
        (frame("224.10.10.10", 14401), False),
        (frame("224.9.10.11", 12965), True),
        (frame("224.10.10.10", 14400, options=5), True),
        (frame("224.10.10.10", 14400, protocol=6), False),
        (frame("224.10.10.10", 14400, kind=0x86DD), False),
        (frame("224.10.10.10", 9, fragment=100), True),
        (frame("224.10.10.10", 9, fragment=0x2000), False),
        (frame("10.0.0.2", 14390), True),
        (frame("10.0.0.2", 14399), True),
        (frame("10.0.0.2", 14400), False),
        (frame("10.0.0.2", 14390, fragment=100), False),
        (frame("239.1.1.1", 14390), False),
        (frame("224.10.10.10", 14400)[:20], False),
        (frame("10.0.0.2", 14391, protocol=6), True),
        (frame("10.0.0.2", 14395, protocol=6, options=5), True),
        (frame("10.0.0.2", 40000, protocol=6, source_port=14391), True),
        (frame("10.0.0.2", 40000, protocol=6), False),
        (frame("10.0.0.2", 14390, protocol=6), True),
        (frame("10.0.0.2", 14371, protocol=6), True),
        (frame("10.0.0.2", 40000, protocol=6, source_port=14371), True),
        (frame("10.0.0.2", 14370, protocol=6), False),
        (frame("10.0.0.2", 14360), True),
        (frame("10.0.0.2", 14389), True),
        (frame("10.0.0.2", 14359), False),
        (frame("10.0.0.2", 14391, protocol=6, fragment=100), False),
        (frame("10.0.0.2", 40000, source_port=14391), False),
    ],
)
def test_the_default_keeps_only_traffic_of_the_stack(packet: bytes, expected: bool) -> None:
    """The filter keeps the configured groups and ports, NAKs to source ports, fragments, recovery, LBT-RU and
    LBT-TCP."""
    assert is_kept(DEFAULT.program(), packet) is expected


def test_groups_and_ports_can_be_given() -> None:
    """--group and --port replace those of the configuration; groups without a port match any port."""
    named = DEFAULT.narrowed(["239.1.0.0/16", "239.2.1.1-239.2.1.3"], []).program()
    assert is_kept(named, frame("239.1.255.255", 5))
    assert is_kept(named, frame("239.2.1.3", 5))
    assert not is_kept(named, frame("239.2.1.4", 5))
    assert not is_kept(named, frame("224.10.10.10", 14400))
    narrow = DEFAULT.narrowed(["239.1.1.1"], ["100", "200-210"]).program()
    assert [port for port in range(90, 220) if is_kept(narrow, frame("239.1.1.1", port))] == [
        100,
        *range(200, 211),
    ]


def test_the_configuration_sets_the_filter() -> None:
    """W10: options of the stack change the filter."""
    config = Config().with_options(Scope.SOURCE, {"transport_lbtrm_multicast_address": "239.9.9.9"})
    config = config.with_options(Scope.CONTEXT, {"resolver_multicast_port": 7777})
    program = PacketFilter.of_configuration(config).program()
    assert is_kept(program, frame("239.9.9.9", 14400))
    assert is_kept(program, frame("224.9.10.11", 7777))
    assert not is_kept(program, frame("224.9.10.11", 12965))


def frame6(to: str, port: int, *, protocol: int = 17) -> bytes:
    """Return an Ethernet frame with an IPv6 and a UDP header."""
    ip = struct.pack("!IHBB", 0x60000000, 30, protocol, 16)
    ip += ipaddress.IPv6Address("fd00::1").packed + ipaddress.IPv6Address(to).packed
    return bytes(12) + struct.pack("!H", 0x86DD) + ip + struct.pack("!HHHH", 1000, port, 30, 0) + bytes(22)


@pytest.mark.parametrize(
    ("packet", "expected"),
    [
        (frame6("ff15::7", 14400), True),
        (frame6("ff15::9", 14400), True),
        (frame6("ff15::a", 14400), False),
        (frame6("ff15::6", 14400), False),
        (frame6("ff15:0:1::7", 14400), False),
        (frame6("ff15::7", 14401), False),
        (frame6("ff15::7", 14401, protocol=44), True),
        (frame6("fd00::2", 14390), True),
        (frame6("fd00::2", 14400), False),
        (frame6("fd00::2", 14390, protocol=6), False),
        (frame6("ff15::b", 14390), False),
        (frame("224.9.10.11", 12965), True),
        (frame("224.10.10.10", 14400), False),
    ],
)
def test_ipv6_groups_are_kept(packet: bytes, expected: bool) -> None:
    """With a pool of IPv6 groups, the filter keeps their data, and control messages to IPv6 addresses."""
    config = Config()
    for end, group in (("low", "ff15::7"), ("high", "ff15::9")):
        config = config.with_options(Scope.CONTEXT, {f"transport_lbtrm_multicast_address_{end}": group})
    chosen = PacketFilter.of_configuration(config)
    assert is_kept(chosen.program(), packet) is expected
    assert "ip6[36:4] >= 0x7 and ip6[36:4] <= 0x9" in str(chosen)
    named = DEFAULT.narrowed(["ff15::7-ff15::9"], [])
    assert is_kept(named.program(), frame6("ff15::8", 5))
    assert not is_kept(named.program(), frame6("ff15::a", 5))


def test_the_program_agrees_with_the_ranges() -> None:
    """With random ranges and packets, the program keeps exactly the packets in the ranges."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    luck = random.Random(seed)
    base = int(ipaddress.IPv4Address("239.0.0.0"))
    for _ in range(50):
        groups = [sorted(luck.randrange(64) for _ in range(2)) for _ in range(luck.randrange(1, 8))]
        ports = [tuple(sorted(luck.randrange(1, 64) for _ in range(2))) for _ in range(luck.randrange(0, 5))]
        address = ipaddress.IPv4Address
        program = PacketFilter(
            tuple((address(base + low), address(base + high)) for low, high in groups), tuple(ports)
        ).program()
        for _ in range(100):
            group, port = luck.randrange(70), luck.randrange(1, 70)
            expected = any(low <= group <= high for low, high in groups) and (
                not ports or any(low <= port <= high for low, high in ports)
            )
            assert is_kept(program, frame(str(address(base + group)), port)) == expected


@pytest.mark.parametrize(
    "text",
    ["nonsense", "239.1.1.1/8", "239.1.1.1-x", "239.1.1.9-239.1.1.1", "", "ff15::7-239.1.1.1", "ff15::/64"],
)
def test_an_invalid_group_is_refused(text: str) -> None:
    """The error shows a valid example."""
    with pytest.raises(OptionError):
        parse_group(text)


@pytest.mark.parametrize("text", ["0", "65536", "9-8", "x", "", "1-"])
def test_an_invalid_port_is_refused(text: str) -> None:
    """The error shows a valid example."""
    with pytest.raises(OptionError):
        parse_port(text)


def test_a_filter_that_is_too_long_is_refused() -> None:
    """A program's jumps reach 255 instructions; a longer program is an error, not truncated."""
    with pytest.raises(OptionError, match="too many"):
        DEFAULT.narrowed([f"239.1.1.{n}" for n in range(200)], []).program()
