"""Reads a tree on disk back into manifest entries, to verify it."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from umstack.files.errors import TransferError
from umstack.files.manifest import ManifestEntry
from umstack.files.path import shown
from umstack.files.walk import Skipped, walk


def scan(
    directory: Path, *, exclude: Callable[[str], bool] | None = None, skips: bool = False
) -> Iterator[ManifestEntry]:
    """Yield every entry of the tree in the order `TreeSender` sends it, each file hashed from disk.

    `exclude` is called with each name below the root. Entries that cannot be sent are errors; with `skips` they
    are skipped.
    """
    for item in walk(directory, exclude=exclude):
        if isinstance(item, Skipped):
            if skips:
                continue
            raise TransferError(
                f"{shown(item.path)}: {item.reason}", hint="it is not part of any tree sent here"
            )
        match item.kind:
            case "directory":
                yield ManifestEntry("directory", item.path, item.mode)
            case "link":
                yield ManifestEntry("link", item.path, target=item.target)
            case "file":
                with io.FileIO(os.open(item.file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
                    digest = hashlib.file_digest(file, "sha256").digest()
                yield ManifestEntry("file", item.path, item.mode, item.size_bytes, digest)
