"""The two ends of the late join measurement: a publisher that retains messages, and subscribers that count them.

`python -m tests.bench.late_join_ends publish|subscribe SPEC`; SPEC is a `LateJoinSpec` in JSON.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

import umstack
from umstack.bench.children import say
from umstack.bench.endpoint import EndSpec, await_receivers, await_turn, run
from umstack.bench.paced_ends import NumberedMessages

TOPIC = "bench/late-join"
_TICK_SECONDS = 0.002
_POLL_ROWS = 65536
_POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class LateJoinSpec(EndSpec):
    """Arguments of a child process."""

    size: int
    awaits_receiver: bool = False


def _send(source: umstack.Source, messages: NumberedMessages, first: int, count: int, rate: float) -> int:
    """Publish `count` messages at `rate`, or at full speed if it is 0; return the next number."""
    start, number = time.monotonic(), first
    while number < first + count:
        due = (
            first + count if not rate else min(first + count, first + int((time.monotonic() - start) * rate))
        )
        while number < due:
            number += messages.send(source, number, due - number)
        if number < first + count:
            time.sleep(_TICK_SECONDS)
    source.flush()
    return number


def publish(spec: LateJoinSpec) -> None:
    """Publish as each order `{"count", "rate"}` requests, until an order has no count."""
    with spec.open_context() as context, context.source(TOPIC) as source:
        if spec.awaits_receiver:
            await_receivers(source, 1)
        messages, number = NumberedMessages(spec.size), 0
        say(ready=True)
        while order := await_turn(context):
            start = time.monotonic()
            number = _send(source, messages, number, order["count"], order["rate"])
            say(sent=number, seconds=time.monotonic() - start, stats=source.stats())


def _losses(receiver: umstack.Receiver) -> int:
    stats = receiver.stats()
    return int(stats["unrecoverable_loss_events"] or 0) + int(stats["burst_loss_events"] or 0)


def subscribe(spec: LateJoinSpec) -> None:
    """Receive messages. Each order `{"until"}` is answered once that many have arrived, with the arrival times of the
    first and last message since the previous order."""
    with spec.open_context() as context:
        receiver = context.receiver(TOPIC)
        say(ready=True)
        received, lost = 0, 0
        while order := await_turn(context):
            first_at, before = 0.0, received
            while received < order["until"]:
                with receiver.poll(_POLL_ROWS, _POLL_SECONDS) as batch:
                    first_at = first_at or (time.monotonic() if len(batch) else 0.0)
                    received += len(batch) - batch.event_count
                if not len(batch) and (lost := _losses(receiver)):
                    break
            seconds = time.monotonic() - first_at
            say(
                received=received, count=received - before, seconds=seconds, lost=lost, stats=receiver.stats()
            )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], LateJoinSpec, {"publish": publish, "subscribe": subscribe}))
