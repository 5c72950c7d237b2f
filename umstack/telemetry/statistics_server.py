"""StatisticsServer: lets another process read a context's counters, as one JSON object over a Unix socket.

A socket is named `<process id>-<number>.sock`. All of a user's processes use one directory: UMSTACK_STAT_DIR, or
/run/umstack/stat for root, or umstack/stat in XDG_RUNTIME_DIR for other users (umstack-UID/stat in the temporary
directory if that is unset). umstack.telemetry.socket_folders ensures that only the user can write to it. A client that
connects receives the object and end of stream; nothing is read from it. `umstack stat` is such a client: it finds the
sockets and checks the reports with umstack.telemetry.report_check.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from umstack.error_log import process_errors
from umstack.errors import Closed, PermissionNeeded, ResourceLimit, error_from_os
from umstack.foreign_text import displayed
from umstack.telemetry.socket_folders import (
    ContextSocket,
    admit_readers,
    chosen_folder,
    folders,
    make_folder,
    own_folder,
    remove_orphans,
    sockets_in,
)

_log = logging.getLogger(__name__)

_READER_TIMEOUT_SECONDS = 2.0
_CONTEXTS_PER_PROCESS_MAX = 1000
_REPORT_BYTES_MAX = 64 * 1024 * 1024


statistics_directory = own_folder
"""The directory with the sockets of this user's processes."""


class StatisticsServer:
    """Answers on its own thread until closed. Only the process's user may connect."""

    def __init__(self, read: Callable[[], Mapping[str, Any]], directory: Path | None = None) -> None:
        """Start to answer with the current result of `read` and the identity of the context."""
        self._read = read
        self._started_at = time.time()
        self._closing = False
        folder = directory or statistics_directory()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            make_folder(folder)
            remove_orphans(folder)
            self.path = self._bind(folder)
            self._socket.listen()
        except PermissionNeeded:
            self._socket.close()
            raise
        except OSError as error:
            self._socket.close()
            failure = error_from_os(error, f"statistics socket in {folder}")
            hint = "set UMSTACK_STAT_DIR to a directory that you can write to"
            raise type(failure)(failure.message, hint=hint, errno=error.errno or 0) from error
        self._thread = threading.Thread(target=self._serve, name="umstack-statistics", daemon=True)
        self._thread.start()

    def _bind(self, folder: Path) -> Path:
        """Bind to the first free number; replaces sockets left by an earlier process with the same id."""
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
            admit_readers(path)
            return path
        self._socket.close()
        raise ResourceLimit(
            f"this process has {_CONTEXTS_PER_PROCESS_MAX} statistics sockets in {folder} already"
        )

    def close(self) -> None:
        """Stop answering."""
        self._closing = True
        self.path.unlink(missing_ok=True)
        # Ends the thread's accept(); closing the descriptor would not.
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
                    time.sleep(_READER_TIMEOUT_SECONDS)  # no descriptors left: the next attempt may find one
                continue
            # A reader that disconnects or is slow is not served further.
            with reader, contextlib.suppress(OSError, Closed):
                reader.settimeout(_READER_TIMEOUT_SECONDS)
                import json  # only on the first request: every context has a server

                reader.sendall(json.dumps(self._report()).encode())

    def _report(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "number": int(self.path.stem.partition("-")[2]),
            "command": " ".join(sys.orig_argv),
            "started_at": self._started_at,
            "read_at": time.time(),
            "errors": process_errors.read(),
            **self._read(),
        }


def read_statistics(pid: int | None = None, directory: Path | None = None) -> list[dict[str, Any]]:
    """Return the reports of the contexts of a process (None: of all processes), the oldest context first.

    Reads `directory`, or else every directory in which contexts of this user (for root: of all users) listen. Removes
    sockets of processes that have ended. A directory that others can have filled is an error if it was named, and
    skipped otherwise; so is anything that is not a valid report.
    """
    named = directory or chosen_folder()
    reports = []
    for folder in [named] if named else folders():
        try:
            remove_orphans(folder)
            sockets = list(sockets_in(folder, pid))
        except PermissionNeeded as error:
            if named:
                raise
            _log.warning("%s", error)
            continue
        except PermissionError as error:  # it is another user's
            if named:
                raise error_from_os(error, f"statistics directory {folder}") from error
            continue
        found = [_read_report(one) for one in sockets]
        reports += [report for report in found if report is not None]
    return sorted(reports, key=lambda report: float(report["started_at"]))


def _read_report(one: ContextSocket) -> dict[str, Any] | None:
    """One context's report; None if the context has ended or its report is invalid."""
    import json

    from umstack.telemetry.report_check import BadReport, checked_report

    try:
        text = _read_text(one)
        return checked_report(json.loads(text), one.pid, one.number) if text else None
    except (FileNotFoundError, ConnectionError):
        return None  # refused, because the process has ended, or its socket is bound but not listening yet
    except (BadReport, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        _log.warning("%s sent no valid report: %s", displayed(str(one.path)), displayed(str(error)))
    except OSError as error:
        _log.warning("%s cannot be read: %s", displayed(str(one.path)), error)
    return None


def _read_text(one: ContextSocket) -> bytes:
    """Everything that a socket sends, within limits of time and size; BadReport if another user answers on it."""
    from umstack.telemetry.report_check import BadReport

    text = bytearray()
    deadline = time.monotonic() + 2 * _READER_TIMEOUT_SECONDS
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(2 * _READER_TIMEOUT_SECONDS)
        connection.connect(str(one.path))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        _, user, _ = struct.unpack("3i", credentials)
        if user != one.owner:
            raise BadReport(f"user {user} answers on a socket of user {one.owner}")
        while chunk := connection.recv(1 << 20):
            text += chunk
            if len(text) > _REPORT_BYTES_MAX:
                raise BadReport(f"no end after {_REPORT_BYTES_MAX} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError("no complete report in time")
    return bytes(text)


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True
