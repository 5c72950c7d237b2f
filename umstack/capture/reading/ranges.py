"""Splits of a large capture from ranges that are walked independently, in any order and on any machine.

The walk of a range starts at a guessed record (`um_capture_find`) and assumes the interfaces of the file's head, no TCP
connections and no IP fragments. `joined` follows the ranges from the start of the file: one that started where the one
before it ended, in the state that it assumed, is taken; any other is walked again. So every packet is in exactly one
split, in the state that `split` finds, whatever was guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from umstack._core import ffi, lib
from umstack.capture.reading.container import compression_of, open_window, skip
from umstack.capture.reading.ports import CapturePorts
from umstack.capture.reading.remote import version_of
from umstack.capture.reading.split import Split, walk

_HEAD_BYTES = 1 << 20
"""Bytes at the start of a file that describe its interfaces, unless it is a joint file of several."""


@dataclass(frozen=True, slots=True)
class WalkedRange:
    """A range that was walked from a guessed place."""

    begun: Split
    """Its start, in the assumed state."""
    ended: Split


def range_count(length: int, range_bytes: int) -> int:
    """Return the number of ranges of a file."""
    return max(1, -(-length // range_bytes))


def walked_range(begun: Split, number: int, range_bytes: int, ports: CapturePorts) -> WalkedRange | None:
    """Walk over a range of a file, from a guessed record to the first one behind the range.

    Args:
        begun: The start of the file.
        number: Number of the range, from 0.
        range_bytes: The length of each range.
        ports: As for `split`.

    Returns:
        The range, or None if it has to be walked from the one before it.

    Raises:
        CaptureError: The file cannot be read.
    """
    if compression_of(begun.path) is not None:
        return None
    place = begun
    if number > 0:
        head = walk(begun, min(_HEAD_BYTES, range_bytes), ports).place
        place = replace(head, start=number * range_bytes, copies=b"", streams=b"", fragments=b"")
    reader = place.new_reader(ports)
    with open_window(place.path, None, place.start) as file:
        if file.remaining <= 0 and not file.more():
            return None
        if number > 0 and not lib.um_capture_find(reader, file.data, file.length, file.at):
            return None
        place = replace(place, start=file.position)
        step = skip(reader, file, (number + 1) * range_bytes)
        ended = Split.behind(place.path, file.position, reader)
    is_exact = number == 0 or lib.um_copies_is_settled(ffi.addressof(reader, "copies"))
    return WalkedRange(place, ended) if step == lib.UM_CAPTURE_ENDED and is_exact else None


def joined(
    begun: Split, ranges: Mapping[int, WalkedRange | None], range_bytes: int, ports: CapturePorts
) -> list[Split]:
    """Return the splits of a file, one for each range in which a packet starts.

    Args:
        begun: The start of the file.
        ranges: Results of `walked_range` by number. A missing one is walked here.
        range_bytes: The length of each range.
        ports: As for `split`.

    Returns:
        The splits in file order.

    Raises:
        CaptureError: The file cannot be read.
    """
    if compression_of(begun.path) is not None:
        return [begun]
    length, place = version_of(begun.path).size, begun
    found: list[Split] = []
    for number in range(range_count(length, range_bytes) - 1):
        until = (number + 1) * range_bytes
        if place.start >= until:
            continue
        walked = ranges.get(number)
        if walked is None or walked.begun != replace(place, copies=b""):
            again = walk(place, until, ports)
            if again.step != lib.UM_CAPTURE_ENDED:
                break
            walked = WalkedRange(place, again.place)
        if walked.ended.start >= length:
            break
        found.append(replace(place, end=walked.ended.start))
        place = walked.ended
    return [*found, place]
