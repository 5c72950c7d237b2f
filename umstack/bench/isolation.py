"""Isolation: the rate and delay of topics beside one that is never read (docs/slow-readers.md)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from umstack.bench.isolation_ends import IsolationSpec
from umstack.bench.result import Result, merged, rate, ratio, result
from umstack.bench.stream_ends import StreamSpec, topic_names
from umstack.bench.throughput import End, Pins, Progress, carry_out
from umstack.lab import Lab

_ISOLATION_ENDS = "umstack.bench.isolation_ends"
_PUBLISHER_EXTRA_SECONDS = 2.0
_PUBLISHER_STRETCH = 1.5
"""The publisher runs longer than the measurement by these seconds and this factor, so that it stops last."""

ISOLATION_OPTIONS = """
context transport_lbtrm_multicast_address_low 239.255.7.10
context transport_lbtrm_multicast_address_high 239.255.7.11
source transport_lbtrm_multicast_address 0.0.0.0
source send_timestamps 1
receiver receiver_full_queue_hold_interval 500
receiver use_otr 0
"""
"""Options: the topics are spread over two transport sessions, and a receiver that is not read is cut loose soon."""


@dataclass(frozen=True, slots=True)
class IsolationPlan:
    """The stream, with at least two topics."""

    stream: StreamSpec
    rounds: int = 3
    is_pinned: bool = True


def measure(plan: IsolationPlan, progress: Progress) -> list[Result]:
    """Measure in turns: everything is read, and the first topic is never read."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    read: list[Result] = []
    stopped: list[Result] = []
    with Lab(hosts=2, segmentation="real") as lab:
        for number in range(1, plan.rounds + 1):
            for is_stopped, found in ((False, read), (True, stopped)):
                progress(
                    f"round {number} of {plan.rounds}: one reader of {plan.stream.topics}, {is_stopped=}"
                )
                found.append(_measure_once(lab, plan, pins, is_stopped))
    best = [merged(read, rate), merged(stopped, rate)]
    best[1]["ratios"] = {"all_read": ratio(stopped, read, rate)}
    return best


def _measure_once(lab: Lab, plan: IsolationPlan, pins: Pins, is_stopped: bool) -> Result:
    shared = {item.name: getattr(plan.stream, item.name) for item in fields(plan.stream)}
    spec = IsolationSpec(**shared, is_stopped=is_stopped)
    seconds = plan.stream.seconds * _PUBLISHER_STRETCH + _PUBLISHER_EXTRA_SECONDS
    publisher = StreamSpec(**{**shared, "seconds": seconds})
    end = End(lab.hosts[1], spec, _ISOLATION_ENDS, pins.subscriber)
    sent, (received,) = carry_out(lab, publisher, pins.publisher, [end])
    return _isolation_result(spec, sent, received)


def _isolation_result(spec: IsolationSpec, sent: dict[str, Any], received: dict[str, Any]) -> Result:
    first = topic_names(1)[0]
    healthy = [one for one in received["stats"]["receivers"] if one["topic"] != first]
    return result(
        what="umstack",
        link=received["stats"]["link"],
        mode=received["stats"]["link_mode"],
        size=spec.size,
        api=spec.api,
        messages_per_second=received["rate"],
        lost=received["lost"],
        out_of_order=received["out_of_order"],
        duplicates=received["duplicates"],
        retransmissions=sum(one["rxs_sent"] for one in sent["stats"]["source_transports"]),
        unrecoverable=sum(one["unrecoverable_loss_events"] + one["burst_loss_events"] for one in healthy),
        cpu_seconds={"publisher": sent["cpu_seconds"], "subscriber": received["cpu_seconds"]},
        wait="block",
        loop="python",
        detail={
            "topics": spec.topics,
            "sessions": len(sent["stats"]["source_transports"]),
            "first_topic": "never read" if spec.is_stopped else "read",
            "cut_loose": received["cut_loose"],
            "delays_us": received["delays_us"],
        },
    )
