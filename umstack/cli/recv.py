"""`umstack recv`: writes the messages of a topic to standard output or to files.

One file, because its options decide together what the sinks, the loop and the summary do.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import click

from umstack._engine.endpoint import Endpoint
from umstack._engine.keyring import FileKeys
from umstack.batch import Batch
from umstack.cli.framing import join_lines, join_records
from umstack.cli.interruption import INTERRUPTED_STATUS, interruptible, terminable
from umstack.cli.meter import Meter, amount
from umstack.cli.output import silence_stdout, write_problem
from umstack.cli.recv_stored import (
    Stored,
    StoredBatch,
    stored_batch,
    stored_options,
)
from umstack.cli.stack_options import (
    DRIVER_OPTION,
    JSON_OPTION,
    configuration,
    hot_failover_interfaces,
    stack_options_of_lines,
    warn_in_one_line,
)
from umstack.config import Scope
from umstack.context import Context
from umstack.errors import NotConnected, naming_path
from umstack.events import (
    BeginningOfSession,
    BurstLoss,
    CutLoose,
    EndOfSession,
    Event,
    InterfaceChanged,
    Message,
    NakCutoff,
    StaleTags,
    UnrecoverableLoss,
)
from umstack.files import Target, TreeReceiver, TreeReport
from umstack.foreign_text import displayed
from umstack.hot_failover_receiver import HotFailoverReceiver
from umstack.message_properties import PropertyValue
from umstack.persistence.replay_start import ReplayStart
from umstack.persistence.session_ids import temporary_session_id
from umstack.persistence.store_replay import StoreReplay
from umstack.reader import POLL_ROWS, Reader
from umstack.receiver import Receiver
from umstack.wildcard_receiver import WildcardReceiver

_POLL_SECONDS = 0.2
_LOSSES_SHOWN_MAX = 10
_EXAMPLES = """\b
Examples:
  umstack recv orders --interface eth1
  umstack recv orders --records --output orders.bin --count 1000 --json
  umstack recv orders --json-lines | jq .properties
  umstack recv --prefix orders. --json-lines
  umstack recv backup --files /var/backups --timeout 60
  umstack recv orders --from-store 10.9.0.11:14567 --start 2026-11-26T09:30 --until-end
  umstack recv log -o transport_lbtrm_activity_timeout=2000 --until-end
  umstack recv orders --hot-failover -i eth1 -i eth2

\b
A/B lines: with --hot-failover the first copy of each message of
`umstack send orders --hot-failover -i eth1 -i eth2` is written, in order. One
disconnected line does no harm; a message that no line delivers within
hf_maximum_delay is lost.
"""


Rows = Batch | StoredBatch
AnyReceiver = Receiver | HotFailoverReceiver | WildcardReceiver


class Sink(Protocol):
    """Destination of received messages."""

    def take(self, batch: Rows) -> int:
        """Store a batch. Return the number of messages or trees that it completes, as `--count` counts them."""

    def close(self) -> None:
        """Finish after the last batch; called once."""


@dataclass(slots=True)
class Summary:
    """Result of a run; printed by --json."""

    topic: str
    count: int = 0
    messages: int = 0
    bytes: int = 0
    seconds: float = 0.0
    losses: int = 0
    given_up: int = 0
    """Datagrams that the transport lost for good."""
    interrupted: bool = False
    timed_out: bool = False
    open_sources: dict[str, None] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    """With --prefix or --regex: the topics received at the end."""
    trees: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    link_mode: str = ""
    cpu_seconds: float = 0.0
    receive_drops: int = 0
    recovery_ms: dict[str, float | None] = field(default_factory=dict)
    """Percentiles of the time from detecting a loss to its retransmission, over the first interface."""


class StreamSink:
    """Writes messages to a stream, as lines or as records."""

    def __init__(self, out: BinaryIO, join: Callable[[Sequence[bytes]], bytes]) -> None:
        self._out = out
        self._join = join

    def take(self, batch: Rows) -> int:
        """Write the messages of the batch."""
        messages = [message.data for message in batch.messages()] if batch.event_count else batch.payloads()
        self._out.write(self._join(messages))
        self._out.flush()
        return len(messages)

    def close(self) -> None:
        """The caller closes the stream."""


class JsonLinesSink:
    """Writes each message with its properties as one line of JSON."""

    def __init__(self, out: BinaryIO) -> None:
        self._out = out

    def take(self, batch: Rows) -> int:
        """Write the messages of the batch."""
        lines = [json.dumps(_object_of(message)) for message in batch]
        self._out.write("".join(f"{line}\n" for line in lines).encode())
        self._out.flush()
        return len(lines)

    def close(self) -> None:
        """The caller closes the stream."""


def _object_of(message: Message) -> dict[str, Any]:
    try:
        data = {"data": message.data.decode()}
    except UnicodeDecodeError:
        data = {"data_base64": base64.b64encode(message.data).decode()}
    return {
        "sequence_number": message.sequence_number,
        "topic": message.topic,
        "source": message.source,
        **data,
        "properties": {name: _json_value(value) for name, value in message.properties.items()},
    }


def _json_value(value: PropertyValue) -> PropertyValue:
    """Return infinity and NaN as text: JSON has no such numbers."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


class TreeSink:
    """Writes file trees to a directory. `--count` counts trees, complete or not."""

    def __init__(self, target: Target, summary: Summary) -> None:
        self._summary = summary
        self._trees = TreeReceiver(target)
        self._strays_seen = 0

    def take(self, batch: Rows) -> int:
        """Write the records of the batch."""
        events = batch.events()
        batch.release()
        ended = self._trees.take(events)
        for report in ended:
            self._note(report)
        for stray in list(self._trees.strays)[self._strays_seen :]:
            click.echo(f"umstack: {stray}", err=True)
        self._strays_seen = len(self._trees.strays)
        return len(ended)

    def close(self) -> None:
        """Record the trees that did not end as incomplete."""
        for report in self._trees.close():
            self._note(report)

    def _note(self, report: TreeReport) -> None:
        manifest = report.manifest
        self._summary.trees.append(
            {
                "transfer": f"{report.transfer:016x}",
                "source": report.source,
                "complete": report.is_complete,
                "files": manifest.file_count,
                "directories": manifest.directory_count,
                "links": manifest.link_count,
                "bytes": manifest.byte_count,
                "manifest_sha256": manifest.sha256.hex(),
                "seconds": report.seconds,
                "problem_count": report.problem_count,
            }
        )
        self._summary.problems += map(str, report.problems)


@click.command(epilog=_EXAMPLES)
@click.argument("topic", required=False)
@click.option(
    "--prefix", metavar="TEXT", help="Receive every topic whose name starts with this, instead of TOPIC."
)
@click.option("--regex", metavar="PATTERN", help="Receive every topic whose name this expression matches.")
@click.option(
    "--lines", "form", flag_value="lines", default="lines", help="Write each message as a line (the default)."
)
@click.option(
    "--records",
    "form",
    flag_value="records",
    help="Write each message as a 4-byte big-endian length and its bytes.",
)
@click.option(
    "--json-lines",
    "form",
    flag_value="json-lines",
    help="Write each message as a line of JSON, with properties, sequence number and source.",
)
@click.option(
    "--files", "directory", type=click.Path(file_okay=False), help="Receive file trees into this directory."
)
@click.option("--output", metavar="FILE", help="Write to this file instead of standard output.")
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="End after this many messages, or trees. Default with --files: 1.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="End when nothing is received for this long.",
)
@click.option(
    "--until-end",
    is_flag=True,
    help="End when the publisher's session has ended, or with --from-store when everything has been played.",
)
@click.option(
    "--hot-failover",
    "is_hot_failover",
    is_flag=True,
    help="Receive over each --interface (A/B lines) and write the first copy of each message; see below.",
)
@stored_options
@DRIVER_OPTION
@stack_options_of_lines
@JSON_OPTION
def command(
    topic: str | None,
    prefix: str | None,
    regex: str | None,
    form: str,
    directory: str | None,
    output: str | None,
    count: int | None,
    timeout: float | None,
    until_end: bool,
    is_hot_failover: bool,
    from_store: tuple[Endpoint, ...],
    start: ReplayStart | None,
    session_id: int | None,
    interfaces: tuple[str, ...],
    driver: str,
    config_file: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Write the messages of a TOPIC, or of every matching topic, to standard output, or to files.

    --json-lines shows the topic of each message. Status 0 only if nothing was lost, --count was reached, and every
    file tree is complete with the right SHA-256. A --timeout with nothing received is a failure.
    """
    stored = Stored(from_store, start, session_id)
    named = _named(topic, prefix, regex)
    _check_destination(topic, directory, output, is_hot_failover=is_hot_failover, as_json=as_json)
    stored.check(has_topic=topic is not None, is_hot_failover=is_hot_failover)
    names = hot_failover_interfaces(interfaces, is_hot_failover=is_hot_failover)
    warn_in_one_line()
    if directory is not None and count is None:
        count = 1
    scopes = [Scope.CONTEXT, Scope.RECEIVER] + ([Scope.WILDCARD_RECEIVER] if topic is None else [])
    config = configuration(scopes, {}, config_file, options)
    summary = Summary(named)
    quiet = directory is None and output is None and sys.stdout.isatty()
    with (
        interruptible(summary),
        terminable(),
        Meter(enabled=not quiet) as meter,
        _sink(form, directory, output, summary) as sink,
        contextlib.ExitStack() as opened,
    ):
        ending = Ending(count, timeout, until_end)
        try:
            session = 0
            if stored.stores:
                with interruptible(summary):
                    keys = FileKeys(config.context_options())
                    session = _play(stored, keys, sink, summary, meter, ending)
            if not stored.stores or session:
                contexts = [
                    opened.enter_context(Context(name, config=config, driver=driver)) for name in names
                ]
                first_sqn = None if start is None else start.sqn
                receiver = _open(
                    contexts, topic, prefix, regex, session, first_sqn, is_hot_failover=is_hot_failover
                )
                with interruptible(summary):
                    _receive(receiver, sink, summary, meter, ending)
                _note_counters(contexts, receiver, summary)
        except OSError as error:
            _note_unwritable(error, summary, is_stdout=output is None and directory is None)
        sink.close()
        summary.seconds = meter.seconds
    _report(summary, count, as_json)


@dataclass(frozen=True, slots=True)
class Ending:
    """Conditions that end the run."""

    count: int | None
    timeout: float | None
    until_end: bool

    def is_reached(self, summary: Summary) -> bool:
        """Return true once `--count` messages or trees were taken."""
        return self.count is not None and summary.count >= self.count

    def rows_left(self, summary: Summary, maximum: int) -> int:
        """Return how many rows may be taken at once, so that none is taken behind the last one counted."""
        return maximum if self.count is None else min(maximum, self.count - summary.count)


def _named(topic: str | None, prefix: str | None, regex: str | None) -> str:
    """Return the topic or the pattern. Raises click.UsageError unless exactly one is given."""
    given = [name for name in (topic, prefix, regex) if name is not None]
    if len(given) != 1:
        raise click.UsageError("give a TOPIC, a --prefix or a --regex")
    return given[0]


def _check_destination(
    topic: str | None, directory: str | None, output: str | None, *, is_hot_failover: bool, as_json: bool
) -> None:
    """Raise click.UsageError for options that exclude each other."""
    if topic is None and (directory is not None or is_hot_failover):
        raise click.UsageError("--files and --hot-failover need a TOPIC")
    if as_json and directory is None and output is None:
        raise click.UsageError("with --json, messages cannot go to standard output: add --output FILE")
    if directory is not None and output is not None:
        raise click.UsageError("give --files or --output, not both")
    if directory is not None and is_hot_failover:
        raise click.UsageError("--hot-failover cannot be used with --files")


def _open(
    contexts: Sequence[Context],
    topic: str | None,
    prefix: str | None,
    regex: str | None,
    session_id: int,
    first_sqn: int | None,
    *,
    is_hot_failover: bool,
) -> AnyReceiver:
    """Make the receiver; session_id: as which session a replay continues, or 0, from which message on."""
    first = contexts[0]
    if topic is None:
        return first.wildcard_receiver(regex, prefix=prefix)
    if is_hot_failover:
        return first.hot_failover_receiver(topic, others=contexts[1:])
    if session_id:
        return first.receiver(topic, session_id=session_id, start=first_sqn)
    return first.receiver(topic)


def _note_counters(contexts: Sequence[Context], receiver: AnyReceiver, summary: Summary) -> None:
    """Add what the contexts counted to the summary."""
    transports = [one for context in contexts for one in context.stats()["receiver_transports"]]
    if isinstance(receiver, WildcardReceiver):
        summary.topics = receiver.topics()
    if not isinstance(receiver, HotFailoverReceiver):
        _note_given_up(contexts[0].stats(), summary)
    summary.counters = {**receiver.stats(), "transports": transports}
    summary.link_mode, summary.cpu_seconds = contexts[0].link_mode, time.process_time()
    summary.receive_drops = sum(one.stats()["link_counters"]["receive_drops"] for one in contexts)
    times = contexts[0].recovery_times()
    summary.recovery_ms = {
        "p50": times.percentile_ms(50),
        "p99": times.percentile_ms(99),
        "max": max((transport["nak_stm_max"] for transport in transports), default=None),
    }


def _play(stored: Stored, keys: FileKeys, sink: Sink, summary: Summary, meter: Meter, ending: Ending) -> int:
    """Write what Stores have. Return the session id with which to continue live, or 0 if the run ends here."""
    session_id = stored.session_id or temporary_session_id()
    is_temporary = stored.session_id is None and ending.until_end
    replay = StoreReplay(
        summary.topic, stored.stores, session_id, stored.start, is_temporary=is_temporary, keys=keys
    )
    try:
        for chunk in replay.chunks():
            taken = 0
            while taken < len(chunk) and not ending.is_reached(summary):
                rows = chunk[taken : taken + ending.rows_left(summary, len(chunk))]
                _take(stored_batch(summary.topic, rows), sink, summary)
                taken += len(rows)
            if ending.is_reached(summary):
                replay.stop_after(taken)
            meter.show_traffic("received", summary.messages, summary.bytes)
    except NotConnected:
        return 0  # the failure of each Store is a problem
    finally:
        summary.problems += map(str, replay.failures)
    return 0 if ending.until_end or ending.is_reached(summary) else session_id


def _receive(receiver: Reader, sink: Sink, summary: Summary, meter: Meter, ending: Ending) -> None:
    last = time.monotonic()
    while not ending.is_reached(summary):
        with receiver.poll(ending.rows_left(summary, POLL_ROWS), _POLL_SECONDS) as batch:
            if batch:
                last = time.monotonic()
                if _take(batch, sink, summary) and ending.until_end:
                    return
            elif ending.timeout is not None and time.monotonic() - last > ending.timeout:
                summary.timed_out = True
                return
        meter.show_traffic("received", summary.messages, summary.bytes)


def _take(batch: Rows, sink: Sink, summary: Summary) -> bool:
    """Count and store a batch. Return true if the last open session ended with it."""
    rows, events = len(batch), batch.event_count
    summary.messages += rows - events
    summary.bytes += batch.payload_bytes
    ended = False
    if events:
        ended = _on_events(batch.events(), summary)
    summary.count += sink.take(batch)
    return ended


def _on_events(events: Iterable[Event], summary: Summary) -> bool:
    """Record losses and sessions. Return true if the last open session has ended."""
    ended = False
    for event in events:
        match event:
            case BeginningOfSession():
                summary.open_sources[event.source] = None
            case EndOfSession():
                summary.open_sources.pop(event.source, None)
                ended = not summary.open_sources
            case NakCutoff():
                click.echo(
                    f"umstack: stopped sending NAKs to {event.source}: at the NAK limit for too long",
                    err=True,
                )
            case StaleTags():
                click.echo(
                    f"umstack: datagrams of {event.source} are dropped: its clock differs from this host's",
                    err=True,
                )
            case InterfaceChanged():
                followed = "followed" if event.is_followed else "not followed"
                click.echo(
                    f"umstack: interface {displayed(event.interface)}: {event.change.replace('_', ' ')}, {followed}",
                    err=True,
                )
            case CutLoose():
                summary.losses += 1
                click.echo(
                    f"umstack: too slow for {event.source}: {_lost(event)} dropped while the queue was full",
                    err=True,
                )
            case UnrecoverableLoss() | BurstLoss():
                summary.losses += 1
                if summary.losses <= _LOSSES_SHOWN_MAX:
                    click.echo(f"umstack: unrecoverably lost: {_lost(event)} of {event.source}", err=True)
    return ended


def _note_given_up(stats: dict[str, Any], summary: Summary) -> None:
    """Record messages that were lost without an event: no later message of their topic revealed them."""
    summary.given_up = stats["context"]["datagrams_given_up"]
    leading = sum(receiver["leading_losses"] for receiver in stats["receivers"])
    if leading:
        summary.problems.append(f"{leading} messages were lost before the first one received")
    elif summary.given_up and not summary.losses:
        summary.problems.append(
            f"{summary.given_up} datagrams were lost for good; they may have held messages"
        )


def _lost(event: UnrecoverableLoss | BurstLoss | CutLoose) -> str:
    if isinstance(event, BurstLoss | CutLoose):
        return f"topic sequence numbers {event.first_sequence_number} to {event.sequence_number}"
    return f"topic sequence number {event.sequence_number}"


@contextlib.contextmanager
def _sink(form: str, directory: str | None, output: str | None, summary: Summary) -> Iterator[Sink]:
    """Open the sink that the options select."""
    if directory is not None:
        with Target(directory) as target:
            yield TreeSink(target, summary)
        return

    def sink_to(out: BinaryIO) -> Sink:
        if form == "json-lines":
            return JsonLinesSink(out)
        return StreamSink(out, join_lines if form == "lines" else join_records)

    if output is None:
        yield sink_to(sys.stdout.buffer)
        return
    with contextlib.ExitStack() as stack:
        with naming_path(f"writing {output}"):
            file = Path(output).open("wb")  # noqa: SIM115 - closed below
        stack.callback(_close, file)
        yield sink_to(file)


def _note_unwritable(error: OSError, summary: Summary, *, is_stdout: bool) -> None:
    summary.problems.append(write_problem(error))
    if is_stdout:
        silence_stdout()


def _close(file: BinaryIO) -> None:
    """Close a file whose batches were flushed: only one that failed, and was reported, can fail again."""
    with contextlib.suppress(OSError):
        file.close()


def _is_ok(summary: Summary, count: int | None) -> bool:
    """Return true if the run succeeded; see the help text."""
    reached = summary.count >= count if count is not None else summary.count > 0 or not summary.timed_out
    whole = all(tree["complete"] for tree in summary.trees)
    return reached and whole and summary.losses == 0 and not summary.problems


def _report(summary: Summary, count: int | None, as_json: bool) -> None:
    ok = _is_ok(summary, count)
    for problem in summary.problems:
        click.echo(f"umstack: {problem}", err=True)
    if as_json:
        fields = asdict(summary)
        del fields["open_sources"]
        click.echo(json.dumps({"ok": ok, **fields}))
    else:
        _say(summary, count)
    if not ok:
        raise SystemExit(INTERRUPTED_STATUS if summary.interrupted else 1)


def _say(summary: Summary, count: int | None) -> None:
    took = f"{amount(summary.bytes)} in {summary.seconds:.1f} s"
    for tree in summary.trees:
        state = "complete" if tree["complete"] else f"incomplete, {tree['problem_count']} problems"
        click.echo(f"received {tree['files']:,} files, {amount(tree['bytes'])}: {state}", err=True)
    if count is not None and summary.count < count:
        why = "interrupted" if summary.interrupted else "timed out" if summary.timed_out else "stopped"
        click.echo(f"umstack: {why} after {summary.count:,} of {count:,}", err=True)
    elif summary.timed_out and summary.count == 0:
        click.echo("umstack: timed out, and nothing was received", err=True)
    losses = f", {summary.losses:,} losses" if summary.losses else ""
    click.echo(f"received {summary.messages:,} messages, {took}{losses}", err=True)
