"""Being asked to stop: Ctrl-C and SIGTERM both end what a command does in order, with its summary."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED_STATUS = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.001


@contextmanager
def terminable(*, once: bool = False) -> Iterator[None]:
    """Inside, SIGTERM raises KeyboardInterrupt as Ctrl-C does.

    With `once` the first of them is the last: what is being taken down then is not left half taken down.
    An exception out of a finaliser goes nowhere: an interrupt that came in one comes again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    again: list[threading.Timer] = []

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        if once:
            _handle(dict.fromkeys(_SIGNALS, signal.SIG_IGN))
        raise KeyboardInterrupt

    def come_again(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            hook(lost)
            return
        _handle(dict.fromkeys(_SIGNALS, interrupt))
        main_thread = threading.main_thread().ident
        again.append(threading.Timer(_AGAIN_SECONDS, signal.pthread_kill, (main_thread, signal.SIGTERM)))
        again[-1].start()

    before = _handle(dict.fromkeys(_SIGNALS, interrupt))
    hook, sys.unraisablehook = sys.unraisablehook, come_again
    try:
        yield
    finally:
        for timer in again:
            timer.cancel()
            timer.join()
        sys.unraisablehook = hook
        _handle(before)


def _handle(handlers: Mapping[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Install handlers; those there were."""
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}
