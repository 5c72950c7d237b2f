"""`umstack watch`: shows every context of the host on a page in a browser."""

from __future__ import annotations

import json

import click

from umstack.cli.interruption import wait_for_end
from umstack.cli.stack_options import JSON_OPTION
from umstack.telemetry.live_page import LivePage
from umstack.telemetry.statistics_reader import read_statistics

_DEFAULT_ADDRESS = "127.0.0.1:9465"
_EXAMPLES = """\b
Examples:
  umstack watch --web
  umstack watch --web 127.0.0.1:8080 --interval 0.5
  ssh -L 9465:localhost:9465 host umstack watch --web
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "--web",
    "address",
    is_flag=False,
    flag_value=_DEFAULT_ADDRESS,
    metavar="[HOST:PORT]",
    help=f"Serve the page here. Default address: {_DEFAULT_ADDRESS}.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 60),
    default=1.0,
    show_default=True,
    help="Seconds between readings.",
)
@JSON_OPTION
def command(address: str | None, interval: float, as_json: bool) -> None:
    """Show what `umstack top` shows as a page in a browser: charts of rate, loss and recovery, and every session.

    The page needs nothing from elsewhere and is for this host alone, unless it is given another address. Contexts are
    read while somebody looks. With --json the first line contains the address of the page.
    """
    if address is None:
        raise click.UsageError("add --web for a page in a browser; in a terminal use umstack top")
    with LivePage(address, read_statistics, interval=interval) as page:
        if as_json:
            click.echo(json.dumps({"url": page.url}))
        else:
            click.echo(f"open {page.url} (Ctrl-C ends)", err=True)
        wait_for_end()
