"""`umstack bench`: how fast the stack is on this machine, next to raw kernel sockets in the same run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

import click
from rich.console import Console

from umstack.bench import environment, latency, throughput
from umstack.bench.result import Result, faults
from umstack.bench.round_trip_ends import Loop, RoundTripSpec, Wait
from umstack.bench.stream_ends import Api, Input, StreamSpec
from umstack.bench.throughput import Progress, Segmentation
from umstack.cli.bench_tables import latency_table, throughput_table
from umstack.config import Config
from umstack.errors import OptionError

_EXAMPLES = """\b
Examples:
  umstack bench throughput --size 64 --size 1024
  umstack bench throughput --size 64 --api message --seconds 5
  umstack bench latency --wait busy --loop core
  umstack bench throughput -o source.transport_lbtrm_transmission_window_size=50331648
"""


def _option_line(text: str) -> str:
    """`scope.option=value` as a line of a configuration."""
    name, equals, value = text.partition("=")
    scope, dot, option = name.partition(".")
    if not (equals and dot):
        raise click.BadParameter(f"{text} is not scope.option=value: as in source.flow_control=min")
    line = f"{scope} {option} {value}"
    try:
        Config.parse(line)
    except OptionError as error:
        raise click.BadParameter(f"{error.message}; {error.hint}") from None
    return line


_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
_LINK = click.option(
    "--link",
    type=click.Choice(["auto", "socket", "xdp"]),
    default="socket",
    show_default=True,
    help="The link.",
)
_OPTIONS = click.option(
    "-o",
    "--option",
    "options",
    type=_option_line,
    multiple=True,
    metavar="SCOPE.OPTION=VALUE",
    help="Set an option of the stack at both ends.",
)
_ROUNDS = click.option("--rounds", default=3, show_default=True, help="Rounds; the figures are medians.")
_PIN = click.option(
    "--pin/--no-pin", "is_pinned", default=True, help="Keep each end on a processor of its own (the default)."
)
_MODE = click.option(
    "--mode",
    type=click.Choice(["embedded", "sequential"]),
    show_default=True,
    help="Who runs the protocol: a thread of the context, or the application's.",
)


def _seconds(default: float) -> Callable[[Any], Any]:
    return click.option(
        "--seconds",
        type=click.FloatRange(min=0.05),
        default=default,
        show_default=True,
        help="Length of each measurement.",
    )


@contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """Say on standard error what is being measured."""
    console = Console(stderr=True)
    with console.status(title) as status:
        if console.is_terminal:
            yield lambda text: status.update(f"{title}: {text}")
        else:
            yield lambda text: console.print(f"{title}: {text}", highlight=False)


def _report(
    results: Sequence[Result],
    described: dict[str, Any],
    as_json: bool,
    table: Callable[[Sequence[Result]], Any],
) -> None:
    """Print what was found; a stack that did not keep its promise is a failure."""
    if as_json:
        click.echo(json.dumps({"environment": described, "results": results}))
    else:
        Console().print(table(results))
    broken = faults(results)
    for fault in broken:
        click.echo(f"umstack bench: {fault}", err=True)
    if broken:
        raise click.exceptions.Exit(1)


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Measure throughput, latency and recovery next to raw kernel sockets in the same run.

    Publisher and subscribers are processes of their own on hosts of a lab (`umstack lab --help`) made for the run,
    which needs root. Order and completeness are checked on every message; a run in which one is missing fails.
    """


@command.command("throughput", epilog="Example: umstack bench throughput --size 64 --size 1024 --seconds 3")
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(8, 65000),
    multiple=True,
    default=(64, 1024),
    show_default=True,
    help="Message size in bytes; may be given again.",
)
@click.option(
    "--api",
    type=click.Choice(get_args(Api)),
    default="batch",
    show_default=True,
    help="How Python uses the stack.",
)
@click.option(
    "--input",
    "form",
    type=click.Choice(get_args(Input)),
    default="packed",
    show_default=True,
    help="With the batch API: what the publisher hands over.",
)
@click.option(
    "--segmentation",
    type=click.Choice(get_args(Segmentation)),
    default="real",
    show_default=True,
    help="real: GSO super-packets are cut at the host, as by a NIC. offload: they cross whole. none: no GSO, no GRO.",
)
@click.option(
    "--flow-control",
    type=click.Choice(["none", "min", "max"]),
    default="min",
    show_default=True,
    help="Whose window bounds the publisher.",
)
@click.option(
    "--topics", type=click.IntRange(1, 1000), default=1, show_default=True, help="Topics on the session."
)
@click.option("--receivers", type=click.IntRange(1, 16), default=1, show_default=True, help="Subscribers.")
@click.option(
    "--batch",
    "batch_messages",
    type=click.IntRange(0, 65536),
    default=0,
    help="Messages a send; default: 256 KiB.",
)
@click.option("--baselines/--no-baselines", "has_baselines", default=True, help="Measure raw sockets too.")
@_MODE
@_LINK
@_seconds(2.0)
@_ROUNDS
@_PIN
@_OPTIONS
@_JSON
def _throughput(
    sizes: Sequence[int],
    form: Input,
    segmentation: Segmentation,
    flow_control: str,
    options: Sequence[str],
    rounds: int,
    is_pinned: bool,
    has_baselines: bool,
    as_json: bool,
    mode: str | None,
    **stream: Any,
) -> None:
    """How many messages a second, and how that stands to raw sockets."""
    config = throughput.options_text(flow_control, segmentation, options)
    specs = [
        StreamSpec(size=size, input=form, config=config, mode=mode or "embedded", **stream) for size in sizes
    ]
    plan = throughput.ThroughputPlan(specs, segmentation, rounds, is_pinned, has_baselines)
    with _progress("throughput") as progress:
        results = throughput.measure(plan, progress)
    described = environment.describe(
        mtu=1500, segmentation=segmentation, pinned=is_pinned, rounds=rounds, options=config.splitlines()
    )
    _report(results, described, as_json, throughput_table)


@command.command("latency", epilog="Example: umstack bench latency --wait busy --loop core")
@click.option(
    "--wait",
    "waits",
    type=click.Choice(get_args(Wait)),
    multiple=True,
    default=get_args(Wait),
    show_default=True,
    help="How an end waits for the next message.",
)
@click.option(
    "--loop",
    "loops",
    type=click.Choice(get_args(Loop)),
    multiple=True,
    default=get_args(Loop),
    show_default=True,
    help="Where the loop runs that sends and waits.",
)
@click.option(
    "--size", type=click.IntRange(8, 1024), default=64, show_default=True, help="Message size in bytes."
)
@click.option(
    "--count",
    "samples",
    type=click.IntRange(1),
    default=200_000,
    show_default=True,
    help="Round trips at most.",
)
@click.option(
    "--loss", type=click.FloatRange(0, 1), default=0.0, help="Fraction of datagrams lost in each direction."
)
@_MODE
@_LINK
@_seconds(2.0)
@_ROUNDS
@_PIN
@_OPTIONS
@_JSON
def _latency(
    waits: Sequence[Wait],
    loops: Sequence[Loop],
    options: Sequence[str],
    rounds: int,
    loss: float,
    is_pinned: bool,
    as_json: bool,
    mode: str | None,
    **trip: Any,
) -> None:
    """How long a message takes there and back, and how that stands to a datagram between raw sockets."""
    config = throughput.options_text("min", "real", options)
    specs = [
        RoundTripSpec(wait=wait, loop=loop, config=config, mode=mode or "sequential", **trip)
        for wait in waits
        for loop in loops
    ]
    plan = latency.LatencyPlan(specs, rounds, loss, is_pinned)
    with _progress("latency") as progress:
        results = latency.measure(plan, progress)
    described = environment.describe(
        mtu=1500, segmentation="real", pinned=is_pinned, rounds=rounds, loss=loss, options=config.splitlines()
    )
    _report(results, described, as_json, latency_table)
