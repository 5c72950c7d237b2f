"""`umstack broker`: the privileged helper that opens AF_XDP rings for processes without privileges."""

from __future__ import annotations

import grp
import json
import pwd
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click

from umstack.cli.interruption import terminable
from umstack.cli.service_manager import ServiceManager
from umstack.cli.stack_options import JSON_OPTION
from umstack.errors import PermissionNeeded, UmError
from umstack.foreign_text import displayed
from umstack_xdp import XdpError
from umstack_xdp.broker import FRAMES_MAX_BYTES, Broker, BrokerEvent, Policy, inherited_listener, listen_at
from umstack_xdp.broker_protocol import DEFAULT_PATH
from umstack_xdp.capabilities import held_capabilities, missing_capabilities
from umstack_xdp.confinement import IN_FORCE, confine

_EXAMPLES = """\b
Examples:
  umstack broker --allow-group market-data
  umstack broker --path /run/feed/xdp.sock --allow-user feed
  systemctl start umstack-broker.socket         see docs/privileges.md for the units
"""

_LINE_MAX = 4096


@dataclass(slots=True)
class _Log:
    """Logs events on stderr: one line each, or one JSON object each."""

    as_json: bool
    counts: Counter[str] = field(default_factory=Counter)
    confinement: dict[str, str] = field(default_factory=dict)

    def write(self, event: BrokerEvent) -> None:
        """Log one event."""
        self.counts[event.what] += 1
        if self.as_json:
            peer = {"pid": event.peer.pid, "uid": event.peer.uid}
            fields = {"what": event.what, "interface": event.interface, "reason": event.reason, **peer}
            click.echo(json.dumps(fields), err=True)
            return
        what = f"{event.interface} {event.what}" if event.interface else event.what
        line = f"{what}: {event.peer}{'; ' if event.reason else ''}{event.reason}"
        click.echo(displayed(line, _LINE_MAX), err=True)


@click.command(epilog=_EXAMPLES)
@click.option("--path", default=DEFAULT_PATH, show_default=True, help="Socket to listen on, without systemd.")
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
    users: tuple[str, ...],
    groups: tuple[str, ...],
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
    log = _Log(as_json)
    try:
        policy = Policy(
            frozenset(map(user_id, users)),
            frozenset(map(group_id, groups)),
            frames_max_mib << 20,
            frozenset(interfaces) or None,
            tuple(map(_port_range, ports)),
        )
        _run(Path(path), policy, log)
    except XdpError as error:
        raise UmError(error.message, hint=error.hint) from error
    if as_json:
        counts = {what: log.counts[what] for what in ("lent", "returned", "refused")}
        click.echo(json.dumps({"path": path, **counts, "confinement": log.confinement}))


def _run(path: Path, policy: Policy, log: _Log) -> None:
    try:
        with terminable(), ExitStack() as stack:
            manager = ServiceManager()
            listener = inherited_listener()
            where = "the socket of its unit" if listener else str(path)
            listener = listener or stack.enter_context(listen_at(path))
            log.confinement = confine([Path(path).parent])
            _warn_of(log.confinement)
            broker = stack.enter_context(Broker(listener, policy, log.write, log.confinement))
            click.echo(f"listening at {where}", err=True)
            manager.announce_readiness()
            broker.serve()
    except KeyboardInterrupt:
        click.echo("ended", err=True)


def _warn_of(confinement: dict[str, str]) -> None:
    for name, state in confinement.items():
        if state != IN_FORCE:
            click.echo(f"warning: {name} is not in force: {displayed(state)}", err=True)


def user_id(name: str) -> int:
    """Return the number of a user, given by name or number. Raises BadParameter."""
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        raise click.BadParameter(f"there is no user {name}", param_hint="--allow-user") from None


def group_id(name: str) -> int:
    """Return the number of a group, given by name or number. Raises BadParameter."""
    if name.isdecimal():
        return int(name)
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise click.BadParameter(f"there is no group {name}", param_hint="--allow-group") from None


def _port_range(text: str) -> range:
    first, _, last = text.partition("-")
    last = last or first
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) <= 65535):
        raise click.BadParameter(f"{text} is not a range of ports", param_hint="--steer-ports")
    return range(int(first), int(last) + 1)
