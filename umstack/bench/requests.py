"""Requests: how long a response takes to come, and a message there and back over a plain TCP connection or ZeroMQ."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from umstack.bench.children import CHILD_SLACK_SECONDS, Child, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.request_ends import RequestSpec
from umstack.bench.result import Result, merged, p50, ratio, result
from umstack.bench.tcp_peers import peers
from umstack.bench.throughput import Pins, Progress
from umstack.lab import Lab

Other = Literal["raw-tcp", "zmq-pair-python"]
"""What goes there and back over TCP beside the stack: a plain connection, and ZeroMQ."""

_MODULE = "umstack.bench.request_ends"
_GROUP = "239.255.7.7"
BASELINE: Other = "raw-tcp"
_ROLES: Mapping[Other, tuple[str, str]] = {
    "raw-tcp": ("tcp-ask", "tcp-respond"),
    "zmq-pair-python": ("zmq-ask", "zmq-respond"),
}


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """What `umstack bench request` measures."""

    specs: Sequence[RequestSpec]
    rounds: int = 3
    loss: float = 0.0
    is_pinned: bool = True


def measure(plan: RequestPlan, progress: Progress) -> list[Result]:
    """Every spec and its baseline, in turns, as many rounds as asked for."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    own: list[list[Result]] = [[] for _ in plan.specs]
    others: list[list[Result]] = [[] for _ in plan.specs]
    with Lab(hosts=2, segmentation="real", loss=plan.loss) as lab:
        for number in range(1, plan.rounds + 1):
            for spec, found, baseline in zip(plan.specs, own, others, strict=True):
                progress(f"round {number} of {plan.rounds}: requests of {spec.size} bytes, {spec.mode}")
                found.append(measure_requests(lab, spec, pins))
                progress(f"round {number} of {plan.rounds}: {BASELINE}, {spec.size} bytes")
                baseline.append(measure_other(lab, spec, pins))
    results = []
    for found, baseline in zip(own, others, strict=True):
        best = merged(found, p50)
        best["ratios"] = {BASELINE: ratio(found, baseline, p50)}
        results += [best, merged(baseline, p50)]
    return results


def measure_requests(lab: Lab, spec: RequestSpec, pins: Pins) -> Result:
    """Requests from host 0 of the lab, responses from host 1."""
    asking, responding = lab.hosts[:2]
    config = f"{spec.config}\nsource transport_lbtrm_multicast_address {_GROUP}\n"
    with ExitStack() as stack:

        def start(host: Any, role: str, cpu: int | None) -> Child:
            told = dataclasses.replace(spec, interface=host.address, cpu=cpu, config=config)
            return stack.enter_context(running(host, _MODULE, told.as_arguments(role)))

        server = start(responding, "respond", pins.subscriber)
        client = start(asking, "ask", pins.publisher)
        ends = (server, client)
        for end in ends:
            end.receive(READY_SECONDS)
        for end in ends:
            end.tell(meet=True)
        for end in ends:
            end.receive(READY_SECONDS + CHILD_SLACK_SECONDS)
        lab.await_join(_GROUP, responding.number)
        for end in ends:
            end.tell(go=True)
        asked = client.receive(spec.seconds + CHILD_SLACK_SECONDS)
        responded = server.receive(CHILD_SLACK_SECONDS)
        for end in ends:
            end.tell(stop=True)
    context, link = asked["stats"]["context"], asked["stats"]
    return _result(
        "umstack",
        spec,
        asked,
        responded,
        transport=spec.transport,
        link=link["link"],
        mode=link["link_mode"],
        duplicates=context["uim_dup_msgs_rcved"],
        retransmissions=sum(one["rxs_sent"] for one in link["source_transports"]),
        unrecoverable=sum(one["unrecoverable_loss_events"] for one in responded["stats"]["receivers"]),
        detail={
            "operational_mode": spec.mode,
            "responses_late": context["responses_late"],
            "response_connections": responded["stats"]["context"]["response_connections_opened"],
        },
    )


def round_trip_peers(named: Sequence[str]) -> list[Other]:
    """The peers of these names that send messages both ways. Raises Unsupported where one is not installed."""
    return ["zmq-pair-python"] if peers(named) else []


def measure_other(lab: Lab, spec: RequestSpec, pins: Pins, what: Other = BASELINE) -> Result:
    """The same messages over one connection between the same hosts."""
    ask, respond = _ROLES[what]
    asking, responding = lab.hosts[:2]
    with ExitStack() as stack:

        def start(host: Any, role: str, cpu: int | None) -> Child:
            told = dataclasses.replace(spec, interface=responding.address, cpu=cpu)
            return stack.enter_context(running(host, _MODULE, told.as_arguments(role)))

        server = start(responding, respond, pins.subscriber)
        client = start(asking, ask, pins.publisher)
        client.receive(READY_SECONDS)
        client.tell(port=server.receive(READY_SECONDS)["port"])
        asked = client.receive(spec.seconds + CHILD_SLACK_SECONDS)
        responded = server.receive(CHILD_SLACK_SECONDS)
        for end in (server, client):
            end.tell(stop=True)
    fixed = {"transport": "tcp", "link": "socket", "duplicates": 0, "unrecoverable": 0}
    return _result(what, spec, asked, responded, **fixed)


def _result(
    what: str, spec: RequestSpec, asked: dict[str, Any], responded: dict[str, Any], **more: Any
) -> Result:
    return result(
        what=what,
        size=spec.size,
        api="request",
        lost=0,  # a response that does not come ends the measurement
        out_of_order=0,
        messages_per_second=asked["samples"] / asked["seconds"],
        cpu_seconds={"publisher": asked["cpu_seconds"], "subscriber": responded["cpu_seconds"]},
        wait="block",
        loop="python",
        round_trip_us={"p50": asked["p50_us"], "p99": asked["p99_us"], "p999": asked["p999_us"]},
        **{
            **more,
            "detail": {
                **more.get("detail", {}),
                "samples": asked["samples"],
                "min_us": asked["min_us"],
                "max_us": asked["max_us"],
            },
        },
    )


__all__ = ["BASELINE", "RequestPlan", "measure"]
