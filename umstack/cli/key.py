"""`umstack key`: creates key files for authenticated datagrams, and lists their keys."""

from __future__ import annotations

import json
from pathlib import Path

import click

from umstack.cli.stack_options import JSON_OPTION
from umstack.foreign_text import displayed
from umstack.key_file import Key, read_key_file, write_new_key_file

_EXAMPLES = """\b
Examples:
  umstack key new /etc/umstack/keys
  umstack key new keys --topic 'orders.*' --topic '*'
  umstack key check /etc/umstack/keys
"""


@click.group(epilog=_EXAMPLES)
def command() -> None:
    """Make and check key files for the option authentication_key_file (docs/authentication.md)."""


@command.command(epilog=_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--topic",
    "patterns",
    multiple=True,
    help="Topic pattern that gets its own key; repeatable.  [default: *]",
)
@JSON_OPTION
def new(file: Path, patterns: tuple[str, ...], as_json: bool) -> None:
    """Create FILE with a new key per topic pattern and one for topic resolution, readable by its owner only."""
    write_new_key_file(file, patterns or ("*",))
    _say(file, as_json)


@command.command(epilog=_EXAMPLES)
@click.argument("file", type=click.Path(path_type=Path))
@JSON_OPTION
def check(file: Path, as_json: bool) -> None:
    """List the topic patterns that FILE has keys for; fail if FILE is unusable. Keys are not shown."""
    _say(file, as_json)


def _say(file: Path, as_json: bool) -> None:
    found = read_key_file(file)
    if as_json:
        topics = [{"pattern": pattern, "keys": _ids(keys)} for pattern, keys in found.topics]
        click.echo(json.dumps({"file": str(file), "topics": topics, "resolution": _ids(found.resolution)}))
        return
    for pattern, keys in found.topics:
        click.echo(f"topics {displayed(pattern)}: {_shown(keys)}")
    click.echo(
        f"topic resolution: {_shown(found.resolution) if found.resolution else 'no key, tags are disabled'}"
    )


def _ids(keys: tuple[Key, ...]) -> list[int]:
    return [key.id for key in keys]


def _shown(keys: tuple[Key, ...]) -> str:
    first, *others = _ids(keys)
    return f"tags with key {first}" + "".join(f", accepts key {other} as well" for other in others)
