"""StatisticsServer: lets another process read a context's counters, as one JSON object over a Unix socket.

A socket is named `<process id>-<number>.sock` and lies in one directory for all of a user's processes:
UMSTACK_STAT_DIR, or /run/umstack/stat for root, or umstack/stat in XDG_RUNTIME_DIR for others (umstack-UID/stat in
the temporary directory where that is not set). Whoever connects gets the object and the end of the stream; nothing is
read from them. `umstack stat` is such a reader.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from umstack.errors import Closed, ResourceLimit, SystemFailure, error_from_os

_READER_TIMEOUT_SECONDS = 2.0
_CONTEXTS_PER_PROCESS_MAX = 1000
_REPORT_BYTES_MAX = 64 * 1024 * 1024


def statistics_directory() -> Path:
    """Where this user's processes have their sockets."""
    if chosen := os.environ.get("UMSTACK_STAT_DIR"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/run/umstack/stat")
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime, "umstack", "stat")
    return Path(tempfile.gettempdir(), f"umstack-{os.geteuid()}", "stat")


class StatisticsServer:
    """Answers on a thread of its own until closed. Only the user the process runs as may connect."""

    def __init__(self, read: Callable[[], Mapping[str, Any]], directory: Path | None = None) -> None:
        """Begin to answer with what `read` returns at that moment, and whose counters they are."""
        self._read = read
        self._started_at = time.time()
        self._closing = False
        folder = directory or statistics_directory()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_orphans(folder)
            self.path = self._bind(folder)
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise error_from_os(error, f"statistics socket in {folder}") from error
        self._thread = threading.Thread(target=self._serve, name="umstack-statistics", daemon=True)
        self._thread.start()

    def _bind(self, folder: Path) -> Path:
        """Bind to the first number free; what an earlier process of the same id left behind is replaced."""
        for number in range(_CONTEXTS_PER_PROCESS_MAX):
            path = folder / f"{os.getpid()}-{number}.sock"
            if path.exists() and not _is_served(path):
                path.unlink(missing_ok=True)
            try:
                self._socket.bind(str(path))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise
            path.chmod(0o600)
            return path
        self._socket.close()
        raise ResourceLimit(
            f"this process has {_CONTEXTS_PER_PROCESS_MAX} statistics sockets in {folder} already"
        )

    def close(self) -> None:
        """Stop answering."""
        self._closing = True
        self.path.unlink(missing_ok=True)
        # Ends the accept() the thread is in; closing the descriptor would not.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._closing:
            try:
                reader, _ = self._socket.accept()
            except OSError:
                if not self._closing:
                    time.sleep(_READER_TIMEOUT_SECONDS)  # out of descriptors: the next attempt may find one
                continue
            # A reader that goes away or is slow is its own loss.
            with reader, contextlib.suppress(OSError, Closed):
                reader.settimeout(_READER_TIMEOUT_SECONDS)
                reader.sendall(json.dumps(self._report()).encode())

    def _report(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "number": int(self.path.stem.partition("-")[2]),
            "command": " ".join(sys.orig_argv),
            "started_at": self._started_at,
            "read_at": time.time(),
            **self._read(),
        }


def read_statistics(pid: int | None = None, directory: Path | None = None) -> list[dict[str, Any]]:
    """What the contexts of a process (None: of all processes) report now, the oldest first.

    Sockets whose process is gone are removed.
    """
    folder = directory or statistics_directory()
    _remove_orphans(folder)
    reports = []
    for path in folder.glob(f"{pid or '*'}-*.sock"):
        report = _read_report(path)
        if report is not None:
            reports.append(report)
    return sorted(reports, key=lambda report: float(report["started_at"]))


def _read_report(path: Path) -> dict[str, Any] | None:
    """One context's report; None when it ends meanwhile or has ended."""
    text = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(2 * _READER_TIMEOUT_SECONDS)
        try:
            connection.connect(str(path))
            while chunk := connection.recv(65536):
                text += chunk
                if len(text) > _REPORT_BYTES_MAX:
                    raise SystemFailure(f"{path} sends no end of statistics", hint="end that process")
        except (FileNotFoundError, ConnectionError):
            return None  # refused: it has ended, or is bound and about to listen
        except OSError as error:
            raise error_from_os(error, f"reading {path}") from error
    report: dict[str, Any] | None = json.loads(text) if text else None
    return report


def _remove_orphans(folder: Path) -> None:
    """Remove the sockets of processes that ended without closing theirs."""
    for path in folder.glob("*-*.sock"):
        if not Path("/proc", path.name.partition("-")[0]).exists():
            path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
