"""Shows text that came from elsewhere: topic names, command lines and paths that other hosts or processes chose.

Every place that shows such text calls `displayed` first: terminal, JSON meant for people, HTML, log records and
metric labels. The output's own escaping (markup, quotes) follows.
"""

from __future__ import annotations

_LENGTH_MAX = 512
"""Longer than any topic name; bounds what one process can put into another's report."""


def displayed(text: str, length_max: int = _LENGTH_MAX) -> str:
    """The text with every character that does not print written as an escape, cut to `length_max` characters.

    Control characters, terminal escapes, line separators, direction overrides and lone surrogates cannot act on what
    shows the result: it is one line of printable characters.
    """
    shown = text if text.isprintable() else "".join(map(_printable, text[: length_max + 1]))
    return shown if len(shown) <= length_max else f"{shown[: length_max - 3]}..."


def displayed_lines(text: str, length_max: int = 4096) -> str:
    """The same line by line, for text of ours that may quote foreign text: its line feeds stay."""
    return "\n".join(displayed(line, length_max) for line in text.split("\n"))


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    number = ord(character)
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
