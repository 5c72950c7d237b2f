"""Compressed files of a growing folder: which are inflated, and which continue a file that was read before.

Rotation often compresses a file after it was read: `a.pcap.gz` appears beside `a.pcap`, which is then removed. Both
have the same content, and positions are those of the content. So a file that takes the place of one of the same name,
with or without `.gz` or `.zst`, is read from the position that the other one was read to. Of two, one is read.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress

from umstack.capture import CaptureError
from umstack.capture.reading.capture_files import uncompressed_name
from umstack.capture.reading.container import compression_of, content_head

_HEAD_BYTES = 1024
_MAGIC_BYTES = 4


def sibling_names(file: str) -> Iterator[str]:
    """Yield the names that a file of the same content may have."""
    plain = uncompressed_name(file)
    yield from (name for name in (plain, f"{plain}.gz", f"{plain}.zst") if name != file)


def begun_at(file: str, known: Mapping[str, int], present: Container[str]) -> int:
    """Return the position that a file was read to, by its name or that of a sibling that is not present any more."""
    gone = (known[name] for name in sibling_names(file) if name in known and name not in present)
    return known.get(file, next(gone, 0))


def siblings_to_skip(files: set[str], known: Mapping[str, int]) -> set[str]:
    """Return the files whose content another file of the same name has, which is or will be read."""
    found: set[str] = set()
    # Those that are being read come first, then plain ones.
    for file in sorted(
        files, key=lambda file: (file in known, uncompressed_name(file) == file), reverse=True
    ):
        others = [other for other in sibling_names(file) if other in files and other not in found]
        if file not in found and others:
            head = _head(file)
            # The other one may have just been created.
            found.update(other for other in others if other not in known and head.startswith(_head(other)))
    return found


def _head(file: str) -> bytes:
    with suppress(CaptureError, OSError):
        return content_head(file, _HEAD_BYTES)
    return b""


class Packed:
    """Determines which files are compressed, by their first bytes, which are read once."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int], bool] = {}

    def among(self, files: Mapping[str, os.stat_result]) -> set[str]:
        """Return the compressed ones among all files of a stream."""
        self._kinds = {key: kind for key, kind in self._kinds.items() if key[0] in files}
        return {file for file, found in files.items() if self.is_packed(file, found)}

    def is_packed(self, file: str, found: os.stat_result) -> bool:
        """Return true if a file with this status is compressed."""
        key = (file, found.st_ino)
        if key not in self._kinds:
            if found.st_size < _MAGIC_BYTES:
                return False
            with suppress(CaptureError):  # rotation may have removed it
                self._kinds[key] = compression_of(file) is not None
        return self._kinds.get(key, False)
