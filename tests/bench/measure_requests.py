"""Measure the round trip of a request and its response, next to a plain TCP round trip. Needs root."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console

from umstack.bench import environment, throughput
from umstack.bench.children import CHILD_SLACK_SECONDS, Child, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.request_ends import RequestSpec
from umstack.bench.requests import BASELINE, GROUP, MODULE, measure_other, trip_result
from umstack.bench.result import Result, merged, p50, ratio
from umstack.bench.throughput import Pins, Progress
from umstack.cli.bench_options import OPTION_LINES, PIN, ROUNDS
from umstack.cli.bench_tables import latency_table
from umstack.cli.stack_options import JSON_OPTION
from umstack.lab import Lab


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """Number and size of the requests, and the number of rounds."""

    specs: Sequence[RequestSpec]
    rounds: int = 3
    loss: float = 0.0
    is_pinned: bool = True


def measure(plan: RequestPlan, progress: Progress) -> list[Result]:
    """Measure each spec and its baseline in turns, for the number of rounds in the plan."""
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
    """Send requests from host 0 of the lab and responses from host 1."""
    asking, responding = lab.hosts[:2]
    config = f"{spec.config}\nsource transport_lbtrm_multicast_address {GROUP}\n"
    with ExitStack() as stack:

        def start(host: Any, role: str, cpu: int | None) -> Child:
            child_spec = dataclasses.replace(spec, interface=host.address, cpu=cpu, config=config)
            return stack.enter_context(running(host, MODULE, child_spec.as_arguments(role)))

        server = start(responding, "respond", pins.subscriber)
        client = start(asking, "ask", pins.publisher)
        ends = (server, client)
        for end in ends:
            end.receive(READY_SECONDS)
        for end in ends:
            end.order(meet=True)
        for end in ends:
            end.receive(READY_SECONDS + CHILD_SLACK_SECONDS)
        lab.await_join(GROUP, responding.number)
        for end in ends:
            end.order(go=True)
        asked = client.receive(spec.seconds + CHILD_SLACK_SECONDS)
        responded = server.receive(CHILD_SLACK_SECONDS)
        for end in ends:
            end.order(stop=True)
    context, link = asked["stats"]["context"], asked["stats"]
    return trip_result(
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


@click.command(epilog="Example: python -m tests.bench.measure_requests --size 1024 --rounds 5")
@click.option("--size", type=click.IntRange(8, 1 << 20), default=64, show_default=True, help="In bytes.")
@click.option(
    "--mode",
    type=click.Choice(["embedded", "sequential"]),
    default="embedded",
    show_default=True,
    help="Operational mode of both contexts.",
)
@click.option("--count", "samples", type=click.IntRange(1), default=200_000, help="Requests at most.")
@click.option("--seconds", type=click.FloatRange(0.05), default=2.0, show_default=True, help="Of each round.")
@ROUNDS
@click.option("--loss", type=click.FloatRange(0, 0.5), default=0.0, help="Share of datagrams lost.")
@OPTION_LINES
@PIN
@JSON_OPTION
def command(
    options: tuple[str, ...], rounds: int, loss: float, is_pinned: bool, as_json: bool, **trip: Any
) -> None:
    """Measure the round trip of a request and its response, next to one over a plain TCP connection.

    Both ends block while they wait and loop in Python. The two measurements alternate between the same two hosts.
    """
    config = throughput.options_text("min", "real", options)
    console = Console(stderr=True)
    results = measure(
        RequestPlan([RequestSpec(config=config, **trip)], rounds, loss, is_pinned),
        lambda text: console.print(f"request: {text}", highlight=False),
    )
    if as_json:
        described = environment.describe(
            mtu=1500, segmentation="real", pinned=is_pinned, options=config.split("\n")
        )
        click.echo(json.dumps({"environment": described, "results": results}))
    else:
        Console().print(latency_table(results))


if __name__ == "__main__":
    command()
