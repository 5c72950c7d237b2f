"""Throughput: measures a publisher's stream to its subscribers and raw sockets, round by round in the same lab."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from umstack.bench import raw
from umstack.bench.children import CHILD_SLACK_SECONDS, Child, Host, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.result import Result, merged, rate, ratio, result
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.tcp_ends import Peer
from umstack.bench.tcp_peers import measure_peer, peers
from umstack.lab import Lab

Segmentation = Literal["real", "offload", "none"]
Progress = Callable[[str], None]

STREAM_ENDS = "umstack.bench.stream_ends"

MEASURED_OPTIONS = """
context transport_lbtrm_data_rate_limit 0
context transport_lbtrm_retransmit_rate_limit 0
source transport_lbtrm_multicast_address 239.255.7.2
"""
"""Options: no rate limit, and every topic on one transport session."""

_NO_OFFLOAD_OPTIONS = "context link_gso 0\ncontext link_gro 0\n"


_LBTRU_OPTIONS = """
context transport_lbtru_data_rate_limit 0
context transport_lbtru_retransmit_rate_limit 0
source transport lbtru
source transport_lbtru_port 14380
"""
"""The same for LBT-RU."""

_TCP_OPTIONS = """
source transport tcp
source transport_tcp_port 14371
"""
"""The same for TCP, which has no rate limit."""
_LBTIPC_OPTIONS = """
source transport lbtipc
source transport_lbtipc_behavior receiver_paced
"""
"""The same for LBT-IPC, with an order of messages that is complete."""
_OWN_OPTIONS = {"lbtru": _LBTRU_OPTIONS, "tcp": _TCP_OPTIONS, "lbtipc": _LBTIPC_OPTIONS}


def options_text(
    flow_control: str, segmentation: Segmentation, options: Sequence[str], transport: str = "lbtrm"
) -> str:
    """Return the configuration of both ends. The user's lines come last and therefore take precedence."""
    offload = _NO_OFFLOAD_OPTIONS if segmentation == "none" else ""
    own = _OWN_OPTIONS.get(transport, "").lstrip()
    return f"{MEASURED_OPTIONS.lstrip()}{own}source flow_control {flow_control}\n{offload}" + "\n".join(
        options
    )


_PACKED_MESSAGE_MAX_BYTES = raw.PACKED_DATAGRAM_BYTES // 2


@dataclass(frozen=True, slots=True)
class Pins:
    """Processor of each end; None leaves the choice to the scheduler."""

    publisher: int | None = None
    subscriber: int | None = None

    @classmethod
    def apart(cls) -> Pins:
        """Return a separate processor for each end, if there is more than one."""
        cpus = sorted(os.sched_getaffinity(0))
        return cls(cpus[0], cpus[1]) if len(cpus) > 1 else cls()


class Place(Protocol):
    """Where a measurement runs: a lab, or this machine for all ends (umstack/bench/ipc.py)."""

    @property
    def hosts(self) -> Sequence[PlacedHost]:
        """Return the hosts, the publisher's first."""

    def await_join(self, group: str, *hosts: int) -> None:
        """Wait until the group reaches these hosts."""


class PlacedHost(Host, Protocol):
    """One of the hosts of a place."""

    @property
    def number(self) -> int:
        """Return its number in the place."""


@dataclass(frozen=True, slots=True)
class End:
    """One subscriber of a stream: its host, its arguments and its program."""

    host: PlacedHost
    spec: StreamSpec
    module: str = STREAM_ENDS
    cpu: int | None = None


def carry_out(
    lab: Place, spec: StreamSpec, cpu: int | None, ends: Sequence[End], connected: int | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run one stream from host 0 of the lab to these subscribers, and return the reports of all ends. The publisher
    waits for `connected` receivers, by default one per subscriber.
    """
    count = len(ends) if connected is None else connected
    with ExitStack() as stack:

        def start(host: Host, module: str, role: str, child_spec: StreamSpec, cpu: int | None) -> Child:
            child_spec = dataclasses.replace(child_spec, interface=host.address, cpu=cpu, receivers=count)
            return stack.enter_context(running(host, module, child_spec.as_arguments(role)))

        publisher = start(lab.hosts[0], STREAM_ENDS, "publish", spec, cpu)
        subscribers = [start(end.host, end.module, "subscribe", end.spec, end.cpu) for end in ends]
        transports = publisher.receive(READY_SECONDS)["transports"]
        for subscriber in subscribers:
            subscriber.receive(READY_SECONDS + CHILD_SLACK_SECONDS)
        for transport in transports:
            if transport.startswith("LBTRM:"):
                lab.await_join(transport.split(":")[4], *(end.host.number for end in ends))
        publisher.order(go=True)
        sent = publisher.receive(spec.seconds + READY_SECONDS + CHILD_SLACK_SECONDS)
        received = [subscriber.receive(CHILD_SLACK_SECONDS) for subscriber in subscribers]
        publisher.order(stop=True)
        sent |= publisher.receive(CHILD_SLACK_SECONDS)
    return sent, received


def measure_stream(lab: Place, spec: StreamSpec, pins: Pins) -> Result:
    """Measure one stream from host 0 to hosts 1, 2, ..., whose subscribers all check every message."""
    ends = [End(host, spec, cpu=pins.subscriber) for host in lab.hosts[1 : spec.receivers + 1]]
    sent, received = carry_out(lab, spec, pins.publisher, ends)
    return stream_result(spec, sent, received)


def _total(groups: Sequence[dict[str, Any]], *names: str) -> int:
    return sum(group[name] or 0 for group in groups for name in names)


def stream_result(spec: StreamSpec, sent: dict[str, Any], received: Sequence[dict[str, Any]]) -> Result:
    """Return the slowest subscriber's rate, and the counts of all subscribers."""
    slowest = min(received, key=lambda end: _rate(end))
    transports = [transport for end in received for transport in end["stats"]["receiver_transports"]]
    topics = [topic for end in received for topic in end["stats"]["receivers"]]
    sources = sent["stats"]["source_transports"]
    datagrams = _total(slowest["stats"]["receiver_transports"], "msgs_rcved")
    # A subscriber that missed the end cannot count its missing messages; the publisher can.
    lost = sum(max(end["lost"], sent["sent"] - end["received"] + end["duplicates"]) for end in received)
    return result(
        what="umstack",
        transport=spec.transport,
        link=slowest["stats"]["link"],
        mode=slowest["stats"]["link_mode"],
        size=spec.size,
        api=spec.api,
        messages_per_second=_rate(slowest),
        datagrams_per_second=_rate(slowest) * datagrams / max(1, slowest["received"]),
        lost=lost,
        out_of_order=sum(end["out_of_order"] for end in received),
        duplicates=sum(end["duplicates"] for end in received),
        retransmissions=_total(sources, "rxs_sent"),
        unrecoverable=_total(topics, "unrecoverable_loss_events", "burst_loss_events"),
        cpu_seconds={"publisher": sent["cpu_seconds"], "subscriber": slowest["cpu_seconds"]},
        wait="block",
        loop="python",
        detail={
            "sent": sent["sent"],
            "seconds": slowest["seconds"],
            "drained": sent["drained"],
            "publisher_cpu_seconds_until_sent": sent["sent_cpu_seconds"],
            "operational_mode": spec.mode,
            "input": spec.input if spec.api == "batch" else None,
            "reads": spec.reads if spec.api == "batch" else "payload",
            "batch_messages": spec.send_messages if spec.api == "batch" else 1,
            "messages_per_poll": slowest["counted"] / slowest["batches"] if slowest["batches"] else None,
            "topics": spec.topics,
            "queue": spec.queue if spec.topics > 1 else "own",
            "receivers": spec.receivers,
            "memory_bytes": {"publisher": sent["memory_bytes"], "subscriber": slowest["memory_bytes"]},
            "datagrams_lost": _total(transports, "lost"),
            "naks_sent": _total(transports, "naks_sent"),
            "nak_datagrams_sent": _total(transports, "nak_pckts_sent"),
            "recovery_ms": {
                "mean": max((one["nak_stm_mean"] or 0.0 for one in transports), default=0.0),
                "max": max((one["nak_stm_max"] or 0.0 for one in transports), default=0.0),
            },
            "duplicate_datagrams": _total(transports, "duplicate_data"),
            "socket_drops": sum(end["stats"]["link_counters"]["receive_drops"] for end in received),
            "queue_full_pauses": _total(topics, "queue_full_pauses"),
            "sender_stops": _total(sources, "snd_bpe"),
            "sends_held_back": _total(sources, "back_pressured"),
        },
    )


def _rate(end: dict[str, Any]) -> float:
    return float(end["counted"] / end["seconds"]) if end["seconds"] > 0 else 0.0


# Baselines


def baselines(size: int, segmentation: Segmentation, link: str = "socket") -> list[raw.Subject]:
    """Return the baselines of a message size: raw sockets and, over rings, raw rings."""
    kinds: list[raw.Subject] = ["raw-xdp", "raw-udp"] if link == "xdp" else ["raw-udp"]
    if size <= _PACKED_MESSAGE_MAX_BYTES:
        kinds.append("raw-udp-packed")
    if segmentation != "none":
        kinds.append("raw-udp-gso")
    return kinds


class Baseline:
    """One repeated raw measurement. The first round finds its best way, which the later rounds reuse.

    A run that is shorter than the necessary probes uses the plan unchanged.
    """

    def __init__(
        self, what: raw.Subject, size: int, seconds: float, pins: Pins, transport: str = "lbtrm"
    ) -> None:
        """Use datagrams to a group or, for transports other than LBT-RM, unicast datagrams."""
        self._is_multicast = transport == "lbtrm"
        self._plan = raw.ThroughputPlan(
            what,
            size,
            seconds=seconds,
            sender_cpu=raw.ANY_CPU if pins.publisher is None else pins.publisher,
            receiver_cpu=raw.ANY_CPU if pins.subscriber is None else pins.subscriber,
        )
        self._is_tuned = seconds < raw.PROBE_SECONDS

    def measure(self, lab: Lab) -> Result:
        """Measure once more."""
        sender, receiver = lab.hosts[:2]
        if not self._is_multicast:
            self._plan = dataclasses.replace(self._plan, group=receiver.address)
        if self._is_tuned:
            found = raw.measure_throughput(sender, receiver, self._plan)
        else:
            found = raw.measure_strongest(sender, receiver, self._plan)
            self._plan, self._is_tuned = found.plan, True
        return result(**found.as_result(), transport="udp")


@dataclass(frozen=True, slots=True)
class ThroughputPlan:
    """Streams to measure, and how."""

    specs: Sequence[StreamSpec]
    segmentation: Segmentation = "real"
    rounds: int = 3
    is_pinned: bool = True
    has_baselines: bool = True
    peers: Sequence[str] = ()
    """Names of other stacks to measure: `zmq`, over TCP."""


def measure(plan: ThroughputPlan, progress: Progress) -> list[Result]:
    """Measure every spec and its baselines in turn, for the requested number of rounds."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    hosts = 1 + max(spec.receivers for spec in plan.specs)
    found: list[Result] = []
    with Lab(hosts=hosts, segmentation="offload" if plan.segmentation == "offload" else "real") as lab:
        for spec in plan.specs:
            found += _measure_spec(lab, spec, plan, pins, progress)
    return found


def _baselines_of(spec: StreamSpec, plan: ThroughputPlan, pins: Pins) -> dict[raw.Subject, Baseline]:
    if not plan.has_baselines or spec.transport == "tcp":
        return {}
    kinds = baselines(spec.size, plan.segmentation, spec.link)
    return {what: Baseline(what, spec.size, spec.seconds, pins, spec.transport) for what in kinds}


def _peers_of(spec: StreamSpec, plan: ThroughputPlan) -> list[Peer]:
    """Measure the baselines over TCP: a plain stream, and the requested peers."""
    plain: list[Peer] = ["raw-tcp"] if plan.has_baselines and spec.transport == "tcp" else []
    return plain + peers(plan.peers)


def _measure_spec(
    lab: Lab, spec: StreamSpec, plan: ThroughputPlan, pins: Pins, progress: Progress
) -> list[Result]:
    others_of: dict[str, Callable[[], Result]] = {
        what: functools.partial(one.measure, lab) for what, one in _baselines_of(spec, plan, pins).items()
    }
    for peer in _peers_of(spec, plan):
        ends = lab.hosts[0], lab.hosts[1]
        cpus = pins.publisher, pins.subscriber
        others_of[peer] = functools.partial(measure_peer, *ends, peer, spec.size, spec.seconds, cpus)
    own: list[Result] = []
    others: dict[str, list[Result]] = {what: [] for what in others_of}
    for number in range(1, plan.rounds + 1):
        progress(f"{spec.size} B, {spec.api} API, round {number} of {plan.rounds}: umstack")
        own.append(measure_stream(lab, spec, pins))
        for what, measure_other in others_of.items():
            progress(f"{spec.size} B, round {number} of {plan.rounds}: {what}")
            others[what].append(measure_other())
    best = merged(own, rate)
    best["ratios"] = {what: ratio(own, rounds, rate) for what, rounds in others.items()}
    return [best, *(merged(rounds, rate) for rounds in others.values())]
