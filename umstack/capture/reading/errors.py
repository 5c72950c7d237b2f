"""Errors of capture files. Faults *in* a capture are not errors: `CaptureNotes` holds them."""

from __future__ import annotations

from umstack.errors import UmError


class CaptureError(UmError):
    """A capture file that cannot be opened, read or written."""

    default_hint = "check the path and its permissions; docs/capture.md lists the supported formats"


class MissingCapture(CaptureError):
    """A capture file or folder that does not exist."""
