"""`umstack topics`: lists the topics that are advertised, and their sources."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import click
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from umstack.cli.interruption import terminable
from umstack.cli.meter import Meter
from umstack.cli.stack_options import JSON_OPTION, configuration, stack_options, warn_in_one_line
from umstack.config import Scope
from umstack.context import Context
from umstack.foreign_text import displayed
from umstack.resolution import TopicPattern

_LOOK_SECONDS = 0.05
_EXAMPLES = """\b
Examples:
  umstack topics --interface eth1
  umstack topics --prefix orders. --wait 5
  umstack topics --json | jq '.topics[].topic'
"""

Sources = dict[str, list[str]]


@click.command(epilog=_EXAMPLES)
@click.option("--prefix", metavar="TEXT", help="Only topics whose name starts with this.")
@click.option("--regex", metavar="PATTERN", help="Only topics whose name this expression matches.")
@click.option(
    "--wait",
    "wait_seconds",
    type=click.FloatRange(0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="End when no new topic has been advertised for this long.",
)
@stack_options
@JSON_OPTION
def command(
    prefix: str | None,
    regex: str | None,
    wait_seconds: float,
    interface: str | None,
    config_file: str | None,
    options: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the advertised topics and who advertises them.

    Every process is requested to advertise its sources. A source is its transport session and topic index; the first
    address is that of its host. Status 1 if no topic is found.
    """
    if prefix is not None and regex is not None:
        raise click.UsageError("give --prefix or --regex, not both")
    matches = _matcher(prefix, regex)
    warn_in_one_line()
    config = configuration((Scope.CONTEXT,), {}, config_file, options)
    with terminable(), Meter() as meter, Context(interface, config=config) as context:
        found = _discover(context, matches, wait_seconds, meter)
    if as_json:
        rows = [{"topic": topic, "sources": sources} for topic, sources in sorted(found.items())]
        click.echo(json.dumps({"ok": bool(found), "topics": rows}))
    elif found:
        Console(soft_wrap=True).print(_table(found))
    else:
        click.echo(f"umstack: no topic was advertised within {wait_seconds:g} s", err=True)
    if not found:
        raise SystemExit(1)


def _matcher(prefix: str | None, regex: str | None) -> Callable[[str], bool | None]:
    """Return the filter of topic names. A name that takes too long to match is not listed."""
    if regex is not None:
        return TopicPattern.of_expression(regex).matches
    return TopicPattern.of_prefix(prefix).matches if prefix is not None else lambda _topic: True


def _discover(
    context: Context, matches: Callable[[str], bool | None], wait_seconds: float, meter: Meter
) -> Sources:
    """Request advertisements, wait until no new topic is advertised, and return the sources by topic."""
    context.discover_topics()
    known = 0
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < wait_seconds:
        context.idle(_LOOK_SECONDS)
        count = len(context.topics())
        if count > known:
            known, quiet_since = count, time.monotonic()
        meter.show(f"{count:,} topics so far")
    return {topic: context.sources_of(topic) for topic in context.topics() if matches(topic)}


def _table(found: Sources) -> Table:
    table = Table("topic", "source", box=SIMPLE, show_edge=False)
    for topic, sources in sorted(found.items()):
        for number, source in enumerate(sources):
            table.add_row(Text(displayed(topic) if number == 0 else ""), Text(source))
    return table
