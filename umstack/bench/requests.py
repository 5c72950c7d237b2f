"""Round trips over a plain TCP connection or ZeroMQ, which round trips of the stack are compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal

from umstack.bench.children import CHILD_SLACK_SECONDS, Child, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.request_ends import RequestSpec
from umstack.bench.result import Result, result
from umstack.bench.tcp_peers import peers
from umstack.bench.throughput import Pins
from umstack.lab import Lab

Other = Literal["raw-tcp", "zmq-pair-python"]
"""Baselines over TCP: a plain connection, and ZeroMQ."""

MODULE = "umstack.bench.request_ends"
GROUP = "239.255.7.7"
BASELINE: Other = "raw-tcp"
_ROLES: Mapping[Other, tuple[str, str]] = {
    "raw-tcp": ("tcp-ask", "tcp-respond"),
    "zmq-pair-python": ("zmq-ask", "zmq-respond"),
}


def round_trip_peers(named: Sequence[str]) -> list[Other]:
    """Return those of the named peers that support round trips. Raises Unsupported if one is not installed."""
    return ["zmq-pair-python"] if peers(named) else []


def measure_other(lab: Lab, spec: RequestSpec, pins: Pins, what: Other = BASELINE) -> Result:
    """Measure the same messages over one connection between the same hosts."""
    ask, respond = _ROLES[what]
    asking, responding = lab.hosts[:2]
    with ExitStack() as stack:

        def start(host: Any, role: str, cpu: int | None) -> Child:
            child_spec = dataclasses.replace(spec, interface=responding.address, cpu=cpu)
            return stack.enter_context(running(host, MODULE, child_spec.as_arguments(role)))

        server = start(responding, respond, pins.subscriber)
        client = start(asking, ask, pins.publisher)
        client.receive(READY_SECONDS)
        client.order(port=server.receive(READY_SECONDS)["port"])
        asked = client.receive(spec.seconds + CHILD_SLACK_SECONDS)
        responded = server.receive(CHILD_SLACK_SECONDS)
        for end in (server, client):
            end.order(stop=True)
    fixed = {"transport": "tcp", "link": "socket", "duplicates": 0, "unrecoverable": 0}
    return trip_result(what, spec, asked, responded, **fixed)


def trip_result(
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
