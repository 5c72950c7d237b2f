"""Capture files as windows of bytes: plain files are mapped, compressed and remote ones are streamed."""

from __future__ import annotations

import gzip
import io
import mmap
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from umstack._core import ffi, lib
from umstack.capture.reading.errors import CaptureError
from umstack.capture.reading.remote import is_remote, open_ranged, open_remote
from umstack.capture.reading.schema import arrow
from umstack_xdp.closing import Closing

WINDOW_BYTES = 4 << 20
_READ_BYTES = 64 << 10
"""Bytes inflated at a time: a damaged stream loses less than this before the damage."""
_FREE_BYTES = 4 << 20
"""Bytes of content that a compressed file may have whatever its length."""
_EXPANSION_MAX = 500
"""Maximum bytes of content per compressed byte. Captures of messages of zeros reach 160 with gzip, 390 with zstd."""
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE, _ZSTD_SKIPPABLE_FIRST = b"\x2a\x4d\x18", 0x50


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface as its capture describes it, as needed to read its packets without the description."""

    link_type: int
    snap_bytes: int
    resolution: int
    offset_s: int
    name: str | None


def new_reader() -> Any:
    """Return a reader of the core for the start of a file."""
    reader = ffi.new("um_capture_reader *")
    lib.um_capture_reader_init(reader)
    return reader


_OTHER_VERSION = "the split was made by another version of umstack"


def follow_streams(reader: Any, ports: tuple[int, int, int, int], stored: bytes = b"") -> None:
    """Let a reader follow TCP connections of sources and Stores at these two ranges of ports, from the state of
    `stored_streams` on.
    """
    streams = ffi.addressof(reader, "streams")
    lib.um_streams_set_ports(streams, *ports)
    if not lib.um_streams_load(streams, stored, len(stored)):
        raise CaptureError(_OTHER_VERSION, hint="split the capture again")


def stored_streams(reader: Any) -> bytes:
    """Return the state of a reader's TCP streams, for another reader that continues after it."""
    streams = ffi.addressof(reader, "streams")
    stored = bytearray(lib.um_streams_stored_bytes(streams))
    lib.um_streams_store(streams, ffi.from_buffer("uint8_t[]", stored), len(stored))
    return bytes(stored)


def hold_fragments(reader: Any, stored: bytes) -> None:
    """Let a reader continue the incomplete datagrams of `stored_fragments`."""
    if not lib.um_fragments_load(ffi.addressof(reader, "fragments"), stored, len(stored)):
        raise CaptureError(_OTHER_VERSION, hint="split the capture again")


def stored_fragments(reader: Any) -> bytes:
    """Return the fragments of a reader's incomplete datagrams, for another reader that continues after it."""
    fragments = ffi.addressof(reader, "fragments")
    stored = bytearray(lib.um_fragments_stored_bytes(fragments))
    lib.um_fragments_store(fragments, ffi.from_buffer("uint8_t[]", stored), len(stored))
    return bytes(stored)


def compare_copies(reader: Any, stored: bytes) -> None:
    """Let a reader compare packets with those of `stored_copies`."""
    if not lib.um_copies_load(ffi.addressof(reader, "copies"), stored, len(stored)):
        raise CaptureError(_OTHER_VERSION, hint="split the capture again")


def stored_copies(reader: Any) -> bytes:
    """Return the packets of which a reader's next ones may be copies, for another reader that continues after it."""
    copies = ffi.addressof(reader, "copies")
    stored = bytearray(lib.um_copies_stored_bytes(copies))
    lib.um_copies_store(copies, ffi.from_buffer("uint8_t[]", stored), len(stored))
    return bytes(stored)


def interfaces_of(reader: Any) -> tuple[Interface, ...]:
    """Return the interfaces that a reader has found so far."""
    return tuple(_interface(reader.interfaces[i]) for i in range(reader.interface_count))


def _interface(described: Any) -> Interface:
    name = ffi.string(described.name).decode("utf-8", "replace") or None
    return Interface(
        described.link_type, described.snap_bytes, described.resolution, described.offset_s, name
    )


def add_interface(reader: Any, interface: Interface) -> None:
    """Add an interface that the file describes before the reader's start."""
    described = ffi.new("um_capture_interface *")
    described.link_type = interface.link_type
    described.snap_bytes = interface.snap_bytes
    described.resolution = interface.resolution
    described.offset_s = interface.offset_s
    name = (interface.name or "").encode()[: lib.UM_CAPTURE_NAME_BYTES - 1]
    ffi.memmove(described.name, name, len(name))
    if lib.um_capture_add_interface(reader, described) != 0:
        raise CaptureError(f"the capture has more than {reader.interface_count} interfaces")


def compression_of(path: str | Path) -> str | None:
    """Return `gzip`, `zstd` or None, by the first bytes of a file."""
    try:
        with open_remote(str(path)) if is_remote(str(path)) else Path(path).open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise cannot_open(path, error) from error
    if magic.startswith(_GZIP_MAGIC):
        return "gzip"
    # pzstd writes a frame to skip in front of each frame of data.
    is_skippable = magic[1:] == _ZSTD_SKIPPABLE and magic[0] >> 4 == _ZSTD_SKIPPABLE_FIRST >> 4
    return "zstd" if magic == _ZSTD_MAGIC or is_skippable else None


def cannot_open(path: str | os.PathLike[str], error: OSError) -> CaptureError:
    """Return the error for a file that cannot be read or written."""
    return CaptureError(f"{os.fspath(path)}: {error.strerror or error}", errno=error.errno or 0)


class Window(Closing):
    """`length` bytes of a file at `data`, from byte `base` on. The reader is at offset `at` in the window."""

    __slots__ = ("at", "base", "data", "length", "problem")

    def __init__(self) -> None:
        self.data: Any = ffi.NULL
        self.length = 0
        self.base = 0
        self.at = ffi.new("uint64_t *")
        self.problem: str | None = None
        """The reason why a compressed stream ended early, or empty."""

    @property
    def position(self) -> int:
        """The reader's position in the file."""
        return self.base + int(self.at[0])

    @property
    def remaining(self) -> int:
        """Bytes of the window that the reader has not read."""
        return self.length - int(self.at[0])

    def has_zeros_only(self) -> bool:
        """Return true if all unread bytes of the file are zeros. Then it has read to the end."""
        while True:
            for at in range(int(self.at[0]), self.length, _READ_BYTES):
                if any(bytes(ffi.buffer(self.data + at, min(_READ_BYTES, self.length - at)))):
                    return False
            self.at[0] = self.length
            if not self.more():
                return True

    def forget(self) -> None:
        """Release the memory of the bytes read, so that a large file is never held whole."""

    def more(self) -> bool:
        """Advance to later bytes of the file, keeping the unread ones. Return false at the end."""
        return False

    def close(self) -> None:
        """Close the file."""


class MappedFile(Window):
    """A plain file as one window over all of it."""

    __slots__ = ("_forgotten", "_map")

    def __init__(self, path: str | Path, start: int = 0) -> None:
        """Map the file; the reader starts at `start`."""
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
        """Release the memory of the bytes read; they are read again on access."""
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


def open_window(path: str, compression: str | None, start: int = 0) -> Window:
    """Open a file at byte `start` of its content; `compression` is the result of `compression_of`."""
    if compression is not None or is_remote(path):
        return StreamedFile(path, compression, start)
    return MappedFile(path, start)


def content_head(path: str, count: int) -> bytes:
    """Return the first bytes of the content of a file."""
    with open_window(path, compression_of(path)) as window:
        window.more()
        return bytes(ffi.buffer(window.data, min(count, window.length))) if window.length else b""


def skip(reader: Any, window: Window, until: int) -> int:
    """Skip records until one starts at or behind byte `until`; return the step of the core that ended this."""
    while True:
        at = max(0, until - window.base)
        step = lib.um_capture_skip(reader, window.data, window.length, at, window.at)
        window.forget()
        if step != lib.UM_CAPTURE_INCOMPLETE or not window.more():
            return int(step)


class CountedFile(io.RawIOBase):
    """A local or remote file that counts the bytes read. Remote ones have no position of their own."""

    def __init__(self, path: str | Path) -> None:
        """Open it."""
        super().__init__()
        self.read_bytes = 0
        self._file: Any = open_remote(str(path)) if is_remote(str(path)) else io.FileIO(path)

    def readable(self) -> bool:
        """Return true."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into the buffer. Returns the number of bytes, 0 at the end."""
        count = int(self._file.readinto(buffer))
        self.read_bytes += count
        return count

    def close(self) -> None:
        """Close the file."""
        if not self.closed:
            self._file.close()
        super().close()


class StreamedFile(Window):
    """A compressed or remote file as a moving window.

    A compressed file that expands more than captures do is not read to its end.
    """

    __slots__ = ("_bytes", "_compressed", "_read", "_stream")

    def __init__(self, path: str | Path, compression: str | None, start: int = 0) -> None:
        """Open the file at byte `start` of its content; `compression` is the result of `compression_of`."""
        super().__init__()
        try:
            self._compressed = None if compression is None else CountedFile(path)
            if compression == "gzip":
                self._stream: Any = gzip.GzipFile(fileobj=self._compressed, mode="rb")
                # read() would return no data of a damaged block.
                self._read = self._stream.read1
            else:
                self._stream = (
                    open_ranged(str(path), start)
                    if self._compressed is None
                    else arrow().CompressedInputStream(self._compressed, compression)
                )
                self._read = self._stream.read
        except OSError as error:
            raise cannot_open(path, error) from error
        self._bytes = bytearray(WINDOW_BYTES)
        self.data = ffi.from_buffer("uint8_t[]", self._bytes)
        if compression is None:
            self.base = start
        else:
            self._skip_to(start)

    def _skip_to(self, start: int) -> None:
        """Inflate and discard what is before `start`."""
        while self.position < start and self.more():
            self.at[0] = min(start - self.base, self.length)

    def more(self) -> bool:
        """Read as much as fits after the unread bytes; double the window if one record fills it."""
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
                if self._expands_too_much():
                    self.problem = (
                        f"it expands more than {_EXPANSION_MAX}-fold; decompress it first to read all of it"
                    )
                    break
        except (OSError, EOFError, zlib.error) as error:
            self.problem = str(error)
        return self.length > start

    def _expands_too_much(self) -> bool:
        content_bytes, compressed = self.base + self.length, self._compressed
        return (
            compressed is not None
            and content_bytes > _FREE_BYTES
            and content_bytes > _EXPANSION_MAX * compressed.read_bytes
        )

    def close(self) -> None:
        """Close the stream."""
        ffi.release(self.data)
        self._stream.close()
        if self._compressed is not None:
            self._compressed.close()
