"""TreeReceiver: writes the file trees of a topic into a directory (docs/file-transfer.md)."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from umstack.events import BurstLoss, EndOfSession, Event, Message, UnrecoverableLoss
from umstack.files.errors import RecordError, UnsafePath
from umstack.files.manifest import Manifest, ManifestEntry
from umstack.files.path import check_link, path_parts, shown
from umstack.files.record import (
    Chunk,
    Directory,
    FileAbandoned,
    FileBegin,
    FileEnd,
    Kind,
    Link,
    Record,
    TreeBegin,
    TreeEnd,
    decode_body,
    decode_header,
)
from umstack.files.target import PartFile, Target
from umstack.files.walk import MODE_MASK

TRANSFERS_MAX = 64
"""Maximum number of unfinished trees; bounds the files left open by publishers that died."""

PROBLEMS_KEPT_MAX = 100
STRAYS_KEPT_MAX = 100


@dataclass(frozen=True, slots=True)
class Problem:
    """One entry, or the tree itself (no path), that is missing or wrong."""

    path: bytes
    reason: str

    def __str__(self) -> str:
        return f"{shown(self.path)}: {self.reason}" if self.path else self.reason


@dataclass(slots=True)
class TreeReport:
    """Result of receiving one tree."""

    source: str
    transfer: int
    manifest: Manifest = field(default_factory=Manifest)
    """Entries received completely."""
    problems: list[Problem] = field(default_factory=list)
    """The first problems."""
    problem_count: int = 0
    received_bytes: int = 0
    """Bytes of file contents, including unfinished files."""
    lost_messages: int = 0
    missing_entries: int = 0
    is_ended: bool = False
    seconds: float = 0.0

    @property
    def is_complete(self) -> bool:
        """True if all sent entries are in place, with the right digest."""
        return self.is_ended and self.problem_count == 0

    def note(self, path: bytes, reason: str) -> None:
        """Record a problem."""
        self.problem_count += 1
        if len(self.problems) < PROBLEMS_KEPT_MAX:
            self.problems.append(Problem(path, reason))


class _IncomingFile:
    """The unfinished file of a transfer."""

    __slots__ = ("begin", "digest", "part", "parts")

    def __init__(self, begin: FileBegin, parts: tuple[bytes, ...], part: PartFile) -> None:
        self.begin = begin
        self.parts = parts
        self.part = part
        self.digest = hashlib.sha256()


class _IncomingTree:
    """One transfer. If a record fails, its entry is lost and the tree incomplete; other entries continue."""

    __slots__ = ("_entry", "_file", "_started", "_target", "report")

    def __init__(self, report: TreeReport, target: Target) -> None:
        self.report = report
        self._target = target
        self._entry = 0
        self._file: _IncomingFile | None = None
        self._started = time.monotonic()

    def take(self, entry: int, record: Record) -> None:
        """Process the next record."""
        if isinstance(record, TreeBegin):
            raise RecordError("a tree begins twice")
        if not isinstance(record, Chunk | FileEnd | FileAbandoned):
            self._next_entry(entry, is_new=not isinstance(record, TreeEnd))
        elif entry != self._entry:
            return  # the file's FileBegin was lost, which the next entry's number reveals
        match record:
            case Chunk():
                self._on_chunk(record)
            case FileBegin():
                self._carry_out(record.path, lambda: self._on_file_begin(record))
            case FileEnd():
                self._on_file_end(record)
            case FileAbandoned():
                self._give_up_file(f"the publisher could not send it: {record.reason}")
            case Directory():
                self._carry_out(record.path, lambda: self._on_directory(record))
            case Link():
                self._carry_out(record.path, lambda: self._on_link(record))
            case TreeEnd():
                self._on_tree_end(record)

    def _next_entry(self, entry: int, *, is_new: bool) -> None:
        if self._file is not None:
            self._give_up_file("its end is missing")
        missed = entry - self._entry - is_new
        if missed < 0:
            raise RecordError(f"entry {entry} comes after entry {self._entry}")
        self.report.missing_entries += missed
        self._entry = entry

    def _carry_out(self, path: bytes, act: Callable[[], None]) -> None:
        try:
            act()
        except UnsafePath as error:
            self.report.note(path, error.message)
        except OSError as error:
            self.report.note(path, error.strerror or str(error))

    def _on_file_begin(self, begin: FileBegin) -> None:
        parts = path_parts(begin.path)
        self._file = _IncomingFile(begin, parts, self._target.begin())

    def _on_chunk(self, chunk: Chunk) -> None:
        file = self._file
        if file is None:
            return
        if chunk.offset != file.part.written_bytes:
            self._give_up_file("a part of it is missing")
        elif chunk.offset + len(chunk.data) > file.begin.size_bytes:
            self._give_up_file("it is longer than announced")
        else:
            self.report.received_bytes += len(chunk.data)
            file.digest.update(chunk.data)
            try:
                file.part.write(chunk.data)
            except OSError as error:
                self._give_up_file(error.strerror or str(error))

    def _on_file_end(self, end: FileEnd) -> None:
        file = self._file
        if file is None:
            return
        begin = file.begin
        if file.part.written_bytes != begin.size_bytes:
            self._give_up_file("a part of it is missing")
        elif file.digest.digest() != end.sha256:
            self._give_up_file("its SHA-256 is not the one sent")
        else:
            try:
                self._target.complete(file.part, file.parts, begin.mode, begin.mtime_ns)
            except OSError as error:
                self._give_up_file(error.strerror or str(error))
                return
            self._file = None
            mode = begin.mode & MODE_MASK
            self._arrived(ManifestEntry("file", begin.path, mode, begin.size_bytes, end.sha256))

    def _on_directory(self, directory: Directory) -> None:
        self._target.finish_directory(path_parts(directory.path), directory.mode, directory.mtime_ns)
        self._arrived(ManifestEntry("directory", directory.path, directory.mode & MODE_MASK))

    def _on_link(self, link: Link) -> None:
        parts = path_parts(link.path)
        check_link(parts, link.target)
        self._target.make_link(parts, link.target)
        self._arrived(ManifestEntry("link", link.path, target=link.target))

    def _arrived(self, entry: ManifestEntry) -> None:
        self.report.manifest.add(entry)

    def _on_tree_end(self, end: TreeEnd) -> None:
        manifest = self.report.manifest
        if manifest.sha256 != end.manifest_sha256:
            self.report.note(
                b"",
                f"{manifest.file_count} of {end.file_count} files, {manifest.directory_count} of "
                f"{end.directory_count} directories and {manifest.link_count} of {end.link_count} links arrived",
            )
        self.finish()

    def finish(self) -> None:
        """End the transfer, complete or not."""
        if self._file is not None:
            self._give_up_file("its end is missing")
        if self.report.missing_entries:
            self.report.note(b"", f"{self.report.missing_entries:,} entries are missing")
        if self.report.lost_messages:
            self.report.note(b"", f"{self.report.lost_messages:,} messages were lost for good")
        self.report.is_ended = True
        self.report.seconds = time.monotonic() - self._started

    def _give_up_file(self, reason: str) -> None:
        file, self._file = self._file, None
        if file is not None:
            self._target.discard(file.part)
            self.report.note(file.begin.path, reason)


class TreeReceiver:
    """Processes a receiver's events. Holds only one record and the reports of the trees in memory."""

    def __init__(self, target: Target) -> None:
        """Receive into the target, which the caller owns."""
        self._target = target
        self._open: dict[tuple[str, int], _IncomingTree] = {}
        self._ended: list[TreeReport] = []
        self.strays: dict[str, None] = {}
        """Return why messages that belong to no tree were ignored; each reason once, in order."""

    def take(self, events: Iterable[Event]) -> list[TreeReport]:
        """Process these events. Return the trees that ended, complete or not."""
        for event in events:
            match event:
                case Message():
                    self._take_message(event.source, memoryview(event.data))
                case UnrecoverableLoss():
                    self._lost(event.source, 1)
                case BurstLoss():
                    self._lost(
                        event.source, (event.sequence_number - event.first_sequence_number) % 2**32 + 1
                    )
                case EndOfSession():
                    for tree in self._trees_of(event.source):
                        self._end(tree, "the publisher went away")
        ended, self._ended = self._ended, []
        return ended

    def open_reports(self) -> list[TreeReport]:
        """Return the unfinished trees."""
        return [tree.report for tree in self._open.values()]

    def close(self) -> list[TreeReport]:
        """Give up the unfinished trees and return them."""
        for tree in list(self._open.values()):
            self._end(tree, "reception was stopped before its end")
        ended, self._ended = self._ended, []
        return ended

    def _take_message(self, source: str, message: memoryview) -> None:
        try:
            transfer, entry, kind = decode_header(message)
            tree = self._open.get((source, transfer))
            if tree is not None:
                tree.take(entry, decode_body(kind, message))
                if tree.report.is_ended:
                    self._ended.append(self._open.pop((source, transfer)).report)
            elif kind == Kind.TREE_BEGIN:
                self._begin(source, transfer)
            else:
                self._stray(f"{source}: the beginning of a tree was missed; start receiving before sending")
        except RecordError as error:
            self._stray(f"{source}: {error.message}")

    def _lost(self, source: str, count: int) -> None:
        for tree in self._trees_of(source):
            tree.report.lost_messages += count

    def _begin(self, source: str, transfer: int) -> None:
        if len(self._open) < TRANSFERS_MAX:
            self._open[source, transfer] = _IncomingTree(TreeReport(source, transfer), self._target)
        else:
            self._stray(f"{source}: more than {TRANSFERS_MAX} trees at once; this one is left out")

    def _end(self, tree: _IncomingTree, why: str) -> None:
        tree.report.note(b"", why)
        tree.finish()
        del self._open[tree.report.source, tree.report.transfer]
        self._ended.append(tree.report)

    def _trees_of(self, source: str) -> list[_IncomingTree]:
        return [tree for (of, _), tree in self._open.items() if of == source]

    def _stray(self, reason: str) -> None:
        if len(self.strays) < STRAYS_KEPT_MAX:
            self.strays[reason] = None
