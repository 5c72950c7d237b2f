"""Captures on remote file systems: S3, GCS, HDFS and all others that Arrow opens by a URI.

A URI may have connection parameters (`s3://bucket/captures?region=eu-central-1`, or an `endpoint_override`); Arrow
reads keys from the environment. Displayed URIs have neither.
"""

from __future__ import annotations

import posixpath
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from umstack.capture.reading.errors import CaptureError
from umstack.capture.reading.schema import arrow

_BUFFER_BYTES = 1 << 20
_GLOB = frozenset("*?[")


def is_remote(path: str) -> bool:
    """Return true if a path is the URI of a remote file system."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme != "file" and scheme.isalnum()


def shown(path: str) -> str:
    """Return a path without connection parameters and keys."""
    if not is_remote(path):
        return path
    parts = urlsplit(path)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def remote_files(uri: str, is_capture: Any) -> list[str]:
    """Return the URIs of the files that a URI names: the file itself, or those in a folder or matching a glob in its
    last part, recursively, whose names satisfy `is_capture`."""
    last = posixpath.basename(urlsplit(uri).path)
    if _GLOB & set(last):
        folder = with_path(uri, posixpath.dirname(urlsplit(uri).path))
        return [found for found in _below(folder, recursive=False) if fnmatchcase(_name(found), last)]
    if _info(uri).is_file:
        return [uri]
    return [found for found in _below(uri, recursive=True) if is_capture(_name(found))]


def size_of(uri: str) -> int:
    """Return the length of a file."""
    return int(_info(uri).size)


def open_remote(uri: str) -> Any:
    """Open a file as an Arrow stream."""
    filesystem, path = filesystem_of(uri)
    try:
        return filesystem.open_input_stream(path, compression=None, buffer_size=_BUFFER_BYTES)
    except OSError as error:
        raise _unreachable(uri, error) from error


def _name(uri: str) -> str:
    return posixpath.basename(urlsplit(uri).path)


def with_path(uri: str, path: str) -> str:
    """Return a URI of the same file system, with its connection parameters."""
    return urlunsplit(urlsplit(uri)._replace(path=path))


def filesystem_of(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, as Arrow opens it, and the path in it. CaptureError if Arrow cannot."""
    arrow()
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:
        raise _unreachable(uri, error) from error
    return filesystem, path


def _info(uri: str) -> Any:
    from pyarrow.fs import FileType

    filesystem, path = filesystem_of(uri)
    try:
        info = filesystem.get_file_info(path)
    except OSError as error:
        raise _unreachable(uri, error) from error
    if info.type == FileType.NotFound:
        raise CaptureError(f"{shown(uri)} does not exist")
    return info


def _below(uri: str, *, recursive: bool) -> list[str]:
    from pyarrow.fs import FileSelector

    filesystem, path = filesystem_of(uri)
    try:
        found = filesystem.get_file_info(FileSelector(path, recursive=recursive))
    except OSError as error:
        raise _unreachable(uri, error) from error
    base = urlsplit(uri).path.rstrip("/")
    return sorted(with_path(uri, base + one.path[len(path.rstrip("/")) :]) for one in found if one.is_file)


def _unreachable(uri: str, error: Exception) -> CaptureError:
    line = str(error).splitlines()[0]
    return CaptureError(f"{shown(uri)}: {line}", hint="docs/capture.md describes remote paths")
