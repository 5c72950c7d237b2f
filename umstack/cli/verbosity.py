"""`-v` on every command: which log records of the stack are shown on stderr.

Without it errors alone; -v shows what costs messages or changes the mode, -vv everything.
"""

from __future__ import annotations

import logging
import sys

import click

from umstack.foreign_text import displayed_lines

_LEVELS = (logging.ERROR, logging.INFO, logging.DEBUG)
_LOGGERS = ("umstack", "umstack_xdp")
_OPTION = "verbosity"


class _Lines(logging.Formatter):
    """Format a record as text. Quoted parts come from other processes or hosts."""

    def format(self, record: logging.LogRecord) -> str:
        return displayed_lines(super().format(record))


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the current sys.stderr, which may be replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def show_records(times: int) -> None:
    """Show the log records that this number of `-v` selects."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.setLevel(_LEVELS[min(times, len(_LEVELS) - 1)])
        if not any(isinstance(handler, _Stderr) for handler in logger.handlers):
            handler = _Stderr()
            handler.setFormatter(_Lines("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            logger.addHandler(handler)


def _on_option(context: click.Context, _option: click.Parameter, times: int) -> None:
    if not context.resilient_parsing:
        show_records(times)


def with_verbosity(command: click.Command) -> click.Command:
    """Add the option `-v` to the command and to each sub-command that can be run."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            with_verbosity(below)
    elif all(parameter.name != _OPTION for parameter in command.params):
        command.params.append(
            click.Option(
                ["-v", "--verbose", _OPTION],
                count=True,
                expose_value=False,
                callback=_on_option,
                help="Show log records about lost messages and mode changes; -vv: all.",
            )
        )
    return command
