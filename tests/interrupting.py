"""KeyboardInterrupt at a chosen line of the code under test, as a signal may bring it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class InterruptedAt:
    """Inside, the thread is interrupted before the n-th line it executes of these functions (1 is the first).

    Lines count from the first call of the first of the functions on.
    """

    def __init__(self, line_number: int, *functions: Callable[..., Any]) -> None:
        self._lines_left = line_number
        self._codes = [function.__code__ for function in functions]
        self._is_counting = False

    @property
    def has_come(self) -> bool:
        """Whether that many lines were executed."""
        return self._lines_left <= 0

    def __enter__(self) -> None:
        """Begin to look for the call that counts first."""
        sys.settrace(self._trace)

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> bool:
        """End the tracing; the interrupt ends here."""
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        self._is_counting |= frame.f_code is self._codes[0]
        if not self._is_counting or frame.f_code not in self._codes:
            return None
        if event == "line":
            self._lines_left -= 1
            if self._lines_left == 0:
                raise KeyboardInterrupt
        return self._trace


def interruptions(*functions: Callable[..., Any], lines_min: int) -> Iterator[InterruptedAt]:
    """An interrupt at each line, one after the other, until one was not reached any more."""
    for line_number in itertools.count(1):
        interrupted = InterruptedAt(line_number, *functions)
        yield interrupted
        if not interrupted.has_come:
            assert line_number > lines_min, "too few lines were executed to have been the functions meant"
            return
