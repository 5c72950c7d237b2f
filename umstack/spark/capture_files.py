"""The capture files that files, folders and globs name, each once."""

from __future__ import annotations

import glob
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from umstack.capture import CaptureError

# Rotation may put its number behind the suffix (tcpdump -W) and compression another behind that.
_CAPTURE_NAME = re.compile(r"\.(?:pcap|pcapng|cap)\d*(?:\.gz|\.zst)?$", re.IGNORECASE)
_COMPRESSED_NAME = re.compile(r"\.(?:gz|zst)$", re.IGNORECASE)


def capture_files(paths: Iterable[str]) -> list[str]:
    """The files, sorted by name. In folders, and whatever lies below them, those that are named like captures."""
    found: set[str] = set()
    for path in paths:
        named = _expanded(path.removeprefix("file://").removeprefix("file:"))
        if not named:
            raise CaptureError(
                f"{path} names no capture", hint="name files, folders that hold *.pcap or *.pcapng, or a glob"
            )
        found.update(named)
    return sorted(found)


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
    """Whether the name says that the file is compressed."""
    return _COMPRESSED_NAME.search(path) is not None


def copies(files: Iterable[str]) -> dict[str, str]:
    """Files with the same content as an earlier one, and which. Only files of equal length are read to find out."""
    by_length: dict[int, list[str]] = {}
    for file in files:
        by_length.setdefault(Path(file).stat().st_size, []).append(file)
    found: dict[str, str] = {}
    for length, candidates in by_length.items():
        if length == 0 or len(candidates) == 1:
            continue
        first_with: dict[bytes, str] = {}
        for file in candidates:
            original = first_with.setdefault(_digest(file), file)
            if original != file:
                found[file] = original
    return found


def _digest(path: str) -> bytes:
    with Path(path).open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").digest()
