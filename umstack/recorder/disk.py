"""Disk access of the recorder and the pipeline: durable files and names, and folders that are exchanged at once."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_CURRENT_FOLDER, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of renameat2()."""
_NOT_POSSIBLE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def sync_path(path: Path) -> None:
    """Force the content of a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once. Return false if their file system cannot, as NFS. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    paths = (_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other))
    if library.renameat2(*paths, _EXCHANGE) != 0:
        if (failed := ctypes.get_errno()) in _NOT_POSSIBLE:
            return False
        raise OSError(failed, os.strerror(failed), os.fspath(one), None, os.fspath(other))
    for path in (one, other):
        sync_path(path.parent)
    return True
