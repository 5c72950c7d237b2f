"""`umstack broker`: the privileged helper that opens AF_XDP rings for processes without privileges."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import click

from umstack.cli.admission import ServiceLog, allow_options
from umstack.cli.interruption import terminable
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION
from umstack.errors import PermissionNeeded, UmError
from umstack.foreign_text import displayed
from umstack_xdp import XdpError
from umstack_xdp.broker import FRAMES_MAX_BYTES, Broker, Policy
from umstack_xdp.broker_protocol import DEFAULT_PATH
from umstack_xdp.capabilities import held_capabilities, missing_capabilities
from umstack_xdp.confinement import IN_FORCE, confine
from umstack_xdp.listening import inherited_listener, listen_at

_EXAMPLES = """\b
Examples:
  umstack broker --allow-group market-data
  umstack broker --path /run/feed/xdp.sock --allow-user feed
  systemctl start umstack-broker.socket         see docs/privileges.md for the units
"""


@click.command(epilog=_EXAMPLES)
@click.option("--path", default=DEFAULT_PATH, show_default=True, help="Socket to listen on, without systemd.")
@allow_options
@click.option(
    "--frames-max-mib",
    type=click.IntRange(1),
    default=FRAMES_MAX_BYTES >> 20,
    show_default=True,
    help="Maximum frame memory per user, until the sockets are closed.",
)
@click.option(
    "--interface",
    "interfaces",
    multiple=True,
    metavar="NAME",
    help="Interface to serve; repeatable. Default: all.",
)
@click.option(
    "--steer-ports",
    "ports",
    multiple=True,
    metavar="FIRST[-LAST]",
    default=("1024-65535",),
    show_default=True,
    help="UDP ports that clients may steer.",
)
@JSON_OPTION
def command(
    path: str,
    users: frozenset[int],
    groups: frozenset[int],
    frames_max_mib: int,
    interfaces: tuple[str, ...],
    ports: tuple[str, ...],
    as_json: bool,
) -> None:
    """Open AF_XDP rings for unprivileged processes: attach the program, pass the sockets, manage the steering rules.

    Needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF, and CAP_IPC_LOCK for the frames. Serves root, its own user and the
    configured users and groups. Runs until Ctrl-C or SIGTERM, and then detaches every program. Logs one line per event
    on stderr; with --json one object per event, and a summary at the end.
    """
    if missing := missing_capabilities(held_capabilities()):
        raise PermissionNeeded(f"the broker lacks {', '.join(missing)}")
    log = ServiceLog(as_json)
    confinement: dict[str, str] = {}
    try:
        policy = Policy(
            users,
            groups,
            frames_max_mib << 20,
            frozenset(interfaces) or None,
            tuple(map(_port_range, ports)),
        )
        _run(Path(path), policy, log, confinement)
    except XdpError as error:
        raise UmError(error.message, hint=error.hint) from error
    if as_json:
        counts = {what: log.counts[what] for what in ("lent", "returned", "refused")}
        click.echo(json.dumps({"path": path, **counts, "confinement": confinement}))


def _run(path: Path, policy: Policy, log: ServiceLog, confinement: dict[str, str]) -> None:
    try:
        with terminable(), ExitStack() as stack:
            manager = ServiceManager()
            listener = inherited_listener()
            where = "the socket of its unit" if listener else str(path)
            listener = listener or stack.enter_context(listen_at(path))
            confinement |= confine([path.parent])
            _warn_of(confinement)
            broker = stack.enter_context(Broker(listener, policy, log.write, confinement))
            click.echo(f"listening at {where}", err=True)
            manager.announce_readiness()
            broker.serve()
    except KeyboardInterrupt:
        click.echo("ended", err=True)


def _warn_of(confinement: dict[str, str]) -> None:
    for name, state in confinement.items():
        if state != IN_FORCE:
            click.echo(f"warning: {name} is not in force: {displayed(state)}", err=True)


def _port_range(text: str) -> range:
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535):
        raise click.BadParameter(f"{text} is not a range of ports", param_hint="--steer-ports")
    return range(int(first), int(last) + 1)
