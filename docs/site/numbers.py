"""mkdocs hook: numbers of requirements and constraints in pages become links to their sentences.

UM-n, UX-n, AE-n and C<n> lead to requirements.html, W<n> to design.html. Numbers inside links, code blocks and the
entries themselves stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

ITEM = re.compile(
    r"\b(UM|UX|AE)-(\d{1,3})\b|(?<![\w.-])C(\d{1,2})\b(?! compiler|\+| and Python)|(?<![\w.-])W(\d{1,2})\b"
)
# Elements whose text is left alone, and tags.
KEPT = re.compile(r"<(a|pre|script|style|code|svg|h1|title)\b.*?</\1>|<span id=.*?</span>|<[^>]*>", re.DOTALL)
REQUIREMENTS, DESIGN = "requirements.html", "design.html"


def link(match: re.Match[str], up: str) -> str:
    """Return a number as a link."""
    kind, number, contradiction, constraint = match.groups()
    if constraint:
        target = f"{DESIGN}#w{constraint}"
    else:
        target = f"{REQUIREMENTS}#{kind.lower()}-{number}" if kind else f"{REQUIREMENTS}#c-{contradiction}"
    return f'<a href="{up}{target}">{match.group()}</a>'


def with_links(html: str, up: str) -> str:
    """Return a page with its numbers as links; `up` leads from the page to the root of the site."""
    made, end = [], 0
    for kept in KEPT.finditer(html):
        made.append(ITEM.sub(lambda match: link(match, up), html[end : kept.start()]))
        made.append(kept.group())
        end = kept.end()
    made.append(ITEM.sub(lambda match: link(match, up), html[end:]))
    return "".join(made)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Link the numbers of a page; mkdocs calls this with the page's HTML."""
    return with_links(html, "../" * page.url.count("/"))
