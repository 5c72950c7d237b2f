"""CounterFile: the counters of a context in a file that outlives the process, as Aeron's cnc.dat does.

    offset 0                 magic, version
    offset 4096              slot 0: sequence number, length and CRC-32 of a text, then the text
    offset 4096 + 64 MiB     slot 1 (the file is sparse)

The texts are reports in JSON: Context.stats(), the identity of the context, and the errors of the process. The writer
alternates between the slots, so a process that is killed while it writes leaves the previous text. A reader takes the
intact text with the highest sequence number. The writer holds a lock on the file, which the kernel releases when the
process ends: a file without the lock is that of an ended process.

The file is written and not mapped: a store into a mapped file would end the process where the file system is full, or
where someone truncates the file. A context writes it when it is created, and its thread for upkeep every half second,
or less often if the contexts of the process together would take more than 1/50 of a processor for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import struct
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from umstack.error_log import process_errors
from umstack.errors import Closed, PermissionNeeded, ResourceLimit, UmError, error_from_os
from umstack.foreign_text import displayed
from umstack.repeated_records import RepeatedRecords
from umstack.telemetry.statistics_folders import (
    admit_readers,
    file_name,
    files_in,
    make_folder,
    opened,
    own_folder,
)
from umstack_xdp.closing import Closing

_MAGIC = b"umstat\r\n"
_VERSION = 1
_HEADER = struct.Struct("<8sI")
"""Magic, version."""
_LOCK = struct.Struct("hhqqi4x")
"""The kernel's struct flock: type, whence, start, length (0: to the end), process."""
_SLOT = struct.Struct("<QII")
"""Sequence number, length and CRC-32 of the text."""
_TEXT_BYTES_MAX = 64 * 1024 * 1024
_SLOTS_AT = (4096, 4096 + 4096 + _TEXT_BYTES_MAX)
_READS = 3
"""Maximum number of reads by a reader that the writer overtakes."""
_INTERVAL_SECONDS = 0.5
_COST_RATIO = 50
"""The interval is at least this multiple of the processor time that the last reports of all contexts took."""
_CONTEXTS_PER_PROCESS_MAX = 1000

_log = logging.getLogger(__name__)


class BadCounterFile(ValueError):
    """The data is not a counter file with an intact text."""


def header_bytes() -> bytes:
    """Return the header of a file."""
    return _HEADER.pack(_MAGIC, _VERSION)


def slot_of(sequence: int, text: bytes) -> tuple[bytes, int]:
    """Return the bytes of a slot with this text, and the slot's offset in the file."""
    return _SLOT.pack(sequence, len(text), zlib.crc32(text)) + text, _SLOTS_AT[sequence % 2]


def lock(fd: int) -> None:
    """Mark a file as that of a running process while this open file exists. Raises OSError."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))


def is_locked(fd: int) -> bool:
    """Return true if the process that wrote a file is running. Raises OSError."""
    found = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _LOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0))
    return bool(_LOCK.unpack(found)[0] != fcntl.F_UNLCK)


def newest_text(fd: int) -> bytes:
    """Return the newest intact text of a counter file, which anyone may have written or truncated.

    Empty before the first one is written. Raises OSError, BadCounterFile.
    """
    header = os.pread(fd, _HEADER.size, 0)
    if not header:
        return b""
    magic, version = _HEADER.unpack(header.ljust(_HEADER.size))
    if magic != _MAGIC:
        raise BadCounterFile("it is no counter file")
    if version != _VERSION:
        raise BadCounterFile(f"it has version {version}, and this program reads version {_VERSION}")
    for _ in range(_READS):
        slots = [(os.pread(fd, _SLOT.size, at), at) for at in _SLOTS_AT]
        found = [(_SLOT.unpack(slot), at) for slot, at in slots if len(slot) == _SLOT.size]
        for (sequence, length, checksum), at in sorted(found, reverse=True):
            if sequence and 0 < length <= _TEXT_BYTES_MAX:
                text = os.pread(fd, length, at + _SLOT.size)
                if len(text) == length and zlib.crc32(text) == checksum:
                    return text
        if not found:
            return b""
    raise BadCounterFile("no text in it is intact")


class CounterFile(Closing):
    """Writes the counters of one context. Any thread may call any method."""

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]],
        directory: Path | None = None,
        ended_maximum: int = 32,
        ended_seconds: float = 86400.0,
    ) -> None:
        """Create the file. update() writes the result of `read` into it.

        Of the files of killed processes in the directory, at most `ended_maximum`, and none older than `ended_seconds`,
        are kept. Raises PermissionNeeded, ResourceLimit or SystemFailure.
        """
        self._read = read
        self._started_at = time.time()
        self._next = 0.0
        self._cost = 0.0
        """Processor time of the last report in seconds; 0 after close()."""
        self._sequence = 0
        self._fd: int | None = None
        """None: closed."""
        self._writing = threading.Lock()
        self._records = RepeatedRecords(_log)
        folder = directory or own_folder()
        try:
            make_folder(folder)
            remove_ended(folder, ended_maximum, ended_seconds)
            self._number, self._fd = _claimed(folder)
            self.path = folder / file_name(os.getpid(), self._number)
            _open_files.add(self)
        except PermissionNeeded:
            raise
        except OSError as error:
            failure = error_from_os(error, f"statistics file in {folder}")
            hint = "set UMSTACK_STAT_DIR to a directory that you can write to"
            raise type(failure)(failure.message, hint=hint, errno=error.errno or 0) from error

    def begin(self) -> None:
        """Write the file for the first time. The next update() writes it again, without an interval in between:
        what an application creates first is then shown after half a second at most.
        """
        self.update()
        self._next = 0.0

    def update(self) -> None:
        """Write the file if its interval has passed. A failure is logged."""
        if time.monotonic() < self._next:
            return
        try:
            self.write()
        except (OSError, UmError) as error:
            text = displayed(str(error))
            self._records.write("write", logging.WARNING, "%s is not up to date: %s", self.path, text)

    def write(self) -> None:
        """Write the file now. Does nothing after close(). Raises OSError, ResourceLimit."""
        with self._writing, contextlib.suppress(Closed):
            if self._fd is None:
                return
            before = time.thread_time()
            try:
                self._write(self._text())
            finally:
                self._cost = time.thread_time() - before
                cost = sum(file._cost for file in list(_open_files))
                self._next = time.monotonic() + max(_INTERVAL_SECONDS, _COST_RATIO * cost)

    def _text(self) -> bytes:
        import json  # programs without statistics do not need it

        report = {
            "pid": os.getpid(),
            "number": self._number,
            "command": " ".join(sys.orig_argv),
            "started_at": self._started_at,
            "read_at": time.time(),
            "errors": process_errors.read(),
            **self._read(),
        }
        return json.dumps(report).encode()

    def _write(self, text: bytes) -> None:
        assert self._fd is not None
        if len(text) > _TEXT_BYTES_MAX:
            raise ResourceLimit(f"the report has {len(text)} bytes, and the file holds {_TEXT_BYTES_MAX}")
        if not os.fstat(self._fd).st_nlink:
            former, self._fd = self._fd, _created(self.path)  # someone has removed it
            os.close(former)
        self._sequence += 1
        slot, at = slot_of(self._sequence, text)
        if os.pwrite(self._fd, slot, at) < len(slot):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Remove the file: only those of processes that ended without closing their contexts stay."""
        with self._writing:
            if self._fd is not None:
                self.path.unlink(missing_ok=True)
                os.close(self._fd)
                self._fd = None
                self._cost = 0.0
                _open_files.discard(self)


_open_files: weakref.WeakSet[CounterFile] = weakref.WeakSet()


def _close_in_child() -> None:
    """Close the files in a forked child, which would keep the locks of its parent."""
    for file in _open_files:
        if file._fd is not None:
            os.close(file._fd)
            file._fd = None


os.register_at_fork(after_in_child=_close_in_child)


def _claimed(folder: Path) -> tuple[int, int]:
    """Create a file with the first free number; returns the number and its descriptor. Raises OSError."""
    for number in range(_CONTEXTS_PER_PROCESS_MAX):
        with contextlib.suppress(FileExistsError):
            return number, _created(folder / file_name(os.getpid(), number))
    raise OSError(errno.ENOSPC, f"this process has {_CONTEXTS_PER_PROCESS_MAX} statistics files already")


def _created(path: Path) -> int:
    """Create a file with its header, and return its descriptor. Raises OSError."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        lock(fd)
        admit_readers(fd, path.parent)
        os.pwrite(fd, header_bytes(), 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def remove_ended(folder: Path, maximum: int, seconds: float) -> None:
    """Remove this user's files of processes that do not exist any more, except the newest.

    `maximum` is how many stay, `seconds` their largest age. Raises PermissionNeeded if the directory is not trusted.
    """
    ended: list[tuple[float, Path]] = []
    for one in files_in(folder):
        if one.owner != os.geteuid():
            continue
        with contextlib.suppress(FileNotFoundError), opened(one) as fd:
            if not is_locked(fd):
                ended.append((os.fstat(fd).st_mtime, one.path))
    for rank, (written_at, path) in enumerate(sorted(ended, reverse=True)):
        if rank >= maximum or time.time() - written_at > seconds:
            path.unlink(missing_ok=True)
