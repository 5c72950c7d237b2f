"""What can go wrong when topics are recorded."""

from __future__ import annotations

from umstack.errors import UmError


class RecorderError(UmError):
    """Recording cannot go on."""

    default_hint = (
        "what is recorded is whole; mend the cause and start the same command again: it goes on from there"
    )


class JournalError(RecorderError):
    """A journal cannot be opened, read or written."""


class JournalFull(JournalError):
    """The journal has reached its size and is told to keep what has not been consumed."""

    default_hint = "let its consumers catch up and commit, or give it more space"


class OffsetGone(JournalError):
    """An offset that retention has removed, or that was never written."""

    default_hint = "read from the journal's start, or keep more of it (a larger size)"
