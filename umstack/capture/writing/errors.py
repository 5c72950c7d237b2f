"""Errors of writing captures."""

from __future__ import annotations

from umstack.errors import UmError


class CaptureError(UmError):
    """A capture or tap cannot be written, or has lost packets that were not written yet."""

    default_hint = (
        "the packets in the file are complete and readable; make space or choose another place, then restart"
    )


class TapRunning(UmError):
    """A context has one tap at a time."""

    default_hint = "stop() the tap that runs, then start another"
