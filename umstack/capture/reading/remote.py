"""Captures on remote file systems: S3, GCS, HDFS and all others that Arrow opens by a URI.

A URI may have connection parameters (`s3://bucket/captures?region=eu-central-1`, or an `endpoint_override`); Arrow
reads keys from the environment. Displayed URIs have neither. Hadoop's `s3a://` is read as `s3://`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from umstack.capture.reading.errors import CaptureError, MissingCapture
from umstack.capture.reading.schema import arrow

_BUFFER_BYTES = 1 << 20
_RANGE_BYTES = 4 << 20
_GLOB = frozenset("*?[")
_HADOOP = {"s3a": "s3", "s3n": "s3"}
"""Schemes of Hadoop's file systems for stores that Arrow opens by another scheme."""


def is_remote(path: str) -> bool:
    """Return true if a path is the URI of a remote file system."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme != "file" and scheme.isalnum()


def arrow_uri(uri: str) -> str:
    """Return a URI with Arrow's name of its scheme, so that a file has one name however it is written."""
    scheme, separator, rest = uri.partition("://")
    return f"{_HADOOP.get(scheme.lower(), scheme)}{separator}{rest}"


def shown(path: str) -> str:
    """Return a path without connection parameters and keys."""
    if not is_remote(path):
        return path
    parts = urlsplit(arrow_uri(path))
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Version(NamedTuple):
    """The version of a file: another one has another length or time of change."""

    size: int
    changed_ns: int


def remote_files(uri: str, is_capture: Any) -> dict[str, Version]:
    """Return the URIs of the files that a URI names: the file itself, or those in a folder or matching a glob in its
    last part, recursively, whose names satisfy `is_capture`."""
    uri = arrow_uri(uri)
    last = posixpath.basename(urlsplit(uri).path)
    if _GLOB & set(last):
        folder = with_path(uri, posixpath.dirname(urlsplit(uri).path))
        listed = _below(folder, recursive=False)
        return {found: one for found, one in listed.items() if fnmatchcase(_name(found), last)}
    info = _info(uri)
    if info.is_file:
        return {uri: _version(info)}
    return {found: one for found, one in _below(uri, recursive=True).items() if is_capture(_name(found))}


def version_of(path: str) -> Version:
    """Return the version of a local or remote file."""
    if is_remote(path):
        return _version(_info(path))
    found = Path(path).stat()
    return Version(found.st_size, found.st_mtime_ns)


def _version(info: Any) -> Version:
    return Version(int(info.size), int(info.mtime_ns or 0))


def open_remote(uri: str) -> Any:
    """Open a file as an Arrow stream."""
    filesystem, path = filesystem_of(uri)
    try:
        return filesystem.open_input_stream(path, compression=None, buffer_size=_BUFFER_BYTES)
    except OSError as error:
        raise _unreachable(uri, error) from error


def open_ranged(uri: str, start: int) -> Any:
    """Open a file as a stream from a byte on. Only the bytes that are read are fetched, by ranges."""
    filesystem, path = filesystem_of(uri)
    try:
        file = filesystem.open_input_file(path)
        file.seek(min(start, file.size()))
        return arrow().BufferedInputStream(file, _RANGE_BYTES)
    except OSError as error:
        raise _unreachable(uri, error) from error


def _name(uri: str) -> str:
    return posixpath.basename(urlsplit(uri).path)


def with_path(uri: str, path: str) -> str:
    """Return a URI of the same file system, with its connection parameters."""
    return urlunsplit(urlsplit(uri)._replace(path=path))


def with_same_parameters(name: str, uris: Iterable[str]) -> str:
    """Return the URI of a `shown` one, with the parameters of that one of `uris` which has the same bucket or host."""
    wanted = urlsplit(name)
    for uri in uris:
        if urlsplit(shown(uri))[:2] == wanted[:2]:
            return with_path(uri, wanted.path)
    return name


def filesystem_of(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI, as Arrow opens it, and the path in it. CaptureError if Arrow cannot."""
    arrow()
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(arrow_uri(uri))
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
        raise MissingCapture(f"{shown(uri)} does not exist")
    return info


def _below(uri: str, *, recursive: bool) -> dict[str, Version]:
    from pyarrow.fs import FileSelector

    filesystem, path = filesystem_of(uri)
    try:
        found = filesystem.get_file_info(FileSelector(path, recursive=recursive))
    except OSError as error:
        raise _unreachable(uri, error) from error
    base = urlsplit(uri).path.rstrip("/")
    start = len(path.rstrip("/"))
    return {with_path(uri, base + one.path[start:]): _version(one) for one in found if one.is_file}


def _unreachable(uri: str, error: Exception) -> CaptureError:
    line = str(error).splitlines()[0]
    return CaptureError(f"{shown(uri)}: {line}", hint="docs/capture.md describes remote paths")
