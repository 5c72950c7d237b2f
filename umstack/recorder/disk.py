"""Disk access of the recorder: makes files and their names durable across a power failure."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Force the content of a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
