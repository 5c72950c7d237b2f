"""`umstack send`: publishes standard input or files to a topic."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

import click

from umstack._engine.endpoint import Endpoint
from umstack.cli.interruption import INTERRUPTED_STATUS, interruptible, terminable
from umstack.cli.lines import Line, Lines
from umstack.cli.meter import Meter, amount
from umstack.cli.pacing import Pace
from umstack.cli.send_stored import Storing, storing_options
from umstack.cli.sending import HotFailoverSending, NotTaken, Sending, Summary
from umstack.cli.stack_options import (
    DRIVER_OPTION,
    JSON_OPTION,
    configuration,
    hot_failover_interfaces,
    stack_options_of_lines,
    warn_in_one_line,
)
from umstack.config import OptionValue, Scope
from umstack.context import Context
from umstack.errors import InvalidArgument, OptionError, UmError, naming_path
from umstack.files.path import shown
from umstack.message_properties import MessageProperties, PropertyValue, typed_text
from umstack.source import Source

_STAY_SECONDS = 1.0
_EXAMPLES = """\b
Examples:
  umstack send orders --interface eth1 < orders.txt
  tail -f /var/log/syslog | umstack send log --wait-receivers 2
  umstack send backup --files /etc/ --wait-receivers 3 --json
  umstack send orders --property region=eu --property priority:int=3 < orders.txt
  umstack send orders --size 200 --rate 10000 --count 1000000
  umstack send orders -o transport_lbtrm_data_rate_limit=100000000
  umstack send orders --hot-failover -i eth1 -i eth2 < orders.txt
  umstack send orders --store 10.9.0.11:14567 --session-id desk7 < orders.txt

\b
A/B lines: --hot-failover numbers every message and sends it over each
interface. `umstack recv orders --hot-failover -i eth1 -i eth2` writes the
first copy of each, so that one lossy, stalled or disconnected line does no
harm. Two hosts can be the lines, too: give both the same input and the same
--first-number.
"""


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
    type=click.FloatRange(0, min_open=True),
    metavar="N",
    help="Send at most N messages per second; with --files, N bytes per second.",
)
@click.option(
    "--size",
    "size_bytes",
    type=click.IntRange(1),
    metavar="BYTES",
    help="Send generated messages of this size instead of standard input, until interrupted or --count.",
)
@click.option(
    "--count",
    type=click.IntRange(1),
    metavar="N",
    help="With --size, the number of messages.",
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
@storing_options
@DRIVER_OPTION
@stack_options_of_lines
@JSON_OPTION
def command(
    topic: str,
    paths: tuple[str, ...],
    form: str,
    exclude: tuple[str, ...],
    rate: float | None,
    size_bytes: int | None,
    count: int | None,
    properties: MessageProperties,
    wait_receivers: int,
    timeout: float | None,
    stay_seconds: float | None,
    is_hot_failover: bool,
    first_number: int,
    store: tuple[Endpoint, ...],
    session_id: int | None,
    interfaces: tuple[str, ...],
    driver: str,
    config_file: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """Publish standard input, files or generated messages to a TOPIC.

    Exits with status 0 once every receiver has every message; receivers that left do not count. Status 1 if a receiver
    lost datagrams for good and cannot fetch their messages, because the source option late_join is off. With --store
    also once the messages are stable, and status 1 if one is not; a Store is one of the --wait-receivers.
    """
    _check_form(form, bool(paths), exclude, properties, size_bytes, count, is_hot_failover)
    storing = Storing(store, session_id)
    storing.check(is_hot_failover=is_hot_failover)
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
        contexts = [opened.enter_context(Context(name, config=config, driver=driver)) for name in names]
        context = contexts[0]
        source = storing.open(context, topic)
        if wait_receivers and source.options.flow_control == "none":
            raise OptionError(
                "with flow_control none a source does not know its receivers",
                hint="add --wait-receivers 0",
            )
        if stay_seconds is None:
            stay_seconds = 0.0 if wait_receivers else _STAY_SECONDS
        pace = None if rate is None or form == "files" else Pace(rate, context.idle)
        sending = Sending(context, source, summary, meter, timeout, properties, pace)
        if isinstance(source, Source) and is_hot_failover:
            sources = [source, *(one.source(topic) for one in contexts[1:])]
            lines = [
                Line(one.interface.name, one, of_line) for one, of_line in zip(contexts, sources, strict=True)
            ]
            sending = HotFailoverSending(
                Lines(lines, first_number, _say_line), summary, meter, timeout, properties, pace
            )
        try:
            with interruptible(summary):
                sending.wait_connected(wait_receivers)
                if form == "files":
                    sending.send_tree(paths, exclude, rate)
                elif size_bytes is not None:
                    sending.send_generated(size_bytes, count)
                else:
                    sending.send_stream(form)
                sending.drain(stay_seconds)
        except NotTaken as error:
            summary.problems.append(str(error))
        sending.finish()
    _report(summary, as_json)


def _check_form(
    form: str,
    has_paths: bool,
    exclude: tuple[str, ...],
    properties: MessageProperties,
    size_bytes: int | None,
    count: int | None,
    is_hot_failover: bool,
) -> None:
    """Raise an error if options are given that cannot be used together."""
    if (form == "files") != has_paths:
        raise click.UsageError("--files needs a PATH, and a PATH needs --files")
    if form != "files" and exclude:
        raise click.UsageError("--exclude is for --files")
    if size_bytes is not None and form != "lines":
        raise click.UsageError("--size generates messages: it cannot be used with --files or --records")
    if count is not None and size_bytes is None:
        raise click.UsageError("--count needs --size")
    if form == "files" and properties:
        raise click.UsageError("messages of --files have no --property")
    if form == "files" and is_hot_failover:
        raise click.UsageError("--hot-failover cannot be used with --files")


def _check_paths(paths: tuple[str, ...]) -> None:
    """Raise an error if a path does not exist or is unreadable."""
    for path in paths:
        with naming_path(f"reading {shown(os.fsencode(path))}"):
            Path(path).lstat()
            if not os.access(path, os.R_OK, follow_symlinks=False):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _say_line(text: str) -> None:
    click.echo(f"umstack: {text}", err=True)


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
                    "given_up": summary.given_up,
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
