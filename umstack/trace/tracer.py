"""A running trace: the program in the kernel and its counts.

It traces the network namespace of the thread that starts it. Closing it removes everything from the kernel.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from umstack.errors import PermissionNeeded, UmError, Unsupported
from umstack.telemetry.statistics_reader import read_statistics
from umstack.trace.kernel_types import KernelTypes
from umstack.trace.toolkit import compiling_with, find_headers, libbpf_in, load_bcc
from umstack_xdp import interfaces
from umstack_xdp.closing import Closing
from umstack_xdp.probe import running_kernel

_RECEIVER_KERNEL = (6, 11)
_REASON_PREFIX = "SKB_DROP_REASON_"
_XDP_ACTIONS = {0: "aborted", 1: "drop", 2: "pass", 3: "tx", 4: "redirect"}
# The errors of an AF_XDP socket that cannot accept a frame.
_RING_ERRORS = {
    errno.ENOBUFS: "the receive ring is full",
    errno.ENOSPC: "a ring is full, or the fill ring is empty",
    errno.ENOMEM: "the fill ring is empty",
    errno.ENXIO: "no ring is bound to that queue",
    errno.EINVAL: "the ring belongs to another queue or interface",
    errno.ENETDOWN: "the interface is down",
    errno.ENOENT: "the map has no ring",
}


# The meaning of the kernel's drop reasons for a subscriber, and remedies. Without a reason, the function decides.
_DROP_MEANINGS = {
    "NO_SOCKET": "no socket listens on that port",
    "SOCKET_RCVBUFF": "the socket's buffer is full: a slow reader, or sysctl -w net.core.rmem_max=8388608",
    "SOCKET_FILTER": "a filter on the socket dropped it",
    "PROTO_MEM": "the memory of all UDP sockets is used up: sysctl net.ipv4.udp_mem",
    "UDP_CSUM": "the UDP checksum is wrong",
    "IP_CSUM": "the IP checksum is wrong",
    "IP_INHDR": "the IP header is wrong",
    "IP_RPFILTER": "the sender is not routed there: sysctl -w net.ipv4.conf.INTERFACE.rp_filter=2",
    "IP_INADDRERRORS": "the group is not joined on that interface",
    "IP_INNOROUTES": "there is no route for it",
    "IP_OUTNOROUTES": "there is no route to it: ip route add 224.0.0.0/4 dev INTERFACE",
    "IP_LOCAL_SOURCE": "its source is an address of this host",
    "IP_INVALID_SOURCE": "its source address is invalid",
    "OTHERHOST": "it is for another host: the switch floods, or the MAC is wrong",
    "NETFILTER_DROP": "the firewall dropped it: nft list ruleset",
    "XDP": "an XDP program dropped it: ip link show dev INTERFACE",
    "TC_INGRESS": "a tc program or filter dropped it",
    "TC_EGRESS": "a tc program or filter dropped it",
    "QDISC_DROP": "the sending queue is full",
    "CPU_BACKLOG": "a CPU's backlog is full: sysctl -w net.core.netdev_max_backlog=10000",
    "FRAG_REASM_TIMEOUT": "a fragment never arrived",
    "PKT_TOO_BIG": "it is larger than the MTU",
    "QUEUE_PURGE": "its socket was closed before it was read",
}
_NAMELESS_MEANINGS = {
    "__udp4_lib_rcv": "no member of the group listens on that port",
    "__udp4_lib_mcast_deliver": "no member of the group listens on that port",
    "ip_rcv_finish_core": "the group is not joined on that interface",
}


@dataclass(frozen=True, slots=True)
class Group:
    """A traced destination: an IPv4 address and a port, 0 for all ports."""

    address: str
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> Group:
        """Read `ADDRESS` or `ADDRESS:PORT`; raises ValueError."""
        address, colon, port = text.partition(":")
        number = int(port) if colon else 0
        if not 0 <= number <= 65535:
            raise ValueError(f"{number} is not a port")
        return cls(str(ipaddress.IPv4Address(address)), number)

    def __str__(self) -> str:
        """Return the form that `parse` reads."""
        return f"{self.address}:{self.port}" if self.port else self.address


@dataclass(frozen=True, slots=True)
class Drop:
    """Datagrams dropped by the kernel: destination, reason, kernel function and count."""

    group: str
    port: int
    reason: str
    where: str
    interface: str
    meaning: str
    count: int


@dataclass(frozen=True, slots=True)
class XdpException:
    """Frames whose XDP verdict the kernel could not execute."""

    interface: str
    action: str
    count: int


@dataclass(frozen=True, slots=True)
class RedirectError:
    """Frames that could not be redirected, mostly to a ring, by errno and its meaning."""

    interface: str
    error: str
    meaning: str
    count: int


@dataclass(frozen=True, slots=True)
class Softirq:
    """Time that CPUs spent receiving, and total time of all CPUs."""

    microseconds: int
    runs: int
    share: float


@dataclass(frozen=True, slots=True)
class RingReport:
    """The nonzero ring counters of a running context (docs/counters.md)."""

    pid: int
    interface: str
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TraceReport:
    """All counts since the start of the trace."""

    seconds: float
    drops: Sequence[Drop]
    xdp_exceptions: Sequence[XdpException]
    redirect_errors: Sequence[RedirectError]
    softirq_net_rx: Softirq
    rings: Sequence[RingReport]


class TraceFailed(UmError):
    """The trace could not be started."""

    default_hint = "see the output of the compiler or verifier above, and docs/doctor.md"


class Trace(Closing):
    """Counts from creation to `close()`. Context manager; one thread at a time."""

    __slots__ = ("_bcc", "_cleanup", "_groups", "_interface", "_program", "_reasons", "_started_ns")

    def __init__(self, groups: Sequence[Group] = (), interface: str | None = None) -> None:
        """Trace these destinations, or all multicast; on one interface, or on all of this namespace."""
        if os.geteuid() != 0:
            raise PermissionNeeded(
                "tracing the kernel needs root", hint="run as root (CAP_BPF and CAP_PERFMON)"
            )
        self._groups, self._interface = tuple(groups), interface
        self._bcc = load_bcc()
        headers = find_headers()
        types = KernelTypes(libbpf_in(self._bcc))
        self._cleanup = ExitStack()
        try:
            self._reasons = types.enumeration("skb_drop_reason")
            flags = [*_definitions(types, bool(self._reasons))]
            flags += ["-DSOME_GROUPS"] if groups else []
        finally:
            types.close()
        text = files("umstack.trace").joinpath("datagram_drops.c").read_bytes()
        try:
            with compiling_with(headers) as include_flags:
                self._program = self._bcc.BPF(text=text, cflags=[*include_flags, *flags, "-w"])
        except Exception as error:  # bcc raises nothing more specific
            raise TraceFailed(f"bcc cannot load the tracing program: {error}") from error
        self._cleanup.callback(self._program.cleanup)
        watched = self._program[b"watched"]
        for group in self._groups:
            watched[watched.Key(int(ipaddress.IPv4Address(group.address)))] = watched.Leaf(group.port)
        self._started_ns = time.monotonic_ns()

    def report(self) -> TraceReport:
        """Return the counts so far."""
        seconds = (time.monotonic_ns() - self._started_ns) / 1e9
        names = {interface.index: interface.name for interface in interfaces()}
        return TraceReport(
            seconds=seconds,
            drops=sorted(self._drops(names), key=lambda drop: -drop.count),
            xdp_exceptions=[
                XdpException(name, _XDP_ACTIONS.get(code, str(code)), count)
                for name, code, count in self._failures(b"xdp_exceptions", names)
            ],
            redirect_errors=[
                RedirectError(name, errno.errorcode.get(-code, str(code)), _RING_ERRORS.get(-code, ""), count)
                for name, code, count in self._failures(b"redirect_errors", names)
            ],
            softirq_net_rx=self._softirq(seconds),
            rings=ring_reports(self._interface),
        )

    def close(self) -> None:
        """Remove the program from the kernel; a second call has no effect."""
        self._cleanup.close()

    def _drops(self, names: Mapping[int, str]) -> Iterator[Drop]:
        found: dict[Drop, int] = {}
        for key, value in self._program[b"drops"].items():
            name = names.get(key.interface_index, "")
            if (self._interface and name and name != self._interface) or not self._is_watched(key):
                continue
            where = self._program.ksym(key.location).decode(errors="replace")
            reason = self._reason(key.reason)
            meaning = _DROP_MEANINGS.get(reason) or _NAMELESS_MEANINGS.get(where, "")
            group = str(ipaddress.IPv4Address(key.group))
            drop = Drop(group, key.port, reason, where, name, meaning, 0)
            found[drop] = found.get(drop, 0) + value.value
        for drop, count in found.items():
            yield replace(drop, count=count)

    def _is_watched(self, key: Any) -> bool:
        """Return True for a traced port; the kernel compares addresses. A later fragment has no ports."""
        address = str(ipaddress.IPv4Address(key.group))
        ports = {group.port for group in self._groups if group.address == address}
        return not self._groups or 0 in ports or key.port in ports

    def _reason(self, number: int) -> str:
        if not self._reasons:
            return "unknown (known from Linux 5.17 on)"
        return self._reasons.get(number, f"reason {number:#x}").removeprefix(_REASON_PREFIX)

    def _failures(self, table: bytes, names: Mapping[int, str]) -> Iterator[tuple[str, int, int]]:
        for key, value in self._program[table].items():
            name = names.get(key.interface_index, str(key.interface_index))
            if self._interface in (None, name):
                yield name, key.code, value.value

    def _softirq(self, seconds: float) -> Softirq:
        per_cpu = self._program[b"softirq_total"][0]
        nanoseconds = sum(total.nanoseconds for total in per_cpu)
        watched_ns = seconds * 1e9 * (os.cpu_count() or 1)
        return Softirq(
            microseconds=nanoseconds // 1000,
            runs=sum(total.runs for total in per_cpu),
            share=round(nanoseconds / watched_ns, 4) if watched_ns else 0.0,
        )


def ring_reports(interface: str | None) -> list[RingReport]:
    """Return the ring counters of running contexts with statistics, on one interface or on all."""
    found = []
    for report in read_statistics(None):
        counters = {
            name: value
            for name, value in report["link_counters"].items()
            if name.startswith("xdp_") and value
        }
        if counters and interface in (None, report["interface"]):
            found.append(RingReport(report["pid"], report["interface"], counters))
    return found


def _definitions(types: KernelTypes, has_reason: bool) -> Iterator[str]:
    """Yield the offsets and features of this kernel as macros for the program."""
    offsets = {
        "SKB_HEAD": types.offset("sk_buff", "head"),
        "SKB_NETWORK_HEADER": types.offset("sk_buff", "network_header"),
        "SKB_DEV": types.offset("sk_buff", "dev"),
        "DEV_INDEX": types.offset("net_device", "ifindex"),
        "DEV_NET": types.offset("net_device", "nd_net", "net"),
        "SOCK_NET": types.offset("sock", "__sk_common", "skc_net", "net"),
        "NET_NUMBER": types.offset("net", "ns", "inum"),
        "THIS_NETWORK": Path("/proc/thread-self/ns/net").stat().st_ino,
    }
    for name, value in offsets.items():
        yield f"-D{name}={value}"
    if has_reason:
        yield "-DHAS_REASON"
    if running_kernel() >= _RECEIVER_KERNEL:
        yield "-DHAS_RECEIVER"
    if types.has_tracepoint("xdp_redirect_map_err"):
        yield "-DHAS_REDIRECT_MAP_ERROR"
    if not types.has_tracepoint("kfree_skb"):
        raise Unsupported(
            "this kernel has no tracepoint kfree_skb", hint="run a kernel with CONFIG_TRACEPOINTS"
        )
