"""Options and log of the commands that serve other processes of the host, which the kernel identifies."""

from __future__ import annotations

import grp
import json
import pwd
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import click

from umstack.foreign_text import displayed
from umstack_xdp.broker_policy import Peer

_LINE_MAX = 4096
Command = TypeVar("Command", bound=Callable[..., Any])


def _ids(find: Callable[[str], int], kind: str) -> Callable[..., frozenset[int]]:
    def convert(
        _context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]
    ) -> frozenset[int]:
        try:
            return frozenset(int(name) if name.isdecimal() else find(name) for name in names)
        except KeyError as error:
            raise click.BadParameter(f"there is no {kind}: {error.args[0]}") from None

    return convert


def allow_options(command: Command) -> Command:
    """Add --allow-user and --allow-group: `users` and `groups` are their numbers."""
    users = click.option(
        "--allow-user", "users", multiple=True, metavar="USER", help="Also serve this user; repeatable.",
        callback=_ids(lambda name: pwd.getpwnam(name).pw_uid, "user"),
    )  # fmt: skip
    groups = click.option(
        "--allow-group", "groups", multiple=True, metavar="GROUP", help="Also serve members of this group; repeatable.",
        callback=_ids(lambda name: grp.getgrnam(name).gr_gid, "group"),
    )  # fmt: skip
    return users(groups(command))


class ServiceEvent(Protocol):
    """An action of such a command."""

    @property
    def what(self) -> str: ...
    @property
    def peer(self) -> Peer: ...
    @property
    def interface(self) -> str | None: ...
    @property
    def reason(self) -> str: ...


@dataclass(slots=True)
class ServiceLog:
    """Logs events on stderr: one line each, or one JSON object each."""

    as_json: bool
    counts: Counter[str] = field(default_factory=Counter)

    def write(self, event: ServiceEvent) -> None:
        """Log one event. Any thread."""
        self.counts[event.what] += 1
        if self.as_json:
            peer = {"pid": event.peer.pid, "uid": event.peer.uid}
            fields = {"what": event.what, "interface": event.interface, "reason": event.reason, **peer}
            click.echo(json.dumps(fields), err=True)
            return
        what = f"{event.interface} {event.what}" if event.interface else event.what
        line = f"{what}: {event.peer}{'; ' if event.reason else ''}{event.reason}"
        click.echo(displayed(line, _LINE_MAX), err=True)
