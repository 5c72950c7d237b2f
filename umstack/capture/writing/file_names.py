"""Directories and file names of captures and taps."""

from __future__ import annotations

import re
from pathlib import Path

from umstack.errors import error_from_path


def file_name(interface: str) -> str:
    """Return the first part of the names of an interface's files."""
    return "umstack-" + re.sub(r"[^\w.@-]", "_", interface)


def make_directory(directory: Path) -> None:
    """Create the directory unless it exists."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise error_from_path(error, f"creating {directory}") from error
