"""bpf/steering.bpf.c through BPF_PROG_TEST_RUN on packets built with scapy (W5).

Redirects are real decisions: the sockets in the map are unbound AF_XDP sockets.
"""

from __future__ import annotations

import errno
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, TCP
from scapy.layers.inet6 import (
    ICMPv6ND_NS,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.ipsec import AH
from scapy.layers.l2 import ARP, Dot1Q
from scapy.packet import Packet, Raw

from tests.bpf.frames import (
    GROUP,
    GROUP6,
    OPTION_WORDS,
    PAYLOAD,
    PORT,
    STACKED_TAGS,
    TAGS,
    VLAN,
    ethernet,
    ipv4,
    ipv6,
    udp,
    with_bytes,
)
from tests.kernels import needs_program_fragments
from umstack_xdp import BpfError, BpfObject, Steering, SteeringError, unavailable
from umstack_xdp import steering as steering_module
from umstack_xdp.steering import FrameTimes, queues_max, rule_key, verdict_names

pytestmark = pytest.mark.skipif(unavailable("steering") is not None, reason=str(unavailable("steering")))

XDP_PASS, XDP_REDIRECT = 2, 4
AF_XDP = 44
ETHERNET_BYTES, TAG_BYTES, IPV4_BYTES, IPV6_BYTES, UDP_BYTES = 14, 4, 20, 40, 8
# BPF_PROG_TEST_RUN takes no frame shorter than an Ethernet header.
SHORTEST = ETHERNET_BYTES


TIMES = struct.Struct("=IQQ")
"""The times in front of a frame (bpf/steering_time.h)."""
TIMES_MARK = 0x54696D65


@dataclass
class Bench:
    """The program with a rule for each address family, and the AF_XDP sockets that a test adds."""

    steering: Steering
    sockets: ExitStack
    is_timed: bool = False

    def run(self, frame: bytes, *, interface_index: int = 0, queue: int = 0) -> tuple[int, str]:
        """Run the program on one frame; return the action and the only verdict counted."""
        before, before_ns = self.steering.counters().verdicts, time.monotonic_ns()
        run = self.steering.program.test_run(frame, is_xdp=True, interface_index=interface_index, queue=queue)
        after, after_ns = self.steering.counters().verdicts, time.monotonic_ns()
        in_front = run.packet[: len(run.packet) - len(frame)]
        assert run.packet == in_front + frame, "the program changes nothing"
        if self.is_timed and run.result == XDP_REDIRECT:
            mark, kernel_ns, nic_ns = TIMES.unpack(in_front)
            assert (mark, nic_ns) == (TIMES_MARK, 0)
            assert before_ns <= kernel_ns <= after_ns
        else:
            assert in_front == b"", "the kernel coalesces no frames with metadata"
        counted = [name for name in after for _ in range(after[name] - before[name])]
        assert len(counted) == 1, f"every frame has one verdict, this one {counted}"
        return run.result, counted[0]

    def socket_at(self, slot: int, queue: int = 0) -> socket.socket:
        """Put an AF_XDP socket at this slot and queue."""
        ring = self.sockets.enter_context(socket.socket(AF_XDP, socket.SOCK_RAW, 0))
        self.steering.put_socket(slot, queue, ring.fileno())
        return ring

    def hits(self, address: str = GROUP, port: int = PORT) -> tuple[int, int, int]:
        """Return the hits of an address and port over all VLANs: redirected, no socket, fragments."""
        rules = self.steering.counters().rules
        found = [rule for rule in rules if (str(rule.address), rule.port) == (address, port)]
        assert found
        return (
            sum(rule.redirected for rule in found),
            sum(rule.no_socket for rule in found),
            sum(rule.fragments for rule in found),
        )


PROGRAMS = [
    ("steering", "steering"),
    ("steering", "steering_linear"),
    ("steering_timed", "steering_timed"),
    ("steering_timed", "steering_timed_linear"),
]


@pytest.fixture(params=PROGRAMS, ids=[name for _, name in PROGRAMS])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Load each of the programs, with a rule per family at slot 1, untagged and for a VLAN."""
    monkeypatch.setitem(steering_module._PROGRAMS, FrameTimes.NONE, request.param)
    with ExitStack() as sockets, Steering(max_slots=4, max_rules=8) as steering:
        assert steering.program.name == request.param[1]
        for vlan in (0, VLAN):
            steering.add_rule(GROUP, PORT, 1, vlan)
            steering.add_rule(GROUP6, PORT, 1, vlan)
        yield Bench(steering, sockets, is_timed="timed" in request.param[1])


def test_the_verdicts_are_those_of_the_header() -> None:
    """Steering: names and numbers are taken from bpf/steering.h; only the first is a redirect."""
    assert verdict_names() == (
        "redirected",
        "no_socket",
        "fragment",
        "not_owned",
        "not_udp",
        "not_ip",
        "ipv6_extension",
        "truncated",
        "malformed",
        "stacked_tags",
        "joined",
    )


@pytest.mark.parametrize(
    "packet",
    [
        *(ipv4(option_words=words) for words in OPTION_WORDS),
        ipv6(),
        ipv4(udp(payload=b"")),
        ipv6(udp(payload=b"")),
    ],
    ids=[
        *(f"IPv4 with {words} words of options" for words in OPTION_WORDS),
        "IPv6",
        "empty IPv4",
        "empty IPv6",
    ],
)
def test_an_owned_datagram_is_redirected(bench: Bench, packet: Packet) -> None:
    """Steering: a datagram with a rule is redirected to its slot's socket, also after a tag of its VLAN and
    any options.
    """
    frames = [ethernet(packet, tags) for tags in TAGS.values()]
    assert [bench.run(frame) for frame in frames] == [(XDP_PASS, "no_socket")] * len(frames)
    bench.socket_at(1)
    assert [bench.run(frame) for frame in frames] == [(XDP_REDIRECT, "redirected")] * len(frames)
    padded = frames[0].ljust(200, b"\0")
    assert bench.run(padded) == (XDP_REDIRECT, "redirected"), "padding is not part of the datagram"
    assert bench.hits(GROUP if packet.version == 4 else GROUP6) == (len(frames) + 1, len(frames), 0)


def test_the_slot_and_the_queue_select_the_socket(bench: Bench) -> None:
    """Steering: the index is slot * 64 + queue; a socket elsewhere gets nothing, and no slot gets another
    slot's datagrams.
    """
    frame = ethernet(ipv4())
    for slot, queue in ((0, 0), (2, 0), (1, 1), (1, 63)):
        bench.socket_at(slot, queue)
    assert bench.run(frame) == (XDP_PASS, "no_socket")
    bench.steering.add_rule("239.77.1.3", PORT, 2)
    assert bench.run(ethernet(ipv4(destination="239.77.1.3"))) == (XDP_REDIRECT, "redirected")
    assert bench.run(frame) == (XDP_PASS, "no_socket")
    bench.socket_at(1, 0)
    assert bench.run(frame) == (XDP_REDIRECT, "redirected")
    assert queues_max() == 64


def test_without_its_socket_a_datagram_passes(bench: Bench) -> None:
    """Steering: a closed or removed socket is no longer in the map, and its datagrams pass to the kernel."""
    frame = ethernet(ipv4())
    with bench.socket_at(1):
        assert bench.run(frame) == (XDP_REDIRECT, "redirected")
    assert bench.run(frame) == (XDP_PASS, "no_socket")
    bench.socket_at(1)
    bench.steering.remove_socket(1, 0)
    bench.steering.remove_socket(1, 0)
    assert bench.run(frame) == (XDP_PASS, "no_socket")
    assert bench.hits() == (1, 2, 0)


OTHERS = {
    "same MAC, another group": (ipv4(destination="238.205.1.2"), "not_owned"),
    "another port": (ipv4(udp(PORT + 1)), "not_owned"),
    "the port with its bytes swapped": (ipv4(udp(socket.htons(PORT))), "not_owned"),
    "port 0": (ipv4(udp(0)), "not_owned"),
    "unicast": (ipv4(destination="10.77.0.2"), "not_owned"),
    "another IPv6 group": (ipv6(destination="ff15::77:2"), "not_owned"),
    "another IPv6 port": (ipv6(udp(PORT + 1)), "not_owned"),
    "IPv6 port 0": (ipv6(udp(0)), "not_owned"),
    "IGMP report": (ipv4(Raw(bytes([0x16, 0, 0, 0, 239, 77, 1, 2])), proto=2, option_words=1), "not_udp"),
    "IGMP query": (
        ipv4(Raw(bytes([0x11, 0, 0, 0, 0, 0, 0, 0])), proto=2, destination="224.0.0.1"),
        "not_udp",
    ),
    "ICMP": (ipv4(ICMP()), "not_udp"),
    "TCP to the same port": (ipv4(TCP(dport=PORT)), "not_udp"),
    "UDP-Lite": (ipv4(udp(), proto=136), "not_udp"),
    "IPv6 neighbour solicitation": (ipv6(ICMPv6ND_NS(tgt="fe80::2")), "not_udp"),
    "TCP over IPv6": (ipv6(TCP(dport=PORT)), "not_udp"),
    "MLD report": (
        ipv6(IPv6ExtHdrHopByHop(nh=58) / Raw(bytes(20)), destination="ff02::16"),
        "ipv6_extension",
    ),
    "routing header": (ipv6(IPv6ExtHdrRouting() / udp()), "ipv6_extension"),
    "destination options": (ipv6(IPv6ExtHdrDestOpt() / udp()), "ipv6_extension"),
    "authentication header": (ipv6(AH() / udp()), "ipv6_extension"),
    "a fragment to another IPv6 group": (
        ipv6(IPv6ExtHdrFragment() / udp(), destination="ff15::9"),
        "ipv6_extension",
    ),
    "a fragment to another IPv4 group": (ipv4(flags="MF", destination="239.77.1.9"), "not_owned"),
    "ARP": (ARP(pdst="10.77.0.2"), "not_ip"),
}


def test_frames_without_a_rule_pass(bench: Bench) -> None:
    """Steering: frames without a rule pass to the kernel and are counted by kind, and by no rule."""
    bench.socket_at(1)
    for name, (packet, verdict) in OTHERS.items():
        for tags in TAGS.values():
            assert bench.run(ethernet(packet, tags)) == (XDP_PASS, verdict), name
    assert bench.hits(GROUP) == bench.hits(GROUP6) == (0, 0, 0)


@pytest.mark.parametrize("program", PROGRAMS, ids=[name for _, name in PROGRAMS])
def test_joined_datagrams_pass(program: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that matches a rule but is longer than the interface carries holds datagrams that GSO or GRO joined."""
    monkeypatch.setitem(steering_module._PROGRAMS, FrameTimes.NONE, program)
    longest = len(ethernet(ipv4()))
    with ExitStack() as sockets, Steering(max_slots=2, max_rules=2, frame_bytes_max=longest) as steering:
        steering.add_rule(GROUP, PORT, 1)
        bench = Bench(steering, sockets, is_timed="timed" in program[1])
        bench.socket_at(1)
        assert bench.run(ethernet(ipv4())) == (XDP_REDIRECT, "redirected")
        assert bench.run(ethernet(ipv4(udp(payload=PAYLOAD + b"x")))) == (XDP_PASS, "joined")
        assert bench.run(ethernet(ipv4(udp(PORT + 1, bytes(1200))))) == (XDP_PASS, "not_owned")
        [rule] = steering.counters().rules
        assert (rule.redirected, rule.joined) == (1, 1)


@pytest.mark.parametrize("tags", STACKED_TAGS.values(), ids=STACKED_TAGS)
def test_stacked_tags_pass_with_their_own_verdict(bench: Bench, tags: Packet) -> None:
    """Frames with a provider's tag or two tags pass to the kernel, with their own verdict."""
    bench.socket_at(1)
    for packet in (ipv4(), ipv6()):
        assert bench.run(ethernet(packet, tags)) == (XDP_PASS, "stacked_tags")
    assert bench.hits(GROUP) == bench.hits(GROUP6) == (0, 0, 0)


def test_a_rule_is_for_one_vlan(bench: Bench) -> None:
    """Untagged datagrams and those of another VLAN do not match a rule of this VLAN."""
    bench.steering.remove_rule(GROUP, PORT)
    bench.socket_at(1)
    frames = {vlan: ethernet(ipv4(), Dot1Q(vlan=vlan)) for vlan in (0, 1, VLAN, 0x107, 4094)}
    frames[-1] = ethernet(ipv4())
    redirected = [vlan for vlan, frame in frames.items() if bench.run(frame)[0] == XDP_REDIRECT]
    assert redirected == [VLAN]
    fragment = ethernet(ipv4(flags="MF"), Dot1Q(vlan=VLAN))
    assert bench.run(fragment) == (XDP_PASS, "fragment")
    assert bench.run(ethernet(ipv4(flags="MF"))) == (XDP_PASS, "not_owned")
    bench.steering.remove_rule(GROUP, PORT, VLAN)
    bench.steering.add_rule(GROUP, PORT, 1)
    redirected = [vlan for vlan, frame in frames.items() if bench.run(frame)[0] == XDP_REDIRECT]
    assert redirected == [0, -1], "a tag with only a priority counts as untagged"
    bench.steering.add_rule(GROUP, PORT, 1, 4094)
    assert bench.run(frames[4094]) == (XDP_REDIRECT, "redirected")
    with pytest.raises(SteeringError, match="no VLAN 4095"):
        bench.steering.add_rule(GROUP, PORT, 1, 4095)
    with pytest.raises(SteeringError, match="of VLAN 4094 is steered to slot 1 already"):
        bench.steering.add_rule(GROUP, PORT, 1, 4094)


FRAGMENTS = {
    "first": (ipv4(flags="MF"), GROUP),
    "last": (ipv4(Raw(PAYLOAD), proto=17, frag=185), GROUP),
    "middle": (ipv4(Raw(PAYLOAD), proto=17, frag=1, flags="MF"), GROUP),
    "another port": (ipv4(udp(PORT + 1), flags="MF"), GROUP),
    "with options": (ipv4(flags="MF", option_words=3), GROUP),
    "IPv6 first": (ipv6(IPv6ExtHdrFragment(m=1) / udp()), GROUP6),
    "IPv6 last": (ipv6(IPv6ExtHdrFragment(offset=185) / Raw(PAYLOAD)), GROUP6),
}


def test_fragments_pass_and_are_counted(bench: Bench) -> None:
    """W4: a fragment to an owned address passes so that the kernel reassembles it; its rule counts it, first
    or not.
    """
    bench.socket_at(1)
    for name, (packet, _) in FRAGMENTS.items():
        assert bench.run(ethernet(packet)) == (XDP_PASS, "fragment"), name
    assert (bench.hits(GROUP), bench.hits(GROUP6)) == ((0, 0, 5), (0, 0, 2))


def test_the_dont_fragment_bit_does_not_mark_a_fragment(bench: Bench) -> None:
    """Steering: neither the DF bit nor the reserved bit marks a fragment."""
    bench.socket_at(1)
    assert bench.run(ethernet(ipv4(flags="DF"))) == (XDP_REDIRECT, "redirected")
    assert bench.run(ethernet(ipv4(flags="evil"))) == (XDP_REDIRECT, "redirected")


def test_the_oldest_rule_of_an_address_counts_its_fragments(bench: Bench) -> None:
    """Steering: the oldest rule of an address counts its fragments; when it is removed, the next one does."""
    fragment = ethernet(ipv4(flags="MF"))
    bench.steering.add_rule(GROUP, 9, 0)
    bench.run(fragment)
    assert (bench.hits(), bench.hits(port=9)) == ((0, 0, 1), (0, 0, 0))
    bench.steering.remove_rule(GROUP, PORT)
    bench.run(fragment)
    assert bench.hits(port=9) == (0, 0, 1)
    bench.steering.remove_rule(GROUP, 9)
    assert bench.run(fragment) == (XDP_PASS, "not_owned")


IPV4_MALFORMED = {
    "version 6": (0, b"\x65"),
    "version 0": (0, b"\x05"),
    "header of 0 words": (0, b"\x40"),
    "header of 4 words": (0, b"\x44"),
    "total length 0": (2, b"\0\0"),
    "total length below the header": (2, b"\0\x13"),
    "total length with no space for UDP": (2, b"\0\x1b"),
    "UDP length 0": (IPV4_BYTES + 4, b"\0\0"),
    "UDP length 7": (IPV4_BYTES + 4, b"\0\x07"),
    "UDP length one too few": (IPV4_BYTES + 4, (UDP_BYTES + len(PAYLOAD) - 1).to_bytes(2, "big")),
    "UDP length one too many": (IPV4_BYTES + 4, (UDP_BYTES + len(PAYLOAD) + 1).to_bytes(2, "big")),
    "UDP length 65535": (IPV4_BYTES + 4, b"\xff\xff"),
}
IPV6_MALFORMED = {
    "version 4": (0, b"\x45"),
    "version 0": (0, b"\0"),
    "payload length 0": (4, b"\0\0"),
    "payload length 7": (4, b"\0\x07"),
    "UDP length 0": (IPV6_BYTES + 4, b"\0\0"),
    "UDP length one too few": (IPV6_BYTES + 4, (UDP_BYTES + len(PAYLOAD) - 1).to_bytes(2, "big")),
    "UDP length one too many": (IPV6_BYTES + 4, (UDP_BYTES + len(PAYLOAD) + 1).to_bytes(2, "big")),
}


@pytest.mark.parametrize(
    ("packet", "offset", "invalid"),
    [
        *((ipv4(), *change) for change in IPV4_MALFORMED.values()),
        *((ipv6(), *change) for change in IPV6_MALFORMED.values()),
    ],
    ids=[*(f"IPv4 {name}" for name in IPV4_MALFORMED), *(f"IPv6 {name}" for name in IPV6_MALFORMED)],
)
def test_an_invalid_header_passes(bench: Bench, packet: Packet, offset: int, invalid: bytes) -> None:
    """Steering: frames with impossible versions and lengths pass to the kernel, and are counted."""
    bench.socket_at(1)
    for tags in TAGS.values():
        start = ETHERNET_BYTES + (len(tags) if tags else 0)
        frame = with_bytes(ethernet(packet, tags), start + offset, invalid)
        assert bench.run(frame) == (XDP_PASS, "malformed"), tags
    assert bench.hits(GROUP) == bench.hits(GROUP6) == (0, 0, 0)


def test_an_ipv4_address_in_ipv6_form_does_not_match_ipv4(bench: Bench) -> None:
    """Steering: the form that keys use for IPv4 is not valid on the wire."""
    bench.socket_at(1)
    assert bench.run(ethernet(ipv6(destination=f"::ffff:{GROUP}"))) == (XDP_PASS, "malformed")


@pytest.mark.parametrize("tags", TAGS.values(), ids=TAGS.keys())
def test_every_truncation_passes(bench: Bench, tags: Packet | None) -> None:
    """Steering: a frame cut after any byte passes and is counted as truncated; only the whole frame is redirected."""
    bench.socket_at(1)
    for packet in (ipv4(), ipv4(option_words=3), ipv4(option_words=10), ipv6()):
        whole = ethernet(packet, tags)
        for length in range(SHORTEST, len(whole)):
            assert bench.run(whole[:length]) == (XDP_PASS, "truncated"), f"cut at {length}"
        assert bench.run(whole) == (XDP_REDIRECT, "redirected")


def test_a_length_beyond_the_frame_is_a_truncation(bench: Bench) -> None:
    """Steering: a frame shorter than its consistent headers require is truncated."""
    bench.socket_at(1)
    for packet in (ipv4(udp(payload=bytes(65))), ipv6(udp(payload=bytes(65)))):
        assert bench.run(ethernet(packet)[:-1]) == (XDP_PASS, "truncated")
    huge = with_bytes(ethernet(ipv4()), ETHERNET_BYTES + 2, b"\xff\xff")
    assert bench.run(huge) == (XDP_PASS, "truncated")


@needs_program_fragments
def test_a_jumbo_frame_of_several_buffers_is_redirected() -> None:
    """W4: a datagram for MTU 9000 is in several buffers, and its length is the sum of theirs."""
    frame = ethernet(ipv4(udp(payload=bytes(8972))))
    with Steering() as steering, socket.socket(AF_XDP, socket.SOCK_RAW, 0) as ring:
        assert steering.has_frags
        steering.add_rule(GROUP, PORT, 0)
        steering.put_socket(0, 0, ring.fileno())
        bench = Bench(steering, ExitStack())
        assert bench.run(frame) == (XDP_REDIRECT, "redirected")
        assert bench.run(frame[:-1]) == (XDP_PASS, "truncated")


@settings(max_examples=300)
@given(
    proto=st.sampled_from([0x0800, 0x86DD, 0x8100, 0x88A8, 0x0806]),
    start=st.sampled_from([b"", b"\x45", b"\x4f", b"\x60", b"\0\0\x08\0\x46", b"\0\0\x86\xdd\x60"]),
    rest=st.binary(min_size=1, max_size=120),
)
def test_any_bytes_are_safe(bench: Bench, proto: int, start: bytes, rest: bytes) -> None:
    """Steering: any bytes after an Ethernet header get one verdict, and none of them match a rule."""
    bench.socket_at(1)
    action, verdict = bench.run(bytes(12) + proto.to_bytes(2, "big") + start + rest)
    assert (action, verdict == "redirected") == (XDP_PASS, False)


@settings(max_examples=300)
@given(data=st.data(), tags=st.sampled_from(list(TAGS.values())), is_ipv6=st.booleans())
def test_a_datagram_with_a_changed_byte_is_redirected_only_if_it_still_matches(
    bench: Bench, data: st.DataObject, tags: Packet | None, is_ipv6: bool
) -> None:
    """Steering: a datagram with one byte changed is redirected only if its address and port still match."""
    bench.socket_at(1)
    frame = ethernet(ipv6() if is_ipv6 else ipv4(), tags)
    start = ETHERNET_BYTES + (len(tags) if tags else 0)
    header_bytes = (IPV6_BYTES if is_ipv6 else IPV4_BYTES) + UDP_BYTES
    offset = data.draw(st.integers(0, header_bytes - 1), label="offset")
    changed = with_bytes(
        frame, start + offset, bytes([frame[start + offset] ^ data.draw(st.integers(1, 255))])
    )
    # These may change: traffic class, flow label, identification, TTL, source and checksums.
    if is_ipv6:
        harmless = {1, 2, 3, 7, *range(8, 24), 40, 41, 46, 47} | ({0} if changed[start] >> 4 == 6 else set())
    else:
        still_whole = changed[start + 6] & 0x3F == 0
        harmless = {1, 4, 5, 8, 10, 11, *range(12, 16), 20, 21, 26, 27} | ({6} if still_whole else set())
    assert (bench.run(changed)[0] == XDP_REDIRECT) == (offset in harmless)


def test_rules_can_be_removed_and_added(bench: Bench) -> None:
    """Steering: a rule's number is reused with its counters at zero, and no other rule is affected."""
    bench.socket_at(1)
    frame = ethernet(ipv4())
    bench.run(frame)
    bench.steering.remove_rule(GROUP, PORT)
    assert bench.run(frame) == (XDP_PASS, "not_owned")
    bench.steering.add_rule("239.77.1.3", PORT, 1)
    assert bench.hits("239.77.1.3") == (0, 0, 0)
    assert bench.run(ethernet(ipv6())) == (XDP_REDIRECT, "redirected")
    bench.steering.add_rule(f"::ffff:{GROUP}", PORT, 1)
    assert bench.run(frame) == (XDP_REDIRECT, "redirected"), "the mapped form means the IPv4 address"


def test_the_map_has_the_layout_of_the_header(bench: Bench) -> None:
    """Steering: the key is address, port and VLAN, the value slot, number and longest frame, as bpftool shows it."""
    key = bytes(10) + b"\xff\xff" + socket.inet_aton(GROUP) + PORT.to_bytes(2, "big") + bytes(2)
    assert bench.steering.map("rules").read(key) == (1).to_bytes(4, sys.byteorder) + bytes(4) + b"\xff" * 4
    assert rule_key(bench.steering.counters().rules[0].address, PORT) == key
    assert bench.steering.map("sockets").max_entries == 4 * queues_max()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda s: s.add_rule(GROUP, PORT, 0), r"239\.77\.1\.2:14400 is steered to slot 1 already"),
        (lambda s: s.add_rule("239.1.2.3", 0, 0), "port 0 cannot be steered; use 1 to 65535"),
        (lambda s: s.add_rule("239.1.2.3", 65536, 0), "port 65536 cannot be steered"),
        (lambda s: s.add_rule("239.1.2.3", 9, 4), "there is no slot 4; use 0 to 3"),
        (lambda s: s.add_rule("all of them", 9, 0), "all of them is not an IP address"),
        (
            lambda s: s.remove_rule("ff15::9", 9),
            r"\[ff15::9\]:9 is not steered; use one of 239\.77\.1\.2:14400",
        ),
        (lambda s: s.put_socket(0, 64, 0), "queue 64 cannot be steered to; use 0 to 63"),
        (lambda s: s.put_socket(-1, 0, 0), "there is no slot -1"),
        (lambda s: s.put_socket(0, 0, s.program.fd), "it is no AF_XDP socket"),
        (
            lambda s: [s.add_rule(GROUP, n, 0) for n in range(1, 9)],
            "8 rules, which is all there is space for",
        ),
        (lambda _: Steering(max_slots=0), "no space for a slot"),
    ],
)
def test_errors_name_valid_values(bench: Bench, act: object, message: str) -> None:
    """Errors explain what to do next."""
    assert callable(act)
    with pytest.raises(SteeringError, match=message):
        act(bench.steering)


def test_a_kernel_without_frags_gets_the_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels from 5.15: if the kernel does not support several buffers, the program without them is loaded."""
    refusals = [errno.EINVAL]

    def refuse_frags(name: str, *, program: str, map_entries: dict[str, int]) -> BpfObject:
        if program == "steering":
            raise BpfError("loading", refusals[0])
        return BpfObject(name, program=program, map_entries=map_entries)

    monkeypatch.setattr(steering_module, "BpfObject", refuse_frags)
    with Steering() as steering:
        assert (steering.has_frags, steering.program.name) == (False, "steering_linear")
    refusals[0] = errno.EPERM
    with pytest.raises(BpfError, match="CAP_BPF"):
        Steering()


@pytest.mark.parametrize(
    ("wanted", "loadable", "loaded"),
    [
        (FrameTimes.NIC, {"steering_timed", "steering"}, FrameTimes.KERNEL),
        (FrameTimes.NIC, {"steering"}, FrameTimes.NONE),
        (FrameTimes.KERNEL, {"steering_timed_linear", "steering"}, FrameTimes.KERNEL),
        (FrameTimes.KERNEL, {"steering_linear"}, FrameTimes.NONE),
        (FrameTimes.NONE, {"steering_timed", "steering"}, FrameTimes.NONE),
    ],
)
def test_a_kernel_without_times_gets_the_next_simpler_program(
    monkeypatch: pytest.MonkeyPatch, wanted: FrameTimes, loadable: set[str], loaded: FrameTimes
) -> None:
    """Receive timestamps: if the kernel cannot load a program, a simpler one is used, and its kind is reported."""

    def load_some(
        name: str, *, program: str, map_entries: dict[str, int], device_index: int = 0
    ) -> BpfObject:
        if program not in loadable:
            raise BpfError("loading", errno.EACCES if program == "steering_nic_timed" else errno.EINVAL)
        assert device_index == 0
        return BpfObject(name, program=program, map_entries=map_entries)

    monkeypatch.setattr(steering_module, "BpfObject", load_some)
    with Steering(frame_times=wanted, device_index=1) as steering:
        assert steering.frame_times is loaded


def test_a_missing_privilege_is_not_mistaken_for_an_old_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """With EPERM the simpler program would also be refused, so the first error is raised."""

    def refuse(_name: str, *, program: str, map_entries: dict[str, int], device_index: int = 0) -> BpfObject:
        raise BpfError(f"loading {program}", errno.EPERM)

    monkeypatch.setattr(steering_module, "BpfObject", refuse)
    with pytest.raises(BpfError, match="steering_nic_timed"):
        Steering(frame_times=FrameTimes.NIC, device_index=1)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (BpfError("the other", errno.EINVAL), "loading steering: Invalid argument"),
        (
            BpfError("the other", errno.EACCES, "R2 pointer comparison prohibited"),
            "requires CAP_PERFMON as well",
        ),
    ],
)
def test_the_more_specific_error_is_raised(
    monkeypatch: pytest.MonkeyPatch, second: BpfError, message: str
) -> None:
    """If neither program can be loaded, and the kernel does not support the first, the second's error is more
    specific."""

    def refuse(_name: str, *, program: str, map_entries: dict[str, int]) -> BpfObject:
        raise second if program == "steering_linear" else BpfError(f"loading {program}", errno.EINVAL)

    monkeypatch.setattr(steering_module, "BpfObject", refuse)
    with pytest.raises(BpfError, match=message):
        Steering()


def test_one_program_of_an_object_can_be_loaded_alone() -> None:
    """The loader: only the requested program is loaded, sizes are as requested, and unknown names are refused."""
    with BpfObject("steering", program="steering_linear", map_entries={"rules": 7}) as loaded:
        assert loaded.program("steering_linear").facts().name == "steering_linear"
        assert loaded.map("rules").max_entries == 7
        with pytest.raises(BpfError, match="program steering in"):
            loaded.program("steering")
    with pytest.raises(BpfError):
        BpfObject("steering", program="no_such_program")
    with pytest.raises(BpfError):
        BpfObject("steering", map_entries={"no_such_map": 7})
