"""Waits for a condition that is checked again and again, on a thread or in an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from umstack._engine.engine import Engine
from umstack.errors import OptionError

_POLL_S = 0.001


def wait(engine: Engine, condition: Callable[[], bool], timeout: float | None) -> bool:
    """Wait until the condition is true; return False if the timeout in seconds ends first."""
    for is_met in _checks(condition, timeout):
        if is_met:
            return True
        engine.idle(_POLL_S)
    return False


async def wait_async(engine: Engine, condition: Callable[[], bool], timeout: float | None) -> bool:
    """Wait as wait() does, in the running event loop. Raises OptionError in sequential mode."""
    check_embedded(engine, "waiting in an event loop")
    import asyncio  # a third of the time that importing a context takes

    for is_met in _checks(condition, timeout):
        if is_met:
            return True
        await asyncio.sleep(_POLL_S)
    return False


def check_embedded(engine: Engine, doing: str) -> None:
    """Raise OptionError in sequential mode, in which nothing runs the protocol while an event loop sleeps."""
    if engine.is_sequential:
        raise OptionError(
            f"{doing} needs the context's own thread", hint="create the context with mode='embedded'"
        )


def _checks(condition: Callable[[], bool], timeout: float | None) -> Iterator[bool]:
    """Yield False while the condition is false, then True; end when the timeout has ended."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not condition():
        if deadline is not None and time.monotonic() >= deadline:
            return
        yield False
    yield True
