"""The target directory of a received tree. No record can cause a write outside of it.

Every directory on the path to an entry is opened relative to the one above and never through a link. A file is written
under a name that nobody outside can guess, and receives its final name when it is complete.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from pathlib import Path

from umstack.errors import error_from_path, naming_path
from umstack.files.walk import MODE_MASK
from umstack_xdp.closing import Closing

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_TEMPORARY_PREFIX = ".umstack-"


class PartFile:
    """A file being received, under its temporary name. Call `Target.complete` or `Target.discard` at the end."""

    __slots__ = ("_fd", "name", "written_bytes")

    def __init__(self, fd: int, name: str) -> None:
        """Take ownership of an open descriptor."""
        self._fd = fd
        self.name = name
        self.written_bytes = 0

    def write(self, data: memoryview) -> None:
        """Append the data."""
        while data:
            count = os.write(self._fd, data)
            self.written_bytes += count
            data = data[count:]

    def finish(self, mode: int, mtime_ns: int) -> None:
        """Set the file's mode and time, and close it."""
        os.fchmod(self._fd, mode & MODE_MASK)
        os.utime(self._fd, ns=(mtime_ns, mtime_ns))
        self.close()

    def close(self) -> None:
        """Close the descriptor, if it is open."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Target(Closing):
    """The directory, created if missing. Errors of one entry are OSError and do not affect others."""

    def __init__(self, directory: Path | str) -> None:
        """Open the directory and a temporary one inside it."""
        self.directory = Path(directory)
        self._open_parts: list[bytes] = []
        self._open_fds: list[int] = []
        with naming_path(f"receiving into {directory}"):
            self.directory.mkdir(parents=True, exist_ok=True)
            self._root_fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._temporary_name = _TEMPORARY_PREFIX + secrets.token_hex(8)
        try:
            os.mkdir(self._temporary_name, mode=0o700, dir_fd=self._root_fd)
            self._temporary_fd = os.open(self._temporary_name, _DIRECTORY_FLAGS, dir_fd=self._root_fd)
        except OSError as error:
            os.close(self._root_fd)
            raise error_from_path(error, f"receiving into {directory}") from error

    def begin(self) -> PartFile:
        """Start a file that receives its name on completion."""
        name = secrets.token_hex(8)
        return PartFile(os.open(name, _NEW_FILE_FLAGS, mode=0o600, dir_fd=self._temporary_fd), name)

    def complete(self, part: PartFile, parts: tuple[bytes, ...], mode: int, mtime_ns: int) -> None:
        """Set the mode, time and name of a written file, replacing a file or link of that name."""
        part.finish(mode, mtime_ns)
        parent = self._parent(parts)
        os.rename(part.name, parts[-1], src_dir_fd=self._temporary_fd, dst_dir_fd=parent)

    def discard(self, part: PartFile) -> None:
        """Discard a file that will not be completed."""
        part.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part.name, dir_fd=self._temporary_fd)

    def make_link(self, parts: tuple[bytes, ...], target: bytes) -> None:
        """Create a symbolic link, replacing a file or link of that name."""
        name = secrets.token_hex(8)
        parent = self._parent(parts)
        os.symlink(target, name, dir_fd=self._temporary_fd)
        try:
            os.rename(name, parts[-1], src_dir_fd=self._temporary_fd, dst_dir_fd=parent)
        except OSError:
            os.unlink(name, dir_fd=self._temporary_fd)
            raise

    def finish_directory(self, parts: tuple[bytes, ...], mode: int, mtime_ns: int) -> None:
        """Set the mode and time of a directory; create it if it is empty."""
        fd = self._enter(parts)
        os.fchmod(fd, mode & MODE_MASK)
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def close(self) -> None:
        """Remove the temporary directory and close the others."""
        self._leave(0)
        os.close(self._temporary_fd)
        shutil.rmtree(self._temporary_name, ignore_errors=True, dir_fd=self._root_fd)
        os.close(self._root_fd)

    def _parent(self, parts: tuple[bytes, ...]) -> int:
        return self._enter(parts[:-1])

    def _enter(self, parts: tuple[bytes, ...]) -> int:
        """Return the descriptor of the directory at `parts`, creating it if missing. The last path stays open."""
        common = 0
        while common < min(len(parts), len(self._open_parts)) and parts[common] == self._open_parts[common]:
            common += 1
        self._leave(common)
        for name in parts[common:]:
            above = self._open_fds[-1] if self._open_fds else self._root_fd
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, mode=0o700, dir_fd=above)
            self._open_fds.append(os.open(name, _DIRECTORY_FLAGS, dir_fd=above))
            self._open_parts.append(name)
        return self._open_fds[-1] if self._open_fds else self._root_fd

    def _leave(self, depth: int) -> None:
        """Close the open directories below this depth."""
        for fd in self._open_fds[depth:]:
            os.close(fd)
        del self._open_fds[depth:], self._open_parts[depth:]
