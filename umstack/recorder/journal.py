"""Journal: record batches in order; each row has an offset that never changes.

A journal is a directory of segments. A segment is two files named after the offset of its first row: NAME.arrows, an
Arrow IPC stream that any Arrow library reads, and NAME.index, with a 32-byte record for each batch: its position,
checksum and offsets. A batch counts once its index record is complete, which is written after the batch. If the process
is killed at any byte, all batches appended before remain, and nothing else.

One process writes (Journal) while any number of others read (JournalReader). One file, because both share the format.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from umstack.errors import Unsupported, error_from_path, naming_path
from umstack.recorder.disk import sync_path
from umstack.recorder.errors import JournalError, JournalFull, OffsetGone
from umstack_xdp.closing import Closing

if TYPE_CHECKING:
    import pyarrow

SEGMENT_BYTES = 64 << 20
DATA_SUFFIX, INDEX_SUFFIX = ".arrows", ".index"
LOCK_NAME = "writer.lock"
_LOCK_SECONDS, _LOCK_LOOK_SECONDS = 0.3, 0.01
_ENTRY = struct.Struct("<QQIII")
_ENTRY_BYTES = _ENTRY.size + 4
_OFFSET_DIGITS = 20
_MESSAGE_HEADER, _RECORD_BATCH_COMPRESSION = 2, 3
"""Numbers of fields in Arrow's Message.fbs."""
_SEGMENT_NAME = re.compile(rf"[0-9]{{{_OFFSET_DIGITS}}}")

WhenFull = Literal["discard_oldest", "refuse"]


def arrow() -> Any:
    """The pyarrow module; Unsupported with a hint if it is not installed."""
    try:
        import pyarrow as pa
    except ImportError:
        raise Unsupported("recording needs pyarrow", hint="pip install 'umstack[arrow]'") from None
    return pa


@dataclass(frozen=True, slots=True)
class _Entry:
    """One batch of a segment."""

    first_offset: int
    position: int
    length_bytes: int
    row_count: int
    checksum: int

    def packed(self) -> bytes:
        fields = _ENTRY.pack(
            self.first_offset, self.position, self.length_bytes, self.row_count, self.checksum
        )
        return fields + struct.pack("<I", zlib.crc32(fields))

    @classmethod
    def unpacked(cls, data: bytes) -> _Entry | None:
        """The entry; None if the bytes are not a complete one."""
        fields, checksum = data[: _ENTRY.size], data[_ENTRY.size :]
        if len(checksum) < 4 or zlib.crc32(fields) != struct.unpack("<I", checksum)[0]:
            return None
        return cls(*_ENTRY.unpack(fields))

    @property
    def end_offset(self) -> int:
        return self.first_offset + self.row_count

    @property
    def end_position(self) -> int:
        return self.position + self.length_bytes


@dataclass(slots=True)
class _Segment:
    """A segment with the part of its index that has been read."""

    directory: Path
    first_offset: int
    entries: list[_Entry] = field(default_factory=list)

    @property
    def data_path(self) -> Path:
        return self.directory / f"{self.first_offset:0{_OFFSET_DIGITS}d}{DATA_SUFFIX}"

    @property
    def index_path(self) -> Path:
        return self.directory / f"{self.first_offset:0{_OFFSET_DIGITS}d}{INDEX_SUFFIX}"

    @property
    def end_offset(self) -> int:
        return self.entries[-1].end_offset if self.entries else self.first_offset

    def refresh(self) -> None:
        """Read new index records; stop at the first that is incomplete or not consecutive."""
        with suppress(FileNotFoundError), self.index_path.open("rb") as file:
            file.seek(len(self.entries) * _ENTRY_BYTES)
            data = file.read()
            for at in range(0, len(data), _ENTRY_BYTES):
                entry = _Entry.unpacked(data[at : at + _ENTRY_BYTES])
                if entry is None or entry.first_offset != self.end_offset:
                    break
                self.entries.append(entry)

    def size_bytes(self) -> int:
        """Size of its files."""
        total = 0
        for path in (self.data_path, self.index_path):
            with suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def remove(self) -> None:
        """Remove the segment, index first, so that a reader finds either a complete segment or none."""
        self.index_path.unlink(missing_ok=True)
        self.data_path.unlink(missing_ok=True)

    def schema(self, file: Any) -> pyarrow.Schema:
        """The schema, stored before the first batch; JournalError if the file is damaged."""
        pa = arrow()
        data = self._bytes_at(file, 0, self.entries[0].position, "the schema")
        try:
            return pa.ipc.read_schema(pa.py_buffer(data))
        except (pa.ArrowException, OSError) as error:
            raise self._damaged("the schema") from error

    def batch_bytes(self, file: Any, entry: _Entry) -> bytes:
        """The bytes of a batch; JournalError if the file is damaged."""
        what = f"the batch at byte {entry.position}"
        data = self._bytes_at(file, entry.position, entry.length_bytes, what)
        if zlib.crc32(data) != entry.checksum:
            raise self._damaged(what)
        return data

    def _bytes_at(self, file: Any, position: int, length_bytes: int, what: str) -> bytes:
        """Bytes that the index names. It can name any: those that the file does not have are not asked for."""
        if position + length_bytes > os.fstat(file.fileno()).st_size:
            raise self._damaged(what)
        return os.pread(file.fileno(), length_bytes, position)

    def batch(self, file: Any, entry: _Entry, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
        """A batch; JournalError if the file is damaged or its schema differs."""
        pa = arrow()
        data = pa.py_buffer(self.batch_bytes(file, entry))
        try:
            message = pa.ipc.read_message(data)
            if message.type == "record batch" and _is_compressed(message.metadata):
                raise self._compressed(entry)
            batch = pa.ipc.read_record_batch(message, schema)
            batch.validate()
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(f"the schema, or the batch at byte {entry.position},") from error
        if batch.num_rows != entry.row_count:
            raise self._damaged(f"the batch at byte {entry.position}")
        return batch

    def _compressed(self, entry: _Entry) -> JournalError:
        return JournalError(
            f"{self.data_path}: the batch at byte {entry.position} has compressed buffers",
            hint="a recorder writes none, because a short batch could fill the memory of its readers",
        )

    def _damaged(self, what: str) -> JournalError:
        return JournalError(
            f"{self.data_path}: {what} is damaged",
            hint="restore the file, or remove the segment and accept the loss of its rows",
        )


def _is_compressed(metadata: Any) -> bool:
    """Return true if the buffers of a record batch are compressed. pyarrow decompresses them without a limit.

    `metadata` is the message's flatbuffer, which pyarrow has verified.
    """
    view = memoryview(metadata)
    message: int = struct.unpack_from("<I", view)[0]
    header = message + _flatbuffer_field(view, message, _MESSAGE_HEADER)
    record_batch = header + struct.unpack_from("<I", view, header)[0]
    return _flatbuffer_field(view, record_batch, _RECORD_BATCH_COMPRESSION) != 0


def _flatbuffer_field(view: memoryview, table: int, number: int) -> int:
    """Return a field's offset in its table, 0 if the field is missing."""
    vtable = table - struct.unpack_from("<i", view, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", view, vtable)[0]:
        return 0
    found: int = struct.unpack_from("<H", view, vtable + at)[0]
    return found


def _segments(directory: Path) -> list[_Segment]:
    """The existing segments in order."""
    names = sorted(path.stem for path in directory.glob(f"*{INDEX_SUFFIX}"))
    return [_Segment(directory, int(name)) for name in names if _SEGMENT_NAME.fullmatch(name)]


class JournalReader:
    """Reads a journal, also while another process writes to it. One thread at a time."""

    def __init__(self, directory: str | Path) -> None:
        """A journal that does not exist yet is empty."""
        self.directory = Path(directory)
        self._known: list[_Segment] = []

    def _refresh(self) -> list[_Segment]:
        known = {segment.first_offset: segment for segment in self._known}
        found = [known.get(segment.first_offset, segment) for segment in _segments(self.directory)]
        for segment in found:
            if segment is found[-1] or not segment.entries or segment is self._last_known():
                segment.refresh()
        self._known = found
        return found

    def _last_known(self) -> _Segment | None:
        return self._known[-1] if self._known else None

    @property
    def start(self) -> int:
        """The first readable offset."""
        segments = self._refresh()
        return segments[0].first_offset if segments else 0

    @property
    def end(self) -> int:
        """The offset of the next row to be written."""
        segments = self._refresh()
        return segments[-1].end_offset if segments else 0

    def size_bytes(self, start: int = 0) -> int:
        """Size of the batches from this offset on."""
        return sum(
            entry.length_bytes
            for segment in self._refresh()
            if segment.end_offset > start
            for entry in segment.entries
            if entry.first_offset >= start
        )

    def offset_before_end(self, byte_count: int) -> int:
        """The first offset from which batches take at most `byte_count` bytes; at the latest the last batch's."""
        offset, left = self.end, byte_count
        for segment in reversed(self._refresh()):
            for entry in reversed(segment.entries):
                if entry.end_offset != self.end and left < entry.length_bytes:
                    return offset
                offset, left = entry.first_offset, left - entry.length_bytes
        return offset

    def read(self, start: int, end: int | None = None) -> Iterator[pyarrow.RecordBatch]:
        """The rows from `start` up to `end` (None: the current end), in batches as they were appended.

        Raises OffsetGone if rows of the range do not exist.
        """
        segments = self._refresh()
        last = segments[-1].end_offset if segments else 0
        first = segments[0].first_offset if segments else 0
        end = last if end is None else end
        if start < first or end > last or start > end:
            raise OffsetGone(f"{self.directory} has offsets {first} to {last}, not {start} to {end}")
        position = start
        begin = bisect_right([segment.first_offset for segment in segments], start) - 1
        for segment in segments[max(begin, 0) :]:
            if position >= end or position < segment.first_offset:
                break
            for batch in self._read_segment(segment, position, end):
                position += batch.num_rows
                yield batch
        if position < end:
            raise OffsetGone(f"{self.directory} has no row {position}: a segment is missing or was cut short")

    def _read_segment(self, segment: _Segment, start: int, end: int) -> Iterator[pyarrow.RecordBatch]:
        if not segment.entries:
            return
        try:
            file = segment.data_path.open("rb")
        except FileNotFoundError:
            raise OffsetGone(f"{segment.data_path} was removed while it was being read") from None
        with file:
            schema = segment.schema(file)
            index = bisect_right([entry.first_offset for entry in segment.entries], start) - 1
            for entry in segment.entries[max(index, 0) :]:
                if entry.first_offset >= end:
                    return
                batch = segment.batch(file, entry, schema)
                skip = max(0, start - entry.first_offset)
                yield batch.slice(skip, min(end, entry.end_offset) - entry.first_offset - skip)

    def sync_before(self, before: int) -> None:
        """Force the rows before this offset to the disk, whichever process wrote them."""
        for segment in self._refresh():
            if segment.first_offset < before:
                for path in (segment.data_path, segment.index_path):
                    # The writer may remove a segment meanwhile.
                    with suppress(FileNotFoundError), path.open("rb") as file:
                        os.fdatasync(file.fileno())
        sync_path(self.directory)

    def truncate(self, before: int) -> None:
        """Remove the segments that only contain rows before this offset; the last one stays."""
        for segment, after in pairwise(self._refresh()):
            if after.first_offset <= before:
                segment.remove()


class Journal(JournalReader, Closing):
    """The writer. Opening a journal repairs what a killed writer left and continues after the last complete batch.

    `fsync_seconds`: None lets the system decide when data reaches the disk (a killed process loses nothing, a crashed
    machine may lose the last seconds), 0 syncs each append, a larger value is the minimum interval between syncs.
    `max_bytes` bounds the journal (0: unbounded): the oldest segments are removed, or, with when_full "refuse", append
    raises JournalFull.
    """

    def __init__(
        self,
        directory: str | Path,
        schema: pyarrow.Schema,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        max_bytes: int = 0,
        when_full: WhenFull = "discard_oldest",
        fsync_seconds: float | None = None,
    ) -> None:
        super().__init__(directory)
        self.schema = schema
        self._segment_bytes = min(segment_bytes, max_bytes // 4) if max_bytes else segment_bytes
        self._max_bytes = max_bytes
        self._when_full = when_full
        self._fsync_seconds = fsync_seconds
        self._synced_at = time.monotonic()
        self._data: Any = None
        self._index: Any = None
        self._position = 0
        self._sealed_bytes = 0
        self._lock = self._take_lock()
        try:
            self._end = self._recover()
        except OSError as error:
            self._lock.close()
            raise error_from_path(error, f"journal {self.directory}") from error

    @property
    def end(self) -> int:
        """The offset of the next row to be written."""
        return self._end

    def _take_lock(self) -> Any:
        """The locked lock file with this process's id in it. Other processes may lock it for a moment to check it."""
        with naming_path(f"journal {self.directory}"):
            self.directory.mkdir(parents=True, exist_ok=True)
            lock = (self.directory / LOCK_NAME).open("a")
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_LOOK_SECONDS)
                    continue
            lock.close()
            raise JournalError(
                f"another process writes to the journal {self.directory}",
                hint=f"end it (its process id is in {LOCK_NAME}), or choose another directory",
            )
        try:
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
        except OSError as error:
            with suppress(OSError):  # it flushes once more
                lock.close()
            raise error_from_path(error, f"journal {self.directory}") from error
        return lock

    # Recovery

    def _recover(self) -> int:
        """Cut off incomplete appends; returns the next offset."""
        indexed = {segment.data_path for segment in _segments(self.directory)}
        for path in self.directory.glob(f"*{DATA_SUFFIX}"):
            if path not in indexed:
                path.unlink()
        segments = self._refresh()
        end = 0
        for segment in segments:
            end = segment.first_offset
            if segment is segments[-1]:
                self._repair(segment)
            if segment.entries:
                end = segment.end_offset
        if segments and not segments[-1].entries and len(segments) > 1:
            segments[-1].remove()
        self._sealed_bytes = sum(segment.size_bytes() for segment in self._refresh())
        return end

    def _repair(self, segment: _Segment) -> None:
        """Keep the batches before the first incomplete one."""
        whole = 0
        with suppress(FileNotFoundError), segment.data_path.open("rb") as file:
            for entry in segment.entries:
                try:
                    segment.batch_bytes(file, entry)
                except JournalError:
                    break
                whole += 1
        del segment.entries[whole:]
        os.truncate(segment.index_path, whole * _ENTRY_BYTES)
        if segment.data_path.exists():
            os.truncate(segment.data_path, segment.entries[-1].end_position if whole else 0)

    # Writing

    def append(self, batch: pyarrow.RecordBatch) -> int:
        """Write a batch; returns the offset of its first row. From then on a killed process loses none of it."""
        if not batch.schema.equals(self.schema):
            raise JournalError(
                f"the batch's schema differs from that of {self.directory}: {batch.schema}",
                hint="see Journal.schema",
            )
        if batch.num_rows == 0:
            return self._end
        data = batch.serialize()
        self._make_space(len(data))
        try:
            self._write(data, batch.num_rows)
            self._sync_if_due()
        except OSError as error:
            self._cut_back()
            raise JournalError(
                f"journal {self.directory}: {error.strerror}", errno=error.errno or 0
            ) from error
        return self._end - int(batch.num_rows)

    def _write(self, data: Any, row_count: int) -> None:
        if self._data is None or self._position >= self._segment_bytes:
            self._begin_segment()
        entry = _Entry(self._end, self._position, len(data), row_count, zlib.crc32(data))
        _write_all(self._data, data)
        if self._fsync_seconds == 0:
            os.fdatasync(self._data.fileno())
        _write_all(self._index, entry.packed())
        self._position += len(data)
        self._end += row_count

    def _begin_segment(self) -> None:
        self._seal()
        segment = _Segment(self.directory, self._end)
        self._data = segment.data_path.open("wb", buffering=0)
        schema = self.schema.serialize()
        _write_all(self._data, schema)
        self._position = len(schema)
        self._index = segment.index_path.open("wb", buffering=0)
        if self._fsync_seconds is not None:
            sync_path(self.directory)

    def _cut_back(self) -> None:
        """Restore the files to their state before a failed write."""
        if self._index is None:  # not even the segment was created
            if self._data is not None:
                self._data.close()
                self._data = None
            _Segment(self.directory, self._end).remove()
            return
        with suppress(OSError):
            os.ftruncate(self._data.fileno(), self._position)
            size = os.fstat(self._index.fileno()).st_size
            os.ftruncate(self._index.fileno(), size - size % _ENTRY_BYTES)
            for file in (self._data, self._index):
                file.seek(0, os.SEEK_END)

    def _make_space(self, byte_count: int) -> None:
        if not self._max_bytes or self._sealed_bytes + self._position + byte_count <= self._max_bytes:
            return
        segments = self._refresh()
        total = sum(segment.size_bytes() for segment in segments) + byte_count
        for segment, _ in pairwise(segments):
            if total <= self._max_bytes:
                break
            if self._when_full == "refuse":
                raise JournalFull(f"the journal {self.directory} has reached {self._max_bytes} bytes")
            total -= segment.size_bytes()
            segment.remove()
        active = self._position if self._data is not None else 0
        self._sealed_bytes = max(0, total - byte_count - active)

    @property
    def has_space(self) -> bool:
        """True if an append would not be refused for the journal's size."""
        if not self._max_bytes or self._when_full != "refuse":
            return True
        return (
            sum(segment.size_bytes() for segment in self._refresh()) + self._segment_bytes <= self._max_bytes
        )

    def _sync_if_due(self) -> None:
        if self._fsync_seconds is None or time.monotonic() - self._synced_at < self._fsync_seconds:
            return
        self._sync()

    def sync(self) -> None:
        """Force appended data to the disk. Sealed segments are synced already unless `fsync_seconds` is None."""
        with naming_path(f"journal {self.directory}"):
            self._sync()

    def _sync(self) -> None:
        if self._data is not None:
            os.fdatasync(self._data.fileno())
            os.fdatasync(self._index.fileno())
        self._synced_at = time.monotonic()

    def _seal(self) -> None:
        if self._data is None:
            return
        if self._fsync_seconds is not None:
            self._sync()
        self._sealed_bytes += self._position
        self._position = 0
        for file in (self._data, self._index):
            file.close()
        self._data = self._index = None

    def close(self) -> None:
        """Finish the last segment and release the journal for other writers."""
        if self._lock.closed:
            return
        try:
            with naming_path(f"journal {self.directory}"):
                self._seal()
        finally:
            self._lock.close()


def _write_all(file: Any, data: Any) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
