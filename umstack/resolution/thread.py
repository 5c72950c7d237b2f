"""The thread that runs topic resolution for a context in embedded mode."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import selectors
import threading
import time
from collections.abc import Callable

from umstack.config import ReceiverOptions, SourceOptions
from umstack.errors import Closed, ResolutionError
from umstack.foreign_text import displayed
from umstack.repeated_records import RepeatedRecords
from umstack.resolution.agent import ResolutionAgent
from umstack.resolution.codec import LbtrmAddress
from umstack.resolution.topic_name import encode_topic_name
from xdp.closing import Closing

_JOIN_TIMEOUT_S = 5.0
_NS_PER_S = 1_000_000_000

_records = RepeatedRecords(logging.getLogger("umstack.resolution"))


class ResolverThread(Closing):
    """Runs an agent, which it owns from then on. Every method may be called from any thread.

    The agent's callbacks run on this thread. One that raises is logged and does not stop resolution.
    """

    def __init__(self, agent: ResolutionAgent, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._agent = agent
        self._clock_ns = clock_ns
        self._commands: queue.SimpleQueue[Callable[[int], None]] = queue.SimpleQueue()
        self._stopping = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="umstack-resolution", daemon=True)
        self._thread.start()

    def advertise(self, topic: str, index: int, address: LbtrmAddress, options: SourceOptions) -> None:
        """Announce a source."""
        encode_topic_name(topic)
        self._post(lambda now_ns: self._agent.advertise(topic, index, address, options, now_ns))

    def withdraw(self, topic: str, index: int, address: LbtrmAddress) -> None:
        """Stop announcing a source."""
        self._post(lambda now_ns: self._agent.withdraw(topic, index, address, now_ns))

    def query(self, topic: str, options: ReceiverOptions) -> None:
        """Look for sources of a topic; known ones are reported soon, from the resolution thread."""
        encode_topic_name(topic)
        self._post(lambda now_ns: self._agent.query(topic, options, now_ns))

    def stop_query(self, topic: str) -> None:
        """One receiver less wants the topic."""
        self._post(lambda _now_ns: self._agent.stop_query(topic))

    def forget_session(self, address: LbtrmAddress) -> None:
        """A session has ended."""
        self._post(lambda now_ns: self._agent.forget_session(address, now_ns))

    def request_resolution(self) -> None:
        """Ask everybody to advertise and query anew."""
        self._post(self._agent.request_resolution)

    def set_mtu(self, mtu_bytes: int) -> None:
        """Follow the interface's MTU."""
        self._post(lambda _now_ns: self._agent.set_mtu(mtu_bytes))

    def topics(self) -> list[str]:
        """Topics somebody was heard to have a source of."""
        return self._agent.topics()

    def stats(self) -> dict[str, int]:
        """The tr_* counters by name."""
        return self._agent.stats()

    def close(self) -> None:
        """Carry out what was posted, stop the thread and close the agent. Closing twice does nothing."""
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

    def _post(self, command: Callable[[int], None]) -> None:
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
                more = self._turn()
        # Who asked for the end may not have written yet, to what by then would be somebody else's.
        with self._closed:
            os.close(self._wake_fd)

    def _turn(self) -> bool:
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
