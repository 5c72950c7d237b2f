"""Scale: what a message costs as topics on one session, and subscribers of one topic, become many."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from umstack.bench.result import Result, merged, rate
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Pins, Progress, measure_stream
from umstack.lab import Lab

MESSAGES_PER_SEND = 256
"""Messages a topic gets in one send; the same however many topics there are."""

_SMALL_QUEUE_OPTIONS = """
receiver receiver_queue_block_length 65536
receiver flow_control_receiver_window 524288
"""
"""A thousand receivers with the queue of one would take gigabytes."""


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """What `umstack bench scale` measures."""

    stream: StreamSpec
    topics: Sequence[int] = (1, 10, 100, 1000)
    receivers: Sequence[int] = (1, 2, 4, 8)
    rounds: int = 3
    is_pinned: bool = True


def publisher_ns(found: Result) -> float:
    """Processor time a message costs its publisher."""
    return float(found["cpu_seconds"]["publisher"] / found["detail"]["sent"] * 1e9)


def subscriber_ns(found: Result) -> float:
    """Processor time a message costs a subscriber."""
    return float(found["cpu_seconds"]["subscriber"] / found["detail"]["sent"] * 1e9)


def measure(plan: ScalePlan, progress: Progress) -> list[Result]:
    """Every number of topics and of subscribers in turn, as many rounds as asked for."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    config = f"{_SMALL_QUEUE_OPTIONS}{plan.stream.config}"
    base = dataclasses.replace(plan.stream, batch_messages=MESSAGES_PER_SEND, config=config)
    by_topics = [dataclasses.replace(base, topics=count) for count in plan.topics]
    by_receivers = [dataclasses.replace(base, receivers=count) for count in plan.receivers]
    specs = [*by_topics, *by_receivers]
    found: list[list[Result]] = [[] for _ in specs]
    with Lab(hosts=1 + max(plan.receivers), segmentation="real") as lab:
        for number in range(1, plan.rounds + 1):
            for spec, results in zip(specs, found, strict=True):
                progress(
                    f"round {number} of {plan.rounds}: {spec.topics} topics, {spec.receivers} subscribers"
                )
                results.append(measure_stream(lab, spec, pins))
    merged_results = [merged(results, rate) for results in found]
    _compare(merged_results[: len(by_topics)], {"publisher": publisher_ns, "subscriber": subscriber_ns})
    _compare(merged_results[len(by_topics) :], {"publisher": publisher_ns})
    return merged_results


def _compare(results: Sequence[Result], costs: dict[str, Callable[[Result], float]]) -> None:
    """Note how each one's cost a message stands to that of the first."""
    for one in results:
        one["ratios"] = {f"{end}_cost": cost(one) / cost(results[0]) for end, cost in costs.items()}
