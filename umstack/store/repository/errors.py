"""Errors of a repository."""

from __future__ import annotations

from umstack.errors import UmError


class RepositoryError(UmError):
    """A repository cannot be opened, written or read."""

    default_hint = "run `umstack store verify` on the directory"


class RepositoryInUse(RepositoryError):
    """Another process has the directory open."""

    default_hint = "stop the other process, or give this Store a directory of its own"


class RepositoryDamaged(RepositoryError):
    """The client state is missing or belongs to another Store."""

    default_hint = "restore the file clients.db of this directory, or start with an empty directory"


class RepositoryEnded(RepositoryError):
    """A write or a sync failed: after that no acknowledgement can be trusted, so nothing is accepted."""

    default_hint = "check the disk, then restart: acknowledged messages are intact"


class DiskFull(RepositoryError):
    """There is no space for the next segment. Staged messages stay, unacknowledged."""

    default_hint = "free space on the volume, or lower the retention limits; the next commit tries again"


class StagingFull(RepositoryError):
    """The staging ring is full: the source sends faster than the disk writes."""

    default_hint = "commit, then append again"
