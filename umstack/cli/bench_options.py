"""Options and output shared by the commands of `umstack bench` and the scripts of `tests/bench`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, RenderableType

from umstack.bench import environment
from umstack.bench.result import Result, faults
from umstack.bench.throughput import Progress
from umstack.config import Config
from umstack.errors import OptionError


def _option_line(text: str) -> str:
    """Convert `scope.option=value` to a configuration line."""
    name, equals, value = text.partition("=")
    scope, dot, option = name.partition(".")
    if not (equals and dot):
        raise click.BadParameter(f"{text} is not scope.option=value, for example source.flow_control=min")
    line = f"{scope} {option} {value}"
    try:
        Config.parse(line)
    except OptionError as error:
        raise click.BadParameter(f"{error.message}; {error.hint}") from None
    return line


OPTION_LINES = click.option(
    "-o",
    "--option",
    "options",
    type=_option_line,
    multiple=True,
    metavar="SCOPE.OPTION=VALUE",
    help="Set an option of the stack at both ends; repeatable.",
)
ROUNDS = click.option(
    "--rounds", default=3, show_default=True, help="Number of rounds; the figures are medians."
)
PIN = click.option(
    "--pin/--no-pin", "is_pinned", default=True, help="Pin each end to its own CPU (the default)."
)
TRANSPORT = click.option(
    "--transport",
    type=click.Choice(["lbtrm", "lbtru", "tcp"]),
    default="lbtrm",
    show_default=True,
    help="Transport. lbtru is compared with raw unicast datagrams, tcp with a plain TCP stream.",
)
PEERS = click.option(
    "--peer",
    "others",
    type=click.Choice(["zmq"]),
    multiple=True,
    help="Measure another stack in the same rounds. zmq: ZeroMQ over TCP (pyzmq), streams in C and Python, round "
    "trips in Python.",
)
_FILE_WIDTH = 160
JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def size_option(
    maximum: int, what: str = "Message size in bytes.", *, default: int = 64
) -> Callable[[Any], Any]:
    return click.option(
        "--size", type=click.IntRange(8, maximum), default=default, show_default=True, help=what
    )


def sizes_option(*default: int) -> Callable[[Any], Any]:
    return click.option(
        "--size",
        "sizes",
        type=click.IntRange(8, 65000),
        multiple=True,
        default=default,
        show_default=True,
        help="Message size in bytes; repeatable.",
    )


def common_options(seconds: float) -> Callable[[Any], Any]:
    """Add the options of every measurement; `seconds` is the default length."""
    length = click.option(
        "--seconds",
        type=click.FloatRange(min=0.05),
        default=seconds,
        show_default=True,
        help="Length of each measurement.",
    )

    def decorate(function: Any) -> Any:
        for option in (JSON, OPTION_LINES, PIN, ROUNDS, length):
            function = option(function)
        return function

    return decorate


@contextmanager
def progress_shown(title: str) -> Iterator[Progress]:
    """Show the progress on standard error."""
    console = Console(stderr=True)
    with console.status(title) as status:
        if console.is_terminal:
            yield lambda text: status.update(f"{title}: {text}")
        else:
            yield lambda text: console.print(f"{title}: {text}", highlight=False)


def report_results(
    results: Sequence[Result],
    described: dict[str, Any],
    as_json: bool,
    table: Callable[[Sequence[Result]], RenderableType],
    **more: Any,
) -> None:
    """Print the results. Exits with status 1 if the stack lost, reordered or duplicated messages."""
    if as_json:
        click.echo(json.dumps({"environment": described, "results": results, **more}))
    else:
        print_table(table(results))
    broken = faults(results)
    for fault in broken:
        click.echo(f"umstack bench: {fault}", err=True)
    if broken:
        raise click.exceptions.Exit(1)


def print_table(table: RenderableType) -> None:
    console = Console()
    # Do not wrap a table in a file at the width of a terminal.
    Console(width=None if console.is_terminal else _FILE_WIDTH).print(table)


def describe(config: str, is_pinned: bool, segmentation: str = "real", **of_run: Any) -> dict[str, Any]:
    return environment.describe(
        mtu=1500, segmentation=segmentation, pinned=is_pinned, options=config.split("\n"), **of_run
    )
