"""Notes on data that a stream of captures omits. Each kind is reported once per file, because the offset stores it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from umstack._core import lib
from umstack.capture import NoteKind
from umstack.capture.reading.container import content_head
from umstack.capture.reading.notes import not_a_capture, reserved
from umstack.facts.points import series_of

COPY, NO_COPY, REPLACED = "copy", "no-copy", "replaced"

_QUIET_NS = 60 * 10**9
"""A file that has not grown for this long while others arrived counts as complete."""

Notes = dict[str, tuple[str, int | None]]
"""By kind: the text, and the byte that it refers to."""


def replaced_note() -> Notes:
    """Return the note on a remote file that was replaced after it was read."""
    return {REPLACED: ("replaced by a file of another length after it was read, not read again", None)}


def copy_note(original: str, is_whole: bool) -> Notes:
    """Return the note on a file that is not read because it is a copy of another one."""
    what = "the same as" if is_whole else "the beginning of"
    return {COPY: (f"{what} {original}, not read again", None)}


def no_copy_note() -> Notes:
    """Return the note on a file that was a copy and now differs from its original."""
    return {NO_COPY: ("no longer a copy, read from its beginning", None)}


def ending_note(path: str, step: int, position: int, length: int, is_over: bool) -> Notes:
    """The reason why nothing is read after a byte of a file. The end of a file matters only if the file is complete."""
    left = length - position
    if step == lib.UM_CAPTURE_FOREIGN:
        return _foreign(path)
    if step == lib.UM_CAPTURE_DAMAGED:
        text = f"damaged at byte {position}: no valid record, the rest of the file is not read"
        return {NoteKind.DAMAGED: (text, position)}
    if is_over and step == lib.UM_CAPTURE_ZEROS:
        return {NoteKind.RESERVED: (reserved(position, left), position)}
    if is_over and not length:
        return {NoteKind.EMPTY: ("an empty file", 0)}
    if is_over and left:
        text = f"truncated: the record at byte {position} has only {left} bytes, and there are newer files"
        return {NoteKind.TRUNCATED: (text, position)}
    return {}


def inflation_note(problem: str, length: int) -> Notes:
    """Return the note on a compressed file that ends early."""
    text = f"the compressed stream ends early, after byte {length} of its content: {problem}"
    return {NoteKind.COMPRESSION: (text, length)}


def _foreign(path: str) -> Notes:
    return {NoteKind.NOT_A_CAPTURE: (not_a_capture(content_head(path, 8)), 0)}


class Ages:
    """Determines complete files: those with a newer one of the same rotation, or without growth for long."""

    def __init__(self, found: Mapping[str, os.stat_result]) -> None:
        self._changed = {file: one.st_mtime_ns for file, one in found.items()}
        self._latest: dict[str, int] = {}
        for file, changed in self._changed.items():
            series = series_of(file)
            self._latest[series] = max(changed, self._latest.get(series, 0))
        self._newest = max(self._changed.values(), default=0)

    def is_over(self, file: str) -> bool:
        """Return true if a file will not grow further."""
        changed = self._changed[file]
        quiet_ns = max(self._newest, time.time_ns()) - changed
        return self._latest[series_of(file)] > changed or (self._newest > changed and quiet_ns >= _QUIET_NS)
