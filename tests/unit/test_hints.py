"""Hints advise only what exists: every option, command and option of a command that one names is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from umstack.cli import COMMANDS
from umstack.cli import command as root
from umstack.config import OPTIONS

ROOT = Path(__file__).resolve().parents[2]
SYSTEM_NAMES = {"rmem_max", "wmem_max", "sch_tbf"}
"""Names of the kernel's."""

COMMAND_LINES_OF_OTHERS = re.compile(
    r"`?\b(?:xdp-loader|ip|ethtool|bpftool|setcap|ss|pip|apt-get|sysctl)\b[^`;,]*`?"
)


@cache
def sources() -> tuple[ast.Module, ...]:
    """Every module of both packages."""
    return tuple(
        ast.parse(path.read_text(encoding="utf-8"))
        for package in ("umstack", "xdp")
        for path in sorted((ROOT / package).rglob("*.py"))
    )


def texts(node: ast.AST) -> Iterator[str]:
    """The string constants in an expression; what an f-string fills in is left out."""
    for one in ast.walk(node):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def hints() -> Iterator[str]:
    """Every text given as `hint=`, every `default_hint`, and the hints of errors.py by errno."""
    for module in sources():
        for node in ast.walk(module):
            if isinstance(node, ast.Call):
                for keyword in node.keywords:
                    if keyword.arg in ("hint", "remedy"):
                        yield from texts(keyword.value)
            elif isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if (
                    any(name == "default_hint" or name.upper().endswith("HINT") for name in names)
                    or "_ERRNOS" in names
                ):
                    yield from texts(node.value)


@cache
def known_names() -> frozenset[str]:
    """Options of the configuration, and names of functions, parameters and fields of the packages."""
    names = {name for options in OPTIONS.values() for name in options} | SYSTEM_NAMES
    for module in sources():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.arg):
                names.add(node.arg)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
    return frozenset(names)


@cache
def command_options() -> frozenset[str]:
    """The long options of every command of the command line."""
    found: set[str] = set()
    waiting: list[click.Command] = [root]
    while waiting:
        command = waiting.pop()
        for parameter in command.params:
            found.update(parameter.opts, parameter.secondary_opts)
        if isinstance(command, click.Group):
            context = click.Context(command)
            children = [command.get_command(context, name) for name in command.list_commands(context)]
            waiting += [child for child in children if child is not None]
    return frozenset(found | {"--help"})


def unknown_names(hint: str) -> set[str]:
    """Return the names in a hint that do not exist."""
    wrong = {name for name in re.findall(r"`umstack ([a-z]+)", hint) if name not in COMMANDS}
    text = COMMAND_LINES_OF_OTHERS.sub(" ", hint)
    wrong |= {name for name in re.findall(r"(?<![\w-])--[a-z][a-z-]*", text) if name not in command_options()}
    for name in re.findall(r"(?<![\w./])[a-z]+(?:_[a-z0-9]+)+(?![\w*])", text):
        if name not in known_names():
            wrong.add(name)
    wrong |= {name for name in re.findall(r"\b([a-z_]+)=", text) if name not in known_names()}
    wrong |= {page for page in re.findall(r"docs/[\w/.-]+\.md", hint) if not (ROOT / page).exists()}
    return wrong | ({"nonblock"} if re.search(r"\bnonblock\b", hint) else set())


def test_hints_name_what_exists() -> None:
    """An error contains a next step, and the step must be possible."""
    found = {hint for hint in hints() if hint}
    assert len(found) > 100
    wrong = {hint: names for hint in found if (names := unknown_names(hint))}
    assert not wrong


@pytest.mark.parametrize(
    "hint",
    [
        "send with nonblock",
        "run `umstack heal`",
        "add --wait-for-ever",
        "raise transport_lbtrm_no_such_option",
        "use mood='embedded'",
        "see docs/no-such-page.md",
    ],
)
def test_advice_that_is_not_possible_is_seen(hint: str) -> None:
    """The rule above is not vacuous."""
    assert unknown_names(hint)
