"""RepeatedRecords: writes the first log records of a kind at once and counts repeated ones.

A peer or a fault can repeat an event a million times per second; the log gets one record per interval with the count.
Any thread may use one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from umstack.error_log import process_errors

INTERVAL_SECONDS = 10.0
_KEYS_MAX = 1024


class RepeatedRecords:
    """Writes to one logger, at most `burst` records for a key within an interval."""

    def __init__(
        self,
        logger: logging.Logger,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        burst: int = 1,
    ) -> None:
        self._logger = logger
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._burst = burst
        self._counted: dict[object, tuple[float, int, int]] = {}
        """For each key: when its interval began, how many records were written in it, and how many were not."""
        self._counting = threading.Lock()

    def write(
        self,
        key: object,
        level: int,
        text: str,
        *arguments: object,
        count: int = 1,
        error: BaseException | None = None,
        **extra: Any,
    ) -> None:
        """Write a record, or count it: `count` events of the kind identified by `key` (hashable).

        The record's extras are `umstack_count`, the number of events, and `extra`, each name prefixed by `umstack_`.
        """
        if level >= logging.WARNING:
            shown_text = text % arguments if arguments else text
            process_errors.note(self._logger.name, (key, text), shown_text, count=count)
        now = self._clock()
        with self._counting:
            began, written, held_back = self._counted.pop(key, (now, 0, 0))
            if now - began >= self._interval_seconds:
                began, written = now, 0
            count += held_back
            is_written = written < self._burst
            if len(self._counted) >= _KEYS_MAX:
                del self._counted[next(iter(self._counted))]
            self._counted[key] = (began, written + is_written, 0 if is_written else count)
            if not is_written:
                return
        shown = f" ({count:,} times)" if count > 1 else ""
        fields = {f"umstack_{name}": value for name, value in {**extra, "count": count}.items()}
        self._logger.log(level, text + "%s", *arguments, shown, exc_info=error, extra=fields)
