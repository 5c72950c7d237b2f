"""Records of a file transfer: one message each, a fixed header and a body by kind (docs/file-transfer.md).

    magic "UF" | version u8 | kind u8 | entry u32 | transfer u64 | body                     big endian

`entry` counts the directories, links and files of the transfer from 1; the records of one file share its number.
Decoding copies nothing: a chunk's data and a path are views into the message.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar

from umstack.files.errors import RecordError

MAGIC = 0x5546
VERSION = 1
HEADER = struct.Struct(">HBBIQ")
CHUNK_OFFSET = struct.Struct(">Q")
CHUNK_HEADER_BYTES = HEADER.size + CHUNK_OFFSET.size
REASON_BYTES_MAX = 1024
DIGEST_BYTES = 32

_DIRECTORY = struct.Struct(">Iq")
_LINK = struct.Struct(">H")
_FILE_BEGIN = struct.Struct(">QIq")
_FILE_END = struct.Struct(">32s")
_TREE_END = struct.Struct(">QQQQ32s")


class Kind(IntEnum):
    """Base class of the records."""

    TREE_BEGIN = 1
    DIRECTORY = 2
    LINK = 3
    FILE_BEGIN = 4
    CHUNK = 5
    FILE_END = 6
    FILE_ABANDONED = 7
    TREE_END = 8


@dataclass(frozen=True, slots=True)
class TreeBegin:
    """Starts a transfer."""

    KIND: ClassVar = Kind.TREE_BEGIN

    def body(self) -> bytes:
        """Return the record without its header."""
        return b""


@dataclass(frozen=True, slots=True)
class Directory:
    """A complete directory: its entries were sent before this record."""

    KIND: ClassVar = Kind.DIRECTORY
    path: bytes
    mode: int
    mtime_ns: int

    def body(self) -> bytes:
        """Return the record without its header."""
        return _DIRECTORY.pack(self.mode, self.mtime_ns) + self.path


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link."""

    KIND: ClassVar = Kind.LINK
    path: bytes
    target: bytes

    def body(self) -> bytes:
        """Return the record without its header."""
        return _LINK.pack(len(self.path)) + self.path + self.target


@dataclass(frozen=True, slots=True)
class FileBegin:
    """Starts a regular file; `size_bytes` in chunks follow."""

    KIND: ClassVar = Kind.FILE_BEGIN
    path: bytes
    size_bytes: int
    mode: int
    mtime_ns: int

    def body(self) -> bytes:
        """Return the record without its header."""
        return _FILE_BEGIN.pack(self.size_bytes, self.mode, self.mtime_ns) + self.path


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes of the current file. The sender packs this record in place, next to the data."""

    KIND: ClassVar = Kind.CHUNK
    offset: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class FileEnd:
    """Completes the current file, with its SHA-256."""

    KIND: ClassVar = Kind.FILE_END
    sha256: bytes

    def body(self) -> bytes:
        """Return the record without its header."""
        return _FILE_END.pack(self.sha256)


@dataclass(frozen=True, slots=True)
class FileAbandoned:
    """Aborts the current file, which could not be read to its end."""

    KIND: ClassVar = Kind.FILE_ABANDONED
    reason: str

    def body(self) -> bytes:
        """Return the record without its header."""
        return self.reason.encode("utf-8", "replace")[:REASON_BYTES_MAX]


@dataclass(frozen=True, slots=True)
class TreeEnd:
    """Completes the transfer, with its counts and the digest of its manifest (umstack/files/manifest.py)."""

    KIND: ClassVar = Kind.TREE_END
    file_count: int
    directory_count: int
    link_count: int
    byte_count: int
    manifest_sha256: bytes

    def body(self) -> bytes:
        """Return the record without its header."""
        return _TREE_END.pack(
            self.file_count, self.directory_count, self.link_count, self.byte_count, self.manifest_sha256
        )


Record = TreeBegin | Directory | Link | FileBegin | Chunk | FileEnd | FileAbandoned | TreeEnd
PackedRecord = TreeBegin | Directory | Link | FileBegin | FileEnd | FileAbandoned | TreeEnd


def encode(transfer: int, entry: int, record: PackedRecord) -> bytes:
    """Return the message that carries a record."""
    return HEADER.pack(MAGIC, VERSION, record.KIND, entry, transfer) + record.body()


def write_chunk_header(out: memoryview, transfer: int, entry: int, offset: int) -> None:
    """Write the header of a chunk to `out`; its data starts at CHUNK_HEADER_BYTES."""
    HEADER.pack_into(out, 0, MAGIC, VERSION, Kind.CHUNK, entry, transfer)
    CHUNK_OFFSET.pack_into(out, HEADER.size, offset)


def decode_header(message: memoryview) -> tuple[int, int, int]:
    """Return transfer, entry and kind of a message. Raises RecordError if it is not a record."""
    if len(message) < HEADER.size:
        raise RecordError(f"a message of {len(message)} bytes is no file record")
    magic, version, kind, entry, transfer = HEADER.unpack_from(message)
    if magic != MAGIC:
        raise RecordError("the message is no file record")
    if version != VERSION:
        raise RecordError(f"file records of version {version} are not understood, only version {VERSION}")
    return transfer, entry, kind


def decode_body(kind: int, message: memoryview) -> Record:
    """Parse the record after its header. Raises RecordError if it is invalid."""
    body = message[HEADER.size :]
    try:
        return _decode(kind, body)
    except (struct.error, ValueError) as error:
        raise RecordError(f"a file record of kind {kind} with {len(body)} bytes makes no sense") from error


def _decode(kind: int, body: memoryview) -> Record:
    match kind:
        case Kind.CHUNK:
            return Chunk(CHUNK_OFFSET.unpack_from(body)[0], body[CHUNK_OFFSET.size :])
        case Kind.FILE_BEGIN:
            size_bytes, mode, mtime_ns = _FILE_BEGIN.unpack_from(body)
            return FileBegin(bytes(body[_FILE_BEGIN.size :]), size_bytes, mode, mtime_ns)
        case Kind.FILE_END:
            return FileEnd(*_FILE_END.unpack(body))
        case Kind.FILE_ABANDONED:
            return FileAbandoned(bytes(body[:REASON_BYTES_MAX]).decode("utf-8", "replace"))
        case Kind.DIRECTORY:
            mode, mtime_ns = _DIRECTORY.unpack_from(body)
            return Directory(bytes(body[_DIRECTORY.size :]), mode, mtime_ns)
        case Kind.LINK:
            return _decode_link(body)
        case Kind.TREE_BEGIN:
            return TreeBegin()
        case Kind.TREE_END:
            return TreeEnd(*_TREE_END.unpack(body))
    raise RecordError(f"there is no file record of kind {kind}")


def _decode_link(body: memoryview) -> Link:
    (length,) = _LINK.unpack_from(body)
    path, target = bytes(body[_LINK.size :][:length]), bytes(body[_LINK.size + length :])
    if len(path) != length:
        raise ValueError("the path ends early")
    return Link(path, target)
