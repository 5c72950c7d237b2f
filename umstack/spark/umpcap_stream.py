"""`spark.readStream.format("umpcap")`: a growing folder of captures, each packet exactly once.

The offset of a query is the position read in each file, in bytes, always between two packets. A file that still grows
is read up to its last complete packet. A range of offsets always names the same bytes, so a batch that Spark repeats
after a restart has the same rows; Spark's checkpoint does the rest. The offset also contains the files that are copies
of others and the notes on each file: a restarted reader gets both, because Spark first passes it the last offset.

Positions in compressed files are those of the content. The driver inflates such a file to find its last packet. The
offset has the version of the file, so a complete one is inflated once. A file that rotation compresses after it was
read is not read again (umstack.spark.umpcap_siblings). A remote file is read whole when it appears, by one task, or by
several if `find_splits` has found its splits before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from umstack.capture import CaptureError, NoteKind, Split, decode
from umstack.capture.reading.capture_files import capture_files, remote_versions
from umstack.capture.reading.errors import MissingCapture
from umstack.capture.reading.remote import Version, is_remote, shown, version_of, with_same_parameters
from umstack.capture.reading.split import Walk, walk
from umstack.spark.umpcap_copies import SIGNIFICANT_BYTES, Copies, copies_among
from umstack.spark.umpcap_manifest import parts_of
from umstack.spark.umpcap_notes import (
    COPY,
    Ages,
    Notes,
    copy_note,
    ending_note,
    inflation_note,
    no_copy_note,
    replaced_note,
)
from umstack.spark.umpcap_parts import PartReader, UmpcapOptions
from umstack.spark.umpcap_siblings import Packed, begun_at, sibling_names, siblings_to_skip
from umstack.spark.umpcap_tasks import CapturePart, CaptureTask, packed_tasks

_LOG = logging.getLogger(__name__)
_UNENDING = 2**63
_CHUNK_BYTES_LEAST, _CHUNKS = 64 << 10, 256
_PEEKED = 64


class UmpcapStreamReader(DataSourceStreamReader):
    """Reads the captures as they grow."""

    def __init__(self, schema: StructType, options: UmpcapOptions) -> None:
        self._reader = PartReader(schema, options, of_stream=True)
        self._options = options
        # Read positions already reached, by file and byte offset. A restarted query reads up to them again.
        self._places: dict[str, dict[int, Split]] = {}
        # The last offset that Spark has used.
        self._known = self.initialOffset()
        self._warned: set[tuple[str, str]] = set()
        self._packed = Packed()
        # The ends of compressed files, by version.
        self._inflated: dict[str, tuple[Version, Walk]] = {}
        self._last_versions: dict[str, Version] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the start of every file."""
        return {"files": {}, "copies": {}, "notes": {}, "inflated": {}}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the last complete packet of every file, the copies that are not read, and the notes."""
        known = self._known["files"]
        local, remote = self._local_files(), self._remote_files()
        packed = self._packed.among(local)
        plain = {file: found for file, found in local.items() if file not in packed}
        sizes = {file: found.st_size for file, found in plain.items()}
        known_copies = {file: (copy[0], copy[1]) for file, copy in self._known.get("copies", {}).items()}
        # Find copies before the other files' ends are read: the originals then have at least the bytes of the copies.
        copies = copies_among(sizes, known, known_copies)
        at = {file: begun_at(file, known, local) for file in local}
        walks = {file: self._frontier(file) for file in plain if file not in copies}
        # A file that rotation has just removed keeps its position: a compressed one may continue it.
        plain_ends = {
            file: at[file] if walked is None else walked.place.start for file, walked in walks.items()
        }

        left = self._options.trigger_bytes or _UNENDING
        versions = {file: Version(local[file].st_size, local[file].st_mtime_ns) for file in packed}
        if "inflated" not in self._known:
            # The offset is of an earlier version, which read no compressed files: these may be rotated, read before.
            self._known["inflated"] = {file: list(one) for file, one in versions.items() if not at[file]}
        ends, left = self._packed_ends(versions, at, left)
        remote_ends, left = _remote_ends(remote, known, left)
        ends |= remote_ends
        ends |= plain_ends if self._options.trigger_bytes is None else self._bounded(plain_ends, at, left)
        walks |= {
            file: walked for file, (_, walked) in self._inflated.items() if ends[file] == walked.place.start
        }

        ages = Ages(local)
        notes: dict[str, Notes] = {file: _copy_note(copies, file, sizes, ages) for file in copies}
        notes |= {file: _ending(walked, ages) for file, walked in walks.items() if walked is not None}
        replaced = (file for file, version in remote.items() if known.get(file, version.size) != version.size)
        notes |= {file: replaced_note() for file in replaced}
        return {
            "files": dict(sorted(ends.items())),
            "copies": dict(sorted(copies.items())),
            "notes": self._notes(notes, ends),
            "inflated": {
                file: list(version)
                for file, version in sorted(versions.items())
                if self._is_inflated(file, version, ends[file])
            },
        }

    def _is_inflated(self, file: str, version: Version, end: int) -> bool:
        """Return true if all of this version of a compressed file was read at `end`: there is nothing more in it."""
        if self._known.get("inflated", {}).get(file) == list(version):
            return True
        inflated, walked = self._inflated.get(file, (None, None))
        return (
            inflated == version and walked is not None and (walked.place.start, walked.problem) == (end, None)
        )

    def _local_files(self) -> dict[str, os.stat_result]:
        """Return the files of file systems with their status, without those whose content another one has."""
        paths = [path for path in self._options.paths if not is_remote(path)]

        def listed() -> dict[str, os.stat_result]:
            with suppress(CaptureError):  # the folder may exist before its first capture
                return _stats(capture_files(paths))
            return {}

        found = listed()
        gone = [file for file in self._known["files"] if file not in found and not is_remote(file)]
        if any(not found.keys() & sibling_names(file) for file in gone):
            # A listing may miss a file that replaces another one while the folder is read.
            found = listed()
        skipped = siblings_to_skip(set(found), self._known["files"])
        return {file: status for file, status in found.items() if file not in skipped}

    def _remote_files(self) -> dict[str, Version]:
        """Return the remote files, named without parameters, with their versions."""
        found: dict[str, Version] = {}
        for path in filter(is_remote, self._options.paths):
            with suppress(MissingCapture):  # as above
                found |= {shown(file): version for file, version in remote_versions([path]).items()}
        return found

    def _packed_ends(
        self, versions: dict[str, Version], at: dict[str, int], left: int
    ) -> tuple[dict[str, int], int]:
        """Return the ends of compressed files, and how many of `left` bytes of content they leave. Oldest first."""
        self._inflated = {file: one for file, one in self._inflated.items() if versions.get(file) == one[0]}
        # One that is being written would be inflated from its start each time.
        growing = {file for file, version in self._last_versions.items() if versions.get(file) != version}
        self._last_versions = versions
        ends = {file: at[file] for file in versions}
        for file, version in sorted(versions.items(), key=lambda one: (one[1].changed_ns, one[0])):
            if left <= 0 or (file in growing and at[file]) or self._is_inflated(file, version, -1):
                continue
            if file not in self._inflated and (walked := self._frontier(file)) is not None:
                self._inflated[file] = (version, walked)
            if file in self._inflated:
                ends[file] = self._inflated[file][1].place.start
                # A file that became shorter is read from its start.
                left -= ends[file] - (at[file] if at[file] <= ends[file] else 0)
        return ends, left

    def _bounded(self, ends: dict[str, int], begun: dict[str, int], most_bytes: int) -> dict[str, int]:
        """Bound the bytes to read, oldest packets of all files first: no file gets ahead of the others in time."""
        at = {file: begun[file] if begun[file] <= end else 0 for file, end in ends.items()}
        chunk = max(_CHUNK_BYTES_LEAST, most_bytes // _CHUNKS)
        waiting = [(self._next_time(file, at[file]), file) for file in ends if at[file] < ends[file]]
        heapify(waiting)
        left = most_bytes
        while waiting and left > 0:
            _, file = heappop(waiting)
            reached = self._walk(self._place(file, at[file]), min(at[file] + chunk, ends[file])).place
            left -= reached.start - at[file]
            at[file] = reached.start
            self._places[file][reached.start] = reached
            if reached.start < ends[file]:
                heappush(waiting, (self._next_time(file, reached.start), file))
        return at

    def _next_time(self, file: str, position: int) -> int:
        """Return the time of the next packet of a file that has one; 0 without any."""
        place = self._place(file, position)
        for batch in decode(replace(place, end=None), batch_rows=_PEEKED):
            times = batch.column("time_ns").drop_null()
            if len(times):
                return int(times[0].as_py())
            break
        return 0

    def _warn(self, notes: dict[str, Notes]) -> None:
        """Log the notes that become no row."""
        for file, kinds in notes.items():
            for kind, (text, _) in kinds.items():
                if kind in (NoteKind.DAMAGED, NoteKind.NOT_A_CAPTURE) and (file, kind) not in self._warned:
                    self._warned.add((file, kind))
                    _LOG.warning("%s: %s", file, text)

    def _notes(self, notes: dict[str, Notes], ends: dict[str, int]) -> dict[str, Notes]:
        """Return the earlier notes on existing files, and new ones."""
        if not self._options.notes:
            self._warn(notes)
            return {}
        noted: dict[str, Notes] = {}
        for file, now in sorted(notes.items()):
            became_shorter = ends.get(file, 0) < self._known["files"].get(file, 0)
            before = {} if became_shorter else self._known.get("notes", {}).get(file, {})
            if COPY in before and file in ends:
                before = before | no_copy_note()
            if every := now | before:
                noted[file] = every
        return noted

    def _frontier(self, file: str) -> Walk | None:
        """Walk to the end of the last complete packet; None if the file was removed."""
        places = self._places.setdefault(file, {0: self._begun(file)})
        try:
            walked = self._walk(places[max(places)], _UNENDING)
            if walked.length < max(places):
                # A different file with the same name.
                places.clear()
                places[0] = self._begun(file)
                walked = self._walk(places[0], _UNENDING)
        except (CaptureError, OSError):
            if Path(file).exists():
                raise
            # Rotation removed the file after the listing.
            self._places.pop(file)
            return None
        places[walked.place.start] = walked.place
        return walked

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[CaptureTask]:
        """Return the data written between two offsets, split into parts, and the notes added between them."""
        self._known = end
        parts = _note_parts(start.get("notes", {}), end.get("notes", {}))
        for file, last in end["files"].items():
            first = begun_at(file, start["files"], end["files"])
            if is_remote(file):
                parts += self._remote_parts(file, first, last)
                continue
            # A file that became shorter is a different one and is read from its start.
            parts += self._parts(file, first if first <= last else 0, last)
        return packed_tasks(parts, self._options.target_bytes)

    def _parts(self, file: str, first: int, last: int) -> Iterator[CapturePart]:
        if first == last:
            return
        place = self._place(file, first)
        if self._packed.is_packed(file, Path(file).stat()):
            yield CapturePart(replace(place, end=last), size_bytes=last - first)
            return
        while place.start < last:
            until = min(place.start + self._options.target_bytes, last)
            following = self._walk(place, until).place
            if following.start == place.start:
                raise CaptureError(f"{file} has changed: byte {last} was read before and is not there now")
            yield CapturePart(replace(place, end=following.start), size_bytes=following.start - place.start)
            place = following

    def _remote_parts(self, file: str, first: int, last: int) -> Iterator[CapturePart]:
        """Return the kept splits of a remote file, or the whole file: the driver does not fetch it to split it."""
        if first == last:
            return
        uri = with_same_parameters(file, self._options.paths)
        version = version_of(uri)
        # A file that was replaced since it was listed is read whole.
        found = parts_of(uri, self._options, version if version.size == last else Version(last, 0))
        yield from (replace(one, is_whole=True) for one in found)

    def _begun(self, file: str) -> Split:
        return Split(file, hardware_times=self._options.hardware_times)

    def _walk(self, place: Split, until: int) -> Walk:
        return walk(place, until, self._options.ports)

    def _place(self, file: str, position: int) -> Split:
        places = self._places.setdefault(file, {0: self._begun(file)})
        if position not in places:
            nearest = max(known for known in places if known <= position)
            places[position] = self._walk(places[nearest], position).place
        return places[position]

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the places before the start of the next partitions; a walk from the file's start finds them."""
        for file, position in end["files"].items():
            places = self._places.get(file, {})
            for older in [known for known in places if 0 < known < position]:
                del places[older]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Decode a partition."""
        if not isinstance(partition, CaptureTask):
            raise TypeError(f"{type(partition).__name__} is not a part of a capture")
        batches: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return batches


def _stats(files: list[str]) -> dict[str, os.stat_result]:
    """Return the status of the files; those removed by rotation are left out."""
    found: dict[str, os.stat_result] = {}
    for file in files:
        with suppress(FileNotFoundError):
            found[file] = Path(file).stat()
    return found


def _remote_ends(remote: dict[str, Version], known: dict[str, int], left: int) -> tuple[dict[str, int], int]:
    """Return the ends of remote files, and how many of `left` bytes they leave. Oldest first; each is read once."""
    ends: dict[str, int] = {}
    for file, version in sorted(remote.items(), key=lambda one: (one[1].changed_ns, one[0])):
        if file in known:
            ends[file] = known[file]
        elif left > 0 and version.size:
            ends[file] = version.size
            left -= version.size
    return ends, left


def _copy_note(copies: Copies, file: str, sizes: dict[str, int], ages: Ages) -> Notes:
    """The note on a copy; none yet if it is still being written, or only shares the beginning of another file."""
    original, compared = copies[file]
    is_whole = sizes.get(original, compared) == compared
    is_certain = is_whole and compared >= SIGNIFICANT_BYTES
    return copy_note(original, is_whole) if is_certain or ages.is_over(file) else {}


def _ending(walked: Walk, ages: Ages) -> Notes:
    path = walked.place.path
    with suppress(CaptureError, OSError):
        if walked.problem is not None and ages.is_over(path):
            return inflation_note(walked.problem, walked.length)
        return ending_note(path, walked.step, walked.place.start, walked.length, ages.is_over(path))
    # The file was removed in the meantime.
    return {}


def _note_parts(before: dict[str, Notes], after: dict[str, Notes]) -> list[CapturePart]:
    """Parts that consist only of the notes added between two offsets."""
    return [
        CapturePart(Split(file), text, position)
        for file, kinds in after.items()
        for kind, (text, position) in kinds.items()
        # A file restarted under the same name may have the same kind of note for other bytes.
        if tuple(before.get(file, {}).get(kind, ())) != (text, position)
    ]
