"""The subscriber of the isolation measurement: it reads all topics but the first, which it reads or never reads.

`python -m umstack.bench.isolation_ends subscribe SPEC`, the spec being an `IsolationSpec` in JSON. The publisher is
that of `stream_ends`.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

import umstack
from umstack.bench.children import say
from umstack.bench.endpoint import await_sources, run
from umstack.bench.stream_check import TopicsCheck
from umstack.bench.stream_ends import SILENCE_SECONDS, StreamSpec, topic_names

_SETTLING_SHARE = 0.25
_DELAYS_APART = 16
"""One of so many messages counts for the delays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSpec(StreamSpec):
    """Arguments of the subscriber."""

    is_stopped: bool = False
    """True: the receiver of the first topic is never read, and the measurement begins once it is cut loose."""


@dataclass(slots=True)
class _Reader:
    """Reads the healthy topics, and the first one unless it is stopped."""

    spec: IsolationSpec
    healthy: umstack.EventQueue
    first: umstack.Receiver
    check: TopicsCheck
    delays: list[NDArray[np.int64]] = field(default_factory=list)

    def take(self) -> bool:
        """Read a batch of the healthy topics. Return False after the end of the stream, or a long silence."""
        batch = self.healthy.poll(self.spec.poll_messages, SILENCE_SECONDS)
        if not batch:
            return False
        self.check.take_batch(batch)
        sent = np.frombuffer(batch.sent_ns, np.int64)[::_DELAYS_APART]
        self.delays.append(time.time_ns() - sent[sent != 0])
        if not self.spec.is_stopped:
            self.first.poll(self.spec.poll_messages)
        return not self.check.is_ended

    def take_for(self, seconds: float) -> float:
        """Read for this time, or until the end of the stream. Return the time in seconds."""
        start = time.monotonic()
        while time.monotonic() < start + seconds and self.take():
            pass
        return time.monotonic() - start

    def settle(self) -> None:
        """Read until the measurement may begin."""
        while self.spec.is_stopped and not self.first.stats()["cut_loose"] and self.take():
            pass
        while not any(map(len, self.delays)) and self.take():
            pass
        self.take_for(self.spec.seconds * _SETTLING_SHARE)
        self.delays.clear()


def subscribe(spec: IsolationSpec) -> None:
    """Read the healthy topics, and report their rate and delay after everything has settled."""
    topics = topic_names(spec.topics)
    with spec.open_context() as context:
        first, healthy = context.receiver(topics[0]), context.event_queue()
        receivers = [context.receiver(topic, queue=healthy) for topic in topics[1:]]
        reader = _Reader(spec, healthy, first, TopicsCheck(topics[1:], spec.size))
        await_sources(context, [first, *receivers])
        say(ready=True)
        reader.settle()
        received, cpu_seconds = reader.check.received, time.process_time()
        seconds = reader.take_for(spec.seconds)
        cpu_seconds = time.process_time() - cpu_seconds
        received, delays = reader.check.received - received, np.concatenate(reader.delays)
        while reader.take():
            pass
        reader.check.settle()
        checks = reader.check.checks
        say(
            rate=received / seconds,
            delays_us={f"p{part}": float(np.percentile(delays, part)) / 1e3 for part in (50, 99)},
            cpu_seconds=cpu_seconds,
            received=sum(check.received for check in checks),
            lost=sum(check.lost for check in checks),
            out_of_order=sum(check.out_of_order for check in checks),
            duplicates=sum(check.duplicates for check in checks),
            cut_loose=first.stats()["cut_loose"],
            stats=context.stats(),
        )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], IsolationSpec, {"subscribe": subscribe}))
