"""Capture files as windows of bytes: mapped when they are plain, read as a stream when compressed, or elsewhere."""

from __future__ import annotations

import gzip
import mmap
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umstack._core import ffi, lib
from umstack.capture.reading.errors import CaptureError
from umstack.capture.reading.remote import is_remote, open_remote
from umstack.capture.reading.schema import arrow
from xdp.closing import Closing

WINDOW_BYTES = 4 << 20
_READ_BYTES = 64 << 10
"""Inflated at a time: what a broken stream loses before its break is less than this."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface as its capture describes it: what is needed to read packets of it without the description."""

    link_type: int
    snap_bytes: int
    resolution: int
    offset_s: int
    name: str | None


def new_reader() -> Any:
    """A reader of the core at the beginning of a file."""
    reader = ffi.new("um_capture_reader *")
    lib.um_capture_reader_init(reader)
    return reader


def follow_streams(reader: Any, ports: tuple[int, int], stored: bytes = b"") -> None:
    """Have a reader follow TCP connections of sources at these ports, from what `stored_streams` gave on."""
    streams = ffi.addressof(reader, "streams")
    lib.um_streams_set_ports(streams, *ports)
    if not lib.um_streams_load(streams, stored, len(stored)):
        raise CaptureError("a split of another version of umstack", hint="split the capture again")


def stored_streams(reader: Any) -> bytes:
    """The TCP streams that a reader is in the middle of, for another reader that goes on behind it."""
    streams = ffi.addressof(reader, "streams")
    stored = bytearray(lib.um_streams_stored_bytes(streams))
    lib.um_streams_store(streams, ffi.from_buffer("uint8_t[]", stored), len(stored))
    return bytes(stored)


def interfaces_of(reader: Any) -> tuple[Interface, ...]:
    """The interfaces a reader knows so far."""
    return tuple(_interface(reader.interfaces[i]) for i in range(reader.interface_count))


def _interface(described: Any) -> Interface:
    name = ffi.string(described.name).decode("utf-8", "replace") or None
    return Interface(
        described.link_type, described.snap_bytes, described.resolution, described.offset_s, name
    )


def add_interface(reader: Any, interface: Interface) -> None:
    """Tell a reader of an interface that was described before the place it begins at."""
    described = ffi.new("um_capture_interface *")
    described.link_type = interface.link_type
    described.snap_bytes = interface.snap_bytes
    described.resolution = interface.resolution
    described.offset_s = interface.offset_s
    name = (interface.name or "").encode()[: lib.UM_CAPTURE_NAME_BYTES - 1]
    ffi.memmove(described.name, name, len(name))
    if lib.um_capture_add_interface(reader, described) != 0:
        raise CaptureError(f"a capture with more than {reader.interface_count} interfaces")


def compression_of(path: str | Path) -> str | None:
    """`gzip`, `zstd`, or nothing, by a file's first bytes."""
    try:
        with open_remote(str(path)) if is_remote(str(path)) else Path(path).open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise cannot_open(path, error) from error
    if magic.startswith(_GZIP_MAGIC):
        return "gzip"
    return "zstd" if magic == _ZSTD_MAGIC else None


def cannot_open(path: str | os.PathLike[str], error: OSError) -> CaptureError:
    """The error for a file the system refuses to read or write."""
    return CaptureError(f"{os.fspath(path)}: {error.strerror or error}", errno=error.errno or 0)


class Window(Closing):
    """Some bytes of a file at `data`, `length` of them, from byte `base` on; the reader has come to `at` of them."""

    __slots__ = ("at", "base", "data", "length", "problem")

    def __init__(self) -> None:
        self.data: Any = ffi.NULL
        self.length = 0
        self.base = 0
        self.at = ffi.new("uint64_t *")
        self.problem: str | None = None
        """Why a compressed stream ended early, if it did."""

    @property
    def position(self) -> int:
        """Where in the file the reader has come to."""
        return self.base + int(self.at[0])

    @property
    def remaining(self) -> int:
        """Bytes of the window the reader has not taken."""
        return self.length - int(self.at[0])

    def forget(self) -> None:
        """Give back the memory of what was read: who walks through a large file never holds all of it."""

    def more(self) -> bool:
        """Move on to later bytes of the file, keeping what the reader has not taken; false when there are none."""
        return False

    def close(self) -> None:
        """Let the file go."""


class MappedFile(Window):
    """A plain file as one window over all of it."""

    __slots__ = ("_forgotten", "_map")

    def __init__(self, path: str | Path, start: int = 0) -> None:
        """Map the file; the reader begins at `start`."""
        super().__init__()
        self._map: mmap.mmap | None = None
        self._forgotten = 0
        try:
            with Path(path).open("rb") as file:
                self.length = os.fstat(file.fileno()).st_size
                if self.length:
                    self._map = mmap.mmap(file.fileno(), self.length, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise cannot_open(path, error if isinstance(error, OSError) else OSError(str(error))) from error
        if self._map is not None:
            self._map.madvise(mmap.MADV_SEQUENTIAL)
            self.data = ffi.from_buffer("uint8_t[]", self._map)
        self.at[0] = start

    def forget(self) -> None:
        """Give back the memory of what was read: it is read again if somebody goes back."""
        read = self.position // mmap.PAGESIZE * mmap.PAGESIZE
        if self._map is not None and read > self._forgotten:
            self._map.madvise(mmap.MADV_DONTNEED, self._forgotten, read - self._forgotten)
            self._forgotten = read

    def close(self) -> None:
        """Unmap the file."""
        if self._map is not None:
            ffi.release(self.data)
            self._map.close()
            self._map = None


class StreamedFile(Window):
    """A file that is compressed, or elsewhere, as a window that moves along it."""

    __slots__ = ("_bytes", "_read", "_stream")

    def __init__(self, path: str | Path, compression: str | None) -> None:
        """Open the file; `compression` is what `compression_of` says."""
        super().__init__()
        try:
            if compression == "gzip":
                plain = open_remote(str(path)) if is_remote(str(path)) else None
                self._stream: Any = gzip.GzipFile(None if plain else path, "rb", fileobj=plain)
                # read() would give nothing of a block in which the stream breaks.
                self._read = self._stream.read1
            else:
                stream = open_remote(str(path)) if is_remote(str(path)) else arrow().OSFile(str(path))
                compressed = compression is not None
                self._stream = arrow().CompressedInputStream(stream, compression) if compressed else stream
                self._read = self._stream.read
        except OSError as error:
            raise cannot_open(path, error) from error
        self._bytes = bytearray(WINDOW_BYTES)
        self.data = ffi.from_buffer("uint8_t[]", self._bytes)

    def more(self) -> bool:
        """Read as much as fits behind what is left; a window that one record fills is doubled."""
        taken, left = int(self.at[0]), self.remaining
        if left == len(self._bytes):
            self._double()
        elif taken:
            ffi.memmove(self.data, self.data + taken, left)
        self.base += taken
        self.at[0] = 0
        self.length = left
        return self._fill()

    def _double(self) -> None:
        larger = bytearray(2 * len(self._bytes))
        larger[: len(self._bytes)] = self._bytes
        ffi.release(self.data)
        self._bytes = larger
        self.data = ffi.from_buffer("uint8_t[]", larger)

    def _fill(self) -> bool:
        if self.problem is not None:
            return False
        start = self.length
        try:
            while self.length < len(self._bytes):
                block = self._read(min(len(self._bytes) - self.length, _READ_BYTES))
                if not block:
                    break
                ffi.memmove(self.data + self.length, block, len(block))
                self.length += len(block)
        except (OSError, EOFError, zlib.error) as error:
            self.problem = str(error)
        return self.length > start

    def close(self) -> None:
        """Close the stream."""
        ffi.release(self.data)
        self._stream.close()
