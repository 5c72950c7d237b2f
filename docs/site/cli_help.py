"""A mkdocs hook: the page of commands is what `--help` prints, so that neither can differ from the other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click

from umstack.cli import COMMANDS, command

MARKER = "<!-- every command -->"


def commands(group: click.Command, path: str, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """The path and the help text of a command and of all below it."""
    with click.Context(group, info_name=path.split()[-1], parent=parent, max_content_width=110) as context:
        context.terminal_width = 110
        yield path, re.sub(r"\x1b\[[0-9;]*m", "", group.get_help(context))
        if isinstance(group, click.Group):
            for name in group.list_commands(context):
                below = group.get_command(context, name)
                if below is not None and not below.hidden:
                    yield from commands(below, f"{path} {name}", context)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help texts where the page asks for them."""
    if MARKER not in markdown:
        return markdown
    assert COMMANDS, "the command line has no commands"
    shown = (f"## {path}\n\n```text\n{text}\n```" for path, text in commands(command, "umstack", None))
    return markdown.replace(MARKER, "\n\n".join(shown))
