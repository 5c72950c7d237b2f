"""A stream that Stores keep, in turns with the same stream without a Store: rates, stability and replay.

All processes run on this machine over loopback: a publisher, a subscriber, and each Store in a process of its own.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from umstack.bench.children import CHILD_SLACK_SECONDS, Child, ThisMachine, running
from umstack.bench.endpoint import READY_SECONDS
from umstack.bench.result import Result, merged, rate, ratio, result
from umstack.bench.store_ends import StoreSpec
from umstack.bench.throughput import Progress
from umstack.store.client import replay
from umstack.store.repository import Durability

WITHOUT = "no Store"
_CONFIG = "source flow_control min\n"
"""The publisher waits for its subscriber, and does not lose what it sends faster than that reads."""
_ENDS = "umstack.bench.store_ends"
_STORES = (0, 1, 3)


@dataclass(frozen=True, slots=True)
class StoreStreamPlan:
    """The measurements of a stream."""

    directory: Path
    size: int = 1024
    durability: Durability = Durability.DISK
    seconds: float = 2.0
    rounds: int = 3
    samples: int = 200


def measure(plan: StoreStreamPlan, progress: Progress) -> list[Result]:
    """Measure the stream without a Store, with one and with three, once a round, in turns."""
    found: dict[int, list[Result]] = {count: [] for count in _STORES}
    for number in range(1, plan.rounds + 1):
        for count in _STORES:
            progress(f"round {number} of {plan.rounds}: a stream, Stores: {count}")
            found[count].append(_measure_once(plan, count))
    results = []
    for count, rounds in found.items():
        one = merged(rounds, rate)
        if count:
            one["ratios"] = {WITHOUT: ratio(rounds, found[0], rate)}
        results.append(one)
    return results


def _measure_once(plan: StoreStreamPlan, count: int) -> Result:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=plan.directory))
        spec = StoreSpec(
            interface="127.0.0.1",
            config=_CONFIG,
            topic=f"bench.store.{secrets.token_hex(4)}",
            directory=folder,
            size=plan.size,
            seconds=plan.seconds,
            samples=plan.samples,
            durability=plan.durability.value,
        )

        def begin(role: str, of_child: StoreSpec) -> Child:
            return stack.enter_context(running(ThisMachine(), _ENDS, of_child.as_arguments(role)))

        stores = [begin("keep", replace(spec, directory=f"{folder}/{at}")) for at in range(count)]
        ports = [int(store.receive(READY_SECONDS)["port"]) for store in stores]
        subscriber = begin("subscribe", spec)
        subscriber.receive(READY_SECONDS)
        publisher = begin("publish", replace(spec, ports=tuple(ports)))
        publisher.receive(2 * READY_SECONDS)
        publisher.order(send=True)
        sent = publisher.receive(plan.seconds + 2 * CHILD_SLACK_SECONDS)
        subscriber.order(count=sent["sent"])
        received = subscriber.receive(2 * CHILD_SLACK_SECONDS)
        publisher.order(stability=True)
        stability = publisher.receive(4 * CHILD_SLACK_SECONDS)
        publisher.order(end=True)
        subscriber.order(end=True)
        detail = {**stability, "stores": count, "sent": sent["sent"], "unstable": sent["unstable"]}
        if ports:
            detail |= {
                "stable_per_second": (sent["sent"] - sent["unstable"]) / sent["seconds"],
                **_replay(spec.topic, ports[0]),
                "durability": plan.durability.value,
            }
        for store in stores:
            store.order(end=True)
    return result(
        what="umstack",
        size=plan.size,
        messages_per_second=received["received"] / (received["last"] - sent["started"]),
        lost=sent["sent"] - received["received"],
        detail=detail,
    )


def _replay(topic: str, port: int) -> dict[str, float]:
    """Return how many messages one reader gets from a Store, and how many per second."""
    started = time.monotonic()
    count = sum(1 for _ in replay(topic, ("127.0.0.1", port), 2))
    return {"replayed": count, "replayed_per_second": count / (time.monotonic() - started)}
