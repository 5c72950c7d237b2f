"""Network namespaces: create and remove them, run code and end processes inside them.

Code inside runs on a separate thread, because threads, not processes, enter a namespace. The caller stays where it is,
and a child process started on that thread begins inside, without code between fork and exec.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from pyroute2 import netns

from umstack.lab.errors import LabError

T = TypeVar("T")

_TERMINATION_GRACE_SECONDS = 2.0


def create(name: str) -> None:
    """Create a namespace with that name."""
    try:
        netns.create(name)
    except OSError as error:
        raise LabError(f"cannot create the network namespace {name}: {error}", hint="run as root") from error


def remove(name: str) -> None:
    """Remove the name; the namespace ends with its last process. A missing one is not an error."""
    with contextlib.suppress(FileNotFoundError):
        netns.remove(name)


def names() -> list[str]:
    """Return the names of all named namespaces."""
    return sorted(netns.listnetns())


def path(name: str) -> Path:
    """Return the file of the namespace."""
    return Path(netns.NETNS_RUN_DIR) / name


def exists(name: str) -> bool:
    """Return True if the name leads to a namespace.

    A process that was killed while it created one leaves an empty file, over which no namespace is mounted.
    """
    try:
        return path(name).stat().st_dev != path(name).parent.stat().st_dev
    except FileNotFoundError:
        return False


def call(name: str, function: Callable[[], T]) -> T:
    """Run the function inside the namespace; return its result or raise its exception.

    Sockets that it opens stay in the namespace.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def enter_and_run() -> None:
        try:
            enter(name)
            results.append(function())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=enter_and_run, name=f"in {name}")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def enter(name: str) -> None:
    """Move the calling thread into the namespace permanently."""
    try:
        netns.setns(name, flags=0)
    except FileNotFoundError as error:
        raise LabError(f"there is no network namespace {name}") from error
    except PermissionError as error:
        raise LabError(f"cannot enter the network namespace {name}: {error}", hint="run as root") from error


def processes(names_wanted: Iterable[str]) -> list[int]:
    """Return the ids of the processes in these namespaces, without this one."""
    inside = netns.ns_pids()
    return [pid for name in names_wanted for pid in inside.get(name, []) if pid != os.getpid()]


def end_processes(pids: Iterable[int]) -> None:
    """Terminate the processes, and kill those that remain after a grace period; return when all have ended."""
    handles = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            handles[os.pidfd_open(pid)] = pid
    try:
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            for handle in handles:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal_number)
            _await_exits(handles)
    finally:
        for handle in handles:
            os.close(handle)


def _await_exits(handles: dict[int, int]) -> None:
    poller = select.poll()
    for handle in handles:
        poller.register(handle, select.POLLIN)
    waiting = set(handles)
    while waiting:
        ended = poller.poll(_TERMINATION_GRACE_SECONDS * 1000)
        if not ended:
            return
        for handle, _ in ended:
            poller.unregister(handle)
            waiting.discard(handle)
