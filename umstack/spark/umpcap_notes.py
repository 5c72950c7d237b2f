"""What a stream of captures leaves out, in words: each of a kind is told once of a file, because the offset has it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from umstack._core import lib
from umstack.capture import NoteKind
from umstack.capture.reading.container import compression_of
from umstack.facts.packet_columns import ROTATION

COPY, NO_COPY, COMPRESSED = "copy", "no-copy", "compressed"

_QUIET_NS = 60 * 10**9
"""A file that has not grown for so long, while others came, is taken for one that is complete."""

Told = dict[str, tuple[str, int | None]]
"""By kind: the text, and the byte it is about."""


def compressed_note() -> Told:
    """A file that a stream does not read because it is compressed."""
    return {COMPRESSED: ("compressed, which a stream leaves out", None)}


def copy_note(original: str, is_whole: bool) -> Told:
    """A file that is not read because of another one."""
    what = "the same as" if is_whole else "the beginning of"
    return {COPY: (f"{what} {original}, not read again", None)}


def no_copy_note() -> Told:
    """A file that was taken for a copy and became another one."""
    return {NO_COPY: ("not the same any more, read from its beginning", None)}


def ending_note(path: str, step: int, position: int, length: int, is_over: bool) -> Told:
    """Why nothing is read behind a byte of a file. Where a file ends matters only when it is over."""
    left = length - position
    if step == lib.UM_CAPTURE_FOREIGN:
        return _foreign(path)
    if step == lib.UM_CAPTURE_DAMAGED:
        text = f"damaged at byte {position}: no record can begin there, nothing from there on is read"
        return {NoteKind.DAMAGED: (text, position)}
    if is_over and not length:
        return {NoteKind.EMPTY: ("an empty file", 0)}
    if is_over and left:
        text = f"truncated: the record at byte {position} has only {left} bytes, and there are newer files"
        return {NoteKind.TRUNCATED: (text, position)}
    return {}


def _foreign(path: str) -> Told:
    if compression_of(path) is not None:
        return compressed_note()
    with Path(path).open("rb") as file:
        start = file.read(8)
    return {NoteKind.NOT_A_CAPTURE: (f"not a capture: it begins with {start.hex(' ')}", 0)}


class Ages:
    """Which files are over: those with a newer one of the same rotation, and those that others have long outlived."""

    def __init__(self, found: Mapping[str, os.stat_result]) -> None:
        self._changed = {file: one.st_mtime_ns for file, one in found.items()}
        self._latest: dict[str, int] = {}
        for file, changed in self._changed.items():
            series = _series(file)
            self._latest[series] = max(changed, self._latest.get(series, 0))
        self._newest = max(self._changed.values(), default=0)

    def is_over(self, file: str) -> bool:
        """Whether a file will not grow any more."""
        changed = self._changed[file]
        quiet_ns = max(self._newest, time.time_ns()) - changed
        return self._latest[_series(file)] > changed or (self._newest > changed and quiet_ns >= _QUIET_NS)


def _series(file: str) -> str:
    """What the files of one rotation have in common: the folder, and the name without what rotation adds."""
    folder, _, name = file.rpartition("/")
    return f"{folder}/{ROTATION.sub('', name)}"
