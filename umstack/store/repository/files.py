"""The files of a repository's log: the only access to the disk, so that tests can put a simulated disk in its place."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Protocol

BytesLike = Any
"""An object with a contiguous buffer."""


class File(Protocol):
    """One open file. Errors are OSError."""

    def read(self, offset: int, byte_count: int) -> bytes:
        """Return bytes from this offset, fewer only at the end of the file."""

    def write(self, offset: int, data: BytesLike) -> None:
        """Write all the bytes at this offset."""

    def sync(self) -> None:
        """Return when content and size are on the disk."""

    def truncate(self, byte_count: int) -> None:
        """Set the size."""

    def size(self) -> int:
        """Return the size in bytes."""

    def close(self) -> None:
        """Close the file."""


class Files(Protocol):
    """The directory of a log. Errors are OSError."""

    def names(self) -> list[str]:
        """Return the names of all files."""

    def create(self, name: str, byte_count: int) -> File:
        """Create a file of this size, filled with zeros, whose space is allocated."""

    def open(self, name: str, *, is_writable: bool = False) -> File:
        """Open an existing file."""

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def sync_names(self) -> None:
        """Return when the names in the directory are on the disk."""

    def free_bytes(self) -> int:
        """Return the free space of the volume."""


class DiskFile:
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: int, byte_count: int) -> bytes:
        """Return bytes from this offset."""
        found = os.pread(self._descriptor, byte_count, offset)
        while 0 < len(found) < byte_count:
            more = os.pread(self._descriptor, byte_count - len(found), offset + len(found))
            if not more:
                break
            found += more
        return found

    def write(self, offset: int, data: BytesLike) -> None:
        """Write all the bytes at this offset."""
        left = memoryview(data)
        while left:
            written = os.pwrite(self._descriptor, left, offset)
            if written == 0:
                raise OSError(errno.EIO, "the kernel wrote nothing")
            left, offset = left[written:], offset + written

    def sync(self) -> None:
        """Return when content and size are on the disk."""
        os.fdatasync(self._descriptor)

    def truncate(self, byte_count: int) -> None:
        """Set the size."""
        os.ftruncate(self._descriptor, byte_count)

    def size(self) -> int:
        """Return the size in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class DiskFiles:
    """A directory of the operating system.

    Args:
        directory: It must exist.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [path.name for path in self._directory.iterdir()]

    def create(self, name: str, byte_count: int) -> DiskFile:
        """Create a file of this size; on an error nothing is left."""
        path = self._directory / name
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(descriptor, 0, byte_count)
            os.fsync(descriptor)
        except OSError:
            os.close(descriptor)
            path.unlink()
            raise
        return DiskFile(descriptor)

    def open(self, name: str, *, is_writable: bool = False) -> DiskFile:
        """Open an existing file."""
        access = os.O_RDWR if is_writable else os.O_RDONLY
        return DiskFile(os.open(self._directory / name, access | os.O_CLOEXEC))

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file."""
        (self._directory / name).rename(self._directory / new_name)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self._directory / name).unlink()

    def sync_names(self) -> None:
        """Return when the names in the directory are on the disk."""
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self) -> int:
        """Return the free space of the volume."""
        found = os.statvfs(self._directory)
        return found.f_bavail * found.f_frsize
