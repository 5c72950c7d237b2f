"""The temporary folder of a driver: removed when it ends, and by the next driver when it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SETTLE_SECONDS = 10.0
"""A folder is not locked yet at the instant it is made: a younger one is left where it is."""


@contextmanager
def driver_folder(prefix: str) -> Iterator[Path]:
    """A folder of this process's own below the system's temporary one; those of its prefix whose owner died go.

    An owner holds a lock on its folder. It is the kernel's and ends with the process, however that ends, so a process
    number that is used again keeps nothing alive. What belongs to other users stays.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    lock = _locked(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock. OSError where another process has it, or it is no folder."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _remove_if_left(folder: Path) -> None:
    found = folder.lstat()
    if found.st_uid != os.getuid() or time.time() - found.st_ctime < SETTLE_SECONDS:
        return
    lock = _locked(folder)
    try:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
