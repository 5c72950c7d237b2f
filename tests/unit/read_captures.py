"""Decodes captures that a test makes from bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from umstack.capture import CaptureNotes, decode


def read(path: Path, content: bytes, **options: Any) -> tuple[list[dict[str, Any]], CaptureNotes]:
    """Write a file with this content; return its rows and its notes."""
    path.write_bytes(content)
    notes = CaptureNotes()
    return [row for batch in decode(str(path), notes=notes, **options) for row in batch.to_pylist()], notes
