"""One run of `umstack send`: waiting for receivers, sending, waiting until everything is received."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count as numbers_from
from itertools import islice
from typing import Any

from umstack.cli.framing import LineSplitter, RecordSplitter, Splitter
from umstack.cli.lines import PATIENCE_SECONDS, Lines
from umstack.cli.meter import Meter, amount
from umstack.cli.pacing import Pace, PacedPublisher
from umstack.context import Context
from umstack.errors import UmError, WouldBlock
from umstack.files import Manifest, Skipped, TreeSender
from umstack.files.path import shown
from umstack.message_properties import MessageProperties
from umstack.persistence.events import NotStable
from umstack.persistent_source import PersistentSource
from umstack.publisher import Publisher
from umstack.source import Source

_READ_BYTES = 1 << 20
_BATCH_MESSAGES = 256
_IDLE_SECONDS = 0.001
_JOIN_SECONDS = 5.0
"""Seconds to keep waiting for receivers at the other lines once one line has them."""


class NotTaken(UmError):
    """Nothing could be sent within the timeout."""

    default_hint = "start a receiver of the topic, or allow more time with --timeout"


@dataclass(slots=True)
class Summary:
    """Result of a run; printed by --json."""

    topic: str
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    receivers: int = 0
    is_drained: bool = False
    given_up: dict[str, int] = field(default_factory=dict)
    """Datagrams that the transport lost for good, by receiver."""
    interrupted: bool = False
    counters: dict[str, Any] = field(default_factory=dict)
    link_mode: str = ""
    datagram_bytes: int = 0
    cpu_seconds: float = 0.0
    tree: dict[str, Any] | None = None
    lines: list[dict[str, Any]] = field(default_factory=list)
    """With --hot-failover: the result of each line."""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if everything was sent and every receiver that did not leave has it."""
        return self.is_drained and not self.interrupted and not self.problems


def generated(size_bytes: int, count: int | None) -> Iterator[bytes]:
    """Yield messages of this size. Each is its number, from 0, in decimal with leading zeros."""
    for number in numbers_from() if count is None else range(count):
        yield str(number).zfill(size_bytes)[-size_bytes:].encode()


class Sending:
    """One run of the command with one source."""

    def __init__(
        self,
        context: Context,
        source: Source | PersistentSource,
        summary: Summary,
        meter: Meter,
        timeout: float | None,
        properties: MessageProperties,
        pace: Pace | None = None,
    ) -> None:
        self._properties = properties
        self._pace = pace
        self._context = context
        self._source = source
        self._summary = summary
        self._meter = meter
        self._timeout = timeout
        self._publisher = Publisher(source, self._on_wait)
        self._not_stable = 0
        """Messages that too few Stores could keep."""

    def wait_connected(self, receivers: int) -> None:
        """Wait for the requested number of receivers."""
        if receivers == 0:
            return
        self._await(
            lambda: self._source.known_receivers >= receivers,
            lambda: f"waiting for receivers: {self._source.known_receivers} of {receivers} there",
        )
        self._summary.receivers = receivers

    def send_stream(self, form: str) -> None:
        """Send standard input until it ends, without waiting for a full buffer."""
        limit = self._source.message_maximum_bytes
        splitter: Splitter = LineSplitter(limit) if form == "lines" else RecordSplitter(limit)
        while data := os.read(sys.stdin.fileno(), _READ_BYTES):
            self._send_paced(splitter.feed(data))
        self._send_paced(splitter.end())

    def send_generated(self, size_bytes: int, count: int | None) -> None:
        """Send generated messages of this size. Without a count, send until interrupted."""
        messages = generated(size_bytes, count)
        while batch := list(islice(messages, _BATCH_MESSAGES)):
            self._send_paced(batch)

    def _send_paced(self, messages: list[bytes]) -> None:
        """Send messages at the rate of --rate, and show the rates."""
        begin = 0
        while begin < len(messages):
            left = len(messages) - begin
            end = begin + (left if self._pace is None else self._pace.take(left))
            self._send(messages[begin:end])
            self._summary.messages += end - begin
            self._note_not_stable()
            self._meter.show_traffic("sent", self._summary.messages, self._summary.bytes)
            begin = end

    def _send(self, messages: list[bytes]) -> None:
        if self._properties:
            self._publisher.send_each(messages, self._properties, flush=True)
        else:
            self._publisher.send_many(messages, flush=True)
        self._summary.bytes += sum(map(len, messages))

    def send_tree(self, paths: tuple[str, ...], exclude: tuple[str, ...], rate: float | None) -> None:
        """Send files and directories."""

        def progress(manifest: Manifest, bytes_of_file: int) -> None:
            self._note_not_stable()
            done = manifest.byte_count + bytes_of_file
            self._meter.show(f"sent {manifest.file_count:,} files, {amount(done)}")

        publisher = self._publisher if rate is None else PacedPublisher(self._source, self._on_wait, rate)
        report = TreeSender(publisher, on_progress=progress).send(paths, exclude=exclude.__contains__)
        manifest = report.manifest
        self._summary.bytes = manifest.byte_count
        self._summary.tree = {
            "transfer": f"{report.transfer:016x}",
            "files": manifest.file_count,
            "directories": manifest.directory_count,
            "links": manifest.link_count,
            "bytes": manifest.byte_count,
            "manifest_sha256": manifest.sha256.hex(),
            "skipped": [_said(item) for item in report.skipped],
        }
        self._summary.problems += [_said(item) for item in report.failed]

    def drain(self, stay_seconds: float) -> None:
        """Wait until everything was received and is stable, then serve retransmissions for `stay_seconds`."""
        self._await(
            lambda: self._source.wait_drained(0).is_complete,
            lambda: "waiting for the last messages to be received",
        )
        if isinstance(source := self._source, PersistentSource):
            self._await(
                lambda: source.wait_stable(0),
                lambda: f"waiting for the Stores, {len(source.unstable)} messages are not stable",
            )
            self._note_not_stable()
        self._summary.is_drained = True
        end = time.monotonic() + stay_seconds
        while time.monotonic() < end:
            self._context.idle(_IDLE_SECONDS)

    def finish(self) -> None:
        """Record the counters. A receiver that timed out is a problem: it may miss messages."""
        self._summary.seconds = self._meter.seconds
        self._summary.cpu_seconds = time.process_time()
        self._summary.link_mode = self._context.link_mode
        self._summary.datagram_bytes = self._context.datagram_bytes
        if self._not_stable:
            self._summary.problems.append(
                f"{self._not_stable} messages are not stable: too few Stores have them"
            )
        counters = self._summary.counters = self._source.stats()
        self._summary.messages = int(counters["messages_sent"] or 0)
        self._summary.given_up = self._source.wait_drained(0).given_up
        # Of a source with late join receivers fetch messages off-transport, and Stores get again what they lost.
        if not self._source.options.late_join and not isinstance(self._source, PersistentSource):
            self._summary.problems += [
                f"receiver {receiver} lost {count} datagrams for good and may miss messages"
                for receiver, count in self._summary.given_up.items()
            ]
        if timed_out := counters["receivers_timed_out"]:
            self._summary.problems.append(
                f"{timed_out} receivers became idle before they had everything (flow_control_receiver_timeout)"
            )
        if stalled := counters["receivers_stalled"]:
            self._summary.problems.append(
                f"{stalled} receivers stopped reading and may miss messages (flow_control_stall_timeout)"
            )

    def _note_not_stable(self) -> None:
        if isinstance(self._source, PersistentSource):
            self._not_stable += sum(isinstance(event, NotStable) for event in self._source.take_events())

    def _await(self, condition: Callable[[], bool], say: Callable[[], str]) -> None:
        start = time.monotonic()
        while not condition():
            waited = time.monotonic() - start
            self._meter.show(say())
            if self._timeout is not None and waited > self._timeout:
                raise NotTaken(f"{say()} for {waited:.1f} s")
            self._context.idle(_IDLE_SECONDS)

    def _on_wait(self, waited_seconds: float, why: WouldBlock) -> None:
        self._meter.show(f"held back: {why.message}")
        if self._timeout is not None and waited_seconds > self._timeout:
            raise NotTaken(f"nothing could be sent for {waited_seconds:.1f} s: {why.message}")


class HotFailoverSending(Sending):
    """One run over several lines. Ends once one line has carried every message, after a short grace time."""

    def __init__(
        self,
        lines: Lines,
        summary: Summary,
        meter: Meter,
        timeout: float | None,
        properties: MessageProperties,
        pace: Pace | None = None,
    ) -> None:
        first = lines.all[0]
        super().__init__(first.context, first.source, summary, meter, timeout, properties, pace)
        self._lines = lines
        self._first_number = lines.next_number

    def wait_connected(self, receivers: int) -> None:
        """Wait for the receivers at every line, or at one line and _JOIN_SECONDS for the others."""
        if receivers == 0:
            return
        lines, several = self._lines, len(self._lines.all)
        self._await_all_or(
            lambda: len(lines.connected(receivers)) == several,
            lambda: bool(lines.connected(receivers)),
            lambda: (
                f"waiting for receivers: {receivers} at {len(lines.connected(receivers))} of {several} lines"
            ),
            _JOIN_SECONDS,
        )
        self._summary.receivers = receivers

    def _send(self, messages: list[bytes]) -> None:
        self._lines.send(messages, self._properties, self._on_wait)
        self._summary.bytes += sum(map(len, messages))

    def drain(self, stay_seconds: float) -> None:
        """Wait until one line has carried every message, briefly for the others, then serve retransmissions."""
        self._await_all_or(
            self._lines.is_drained,
            self._lines.has_whole_line,
            lambda: "waiting for the last messages to be received",
            PATIENCE_SECONDS,
        )
        self._summary.is_drained = True
        end = time.monotonic() + stay_seconds
        while time.monotonic() < end:
            self._lines.idle(_IDLE_SECONDS)

    def finish(self) -> None:
        """Record the counters. If no line carried everything, receivers may miss messages."""
        self._summary.seconds = self._meter.seconds
        self._summary.messages = self._lines.next_number - self._first_number
        self._summary.counters = self._lines.all[0].source.stats()
        self._summary.lines = [line.described() for line in self._lines.all]
        if not any(line.is_whole for line in self._lines.all):
            self._summary.problems.append("no line carried everything: receivers may miss messages")

    def _await_all_or(
        self, all_are: Callable[[], bool], one_is: Callable[[], bool], say: Callable[[], str], seconds: float
    ) -> None:
        """Wait for `all_are`, or until `one_is` has been true for `seconds`."""
        since: float | None = None

        def is_enough() -> bool:
            nonlocal since
            if all_are():
                return True
            if since is None and one_is():
                since = time.monotonic()
            return since is not None and time.monotonic() - since > seconds

        self._await(is_enough, say)


def _said(item: Skipped) -> str:
    return f"{shown(item.path)}: {item.reason}"
