"""Reads the counter files of contexts (umstack.telemetry.counter_file), of running and of killed processes.

Nothing is asked of a process: one that is stopped, busy or dead is read like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from umstack.errors import PermissionNeeded, error_from_os
from umstack.foreign_text import displayed
from umstack.telemetry.counter_file import BadCounterFile, is_locked, newest_text
from umstack.telemetry.statistics_folders import (
    ContextFile,
    chosen_folder,
    files_in,
    folders,
    opened,
    own_folder,
)

_log = logging.getLogger(__name__)

_FOLDER_BYTES_MAX = 256 * 1024 * 1024
"""Beyond that, no more of a directory's reports are read: their owner may want to keep a reader busy."""

statistics_directory = own_folder
"""The directory with the counter files of this user's processes."""


def read_statistics(
    pid: int | None = None, directory: Path | None = None, *, with_ended: bool = False
) -> list[dict[str, Any]]:
    """Return the reports of the contexts of a process (None: of all processes), the oldest context first.

    Reads `directory`, or else every directory with files that this user may read. `read_at` of a report is the time of
    its values. Processes that ended without closing their contexts are left out unless `with_ended`; in their reports,
    `is_running` is false. A directory that others can have filled is an error if it was named, and skipped otherwise;
    so is anything that is not a valid report.
    """
    named = directory or chosen_folder()
    reports: list[dict[str, Any]] = []
    for folder in [named] if named else folders():
        try:
            files = list(files_in(folder, pid))
        except PermissionNeeded as error:
            if named:
                raise
            _log.warning("%s", error)
            continue
        except PermissionError as error:  # it is another user's
            if named:
                raise error_from_os(error, f"statistics directory {folder}") from error
            continue
        reports += _reports(files, with_ended)
    return sorted(reports, key=lambda report: float(report["started_at"]))


def _reports(files: list[ContextFile], with_ended: bool) -> Iterator[dict[str, Any]]:
    """Yield the reports of these files, without invalid ones."""
    import json

    from umstack.telemetry.report_check import BadReport, checked_report

    read_bytes = 0
    for one in files:
        if read_bytes > _FOLDER_BYTES_MAX:
            _log.warning("%s has more reports than are read", displayed(str(one.path.parent)))
            return
        try:
            with opened(one) as fd:
                is_running = is_locked(fd)
                text = newest_text(fd) if is_running or with_ended else b""
            read_bytes += len(text)
            if text:
                report = checked_report(json.loads(text), one.pid, one.number)
                yield {**report, "is_running": is_running, "sources": _with_sessions(report)}
        except FileNotFoundError:
            continue  # the context has been closed
        except (BadCounterFile, BadReport, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            _log.warning("%s has no valid report: %s", displayed(str(one.path)), displayed(str(error)))
        except OSError as error:
            _log.warning("%s cannot be read: %s", displayed(str(one.path)), error)


def _with_sessions(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sources with the counters of their sessions, as Context.stats() does; the file has each once."""
    sessions = {
        item["transport"]: {name: value for name, value in item.items() if name != "nak_accounts"}
        for item in report["source_transports"]
    }
    return [{"topic": own["topic"], **sessions.get(own["transport"], {}), **own} for own in report["sources"]]
