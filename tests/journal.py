"""Journals of processes that are killed: files with one line per fact, each written when it is true."""

from __future__ import annotations

import os
from pathlib import Path


class Journal:
    """A file to which a process adds lines, each batch with one system call."""

    def __init__(self, path: str | Path) -> None:
        """Open the journal, and cut off a last line that a killed process did not finish."""
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        size = os.fstat(self._descriptor).st_size
        os.ftruncate(self._descriptor, os.pread(self._descriptor, size, 0).rfind(b"\n") + 1)

    def add(self, lines: list[str]) -> None:
        """Add lines and forget them."""
        if lines:
            os.write(self._descriptor, "".join(f"{line}\n" for line in lines).encode())
            lines.clear()

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def lines_of(path: Path) -> list[list[str]]:
    """Return the words of the journal's lines, without a last one that a killed process did not finish."""
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
