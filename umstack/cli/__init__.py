"""The `umstack` command. Each sub-command is a module of this package, imported on first use.

Each module exports its click command as `command`. The one-line descriptions are here so that `umstack --help`
imports none of the modules.
"""

from __future__ import annotations

import json
import sys
from difflib import get_close_matches
from importlib import import_module

import click

from umstack.cli.verbosity import with_verbosity
from umstack.errors import UmError
from umstack.foreign_text import displayed_lines

COMMANDS = {
    "send": "Publish standard input or files to a topic.",
    "recv": "Write the messages of a topic to standard output or to files.",
    "topics": "List the advertised topics and their sources.",
    "bench": "Measure throughput, latency and recovery against raw sockets.",
    "lab": "Create hosts and a lossy switch from network namespaces.",
    "sim": "Run whole stacks under virtual time, by seed.",
    "doctor": "Show what this host supports and which mode will be used.",
    "nic": "Check, prepare and restore the settings of a NIC.",
    "key": "Make and check the keys of authenticated datagrams.",
    "broker": "Open AF_XDP rings for unprivileged processes.",
    "driver": "Own the link of an interface for all applications of the host.",
    "config": "Check, show and compare configuration files.",
    "resolver": "Relay topic resolution on networks without multicast.",
    "stat": "Show the counters of a running process.",
    "top": "Watch every context of this host, live.",
    "watch": "Watch every context of this host in a browser.",
    "exporter": "Serve the counters of every process to Prometheus.",
    "trace": "Show where the kernel drops datagrams.",
    "capture": "Capture the traffic of an interface to pcapng files.",
    "record": "Record topics to Parquet files or to a journal.",
    "store": "Run Stores, check and list the messages that they keep.",
    "report": "Report on loss, recovery and rates in captures.",
    "pipeline": "Fill a folder of tables from captures as they grow.",
    "monitor": "Watch a folder of captures as it grows.",
    "decode": "Show the packets of captures, or convert them to Parquet.",
    "demo": "Multicast a file tree to three subscribers across a lossy switch.",
}


class LazyGroup(click.Group):
    """A click group that imports a sub-command on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the sub-commands, the most common first."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a sub-command."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"umstack.cli.{cmd_name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"umstack.cli.{cmd_name}.command is not a click command")
        return with_verbosity(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command; the error for an unknown one suggests similar names."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = get_close_matches(args[0], COMMANDS, n=3, cutoff=0.5)
            if not near:
                raise
            said = f"{error.message} Did you mean {' or '.join(map(repr, near))}?"
            raise click.UsageError(said, error.ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def print_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    """Print version, commit, libraries and compiled-in features, and exit."""
    if wanted and not ctx.resilient_parsing:
        click.echo("\n".join(import_module("umstack.cli.version").lines()))
        ctx.exit()


EPILOG = """\b
Examples:
  umstack demo                        a file tree to three subscribers, on this machine
  umstack recv orders --interface eth1
  echo hello | umstack send orders --interface eth1
"""


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=print_version,
    help="Show the version and exit.",
)
def command() -> None:
    """Reliable multicast messaging for Linux."""


def main() -> None:
    """Run the command line. An error of the stack is one line with a hint, not a traceback.

    With --json the error is also an object on standard output.
    """
    try:
        _run()
    except OSError as error:
        _report_lost_output(error)
        sys.exit(1)
    except UmError as error:
        _print_json_error(error.message, error.hint, type(error).__name__)
        click.echo(f"umstack: {displayed_lines(str(error))}", err=True)
        sys.exit(1)
    except click.ClickException as error:
        _print_json_error(error.format_message(), "see --help", type(error).__name__)
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("Aborted!", err=True)
        sys.exit(1)


def _run() -> None:
    """Run the command; its output is complete when it ends."""
    try:
        status = command.main(prog_name="umstack", standalone_mode=False) or 0
    finally:
        sys.stdout.flush()
    sys.exit(status)


def _print_json_error(message: str, hint: str, kind: str) -> None:
    """With --json, also print the error as the only object on standard output."""
    if "--json" in sys.argv[1:]:
        try:
            click.echo(json.dumps({"ok": False, "error": {"type": kind, "message": message, "hint": hint}}))
        except OSError as error:  # the caller reports the command's own error in any case
            _report_lost_output(error)


def _report_lost_output(error: OSError) -> None:
    """Report that the output is incomplete, unless its reader is gone, which knows. Raises other errors again."""
    from umstack.cli.output import silence_stdout, write_problem

    problem = write_problem(error)
    silence_stdout()
    if not isinstance(error, BrokenPipeError):
        click.echo(f"umstack: {displayed_lines(problem)}", err=True)
