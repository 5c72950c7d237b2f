"""`umstack driver`: one process that owns the link of an interface for the applications of the host."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click

from umstack.cli.broker import group_id, user_id
from umstack.cli.interruption import stoppable, terminable
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION, configuration, warn_in_one_line
from umstack.config import Scope
from umstack.driver import default_path
from umstack.driving import Driver, DriverEvent, DriverLimits
from umstack.driving.topics import DriverContext
from umstack.errors import UmError
from umstack.foreign_text import displayed
from umstack_xdp import XdpError
from umstack_xdp.broker import inherited_listener, listen_at
from umstack_xdp.broker_policy import Policy

_EXAMPLES = """\b
Examples:
  umstack driver eth1 --allow-group market-data
  umstack driver eth1 -o link=xdp --path /run/feed/driver.sock --allow-user feed
  umstack driver lo --json 2>driver.log
"""
_LIMITS = DriverLimits()
_POLICY = Policy()


@dataclass(slots=True)
class _Log:
    """Logs events on stderr: one line each, or one JSON object each."""

    as_json: bool
    counts: Counter[str] = field(default_factory=Counter)

    def write(self, event: DriverEvent) -> None:
        """Log one event."""
        self.counts[event.what] += 1
        if self.as_json:
            fields = {
                "what": event.what,
                "pid": event.peer.pid,
                "uid": event.peer.uid,
                "reason": event.reason,
            }
            click.echo(json.dumps(fields), err=True)
            return
        click.echo(
            displayed(f"{event.what}: {event.peer}{'; ' if event.reason else ''}{event.reason}"), err=True
        )


@click.command(epilog=_EXAMPLES)
@click.argument("interface")
@click.option(
    "--path",
    help="Control socket to listen on, without systemd. Default: /run/umstack/driver-INTERFACE.sock.",
)
@click.option(
    "--allow-user", "users", multiple=True, metavar="USER", help="Also serve this user; repeatable."
)
@click.option(
    "--allow-group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Also serve members of this group; repeatable.",
)
@click.option(
    "--clients-max",
    type=click.IntRange(1),
    default=_POLICY.connections_max,
    show_default=True,
    help="Maximum number of attached applications.",
)
@click.option(
    "--user-clients-max",
    type=click.IntRange(1),
    default=_POLICY.user_connections_max,
    show_default=True,
    help="The same per user, except root and the driver's own user.",
)
@click.option(
    "--sources-max",
    type=click.IntRange(1),
    default=_LIMITS.sources_max,
    show_default=True,
    help="Maximum number of sources per application.",
)
@click.option(
    "--receivers-max",
    type=click.IntRange(1),
    default=_LIMITS.receivers_max,
    show_default=True,
    help="Maximum number of receivers per application.",
)
@click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a context option (docs/options.md), such as link=xdp; repeatable.",
)
@click.option(
    "-c", "--config", "config_file", metavar="FILE", help="A configuration file, for its context options."
)
@JSON_OPTION
def command(
    interface: str,
    path: str | None,
    users: tuple[str, ...],
    groups: tuple[str, ...],
    clients_max: int,
    user_clients_max: int,
    sources_max: int,
    receivers_max: int,
    options: tuple[str, ...],
    config_file: str | None,
    as_json: bool,
) -> None:
    """Send and receive on INTERFACE for every application of the host that attaches with Context(driver=).

    Each datagram is received once for all of them, and sources reach receivers of the same host through memory. Serves
    root, its own user and the configured users and groups. The applications need no privilege; the driver needs those
    of its link (umstack doctor). Runs until Ctrl-C or SIGTERM. Logs one line per event on stderr; with --json one
    object per event, and a summary at the end.
    """
    warn_in_one_line()
    log = _Log(as_json)
    policy = Policy(
        frozenset(map(user_id, users)),
        frozenset(map(group_id, groups)),
        connections_max=clients_max,
        user_connections_max=user_clients_max,
    )
    config = configuration([Scope.CONTEXT], {}, config_file, options)
    try:
        with ExitStack() as stack:
            context = stack.enter_context(DriverContext(interface, config=config))
            where = Path(path or default_path(context.interface.name))
            link = context.link
            with terminable(once=True), ExitStack() as serving:
                listener = inherited_listener() or serving.enter_context(listen_at(where))
                limits = DriverLimits(sources_max, receivers_max)
                driver = Driver(context, listener, policy, limits, log.write)
                serving.callback(driver.close)
                click.echo(f"serving {context.interface.name} ({link}) at {where}", err=True)
                ServiceManager().announce_readiness()
                with stoppable(driver.stop):  # an exception would interrupt it between two steps
                    driver.serve()
                    click.echo("ended", err=True)
    except XdpError as error:
        raise UmError(error.message, hint=error.hint) from error
    except KeyboardInterrupt:
        click.echo("ended", err=True)
    if as_json:
        counts = {what: log.counts[what] for what in ("attached", "detached", "refused")}
        click.echo(json.dumps({"interface": interface, "path": str(where), "link": link, **counts}))
