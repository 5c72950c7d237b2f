"""Captures that are not on this machine's file systems: S3, GCS, HDFS and what else Arrow reaches by a URI.

A URI may have what is needed to get there (`s3://bucket/captures?region=eu-central-1`, or an `endpoint_override`); keys
come from the environment, as Arrow takes them. What is shown of a URI has neither.
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
    """Whether a path is a URI of another place than this machine's file systems."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme != "file" and scheme.isalnum()


def shown(path: str) -> str:
    """A path without what only says how to get there, keys among it."""
    if not is_remote(path):
        return path
    parts = urlsplit(path)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def remote_files(uri: str, is_capture: Any) -> list[str]:
    """The URIs of the files that a URI names: itself, or of a folder, or by a glob in its last part, those for whose
    names `is_capture` holds, and whatever lies below."""
    last = posixpath.basename(urlsplit(uri).path)
    if _GLOB & set(last):
        folder = _with_path(uri, posixpath.dirname(urlsplit(uri).path))
        return [found for found in _below(folder, recursive=False) if fnmatchcase(_name(found), last)]
    if _info(uri).is_file:
        return [uri]
    return [found for found in _below(uri, recursive=True) if is_capture(_name(found))]


def size_of(uri: str) -> int:
    """The length of a file."""
    return int(_info(uri).size)


def open_remote(uri: str) -> Any:
    """A file as a stream of Arrow's."""
    filesystem, path = _filesystem(uri)
    try:
        return filesystem.open_input_stream(path, compression=None, buffer_size=_BUFFER_BYTES)
    except OSError as error:
        raise _unreachable(uri, error) from error


def _name(uri: str) -> str:
    return posixpath.basename(urlsplit(uri).path)


def _with_path(uri: str, path: str) -> str:
    return urlunsplit(urlsplit(uri)._replace(path=path))


def _filesystem(uri: str) -> tuple[Any, str]:
    arrow()
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(uri)
    except (OSError, ValueError) as error:
        raise _unreachable(uri, error) from error
    return filesystem, path


def _info(uri: str) -> Any:
    from pyarrow.fs import FileType

    filesystem, path = _filesystem(uri)
    try:
        info = filesystem.get_file_info(path)
    except OSError as error:
        raise _unreachable(uri, error) from error
    if info.type == FileType.NotFound:
        raise CaptureError(f"{shown(uri)} is not there")
    return info


def _below(uri: str, *, recursive: bool) -> list[str]:
    from pyarrow.fs import FileSelector

    filesystem, path = _filesystem(uri)
    try:
        found = filesystem.get_file_info(FileSelector(path, recursive=recursive))
    except OSError as error:
        raise _unreachable(uri, error) from error
    base = urlsplit(uri).path.rstrip("/")
    return sorted(_with_path(uri, base + one.path[len(path.rstrip("/")) :]) for one in found if one.is_file)


def _unreachable(uri: str, error: Exception) -> CaptureError:
    line = str(error).splitlines()[0]
    return CaptureError(f"{shown(uri)}: {line}", hint="docs/capture.md says how places elsewhere are named")
