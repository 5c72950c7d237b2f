"""How fast a directory's disk confirms writes, which bounds the delay of every acknowledgement of a Store."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from umstack.store.repository.repository import NETWORK_FILE_SYSTEMS, file_system_of

_WRITE_BYTES = 4096
_SYNCS_MAXIMUM = 100
_SYNCS_MINIMUM = 5
_SECONDS_MAXIMUM = 1.0
SLOW_SYNC_NS = 20_000_000
"""Median of a sync above which a disk is reported as slow: a Store then makes less than 50 commits per second."""


@dataclass(frozen=True, slots=True)
class Medium:
    """A directory's disk."""

    directory: str
    file_system: str
    free_bytes: int
    sync_p50_ns: int
    """Median time of writing 4 KiB and fdatasync."""
    sync_maximum_ns: int

    def problems(self) -> list[tuple[str, str]]:
        """Return the reasons against a Store here, each with a remedy."""
        found = []
        if self.file_system in NETWORK_FILE_SYSTEMS:
            found.append((f"{self.directory} is on {self.file_system}", "use a local disk"))
        if self.sync_p50_ns > SLOW_SYNC_NS:
            found.append((
                f"fdatasync in {self.directory} takes {self.sync_p50_ns / 1e6:.1f} ms",
                "use an SSD with power-loss protection, or durability written",
            ))  # fmt: skip
        return found


def measure_medium(directory: Path) -> Medium:
    """Write 4 KiB and sync, up to 100 times within a second, in a temporary file.

    Args:
        directory: Existing directory.

    Returns:
        The measured times.

    Raises:
        OSError: The directory cannot be written.
    """
    times: list[int] = []
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        started = time.monotonic()
        while len(times) < _SYNCS_MAXIMUM and (
            len(times) < _SYNCS_MINIMUM or time.monotonic() - started < _SECONDS_MAXIMUM
        ):
            before_ns = time.monotonic_ns()
            file.write(bytes(_WRITE_BYTES))
            os.fdatasync(file.fileno())
            times.append(time.monotonic_ns() - before_ns)
    times.sort()
    volume = os.statvfs(directory)
    free_bytes = volume.f_bavail * volume.f_frsize
    return Medium(str(directory), file_system_of(directory), free_bytes, times[len(times) // 2], times[-1])


__all__ = ["SLOW_SYNC_NS", "Medium", "measure_medium"]
