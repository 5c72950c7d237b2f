"""Being asked to stop: Ctrl-C and SIGTERM both end what a command does in order, with its summary."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED_STATUS = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def terminable(*, once: bool = False) -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt as Ctrl-C does.

    With `once` the first of them is the last: what is being taken down then is not left half taken down.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if once:
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
