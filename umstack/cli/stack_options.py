"""Options of every command that opens a context: the interface, a configuration file and options by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO, TypeVar

import click

from umstack.capture.reading.remote import is_remote, shown
from umstack.config import OPTIONS, Config, OptionValue, Scope, find_option
from umstack.errors import OptionError

F = TypeVar("F", bound=Callable[..., Any])

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
HARDWARE_TIMES_OPTION = click.option(
    "--hardware-times", is_flag=True, help="Use times of switch trailers and ERF records."
)


class LocalFolder(click.Path):
    """A folder of a file system. A URL is refused: as a path it would name a new folder in the current one."""

    def __init__(self, **settings: Any) -> None:
        """Take the settings of click.Path."""
        super().__init__(file_okay=False, **settings)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if is_remote(str(value)):
            self.fail(f"{shown(str(value))} is a URL: name a folder of a file system", param, ctx)
        return super().convert(value, param, ctx)


DRIVER_OPTION = click.option(
    "--driver",
    default="none",
    metavar="auto|PATH",
    help="Attach to the driver of the interface if one is running, or to the one at this socket (docs/driver.md).",
)

_INTERFACE_HELP = "Interface: a name, an address or a network. Default: the first with multicast."


def stack_options(command: F) -> F:
    """Add --interface, --config and -o to a command."""
    return _with_options(command, click.option("-i", "--interface", help=_INTERFACE_HELP))


def stack_options_of_lines(command: F) -> F:
    """Add the same options to a command that can use several interfaces at a time."""
    several = f"{_INTERFACE_HELP} With --hot-failover repeatable, once for each line."
    return _with_options(
        command, click.option("-i", "--interface", "interfaces", multiple=True, help=several)
    )


def hot_failover_interfaces(interfaces: Sequence[str], *, is_hot_failover: bool) -> list[str | None]:
    """Return the interface of each context. None selects the default; only --hot-failover allows several."""
    if len(interfaces) > 1 and not is_hot_failover:
        raise click.UsageError("several interfaces need --hot-failover")
    if len(set(interfaces)) < len(interfaces):
        raise click.UsageError("give each --interface once: every line needs its own")
    return [*interfaces] or [None]


def _with_options(command: F, interface: Callable[[F], F]) -> F:
    for option in (
        click.option(
            "-o",
            "--option",
            "options",
            multiple=True,
            metavar="NAME=VALUE",
            help="Set an option of the stack (docs/options.md); repeatable.",
        ),
        click.option("-c", "--config", "config_file", metavar="FILE", help="A configuration file."),
        interface,
    ):
        command = option(command)
    return command


def configuration(
    scopes: Sequence[Scope],
    defaults: Mapping[tuple[Scope, str], OptionValue],
    config_file: str | None,
    options: Sequence[str],
) -> Config:
    """Merge the options: the command line overrides the file, which overrides the command's defaults."""
    config = Config()
    for (scope, name), value in defaults.items():
        config = config.with_options(scope, {name: value})
    if config_file is not None:
        config = config.merged(Config.load(config_file))
    for text in options:
        name, equals, value = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text} is not NAME=VALUE", param_hint="'-o'")
        scope, name = _placed(name, scopes)
        config = config.with_options(scope, {name: value})
    return config


def _placed(name: str, scopes: Sequence[Scope]) -> tuple[Scope, str]:
    """Return the scope and name of `NAME` or `SCOPE.NAME`, limited to the scopes of this command."""
    prefix, dot, rest = name.lower().partition(".")
    if dot:
        if prefix not in scopes:
            raise OptionError(
                f"this command has no {prefix} options", hint=f"it has {' and '.join(scopes)} options"
            )
        return find_option(Scope(prefix), rest).scope, rest
    found = next((scope for scope in scopes if name.lower() in OPTIONS[scope]), None)
    if found is None:
        found = find_option(scopes[-1], name).scope
    return found, name.lower()


def warn_in_one_line() -> None:
    """Print warnings of the stack on one line, without the source location."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        click.echo(f"umstack: {message}", err=True)

    warnings.showwarning = show
