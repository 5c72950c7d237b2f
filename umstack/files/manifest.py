"""The manifest of a tree: its entries and one digest over all of them.

The digest is SHA-256 over, for each entry in the order it was sent: kind u8, mode u32, path length u16, path, and then
for a file its size u64 and its SHA-256, for a link its target. Times are not part of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from dataclasses import dataclass
from typing import Literal

EntryKind = Literal["directory", "link", "file"]

_KIND_NUMBERS = {"directory": 2, "link": 3, "file": 4}
_HEAD = struct.Struct(">BIH")
_SIZE = struct.Struct(">Q")


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One directory, link or file of a tree."""

    kind: EntryKind
    path: bytes
    mode: int = 0
    size_bytes: int = 0
    sha256: bytes = b""
    """SHA-256 of a file's content; unused for other kinds."""
    target: bytes = b""
    """Target of a link."""

    def to_json(self) -> str:
        """Return the entry as one line; equal lines mean equal entries."""
        return json.dumps(
            [
                self.kind,
                os.fsdecode(self.path),
                self.mode,
                self.size_bytes,
                self.sha256.hex(),
                os.fsdecode(self.target),
            ]
        )


class Manifest:
    """Counts and digest of the entries seen so far."""

    __slots__ = ("_digest", "byte_count", "directory_count", "file_count", "link_count")

    def __init__(self) -> None:
        """Start without entries."""
        self._digest = hashlib.sha256()
        self.file_count = self.directory_count = self.link_count = self.byte_count = 0

    def add(self, entry: ManifestEntry) -> None:
        """Add the next entry."""
        self._digest.update(_HEAD.pack(_KIND_NUMBERS[entry.kind], entry.mode, len(entry.path)) + entry.path)
        match entry.kind:
            case "file":
                self.file_count += 1
                self.byte_count += entry.size_bytes
                self._digest.update(_SIZE.pack(entry.size_bytes) + entry.sha256)
            case "link":
                self.link_count += 1
                self._digest.update(entry.target)
            case "directory":
                self.directory_count += 1

    @property
    def sha256(self) -> bytes:
        """Return the digest so far."""
        return self._digest.digest()
