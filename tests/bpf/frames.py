"""Frames for tests of the steering program, built with scapy."""

from __future__ import annotations

from scapy.layers.inet import IP, UDP, IPOption_NOP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

GROUP, GROUP6, PORT = "239.77.1.2", "ff15::77:1", 14400
PAYLOAD = bytes(range(64))
TAGS: dict[str, Packet | None] = {
    "untagged": None,
    "802.1Q": Dot1Q(vlan=7),
    "a priority": Dot1Q(vlan=0, prio=5),
    "802.1Q with a priority": Dot1Q(vlan=7, prio=5, id=1),
}
STACKED_TAGS: dict[str, Packet] = {
    "802.1ad": Dot1AD(vlan=7),
    "a provider's tag outside": Dot1AD(vlan=9) / Dot1Q(vlan=7),
    "two 802.1Q": Dot1Q(vlan=7) / Dot1Q(vlan=7),
    "three": Dot1AD(vlan=9) / Dot1AD(vlan=8) / Dot1Q(vlan=7),
}
VLAN = 7
# Option words: none up to the ten that fit.
OPTION_WORDS = tuple(range(11))


def ethernet(payload: Packet, tags: Packet | None = None) -> bytes:
    """Return a frame to the MAC address that the group shares with 31 others."""
    header = Ether(src="02:00:00:00:00:01", dst="01:00:5e:4d:01:02")
    return bytes((header / tags if tags else header) / payload)


def udp(port: int = PORT, payload: bytes = PAYLOAD, **fields: int) -> Packet:
    """Return a UDP datagram."""
    return UDP(sport=14390, dport=port, **fields) / Raw(payload)


def ipv4(
    payload: Packet | None = None, *, destination: str = GROUP, option_words: int = 0, **fields: object
) -> Packet:
    """Return an IPv4 packet with this many words of no-operation options."""
    options = [IPOption_NOP() for _ in range(4 * option_words)]
    return IP(src="10.77.0.1", dst=destination, options=options, **fields) / (payload or udp())


def ipv6(payload: Packet | None = None, *, destination: str = GROUP6, **fields: object) -> Packet:
    """Return an IPv6 packet."""
    return IPv6(src="fe80::1", dst=destination, **fields) / (payload or udp())


def with_bytes(frame: bytes, offset: int, replacement: bytes) -> bytes:
    """Return the frame with some bytes replaced."""
    return frame[:offset] + replacement + frame[offset + len(replacement) :]
