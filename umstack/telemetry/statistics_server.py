"""StatisticsServer: lets another process read a context's counters, as one JSON object over a Unix socket.

A socket is named `<process id>-<number>.sock` and lies in one directory for all of a user's processes:
UMSTACK_STAT_DIR, or /run/umstack/stat for root, or umstack/stat in XDG_RUNTIME_DIR for others (umstack-UID/stat in
the temporary directory where that is not set), which umstack.telemetry.socket_folders holds to be that user's alone.
A client that connects gets the object and the end of the stream; nothing is read from it. `umstack stat` is such a
client: it finds the sockets by itself and believes what umstack.telemetry.report_check lets pass.
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

from umstack.errors import Closed, PermissionNeeded, ResourceLimit, error_from_os
from umstack.foreign_text import displayed
from umstack.telemetry.socket_folders import (
    ContextSocket,
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
"""Where this user's processes have their sockets."""


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
            hint = "name a directory that can be written to in UMSTACK_STAT_DIR"
            raise type(failure)(failure.message, hint=hint, errno=error.errno or 0) from error
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
                import json  # when somebody asks: every context has a server

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

    Looks into `directory`, or else wherever contexts of this user (for root: of all users) listen. Sockets whose
    process is gone are removed. A directory that others can have filled is refused when it was named, and left out
    otherwise; what is no report is left out.
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
        found = [_read_report(one) for one in sockets]
        reports += [report for report in found if report is not None]
    return sorted(reports, key=lambda report: float(report["started_at"]))


def _read_report(one: ContextSocket) -> dict[str, Any] | None:
    """One context's report; None when it ends meanwhile, has ended, or what it says is no report."""
    import json

    from umstack.telemetry.report_check import BadReport, checked_report

    try:
        text = _read_text(one)
        return checked_report(json.loads(text), one.pid, one.number) if text else None
    except (FileNotFoundError, ConnectionError):
        return None  # refused: it has ended, or is bound and about to listen
    except (BadReport, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        _log.warning("%s gives no report: %s", displayed(str(one.path)), displayed(str(error)))
    except OSError as error:
        _log.warning("%s cannot be read: %s", displayed(str(one.path)), error)
    return None


def _read_text(one: ContextSocket) -> bytes:
    """All that a socket says, within bounds of time and size; nothing when another user answers on it."""
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
                raise TimeoutError("it is too slow")
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
