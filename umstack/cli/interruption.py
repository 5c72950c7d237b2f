"""Interruption: Ctrl-C and SIGTERM both end a command cleanly, with its summary."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

INTERRUPTED_STATUS = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN_SECONDS = 0.005


@contextmanager
def terminable(*, once: bool = False) -> Iterator[None]:
    """Within the block SIGTERM raises KeyboardInterrupt, as Ctrl-C does.

    With `once` further signals are ignored, so that cleanup is not interrupted.
    Python discards exceptions raised in a finalizer, so an interrupt raised there is raised again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main_thread = threading.get_ident()
    insisting: list[threading.Thread] = []
    is_lost = is_deaf = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_lost
        if is_deaf:
            return
        is_lost = False
        if once:
            _handle(dict.fromkeys(_SIGNALS, signal.SIG_IGN))
        raise KeyboardInterrupt

    def insist() -> None:
        while True:
            time.sleep(_AGAIN_SECONDS)
            if not is_lost:
                return
            signal.pthread_kill(main_thread, signal.SIGTERM)

    def come_again(lost: sys.UnraisableHookArgs) -> None:
        nonlocal is_lost, is_deaf
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            hook(lost)
            return
        # An exception raised here would be lost.
        is_lost = is_deaf = True
        try:
            _handle(dict.fromkeys(_SIGNALS, interrupt))
            insisting.append(threading.Thread(target=insist, daemon=True))
            insisting[-1].start()
        finally:
            is_deaf = False

    before = _handle(dict.fromkeys(_SIGNALS, interrupt))
    hook, sys.unraisablehook = sys.unraisablehook, come_again
    try:
        yield
    finally:
        is_lost, is_deaf = False, True
        for thread in insisting:
            thread.join()
        sys.unraisablehook = hook
        _handle(before)


def wait_for_end(on_waiting: Callable[[], None] = lambda: None) -> None:
    """Wait for SIGINT or SIGTERM, for commands that serve; call `on_waiting` once either is handled."""
    ended = threading.Event()
    for number in _SIGNALS:
        signal.signal(number, lambda *_: ended.set())
    on_waiting()
    ended.wait()


class Run(Protocol):
    """Summary of a run."""

    interrupted: bool


@contextmanager
def interruptible(run: Run) -> Iterator[None]:
    """End the block on an interrupt and record it in `run`; do not raise it."""
    try:
        yield
    except KeyboardInterrupt:
        run.interrupted = True


@dataclass(slots=True)
class StopRequest:
    """True once a signal requested a stop."""

    has_come: bool = False


@contextmanager
def stoppable(stop: Callable[[], None]) -> Iterator[StopRequest]:
    """Within the block the first signal calls `stop` and raises nothing, so that current work finishes; later signals
    are ignored. Use it inside `terminable(once=True)`, which covers the code before and after.

    Python runs a handler between two of its instructions. A signal that comes just before a call that waits is handled
    only after that call, so a thread that reads the wakeup descriptor calls `stop`, once for each signal in the block.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(_number: int, _frame: FrameType | None) -> None:
        request.has_come = True

    def pass_on() -> None:
        while number := reading.recv(1):
            if number[0] in _SIGNALS:
                stop()

    reading, writing = socket.socketpair()
    writing.setblocking(False)
    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    wakeup_before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
    before = _handle(dict.fromkeys(_SIGNALS, ask))
    try:
        yield request
    finally:
        _handle(dict.fromkeys(_SIGNALS, signal.SIG_IGN) if request.has_come else before)
        signal.set_wakeup_fd(wakeup_before)
        writing.close()
        thread.join()
        reading.close()


def _handle(handlers: Mapping[signal.Signals, Any]) -> dict[signal.Signals, Any]:
    """Install handlers; return the previous ones."""
    return {number: signal.signal(number, handler) for number, handler in handlers.items()}
