"""The repository: appends messages of all sources to one log, commits them in groups, reads them back, reclaims space.

One file, because the log has one lock order: commit, then index, then reading.
"""

from __future__ import annotations

import bisect
import errno
import fcntl
import logging
import os
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from umstack._core import ffi, lib
from umstack.errors import OptionError
from umstack.repeated_records import RepeatedRecords
from umstack.store.repository import opening
from umstack.store.repository.client_state import FILE_NAME, ClientState, SourceState
from umstack.store.repository.errors import (
    DiskFull,
    RepositoryEnded,
    RepositoryError,
    RepositoryInUse,
    StagingFull,
)
from umstack.store.repository.files import DiskFiles, File, Files
from umstack.store.repository.model import (
    Commit,
    CommittedRange,
    Durability,
    Reclaimed,
    Recovery,
    RepositorySettings,
    StoredMessage,
)
from umstack.store.repository.received_rows import ReceivedRows
from umstack.store.repository.scanning import next_record, part_of
from umstack.store.repository.segments import (
    RUN_BYTES,
    Segment,
    segment_names,
    write_footer,
    write_header,
)

LOCK_NAME = "lock"
_ROW = struct.Struct("=IIIIQQqI4x")
"""um_store_row: field by field, its access by cffi takes longer than reading the disk."""
assert _ROW.size == ffi.sizeof("um_store_row")
_LOST = lib.UM_STORE_RECORD_LOST
_ALIGNMENT = 8
"""Of records in a segment."""
_OPEN_FILES = 64
"""Sealed segments whose files stay open for reading."""
_READ_BYTES = 256 << 10
_READ_ROWS = 4096
_MAX_SEGMENT_BYTES = 1 << 31
_MIN_SEGMENT_BYTES = 1 << 18
_FULL_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT))
_ALL_MESSAGES = (1 << 63) - 1
NETWORK_FILE_SYSTEMS = frozenset(("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs"))


def _check_settings(settings: RepositorySettings) -> None:
    longest = lib.UM_STORE_RECORD_HEADER_BYTES + lib.UM_STORE_MESSAGE_BYTES_MAX
    if (
        not _MIN_SEGMENT_BYTES <= settings.segment_bytes <= _MAX_SEGMENT_BYTES
        or settings.segment_bytes % 4096
    ):
        raise OptionError(f"segment_bytes {settings.segment_bytes} is no multiple of 4096 from 2^18 to 2^31")
    if settings.staging_bytes < 2 * longest or settings.staging_bytes & (settings.staging_bytes - 1):
        raise OptionError(f"staging_bytes {settings.staging_bytes} is no power of two of at least 2^19")
    if not longest <= settings.commit_bytes <= settings.staging_bytes:
        raise OptionError(f"commit_bytes {settings.commit_bytes} is not between {longest} and staging_bytes")


def _lock_directory(directory: Path, is_network_allowed: bool) -> int:
    """Create the directory and lock it against other processes. Returns the descriptor that holds the lock."""
    directory.mkdir(parents=True, exist_ok=True)
    kind = file_system_of(directory)
    if kind in NETWORK_FILE_SYSTEMS and not is_network_allowed:
        raise RepositoryError(
            f"{directory} is on {kind}, whose sync cannot be trusted",
            hint="use a local disk, or set is_network_allowed",
        )
    descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RepositoryInUse(f"{directory} is open in another process") from None
    return descriptor


def file_system_of(directory: Path) -> str:
    """Return the type of the file system that contains a directory."""
    resolved = directory.resolve()
    found, best = "", -1
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount_point, kind, *_ = line.split(" ")
        point = Path(mount_point.encode().decode("unicode_escape"))
        if (resolved == point or point in resolved.parents) and len(point.parts) >= best:
            found, best = kind, len(point.parts)
    return found


def _allocated(pointer: Any, free: Callable[[Any], None], byte_count: int) -> Any:
    if pointer == ffi.NULL:
        raise MemoryError(f"{byte_count} bytes for the repository")
    return ffi.gc(pointer, free, byte_count)


def _staging_error(error: int, message_bytes: int) -> Exception:
    if error == -errno.ENOBUFS:
        return StagingFull("the staging ring is full")
    if error == -errno.EMSGSIZE:
        return OptionError(
            f"a message of {message_bytes} bytes is longer than {lib.UM_STORE_MESSAGE_BYTES_MAX}"
        )
    return OptionError("the source number or the range of lost messages is out of range")


class Repository:
    """A Store's messages and client state on one volume.

    One thread appends, one commits; the other methods may be called by any thread. A message is appended to the staging
    ring, a commit writes everything that is staged at once, and only messages of finished commits are read. While a
    commit waits for the disk, the next one gathers.

    Args:
        directory: Directory of the repository; created if it does not exist.
        settings: Sizes and limits.
        files: The files of the log; None: in `directory`. Tests put a simulated disk here.
        state: The client state; None: in `directory`.
        wall_clock_ns: Returns the time for `received_ns` and for files.

    Raises:
        RepositoryInUse: Another process has it open.
        RepositoryDamaged: Messages exist, but not the client state.
        RepositoryError: The directory is on a network file system.

    Example:
        ```python
        import tempfile
        from umstack.store.repository import Repository

        with tempfile.TemporaryDirectory() as directory, Repository(directory) as repository:
            source = repository.register_source("orders", session_id=7)
            repository.append(source.number, 0, b"first")
            commit = repository.commit()
            assert commit.durability == "disk"
            assert repository.read(source.number, 0)[0].message == b"first"
        ```
    """

    def __init__(
        self,
        directory: str | Path,
        settings: RepositorySettings | None = None,
        *,
        files: Files | None = None,
        state: ClientState | None = None,
        wall_clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.settings = settings or RepositorySettings()
        _check_settings(self.settings)
        self.directory = Path(directory)
        self._wall_clock_ns = wall_clock_ns
        self._ended: OSError | None = None
        self._log = RepeatedRecords(logging.getLogger(__name__))
        self.damage_count = 0
        """Reads that met damaged bytes."""
        self._is_closed = False
        self._sealed_count = 0
        """Segments sealed since the last reclaim."""
        self._lock = threading.RLock()
        """Guards the index, the runs and the list of segments."""
        self._commit_lock = threading.Lock()
        self._read_lock = threading.Lock()
        """Guards the open files of sealed segments."""
        self._reading: OrderedDict[int, File] = OrderedDict()
        self._lows: dict[int, int] = {}
        """Lowest sqn kept of each source from which messages were dropped."""
        self._resumed: dict[int, tuple[tuple[int, int, int], int]] = {}
        """By source, where the last read ended: segment, run and next sqn, and the offset of the next record."""
        self._pending: Any = None
        """um_store_batch that is sealed, but not on the disk yet."""
        self._open: tuple[Segment, File] | None = None
        self._lock_file = -1
        if files is None:
            self._lock_file = _lock_directory(self.directory, self.settings.is_network_allowed)
        try:
            self._files: Files = files or DiskFiles(self.directory)
            self.state = state or ClientState(
                self.directory / FILE_NAME, needs_existing=bool(segment_names(self._files))
            )
            self._salt = lib.um_store_salt(self.state.store_id)
            self._staged_bytes = ffi.new("uint64_t *")
            self._staging = _allocated(
                lib.um_staging_create(self.settings.staging_bytes),
                lib.um_staging_free,
                self.settings.staging_bytes,
            )
            self._runs = _allocated(lib.um_store_runs_create(), lib.um_store_runs_free, 1 << 24)
            self._index = _allocated(lib.um_span_index_create(), lib.um_span_index_free, 1 << 20)
            log = opening.open_log(self._files, self.state.store_id, self._index, self._runs)
        except BaseException:
            if self._lock_file >= 0:
                os.close(self._lock_file)
            raise
        self._segments = log.segments
        """Sealed segments, in the order of the log."""
        self._next_position, self._next_commit = log.next_position, log.next_commit
        self._next_number = max((segment.number for segment in log.segments), default=-1) + 1
        self.recovery: Recovery = log.recovery
        for source in self.state.sources():
            lib.um_span_index_drop_below(self._index, source.number, source.low_sqn)
            self._lows[source.number] = source.low_sqn
        for number in self.state.forgotten_sources():
            lib.um_span_index_drop_source(self._index, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Commit what is staged, seal the open segment and release everything. Never raises for a disk that failed."""
        if self._is_closed:
            return
        try:
            if self._ended is None:
                while self.commit() is not None:
                    pass
                with self._commit_lock:
                    self._seal_open()
        except RepositoryError:
            pass  # reported to the caller of the commit that failed; nothing unacknowledged is promised
        finally:
            self._is_closed = True
            if self._open is not None:
                self._open[1].close()
            for file in self._reading.values():
                file.close()
            self.state.close()
            if self._lock_file >= 0:
                os.close(self._lock_file)

    # ---- sources ----

    def register_source(
        self,
        topic: str,
        session_id: int,
        *,
        registration_id: int = 0,
        retention_bytes: int = 0,
        activity_timeout_ns: int = 0,
        state_lifetime_ns: int = 0,
        is_receiver_paced: bool = False,
    ) -> SourceState:
        """Register a source before its first message is appended; see `ClientState.register_source`.

        Args:
            topic: Topic of the source.
            session_id: Its session id; 0: it is known by its registration id.
            registration_id: Wanted registration id; 0: any.
            retention_bytes: Most bytes to keep of it; 0: `RepositorySettings.source_bytes`.
            activity_timeout_ns: Idle time after which its registration id is free; 0: the Store's.
            state_lifetime_ns: Idle time after which it is forgotten; 0: the Store's.
            is_receiver_paced: Keep messages until all receivers have acknowledged them.

        Returns:
            The state of the source. Its `number` identifies it in every other call.

        Raises:
            ResourceLimit: The Store has its maximum number of sources.
            RepositoryError: The registration id belongs to another client.
            DiskFull: The source is new, and less than one segment of disk space is left.
        """
        return self.state.register_source(
            topic,
            session_id,
            registration_id=registration_id,
            retention_bytes=retention_bytes,
            activity_timeout_ns=activity_timeout_ns,
            state_lifetime_ns=state_lifetime_ns,
            is_receiver_paced=is_receiver_paced,
            now_ns=self._wall_clock_ns(),
            accepts_new=self._files.free_bytes() >= self.settings.segment_bytes,
        )

    def forget_source(self, source: int) -> list[Commit]:
        """Delete a source, its receivers and its messages, acknowledged or not. Staged messages are committed first.

        Args:
            source: Number of the source. Nothing of it may be appended afterwards.

        Returns:
            The commits made, whose messages of other sources must be acknowledged.

        Raises:
            DiskFull: There is no space for staged messages; nothing was deleted.
        """
        staged_bytes, commits = self.staged_bytes, []
        while staged_bytes > 0 and (commit := self.commit()) is not None:
            staged_bytes -= commit.byte_count
            commits.append(commit)
        with self._commit_lock:
            end = self._next_position
            if self._open is not None:
                end = self._open[0].position + self._open[0].records_end
        self.state.forget_source(source, end)
        with self._lock:
            self._lows.pop(source, None)
            lib.um_span_index_drop_source(self._index, source)
        return commits

    # ---- writing ----

    def append(self, source: int, sqn: int, message: bytes, received_ns: int | None = None) -> None:
        """Stage a message for the next commit.

        Args:
            source: Number of a registered source.
            sqn: Its sequence number, extended to 63 bits by the caller.
            message: The message as received, at most UM_STORE_MESSAGE_BYTES_MAX bytes.
            received_ns: Time of reception by the wall clock; None: now.

        Raises:
            StagingFull: Commit first.
            RepositoryEnded: A write or a sync failed earlier.
        """
        self._stage(source, sqn, message, received_ns, 0)

    def mark_lost(self, source: int, first_sqn: int, last_sqn: int) -> None:
        """Stage a marker: these messages are lost for good, so that nobody asks for them after a restart.

        Args:
            source: Number of a registered source.
            first_sqn: First lost sequence number.
            last_sqn: Last lost sequence number.

        Raises:
            StagingFull: Commit first.
            RepositoryEnded: A write or a sync failed earlier.
        """
        count = last_sqn - first_sqn + 1
        self._stage(source, first_sqn, count.to_bytes(8, "little"), None, lib.UM_STORE_RECORD_LOST)

    def _stage(self, source: int, sqn: int, message: bytes, received_ns: int | None, flags: int) -> None:
        self._check_usable()
        at_ns = self._wall_clock_ns() if received_ns is None else received_ns
        error = lib.um_staging_append(
            self._staging, source, sqn, at_ns, flags, ffi.from_buffer(message), len(message)
        )
        if error:
            raise _staging_error(error, len(message))

    def append_many(
        self, source: int, first_sqn: int, messages: Sequence[bytes], received_ns: int | None = None
    ) -> int:
        """Stage messages with consecutive sequence numbers.

        Args:
            source: Number of a registered source.
            first_sqn: Sequence number of the first message.
            messages: The messages as received.
            received_ns: Time of reception of all, by the wall clock; None: now.

        Returns:
            How many were staged: fewer than given if the staging ring is full.

        Raises:
            RepositoryEnded: A write or a sync failed earlier.
        """
        self._check_usable()
        if not messages:
            return 0
        at_ns = self._wall_clock_ns() if received_ns is None else received_ns
        sizes = ffi.new("uint32_t[]", [len(message) for message in messages])
        data = b"".join(messages)
        staged = lib.um_staging_append_many(
            self._staging, source, first_sqn, at_ns, ffi.from_buffer(data), sizes, len(messages)
        )
        if staged < 0:
            raise _staging_error(staged, len(messages[0]))
        return int(staged)

    def append_rows(
        self, source: int, first_sqn: int, rows: ReceivedRows, first_row: int, topic_index: int
    ) -> tuple[int, int]:
        """Stage received messages: those of one session from a row on, with consecutive sequence numbers.

        Args:
            source: Number of a registered source.
            first_sqn: Sequence number of the first message, extended to 63 bits.
            rows: The rows.
            first_row: The first row.
            topic_index: Topic index of the messages.

        Returns:
            How many were staged, none if the first row is an event or the staging ring is full; and the bytes of their
            messages.

        Raises:
            RepositoryEnded: A write or a sync failed earlier.
        """
        self._check_usable()
        staged = lib.um_staging_append_rows(
            self._staging, rows.columns, first_row, source, first_sqn, topic_index, self._staged_bytes
        )
        if staged < 0:
            raise _staging_error(staged, len(rows.message(first_row, topic_index)))
        return int(staged), int(self._staged_bytes[0])

    @property
    def staged_bytes(self) -> int:
        """Bytes that wait for a commit."""
        return int(lib.um_staging_used_bytes(self._staging))

    @property
    def staging(self) -> Any:
        """The staging ring, um_staging, for a C caller that appends."""
        return self._staging

    def flight_bytes(self, source_count: int) -> int:
        """Return the bytes that each of so many sources may have in flight, so that the staging ring cannot overflow.

        Args:
            source_count: Registered sources.
        """
        return (self.settings.staging_bytes - self.staged_bytes) // max(source_count, 1)

    def commit(self) -> Commit | None:
        """Write what is staged, at most `commit_bytes`, and wait until it has the configured durability.

        Returns:
            The commit, whose ranges may be acknowledged; None if nothing is staged.

        Raises:
            DiskFull: There is no space; call again when there is.
            RepositoryEnded: This or an earlier write or sync failed. Nothing is accepted any more.
        """
        with self._commit_lock:
            self._check_usable()
            batch = self._pending if self._pending is not None else self._seal_batch()
            if batch is None:
                return None
            self._pending = batch
            assert self._open is not None
            segment, file = self._open
            try:
                file.write(segment.records_end, ffi.buffer(batch.data, batch.bytes))
                if self.settings.durability is Durability.DISK:
                    file.sync()
            except OSError as error:
                raise self._failed("writing", error) from error
            return self._publish(batch, segment)

    def _publish(self, batch: Any, segment: Segment) -> Commit:
        with self._lock:
            if lib.um_span_index_add(self._index, segment.number, batch.ranges, batch.range_count):
                raise MemoryError("the index of the repository")
            segment.records_end += batch.bytes
            segment.last_commit = self._next_commit
        ranges = tuple(
            CommittedRange(one.source, one.first_sqn, one.last_sqn)
            for one in ffi.unpack(batch.ranges, batch.range_count)
        )
        number = self._next_commit
        self._next_commit += 1
        self._pending = None
        lib.um_staging_release(self._staging, batch.bytes)
        return Commit(number, self.settings.durability, batch.record_count, batch.bytes, ranges)

    def _seal_batch(self) -> Any:
        """Return the next batch, in a segment that has space for it; None if nothing is staged."""
        batch = ffi.new("um_store_batch *")
        while first_bytes := lib.um_staging_first_bytes(self._staging):
            if self._open is not None:
                segment = self._open[0]
                space = self.settings.segment_bytes - segment.records_end
                if space >= first_bytes:
                    with self._lock:
                        lib.um_staging_seal(
                            self._staging,
                            self._runs,
                            self._salt,
                            segment.position + segment.records_end,
                            segment.records_end,
                            self._next_commit & 0xFFFFFFFF,
                            min(space, self.settings.commit_bytes),
                            batch,
                        )
                    if batch.bytes:
                        return batch
            self._begin_segment()
        return None

    def _begin_segment(self) -> None:
        """Seal the open segment and begin the next one."""
        self._seal_open()
        segment = Segment(self._next_number, self._next_position, self._next_commit, self.settings.durability)
        file = None
        try:
            file = self._files.create(segment.name, self.settings.segment_bytes)
            write_header(file, segment, self.state.store_id, self._wall_clock_ns())
            self._files.sync_names()
        except OSError as error:
            if file is not None:
                file.close()
                self._files.remove(segment.name)
            raise self._failed("creating a segment for", error) from error
        with self._lock:
            lib.um_store_runs_clear(self._runs)
            self._open = segment, file
        self._next_number += 1
        self._next_position = segment.position + self.settings.segment_bytes

    def _seal_open(self) -> None:
        if self._open is None:
            return
        segment, file = self._open
        try:
            with self._read_lock, self._lock:
                spans, span_count = write_footer(file, segment, self._runs, 0)
                if lib.um_span_index_seal(self._index, segment.number, spans, span_count):
                    raise MemoryError("the index of the repository")
                self._segments.append(segment)
                self._sealed_count += 1
                self._open = None
        except OSError as error:
            raise self._failed("sealing a segment of", error) from error
        file.close()
        self._next_position = max(self._next_position, segment.position + segment.byte_count)

    def _failed(self, action: str, error: OSError) -> RepositoryError:
        """Return the error to raise; unless the disk is full, the repository has ended."""
        text = f"{action} {self.directory} failed: {os.strerror(error.errno or errno.EIO)}"
        if error.errno in _FULL_ERRNOS:
            return DiskFull(text, errno=error.errno or 0)
        self._ended = error
        return RepositoryEnded(text, errno=error.errno or 0)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise RepositoryError(f"{self.directory} is closed", hint="open the repository again")
        if self._ended is not None:
            raise RepositoryEnded(
                f"{self.directory} ended: {os.strerror(self._ended.errno or errno.EIO)}",
                errno=self._ended.errno or 0,
            )

    # ---- reading ----

    def ranges(self, source: int) -> list[tuple[int, int]]:
        """Return the first and last sequence number of every gapless range that is committed, in order.

        Args:
            source: Number of the source.
        """
        with self._lock:
            capacity = 64
            while True:
                found = ffi.new("um_sqn_range[]", capacity)
                count = lib.um_span_index_ranges(self._index, source, found, capacity)
                if count < 0:
                    raise MemoryError("the ranges of a source")
                if count <= capacity:
                    return [(one.first_sqn, one.last_sqn) for one in ffi.unpack(found, count)]
                capacity = count

    def low_sqn(self, source: int) -> int:
        """Return the number below which everything was dropped.

        Args:
            source: Number of the source.
        """
        with self._lock:
            return self._lows.get(source, 0)

    def newest_sqn(self, source: int) -> int | None:
        """Return the newest committed sequence number, also if it was dropped; None: there is none.

        Args:
            source: Number of the source.
        """
        ranges, low_sqn = self.ranges(source), self.low_sqn(source)
        return ranges[-1][1] if ranges else low_sqn - 1 if low_sqn else None

    def retained_bytes(self, source: int) -> int:
        """Return the bytes of the records that are kept of a source.

        Args:
            source: Number of the source.
        """
        size = ffi.new("uint64_t *")
        with self._lock:
            lib.um_span_index_size(self._index, source, size)
        return int(size[0])

    def low_within(self, source: int, max_bytes: int) -> int:
        """Return the lowest sequence number to keep of a source for at most so many bytes; 0: all of them.

        Args:
            source: Number of the source.
            max_bytes: Maximum bytes of its records.
        """
        with self._lock:
            return int(lib.um_span_index_low_within(self._index, source, max_bytes))

    def retained(self) -> tuple[int, int]:
        """Return how many messages are kept, those marked lost included, and the bytes of their records."""
        messages = byte_count = 0
        for source in self.state.sources():
            messages += sum(last - first + 1 for first, last in self.ranges(source.number))
            byte_count += self.retained_bytes(source.number)
        return messages, byte_count

    def holds(self, source: int, sqn: int) -> bool:
        """Return true if this message, or a marker that it is lost, is committed.

        Args:
            source: Number of the source.
            sqn: Sequence number.
        """
        with self._lock:
            return bool(lib.um_span_index_find(self._index, source, sqn, ffi.new("um_held_span *")))

    def read(
        self, source: int, first_sqn: int, last_sqn: int = _ALL_MESSAGES, max_bytes: int = 1 << 20
    ) -> list[StoredMessage]:
        """Return committed messages in the order of their sequence numbers.

        Args:
            source: Number of the source.
            first_sqn: First sequence number wanted.
            last_sqn: Last sequence number wanted.
            max_bytes: Stop after this many bytes of messages; at least one message is returned if there is one.

        Returns:
            The messages; those that are not held are missing. A message with damaged bytes is missing, too.
        """
        messages: list[StoredMessage] = []
        sqn = first_sqn
        while sqn <= last_sqn and max_bytes > 0:
            found = self._read_run(source, sqn, last_sqn, max_bytes)
            if found is None:
                break
            more, sqn = found
            messages += more
            max_bytes -= sum(len(one.message) + lib.UM_STORE_RECORD_HEADER_BYTES for one in more)
        return messages

    def _read_run(
        self, source: int, sqn: int, last_sqn: int, max_bytes: int
    ) -> tuple[list[StoredMessage], int] | None:
        """Return messages of the run that holds the next sqn, and the sqn to continue at; None: nothing is held."""
        held, run, next_sqn = ffi.new("um_held_span *"), ffi.new("um_store_run *"), ffi.new("uint64_t *")
        with self._read_lock:
            with self._lock:
                if not lib.um_span_index_next(self._index, source, sqn, next_sqn) or next_sqn[0] > last_sqn:
                    return None
                sqn = next_sqn[0]
                lib.um_span_index_find(self._index, source, sqn, held)
                if held.run_index == lib.UM_STORE_NO_RUN:
                    assert self._open is not None
                    segment, file = self._open
                    is_found = lib.um_store_runs_find(self._runs, source, sqn, run)
                else:
                    segment = self._segment(held.segment)
                    file = self._file_of(segment)
                    is_found = False
                end = segment.records_end
            if held.run_index != lib.UM_STORE_NO_RUN:
                part = file.read(segment.run_offset(held.run_index), held.run_count * RUN_BYTES)
                runs = ffi.from_buffer("um_store_run[]", part)
                found = lib.um_store_sorted_find(runs, len(part) // RUN_BYTES, sqn)
                is_found = found != ffi.NULL
                if is_found:
                    run[0] = found[0]
            if not is_found:
                self._note_damage(segment, 0)
                return [], min(held.last_sqn, last_sqn) + 1
            limit = min(last_sqn, run.first_sqn + run.count - 1)
            place, offset = (segment.number, run.offset, sqn), run.offset
            if (resumed := self._resumed.pop(source, None)) is not None and resumed[0] == place:
                offset = resumed[1]
            return self._walk(segment, file, end, place, offset, source, limit, max_bytes)

    def _walk(
        self,
        segment: Segment,
        file: File,
        end: int,
        place: tuple[int, int, int],
        offset: int,
        source: int,
        last_sqn: int,
        max_bytes: int,
    ) -> tuple[list[StoredMessage], int]:
        """Return messages of a run from `place` on, which is at or behind `offset`; and the sqn at which to continue.

        `place`: number of the segment, offset of the run, sqn of the first message.
        """
        sqn = place[2]
        rows = ffi.new("um_store_row[]", _READ_ROWS)
        stop, read_bytes = ffi.new("enum um_store_scan_stop *"), ffi.new("uint64_t *")
        messages: list[StoredMessage] = []
        is_damaged = False
        while sqn <= last_sqn and offset < end and max_bytes > 0:
            data = file.read(offset, min(_READ_BYTES, end - offset))
            part = part_of(data, offset, segment, self._salt, is_last=offset + len(data) >= end)
            count = lib.um_store_scan_source(part, source, sqn, last_sqn, rows, _READ_ROWS, stop, read_bytes)
            found = _ROW.iter_unpack(ffi.buffer(rows, count * _ROW.size))
            for begin, length, _, _, row_sqn, sqn_count, received_ns, flags in found:
                # Another run may have a copy of a message in between: only the next one continues this run.
                if (row_sqn > sqn and not is_damaged) or row_sqn + sqn_count <= sqn:
                    continue
                is_lost = bool(flags & _LOST)
                message = b"" if is_lost else data[begin : begin + length]
                messages.append(StoredMessage(row_sqn, received_ns, message, sqn_count if is_lost else 0))
                sqn = row_sqn + sqn_count
                max_bytes -= len(message) + lib.UM_STORE_RECORD_HEADER_BYTES
                if max_bytes <= 0:
                    behind = offset + begin + length
                    if not is_damaged and not is_lost:
                        self._resumed[source] = (*place[:2], sqn), behind + -behind % _ALIGNMENT
                    return messages, sqn
            offset += read_bytes[0]
            if stop[0] == lib.UM_STORE_SCAN_BAD or not data:
                self._note_damage(segment, offset)
                is_damaged = True
                offset, _ = next_record(file, segment, offset, end, self._salt)
        return messages, sqn if max_bytes <= 0 else last_sqn + 1

    def _note_damage(self, segment: Segment, offset: int) -> None:
        self.damage_count += 1
        self._log.write(
            (segment.name, offset),
            logging.ERROR,
            "%s has damaged bytes at offset %d: messages there are not readable",
            segment.name,
            offset,
        )

    def _segment(self, number: int) -> Segment:
        at = bisect.bisect_left(self._segments, number, key=lambda segment: segment.number)
        return self._segments[at]

    def _file_of(self, segment: Segment) -> File:
        """Return the open file of a sealed segment."""
        file = self._reading.pop(segment.number, None) or self._files.open(segment.name)
        self._reading[segment.number] = file
        if len(self._reading) > _OPEN_FILES:
            self._reading.popitem(last=False)[1].close()
        return file

    # ---- reclaiming ----

    def release(self, low_sqns: Mapping[int, int]) -> None:
        """Drop messages that every receiver has consumed, whatever the limits.

        Args:
            low_sqns: Lowest sqn to keep by number of the source.
        """
        self.state.raise_low_sqns(low_sqns)
        with self._lock:
            for source, low_sqn in low_sqns.items():
                lib.um_span_index_drop_below(self._index, source, low_sqn)
                self._lows[source] = max(low_sqn, self._lows.get(source, 0))

    def reclaim(self) -> Reclaimed:
        """Drop the oldest messages of sources above their limit, and remove segments of which nothing is kept.

        Returns:
            The files that were removed. Call it after each new segment and when the disk is full.
        """
        self._sealed_count = 0
        low_sqns = {}
        for source in self.state.sources():
            limit = source.retention_bytes or self.settings.source_bytes
            low_sqn = self.low_within(source.number, limit)
            if low_sqn > source.low_sqn:
                low_sqns[source.number] = low_sqn
        if low_sqns:
            self.release(low_sqns)
        for number in self.state.forgotten_sources():
            with self._lock:
                lib.um_span_index_drop_source(self._index, number)
        removed = self._remove_unused()
        with self._lock:
            oldest = self._segments[0].position if self._segments else self._next_position
        self.state.free_numbers(oldest)
        return Reclaimed(len(low_sqns), len(removed), sum(segment.byte_count for segment in removed))

    @property
    def needs_reclaim(self) -> bool:
        """True if a segment was sealed since the last call of `reclaim`."""
        return self._sealed_count > 0

    def _remove_unused(self) -> list[Segment]:
        """Remove the files of sealed segments of which nothing is kept."""
        with self._read_lock:
            with self._lock:
                # The newest stays: it holds the position and the commit number where the log goes on.
                removed = [segment for segment, live_bytes in self._live_bytes()[:-1] if live_bytes == 0]
                gone = {segment.number for segment in removed}
                self._segments = [segment for segment in self._segments if segment.number not in gone]
            for segment in removed:
                file = self._reading.pop(segment.number, None)
                if file is not None:
                    file.close()
                self._files.remove(segment.name)
            if removed:
                self._files.sync_names()
        return removed

    def _live_bytes(self) -> list[tuple[Segment, int]]:
        """Return each sealed segment with the bytes of the records that are kept."""
        if not self._segments:
            return []
        first = self._segments[0].number
        count = self._segments[-1].number - first + 1
        live = ffi.new("uint64_t[]", count)
        lib.um_span_index_live(self._index, first, count, live)
        return [(segment, live[segment.number - first]) for segment in self._segments]
