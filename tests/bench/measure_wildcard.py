"""Measure the cost per message of a wildcard receiver of many topics, next to a plain receiver, in turns.

Both are in one process, over loopback, with the protocol on this thread: only the subscriber's work is timed.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import click
from rich.console import Console

import umstack
from umstack.bench import environment
from umstack.bench.result import Result, result
from umstack.bench.throughput import Progress
from umstack.cli.stack_options import JSON_OPTION

_SECONDS = 120.0
_BATCH = 64
_PREFIX = "bench/wildcard/"
_WINDOW_BYTES = 8 << 20
_QUIET_SECONDS = 1.2
# Topic resolution ends soon, so that its cost is not measured.
_SOURCE: dict[str, Any] = {
    "transport_lbtrm_transmission_window_size": _WINDOW_BYTES,
    "resolver_advertisement_minimum_initial_duration": 1,
    "resolver_advertisement_minimum_sustain_duration": 1,
}
_RECEIVER: dict[str, Any] = {
    "resolver_query_minimum_initial_duration": 1,
    "resolver_query_minimum_sustain_duration": 1,
}
_OPTIONS: dict[str, Any] = {
    "transport_lbtrm_multicast_address_low": "239.192.15.2",
    "transport_lbtrm_multicast_address_high": "239.192.15.2",
    "transport_lbtrm_datagram_max_size": 1472,
    "resolver_multicast_address": "239.192.15.3",
    "resolver_multicast_ttl": 0,
    "resolver_initial_advertisements_per_second": 0,
    "resolver_initial_advertisement_bps": 0,
    "resolver_sustain_advertisement_bps": 0,
    "resolver_initial_queries_per_second": 0,
    "resolver_initial_query_bps": 0,
    "resolver_sustain_query_bps": 0,
    "transport_lbtrm_data_rate_limit": 0,
}


@dataclass(frozen=True, slots=True)
class WildcardPlan:
    """Number of topics and messages of a measurement."""

    topics: int = 10_000
    messages: int = 200_000
    size: int = 64
    rounds: int = 9


class _Side:
    """A subscriber: its context and its queue."""

    def __init__(self, context: umstack.Context, queue: umstack.EventQueue) -> None:
        self.context, self.queue = context, queue

    def take(self, count: int) -> int:
        """Receive and read `count` messages; return the CPU time of this thread in nanoseconds."""
        start_ns = time.thread_time_ns()
        while count > 0:
            self.context.process_events(0)
            with self.queue.poll(_BATCH, 0) as batch:
                count -= len(batch) - batch.event_count
        return time.thread_time_ns() - start_ns


def _cost_ns(source: umstack.Source, measured: _Side, other: _Side, plan: WildcardPlan) -> float:
    """Return the nanoseconds per message on one side. Both sides receive every burst; a burst fits the sockets."""
    burst = [bytes(plan.size)] * _BATCH
    spent_ns, bursts = 0, max(1, plan.messages // _BATCH)
    for _ in range(bursts):
        source.send_many(burst, flush=True)
        spent_ns += measured.take(_BATCH)
        other.take(_BATCH)
    return spent_ns / (bursts * _BATCH)


def _until(done: Callable[[], bool], contexts: Sequence[umstack.Context], what: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise umstack.ResolutionError(f"{what}: not within {_SECONDS:.0f} s")
        for context in contexts:
            context.process_events(0)


def _run(contexts: Sequence[umstack.Context], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for context in contexts:
            context.process_events(0)


def _run_until_quiet(contexts: Sequence[umstack.Context]) -> None:
    """Run the protocol until no context has sent resolution datagrams for a while."""
    sent, end = -1, time.monotonic() + _SECONDS
    while sent != (now := sum(int(one.stats()["context"]["tr_dgrams_sent"]) for one in contexts)):
        if time.monotonic() > end:
            raise umstack.ResolutionError(f"topic resolution did not end within {_SECONDS:.0f} s")
        sent = now
        _run(contexts, _QUIET_SECONDS)


def measure(plan: WildcardPlan, progress: Progress) -> Result:
    """Measure in turns: messages of one topic to the plain receiver, and messages of all topics to the wildcard
    receiver."""
    with ExitStack() as stack:
        publishing, alone, matching = (
            stack.enter_context(umstack.Context("lo", link="socket", mode="sequential", **_OPTIONS))
            for _ in range(3)
        )
        progress(f"{plan.topics:,} topics")
        wildcard = matching.wildcard_receiver(prefix=_PREFIX, resolver_query_minimum_duration=1, **_RECEIVER)
        sources = [publishing.source(f"{_PREFIX}{number}", **_SOURCE) for number in range(plan.topics)]
        contexts = [publishing, alone, matching]
        _until(lambda: len(wildcard.topics()) == plan.topics, contexts, "matching every topic")
        queue = alone.event_queue()
        plain = alone.receiver(sources[0].topic, queue=queue, **_RECEIVER)
        _until(lambda: plain.stats()["delivery_controllers"] == 1, contexts, "the plain receiver's source")
        _run_until_quiet(contexts)
        sides = {"plain": _Side(alone, queue), "wildcard": _Side(matching, wildcard)}
        found: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(plan.rounds):
            for name, side in sides.items():
                progress(f"round {number + 1} of {plan.rounds}: {name}")
                (other,) = (one for key, one in sides.items() if key != name)
                found[name].append(_cost_ns(sources[0], side, other, plan))
    ratios = [one / two for one, two in zip(found["wildcard"], found["plain"], strict=True)]
    return result(
        what="wildcard",
        link="socket",
        size=plan.size,
        ratios={"plain": statistics.median(ratios)},
        detail={
            "topics": plan.topics,
            "wildcard_ns": statistics.median(found["wildcard"]),
            "plain_ns": statistics.median(found["plain"]),
            "rounds": ratios,
        },
    )


_PLAN = WildcardPlan()


@click.command(epilog="Example: python -m tests.bench.measure --topics 10000")
@click.option("--topics", type=click.IntRange(1), default=_PLAN.topics, show_default=True, help="They match.")
@click.option(
    "--messages", type=click.IntRange(64), default=_PLAN.messages, show_default=True, help="A round."
)
@click.option("--rounds", type=click.IntRange(1), default=_PLAN.rounds, show_default=True, help="In turns.")
@JSON_OPTION
def command(as_json: bool, **asked: int) -> None:
    """Measure the cost per message of a wildcard receiver, next to a plain receiver. Needs no root."""
    console = Console(stderr=True)
    found = measure(replace(_PLAN, **asked), lambda text: console.print(f"wildcard: {text}", highlight=False))
    detail = found["detail"]
    if as_json:
        described = environment.describe(mtu=65536, segmentation="auto", pinned=False, options=[])
        click.echo(json.dumps({"environment": described, "results": [found]}))
    else:
        click.echo(
            f"{detail['topics']:,} topics: {detail['wildcard_ns']:.0f} ns per message, {detail['plain_ns']:.0f} ns "
            f"in a plain receiver: {found['ratios']['plain']:.2f} x, median of {len(detail['rounds'])} rounds in turns"
        )


if __name__ == "__main__":
    command()
