"""Captures made by any tool (pcap, pcapng, gzip, zstd) as Arrow record batches; the columns are in docs/capture.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from umstack.capture.container import Interface
from umstack.capture.decode import decode
from umstack.capture.errors import CaptureError
from umstack.capture.notes import CaptureNote, CaptureNotes, NoteKind
from umstack.capture.ports import CapturePorts
from umstack.capture.split import Split, split

if TYPE_CHECKING:
    import pyarrow

    SCHEMA: pyarrow.Schema

__all__ = [
    "SCHEMA",
    "CaptureError",
    "CaptureNote",
    "CaptureNotes",
    "CapturePorts",
    "Interface",
    "NoteKind",
    "Split",
    "decode",
    "split",
]


def __getattr__(name: str) -> Any:
    """`SCHEMA` needs pyarrow, which is imported when somebody asks for it."""
    if name == "SCHEMA":
        from umstack.capture.schema import schema

        return schema()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
