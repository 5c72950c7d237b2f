"""Captures of any tool (pcap, pcapng, ERF, gzip, zstd) as Arrow record batches; the columns are in docs/capture.md.

`reading` decodes captures and is imported on first use of a name below; `writing` makes captures on this host.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

    from umstack.capture.reading.container import Interface
    from umstack.capture.reading.decode import decode
    from umstack.capture.reading.errors import CaptureError
    from umstack.capture.reading.notes import CaptureNote, CaptureNotes, NoteKind
    from umstack.capture.reading.ports import CapturePorts
    from umstack.capture.reading.split import Split, split

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

_MODULES = {
    "CaptureError": "errors",
    "CaptureNote": "notes",
    "CaptureNotes": "notes",
    "CapturePorts": "ports",
    "Interface": "container",
    "NoteKind": "notes",
    "Split": "split",
    "decode": "decode",
    "split": "split",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: a context that only writes captures loads neither the decoder nor pyarrow."""
    if name == "SCHEMA":
        value = import_module("umstack.capture.reading.schema").schema()
    elif name in _MODULES:
        value = getattr(import_module(f"umstack.capture.reading.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
