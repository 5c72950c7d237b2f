"""A parsed HTML page: its text, its elements, and the resources it would load."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """The text and elements of a page, and the resources it would load from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[str] = []
        self.outside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.elements.append(tag)
        links = [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.outside += [link for link in links if not link.startswith(("#", "data:"))]

    def handle_data(self, data: str) -> None:
        """Record text."""
        self.words.append(data)

    @property
    def text(self) -> str:
        """Return all text."""
        return " ".join(" ".join(self.words).split())
