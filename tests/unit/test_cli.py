"""The conventions every command keeps: an example in --help, --json, and a quick root command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from umstack.cli import COMMANDS
from umstack.cli import command as root


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """The commands below this one that do something, by the words a person types."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for word in command.list_commands(context):
        below = command.get_command(context, word)
        assert below is not None
        yield from leaves(below, f"{name} {word}")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example_and_speaks_json(name: str) -> None:
    """Each listed command exists, its help has an example, and each of its actions takes --json."""
    command = import_module(f"umstack.cli.{name}").command
    shown = CliRunner().invoke(root, [name, "--help"])
    assert shown.exit_code == 0, shown.output
    assert "Example" in shown.output
    silent = [
        words for words, leaf in leaves(command, name) if all("--json" not in p.opts for p in leaf.params)
    ]
    assert not silent, f"no --json: {silent}"


def test_help_imports_no_command() -> None:
    """`umstack --help` lists the commands without importing them or what they need."""
    program = (
        "import contextlib, io, json, sys; from umstack.cli import command\n"
        "with contextlib.redirect_stdout(io.StringIO()) as shown: command(['--help'], standalone_mode=False)\n"
        "print(json.dumps([shown.getvalue(), sorted(sys.modules)]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    shown, loaded = json.loads(done.stdout)
    assert all(name in shown for name in COMMANDS)
    heavy = {"numpy", "pyroute2", "pyarrow", "rich", *(f"umstack.cli.{name}" for name in COMMANDS)}
    assert not heavy & set(loaded)


def test_unknown_command_is_refused() -> None:
    """A word that is no command is a usage error, status 2."""
    assert CliRunner().invoke(root, ["no-such-command"]).exit_code == 2


@pytest.mark.parametrize("arguments", [["config", "dump"], ["doctor"], ["--version"], ["recv", "--help"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    """Output that cannot be written is an error of one line, not a traceback."""
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "umstack", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == 1
    assert ended.stderr == "umstack: the output is incomplete: No space left on device\n"


@pytest.mark.parametrize(
    ("arguments", "expected", "status"),
    [(["report", "--json"], "Missing option", 2), (["decode", "none.pcap", "--json"], "none.pcap", None)],
)
def test_an_error_is_reported_although_its_json_cannot_be_written(
    arguments: list[str], expected: str, status: int | None
) -> None:
    """The object of the error meets a full disk, too: then both are reported, without a traceback."""
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "umstack", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ended.returncode == status if status else ended.returncode > 0
    assert "Traceback" not in ended.stderr
    assert "umstack: the output is incomplete: No space left on device" in ended.stderr
    assert expected in ended.stderr


def test_a_reader_that_is_gone_is_not_reported() -> None:
    """A closed pipe ends a command without a word."""
    command = [sys.executable, "-m", "umstack", "config", "dump"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
