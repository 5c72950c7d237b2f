"""Finds the capture files of given files, folders and globs, each once."""

from __future__ import annotations

import glob
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from umstack.capture.reading.container import compression_of
from umstack.capture.reading.errors import CaptureError
from umstack.capture.reading.remote import Version, is_remote, remote_files, version_of

# Rotation may append a number to the suffix (tcpdump -W), and compression another suffix.
_CAPTURE_NAME = re.compile(r"\.(?:pcap|pcapng|cap|erf)\d*(?:\.gz|\.zst)?$", re.IGNORECASE)
_COMPRESSED_NAME = re.compile(r"\.(?:gz|zst)$", re.IGNORECASE)
_GZIP_LENGTH_BYTES = 4
_BLOCK_BYTES = 256 << 10
_END_BYTES = 4096


def capture_files(paths: Iterable[str]) -> list[str]:
    """Return the files, sorted by name. Folders are searched recursively for names of captures.

    Remote files (umstack.capture.reading.remote) are URIs.
    """
    found: set[str] = set()
    for path in paths:
        if is_remote(path):
            found.update(remote_files(path, _CAPTURE_NAME.search))
            continue
        named = _expanded(path.removeprefix("file://").removeprefix("file:"))
        if not named:
            raise CaptureError(
                f"{path}: no capture found",
                hint="name files, folders that hold *.pcap or *.pcapng, or a glob",
            )
        found.update(named)
    return sorted(found)


def remote_versions(paths: Iterable[str]) -> dict[str, Version]:
    """Return the remote files among `capture_files`, with their versions, by one listing of each folder."""
    found: dict[str, Version] = {}
    for path in filter(is_remote, paths):
        found |= remote_files(path, _CAPTURE_NAME.search)
    return found


def total_bytes(files: Iterable[str]) -> int:
    """Return the total length of the files."""
    return sum(version_of(file).size for file in files)


def _expanded(path: str) -> set[str]:
    # A file may have a name that looks like a glob.
    matches = [path] if Path(path).exists() else glob.glob(path, recursive=True)  # noqa: PTH207 (absolute globs)
    files: set[str] = set()
    for match in map(Path, matches):
        inside = (
            [match]
            if match.is_file()
            else (one for one in match.rglob("*") if _CAPTURE_NAME.search(one.name))
        )
        files.update(str(one.resolve()) for one in inside if one.is_file())
    return files


def is_compressed_name(path: str) -> bool:
    """Return true if the name is that of a compressed file."""
    return _COMPRESSED_NAME.search(path) is not None


def uncompressed_name(path: str) -> str:
    """Return a name without the suffix of a compression."""
    return _COMPRESSED_NAME.sub("", path)


def copies(files: Iterable[str]) -> dict[str, str]:
    """Return files with the same content as another one, compressed or not, with the name of that one.

    Only files of equal length and equal first and last bytes are read for it; compressed ones only with a file of the
    same name without the compression, or with one of the length that gzip stores.
    """
    # Remote files are not fetched for a comparison.
    listed = [file for file in files if not is_remote(file)]
    found = _same_bytes(listed)
    return found | _same_content([file for file in listed if file not in found])


def _same_bytes(files: list[str]) -> dict[str, str]:
    lengths = {file: Path(file).stat().st_size for file in files}
    by_length = _grouped([file for file in files if lengths[file]], lengths.__getitem__)
    # Rotation makes files of equal length. Only files whose ends are equal, too, are read whole.
    by_ends = [same for alike in by_length for same in _grouped(alike, _ends)]
    found: dict[str, str] = {}
    for first, *others in (same for alike in by_ends for same in _grouped(alike, _digest)):
        found.update(dict.fromkeys(others, first))
    return found


def _grouped(files: list[str], mark: Callable[[str], Hashable]) -> list[list[str]]:
    """Return the groups of several files with the same mark."""
    groups: dict[Hashable, list[str]] = {}
    for file in files:
        groups.setdefault(mark(file), []).append(file)
    return [group for group in groups.values() if len(group) > 1]


def _ends(path: str) -> bytes:
    """Return the first and last bytes of a file."""
    with Path(path).open("rb", buffering=0) as file:
        head = file.read(_END_BYTES)
        file.seek(max(0, file.seek(0, 2) - _END_BYTES))
        return head + file.read(_END_BYTES)


def _digest(path: str) -> bytes:
    with Path(path).open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _same_content(files: list[str]) -> dict[str, str]:
    """Return compressed files with the content of an earlier file; plain files, which can be split, come first."""
    kinds = {file: compression_of(file) for file in files}
    alike: dict[str | int, list[str]] = {}
    found: dict[str, str] = {}
    for file in sorted(files, key=lambda file: (kinds[file] is not None, file)):
        marks = _marks(file, kinds[file])
        candidates = dict.fromkeys(one for mark in marks for one in alike.get(mark, ()))
        compressed = kinds[file]
        if compressed is not None:
            same = (one for one in candidates if _inflate_alike(one, kinds[one], file, compressed))
            if (original := next(same, None)) is not None:
                found[file] = original
                continue
        for mark in marks:
            alike.setdefault(mark, []).append(file)
    return found


def _marks(path: str, compression: str | None) -> list[str | int]:
    """Return marks that files of the same content may share: name and length, of which gzip stores 32 bits."""
    marks: list[str | int] = [uncompressed_name(Path(path).name)]
    with Path(path).open("rb") as file:
        length = file.seek(0, 2)
        if compression is None:
            marks.append(length % 2**32)
        elif compression == "gzip" and length >= _GZIP_LENGTH_BYTES:
            file.seek(-_GZIP_LENGTH_BYTES, 2)
            marks.append(int.from_bytes(file.read(), "little"))
    return marks


def _inflate_alike(one: str, one_kind: str | None, other: str, other_kind: str | None) -> bool:
    """Return true if two files have the same content. Return false for a damaged stream."""
    try:
        with _content(one, one_kind) as first, _content(other, other_kind) as second:
            while (block := _block(first)) == _block(second):
                if not block:
                    return True
    except (OSError, EOFError, zlib.error):
        return False
    return False


def _content(path: str, compression: str | None) -> Any:
    """Open the content of a file as a stream."""
    if compression == "gzip":
        return gzip.GzipFile(path, "rb")
    return pa.input_stream(path, compression=compression)


def _block(stream: Any) -> bytes:
    """Read a whole block, unless the stream ends."""
    block = b""
    while len(block) < _BLOCK_BYTES and (more := stream.read(_BLOCK_BYTES - len(block))):
        block += more
    return block
