"""The temporary folder of a driver: removed at its end, or by the next driver if it was killed."""

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
"""Minimum age of a folder for its removal: a new one is not locked yet."""


@contextmanager
def driver_folder(prefix: str) -> Iterator[Path]:
    """A folder of this process below the system's temporary folder; removes those of its prefix whose owner has died.

    An owner holds a lock on its folder. The kernel releases the lock when the process ends in any way, so a reused
    process id keeps no folder. Folders of other users are not touched.
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
    """Return a descriptor that holds the folder's lock. OSError if another process holds it, or it is no folder."""
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
