"""`umstack nic`: checks, applies and restores the relevant settings of a NIC and its host."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from umstack.cli.interruption import terminable
from umstack.cli.stack_options import JSON_OPTION
from umstack.errors import InterfaceError, PermissionNeeded, UmError
from umstack_xdp import NoSuchInterfaceError, XdpError
from umstack_xdp.errors import SettingError
from umstack_xdp.facts import Unknown
from umstack_xdp.netdev_family import THREADED_BUSY_POLL, THREADED_ON
from umstack_xdp.nic_host import LinuxHost
from umstack_xdp.nic_settings import STAGES, Outcome, Preferences, Setting, check, init, state_path, undo

F = TypeVar("F", bound=Callable[..., Any])

_EXAMPLES = """\b
Examples:
  umstack nic check eth1
  umstack nic init eth1 --dry-run
  umstack nic init eth1 --queues 2
  umstack nic init eth1 --prefer-busy-poll --threaded-napi on
  umstack nic undo eth1
"""
_NOT_PERMITTED = (1, 13)
_THREADED = {"on": THREADED_ON, "busy-poll": THREADED_BUSY_POLL}


class NicError(UmError):
    """A setting could not be read, changed or put back."""

    default_hint = "see `umstack nic check INTERFACE`"


def _preferences(command: F) -> F:
    """Add the options for settings to a command."""
    for option in (
        click.option(
            "--skip",
            multiple=True,
            type=click.Choice([stage.name for stage in STAGES]),
            help="Skip a stage; repeatable.",
        ),
        click.option(
            "--busy-poll",
            "busy_poll_us",
            type=click.IntRange(0),
            metavar="MICROSECONDS",
            help="Time that blocking reads of all processes spin. Default: unchanged.",
        ),
        click.option(
            "--prefer-busy-poll",
            "prefers_busy_poll",
            is_flag=True,
            help="Defer interrupts for processes that prefer busy polling (options pend_busy_poll_limit, "
            "link_xdp_busy_poll), and suspend them while such a process receives. Others wait longer.",
        ),
        click.option(
            "--threaded-napi",
            type=click.Choice(list(_THREADED)),
            help="Poll each queue in a kernel thread; with `busy-poll` the thread never sleeps (Linux 6.19).",
        ),
        click.option(
            "--queues", type=click.IntRange(1), help="Number of queues. Default: at most one per CPU."
        ),
    ):
        command = option(command)
    return command


_STATE = click.option(
    "--state",
    "state_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for the previous settings. Default: in /run/umstack.",
)


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Check, apply and restore the settings that affect the bypass.

    Offloads, queues, rings, coalescing, interrupt affinity and socket buffers; busy polling and threaded NAPI if
    requested. `init` records the previous settings, `undo` restores exactly those.
    """


@command.command("check", epilog="Example: umstack nic check eth1 --json")
@click.argument("interface")
@_preferences
@JSON_OPTION
def check_command(interface: str, as_json: bool, **preferences: Any) -> None:
    """Show each setting, its target, the reason and the privilege it needs. Changes nothing.

    The exit status is 0 if everything is as it should be.
    """
    with _host(interface) as host:
        settings = check(host, _as_preferences(preferences))
        _show(host.interface, settings, as_json)
    if any(setting.is_to_change for setting in settings):
        raise SystemExit(1)


@command.command("init", epilog="Example: umstack nic init eth1 --queues 2 --dry-run")
@click.argument("interface")
@_preferences
@_STATE
@click.option("--dry-run", is_flag=True, help="Show the changes and their commands without applying them.")
@JSON_OPTION
def init_command(
    interface: str, state_file: Path | None, dry_run: bool, as_json: bool, **preferences: Any
) -> None:
    """Apply the changes that `check` shows, and record the previous settings. If one fails, all are restored."""
    with _host(interface) as host, terminable():
        if dry_run:
            settings = [
                setting for setting in check(host, _as_preferences(preferences)) if setting.is_to_change
            ]
            _show(host.interface, settings, as_json, dry_run=True)
            return
        state = state_file or state_path(host.interface)
        outcome = init(host, state, _as_preferences(preferences))
        _print_summary(host.interface, outcome, state if outcome.changes else None, as_json)


@command.command("undo", epilog="Example: umstack nic undo eth1")
@click.argument("interface")
@_STATE
@click.option("--dry-run", is_flag=True, help="Show the changes without applying them.")
@JSON_OPTION
def undo_command(interface: str, state_file: Path | None, dry_run: bool, as_json: bool) -> None:
    """Restore the settings that `init` recorded."""
    with _host(interface) as host, terminable(once=True):
        outcome = undo(host, state_file or state_path(host.interface), dry_run=dry_run)
        _print_summary(host.interface, outcome, None, as_json)


def _as_preferences(preferences: dict[str, Any]) -> Preferences:
    threaded = preferences["threaded_napi"]
    return Preferences(
        queues=preferences["queues"],
        busy_poll_us=preferences["busy_poll_us"],
        prefers_busy_poll=preferences["prefers_busy_poll"],
        threaded_napi=None if threaded is None else _THREADED[threaded],
        skip=frozenset(preferences["skip"]),
    )


@contextmanager
def _host(interface: str) -> Iterator[LinuxHost]:
    """Open the interface; convert errors of the xdp package to errors of the stack."""
    try:
        with LinuxHost(interface) as host:
            yield host
    except NoSuchInterfaceError as error:
        raise InterfaceError(error.message, hint=error.hint) from error
    except SettingError as error:
        kind = PermissionNeeded if error.errno in _NOT_PERMITTED else NicError
        raise kind(error.message, hint=error.hint, errno=error.errno) from error
    except XdpError as error:
        raise NicError(error.message, hint=error.hint) from error


def _show(interface: str, settings: Sequence[Setting], as_json: bool, *, dry_run: bool = False) -> None:
    if as_json:
        described = [_described(setting) for setting in settings]
        click.echo(json.dumps({"interface": interface, "dry_run": dry_run, "settings": described}))
        return
    if not settings:
        click.echo(f"{interface}: nothing to change")
        return
    console = Console()
    for stage, members in groupby(settings, key=lambda setting: setting.stage):
        group = list(members)
        heading = f"{stage}: {group[0].why} (needs {group[0].privilege})"
        if dry_run:
            click.echo(f"# {heading}")
            for setting in group:
                click.echo(setting.command)
        else:
            console.print(heading, markup=False)
            console.print(_table(group))


def _table(settings: Sequence[Setting]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 2))
    table.add_column(min_width=32, no_wrap=True)
    for setting in settings:
        verdict = f"[yellow]should be {setting.target}[/]" if setting.is_to_change else ""
        table.add_row(setting.key, escape(str(setting.current)), verdict)
    return table


def _described(setting: Setting) -> dict[str, Any]:
    current = setting.current
    return {
        "stage": setting.stage,
        "setting": setting.key,
        "is": {"unknown": current.reason} if isinstance(current, Unknown) else current,
        "should_be": setting.target,
        "is_to_change": setting.is_to_change,
        "why": setting.why,
        "privilege": setting.privilege,
        "command": setting.command,
    }


def _print_summary(interface: str, outcome: Outcome, state: Path | None, as_json: bool) -> None:
    if as_json:
        changes = [
            {"setting": key, "before": before, "after": after} for key, before, after in outcome.changes
        ]
        recorded = None if state is None else str(state)
        found = {
            "interface": interface,
            "changes": changes,
            "lacking": outcome.unavailable,
            "state": recorded,
        }
        click.echo(json.dumps(found))
        return
    for key, reason in outcome.unavailable.items():
        click.echo(f"{interface}: {key} is skipped: {reason}", err=True)
    for key, before, after in outcome.changes:
        click.echo(f"{interface}: {key} {before} -> {after}")
    if not outcome.changes:
        click.echo(f"{interface}: nothing to change")
    if state is not None:
        click.echo(f"recorded in {state}; `umstack nic undo {interface}` restores it", err=True)
