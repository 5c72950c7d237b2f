"""A page of HTML, read for what it says and for what it would load."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page holds: its text, its elements, and what it would load from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[str] = []
        self.outside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append(tag)
        links = [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.outside += [link for link in links if not link.startswith(("#", "data:"))]

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words.append(data)

    @property
    def text(self) -> str:
        """All words."""
        return " ".join(" ".join(self.words).split())
