"""mkdocs hook: on the page of options, each row of a scope's table becomes an entry with a heading.

In the repository the page is a table, which is short and easy to compare; seven columns do not fit a screen, and the
search finds an entry by its name.
"""

from __future__ import annotations

import re
from typing import Any

PAGE = "options.md"
HEADER = "| option | unit | default | UM default | values | meaning | why it differs |"
TABLE = re.compile(re.escape(HEADER) + r"\n\|[-|]+\|\n((?:\|.*\n)+)")
CELL = re.compile(r"(?<!\\)\|")


def entry(row: str, scope: str) -> str:
    """Return an option as a heading, its facts, and its meaning."""
    name, unit, default, elsewhere, values, meaning, reason = (
        cell.strip() for cell in CELL.split(row.strip())[1:-1]
    )
    foreign = "extension" if elsewhere == "*extension*" else f"Ultra Messaging: {code(elsewhere)}"
    facts = f"{unit} · default {code(default)} · {foreign} · {values}".replace("\\|", "|")
    anchor = f"{scope}-{name.strip('`')}"
    lines = [f"### {name} {{ #{anchor} .option }}", facts + "\n{ .facts }", meaning.replace("\\|", "|")]
    if reason:
        lines.append(f"*Why the default differs:* {reason}")
    return "\n\n".join(lines)


def code(value: str) -> str:
    """Return a value in code style; an empty one is shown as such."""
    return f"`{value}`" if value else "empty"


def with_entries(markdown: str) -> str:
    """Return the page with entries in place of the tables, scope by scope."""
    made, scope = [], ""
    for part in re.split(r"(?=^## )", markdown, flags=re.MULTILINE):
        scope = part.removeprefix("## ").partition("\n")[0].strip()
        made.append(
            TABLE.sub(
                lambda match, at=scope: "\n\n".join(entry(row, at) for row in match[1].splitlines()) + "\n",
                part,
            )
        )
    return "".join(made)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the page of options."""
    return with_entries(markdown) if page.file.src_uri == PAGE else markdown
