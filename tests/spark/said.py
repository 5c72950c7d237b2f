"""A sink of the monitor that keeps both the rows and the lines made from them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from umstack.monitor.sinks import Lines, Windows


class Said(Windows):
    """Keeps the windows and their lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._say = Lines(self.lines.append)

    def take(self, kind: str, rows: Iterable[dict[str, Any]], window_seconds: float) -> None:
        """Keep rows and lines."""
        given = list(rows)
        super().take(kind, given, window_seconds)
        self._say.take(kind, given, window_seconds)
