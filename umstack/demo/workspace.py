"""Chooses where the subscribers of the demo store received files: in memory if enough is free, so that the figures
measure the network and not the disk; otherwise in the temporary directory, or in TMPDIR.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from umstack.demo.errors import DemoFailed

_MEMORY = Path("/dev/shm")
_PREFIX = "umstack-demo-"
_SPARE_BYTES = 64 * 1024 * 1024


@contextlib.contextmanager
def work_directory(needed_bytes: int) -> Iterator[Path]:
    """Create a directory with space for this many bytes; remove it and its contents at the end."""
    folder = _place(needed_bytes)
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes + _SPARE_BYTES:
        raise DemoFailed(
            f"the subscribers need {needed_bytes:,} bytes in {folder}, where {free_bytes:,} are free",
            hint="set TMPDIR to a directory with more space, or name a smaller --tree",
        )
    _remove_orphans(folder)
    prefix = f"{_PREFIX}{os.getpid()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=folder, ignore_cleanup_errors=True) as work:
        yield Path(work)


def _remove_orphans(folder: Path) -> None:
    """Remove the directories of runs that were killed."""
    for orphan in folder.glob(f"{_PREFIX}*-*"):
        pid = orphan.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            shutil.rmtree(orphan, ignore_errors=True)


def _place(needed_bytes: int) -> Path:
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK) or not os.path.ismount(_MEMORY):
        return Path(tempfile.gettempdir())
    has_space = shutil.disk_usage(_MEMORY).free >= needed_bytes + _SPARE_BYTES
    return (
        _MEMORY
        if has_space and _available_memory_bytes() >= 2 * needed_bytes
        else Path(tempfile.gettempdir())
    )


def _available_memory_bytes() -> int:
    """Return the memory in bytes available without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
