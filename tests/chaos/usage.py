"""The descriptors, threads and memory of a process of the chaos run, which closing everything must release."""

from __future__ import annotations

import os
from pathlib import Path

Usage = dict[str, int]
LIMITS: Usage = {"descriptors": 0, "threads": 0, "memory_bytes": 128 << 20}
"""Maximum growth between the start of a process and the time at which everything in it is closed."""

STREAMS: Usage = {"descriptors": 3, "threads": 1, "memory_bytes": 0}
"""Held by a context from its first stream until it is closed."""


def usage_of(process: int | str) -> Usage:
    """Return the descriptors, threads and resident memory of the process with this id, or of "self"."""
    folder = Path(f"/proc/{process}")
    resident_pages = int((folder / "statm").read_text().split()[1])
    return {
        "descriptors": sum(1 for _ in (folder / "fd").iterdir()),
        "threads": sum(1 for _ in (folder / "task").iterdir()),
        "memory_bytes": resident_pages * os.sysconf("SC_PAGESIZE"),
    }


def with_streams(usage: Usage) -> Usage:
    """Return what a process holds once its context has had a stream."""
    return {key: usage[key] + STREAMS[key] for key in LIMITS}


def growth(before: Usage, after: Usage) -> Usage:
    """Return how much more the process holds."""
    return {key: after[key] - before[key] for key in LIMITS}


def leaks(name: str, grown: Usage) -> list[str]:
    """Return a finding for each thing that grew beyond its limit."""
    return [
        f"leak: {name} holds {grown[key]} more {key} after closing"
        for key, limit in LIMITS.items()
        if grown[key] > limit
    ]
