"""ResolverThread: runs topic resolution of a context on its own thread in embedded mode.

In a network of many contexts, each receives hundreds of datagrams per second, and a wake-up costs ten times as much
as a datagram. Datagrams therefore wake the thread at most eight times in a burst and fifty times per second on average;
the others collect in the socket buffer. Commands and schedules always wake the thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
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
_GATHER_NS = 20_000_000
_WAKEUPS_AT_ONCE = 8

_records = RepeatedRecords(logging.getLogger("umstack.resolution"))


class _Gathering:
    """Limits wake-ups for datagrams. Each wake-up books a slot of time, and a few slots may be booked ahead.

    Commands, deadlines and the batches of a flood wake the thread more often than slots pass, but datagrams never wait
    for more than one slot.
    """

    __slots__ = ("_booked_ns",)

    def __init__(self) -> None:
        self._booked_ns = 0

    def woken(self, now_ns: int) -> None:
        """Account for a wake-up."""
        latest_ns = now_ns + (_WAKEUPS_AT_ONCE + 1) * _GATHER_NS
        self._booked_ns = min(max(self._booked_ns, now_ns) + _GATHER_NS, latest_ns)

    def left_ns(self, now_ns: int) -> int:
        """Return how long the thread must leave its socket alone."""
        return max(0, self._booked_ns - now_ns - _WAKEUPS_AT_ONCE * _GATHER_NS)


class ResolverThread(Resolver):
    """Owns an agent and runs it. Any thread may call any method.

    The agent's callbacks run on this thread. An exception in a callback is logged and does not stop resolution.
    """

    def __init__(self, agent: ResolutionAgent, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(agent)
        self._clock_ns = clock_ns
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._stopping = False
        self._gathering = _Gathering()
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
                    "the topic resolution thread did not stop", hint="let its running callback return"
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
        with select.epoll() as everything, select.epoll() as commands, self._agent:
            everything.register(self._agent.fileno(), select.EPOLLIN)
            everything.register(self._wake_fd, select.EPOLLIN)
            commands.register(self._wake_fd, select.EPOLLIN)
            more = False
            while not self._stopping:
                timeout_s = 0 if more else self._timeout_s()
                gather_s = 0 if more else self._gathering.left_ns(self._clock_ns()) / _NS_PER_S
                if gather_s:
                    ready = commands.poll(gather_s if timeout_s is None else min(gather_s, timeout_s))
                else:
                    ready = everything.poll(timeout_s)
                self._gathering.woken(self._clock_ns())
                more = self._duty_cycle(has_commands=any(fd == self._wake_fd for fd, _ in ready))
        # Under the lock, because close() writes to the descriptor, whose number may be reused once it is closed.
        with self._closed:
            os.close(self._wake_fd)

    def _duty_cycle(self, *, has_commands: bool) -> bool:
        if has_commands:
            os.eventfd_read(self._wake_fd)
            self._run_commands()
        return not self._stopping and self._guard(self._agent.process)

    def _run_commands(self) -> None:
        with contextlib.suppress(queue.Empty):
            while not self._stopping:
                self._guard(self._commands.get_nowait())

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
