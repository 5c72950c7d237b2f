"""Scale: measures the cost of a message with many topics on one session and many subscribers of one topic."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from umstack.bench import raw
from umstack.bench.children import CHILD_SLACK_SECONDS, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.result import Result, merged, rate, ratio, result
from umstack.bench.stream_ends import StreamSpec
from umstack.bench.throughput import Pins, Progress, measure_stream
from umstack.lab import Lab

MESSAGES_AT_ONCE = 256
"""Messages per topic and send, independent of the number of topics."""

FLAT = 1.25
"""A cost is called flat if it grows by no more than this factor."""

_SPACE_FOR_BURST_OPTIONS = """
context transport_lbtrm_receiver_socket_buffer 67108864
receiver receiver_queue_block_count 128
receiver flow_control_receiver_window 33554432
"""
_BURST_BYTES = 12 << 20
"""A publisher to many subscribers uses no flow control. On a machine with fewer processors than subscribers, its cost
would otherwise include waiting for them."""

_RAW_DATAGRAM_BYTES = 1400
_BURST_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """Numbers of topics and subscribers to measure."""

    stream: StreamSpec
    topics: Sequence[int] = (1, 10, 100, 1000)
    receivers: Sequence[int] = (1, 2, 4, 8)
    rounds: int = 3
    is_pinned: bool = True


def publisher_ns(found: Result) -> float:
    """CPU time per message at the publisher."""
    return float(found["detail"]["publisher_cpu_seconds_until_sent"] / found["detail"]["sent"] * 1e9)


def publisher_datagram_ns(found: Result) -> float:
    """CPU time per datagram at the publisher."""
    return publisher_ns(found) * float(found["messages_per_second"] / found["datagrams_per_second"])


def subscriber_ns(found: Result) -> float:
    """CPU time per message at a subscriber."""
    return float(found["cpu_seconds"]["subscriber"] / found["detail"]["sent"] * 1e9)


def measure(plan: ScalePlan, progress: Progress) -> list[Result]:
    """Measure every number of topics and of subscribers in turn, for the requested number of rounds."""
    pins = Pins.apart() if plan.is_pinned else Pins()
    with Lab(hosts=1 + max(plan.receivers), segmentation="real") as lab:
        return [*_by_topics(lab, plan, pins, progress), *_by_receivers(lab, plan, pins, progress)]


def _by_topics(lab: Lab, plan: ScalePlan, pins: Pins, progress: Progress) -> list[Result]:
    base = dataclasses.replace(plan.stream, batch_messages=MESSAGES_AT_ONCE)
    found: dict[int, list[Result]] = {count: [] for count in plan.topics}
    for number in range(1, plan.rounds + 1):
        for count, results in found.items():
            progress(f"round {number} of {plan.rounds}: {count} topics")
            results.append(measure_stream(lab, dataclasses.replace(base, topics=count), pins))
    results = [merged(rounds, rate) for rounds in found.values()]
    costs: dict[str, Callable[[Result], float]] = {"publisher": publisher_ns, "subscriber": subscriber_ns}
    for one, rounds in zip(results, found.values(), strict=True):
        one["ratios"] = {
            f"{end}_cost_to_{plan.topics[0]}_topic": ratio(rounds, found[plan.topics[0]], cost)
            for end, cost in costs.items()
        }
    return results


def _by_receivers(lab: Lab, plan: ScalePlan, pins: Pins, progress: Progress) -> list[Result]:
    base = dataclasses.replace(
        plan.stream,
        config=f"{_SPACE_FOR_BURST_OPTIONS}{plan.stream.config}",
        seconds=_BURST_SECONDS,
        max_messages=_BURST_BYTES // plan.stream.size,
    )
    found: dict[int, list[Result]] = {count: [] for count in plan.receivers}
    raws: dict[int, list[Result]] = {count: [] for count in plan.receivers}
    for number in range(1, plan.rounds + 1):
        for count in plan.receivers:
            progress(f"round {number} of {plan.rounds}: {count} subscribers")
            found[count].append(measure_stream(lab, dataclasses.replace(base, receivers=count), pins))
            raws[count].append(_raw_burst(lab, count, pins))
    results = []
    for count in plan.receivers:
        # Both include the kernel's work per subscriber: a lab's switch runs on the sender's CPU time.
        own = merged(found[count], publisher_ns)
        own["ratios"] = {"raw-udp-gso_sender_cost": ratio(found[count], raws[count], publisher_datagram_ns)}
        results += [own, merged(raws[count], publisher_ns)]
    return results


def _raw_burst(lab: Lab, count: int, pins: Pins) -> Result:
    """Measure the same amount of data from a raw sender to the same number of raw receivers."""
    plan = raw.ThroughputPlan(
        "raw-udp-gso",
        _RAW_DATAGRAM_BYTES,
        seconds=_BURST_SECONDS,
        max_messages=_BURST_BYTES // _RAW_DATAGRAM_BYTES,
        sender_cpu=raw.ANY_CPU if pins.publisher is None else pins.publisher,
        receiver_cpu=raw.ANY_CPU if pins.subscriber is None else pins.subscriber,
    )
    module = raw.__name__
    with ExitStack() as stack:
        receivers = []
        for host in lab.hosts[1 : count + 1]:
            arguments = raw.to_arguments(raw.receive_spec(plan, host.address))
            receivers.append(stack.enter_context(running(host, module, ["receive", *arguments])))
        for receiver in receivers:
            receiver.receive(READY_SECONDS)
        lab.await_join(plan.group, *range(1, count + 1))
        sender = lab.hosts[0]
        arguments = raw.to_arguments(raw.send_spec(plan, sender.address))
        sent = stack.enter_context(running(sender, module, ["send", *arguments])).receive(CHILD_SLACK_SECONDS)
        received = [receiver.receive(CHILD_SLACK_SECONDS) for receiver in receivers]
    seconds = sent["elapsed_ns"] / 1e9
    return result(
        what="raw-udp-gso",
        link="socket",
        mode="socket",
        size=_RAW_DATAGRAM_BYTES,
        messages_per_second=sent["message_count"] / seconds,
        datagrams_per_second=sent["datagram_count"] / seconds,
        lost=sum(sent["message_count"] - one["message_count"] + one["duplicate_count"] for one in received),
        out_of_order=sum(one["out_of_order_count"] for one in received),
        duplicates=sum(one["duplicate_count"] for one in received),
        cpu_seconds={"publisher": sent["cpu_ns"] / 1e9, "subscriber": received[0]["cpu_ns"] / 1e9},
        wait="block",
        detail={
            "sent": sent["message_count"],
            "receivers": count,
            "publisher_cpu_seconds_until_sent": sent["cpu_ns"] / 1e9,
        },
    )
