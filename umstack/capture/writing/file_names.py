"""Where captures and taps put their files, and what the names of those begin with."""

from __future__ import annotations

import re
from pathlib import Path

from umstack.errors import error_from_path


def file_name(interface: str) -> str:
    """What the names of an interface's files begin with."""
    return "umstack-" + re.sub(r"[^\w.@-]", "_", interface)


def make_directory(directory: Path) -> None:
    """Make it, unless it is there."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise error_from_path(error, f"making {directory}") from error
