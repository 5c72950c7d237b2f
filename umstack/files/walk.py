"""Walks a tree to send: its entries in a fixed order, and the entries that are skipped."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from umstack.files.errors import TransferError, UnsafePath
from umstack.files.manifest import EntryKind
from umstack.files.path import check_link, path_parts

MODE_MASK = 0o777
"""Mode bits that are sent: permissions, never set-uid, set-gid or sticky."""


@dataclass(frozen=True, slots=True)
class Found:
    """One entry of the tree: its local path and the path it is sent under."""

    kind: EntryKind
    path: bytes
    file: Path
    mode: int
    mtime_ns: int
    size_bytes: int = 0
    target: bytes = b""


@dataclass(frozen=True, slots=True)
class Skipped:
    """One skipped entry, and the reason."""

    path: bytes
    reason: str
    is_unreadable: bool = False
    """True if it should have been sent but could not be read."""


def walk(
    root: Path | str, prefix: bytes = b"", *, exclude: Callable[[str], bool] | None = None
) -> Iterator[Found | Skipped]:
    """Yield every entry at or below `root` in the order of names, a directory after its contents.

    Entries are sent under `prefix`; if it is empty, `root` must be a directory, and only its contents are sent.
    `exclude` is asked about each name below the root.
    """
    start = Path(root)
    try:
        facts = start.lstat() if prefix else start.stat()
    except OSError as error:
        raise TransferError(f"cannot send {start}: {error.strerror}", hint="check the path") from error
    if not prefix and not stat.S_ISDIR(facts.st_mode):
        raise TransferError(f"{start} is not a directory", hint="remove the slash at its end")
    yield from _visit(start, prefix, facts, exclude)


def travelling_name(path: str) -> bytes:
    """Return the name a user's path is sent under: its last part, or none if it ends in a slash or a dot."""
    name = path.rpartition("/")[2]
    return b"" if name in ("", ".", "..") else os.fsencode(name)


def _visit(
    file: Path, path: bytes, facts: os.stat_result, exclude: Callable[[str], bool] | None
) -> Iterator[Found | Skipped]:
    mode, mtime_ns = facts.st_mode & MODE_MASK, facts.st_mtime_ns
    try:
        parts = path_parts(path) if path else ()
        if stat.S_ISREG(facts.st_mode):
            yield Found("file", path, file, mode, mtime_ns, facts.st_size)
        elif stat.S_ISLNK(facts.st_mode):
            target = os.fsencode(file.readlink())
            check_link(parts, target)
            yield Found("link", path, file, MODE_MASK, mtime_ns, target=target)
        elif stat.S_ISDIR(facts.st_mode):
            yield from _visit_inside(file, path, exclude)
            if path:
                yield Found("directory", path, file, mode, mtime_ns)
        else:
            yield Skipped(path, "it is neither a file, a directory nor a link")
    except UnsafePath as error:
        yield Skipped(path, error.message)
    except OSError as error:
        yield Skipped(path, error.strerror or str(error), is_unreadable=True)


def _visit_inside(
    folder: Path, path: bytes, exclude: Callable[[str], bool] | None
) -> Iterator[Found | Skipped]:
    with os.scandir(folder) as listing:
        inside = sorted(listing, key=lambda item: os.fsencode(item.name))
    for item in inside:
        if exclude is not None and exclude(item.name):
            continue
        name = os.fsencode(item.name)
        below = path + b"/" + name if path else name
        try:
            facts = item.stat(follow_symlinks=False)
        except OSError as error:
            yield Skipped(below, error.strerror or str(error), is_unreadable=True)
            continue
        yield from _visit(folder / item.name, below, facts, exclude)
