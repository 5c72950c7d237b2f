"""TreeSender: publishes file trees as records on a topic (docs/file-transfer.md)."""

from __future__ import annotations

import hashlib
import io
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from umstack.files.errors import TransferError
from umstack.files.manifest import Manifest, ManifestEntry
from umstack.files.outbox import Outbox
from umstack.files.record import (
    CHUNK_HEADER_BYTES,
    Directory,
    FileAbandoned,
    FileBegin,
    FileEnd,
    Link,
    PackedRecord,
    TreeBegin,
    TreeEnd,
    encode,
    write_chunk_header,
)
from umstack.files.walk import Found, Skipped, travelling_name, walk
from umstack.publisher import Publisher

CHUNK_BYTES = 60 * 1024
"""Maximum data bytes per message. Large, because the cost of a message hardly depends on its length."""

_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class SendReport:
    """Result of sending one tree."""

    transfer: int
    manifest: Manifest = field(default_factory=Manifest)
    skipped: list[Skipped] = field(default_factory=list)
    """Entries that are never sent: devices, sockets, links that lead out of the tree."""
    failed: list[Skipped] = field(default_factory=list)
    """Entries that could not be read, or changed while they were read."""


class TreeSender:
    """Sends one tree, made of any number of files and directories, as one transfer."""

    def __init__(
        self,
        publisher: Publisher,
        *,
        on_entry: Callable[[ManifestEntry], None] | None = None,
        on_progress: Callable[[Manifest, int], None] | None = None,
    ) -> None:
        """Call `on_entry` for each complete entry, and `on_progress` with counts and bytes after each buffer."""
        self._outbox = Outbox(publisher)
        self._message_bytes = publisher.source.message_maximum_bytes
        self._chunk_bytes = min(CHUNK_BYTES, self._message_bytes - CHUNK_HEADER_BYTES)
        self._on_entry = on_entry
        self._on_progress = on_progress
        self._report = SendReport(secrets.randbits(64))
        self._entry = 0

    def send(self, paths: Sequence[str], *, exclude: Callable[[str], bool] | None = None) -> SendReport:
        """Send these paths: `DIR/` sends the contents of the directory, `DIR` also its name.

        Every record has been published and flushed when this returns; `Source.wait_drained` waits until they arrived.
        """
        names = [travelling_name(path) for path in paths]
        if len(set(names)) < len(names):
            raise TransferError(
                "two of the paths would be sent under the same name", hint="send them one at a time"
            )
        self._add(TreeBegin())
        for path, name in zip(paths, names, strict=True):
            for item in walk(path, name, exclude=exclude):
                self._send_item(item)
        manifest = self._report.manifest
        self._add(
            TreeEnd(
                manifest.file_count,
                manifest.directory_count,
                manifest.link_count,
                manifest.byte_count,
                manifest.sha256,
            )
        )
        self._outbox.publish(flush=True)
        return self._report

    def _send_item(self, item: Found | Skipped) -> None:
        if isinstance(item, Skipped):
            (self._report.failed if item.is_unreadable else self._report.skipped).append(item)
            return
        self._entry += 1
        match item.kind:
            case "directory":
                if self._begin(item, Directory(item.path, item.mode, item.mtime_ns)):
                    self._sent(ManifestEntry("directory", item.path, item.mode))
            case "link":
                if self._begin(item, Link(item.path, item.target)):
                    self._sent(ManifestEntry("link", item.path, target=item.target))
            case "file":
                self._send_file(item)

    def _send_file(self, item: Found) -> None:
        try:
            fd = os.open(item.file, _OPEN_FLAGS)
        except OSError as error:
            self._fail(item, error.strerror or str(error))
            return
        with io.FileIO(fd) as file:
            before = os.fstat(fd)
            if not stat.S_ISREG(before.st_mode):
                self._fail(item, "it was replaced by something that is no file")
                return
            if not self._begin(item, FileBegin(item.path, before.st_size, item.mode, item.mtime_ns)):
                return
            digest = hashlib.sha256()
            try:
                missing_bytes = before.st_size - self._send_chunks(file, before.st_size, digest.update)
                after = os.fstat(fd)
            except OSError as error:
                self._abandon(item, error.strerror or str(error))
                return
        if missing_bytes or (after.st_mtime_ns, after.st_size) != (before.st_mtime_ns, before.st_size):
            self._abandon(item, "it changed while it was being sent")
            return
        self._add(FileEnd(digest.digest()))
        self._sent(ManifestEntry("file", item.path, item.mode, before.st_size, digest.digest()))

    def _send_chunks(self, file: io.FileIO, size_bytes: int, hash_data: Callable[[memoryview], None]) -> int:
        """Send up to size_bytes of the file; returns the number sent."""
        offset = 0
        while offset < size_bytes:
            wanted = min(self._chunk_bytes, size_bytes - offset)
            space = self._outbox.reserve(CHUNK_HEADER_BYTES + wanted)
            data = space[CHUNK_HEADER_BYTES:]
            count = file.readinto(data) or 0
            if count == 0:
                break
            hash_data(data[:count])
            write_chunk_header(space, self._report.transfer, self._entry, offset)
            self._outbox.commit(CHUNK_HEADER_BYTES + count)
            offset += count
            self._progress(offset)
        return offset

    def _add(self, record: PackedRecord) -> None:
        self._outbox.add(encode(self._report.transfer, self._entry, record))

    def _begin(self, item: Found, record: PackedRecord) -> bool:
        """Add the first record of an entry. Return false if its path is too long for a message: the entry fails."""
        first = encode(self._report.transfer, self._entry, record)
        if len(first) > self._message_bytes:
            self._fail(item, f"its path does not fit a message of {self._message_bytes} bytes")
            return False
        self._outbox.add(first)
        return True

    def _sent(self, entry: ManifestEntry) -> None:
        self._report.manifest.add(entry)
        if self._on_entry is not None:
            self._on_entry(entry)
        self._progress(0)

    def _progress(self, bytes_of_file: int) -> None:
        if self._on_progress is not None:
            self._on_progress(self._report.manifest, bytes_of_file)

    def _fail(self, item: Found, reason: str) -> None:
        self._entry -= 1
        self._report.failed.append(Skipped(item.path, reason, is_unreadable=True))

    def _abandon(self, item: Found, reason: str) -> None:
        self._add(FileAbandoned(reason))
        self._report.failed.append(Skipped(item.path, reason, is_unreadable=True))
