"""`umstack config`: checks, shows and compares configuration files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click

from umstack.cli.stack_options import JSON_OPTION, configuration
from umstack.config import (
    Config,
    Finding,
    FindingKind,
    InForce,
    Scope,
    differences,
    examine,
    examine_sizes,
    in_force,
    read_text,
)
from umstack.errors import OptionError
from umstack.foreign_text import displayed
from umstack_xdp import XdpError, find_interface

_EXAMPLES = """\b
Examples:
  umstack config check um.cfg
  umstack config dump um.cfg --changed
  umstack config dump -o source.flow_control=min
  umstack config diff old.cfg new.cfg
  umstack config diff um.cfg              against the defaults
"""
_SETTING = click.option(
    "-o",
    "--option",
    "options",
    multiple=True,
    metavar="SCOPE.NAME=VALUE",
    help="Set an option in addition to the file; repeatable.",
)


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Check, show and compare configuration files."""


@command.command(
    epilog="""\b
Examples:
  umstack config check um.cfg
  umstack config check um.cfg other.cfg --json
"""
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--strict", is_flag=True, help="Also fail on unwise combinations of options.")
@JSON_OPTION
def check(files: Sequence[str], strict: bool, as_json: bool) -> None:
    """Report faulty lines, unsupported options with the reason, and unwise combinations of options.

    Datagram sizes are checked against the interface that a context would use here, if there is one. The status is 0
    if a context can be created from each file, otherwise 1.
    """
    found = {file: examine(read_text(file), file) for file in files}
    for config, findings in found.values():
        findings += _size_findings(config)
    refused = [
        finding
        for _, findings in found.values()
        for finding in findings
        if strict or finding.kind is not FindingKind.WARNING
    ]
    if as_json:
        click.echo(json.dumps({"ok": not refused, "files": [_as_json(file, *found[file]) for file in files]}))
    else:
        for file, (config, findings) in found.items():
            _print(file, config, findings)
    if refused:
        raise SystemExit(1)


@command.command(
    epilog="""\b
Examples:
  umstack config dump                      every option and its default
  umstack config dump um.cfg --changed > effective.cfg
"""
)
@click.argument("file", required=False)
@_SETTING
@click.option("--changed", is_flag=True, help="Only values that differ from the defaults.")
@JSON_OPTION
def dump(file: str | None, options: Sequence[str], changed: bool, as_json: bool) -> None:
    """Show the effective value of each option, its unit, its default and its origin.

    The output is itself a valid configuration file.
    """
    rows = [row for row in in_force(_config(file, options)) if not changed or row.value != row.default]
    if as_json:
        click.echo(json.dumps({"options": [_row(row) for row in rows]}))
        return
    for row in rows:
        text = f"{row.option.scope:<8} {row.option.name} {_quoted(row.value)}"
        click.echo(f"{text:<72} # {displayed(_remark(row))}")


@command.command(
    epilog="""\b
Examples:
  umstack config diff old.cfg new.cfg
  umstack config diff um.cfg
"""
)
@click.argument("before")
@click.argument("after", required=False)
@JSON_OPTION
def diff(before: str, after: str | None, as_json: bool) -> None:
    """Compare the effective values of two files, or of one file and the defaults.

    The status is 0 if nothing differs, otherwise 1.
    """
    older = Config() if after is None else Config.load(before)
    found = differences(older, Config.load(before if after is None else after))
    if as_json:
        rows = [{"option": _row(new), "before": old.value, "after": new.value} for old, new in found]
        click.echo(json.dumps({"same": not found, "differences": rows}))
    else:
        for old, new in found:
            origin = f"  # {displayed(new.origin)}" if new.origin != "default" else ""
            click.echo(f"{new.option.scope:<8} {new.option.name} {old.value} -> {new.value}{origin}")
    if found:
        raise SystemExit(1)


def _config(file: str | None, options: Sequence[str]) -> Config:
    return configuration(tuple(Scope), {}, file, options)


def _size_findings(config: Config) -> list[Finding]:
    """Return the findings on datagram sizes, none if the configured interface is not on this host."""
    try:
        options = config.context_options()
        interface = find_interface(None if options.interface in ("", "0.0.0.0") else options.interface)
    except (OptionError, XdpError):
        return []  # examine() reports wrong options
    return examine_sizes(config, options, interface.name, interface.mtu_bytes)


def _quoted(value: str) -> str:
    return f'"{value}"' if not value or " " in value or "#" in value else value


def _remark(row: InForce) -> str:
    unit = str(row.option.spec.kind)
    default = "" if row.value == row.default else f"; default {row.default}"
    return f"{unit}; {row.origin}{default}"


def _row(row: InForce) -> dict[str, Any]:
    return {
        "scope": str(row.option.scope),
        "name": row.option.name,
        "value": row.value,
        "unit": str(row.option.spec.kind),
        "default": row.default,
        "origin": row.origin,
    }


def _as_json(file: str, config: Config, findings: Iterable[Finding]) -> dict[str, Any]:
    return {
        "file": file,
        "settings": sum(1 for _ in config.settings()),
        "findings": [
            {
                "kind": str(finding.kind),
                "line": finding.line or None,
                "message": finding.message,
                "hint": finding.hint,
                "options": list(finding.options),
            }
            for finding in findings
        ],
    }


def _print(file: str, config: Config, findings: Sequence[Finding]) -> None:
    for finding in findings:
        place = f"{file}:{finding.line}" if finding.line else file
        hint = f"; {finding.hint}" if finding.hint else ""
        click.echo(displayed(f"{place}: {finding.kind}: {finding.message}{hint}"))
    count = sum(1 for _ in config.settings())
    click.echo(displayed(f"{file}: {count} options set, {len(findings)} findings"))
