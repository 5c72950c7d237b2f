"""`umstack send`: publishes standard input or files to a topic."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from umstack.cli.framing import LineSplitter, RecordSplitter, Splitter
from umstack.cli.interruption import INTERRUPTED_STATUS, interruptible, terminable
from umstack.cli.lines import PATIENCE_SECONDS, Line, Lines
from umstack.cli.meter import Meter, amount
from umstack.cli.pacing import PacedPublisher
from umstack.cli.stack_options import (
    JSON_OPTION,
    configuration,
    hot_failover_interfaces,
    stack_options_of_lines,
    warn_in_one_line,
)
from umstack.config import OptionValue, Scope
from umstack.context import Context
from umstack.errors import InvalidArgument, OptionError, UmError, WouldBlock, error_from_path
from umstack.files import Manifest, Skipped, TreeSender
from umstack.files.path import shown
from umstack.message_properties import MessageProperties, PropertyValue, typed_text
from umstack.publisher import Publisher
from umstack.source import Source

_READ_BYTES = 1 << 20
_IDLE_SECONDS = 0.001
_STAY_SECONDS = 1.0
_JOIN_SECONDS = 5.0
"""Seconds to keep waiting for receivers at the other lines once one line has them."""
_EXAMPLES = """\b
Examples:
  umstack send orders --interface eth1 < orders.txt
  tail -f /var/log/syslog | umstack send log --wait-receivers 2
  umstack send backup --files /etc/ --wait-receivers 3 --json
  umstack send orders --property region=eu --property priority:int=3 < orders.txt
  umstack send orders -o transport_lbtrm_data_rate_limit=100000000
  umstack send orders --hot-failover -i eth1 -i eth2 < orders.txt

\b
A/B lines: --hot-failover numbers every message and sends it over each
interface. `umstack recv orders --hot-failover -i eth1 -i eth2` writes the
first copy of each, so that one lossy, stalled or disconnected line does no
harm. Two hosts can be the lines, too: give both the same input and the same
--first-number.
"""


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


def _properties(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> MessageProperties:
    """Parse `region=eu` and `priority:int=3`."""
    found: dict[str, PropertyValue] = {}
    for given in value:
        named, equals, text = given.partition("=")
        name, _, kind = named.rpartition(":") if ":" in named else (named, "", "string")
        if not equals:
            raise click.BadParameter(f"{given} has no value; give NAME=VALUE")
        if name in found:
            raise click.BadParameter(f"{name} is given twice")
        try:
            found[name] = typed_text(text, kind)
        except InvalidArgument as error:
            raise click.BadParameter(f"{given}: {error}") from error
    try:
        return MessageProperties(found)
    except UmError as error:
        raise click.BadParameter(str(error)) from error


@click.command(epilog=_EXAMPLES)
@click.argument("topic")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path())
@click.option(
    "--lines", "form", flag_value="lines", default="lines", help="Each line is a message (the default)."
)
@click.option(
    "--records",
    "form",
    flag_value="records",
    help="Each message is a 4-byte big-endian length and its bytes.",
)
@click.option(
    "--files", "form", flag_value="files", help="Send files and directories; DIR/ sends the contents only."
)
@click.option(
    "--exclude", multiple=True, metavar="NAME", help="With --files, skip entries of this name; repeatable."
)
@click.option(
    "--rate",
    type=click.FloatRange(1),
    metavar="BYTES",
    help="With --files, send at most this many bytes per second.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME[:TYPE]=VALUE",
    callback=_properties,
    help="Add a property to every message; repeatable. TYPE: boolean, byte, short, int, long, float, double or string.",
)
@click.option(
    "--wait-receivers",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Number of receivers to wait for; flow control then follows the slowest. 0: send without waiting.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Give up if nothing can be sent for this long.",
)
@click.option(
    "--linger",
    "stay_seconds",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Keep serving retransmissions after the last message. Default: 1 with --wait-receivers 0, else 0.",
)
@click.option(
    "--hot-failover",
    "is_hot_failover",
    is_flag=True,
    help="Send every message over each --interface (A/B lines); see below.",
)
@click.option(
    "--first-number",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With --hot-failover, the number of the first message.",
)
@stack_options_of_lines
@JSON_OPTION
def command(
    topic: str,
    paths: tuple[str, ...],
    form: str,
    exclude: tuple[str, ...],
    rate: float | None,
    properties: MessageProperties,
    wait_receivers: int,
    timeout: float | None,
    stay_seconds: float | None,
    is_hot_failover: bool,
    first_number: int,
    interfaces: tuple[str, ...],
    config_file: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Publish standard input, or files, to a TOPIC.

    Exits with status 0 once every receiver has every message; receivers that left do not count.
    """
    if (form == "files") != bool(paths):
        raise click.UsageError("--files needs a PATH, and a PATH needs --files")
    if form != "files" and (exclude or rate is not None):
        raise click.UsageError("--exclude and --rate are for --files")
    if form == "files" and properties:
        raise click.UsageError("messages of --files have no --property")
    if form == "files" and is_hot_failover:
        raise click.UsageError("--hot-failover cannot be used with --files")
    names = hot_failover_interfaces(interfaces, is_hot_failover=is_hot_failover)
    _check_paths(paths)
    warn_in_one_line()
    defaults: dict[tuple[Scope, str], OptionValue] = {}
    if wait_receivers:
        defaults[Scope.SOURCE, "flow_control"] = "min"
    config = configuration((Scope.CONTEXT, Scope.SOURCE), defaults, config_file, options)
    summary = Summary(topic)
    with (
        interruptible(summary),
        terminable(),
        Meter() as meter,
        contextlib.ExitStack() as opened,
    ):
        contexts = [opened.enter_context(Context(name, config=config)) for name in names]
        context = contexts[0]
        source = context.source(topic)
        if wait_receivers and source.options.flow_control == "none":
            raise OptionError(
                "with flow_control none a source does not know its receivers",
                hint="add --wait-receivers 0",
            )
        if stay_seconds is None:
            stay_seconds = 0.0 if wait_receivers else _STAY_SECONDS
        sending = Sending(context, source, summary, meter, timeout, properties)
        if is_hot_failover:
            sources = [source, *(one.source(topic) for one in contexts[1:])]
            lines = [
                Line(one.interface.name, one, of_line) for one, of_line in zip(contexts, sources, strict=True)
            ]
            sending = HotFailoverSending(
                Lines(lines, first_number, _say_line), summary, meter, timeout, properties
            )
        try:
            with interruptible(summary):
                sending.wait_connected(wait_receivers)
                if form == "files":
                    sending.send_tree(paths, exclude, rate)
                else:
                    sending.send_stream(form)
                sending.drain(stay_seconds)
        except NotTaken as error:
            summary.problems.append(str(error))
        sending.finish()
    _report(summary, as_json)


def _check_paths(paths: tuple[str, ...]) -> None:
    """Raise an error if a path does not exist or is unreadable."""
    for path in paths:
        try:
            Path(path).lstat()
            if not os.access(path, os.R_OK, follow_symlinks=False):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise error_from_path(error, f"reading {shown(os.fsencode(path))}") from error


class Sending:
    """One run of the command with one source."""

    def __init__(
        self,
        context: Context,
        source: Source,
        summary: Summary,
        meter: Meter,
        timeout: float | None,
        properties: MessageProperties,
    ) -> None:
        self._properties = properties
        self._context = context
        self._source = source
        self._summary = summary
        self._meter = meter
        self._timeout = timeout
        self._publisher = Publisher(source, self._on_wait)

    def wait_connected(self, receivers: int) -> None:
        """Wait for the requested number of receivers."""
        if receivers == 0:
            return
        by_clients = self._source.options.transport == "tcp"
        counter = "num_clients" if by_clients else "receivers_known"
        self._await(
            lambda: int(self._source.stats()[counter] or 0) >= receivers,
            lambda: f"waiting for receivers: {self._source.stats()[counter]} of {receivers} there",
        )
        self._summary.receivers = receivers

    def send_stream(self, form: str) -> None:
        """Send standard input until it ends, without waiting for a full buffer."""
        limit = self._source.message_maximum_bytes
        splitter: Splitter = LineSplitter(limit) if form == "lines" else RecordSplitter(limit)
        while data := os.read(sys.stdin.fileno(), _READ_BYTES):
            self._send(splitter.feed(data))
            self._meter.show(f"sent {amount(self._summary.bytes)}")
        self._send(splitter.end())

    def _send(self, messages: list[bytes]) -> None:
        if self._properties:
            self._publisher.send_each(messages, self._properties, flush=True)
        else:
            self._publisher.send_many(messages, flush=True)
        self._summary.bytes += sum(map(len, messages))

    def send_tree(self, paths: tuple[str, ...], exclude: tuple[str, ...], rate: float | None) -> None:
        """Send files and directories."""

        def progress(manifest: Manifest, bytes_of_file: int) -> None:
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
        """Wait until everything was received, then serve retransmissions for `stay_seconds`."""
        self._await(
            lambda: self._source.wait_drained(0),
            lambda: "waiting for the last messages to be received",
        )
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
        counters = self._summary.counters = self._source.stats()
        self._summary.messages = int(counters["messages_sent"] or 0)
        if timed_out := counters["receivers_timed_out"]:
            self._summary.problems.append(
                f"{timed_out} receivers became idle before they had everything (flow_control_receiver_timeout)"
            )
        if stalled := counters["receivers_stalled"]:
            self._summary.problems.append(
                f"{stalled} receivers stopped reading and may miss messages (flow_control_stall_timeout)"
            )

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
    ) -> None:
        super().__init__(lines.all[0].context, lines.all[0].source, summary, meter, timeout, properties)
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


def _say_line(text: str) -> None:
    click.echo(f"umstack: {text}", err=True)


def _said(item: Skipped) -> str:
    return f"{shown(item.path)}: {item.reason}"


def _report(summary: Summary, as_json: bool) -> None:
    for item in (summary.tree or {}).get("skipped", []):
        click.echo(f"umstack: skipped {item}", err=True)
    for problem in summary.problems:
        click.echo(f"umstack: {problem}", err=True)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "topic": summary.topic,
                    "ok": summary.ok,
                    "messages": summary.messages,
                    "bytes": summary.bytes,
                    "seconds": summary.seconds,
                    "receivers": summary.receivers,
                    "drained": summary.is_drained,
                    "interrupted": summary.interrupted,
                    "tree": summary.tree,
                    "lines": summary.lines,
                    "problems": summary.problems,
                    "counters": summary.counters,
                    "link_mode": summary.link_mode,
                    "datagram_bytes": summary.datagram_bytes,
                    "cpu_seconds": summary.cpu_seconds,
                }
            )
        )
    else:
        what = f"{summary.tree['files']:,} files" if summary.tree else f"{summary.messages:,} messages"
        ending = ", interrupted" if summary.interrupted else ""
        click.echo(f"sent {what}, {amount(summary.bytes)} in {summary.seconds:.1f} s{ending}", err=True)
    if not summary.ok:
        raise SystemExit(INTERRUPTED_STATUS if summary.interrupted else 1)
