"""`umstack driver`: one process that owns the links of interfaces for the applications of the host."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import click

from umstack.cli.admission import ServiceLog, allow_options
from umstack.cli.interruption import stoppable, terminable
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION, configuration, warn_in_one_line
from umstack.config import Scope
from umstack.driver import default_path
from umstack.driving import Driver, DriverLimits
from umstack.driving.threads import THREADING_MODES
from umstack.driving.topics import DriverContext
from umstack.errors import PermissionNeeded, UmError
from umstack_xdp import XdpError
from umstack_xdp.broker import Broker
from umstack_xdp.broker_policy import Policy
from umstack_xdp.capabilities import held_capabilities, missing_capabilities
from umstack_xdp.listening import inherited_listener, listen_at

_EXAMPLES = """\b
Examples:
  umstack driver eth1 --allow-group market-data
  umstack driver eth1 eth2 --broker-path /run/umstack/xdp.sock
  umstack driver eth1 -o link=xdp --path /run/feed/driver.sock --allow-user feed
  umstack driver lo --json 2>driver.log
"""
_PLACE = "INTERFACE"
_LIMITS = DriverLimits()
_POLICY = Policy()


@click.command(epilog=_EXAMPLES)
@click.argument("interfaces", metavar="INTERFACE...", nargs=-1, required=True)
@click.option(
    "--path",
    help="Control socket, without systemd; INTERFACE stands for the name. Default: "
    "/run/umstack/driver-INTERFACE.sock.",
)
@allow_options
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
    "--threading-mode",
    type=click.Choice(THREADING_MODES),
    default=THREADING_MODES[0],
    show_default=True,
    help="dedicated: a thread receives, and others send. shared: one thread for everything, for a driver that has one "
    "processor.",
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
@click.option(
    "--broker-path",
    metavar="PATH",
    help="Also open AF_XDP rings for other processes, as `umstack broker` does, on this socket.",
)
@JSON_OPTION
def command(
    interfaces: tuple[str, ...],
    path: str | None,
    users: frozenset[int],
    groups: frozenset[int],
    clients_max: int,
    user_clients_max: int,
    sources_max: int,
    receivers_max: int,
    threading_mode: str,
    options: tuple[str, ...],
    config_file: str | None,
    broker_path: str | None,
    as_json: bool,
) -> None:
    """Send and receive on each INTERFACE for every application of the host that attaches with Context(driver=).

    Each datagram is received once for all of them, and sources reach receivers of the same host through memory. Serves
    root, its own user and the configured users and groups. The applications need no privilege; the driver needs those
    of its link (umstack doctor). Runs until Ctrl-C or SIGTERM. Logs one line per event on stderr; with --json one
    object per event, and a summary at the end.
    """
    warn_in_one_line()
    if path is not None and len(interfaces) > 1 and _PLACE not in path:
        raise click.BadParameter(f"for several interfaces it contains {_PLACE}", param_hint="--path")
    if broker_path is not None and (missing := missing_capabilities(held_capabilities())):
        raise PermissionNeeded(f"the driver lacks {', '.join(missing)} to lend rings")
    log = ServiceLog(as_json)
    policy = Policy(users, groups, connections_max=clients_max, user_connections_max=user_clients_max)
    config = configuration([Scope.CONTEXT], {}, config_file, options)
    links: dict[str, dict[str, str]] = {}
    try:
        with terminable(once=True), ExitStack() as stack:
            is_shared = threading_mode == "shared"
            contexts = [
                stack.enter_context(DriverContext(one, config=config, is_shared=is_shared))
                for one in interfaces
            ]
            inherited = inherited_listener()
            if inherited is not None and len(interfaces) > 1:
                raise UmError("systemd passed one socket", hint="give the unit of a driver one interface")
            serving: list[Driver | Broker] = []
            for context in contexts:
                name = context.interface.name
                at = Path(path.replace(_PLACE, name) if path else default_path(name))
                listener = inherited or stack.enter_context(listen_at(at))
                where = str(at) if inherited is None else "the socket of its unit"
                limits = DriverLimits(sources_max, receivers_max)
                driver = Driver(context, listener, policy, limits, log.write)
                stack.callback(driver.close)
                serving.append(driver)
                links[name] = {"path": where, "link": context.link}
                click.echo(f"serving {name} ({context.link}) at {where}", err=True)
            if broker_path is not None:
                listener = stack.enter_context(listen_at(Path(broker_path)))
                serving.append(stack.enter_context(Broker(listener, Policy(users, groups), log.write)))
                click.echo(f"lending rings at {broker_path}", err=True)
            ServiceManager().announce_readiness()
            _serve(serving)
            click.echo("ended", err=True)
    except XdpError as error:
        raise UmError(error.message, hint=error.hint) from error
    except KeyboardInterrupt:
        click.echo("ended", err=True)
    if as_json:
        counts = {what: log.counts[what] for what in ("attached", "detached", "refused")}
        click.echo(json.dumps({"interfaces": links, **counts}))


def _serve(serving: Sequence[Driver | Broker]) -> None:
    """Serve, one on this thread and each other on its own, until a signal, or until one of them fails."""

    def stop() -> None:
        for one in serving:
            one.stop()

    def serve(one: Driver | Broker) -> None:
        try:
            one.serve()
        finally:
            stop()

    threads = [threading.Thread(target=serve, args=(one,)) for one in serving[1:]]
    with stoppable(stop):  # an exception would interrupt it between two steps
        for thread in threads:
            thread.start()
        serve(serving[0])
        for thread in threads:
            thread.join()
