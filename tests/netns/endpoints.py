"""The two ends of a stream in a lab: child processes that publish or subscribe by the public API, and their handles.

`python endpoints.py publish|subscribe SPEC`, with the spec in JSON. A child works continuously and between two steps
obeys an order from its standard input, one JSON object per line; it answers each with one on its standard output. Every
message starts with its number and is filled with a pattern of that number, so that received messages can be checked.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

import umstack
from umstack.events import BurstLoss, EndOfSession, Message, UnrecoverableLoss

if TYPE_CHECKING:
    from umstack.lab import Host, Lab

TOPIC = "fault/stream"
GROUP, GROUP_PORT = "224.10.10.10", 14400
NUMBER_BYTES = 8
WAIT_SECONDS = 15.0
"""Seconds a test waits for a condition."""

QUICK_CONTEXT = {
    "transport_lbtrm_data_rate_limit": 0,
    "transport_lbtrm_retransmit_rate_limit": 0,
    "transport_lbtrm_receiver_socket_buffer": 16 << 20,
}
QUICK_SOURCE = {
    "flow_control": "min",
    "flow_control_receiver_timeout": 1000,
    "transport_lbtrm_ignore_interval": 10,
    "transport_lbtrm_sm_minimum_interval": 20,
    "transport_lbtrm_sm_maximum_interval": 200,
    "transport_topic_sequence_number_info_interval": 200,
}
QUICK_RECEIVER = {
    "transport_lbtrm_nak_initial_backoff_interval": 4,
    "transport_lbtrm_nak_backoff_interval": 40,
    "transport_lbtrm_nak_suppress_interval": 40,
    "delivery_control_loss_check_interval": 100,
}

_ANSWER_SECONDS = 20.0
_STEP_SECONDS = 0.01
_LOOK_SECONDS = 0.02
_BURST_SECONDS = 0.1
_CHUNK_BYTES = 65536
_POLL_ROWS = 4096
_SLOW_ROWS = 64


@dataclass(slots=True)
class EndSpec:
    """The specification that a child gets at its start."""

    context: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the source or the receiver."""
    size: int = 1000
    rate: float = 0.0
    """The number of messages per second; 0 means as fast as possible."""
    receivers: int = 0
    """Number of receivers that flow control must know before a publisher starts."""
    topic: str = TOPIC


# The children


def _filler(number: int) -> int:
    return number * 7 % 251


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Orders:
    """The parent's orders, which are read without waiting."""

    def __init__(self) -> None:
        self._pending = b""

    def take(self, wait_seconds: float = 0.0) -> dict[str, Any] | None:
        """Return the next order, or None."""
        while b"\n" not in self._pending:
            if not select.select([0], [], [], wait_seconds)[0]:
                return None
            if not (read := os.read(0, 65536)):
                raise SystemExit(0)
            self._pending += read
        line, _, self._pending = self._pending.partition(b"\n")
        return cast("dict[str, Any]", json.loads(line))


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class _Pace:
    """The number of messages that may still be sent. Unused time is not made up for in a burst."""

    def __init__(self, rate: float) -> None:
        self.set(rate)

    def set(self, rate: float) -> None:
        """Restart at this rate."""
        self._rate, self._credit, self._since = rate, 0.0, time.monotonic()

    def left(self, most: int) -> int:
        """Return the number that may be sent now, at most `most`."""
        if not self._rate:
            return most
        now = time.monotonic()
        self._credit = min(self._credit + self._rate * (now - self._since), self._rate * _BURST_SECONDS)
        self._since = now
        return min(most, int(self._credit))

    def passed(self, count: int) -> None:
        """Count messages as sent."""
        self._credit -= count


class _Publishing:
    """Numbered messages of one size in one buffer that is overwritten for every send."""

    def __init__(self, source: umstack.Source, spec: EndSpec) -> None:
        self.source, self.size = source, spec.size
        self.sent, self.limit = 0, 0
        self.pace = _Pace(spec.rate)
        self.chunk = max(1, min(4096, _CHUNK_BYTES // spec.size))
        self.data = np.zeros((self.chunk, spec.size), dtype=np.uint8)
        self.offsets = np.arange(self.chunk + 1, dtype=np.int32) * np.int32(spec.size)

    def step(self) -> None:
        """Send the messages that may be sent now; those that flow control refuses are sent in a later step."""
        count = self.pace.left(min(self.chunk, self.limit - self.sent))
        if count <= 0:
            time.sleep(_STEP_SECONDS / 10)
            return
        numbers = np.arange(self.sent, self.sent + count, dtype=np.uint64)
        self.data[:count, NUMBER_BYTES:] = (numbers * 7 % 251).astype(np.uint8)[:, None]
        self.data[:count, :NUMBER_BYTES] = numbers.astype("<u8").view(np.uint8).reshape(count, NUMBER_BYTES)
        try:
            taken = self.source.send_packed(self.data, self.offsets[: count + 1], timeout=_STEP_SECONDS)
        except umstack.WouldBlock:
            return
        self.sent += taken
        self.pace.passed(taken)
        if self.sent == self.limit:
            self.source.flush()


def _publish(spec: EndSpec) -> None:
    orders = _Orders()
    with (
        umstack.Context("eth0", **spec.context) as context,
        context.source(spec.topic, **spec.options) as source,
    ):
        if spec.receivers:
            source.wait_connected(spec.receivers, timeout=_ANSWER_SECONDS)
        _say(transport=source.transport)
        work = _Publishing(source, spec)
        while True:
            work.step()
            order = orders.take()
            if order is None:
                continue
            if "send" in order:
                work.limit = work.sent + order["send"]
                work.pace.set(order.get("rate", spec.rate))
            drained = None
            if "stop" in order:
                work.limit = work.sent
                source.flush()
                drained = bool(source.wait_drained(timeout=order["stop"]))
            _say(
                sent=work.sent,
                drained=drained,
                rss=_resident_bytes(),
                at=time.monotonic(),
                stats=context.stats(),
            )


class _Judge:
    """The account of the messages that a subscriber received."""

    def __init__(self, size: int) -> None:
        self.size, self.next = size, 0
        self.received = self.missing = self.out_of_order = self.corrupt = 0
        self.events: Counter[str] = Counter()
        self.lost_sqns = 0
        self.last_sqn: int | None = None

    def take(self, batch: umstack.Batch) -> int:
        """Check every row; return the number of messages."""
        before = self.received
        if batch and not self._is_plain(batch):
            for event in batch.events():
                self._take(event)
        return self.received - before

    def _is_plain(self, batch: umstack.Batch) -> bool:
        """Return true if the rows are exactly the expected messages, complete and correct."""
        count, payload = len(batch), batch.payload
        if batch.event_count or len(payload) != count * self.size:
            return False
        rows = np.frombuffer(payload, np.uint8).reshape(count, self.size)
        numbers = rows[:, :NUMBER_BYTES].copy().view("<u8").reshape(count)
        expected = np.arange(self.next, self.next + count, dtype=np.uint64)
        if not (numbers == expected).all():
            return False
        fill = (numbers * 7 % 251).astype(np.uint8)
        if self.size > NUMBER_BYTES and not (rows[:, NUMBER_BYTES:] == fill[:, None]).all():
            return False
        self.next += count
        self.received += count
        self.last_sqn = int(batch.sequence_numbers[count - 1])
        return True

    def _take(self, event: umstack.Event) -> None:
        if not isinstance(event, Message):
            self.events[type(event).__name__] += 1
            if isinstance(event, UnrecoverableLoss):
                self.lost_sqns += 1
            elif isinstance(event, BurstLoss):
                self.lost_sqns += (event.sequence_number - event.first_sequence_number + 1) % 2**32
            return
        self.received += 1
        self.last_sqn = event.sequence_number
        number = int.from_bytes(event.data[:NUMBER_BYTES], "little")
        body = event.data[NUMBER_BYTES:]
        if len(event.data) != self.size or body != bytes([_filler(number)]) * len(body):
            self.corrupt += 1
        elif number < self.next:
            self.out_of_order += 1
        else:
            self.missing += number - self.next
            self.next = number + 1

    def account(self) -> dict[str, Any]:
        """Return the report for the parent process."""
        return {
            "received": self.received,
            "missing": self.missing,
            "out_of_order": self.out_of_order,
            "corrupt": self.corrupt,
            "events": dict(self.events),
            "lost_sqns": self.lost_sqns,
            "last_sqn": self.last_sqn,
        }


def _subscribe(spec: EndSpec) -> None:
    orders, judge, pace = _Orders(), _Judge(spec.size), _Pace(spec.rate)
    with (
        umstack.Context("eth0", **spec.context) as context,
        context.receiver(spec.topic, **spec.options) as receiver,
    ):
        _say(ready=True)
        while True:
            rows = pace.left(_SLOW_ROWS if spec.rate else _POLL_ROWS)
            if rows:
                pace.passed(judge.take(receiver.poll(rows, _STEP_SECONDS)))
            else:
                time.sleep(_STEP_SECONDS / 10)
            order = orders.take()
            if order is None:
                continue
            if "rate" in order:
                spec.rate = order["rate"]
                pace.set(spec.rate)
            _say(**judge.account(), rss=_resident_bytes(), at=time.monotonic(), stats=context.stats())


# The parent's side


@dataclass(slots=True)
class Report:
    """A child's report on its state."""

    said: dict[str, Any]

    def __getitem__(self, name: str) -> Any:
        """Return one of the figures."""
        return self.said[name]

    def counter(self, group: str, name: str) -> int:
        """Return a counter of the context, the link, or its only session, source or receiver."""
        counters = self.said["stats"][group]
        if isinstance(counters, list):
            counters = counters[0]
        return int(counters[name] or 0)

    @property
    def received_transport(self) -> dict[str, Any]:
        """Return the counters of the receiving session."""
        return cast("dict[str, Any]", self.said["stats"]["receiver_transports"][0])

    @property
    def sent_transport(self) -> dict[str, Any]:
        """Return the counters of the sending session."""
        return cast("dict[str, Any]", self.said["stats"]["source_transports"][0])


class End:
    """A running child."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._pending = b""

    def receive(self, seconds: float = _ANSWER_SECONDS) -> Report:
        """Return the child's next report."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            assert select.select([self.process.stdout], [], [], max(0.0, left))[0], (
                "the child did not report in time"
            )
            read = os.read(self.process.stdout.fileno(), 1 << 20)
            assert read, f"the child ended: {self._last_words()}"
            self._pending += read
        line, _, self._pending = self._pending.partition(b"\n")
        return Report(json.loads(line))

    def _last_words(self) -> str:
        assert self.process.stderr is not None
        status = self.process.wait(timeout=_ANSWER_SECONDS)
        return f"{status} {self.process.stderr.read().decode()}"

    def send_order(self, **order: Any) -> None:
        """Send an order. If the child has ended, the next `receive` fails."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()

    def ask(self, **order: Any) -> Report:
        """Send an order and return the answer; without an order, return a report on the state."""
        self.send_order(**order)
        return self.receive()

    def await_report(self, condition: Callable[[Report], bool], seconds: float = WAIT_SECONDS) -> Report:
        """Request reports until the condition holds."""
        deadline = time.monotonic() + seconds
        while True:
            report = self.ask()
            if condition(report):
                return report
            assert time.monotonic() < deadline, f"after {seconds} s: {report.said}"
            select.select([], [], [], _LOOK_SECONDS)

    def await_received(self, count: int, seconds: float = WAIT_SECONDS) -> Report:
        """Request reports until a subscriber has `count` messages."""
        return self.await_report(lambda report: report["received"] >= count, seconds)

    def kill(self) -> None:
        """Kill the child, as a crash would."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End the child if it still runs, and close its pipes."""
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


@contextmanager
def running(host: Host, role: str, spec: EndSpec) -> Iterator[End]:
    """Run a child on a host; it has ended on exit, also after a failure."""
    command = [sys.executable, __file__, role, json.dumps(asdict(spec))]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    root = str(Path(__file__).parents[2])
    end = End(host.run(command, cwd=root, env={**os.environ, "PYTHONPATH": root}, **pipes))
    try:
        yield end
    finally:
        end.close()


class Ends:
    """One publisher on the first host and subscribers on others, for the duration of a test."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        self.lab, self._stack = lab, stack
        self.subscribers: list[End] = []
        self._subscribing: list[int] = []

    def subscribe(self, host_number: int, *, context: dict[str, Any] | None = None, **more: Any) -> End:
        """Start a subscriber; it is ready once a publisher exists."""
        spec = EndSpec(context={**QUICK_CONTEXT, **(context or {})}, **_with(QUICK_RECEIVER, more))
        end = self._stack.enter_context(running(self.lab.hosts[host_number], "subscribe", spec))
        self.subscribers.append(end)
        self._subscribing.append(host_number)
        return end

    def publish(self, *, context: dict[str, Any] | None = None, **more: Any) -> End:
        """Start the publisher; on return it has sent nothing and its receivers are connected."""
        spec = EndSpec(context={**QUICK_CONTEXT, **(context or {})}, **_with(QUICK_SOURCE, more))
        end = self._stack.enter_context(running(self.lab.hosts[0], "publish", spec))
        for subscriber in self.subscribers:
            subscriber.receive()
        transport = end.receive()["transport"]
        for subscriber in self.subscribers:
            subscriber.await_report(lambda report: report.counter("receivers", "delivery_controllers") == 1)
        if transport.startswith("LBTRM:"):
            self.lab.await_join(transport.split(":")[-2], *self._subscribing)
        return end


def _with(usual: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**more, "options": {**usual, **more.pop("options", {})}}


EndsIn = Callable[["Lab"], Ends]
"""The type of the `ends_in` fixture."""


def assert_whole(report: Report, count: int) -> None:
    """Check that the subscriber got exactly `count` messages, in order, each once and intact, without a loss event."""
    assert report["received"] == count, report.said
    assert (report["missing"], report["out_of_order"], report["corrupt"]) == (0, 0, 0), report.said
    assert report["lost_sqns"] == 0, report.said
    assert EndOfSession.__name__ not in report["events"], report.said


if __name__ == "__main__":
    {"publish": _publish, "subscribe": _subscribe}[sys.argv[1]](EndSpec(**json.loads(sys.argv[2])))
