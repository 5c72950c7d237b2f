"""What can go wrong when captures are written."""

from __future__ import annotations

from umstack.errors import UmError


class CaptureError(UmError):
    """A capture or tap cannot be written, or has lost what was still to be written."""

    default_hint = (
        "what the file has is whole and can be read; free space or choose another place and start again"
    )


class TapRunning(UmError):
    """A context has one tap at a time."""

    default_hint = "stop() the tap that runs, then start another"
