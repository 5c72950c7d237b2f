"""`spark.readStream.format("umpcap")`: a folder of captures that grows, each packet exactly once.

The offset of a query is how far each file was read, in bytes, always between two packets. A file that still grows is
read up to its last whole packet. A range of offsets names the same bytes for ever, so that what Spark does again after
a restart gives the same rows, and its checkpoint does the rest.

Compressed files are left alone: who compresses what rotated has written would have its packets counted twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from umstack._core import lib
from umstack.capture import CaptureError, Split
from umstack.capture.container import MappedFile, interfaces_of
from umstack.spark.capture_files import capture_files, is_compressed_name
from umstack.spark.umpcap import CapturePart, PartReader, UmpcapOptions

_LOG = logging.getLogger(__name__)
_UNENDING = 2**63


def walk(place: Split, until: int) -> Split:
    """From one place of a file to the first packet at or behind `until`, or to the end of the last whole packet.

    The result begins there and knows what its packets need to know of the interfaces before it.
    """
    reader = place.new_reader()
    with MappedFile(place.path, place.start) as file:
        if file.length <= place.start:
            return place
        step = lib.um_capture_skip(reader, file.data, file.length, until, file.at)
        position = file.position
    if step in (lib.UM_CAPTURE_FOREIGN, lib.UM_CAPTURE_DAMAGED):
        what = "is no capture" if step == lib.UM_CAPTURE_FOREIGN else f"is damaged at byte {position}"
        _LOG.warning("%s %s: nothing behind that is read", place.path, what)
    return replace(
        place,
        start=position,
        format=reader.format,
        swapped=bool(reader.swapped),
        section_first=reader.section_first,
        interfaces=interfaces_of(reader),
    )


class UmpcapStreamReader(DataSourceStreamReader):
    """Follows the captures as they grow."""

    def __init__(self, schema: StructType, options: UmpcapOptions) -> None:
        self._reader = PartReader(schema, options)
        self._options = options
        # Places that have been walked to, by file and byte; a restarted query walks to them again.
        self._places: dict[str, dict[int, Split]] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Nothing of any file."""
        return {"files": {}}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The end of the last whole packet of every file there is now."""
        try:
            files = capture_files(self._options.paths)
        except CaptureError:
            # The folder is there before its first capture is.
            return {"files": {}}
        ends = {file: self._frontier(file) for file in files if not is_compressed_name(file)}
        return {"files": {file: end for file, end in ends.items() if end is not None}}

    def _frontier(self, file: str) -> int | None:
        """The end of the last whole packet; None if the file went away."""
        places = self._places.setdefault(file, {0: Split(file)})
        try:
            if Path(file).stat().st_size < max(places):
                # Another file under the same name.
                places.clear()
                places[0] = Split(file)
            place = walk(places[max(places)], _UNENDING)
        except (CaptureError, OSError):
            if Path(file).exists():
                raise
            # Rotation removed it between the listing and now.
            self._places.pop(file)
            return None
        places[place.start] = place
        return place.start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[CapturePart]:
        """What was written between two offsets, cut into parts."""
        parts: list[CapturePart] = []
        for file, last in end["files"].items():
            first = start["files"].get(file, 0)
            # A file that became shorter is another one and begins anew.
            parts += self._parts(file, first if first <= last else 0, last)
        return parts

    def _parts(self, file: str, first: int, last: int) -> Iterator[CapturePart]:
        if first == last:
            return
        place = self._place(file, first)
        while place.start < last:
            until = min(place.start + self._options.target_bytes, last)
            following = walk(place, until)
            if following.start == place.start:
                raise CaptureError(f"{file} has changed: byte {last} was read before and is not there now")
            yield CapturePart(replace(place, end=following.start))
            place = following

    def _place(self, file: str, position: int) -> Split:
        places = self._places.setdefault(file, {0: Split(file)})
        if position not in places:
            nearest = max(known for known in places if known <= position)
            places[position] = walk(places[nearest], position)
        return places[position]

    def commit(self, end: dict[str, Any]) -> None:
        """Forget the places before those that the next partitions begin at; from the start one can always walk."""
        for file, position in end["files"].items():
            places = self._places.get(file, {})
            for older in [known for known in places if 0 < known < position]:
                del places[older]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Decode a partition."""
        if not isinstance(partition, CapturePart):
            raise TypeError(f"{type(partition).__name__} is not a part of a capture")
        batches: Iterator[pa.RecordBatch] = self._reader.read(partition)
        return batches
