"""Directories and file names of captures and taps."""

from __future__ import annotations

import re
from pathlib import Path

from umstack.errors import naming_path


def file_name(interface: str) -> str:
    """Return the first part of the names of an interface's files."""
    return "umstack-" + re.sub(r"[^\w.@-]", "_", interface)


def make_directory(directory: Path) -> None:
    """Create the directory unless it exists."""
    with naming_path(f"creating {directory}"):
        directory.mkdir(parents=True, exist_ok=True)
