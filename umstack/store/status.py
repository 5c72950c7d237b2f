"""The state of a Store for its operator: written by the running Store, and read without stopping it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from umstack.store.repository import ClientState
from umstack.store.repository.client_state import FILE_NAME
from umstack.store.repository.repository import LOCK_NAME

STATUS_NAME = "status.json"
_SPACE = 1 << 32


def disk_levels(directory: Path) -> dict[str, int]:
    """Return `segments`, `segment_bytes` and `free_bytes` of a Store's directory."""
    sizes = []
    for path in directory.glob("*.seg"):
        with contextlib.suppress(FileNotFoundError):  # the Store has dropped it meanwhile
            sizes.append(path.stat().st_size)
    volume = os.statvfs(directory)
    return {
        "segments": len(sizes),
        "segment_bytes": sum(sizes),
        "free_bytes": volume.f_bavail * volume.f_frsize,
    }


def write_status(directory: Path, status: dict[str, Any]) -> None:
    """Replace the status file. Raises OSError."""
    new = directory / f"{STATUS_NAME}.new"
    new.write_text(json.dumps({**status, "written_ns": time.time_ns()}))
    new.replace(directory / STATUS_NAME)


def read_status(directory: Path) -> dict[str, Any]:
    """Return the clients of a Store, its files, and the counters that it wrote last.

    Args:
        directory: Directory of the Store, running or not.

    Returns:
        `is_running`, `segments`, `segment_bytes`, `free_bytes`; `sources`, each with its `receivers`; `counters`, which
        are empty if no Store has run here, with `written_ns`, the time at which they were written.

    Raises:
        RepositoryDamaged: The directory has no client state.
    """
    try:
        counters = json.loads((directory / STATUS_NAME).read_text())
    except FileNotFoundError:
        counters = {}
    newest = counters.pop("newest_sqns", {})
    state = ClientState(directory / FILE_NAME, is_read_only=True)
    try:
        sources = [
            {
                "topic": source.topic,
                "session_id": source.session_id,
                "registration_id": source.registration_id,
                "low_sqn": _shown(source.low_sqn),
                "newest_sqn": _shown(newest.get(str(source.number))),
                "active_ns": source.active_ns,
                "receivers": [
                    {
                        "session_id": receiver.session_id,
                        "registration_id": receiver.registration_id,
                        "pacing": receiver.pacing.name.lower(),
                        "acknowledged_sqn": _shown(receiver.acknowledged_sqn),
                        "active_ns": receiver.active_ns,
                    }
                    for receiver in state.receivers(source.number)
                ],
            }
            for source in state.sources()
        ]
    finally:
        state.close()
    return {
        "directory": str(directory),
        "is_running": _is_locked(directory / LOCK_NAME),
        **disk_levels(directory),
        "sources": sources,
        "counters": counters,
    }


def _shown(sqn: int | None) -> int | None:
    """Return a sequence number as applications see it, 32 bits; None: there is none."""
    return None if sqn is None else sqn % _SPACE


def _is_locked(path: Path) -> bool:
    """Return true if a process has the directory open."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


__all__ = ["STATUS_NAME", "disk_levels", "read_status", "write_status"]
