"""ResolverThread: topic resolution of a context in embedded mode, on a thread of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable

from umstack.errors import Closed, ResolutionError
from umstack.foreign_text import displayed
from umstack.repeated_records import RepeatedRecords
from umstack.resolution.agent import ResolutionAgent
from umstack.resolution.service import Command, Resolver

_JOIN_TIMEOUT_S = 5.0
_NS_PER_S = 1_000_000_000

_records = RepeatedRecords(logging.getLogger("umstack.resolution"))


class ResolverThread(Resolver):
    """Runs an agent, which it owns from then on. Every method may be called from any thread.

    The agent's callbacks run on this thread. One that raises is logged and does not stop resolution.
    """

    def __init__(self, agent: ResolutionAgent, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(agent)
        self._clock_ns = clock_ns
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="umstack-resolution", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Run the commands submitted so far, stop the thread and close the agent. Closing twice does nothing."""
        with self._closed:
            if self._is_closed:
                return
            self._is_closed = True
            self._commands.put(self._stop)
            os.eventfd_write(self._wake_fd, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_TIMEOUT_S)
            if self._thread.is_alive():
                raise ResolutionError(
                    "the topic resolution thread does not end", hint="let the callback it is in return"
                )

    def _submit(self, command: Command) -> None:
        with self._closed:
            if self._is_closed:
                raise Closed("topic resolution of this context is closed")
            self._commands.put(command)
            os.eventfd_write(self._wake_fd, 1)

    def _stop(self, _now_ns: int) -> None:
        self._stopping = True

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector, self._agent:
            selector.register(self._agent.fileno(), selectors.EVENT_READ)
            selector.register(self._wake_fd, selectors.EVENT_READ)
            more = False
            while not self._stopping:
                selector.select(0 if more else self._timeout_s())
                more = self._duty_cycle()
        # Under the lock: close() writes to the descriptor, whose number may be reused once it is closed.
        with self._closed:
            os.close(self._wake_fd)

    def _duty_cycle(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        while not self._stopping:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                break
            self._guard(command)
        return self._guard(self._agent.process)

    def _guard(self, step: Callable[[int], bool | None]) -> bool:
        try:
            return bool(step(self._clock_ns()))
        except Exception as error:
            _records.write(
                type(error),
                logging.ERROR,
                "a topic resolution callback failed: %s",
                displayed(str(error)),
                error=error,
            )
            return False

    def _timeout_s(self) -> float | None:
        deadline_ns = self._agent.next_deadline_ns()
        if deadline_ns is None:
            return None
        return max(0, deadline_ns - self._clock_ns()) / _NS_PER_S
