"""Splits: parts of a large capture that can be decoded separately, in any order and on any machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from umstack._core import lib
from umstack.capture.reading.container import (
    Interface,
    MappedFile,
    add_interface,
    compare_copies,
    compression_of,
    follow_streams,
    hold_fragments,
    interfaces_of,
    new_reader,
    open_window,
    skip,
    stored_copies,
    stored_fragments,
    stored_streams,
)
from umstack.capture.reading.ports import CapturePorts
from umstack.capture.reading.remote import is_remote

SPLIT_BYTES_DEFAULT = 256 << 20


@dataclass(frozen=True, slots=True)
class Split:
    """A part of a capture file, from one packet boundary to another, with the state that its packets need.

    A split can be pickled. `end` is None in the last split of a file: it extends to the end.
    """

    path: str
    start: int = 0
    end: int | None = None
    format: int = lib.UM_CAPTURE_UNKNOWN
    swapped: bool = False
    section_first: int = 0
    interfaces: tuple[Interface, ...] = ()
    streams: bytes = b""
    """State of the TCP streams at its start."""
    hardware_times: bool = False
    """Packets have the time of the capture hardware where there is one, not that of the capturing program."""
    fragments: bytes = b""
    """IP fragments before its start whose datagrams are incomplete there: those belong to this split."""
    copies: bytes = b""
    """The packets before its start, of which its first packets may be copies."""

    def new_reader(self, ports: CapturePorts | None = None) -> Any:
        """Return a reader of the core in the state of a reader of the whole file at the start of this split."""
        reader = new_reader()
        ranges = ports or CapturePorts()
        follow_streams(reader, (*ranges.tcp, *ranges.store), self.streams)
        hold_fragments(reader, self.fragments)
        compare_copies(reader, self.copies)
        reader.hardware_times = self.hardware_times
        reader.format = self.format
        reader.swapped = self.swapped
        reader.section_first = self.section_first
        for interface in self.interfaces:
            add_interface(reader, interface)
        return reader

    @classmethod
    def behind(cls, path: str, start: int, reader: Any) -> Split:
        """Return the split that starts at a reader's position."""
        return cls(
            path,
            start,
            format=reader.format,
            hardware_times=bool(reader.hardware_times),
            swapped=bool(reader.swapped),
            section_first=reader.section_first,
            interfaces=interfaces_of(reader),
            streams=stored_streams(reader),
            fragments=stored_fragments(reader),
            copies=stored_copies(reader),
        )


def split(
    path: str | os.PathLike[str],
    target_bytes: int = SPLIT_BYTES_DEFAULT,
    ports: CapturePorts | None = None,
    *,
    hardware_times: bool = False,
) -> list[Split]:
    """Cut a capture file into splits; every packet is in exactly one.

    A datagram in IP fragments belongs to the split of its last fragment.

    Cuts are found by walking from packet to packet, because no bytes mark a packet boundary reliably. A compressed or
    remote file, and a file that is not a capture, is one split.

    Args:
        path: The capture file.
        target_bytes: Approximate size of a split, 1 or more.
        ports: The ports used to decode the splits, because TCP streams are followed on the way; None: the defaults.
        hardware_times: Use the times of the capture hardware, as in `decode`.

    Returns:
        The splits in file order; decode() reads each.

    Raises:
        ValueError: `target_bytes` is below 1.
        UmError: The file cannot be read.

    Example:
        ```python
        for part in umstack.capture.split("day.pcapng"):
            print(sum(batch.num_rows for batch in umstack.capture.decode(part)))
        ```
    """
    if target_bytes < 1:
        raise ValueError(f"target_bytes is {target_bytes}: use 1 or more")
    name = os.fspath(path)
    if is_remote(name) or compression_of(name) is not None:
        return [Split(name, hardware_times=hardware_times)]
    return list(_walk(Split(name, hardware_times=hardware_times), target_bytes, ports))


class Walk(NamedTuple):
    """The end of a walk along a file, its reason, and the length of the file's content as far as it was read."""

    place: Split
    step: int
    length: int
    problem: str | None = None
    """The reason why a compressed file ended early."""


def walk(place: Split, until: int, ports: CapturePorts | None = None) -> Walk:
    """Walk from a place in a file to the first packet at or after `until`, or to the end of the last complete packet.

    The resulting place contains the interfaces, TCP streams and IP fragments that later packets refer to.
    """
    reader = place.new_reader(ports)
    with open_window(place.path, compression_of(place.path), place.start) as file:
        if file.remaining <= 0 and not file.more():
            return Walk(place, lib.UM_CAPTURE_ENDED, file.base + file.length, file.problem)
        step = skip(reader, file, until)
        position, length, problem = file.position, file.base + file.length, file.problem
    return Walk(Split.behind(place.path, position, reader), step, length, problem)


def _walk(begun: Split, target_bytes: int, ports: CapturePorts | None) -> Iterator[Split]:
    path, reader = begun.path, begun.new_reader(ports)
    with MappedFile(path) as file:
        until = target_bytes
        while until < file.length:
            step = lib.um_capture_skip(reader, file.data, file.length, until, file.at)
            if step != lib.UM_CAPTURE_ENDED or file.remaining == 0:
                break
            yield replace(begun, end=file.position)
            begun = Split.behind(path, file.position, reader)
            until = file.position + target_bytes
            file.forget()
    yield begun
