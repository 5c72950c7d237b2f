"""Notes on packets that a capture file does not hold, or holds only in part."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

SNAP_LENGTH = "a snap length"
"""Named in the note on packets that were truncated on request."""


class NoteKind(StrEnum):
    """The subject of a note."""

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
    IP_FRAGMENTS = "ip-fragments"
    RESERVED = "reserved"
    WRONG_LENGTH = "wrong-length"


COUNT = "{count}"
"""Stands for the number in the template of a note."""


def with_count(template: str, count: int) -> str:
    """Return the text of a note from its template."""
    return template.replace(COUNT, f"{count:,}")


_OTHER_CONTAINERS = {
    b"\x04\x22\x4d\x18": "lz4, unpack it with: lz4 -d",
    b"\xfd\x37\x7a\x58": "xz, unpack it with: xz -d",
    b"\x34\xcd\xb2\xa1": "modified pcap, convert it with: editcap -F pcap",
    b"\xa1\xb2\xcd\x34": "modified pcap, convert it with: editcap -F pcap",
}


def reserved(position: int, length: int) -> str:
    """Return the text of a note on zeros behind the last record of a file."""
    return (
        f"from byte {position} on the file has {length} bytes of zeros and no more packets: "
        "the capturing program reserved them, and was killed or is still writing"
    )


def not_a_capture(start: bytes) -> str:
    """Return the text of a note on a file that begins with these bytes."""
    other = _OTHER_CONTAINERS.get(start[:4])
    return f"not a capture: it begins with {start.hex(' ')}" + (f" ({other})" if other else "")


@dataclass(frozen=True, slots=True)
class CaptureNote:
    """One finding. `position`: its byte in the (decompressed) file, or None.

    Notes of the splits of a file with equal templates are one note, whose `count` is the sum.
    """

    kind: NoteKind
    template: str
    """The text, with `COUNT` where the number goes if there is one."""
    position: int | None = None
    count: int | None = None
    detail: str = ""
    """A further part of the text, which differs between splits."""

    @property
    def text(self) -> str:
        """The whole text."""
        return with_count(self.template, self.count or 0) + self.detail

    @property
    def rows_are_missing(self) -> bool:
        """True if captured or lost packets are missing in the rows."""
        return self.kind not in (
            NoteKind.CLOCK_STEP,
            NoteKind.NO_TIME,
            NoteKind.LINK_TYPE,
            NoteKind.UNKNOWN_BLOCK,
            NoteKind.CUT_PACKETS,
            NoteKind.STREAM_GAPS,
            NoteKind.IP_FRAGMENTS,
            NoteKind.RESERVED,
            NoteKind.WRONG_LENGTH,
        )


@dataclass(slots=True)
class CaptureNotes:
    """Collect notes on a file or split; complete once the iterator of `decode` has ended.

    Example:
        ```python
        notes = umstack.capture.CaptureNotes()
        rows = sum(batch.num_rows for batch in umstack.capture.decode("day.pcapng", notes=notes))
        print(notes)
        ```
    """

    path: str = ""
    format: str | None = None
    compression: str | None = None
    packets: int = 0
    rows: int = 0
    notes: list[CaptureNote] = field(default_factory=list)

    def add(
        self,
        kind: NoteKind,
        template: str,
        position: int | None = None,
        *,
        count: int | None = None,
        detail: str = "",
    ) -> None:
        """Add a note.

        Args:
            kind: Kind of the note.
            template: The text of the note, with `{count}` for a number.
            position: Byte position in the file; None: it applies to the whole file.
            count: The number; None: the text has none.
            detail: A further part of the text that differs between the splits of a file.

        Example:
            ```python
            notes = umstack.capture.CaptureNotes()
            print(notes)
            ```
        """
        self.notes.append(CaptureNote(kind, template, position, count, detail))

    def __str__(self) -> str:
        return "\n".join(f"{self.path}: {note.text}" for note in self.notes)
