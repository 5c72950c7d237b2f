"""Latency: measures round trips of a message through the stack and of a datagram between raw sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from umstack.bench import raw
from umstack.bench.children import CHILD_SLACK_SECONDS, Child, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.request_ends import RequestSpec
from umstack.bench.requests import Other, measure_other, round_trip_peers
from umstack.bench.result import Result, merged, p50, ratio, result
from umstack.bench.round_trip_ends import RoundTripSpec
from umstack.bench.throughput import Pins, Place, Progress
from umstack.errors import LinkError
from umstack.lab import Lab
from umstack.lab.cables import HOST_INTERFACE
from umstack_xdp import find_interface
from umstack_xdp.facts import Unknown
from umstack_xdp.netdev_family import THREADED_ON, napi_instances, set_napi

_REQUEST_GROUP, _REPLY_GROUP = "239.255.7.3", "239.255.7.4"
_RAW_REQUEST_GROUP, _RAW_REPLY_GROUP = "239.255.7.5", "239.255.7.6"
_GROUP_OPTION = "source transport_lbtrm_multicast_address"


def measure_round_trip(
    lab: Place, spec: RoundTripSpec, pins: Pins, drivers: tuple[str, str] = ("none", "none")
) -> Result:
    """Round trips between hosts 0 and 1 of the lab. Each direction has a separate topic and session. `drivers`: those
    that the hosts' ends attach to."""
    client_host, server_host = lab.hosts[:2]
    with ExitStack() as stack:

        def start(host: Any, role: str, group: str, cpu: int | None, driver: str) -> Child:
            config = f"{spec.config}\n{_GROUP_OPTION} {group}\n"
            child_spec = dataclasses.replace(
                spec, interface=host.address, cpu=cpu, config=config, driver=driver
            )
            return stack.enter_context(
                running(host, "umstack.bench.round_trip_ends", child_spec.as_arguments(role))
            )

        server = start(server_host, "echo", _REPLY_GROUP, pins.subscriber, drivers[1])
        client = start(client_host, "ping", _REQUEST_GROUP, pins.publisher, drivers[0])
        ends = (server, client)
        for end in ends:
            end.receive(READY_SECONDS)
        for end in ends:
            end.order(meet=True)
        for end in ends:
            end.receive(READY_SECONDS + CHILD_SLACK_SECONDS)
        if spec.transport == "lbtrm":
            lab.await_join(_REQUEST_GROUP, server_host.number)
            lab.await_join(_REPLY_GROUP, client_host.number)
        for end in ends:
            end.order(go=True)
        asked = client.receive(spec.seconds + CHILD_SLACK_SECONDS)
        answered = server.receive(CHILD_SLACK_SECONDS)
        for end in ends:
            end.order(stop=True)
    return _round_trip_result(spec, asked, answered)


def _round_trip_result(spec: RoundTripSpec, asked: dict[str, Any], answered: dict[str, Any]) -> Result:
    stats = (asked["stats"], answered["stats"])
    sent = [transport for one in stats for transport in one["source_transports"]]
    received = [transport for one in stats for transport in one["receiver_transports"]]
    topics = [topic for one in stats for topic in one["receivers"]]
    return result(
        what="umstack",
        transport=spec.transport,
        link=asked["stats"]["link"],
        mode=asked["stats"]["link_mode"],
        size=spec.size,
        api="message",
        messages_per_second=asked["samples"] / asked["seconds"],
        lost=0,
        out_of_order=asked["misplaced"],
        duplicates=0,
        retransmissions=sum(one["rxs_sent"] for one in sent),
        unrecoverable=sum(one["unrecoverable_loss_events"] + one["burst_loss_events"] for one in topics),
        cpu_seconds={"publisher": asked["cpu_seconds"], "subscriber": answered["cpu_seconds"]},
        wait=spec.wait,
        loop=spec.loop,
        round_trip_us={"p50": asked["p50_us"], "p99": asked["p99_us"], "p999": asked["p999_us"]},
        detail={
            "samples": asked["samples"],
            "operational_mode": spec.mode,
            "min_us": asked["min_us"],
            "max_us": asked["max_us"],
            "datagrams_lost": sum(one["lost"] for one in received),
            "naks_sent": sum(one["naks_sent"] for one in received),
            "session_messages": sum(one["session_messages_sent"] for one in sent),
        },
    )


def measure_raw(lab: Lab, plan: raw.PingPongPlan, pins: Pins) -> Result:
    """Return the round trip of a unicast datagram, which is the case that suits raw sockets best."""
    client, server = lab.hosts[:2]
    pinned = dataclasses.replace(
        plan,
        client_cpu=raw.ANY_CPU if pins.publisher is None else pins.publisher,
        server_cpu=raw.ANY_CPU if pins.subscriber is None else pins.subscriber,
    )
    return result(**raw.measure_ping_pong(client, server, pinned).as_result(), transport="udp")


Napi = Literal["interrupts", "threaded", "deferred", "suspended"]
"""How both hosts' NIC drivers run: by interrupts (their default), in a kernel thread, with interrupts deferred as
`umstack nic init --prefer-busy-poll` does before Linux 6.13, or deferred and with IRQ suspension."""
_NAPI_SETTINGS: Mapping[Napi, Mapping[str, int]] = {
    "interrupts": {},
    "threaded": {"threaded": THREADED_ON},
    "deferred": {"defer_hard_irqs": 2, "gro_flush_timeout": 200_000},
    "suspended": {"defer_hard_irqs": 2, "gro_flush_timeout": 200_000, "irq_suspend_timeout": 20_000_000},
}


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """Round trips to measure, and how."""

    specs: Sequence[RoundTripSpec]
    rounds: int = 3
    loss: float = 0.0
    is_pinned: bool = True
    napi: Napi = "interrupts"
    peers: Sequence[str] = ()
    """Names of other stacks to measure: `zmq` (over TCP, blocking and from Python)."""


def measure(plan: LatencyPlan, progress: Progress) -> list[Result]:
    """Measure every spec, and raw sockets that wait the same way, for the requested number of rounds."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    peers = round_trip_peers(plan.peers)
    own: list[list[Result]] = [[] for _ in plan.specs]
    others: dict[tuple[Subject, str], list[Result]] = {
        (what, spec.wait): [] for spec in plan.specs for what in _others(spec, peers)
    }
    with Lab(hosts=2, segmentation="real", loss=plan.loss) as lab:
        for host in lab.hosts:
            host.call(lambda: _set_napi(plan.napi))
            if plan.loss:
                transports = {spec.transport for spec in plan.specs}
                lab.port(host.number).set(
                    unicast=transports != {"lbtrm"}, tcp="tcp" in transports or bool(peers)
                )
        for number in range(1, plan.rounds + 1):
            for spec, found in zip(plan.specs, own, strict=True):
                progress(f"round {number} of {plan.rounds}: umstack, {spec.wait}, {spec.loop} loop")
                found.append(measure_round_trip(lab, spec, pins))
            for (what, wait), found in others.items():
                progress(f"round {number} of {plan.rounds}: {what}, {wait}")
                found.append(_measure_baseline(lab, what, wait, plan.specs[0], pins))
    return [_with_ratios(spec, found, others, peers) for spec, found in zip(plan.specs, own, strict=True)] + [
        merged(found, p50) for found in others.values()
    ]


def _set_napi(napi: Napi) -> None:
    """Set up the interface of the calling thread's host. The interface has a NAPI instance because GRO is on."""
    instances = napi_instances(find_interface(HOST_INTERFACE).index)
    if isinstance(instances, Unknown) and _NAPI_SETTINGS[napi]:
        raise LinkError(f"--napi {napi}: {instances.reason}", hint="leave it out")
    for one in () if isinstance(instances, Unknown) else instances:
        for name, value in _NAPI_SETTINGS[napi].items():
            set_napi(one.id, name, value)


Subject = raw.Subject | Other


def _measure_baseline(lab: Lab, what: Subject, wait: str, spec: RoundTripSpec, pins: Pins) -> Result:
    if what == "raw-tcp" or what == "zmq-pair-python":
        return measure_over_tcp(lab, what, spec, pins)
    return measure_raw(lab, raw_plan(what, wait, spec), pins)


def measure_over_tcp(lab: Lab, what: Other, spec: RoundTripSpec, pins: Pins) -> Result:
    """Round trips of the same messages over a plain connection or a peer's. Its ends block and are in Python."""
    child_spec = RequestSpec(size=spec.size, seconds=spec.seconds, samples=spec.samples)
    return {**measure_other(lab, child_spec, pins, what), "api": "message"}


def _others(spec: RoundTripSpec, peers: Sequence[Other]) -> list[Subject]:
    """Measure the baselines and, for specs that block as the peers do, the peers."""
    return [*_baselines(spec), *(peers if spec.wait == "block" else ())]


def _baselines(spec: RoundTripSpec) -> list[Subject]:
    """Measure baselines that wait the same way: raw sockets and, over rings, raw rings, which always busy-poll. For TCP
    the baseline is a plain connection, whose ends block and are in Python."""
    if spec.transport == "tcp":
        return ["raw-udp", "raw-tcp"] if spec.wait == "block" else ["raw-udp"]
    return ["raw-udp", "raw-xdp"] if spec.link == "xdp" and spec.wait == "busy" else ["raw-udp"]


def raw_plan(what: raw.Subject, wait: str, spec: RoundTripSpec) -> raw.PingPongPlan:
    """Return the raw round trip that corresponds to the stack's."""
    plan = raw.PingPongPlan(spec.size, wait, spec.seconds, spec.samples, what=what)  # type: ignore[arg-type]
    if what != "raw-xdp":
        return plan
    return dataclasses.replace(plan, to_server_group=_RAW_REQUEST_GROUP, to_client_group=_RAW_REPLY_GROUP)


def _with_ratios(
    spec: RoundTripSpec,
    found: Sequence[Result],
    others: Mapping[tuple[Subject, str], Sequence[Result]],
    peers: Sequence[Other],
) -> Result:
    best = merged(found, p50)
    best["ratios"] = {what: ratio(found, others[what, spec.wait], p50) for what in _others(spec, peers)}
    return best
