"""CommitThread: commits what a Store has staged on a thread of its own, so that a slow disk delays nobody else."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from umstack.repeated_records import RepeatedRecords
from umstack.store.repository import Commit, DiskFull, Repository
from umstack.telemetry.time_histogram import CommitHistogram

_FULL_SECONDS = 0.1
"""Pause before a commit is tried again after the disk was full."""


class CommitThread:
    """The only thread that commits to a repository. It reclaims space, too.

    Args:
        repository: The repository; another thread appends to it.
        wake: Called after each commit and at a failure, on this thread.
    """

    def __init__(self, repository: Repository, wake: Callable[[], None]) -> None:
        self._repository = repository
        self._wake = wake
        self._log = RepeatedRecords(logging.getLogger(__name__))
        self._done: deque[Commit] = deque()
        self._failure: BaseException | None = None
        self._is_wanted = threading.Event()
        self._is_stopping = False
        self.is_full = False
        """True: the disk had no space for the last commit."""
        self.counters = dict.fromkeys(("commits", "commit_bytes", "disk_full", "disk_errors"), 0)
        """Written on this thread; any thread reads."""
        self._times = [0] * CommitHistogram.BUCKETS
        """Commits by the time that each took."""
        self._thread = threading.Thread(target=self._run, name="umstack-store-commits", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what is staged and end the thread."""
        self._is_stopping = True
        self._is_wanted.set()
        self._thread.join()

    def times(self) -> CommitHistogram:
        """Return how long the commits took. Any thread."""
        return CommitHistogram(tuple(self._times))

    def request(self) -> None:
        """Commit soon: something was staged. Any thread."""
        self._is_wanted.set()

    def take(self) -> list[Commit]:
        """Return the commits since the last call. Raises the error that ended the thread, if one did."""
        if self._failure is not None:
            raise self._failure
        return [self._done.popleft() for _ in range(len(self._done))]

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._is_wanted.wait(_FULL_SECONDS if self.is_full else None)
                self._is_wanted.clear()
                self._commit()
            self._commit()  # what was staged before stop() was called
        except BaseException as error:  # raised again on the Store's thread
            self.counters["disk_errors"] += 1
            self._failure = error
            self._wake()

    def _commit(self) -> None:
        try:
            while True:
                started_ns = time.monotonic_ns()
                if (commit := self._repository.commit()) is None:
                    return
                self._times[CommitHistogram.bucket_of(time.monotonic_ns() - started_ns)] += 1
                self.counters["commits"] += 1
                self.counters["commit_bytes"] += commit.byte_count
                self.is_full = False
                self._done.append(commit)
                self._wake()
                if self._repository.needs_reclaim:
                    self._repository.reclaim()
        except DiskFull as error:
            self.is_full = True
            self.counters["disk_full"] += 1
            self._log.write(
                "full", logging.ERROR, "%s: messages are not acknowledged until there is space", error
            )
            self._repository.reclaim()


__all__ = ["CommitThread"]
