"""`umstack bench resolution` and `wildcard`: topics by the thousand, through daemons and in a wildcard receiver."""

from __future__ import annotations

import json
from dataclasses import replace

import click
from rich.console import Console

from umstack.bench import environment
from umstack.bench.resolution import ResolutionPlan, measure
from umstack.bench.result import Result
from umstack.bench.wildcard import WildcardPlan
from umstack.bench.wildcard import measure as measure_wildcard
from umstack.cli.stack_options import JSON_OPTION

_PLAN = ResolutionPlan()
_WILDCARD = WildcardPlan()


@click.command(
    "resolution", epilog="Example: umstack bench resolution --topics 1000 --contexts 20 --daemons 2"
)
@click.option(
    "--topics", type=click.IntRange(1), default=_PLAN.topics, show_default=True, help="Of all contexts."
)
@click.option(
    "--contexts", type=click.IntRange(2), default=_PLAN.contexts, show_default=True, help="How many."
)
@click.option(
    "--hosts", type=click.IntRange(1, 100), default=_PLAN.hosts, show_default=True, help="They are on."
)
@click.option(
    "--daemons", type=click.IntRange(1, 4), default=_PLAN.daemons, show_default=True, help="How many."
)
@click.option(
    "--seconds", type=click.FloatRange(1), default=_PLAN.seconds, show_default=True, help="When to give up."
)
@JSON_OPTION
def command(as_json: bool, **asked: float) -> None:
    """How long it takes until every context knows every topic, through daemons, on hosts without multicast.

    Each context has its share of the topics as sources, and receivers of the topics of another; with default schedules
    and rate limits. Fails when that is not done in time.
    """
    plan = replace(_PLAN, **asked)  # type: ignore[arg-type]
    console = Console(stderr=True)
    found = measure(plan, lambda text: console.print(f"resolution: {text}", highlight=False))
    if as_json:
        described = environment.describe(mtu=1500, segmentation="auto", pinned=False, options=[])
        click.echo(json.dumps({"environment": described, "results": [found]}))
    else:
        _print(found)
    if found["detail"]["resolved_seconds"] is None:
        raise SystemExit(1)


def _print(found: Result) -> None:
    detail, counters = found["detail"], found["detail"]["counters"]
    seconds = detail["resolved_seconds"]
    click.echo(f"{detail['topics']:,} topics of {detail['contexts']} contexts on {detail['hosts']} hosts:")
    if seconds is None:
        click.echo(
            f"  not resolved: {detail['unresolved']:,} receivers, {detail['least_known']:,} topics known at least"
        )
    else:
        click.echo(f"  resolved after {seconds:.1f} s")
    cpu = found["cpu_seconds"]
    click.echo(f"  processor time: daemons {cpu['daemons']:.1f} s, contexts {cpu['contexts']:.1f} s")
    click.echo(
        f"  contexts sent {counters['tr_dgrams_sent']:,} datagrams and received {counters['tr_dgrams_rcved']:,}, "
        f"{counters['tr_advertisements_rcved'] + counters['tr_queries_rcved']:,} records"
    )
    for daemon in detail["daemons"]:
        click.echo(
            f"  daemon {daemon['address']}: received {daemon['datagrams_received']:,}, "
            f"relayed {daemon['datagrams_relayed']:,}, not sent {daemon['send_failed']:,}"
        )


@click.command("wildcard", epilog="Example: umstack bench wildcard --topics 10000")
@click.option(
    "--topics", type=click.IntRange(1), default=_WILDCARD.topics, show_default=True, help="They match."
)
@click.option(
    "--messages", type=click.IntRange(64), default=_WILDCARD.messages, show_default=True, help="A round."
)
@click.option(
    "--rounds", type=click.IntRange(1), default=_WILDCARD.rounds, show_default=True, help="In turns."
)
@JSON_OPTION
def wildcard_command(as_json: bool, **asked: int) -> None:
    """What a message costs a wildcard receiver of many topics, next to a plain receiver. Over loopback, no root."""
    console = Console(stderr=True)
    found = measure_wildcard(
        replace(_WILDCARD, **asked), lambda text: console.print(f"wildcard: {text}", highlight=False)
    )
    detail = found["detail"]
    if as_json:
        described = environment.describe(mtu=65536, segmentation="auto", pinned=False, options=[])
        click.echo(json.dumps({"environment": described, "results": [found]}))
    else:
        click.echo(
            f"{detail['topics']:,} topics: {detail['wildcard_ns']:.0f} ns a message, {detail['plain_ns']:.0f} ns in a "
            f"plain receiver: {found['ratios']['plain']:.2f} x, median of {len(detail['rounds'])} rounds in turns"
        )


__all__ = ["command", "wildcard_command"]
