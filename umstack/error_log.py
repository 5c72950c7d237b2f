"""The distinct errors of this process: each with its count and the times it was first and last seen.

An error is identified by its logger, its text without arguments, and the object it concerns. RepeatedRecords and
CounterLog note errors here whether or not the application configures logging. The log is bounded: beyond
`_DISTINCT_MAX` the error that was seen longest ago is dropped. `umstack stat --errors` shows it. Any thread may note
and read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_DISTINCT_MAX = 256


@dataclass(slots=True)
class DistinctError:
    """One distinct error. Times are in seconds since the epoch."""

    logger: str
    subject: str
    """Topic, session or interface concerned; empty: the process."""
    text: str
    """The text of the latest occurrence."""
    count: int
    first_at: float
    last_at: float


class ErrorLog:
    """A bounded table of distinct errors."""

    def __init__(self, clock: Callable[[], float] = time.time, distinct_max: int = _DISTINCT_MAX) -> None:
        """Create an empty log. `clock` returns seconds since the epoch."""
        self._clock = clock
        self._distinct_max = distinct_max
        self._errors: dict[tuple[str, str, object], DistinctError] = {}
        self._noting = threading.Lock()

    def note(self, logger: str, kind: object, text: str, *, subject: str = "", count: int = 1) -> None:
        """Count `count` occurrences of an error. `kind` (hashable) identifies it for a logger and a subject."""
        now = self._clock()
        key = (logger, subject, kind)
        with self._noting:
            known = self._errors.pop(key, None)
            if known is None:
                known = DistinctError(logger, subject, text, 0, now, now)
                if len(self._errors) >= self._distinct_max:
                    del self._errors[next(iter(self._errors))]
            known.text, known.count, known.last_at = text, known.count + count, now
            self._errors[key] = known

    def read(self) -> list[dict[str, str | int | float]]:
        """Return the errors as dictionaries of the fields of DistinctError, the latest first."""
        with self._noting:
            return [
                {
                    "logger": error.logger,
                    "subject": error.subject,
                    "text": error.text,
                    "count": error.count,
                    "first_at": error.first_at,
                    "last_at": error.last_at,
                }
                for error in reversed(self._errors.values())
            ]


process_errors = ErrorLog()
"""The errors of this process."""
