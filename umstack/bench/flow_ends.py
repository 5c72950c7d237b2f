"""The subscriber of the flow control measurement: an application that takes a fixed time for every message.

`python -m umstack.bench.flow_ends subscribe SPEC`, the spec being a `FlowSpec` in JSON. The publisher is that of
`stream_ends`.
"""

from __future__ import annotations

import select
import sys
import time
from dataclasses import dataclass

import umstack
from umstack.bench.children import say
from umstack.bench.endpoint import await_sources, run
from umstack.bench.stream_check import StreamCheck
from umstack.bench.stream_ends import SILENCE_SECONDS, StreamSpec, topic_names

_ROWS = 256
_LOOK_SECONDS = 0.02
_LOOKS_ALIKE = 5
_QUEUE_SHARE = 0.8
_SETTLING_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSpec(StreamSpec):
    """Arguments of the subscriber."""

    cost_us: float = 0.0
    """Microseconds of CPU work per message."""


def _work(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _take(spec: FlowSpec, receiver: umstack.Receiver, check: StreamCheck) -> int:
    """Receive, check and process messages. Return their number, or 0 after a long idle time."""
    batch = receiver.poll(_ROWS, SILENCE_SECONDS)
    count = len(batch)
    if count:
        check.take_batch(batch)
    _work(count * spec.cost_us / 1e6)
    return count


def _await_full_queue(context: umstack.Context, receiver: umstack.Receiver) -> int:
    """Wait until the queue stops filling, and return the number of messages in it."""
    held, alike = 0, 0
    while alike < _LOOKS_ALIKE:
        if context.is_sequential:
            context.process_events(_LOOK_SECONDS)
        else:
            select.select([], [], [], _LOOK_SECONDS)
        stats = receiver.stats()
        before, held = held, int(stats["queued_messages"] or 0)
        alike = alike + 1 if held == before and stats["messages_delivered"] else 0
    return held


def _own_maximum(spec: FlowSpec, receiver: umstack.Receiver, check: StreamCheck, held: int) -> float:
    """Return the rate at which this application empties a full queue. Nothing else limits that rate."""
    taken, start = 0, time.perf_counter()
    while taken < _QUEUE_SHARE * held:
        taken += _take(spec, receiver, check)
    return taken / (time.perf_counter() - start)


def _settled_rate(spec: FlowSpec, receiver: umstack.Receiver, check: StreamCheck) -> float:
    """Return the settled rate, measured for `seconds` of the spec."""
    begin = time.perf_counter() + spec.seconds * _SETTLING_SHARE
    while time.perf_counter() < begin and check.total is None:
        _take(spec, receiver, check)
    before, start = check.received, time.perf_counter()
    while time.perf_counter() < start + spec.seconds and check.total is None:
        _take(spec, receiver, check)
    return (check.received - before) / (time.perf_counter() - start)


def subscribe(spec: FlowSpec) -> None:
    """Let the queue fill, empty it, then take part in the stream."""
    with spec.open_context() as context:
        receiver = context.receiver(topic_names(1)[0])
        check = StreamCheck(spec.size)
        await_sources(context, [receiver])
        say(ready=True)
        held = _await_full_queue(context, receiver)
        cpu_seconds = time.process_time()
        maximum = _own_maximum(spec, receiver, check, held)
        settled = _settled_rate(spec, receiver, check)
        cpu_seconds = time.process_time() - cpu_seconds
        while check.total is None and _take(spec, receiver, check):
            pass
        say(
            received=check.received,
            own_maximum=maximum,
            queue_messages=held,
            settled=settled,
            cpu_seconds=cpu_seconds,
            lost=check.lost,
            out_of_order=check.out_of_order,
            duplicates=check.duplicates,
            stats=context.stats(),
        )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], FlowSpec, {"subscribe": subscribe}))
