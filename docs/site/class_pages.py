"""mkdocs hook: each class of the API reference has a page of its own, which the page of its package lists.

A line `::: package.Class` in reference/api.md or reference/xdp.md becomes a link to that page and the first sentence of
the class; lines of functions stay, and are described where they are.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

LISTS = ("reference/api.md", "reference/xdp.md")
MADE_BY_A_CALL = re.compile(r"\bMade by \w+(?:\.\w+)?\(\)")
ENTRY = re.compile(r"^::: ([\w.]+\.([A-Z]\w*))$\n*", re.MULTILINE)


def first_sentence(name: str) -> str:
    """The first paragraph of a class's docstring, on one line."""
    module, _, attribute = name.rpartition(".")
    text = inspect.getdoc(getattr(import_module(module), attribute)) or ""
    return " ".join(text.partition("\n\n")[0].split())


def linked(markdown: str) -> str:
    """Return a list page with a link to the page of each class, consecutive ones as one list."""
    return ENTRY.sub(
        lambda match: f"- [`{match[2]}`]({match[1]}.md): {first_sentence(match[1])}\n", markdown
    ).replace("\n:::", "\n\n:::")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of all classes."""
    for page in LISTS:
        for name, title in ENTRY.findall(Path(config.docs_dir, page).read_text()):
            # The constructor of what another call returns is none of the reader's concern.
            merged = "false" if MADE_BY_A_CALL.search(first_sentence(name)) else "true"
            content = f"---\ntitle: {title}\n---\n\n::: {name}\n    options:\n      heading_level: 1\n"
            content += f"      merge_init_into_class: {merged}\n"
            files.append(File.generated(config, f"reference/{name}.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the classes of a list page by links."""
    return linked(markdown) if page.file.src_uri in LISTS else markdown
