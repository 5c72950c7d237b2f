"""Settings and reports of a repository."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_MEBIBYTE = 1 << 20


class Durability(enum.StrEnum):
    """The place that a commit has reached when it is acknowledged."""

    DISK = "disk"
    """The disk confirmed it (fdatasync): it survives a power failure."""
    WRITTEN = "written"
    """The kernel has it: it survives a killed process, not a power failure."""
    MEMORY = "memory"
    """The process has it: an appended message counts as stable at once."""


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """Sizes and limits of a repository.

    Args:
        durability: Promise of an acknowledgement.
        segment_bytes: Size of a segment file, created whole. The unit of reclaiming disk space.
        staging_bytes: Memory for messages that wait for a commit, a power of two.
        commit_bytes: Most bytes of one commit.
        source_bytes: Most bytes kept per source, if its registration names no limit; the oldest messages are dropped.
        is_network_allowed: Open a directory on a network file system, whose sync cannot be trusted.
    """

    durability: Durability = Durability.DISK
    segment_bytes: int = 128 * _MEBIBYTE
    staging_bytes: int = 64 * _MEBIBYTE
    commit_bytes: int = _MEBIBYTE
    source_bytes: int = 100 * _MEBIBYTE
    is_network_allowed: bool = False


@dataclass(frozen=True, slots=True)
class CommittedRange:
    """Consecutive sequence numbers of one source in one commit."""

    source: int
    first_sqn: int
    last_sqn: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that has reached the durability of the repository: its ranges may be acknowledged."""

    number: int
    durability: Durability
    record_count: int
    byte_count: int
    """Bytes written to the segment, record headers included."""
    ranges: tuple[CommittedRange, ...]


class StoredMessage(NamedTuple):
    """A message as it was received, or a marker of messages that are lost for good."""

    sqn: int
    received_ns: int
    """Wall clock."""
    message: bytes
    """Empty for a marker."""
    lost_count: int = 0
    """Lost messages that the marker covers, from sqn on; 0: a message."""


@dataclass(frozen=True, slots=True)
class DamagedArea:
    """Bytes of a segment that hold no valid record."""

    segment: str
    offset: int
    byte_count: int
    is_torn: bool
    """True: the end of a commit that was never acknowledged. False: acknowledged bytes are damaged."""


@dataclass(slots=True)
class Recovery:
    """Result of opening a repository."""

    segment_count: int = 0
    scanned_count: int = 0
    """Segments without a footer, which were read whole."""
    damaged: list[DamagedArea] = field(default_factory=list)
    missing: list[CommittedRange] = field(default_factory=list)
    """Gaps in the numbers of segments with damaged bytes: to be repaired from the source or from other Stores."""
    set_aside: list[str] = field(default_factory=list)
    """Segments without any valid record, renamed with the suffix .damaged."""
    seconds: float = 0.0

    @property
    def corrupted(self) -> Iterator[DamagedArea]:
        """Areas that were acknowledged."""
        return (area for area in self.damaged if not area.is_torn)


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """Files and messages that a call of `Repository.reclaim` removed."""

    source_count: int
    """Sources whose oldest messages were dropped."""
    segment_count: int
    """Segment files removed."""
    byte_count: int
    """Bytes of these files."""
