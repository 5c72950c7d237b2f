"""`umstack bench request`: how long a request's response takes, next to a plain TCP round trip."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.console import Console

from umstack.bench import environment, throughput
from umstack.bench.request_ends import RequestSpec
from umstack.bench.requests import RequestPlan, measure
from umstack.cli.bench_options import OPTION_LINES, PIN, ROUNDS
from umstack.cli.bench_tables import latency_table
from umstack.cli.stack_options import JSON_OPTION


@click.command("request", epilog="Example: umstack bench request --size 1024 --rounds 5")
@click.option("--size", type=click.IntRange(8, 1 << 20), default=64, show_default=True, help="In bytes.")
@click.option(
    "--mode",
    type=click.Choice(["embedded", "sequential"]),
    default="embedded",
    show_default=True,
    help="Operational mode of both contexts.",
)
@click.option("--count", "samples", type=click.IntRange(1), default=200_000, help="Requests at most.")
@click.option("--seconds", type=click.FloatRange(0.05), default=2.0, show_default=True, help="Of each round.")
@ROUNDS
@click.option("--loss", type=click.FloatRange(0, 0.5), default=0.0, help="Share of datagrams lost.")
@OPTION_LINES
@PIN
@JSON_OPTION
def command(
    options: tuple[str, ...], rounds: int, loss: float, is_pinned: bool, as_json: bool, **trip: Any
) -> None:
    """How long the response to a request takes, next to a message there and back over a TCP connection.

    Both ends wait blocking and loop in Python; the two take turns between the same two hosts of a lab.
    """
    config = throughput.options_text("min", "real", options)
    console = Console(stderr=True)
    results = measure(
        RequestPlan([RequestSpec(config=config, **trip)], rounds, loss, is_pinned),
        lambda text: console.print(f"request: {text}", highlight=False),
    )
    if as_json:
        described = environment.describe(
            mtu=1500, segmentation="real", pinned=is_pinned, options=config.split("\n")
        )
        click.echo(json.dumps({"environment": described, "results": results}))
    else:
        Console().print(latency_table(results))
