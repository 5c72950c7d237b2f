"""`umstack exporter`: the counters of every running context of the host, for Prometheus."""

from __future__ import annotations

import json

import click

from umstack.cli.interruption import wait_for_end
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION
from umstack.telemetry.alerts import render_alerts
from umstack.telemetry.dashboard import render_dashboard
from umstack.telemetry.endpoint import MetricsEndpoint
from umstack.telemetry.exporter_text import SESSIONS_MAX, TOPICS_MAX, Exposition, render
from umstack.telemetry.statistics_reader import read_statistics

_EXAMPLES = """\b
Examples:
  umstack exporter                          on 127.0.0.1:9464
  umstack exporter --listen :9464           on every address of this host
  umstack exporter --once > umstack.prom    for the node exporter's text files
  umstack exporter --print alerts > umstack.rules.yml
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--listen",
    "address",
    default="127.0.0.1:9464",
    metavar="HOST:PORT",
    show_default=True,
    help="Address of /metrics.",
)
@click.option(
    "--print",
    "printed",
    type=click.Choice(["alerts", "dashboard"]),
    help="Print the alert rules for Prometheus, or the dashboard for Grafana, and exit.",
)
@click.option("--once", is_flag=True, help="Print the current metrics and exit.")
@click.option(
    "--topics",
    "topics_max",
    type=click.IntRange(0),
    default=TOPICS_MAX,
    show_default=True,
    help="Number of topics with their own series; the others are summed.",
)
@click.option(
    "--sessions",
    "sessions_max",
    type=click.IntRange(0),
    default=SESSIONS_MAX,
    show_default=True,
    help="Number of transport sessions with their own series.",
)
@JSON_OPTION
def command(
    address: str, printed: str | None, once: bool, topics_max: int, sessions_max: int, as_json: bool
) -> None:
    """Let Prometheus scrape the counters of all running contexts.

    A context is found unless it was made with statistics=False.
    With --json the first line contains the address or, with --once, the metrics.
    """
    if printed is not None:
        text = render_alerts() if printed == "alerts" else render_dashboard()
        click.echo(json.dumps({printed: text}) if as_json else text, nl=as_json)
        return
    if once:
        text = render(Exposition(topics_max, sessions_max).families(read_statistics()))
        click.echo(json.dumps({"metrics": text}) if as_json else text, nl=as_json)
        return
    with MetricsEndpoint(
        address, read_statistics, topics_max=topics_max, sessions_max=sessions_max
    ) as endpoint:
        if as_json:
            click.echo(json.dumps({"url": endpoint.url}))
        else:
            click.echo(f"metrics at {endpoint.url}", err=True)
        wait_for_end(ServiceManager().announce_readiness)
