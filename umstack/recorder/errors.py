"""Errors of recording topics."""

from __future__ import annotations

from umstack.errors import UmError


class RecorderError(UmError):
    """Recording cannot continue."""

    default_hint = "recorded data is intact; fix the cause and run the same command again to continue"


class JournalError(RecorderError):
    """A journal cannot be opened, read or written."""


class JournalFull(JournalError):
    """The journal has reached its maximum size and is configured to keep rows that are not consumed."""

    default_hint = "let its consumers catch up and commit, or raise its maximum size"


class OffsetGone(JournalError):
    """The offset was removed by retention, or was never written."""

    default_hint = "read from the journal's start, or raise its maximum size"
