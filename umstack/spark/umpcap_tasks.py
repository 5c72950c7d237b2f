"""Partitions of `umpcap`: parts of captures, packed into tasks of about the same size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from umstack.capture import Split

_PARTS_MAX = 64
"""Maximum number of parts of a task: opening a small file takes as long as reading this share of a task's bytes."""


@dataclass(slots=True)
class CapturePart:
    """A split of a file, or only a note on a file."""

    split: Split
    note: str | None = None
    position: int | None = None
    """The byte that the note refers to."""
    size_bytes: int = 0
    """Its bytes of the file, compressed ones of a compressed file."""
    is_whole: bool = False
    """True if a stream reads the whole file in one batch, perhaps in several parts, and knows nothing else about it."""


@dataclass
class CaptureTask(InputPartition):
    """A partition of Spark: parts that one task reads."""

    parts: list[CapturePart]


def packed_tasks(parts: Iterable[CapturePart], target_bytes: int) -> list[CaptureTask]:
    """Return the parts, in their order, in tasks of at most `target_bytes`; a larger part is a task of its own."""
    tasks: list[CaptureTask] = []
    open_bytes = max(1, target_bytes // _PARTS_MAX)
    left = 0
    for part in parts:
        size = max(part.size_bytes, open_bytes)
        if size > left:
            tasks.append(CaptureTask([]))
            left = target_bytes
        tasks[-1].parts.append(part)
        left -= size
    return tasks
