"""What the measurements of `umstack bench` have in common on the command line."""

from __future__ import annotations

import click

from umstack.config import Config
from umstack.errors import OptionError


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


OPTION_LINES = click.option(
    "-o",
    "--option",
    "options",
    type=_option_line,
    multiple=True,
    metavar="SCOPE.OPTION=VALUE",
    help="Set an option of the stack at both ends.",
)
ROUNDS = click.option("--rounds", default=3, show_default=True, help="Rounds; the figures are medians.")
PIN = click.option(
    "--pin/--no-pin", "is_pinned", default=True, help="Keep each end on a processor of its own (the default)."
)
TRANSPORT = click.option(
    "--transport",
    type=click.Choice(["lbtrm", "lbtru", "tcp"]),
    default="lbtrm",
    show_default=True,
    help="The transport; lbtru is measured beside raw datagrams from address to address, tcp beside a plain stream.",
)
PEERS = click.option(
    "--peer",
    "others",
    type=click.Choice(["zmq"]),
    multiple=True,
    help="Measure another stack in the same rounds: zmq is ZeroMQ over TCP (pyzmq): streams in C and in Python, round "
    "trips in Python.",
)
