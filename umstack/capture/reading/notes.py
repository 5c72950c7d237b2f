"""What a capture file does not hold, or holds only in part: said in words, beside the rows that are there."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

SNAP_LENGTH = "a snap length"
"""What a note names where no more of each packet was asked for."""


class NoteKind(StrEnum):
    """What a note is about."""

    EMPTY = "empty"
    NOT_A_CAPTURE = "not-a-capture"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    COMPRESSION = "compression"
    CLOCK_STEP = "clock-step"
    NO_TIME = "no-time"
    LINK_TYPE = "link-type"
    UNKNOWN_BLOCK = "unknown-block"
    CAPTURE_DROPS = "capture-drops"
    CUT_PACKETS = "cut-packets"
    STREAM_GAPS = "stream-gaps"


@dataclass(frozen=True, slots=True)
class CaptureNote:
    """One finding. `position` is the byte of the (decompressed) file it is about, if it is about one."""

    kind: NoteKind
    text: str
    position: int | None = None

    @property
    def rows_are_missing(self) -> bool:
        """Whether packets that were captured, or should have been, are not among the rows."""
        return self.kind not in (
            NoteKind.CLOCK_STEP,
            NoteKind.NO_TIME,
            NoteKind.LINK_TYPE,
            NoteKind.UNKNOWN_BLOCK,
            NoteKind.CUT_PACKETS,
            NoteKind.STREAM_GAPS,
        )


@dataclass(slots=True)
class CaptureNotes:
    """Filled by `decode` as it reads one file or split; complete when its iterator has ended."""

    path: str = ""
    format: str | None = None
    compression: str | None = None
    packets: int = 0
    rows: int = 0
    notes: list[CaptureNote] = field(default_factory=list)

    def add(self, kind: NoteKind, text: str, position: int | None = None) -> None:
        """Note a finding."""
        self.notes.append(CaptureNote(kind, text, position))

    def __str__(self) -> str:
        return "\n".join(f"{self.path}: {note.text}" for note in self.notes)
