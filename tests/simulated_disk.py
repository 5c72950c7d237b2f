"""A disk in memory for the Store's log, which forgets at a crash: any subset of the sectors that were not synced stays,
in any order of writing, and so do names that were not synced. It fails at a chosen operation.
"""

from __future__ import annotations

import errno
import random
from typing import Any

from umstack.store.repository import Repository

SECTOR_BYTES = 512


class PowerFailure(BaseException):
    """The machine stops at this operation. Not an Exception: no code of the product may handle it."""


class SimulatedFile:
    """One file: the synced content, and the versions of every sector written since."""

    def __init__(self, disk: SimulatedDisk, byte_count: int) -> None:
        self._disk = disk
        self.synced = bytearray(byte_count)
        self.current = bytearray(byte_count)
        self.versions: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []

    def read(self, offset: int, byte_count: int) -> bytes:
        """Return bytes, written or synced."""
        return bytes(self.current[offset : offset + byte_count])

    def write(self, offset: int, data: Any) -> None:
        """Write into the cache; a failing operation writes a part."""
        content = bytes(data)
        fails = self._disk.fails_at("write")
        part = content[: self._disk.random.randrange(len(content) + 1)] if fails else content
        end = offset + len(part)
        if end > len(self.current):
            self.current.extend(bytes(end - len(self.current)))
            self.sizes.append(end)
        self.current[offset:end] = part
        for sector in range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            start = sector * SECTOR_BYTES
            self.versions.setdefault(sector, []).append(bytes(self.current[start : start + SECTOR_BYTES]))
        self._disk.fail(fails)

    def sync(self) -> None:
        """Make everything durable, unless the disk lies."""
        self._disk.fail(self._disk.fails_at("sync"))
        if not self._disk.lies:
            self.synced = bytearray(self.current)
            self.versions.clear()
            self.sizes.clear()

    def truncate(self, byte_count: int) -> None:
        """Set the size in the cache."""
        self._disk.fail(self._disk.fails_at("truncate"))
        del self.current[byte_count:]
        self.sizes.append(byte_count)

    def size(self) -> int:
        """Return the current size."""
        return len(self.current)

    def close(self) -> None:
        """Closing syncs nothing."""

    def crash(self, draw: random.Random) -> None:
        """Keep any version of each sector, and any of the sizes."""
        size = draw.choice([len(self.synced), *self.sizes])
        kept = bytearray(self.synced)
        if size > len(kept):
            kept.extend(bytes(size - len(kept)))
        for sector, versions in self.versions.items():
            start = sector * SECTOR_BYTES
            version = draw.choice([None, *versions])
            if version is not None:
                kept[start : start + len(version)] = version
        self.synced, self.current = kept[:size], bytearray(kept[:size])
        self.versions.clear()
        self.sizes.clear()


class SimulatedDisk:
    """The directory of a log.

    `fail_after` operations succeed; the next raises PowerFailure, or OSError with `fault`, and `fault` only once.
    """

    def __init__(self, seed: int, *, lies: bool = False) -> None:
        self.random = random.Random(seed)
        self.lies = lies
        self.fail_after = 1 << 60
        self.fault = 0
        self.failing = ("write", "sync", "truncate", "create", "sync_names", "remove")
        self.files: dict[str, SimulatedFile] = {}
        self.synced_names: dict[str, SimulatedFile] = {}
        self.free = 1 << 40

    def fails_at(self, operation: str) -> bool:
        """Count an operation; return true for the one that fails."""
        if operation not in self.failing:
            return False
        self.fail_after -= 1
        return self.fail_after == -1

    def fail(self, fails: bool) -> None:
        """Raise the planned failure."""
        if fails:
            raise OSError(self.fault, "planned") if self.fault else PowerFailure

    def names(self) -> list[str]:
        """Return all names."""
        return list(self.files)

    def create(self, name: str, byte_count: int) -> SimulatedFile:
        """Create a file; its name is not synced."""
        self.fail(self.fails_at("create"))
        if byte_count > self.free:
            raise OSError(errno.ENOSPC, "planned")
        self.files[name] = SimulatedFile(self, byte_count)
        return self.files[name]

    def open(self, name: str, *, is_writable: bool = False) -> SimulatedFile:
        """Return an existing file."""
        return self.files[name]

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file."""
        self.files[new_name] = self.files.pop(name)

    def remove(self, name: str) -> None:
        """Remove a name."""
        self.fail(self.fails_at("remove"))
        del self.files[name]

    def sync_names(self) -> None:
        """Make the names durable."""
        self.fail(self.fails_at("sync_names"))
        self.synced_names = dict(self.files)

    def free_bytes(self) -> int:
        """Return the free space."""
        return self.free

    def crash(self) -> None:
        """Lose power: keep any subset of whatever was not synced."""
        for name in sorted(self.files.keys() | self.synced_names.keys()):
            states = [names.get(name) for names in (self.synced_names, self.files)]
            chosen = self.random.choice(states)
            self.files.pop(name, None)
            if chosen is not None:
                self.files[name] = chosen
        for name in sorted(self.files):
            self.files[name].crash(self.random)
        self.synced_names = dict(self.files)
        self.fail_after, self.fault = 1 << 60, 0


def pull_the_plug(repository: Repository) -> None:
    """End a repository as a crash does: nothing is written, synced or sealed."""
    repository._is_closed = True
