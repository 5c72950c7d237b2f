"""bpf/lossy_port.bpf.c through BPF_PROG_TEST_RUN on packets built with scapy."""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop
from scapy.layers.l2 import ARP, Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Raw

from tests.bpf.lossy_model import is_chosen
from umstack_xdp import BpfError, BpfObject, TestRun, unavailable

pytestmark = pytest.mark.skipif(unavailable("lossy_port") is not None, reason=str(unavailable("lossy_port")))

TC_ACT_OK, TC_ACT_SHOT, TC_ACT_REDIRECT = 0, 2, 7
BLOCK, UNICAST, TCP_TOO = 1, 2, 16
MARK_KIND, MARK_DECIDED, MARK_HELD = 0xF0000000, 0xD0000000, 0xA0000000
HELD_MAX = 64
LOOPBACK_INDEX = 1
CONFIG = struct.Struct("=QQQQIIIIQQ")
COUNTERS = (
    "seen",
    "passed",
    "dropped",
    "blocked",
    "duplicated",
    "reordered",
    "released",
    "unheld",
    "corrupted",
)
SEEDS = (1, 2**63 + 11, 0xDEADBEEF)


def frame(payload: Packet, destination: str = "239.1.2.3", **header: int) -> bytes:
    """Return a frame that carries `payload` over IPv4, by default to a group."""
    ethernet = Ether(src="02:00:00:00:00:01", dst="01:00:5e:01:02:03")
    return bytes(ethernet / IP(src="10.77.0.1", dst=destination, **header) / payload)


def igmp(kind: int, group: str, destination: str | None = None) -> bytes:
    """Return an IGMP message of eight bytes."""
    return frame(
        Raw(bytes([kind, 0, 0, 0]) + socket.inet_aton(group)), destination or group, proto=socket.IPPROTO_IGMP
    )


def datagram(destination: str = "239.1.2.3") -> bytes:
    """Return an ordinary UDP datagram."""
    return frame(UDP(sport=14390, dport=14400) / Raw(b"x" * 64), destination)


@dataclass
class Lossy:
    """A loaded lossy_port whose detour leads to the loopback."""

    programs: BpfObject
    packet: bytes = field(default_factory=datagram)

    def configure(
        self,
        *,
        seed: int = 0,
        loss: float = 0,
        duplicate: float = 0,
        reorder: float = 0,
        corrupt: float = 0,
        flags: int = 0,
        depth: int = 3,
        hold_ns: int = 1_000_000_000,
    ) -> None:
        """Set rates and flags, and restart the series."""
        rates = (round(rate * 2**32) for rate in (loss, duplicate, reorder))
        detour = LOOPBACK_INDEX, LOOPBACK_INDEX, depth, hold_ns
        config = CONFIG.pack(seed, *rates, flags, *detour, round(corrupt * 2**32))
        self.programs.map("lossy_config").write(config)
        self.programs.map("lossy_index").write(bytes(8))

    def run(self, packet: bytes | None = None, **options: int) -> TestRun:
        """Run the port on one packet (default: an ordinary datagram)."""
        return self.programs.program("lossy_port").test_run(packet or self.packet, **options)

    def detour(self, mark: int) -> TestRun:
        """Run the detour's program on one datagram."""
        return self.programs.program("lossy_detour").test_run(self.packet, mark=mark)

    def counters(self) -> dict[str, int]:
        """Return the counters, summed over all CPUs."""
        values = [struct.unpack("=9Q", value) for value in self.programs.map("lossy_counters").read_per_cpu()]
        return dict(zip(COUNTERS, map(sum, zip(*values, strict=True)), strict=True))

    def verdicts(self, count: int) -> list[int]:
        """Return the verdict on each of `count` datagrams."""
        return [self.run().result for _ in range(count)]


@pytest.fixture
def lossy() -> Iterator[Lossy]:
    """Load the programs."""
    with BpfObject("lossy_port") as programs:
        yield Lossy(programs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("rate", [0.0, 0.001, 0.02, 0.5, 1.0])
def test_loss_is_close_to_the_requested_rate(lossy: Lossy, seed: int, rate: float) -> None:
    """Lab: the requested share of 200,000 datagrams is dropped, within five standard deviations; 0 and 1 are
    exact.
    """
    count = 200_000
    lossy.configure(seed=seed, loss=rate)
    lossy.run(repeat=count)
    counters = lossy.counters()
    assert counters["seen"] == count == counters["dropped"] + counters["passed"]
    assert abs(counters["dropped"] - rate * count) <= 5 * math.sqrt(count * rate * (1 - rate))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_decision_is_a_function_of_seed_and_number(lossy: Lossy, seed: int) -> None:
    """Lab: the fate of datagram i is a function of (seed, i), equals the model's, and repeats."""
    lossy.configure(seed=seed, loss=0.1)
    first = lossy.verdicts(1500)
    expected = [TC_ACT_SHOT if is_chosen(seed, i, "loss", 0.1) else TC_ACT_OK for i in range(1500)]
    assert first == expected
    lossy.configure(seed=seed, loss=0.1)
    assert lossy.verdicts(1500) == first


def test_another_seed_gives_other_decisions(lossy: Lossy) -> None:
    """Lab: series of different seeds agree no more often than by chance."""
    lossy.configure(seed=1, loss=0.5)
    first = lossy.verdicts(2000)
    lossy.configure(seed=2, loss=0.5)
    agreeing = sum(a == b for a, b in zip(first, lossy.verdicts(2000), strict=True))
    assert 850 < agreeing < 1150


def test_fates_are_independent(lossy: Lossy) -> None:
    """Lab: duplication and reordering are not decided by the draw that decides loss."""
    lossy.configure(seed=5, duplicate=0.25, reorder=0.25)
    lossy.run(repeat=2000)
    counters = lossy.counters()
    chosen = {fate: [is_chosen(5, i, fate, 0.25) for i in range(2000)] for fate in ("duplicate", "reorder")}
    assert counters["duplicated"] == sum(chosen["duplicate"])
    assert counters["reordered"] + counters["unheld"] == sum(chosen["reorder"])
    both = sum(d and r for d, r in zip(chosen["duplicate"], chosen["reorder"], strict=True))
    assert 80 < both < 170


def test_a_corrupted_datagram_differs_in_one_bit_behind_the_ethernet_header(lossy: Lossy) -> None:
    """Lab: a chosen datagram keeps its length and all but one bit; the others pass unchanged, and losses stay."""
    lossy.configure(seed=7, loss=0.25, corrupt=0.5)
    outputs = [run.packet for run in (lossy.run() for _ in range(400)) if run.result == TC_ACT_OK]
    changes = [
        int.from_bytes(output, "big") ^ int.from_bytes(lossy.packet, "big")
        for output in outputs
        if len(output) == len(lossy.packet)
    ]
    corrupted = [change for change in changes if change]
    counters = lossy.counters()
    assert len(changes) == len(outputs) == counters["passed"]
    assert len(corrupted) == counters["corrupted"]
    assert 0.3 * len(changes) < len(corrupted) < 0.7 * len(changes)
    assert all(change.bit_count() == 1 for change in corrupted)
    assert max(corrupted) < 1 << 8 * (len(lossy.packet) - 14)
    assert counters["dropped"] == sum(is_chosen(7, i, "loss", 0.25) for i in range(400))


def ipv6(destination: str, payload: Packet) -> bytes:
    """Return a frame with an IPv6 packet."""
    return bytes(
        Ether(dst="33:33:00:00:00:01") / IPv6(src="fd00::1", dst=destination) / payload / Raw(bytes(64))
    )


@pytest.mark.parametrize(
    "packet",
    [
        bytes(Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst="10.77.0.2")),
        igmp(0x16, "239.1.2.3"),
        igmp(0x11, "0.0.0.0", "224.0.0.1"),
        frame(TCP(dport=80), "10.77.0.2"),
        frame(ICMP(), "10.77.0.2"),
        ipv6("ff02::16", IPv6ExtHdrHopByHop(nh=58) / Raw(bytes(20))),
        ipv6("fd00::2", UDP(dport=9)),
        datagram("10.77.0.2"),
    ],
    ids=["arp", "igmp-report", "igmp-query", "tcp", "icmp", "mld", "udp-ipv6-unicast", "udp-unicast"],
)
def test_other_packets_pass_unchanged(lossy: Lossy, packet: bytes) -> None:
    """Lab: a port that blocks all its datagrams still passes all other packets, unchanged and uncounted."""
    lossy.configure(loss=1, flags=BLOCK)
    run = lossy.run(packet)
    assert (run.result, run.packet) == (TC_ACT_OK, packet)
    assert not any(lossy.counters().values())


def test_ipv6_groups_are_considered(lossy: Lossy) -> None:
    """Lab: a datagram to an IPv6 group has the same fate as one to an IPv4 group."""
    lossy.configure(flags=BLOCK)
    assert lossy.run(ipv6("ff15::7", UDP(dport=9))).result == TC_ACT_SHOT
    assert lossy.counters()["blocked"] == 1


def test_unicast_is_considered_if_requested(lossy: Lossy) -> None:
    """Lab: with the flag, a NAK has the same fate; IGMP and ARP still pass."""
    lossy.configure(flags=BLOCK | UNICAST)
    assert lossy.run(datagram("10.77.0.2")).result == TC_ACT_SHOT
    assert lossy.run(ipv6("fd00::2", UDP(dport=9))).result == TC_ACT_SHOT
    assert lossy.run(igmp(0x16, "239.1.2.3")).result == TC_ACT_OK
    assert lossy.counters()["blocked"] == 2


def test_segments_are_considered_if_requested(lossy: Lossy) -> None:
    """Lab: with the flag, a TCP segment has the same fate, with or without the flag for unicast datagrams."""
    segment = frame(TCP(dport=80), "10.77.0.2")
    lossy.configure(flags=BLOCK | TCP_TOO)
    assert lossy.run(segment).result == TC_ACT_SHOT
    assert lossy.run(datagram("10.77.0.2")).result == TC_ACT_OK
    lossy.configure(flags=BLOCK | UNICAST)
    assert lossy.run(segment).result == TC_ACT_OK
    assert lossy.counters()["blocked"] == 1


def test_blocked_datagrams_have_a_separate_counter(lossy: Lossy) -> None:
    """Lab: a partition drops every datagram and counts it separately from loss."""
    lossy.configure(loss=0.5, flags=BLOCK)
    assert lossy.run(repeat=1000).result == TC_ACT_SHOT
    counters = lossy.counters()
    assert (counters["seen"], counters["blocked"], counters["dropped"]) == (1000, 1000, 0)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (Dot1Q(vlan=7), TC_ACT_SHOT),
        (Dot1AD(vlan=9) / Dot1Q(vlan=7), TC_ACT_SHOT),
        (Dot1AD(vlan=9) / Dot1AD(vlan=8) / Dot1Q(vlan=7), TC_ACT_OK),
    ],
    ids=["one", "two", "three"],
)
def test_datagrams_behind_vlan_tags_are_considered(lossy: Lossy, tags: Packet, expected: int) -> None:
    """Lab: a datagram after up to two VLAN tags is considered; one after more tags passes."""
    packet = bytes(
        Ether(dst="01:00:5e:01:02:03") / tags / IP(dst="239.1.2.3") / UDP(dport=9) / Raw(b"x" * 32)
    )
    lossy.configure(loss=1)
    assert lossy.run(packet).result == expected


@pytest.mark.parametrize("tags", [None, Dot1Q(vlan=7)], ids=["plain", "tagged"])
def test_truncated_packets_are_safe(lossy: Lossy, tags: Packet | None) -> None:
    """Lab: a cut frame counts as a datagram if its IPv4 header is whole, and passes unchanged otherwise."""
    ethernet = Ether(dst="01:00:5e:01:02:03")
    whole = bytes(
        (ethernet / tags if tags else ethernet) / IP(dst="239.1.2.3") / UDP(dport=9) / Raw(b"x" * 8)
    )
    header_end = 34 + (4 if tags else 0)
    lossy.configure(loss=1)
    for length in range(15, len(whole) + 1):
        expected = TC_ACT_SHOT if length >= header_end else TC_ACT_OK
        try:
            assert lossy.run(whole[:length]).result == expected, f"cut at {length}"
        except BpfError:
            # The kernel refuses a test run with an incomplete IPv4 header.
            assert length < header_end


@settings(max_examples=200)
@given(payload=st.binary(min_size=40, max_size=200), proto=st.sampled_from([0x0800, 0x8100, 0x88A8, 0x0806]))
def test_any_bytes_are_safe(lossy: Lossy, payload: bytes, proto: int) -> None:
    """Lab: for any bytes after an Ethernet header, the port returns a verdict and counts drops."""
    lossy.configure(loss=1)
    dropped_before = lossy.counters()["dropped"]
    result = lossy.run(bytes(12) + proto.to_bytes(2, "big") + payload).result
    assert result in (TC_ACT_OK, TC_ACT_SHOT)
    assert lossy.counters()["dropped"] - dropped_before == (result == TC_ACT_SHOT)


def test_a_super_packet_counts_as_its_datagrams(lossy: Lossy) -> None:
    """Lab: 44 datagrams in one GSO packet count as 44 and advance the series by 44."""
    lossy.configure(loss=1)
    lossy.run(gso_segments=44)
    lossy.run()
    assert lossy.counters()["dropped"] == 45
    assert struct.unpack("=Q", lossy.programs.map("lossy_index").read()) == (45,)


def test_all_cpus_share_one_series(lossy: Lossy) -> None:
    """Lab: CPUs that pass datagrams at the same time share one series, with no number used twice or skipped."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("two CPUs are needed to race")
    each, start = 1_000_000, threading.Barrier(2)
    lossy.configure(seed=77, loss=0.3)

    def pass_datagrams(cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        start.wait()
        lossy.run(repeat=each)

    threads = [threading.Thread(target=pass_datagrams, args=(cpu,)) for cpu in cpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert struct.unpack("=Q", lossy.programs.map("lossy_index").read()) == (2 * each,)
    assert lossy.counters()["seen"] == 2 * each


def test_a_reordered_datagram_is_held_until_others_have_overtaken_it(lossy: Lossy) -> None:
    """Lab: a delayed datagram circles while fewer than `depth` datagrams have been forwarded directly, and
    the last one releases it.
    """
    lossy.configure(reorder=1, depth=3)
    held = lossy.run()
    assert held.result == TC_ACT_REDIRECT
    assert held.mark & MARK_KIND == MARK_HELD
    lossy.configure(reorder=0, depth=3)
    for _ in range(3):
        circling = lossy.detour(held.mark)
        assert (circling.result, circling.mark) == (TC_ACT_REDIRECT, held.mark)
        lossy.run()
    assert lossy.detour(held.mark).mark == MARK_DECIDED
    assert lossy.counters()["released"] == lossy.counters()["reordered"] == 1


def test_a_held_datagram_is_released_in_time(lossy: Lossy) -> None:
    """Lab: if no datagram overtakes a delayed one, it is released when its time is up, so that it is never
    lost.
    """
    lossy.configure(reorder=1, depth=3, hold_ns=2_000_000)
    mark = lossy.run().mark
    rounds = 0
    while lossy.detour(mark).mark != MARK_DECIDED:
        rounds += 1
    assert rounds > 0
    assert lossy.counters()["released"] == 1


def test_the_detour_is_bounded(lossy: Lossy) -> None:
    """Lab: if the detour is full, the next chosen datagram passes in order, is counted, and is not lost."""
    lossy.configure(reorder=1)
    verdicts = lossy.verdicts(HELD_MAX + 10)
    assert verdicts == [TC_ACT_REDIRECT] * HELD_MAX + [TC_ACT_OK] * 10
    counters = lossy.counters()
    assert (counters["reordered"], counters["unheld"], counters["passed"]) == (HELD_MAX, 10, HELD_MAX + 10)


def test_the_detour_drops_unmarked_datagrams(lossy: Lossy) -> None:
    """Lab: a datagram that the port did not send into the loop does not leave it."""
    lossy.configure(reorder=1)
    assert lossy.detour(0).result == TC_ACT_SHOT


def test_a_datagram_is_decided_only_once(lossy: Lossy) -> None:
    """Lab: a duplicate or a released datagram passes the port without a new number, and without its mark."""
    lossy.configure(loss=1)
    run = lossy.run(mark=MARK_DECIDED)
    assert (run.result, run.mark) == (TC_ACT_OK, 0)
    assert not any(lossy.counters().values())


def test_a_broken_object_is_refused_with_the_reason() -> None:
    """The loader raises an error that contains libbpf's messages."""
    with pytest.raises(BpfError) as refusal:
        BpfObject(Path(__file__))
    assert "ELF" in refusal.value.log
    assert __file__ in str(refusal.value)


def test_errors_name_missing_programs_and_maps(lossy: Lossy) -> None:
    """A program or map that does not exist, or a key or value of the wrong size, raises an error that names it."""
    with pytest.raises(BpfError, match="no_such_program"):
        lossy.programs.program("no_such_program")
    with pytest.raises(BpfError, match="no_such_map"):
        lossy.programs.map("no_such_map")
    with pytest.raises(ValueError, match="64 bytes, not 3"):
        lossy.programs.map("lossy_config").write(b"abc")
    with pytest.raises(ValueError, match="per CPU"):
        lossy.programs.map("lossy_counters").read()
