"""Flow control: a publisher faster than its subscribers loses no messages and settles at the rate of the slowest."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from umstack.bench.flow_ends import FlowSpec
from umstack.bench.result import Result, merged, rate, result, settled_ratio
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import End, Pins, Progress, carry_out
from umstack.lab import Lab

_FLOW_ENDS = "umstack.bench.flow_ends"
_PUBLISHER_EXTRA_SECONDS = 1.5
_PUBLISHER_STRETCH = 1.5
"""The publisher runs longer than the measurement by these seconds and this factor, so that it stops last."""


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """One slow subscriber and, with more receivers, fast ones."""

    stream: StreamSpec
    cost_us: float = 5.0
    rounds: int = 3
    is_pinned: bool = True


def measure(plan: FlowPlan, progress: Progress) -> list[Result]:
    """Measure the requested number of rounds."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    found: list[Result] = []
    with Lab(hosts=1 + plan.stream.receivers, segmentation="real") as lab:
        for number in range(1, plan.rounds + 1):
            progress(
                f"round {number} of {plan.rounds}: {plan.cost_us} us per message at the slowest subscriber"
            )
            found.append(_measure_once(lab, plan, pins))
    best = merged(found, rate)
    best["ratios"] = {"own_maximum": settled_ratio(found)}
    return [best]


def _measure_once(lab: Lab, plan: FlowPlan, pins: Pins) -> Result:
    spec = plan.stream
    shared = {item.name: getattr(spec, item.name) for item in fields(spec)}
    slow = FlowSpec(**shared, cost_us=plan.cost_us)
    stretched = StreamSpec(
        **{**shared, "seconds": spec.seconds * _PUBLISHER_STRETCH + _PUBLISHER_EXTRA_SECONDS}
    )
    slow_host, *other_hosts = lab.hosts[1 : spec.receivers + 1]
    # The others share the mostly idle CPU of the publisher; the slow one has a CPU to itself.
    others = [End(host, stretched, cpu=pins.publisher) for host in other_hosts]
    ends = [End(slow_host, slow, _FLOW_ENDS, pins.subscriber), *others]
    sent, received = carry_out(lab, stretched, pins.publisher, ends)
    return _flow_result(plan, sent, received)


def _flow_result(plan: FlowPlan, sent: dict[str, Any], received: list[dict[str, Any]]) -> Result:
    slow = received[0]
    topics = [topic for end in received for topic in end["stats"]["receivers"]]
    sources = sent["stats"]["source_transports"]
    return result(
        what="umstack",
        link=slow["stats"]["link"],
        mode=slow["stats"]["link_mode"],
        size=plan.stream.size,
        api=plan.stream.api,
        messages_per_second=slow["settled"],
        lost=sum(max(end["lost"], sent["sent"] - end["received"] + end["duplicates"]) for end in received),
        out_of_order=sum(end["out_of_order"] for end in received),
        duplicates=sum(end["duplicates"] for end in received),
        retransmissions=sum(one["rxs_sent"] for one in sources),
        unrecoverable=sum(one["unrecoverable_loss_events"] + one["burst_loss_events"] for one in topics),
        cpu_seconds={"publisher": sent["cpu_seconds"], "subscriber": slow["cpu_seconds"]},
        wait="block",
        loop="python",
        detail={
            "own_maximum": slow["own_maximum"],
            "cost_us": plan.cost_us,
            "receivers": plan.stream.receivers,
            "queue_messages": slow["queue_messages"],
            "sender_stops": sum(one["snd_bpe"] for one in sources),
            "sends_held_back": sum(one["back_pressured"] for one in sources),
        },
    )
