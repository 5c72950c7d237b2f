"""Processes that are forked from one that has loaded everything, so that kills and starts cost little.

A module of tests is the parent process: it calls `serve_forks`, and `ForkedProcesses` gives it orders.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

_ROOT = Path(__file__).resolve().parents[1]
_ANSWER_BYTES = 64


class ForkedProcess:
    """A process that is no child of this one."""

    def __init__(self, pid: int) -> None:
        self._pid_fd: int | None = os.pidfd_open(pid)

    def is_running(self) -> bool:
        """Return true if it has not ended."""
        return self._pid_fd is not None and not select.select([self._pid_fd], [], [], 0)[0]

    def end(self, number: int = signal.SIGKILL, seconds: float | None = None) -> None:
        """Send it a signal, and wait until it has ended and the kernel has released what it had open."""
        if self._pid_fd is None:
            return
        if self.is_running():
            signal.pidfd_send_signal(self._pid_fd, number)
        assert select.select([self._pid_fd], [], [], seconds)[0], f"it runs {seconds} s after signal {number}"
        os.close(self._pid_fd)
        self._pid_fd = None


class ForkedProcesses:
    """Starts processes, and kills on exit those that still run."""

    def __init__(self, module: str, *arguments: str, run: Callable[..., Any] = subprocess.Popen) -> None:
        """`run` starts the parent process, `python -m MODULE ARGUMENT...`."""
        line = [sys.executable, "-m", module, *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._parent = cast("subprocess.Popen[str]", run(line, cwd=_ROOT, text=True, **pipes))
        self._processes: list[ForkedProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.end()
        self._parent.communicate()

    def start(self, order: str) -> tuple[ForkedProcess, str]:
        """Fork a process with a line of words as its order; return it and its answer."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.write(order + "\n")
        self._parent.stdin.flush()
        pid, answer = self._parent.stdout.readline().split()
        process = ForkedProcess(int(pid))
        self._processes = [*(one for one in self._processes if one.is_running()), process]
        return process, answer


def serve_forks(work: Callable[[list[str], Callable[[str], None]], None]) -> None:
    """Fork a process for each line of the standard input, and print its process id and its answer.

    Args:
        work: Called in the process with the words of the line, and a function to which it gives the answer, a word.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                work(line.split(), lambda answer, to=writable: _answer(to, answer))  # type: ignore[misc]
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(writable)
        print(pid, os.read(readable, _ANSWER_BYTES).decode(), flush=True)
        os.close(readable)


def _answer(writable: int, answer: str) -> None:
    os.write(writable, answer.encode())


__all__ = ["ForkedProcess", "ForkedProcesses", "serve_forks"]
