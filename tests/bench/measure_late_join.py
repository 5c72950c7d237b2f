"""Measure late join: the rate of fetching a backlog, next to the live rate, and the cost for a live stream."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import click
from rich.table import Table

from tests.bench.late_join_ends import LateJoinSpec
from umstack.bench.children import CHILD_SLACK_SECONDS, Child, running
from umstack.bench.result import Result, merged, rate, result
from umstack.bench.throughput import Pins, Progress, options_text
from umstack.cli.bench_options import common_options, describe, progress_shown, report_results, size_option
from umstack.cli.bench_tables import count_text, empty_table, rate_text, ratio_text
from umstack.lab import Host, Lab

_ENDS = "tests.bench.late_join_ends"
_HEADERS_BYTES = 12
_LEAST_RETAINED_BYTES = 1 << 25


@dataclass(frozen=True, slots=True)
class LateJoinPlan:
    """Size of the backlog and of its messages, and the number of rounds."""

    size: int
    backlog: int
    config: str
    live_fraction: float = 0.5
    """Rate of the concurrent live stream as a fraction of the live rate."""
    seconds: float = 2.0
    rounds: int = 3
    is_pinned: bool = True


def measure(plan: LateJoinPlan, progress: Progress) -> list[Result]:
    """Measure each round twice: without a rate limit, then beside a live stream with the default limit."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    drained: list[Result] = []
    beside: list[Result] = []
    with Lab(hosts=3, segmentation="real") as lab:
        for number in range(1, plan.rounds + 1):
            progress(f"round {number} of {plan.rounds}: {plan.size} B, a backlog of {plan.backlog:,}")
            drained.append(_drain(lab, plan, pins))
            progress(f"round {number} of {plan.rounds}: {plan.size} B, beside a live stream")
            beside.append(_beside(lab, plan, pins, rate(drained[-1]) / drained[-1]["ratios"]["live"]))
    return [_median(drained, "live"), _median(beside, "alone")]


def _median(rounds: list[Result], name: str) -> Result:
    middle = statistics.median(one["ratios"][name] for one in rounds)
    return {**merged(rounds, rate), "ratios": {name: middle}}


def _spec(plan: LateJoinPlan, host: Host, cpu: int | None, *, limited: bool) -> LateJoinSpec:
    retained = 2 * plan.backlog * (plan.size + _HEADERS_BYTES) + _LEAST_RETAINED_BYTES
    config = plan.config + "".join(
        [
            "source late_join 1\n",
            f"source retransmit_retention_size_limit {retained}\n",
            f"source retransmit_retention_size_threshold {retained}\n",
            "" if limited else "context recovery_data_rate_limit 0\n",
        ]
    )
    return LateJoinSpec(interface=host.facts().name, config=config, cpu=cpu, size=plan.size)


def _answer(child: Child) -> dict[str, Any]:
    return child.receive(CHILD_SLACK_SECONDS)


def _send(publisher: Child, subscriber: Child, count: int, sending_rate: float, until: int) -> dict[str, Any]:
    """Have the publisher send `count` messages; return the subscriber's report once it has message `until`."""
    subscriber.order(until=until)
    publisher.order(count=count, rate=sending_rate)
    _answer(publisher)
    return _answer(subscriber)


@contextmanager
def _streaming(lab: Lab, plan: LateJoinPlan, pins: Pins, *, limited: bool) -> Iterator[tuple[Child, Child]]:
    """Run a publisher, with or without a rate limit for late joins, and a receiver that is present from the start."""
    here, live_host, _ = lab.hosts
    sent = replace(_spec(plan, here, pins.publisher, limited=limited), awaits_receiver=True)
    listening = _spec(plan, live_host, pins.subscriber, limited=True)
    with (
        running(live_host, _ENDS, listening.as_arguments("subscribe")) as live,
        running(here, _ENDS, sent.as_arguments("publish")) as publisher,
    ):
        _answer(live)
        _answer(publisher)
        yield publisher, live


def _drain(lab: Lab, plan: LateJoinPlan, pins: Pins) -> Result:
    """Measure the live rate of the backlog's messages, then the rate at which a late receiver fetches them."""
    _, _, late_host = lab.hosts
    with _streaming(lab, plan, pins, limited=False) as (publisher, live):
        lively = _send(publisher, live, plan.backlog, 0.0, plan.backlog)
        late_spec = _spec(plan, late_host, pins.subscriber, limited=True)
        with running(late_host, _ENDS, late_spec.as_arguments("subscribe")) as late:
            _answer(late)
            late.order(until=plan.backlog)
            drained = _answer(late)
            late.order()
        live.order()
        publisher.order()
    live_rate = lively["count"] / lively["seconds"]
    found = _result("drained", plan, drained)
    found["detail"] |= {"live_rate": live_rate}
    found["ratios"] = {"live": rate(found) / live_rate}
    return found


def _beside(lab: Lab, plan: LateJoinPlan, pins: Pins, live_rate: float) -> Result:
    """Measure a paced live stream, alone and while a late receiver fetches the backlog."""
    _, _, late_host = lab.hosts
    paced = plan.live_fraction * live_rate
    count = round(paced * plan.seconds)
    with _streaming(lab, plan, pins, limited=True) as (publisher, live):
        _send(publisher, live, plan.backlog, 0.0, plan.backlog)
        alone = _send(publisher, live, count, paced, plan.backlog + count)
        late_spec = _spec(plan, late_host, None, limited=True)
        late_spec = replace(
            late_spec, config=f"{late_spec.config}receiver retransmit_request_maximum {plan.backlog}\n"
        )
        with running(late_host, _ENDS, late_spec.as_arguments("subscribe")) as late:
            _answer(late)
            live.order(until=plan.backlog + 2 * count)
            publisher.order(count=count, rate=paced)
            late.order(until=plan.backlog)
            joined = _answer(late)
            late.order()  # the late receiver leaves, so that flow control does not wait for it
        _answer(publisher)
        together = _answer(live)
        live.order()
        publisher.order()
    found = _result("live", plan, together)
    before = alone["count"] / alone["seconds"]
    found["ratios"] = {"alone": rate(found) / before}
    found["detail"] |= {"alone": before, "joined": joined["count"] / joined["seconds"]}
    return found


def _result(what: str, plan: LateJoinPlan, answered: dict[str, Any]) -> Result:
    stats = answered["stats"]
    return result(
        what="umstack",
        link="socket",
        mode=what,
        size=plan.size,
        messages_per_second=answered["count"] / answered["seconds"],
        lost=answered["lost"],
        unrecoverable=stats["unrecoverable_loss_events"] + stats["burst_loss_events"],
        detail={"backlog": plan.backlog, "late_join_messages": stats["late_join_messages"]},
    )


def late_join_table(results: Sequence[Result]) -> Table:
    """Return a table: drain rate of a backlog against the live rate, and a live stream with and without a late
    join."""
    table = empty_table(("what", "size"), ("backlog", "messages/s", "x the live rate", "x alone", "lost"))
    for one in results:
        table.add_row(
            {"drained": "late join, drained", "live": "live stream beside it"}[one["mode"]],
            str(one["size"]),
            count_text(one["detail"]["backlog"]),
            rate_text(one["messages_per_second"]),
            ratio_text(one, "live") if one["mode"] == "drained" else "",
            ratio_text(one, "alone") if one["mode"] == "live" else "",
            count_text(one["lost"]),
        )
    return table


@click.command(epilog="Example: python -m tests.bench.measure_late_join --size 64")
@size_option(65000)
@click.option(
    "--backlog",
    type=click.IntRange(min=1000),
    help="Messages retained; otherwise as many as are 100 MB, two million at most.",
)
@common_options(2.0)
def command(
    size: int,
    backlog: int | None,
    seconds: float,
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    as_json: bool,
) -> None:
    """Measure how fast a late joiner fetches the retained messages, and the cost for a live stream."""
    config = options_text("min", "real", options)
    count = backlog or min(2_000_000, 100_000_000 // size)
    plan = LateJoinPlan(size, count, config, seconds=seconds, rounds=rounds, is_pinned=is_pinned)
    with progress_shown("late join") as progress:
        results = measure(plan, progress)
    report_results(results, describe(config, is_pinned, rounds=rounds), as_json, late_join_table)


if __name__ == "__main__":
    command()
