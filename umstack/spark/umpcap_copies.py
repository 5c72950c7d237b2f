"""Finds copies in a growing folder: files whose bytes are all in another file, complete or still growing.

A copy is not read as long as it is one. A file that later differs from the other, or outgrows it, is read from its
start, so a common beginning of two captures by chance costs nothing. The number of bytes compared is stored with a
query's offset: only the growth of a copy is compared again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

SIGNIFICANT_BYTES = 4096
"""Files with at most this many bytes in common may be two captures with the same headers."""

_HEAD_BYTES = 1024
_BLOCK_BYTES = 1 << 20

Copies = dict[str, tuple[str, int]]
"""For each copy its original and the number of bytes compared."""


class Originals:
    """Files that are read, indexed by their first bytes."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._by_head: dict[bytes, list[str]] = {}

    def add(self, file: str) -> None:
        """Add a file that is read."""
        if head := _head(file, self._sizes[file]):
            self._by_head.setdefault(head, []).append(file)

    def original_of(self, file: str) -> str | None:
        """Return the first file that starts with the whole contents of this one."""
        size, head = self._sizes[file], _head(file, self._sizes[file])
        if not head:
            return None
        for other in self._begun_by(head):
            if self._sizes[other] >= size and agree(file, other, 0, size):
                return other
        return None

    def _begun_by(self, head: bytes) -> Sequence[str]:
        if len(head) == _HEAD_BYTES:
            return self._by_head.get(head, ())
        return [file for known, files in self._by_head.items() if known.startswith(head) for file in files]


def copies_among(sizes: Mapping[str, int], read: Mapping[str, int], known: Copies) -> Copies:
    """The copies among files of these sizes. `read` contains the positions read: a file being read is no copy."""
    begun = [file for file, end in read.items() if 0 < end <= sizes.get(file, 0)]
    found = {file: copy for file, copy in known.items() if sizes.get(file) == copy[1]}
    # Among files with the same beginning, prefer the longest as the original.
    others = sorted(sizes.keys() - set(begun) - found.keys(), key=lambda file: (-sizes[file], file))
    candidates = [file for file in others if sizes[file]]
    if not candidates:
        return found
    originals = Originals(sizes)
    for file in begun:
        originals.add(file)
    for file in candidates:
        original = _still_copied(file, sizes, known) or originals.original_of(file)
        if original is None:
            originals.add(file)
        else:
            found[file] = (original, sizes[file])
    return found


def _still_copied(file: str, sizes: Mapping[str, int], known: Copies) -> str | None:
    """Return the original of a copy that grew, if it still is one."""
    original, compared = known.get(file, ("", 0))
    size = sizes[file]
    grew_alike = compared < size <= sizes.get(original, 0) and agree(file, original, compared, size)
    return original if grew_alike else None


def agree(one: str, other: str, start: int, end: int) -> bool:
    """Return true if two files have the same bytes in this range; false if one cannot be read."""
    try:
        with Path(one).open("rb") as first, Path(other).open("rb") as second:
            first.seek(start)
            second.seek(start)
            while start < end:
                block = first.read(min(_BLOCK_BYTES, end - start))
                if not block or block != second.read(len(block)):
                    return False
                start += len(block)
    except OSError:
        return False
    return True


def _head(file: str, size: int) -> bytes:
    try:
        with Path(file).open("rb") as opened:
            return opened.read(min(size, _HEAD_BYTES))
    except OSError:
        return b""
