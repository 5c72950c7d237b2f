"""The two ends of a stream of messages: the child processes of a throughput measurement.

`python -m umstack.bench.stream_ends publish|subscribe SPEC`, the spec being a `StreamSpec` in JSON.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

import umstack
from umstack._sim_bench import ffi, lib
from umstack.bench.children import say
from umstack.bench.endpoint import READY_SECONDS, EndSpec, await_receivers, await_sources, await_turn, run
from umstack.bench.stream_check import COUNTER_BYTES, StreamCheck, TopicsCheck, end_message
from umstack.reader import POLL_ROWS

Api = Literal["batch", "message"]
Input = Literal["packed", "arrow", "list"]
Queue = Literal["shared", "own"]
Reads = Literal["counter", "payload"]

SILENCE_SECONDS = 10.0
"""A subscriber that has received nothing for this many seconds reports and ends."""

_SEND_SECONDS = 10.0
_BATCH_BYTES = 256 * 1024
_BATCH_MESSAGES = 4096
_MESSAGES_BETWEEN_CLOCKS = 256
_SLICE_SECONDS = 0.25
_stamp = lib.um_raw_order_stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec(EndSpec):
    """Arguments of both ends of a stream."""

    size: int
    api: Api = "batch"
    input: Input = "packed"
    seconds: float = 2.0
    max_messages: int = 0
    batch_messages: int = 0
    """Messages per send; 0 selects as many as make 256 KiB."""
    poll_messages: int = POLL_ROWS
    """Maximum number of messages that a subscriber reads in one call."""
    topics: int = 1
    queue: Queue = "shared"
    """True if the receivers of several topics share one event queue; otherwise each has a separate one."""
    receivers: int = 1
    reads: Reads = "counter"
    """Part of the batch that a subscriber reads: either the message's counter, as the raw receivers do, or all payloads
    end to end, which requires copying in-frame payloads."""

    @property
    def send_messages(self) -> int:
        """Return the number of messages per send."""
        return self.batch_messages or max(1, min(_BATCH_MESSAGES, _BATCH_BYTES // self.size))


class Memory:
    """Memory of this process after a quarter of a bounded stream, and at its end."""

    __slots__ = ("_at", "_early_bytes")

    def __init__(self, spec: StreamSpec) -> None:
        self._at = spec.max_messages // 4
        self._early_bytes: int | None = None

    def look(self, count: int) -> None:
        """Record the memory once this number of messages has reached a quarter of the stream."""
        if 0 < self._at <= count:
            self._at, self._early_bytes = 0, _resident_bytes()

    def found(self) -> dict[str, int | None]:
        """Return both figures. The first is absent if the stream has no set length."""
        return {"early": self._early_bytes, "end": _resident_bytes()}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def topic_names(count: int) -> list[str]:
    """Return the topics of a stream."""
    return [f"bench.{number}" for number in range(count)]


# Publishing


class PackedMessages:
    """Messages that lie end to end in one buffer, numbered by the function that the raw baselines use."""

    def __init__(self, spec: StreamSpec) -> None:
        self.size, self.count = spec.size, spec.send_messages
        self.data = bytearray(b"." * (self.count * self.size))
        self.messages = ffi.from_buffer("uint8_t[]", self.data)
        self.offsets = np.arange(self.count + 1, dtype=np.int32) * np.int32(self.size)

    def send(self, source: umstack.Source, first: int) -> int:
        """Publish the messages from this counter on."""
        _stamp(self.messages, self.size, self.count, first)
        return source.send_packed(self.data, self.offsets, timeout=_SEND_SECONDS)


class ArrowMessages(PackedMessages):
    """The same, sent as an Arrow binary array."""

    def __init__(self, spec: StreamSpec) -> None:
        import pyarrow as pa

        super().__init__(spec)
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        self.array = pa.Array.from_buffers(pa.binary(), spec.send_messages, buffers)

    def send(self, source: umstack.Source, first: int) -> int:
        """Publish the messages from this counter on."""
        _stamp(self.messages, self.size, self.count, first)
        return source.send_many(self.array, timeout=_SEND_SECONDS)


class ListedMessages:
    """A list of bytes objects, a new one each time."""

    def __init__(self, spec: StreamSpec) -> None:
        self.count = spec.send_messages
        self.filler = b"." * (spec.size - COUNTER_BYTES)

    def send(self, source: umstack.Source, first: int) -> int:
        """Publish the messages from this counter on."""
        filler = self.filler
        messages = [n.to_bytes(COUNTER_BYTES, "little") + filler for n in range(first, first + self.count)]
        return source.send_many(messages, timeout=_SEND_SECONDS)


class SingleMessages:
    """One send per message."""

    def __init__(self, spec: StreamSpec) -> None:
        self.count = _MESSAGES_BETWEEN_CLOCKS if spec.topics == 1 else spec.send_messages
        self.filler = b"." * (spec.size - COUNTER_BYTES)

    def send(self, source: umstack.Source, first: int) -> int:
        """Publish the messages from this counter on."""
        filler, send = self.filler, source.send
        for counter in range(first, first + self.count):
            send(counter.to_bytes(COUNTER_BYTES, "little") + filler)
        return self.count


_INPUTS: dict[Input, Callable[[StreamSpec], Any]] = {
    "packed": PackedMessages,
    "arrow": ArrowMessages,
    "list": ListedMessages,
}


def _send_all(spec: StreamSpec, sources: Sequence[umstack.Source], memory: Memory) -> list[int]:
    """Publish on the topics in turn until the time or the count is reached. Return the number per topic."""
    messages = SingleMessages(spec) if spec.api == "message" else _INPUTS[spec.input](spec)
    totals = [0] * len(sources)
    deadline = time.monotonic() + spec.seconds
    turn = sent = 0
    while time.monotonic() < deadline and not 0 < spec.max_messages <= sent:
        taken = messages.send(sources[turn], totals[turn])
        totals[turn] += taken
        sent += taken
        memory.look(sent)
        turn = (turn + 1) % len(sources)
    return totals


def publish(spec: StreamSpec) -> None:
    """Publish when the parent orders it, and stay until the parent orders the end."""
    with spec.open_context() as context:
        sources = [context.source(name) for name in topic_names(spec.topics)]
        say(ready=True, transports=sorted({source.transport for source in sources}))
        await_turn(context)
        await_receivers(sources[0], spec.receivers)
        memory = Memory(spec)
        cpu_seconds, start = time.process_time(), time.monotonic()
        totals = _send_all(spec, sources, memory)
        for source, total in zip(sources, totals, strict=True):
            source.send(end_message(total, spec.size), timeout=_SEND_SECONDS)
        sources[0].flush()
        sent_seconds, sent_cpu_seconds = time.monotonic() - start, time.process_time() - cpu_seconds
        drained = bool(sources[0].wait_drained(timeout=READY_SECONDS))
        say(
            sent=sum(totals),
            seconds=sent_seconds,
            drained=bool(drained),
            cpu_seconds=time.process_time() - cpu_seconds,
            sent_cpu_seconds=sent_cpu_seconds,
            memory_bytes=memory.found(),
        )
        await_turn(context)
        say(stats=context.stats())


# Subscribing


class Span:
    """Time, processor time and number of messages between the first and the last message."""

    __slots__ = ("_cpu_seconds", "_first_ns", "_last_ns", "batches", "first_count")

    def __init__(self) -> None:
        self._first_ns = self._last_ns = 0
        self._cpu_seconds = 0.0
        self.batches = 0
        self.first_count = 0
        """Messages that had arrived when the clock started and therefore do not count."""

    def begin(self, count: int) -> None:
        """Start the clock, because the first messages have arrived."""
        self._first_ns = self._last_ns = time.monotonic_ns()
        self._cpu_seconds = time.process_time()
        self.first_count = count

    def end(self) -> None:
        """Stop the clock, because the last message has arrived."""
        self._last_ns = time.monotonic_ns()
        self._cpu_seconds = time.process_time() - self._cpu_seconds

    @property
    def seconds(self) -> float:
        """Return the time from the first message to the last."""
        return (self._last_ns - self._first_ns) / 1e9

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time that this process used between the first and the last message."""
        return self._cpu_seconds


def _take_batches(
    reader: umstack.Receiver | umstack.EventQueue,
    spec: StreamSpec,
    check: TopicsCheck,
    span: Span,
    memory: Memory,
) -> None:
    """Read a batch at a time until the end of every topic or a long silence."""
    poll, take, rows, reads_all = reader.poll, check.take_batch, spec.poll_messages, spec.reads == "payload"
    while not check.is_ended:
        batch = poll(rows, SILENCE_SECONDS)
        if not batch:
            break
        if reads_all:
            _ = batch.payload
        taken = take(batch)
        if span.first_count:
            span.batches += 1
            memory.look(check.received)
        elif taken:
            span.begin(taken)
    span.end()
    check.settle()


def _take_messages(receiver: umstack.Receiver, check: StreamCheck, span: Span) -> None:
    """Read one topic message by message until its end."""
    messages = iter(receiver)
    first = next(messages)
    span.begin(1)
    if not check.take_each([first]):
        check.take_each(messages)
    span.end()


def _take_round(
    context: umstack.Context,
    receivers: Sequence[umstack.Receiver],
    rows: int,
    checks: Sequence[StreamCheck],
    span: Span,
) -> None:
    """Read many topics, a batch at a time from each in turn, until the end of all or a long silence."""
    left = list(zip(receivers, checks, strict=True))
    last = time.monotonic()
    while left and time.monotonic() - last < SILENCE_SECONDS:
        got = 0
        for receiver, check in left:
            batch = receiver.poll(rows, 0.0)
            if batch:
                span.batches += 1
                got += check.take_batch(batch) or len(batch)
        if got:
            if span.first_count == 0:
                span.begin(sum(check.received for check in checks))
            last = time.monotonic()
            left = [pair for pair in left if pair[1].total is None]
        else:
            _await_any(context, [receiver for receiver, _ in left])
    span.end()


def _await_any(context: umstack.Context, receivers: Sequence[umstack.Receiver]) -> None:
    """Wait briefly until one of the receivers has a message."""
    if context.is_sequential:
        context.process_events(_SLICE_SECONDS / 100)
    elif not any(receiver.arm() for receiver in receivers):
        poll = select.poll()
        for receiver in receivers:
            poll.register(receiver.fileno(), select.POLLIN)
        poll.poll(_SLICE_SECONDS * 1000)


def subscribe(spec: StreamSpec) -> None:
    """Receive a stream, check all of it and report."""
    with spec.open_context() as context:
        topics = topic_names(spec.topics)
        queue = context.event_queue() if spec.topics > 1 and spec.queue == "shared" else None
        receivers = [context.receiver(name, queue=queue) for name in topics]
        together = TopicsCheck(topics, spec.size)
        checks = together.checks
        await_sources(context, receivers)
        say(ready=True)
        span, memory = Span(), Memory(spec)
        if spec.topics > 1 and queue is None:
            _take_round(context, receivers, spec.poll_messages, checks, span)
        elif spec.topics == 1 and spec.api == "message":
            _take_messages(receivers[0], checks[0], span)
        else:
            _take_batches(queue or receivers[0], spec, together, span, memory)
        say(
            received=sum(check.received for check in checks),
            batches=span.batches,
            counted=sum(check.received for check in checks) - span.first_count,
            seconds=span.seconds,
            cpu_seconds=span.cpu_seconds,
            lost=sum(check.lost for check in checks),
            out_of_order=sum(check.out_of_order for check in checks),
            duplicates=sum(check.duplicates for check in checks),
            memory_bytes=memory.found(),
            ended=all(check.total is not None for check in checks),
            stats=context.stats(),
        )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], StreamSpec, {"publish": publish, "subscribe": subscribe}))
