"""What can go wrong with a capture file. What is wrong *in* one is no error: `CaptureNotes` tells it."""

from __future__ import annotations

from umstack.errors import UmError


class CaptureError(UmError):
    """A capture file that cannot be opened, read or written."""

    default_hint = "check the path and its permissions; docs/capture.md lists the formats that are read"
