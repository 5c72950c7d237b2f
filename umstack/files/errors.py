"""Errors of file transfer."""

from __future__ import annotations

from umstack.errors import UmError


class TransferError(UmError):
    """A file tree cannot be sent or received as requested."""

    default_hint = "see docs/file-transfer.md for the entries that are sent and refused"


class RecordError(TransferError):
    """A message is not a record of this protocol, or contradicts earlier records."""

    default_hint = "check that the publisher of the topic is `umstack send --files` of the same version"


class UnsafePath(TransferError):
    """A path leads out of its directory, or is invalid on any file system."""

    default_hint = "rename the file, or find the process that publishes this topic"
