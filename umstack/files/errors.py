"""Errors of file transfer."""

from __future__ import annotations

from umstack.errors import UmError


class TransferError(UmError):
    """A file tree cannot be sent or received as asked."""

    default_hint = "see docs/file-transfer.md for the entries that are sent and refused"


class RecordError(TransferError):
    """A message that is no record of this protocol, or one that contradicts those before it."""

    default_hint = "check that the publisher of the topic is `umstack send --files` of the same version"


class UnsafePath(TransferError):
    """A path that would lead out of the directory it belongs to, or that no file system takes."""

    default_hint = "rename the file, or find the process that publishes this topic"
