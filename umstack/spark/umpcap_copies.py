"""Files of a folder that grows and of which another file has every byte: a copy, one being made, one kept up to date.

A copy is left out for as long as it is one. A file that turns out to be more than a copy, because it goes on in another
way or outgrows the other, is read from its beginning, so that what two captures have in common by chance costs nothing.
What was compared is remembered in bytes and kept with a query's offset: only what a copy grew by is compared again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

TELLING_BYTES = 4096
"""Files that have no more than this in common may be two captures that begin alike: their headers are the same."""

_HEAD_BYTES = 1024
_BLOCK_BYTES = 1 << 20

Copies = dict[str, tuple[str, int]]
"""Of a copy: whose it is, and how many bytes were compared."""


class Originals:
    """Files that are read, found by how they begin."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._by_head: dict[bytes, list[str]] = {}

    def add(self, file: str) -> None:
        """A file that is read."""
        if head := _head(file, self._sizes[file]):
            self._by_head.setdefault(head, []).append(file)

    def original_of(self, file: str) -> str | None:
        """The first file that begins with all there is of this one."""
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
    """The copies among files of these sizes. `read` is how far others were read: what was begun is no copy any more."""
    begun = [file for file, end in read.items() if 0 < end <= sizes.get(file, 0)]
    found = {file: copy for file, copy in known.items() if sizes.get(file) == copy[1]}
    # Of files that begin alike the longest has most of what there is.
    others = sorted(sizes.keys() - set(begun) - found.keys(), key=lambda file: (-sizes[file], file))
    asked = [file for file in others if sizes[file]]
    if not asked:
        return found
    originals = Originals(sizes)
    for file in begun:
        originals.add(file)
    for file in asked:
        original = _still_copied(file, sizes, known) or originals.original_of(file)
        if original is None:
            originals.add(file)
        else:
            found[file] = (original, sizes[file])
    return found


def _still_copied(file: str, sizes: Mapping[str, int], known: Copies) -> str | None:
    """Whose copy a copy still is that grew."""
    original, compared = known.get(file, ("", 0))
    size = sizes[file]
    grew_alike = compared < size <= sizes.get(original, 0) and agree(file, original, compared, size)
    return original if grew_alike else None


def agree(one: str, other: str, start: int, end: int) -> bool:
    """Whether two files have the same bytes there; one that cannot be read agrees with none."""
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
