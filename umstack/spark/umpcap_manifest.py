"""Manifests: the splits of large captures, found once by workers and kept in a folder of the driver's host.

A manifest belongs to one version of a file (path, length, time of change) and to the options that its splits depend on.
A capture that changes gets another one. Manifests that were not used for a month are removed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import metadata
from itertools import filterfalse
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from umstack._core import ffi
from umstack.capture import CaptureError, Interface, Split, split
from umstack.capture.reading.capture_files import capture_files, is_compressed_name, remote_versions
from umstack.capture.reading.ranges import WalkedRange, joined, range_count, walked_range
from umstack.capture.reading.remote import Version, is_remote, shown, version_of
from umstack.facts.packed import from_ipc, ipc
from umstack.spark.umpcap_parts import UmpcapOptions
from umstack.spark.umpcap_tasks import CapturePart

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_SUFFIX = ".splits"
_DIGEST_BYTES = 32
"""A manifest starts with the SHA-256 of the rest."""
_KEPT_SECONDS = 30 * 24 * 3600
_TASKS_PER_CORE = 4
_Made = TypeVar("_Made")
_INTERFACE = [
    *(("link_type", pa.int32()), ("snap_bytes", pa.int64()), ("resolution", pa.int32())),
    *(("offset_s", pa.int64()), ("name", pa.string())),
]
_SPLITS = pa.schema(
    [
        *(("path", pa.string()), ("start", pa.int64()), ("end", pa.int64()), ("format", pa.int32())),
        *(("swapped", pa.bool_()), ("section_first", pa.int64())),
        *(("interfaces", pa.list_(pa.struct(_INTERFACE))), ("hardware_times", pa.bool_())),
        *(("streams", pa.binary()), ("fragments", pa.binary()), ("copies", pa.binary())),
    ]
)
# Splits contain these structures of the core as bytes.
_STATE_BYTES = tuple(map(ffi.sizeof, ("um_streams", "um_fragments", "um_copies")))


def find_splits(spark: SparkSession, paths: Sequence[str], **options: str) -> int:
    """Find the splits of large captures on the workers, and keep them for later reads.

    The ranges of a file are walked at the same time (umstack.capture.reading.ranges). A read finds splits that are not
    kept itself, on the driver's host, one after another.

    Args:
        spark: The session.
        paths: Captures, as for `load`.
        options: The options of the later reads (docs/spark.md).

    Returns:
        The number of captures whose splits were found; 0 if all are known or small.

    Raises:
        CaptureError: An option is wrong, or there are no captures.

    Example:
        >>> from umstack.spark import find_splits
        >>> find_splits(spark, ["captures/"])    # doctest: +SKIP
        12
    """
    chosen = UmpcapOptions.of({**options, "path": "captures"})
    versions = {file: _version(file) for file in capture_files(filterfalse(is_remote, paths))}
    versions |= remote_versions(paths)
    wanted = [
        file
        for file, version in versions.items()
        if _is_large(file, version, chosen) and _kept(file, version, chosen) is None
    ]
    if not wanted:
        return 0
    parallelism = spark.sparkContext.defaultParallelism * _TASKS_PER_CORE

    def walked(range_of_file: tuple[int, int]) -> tuple[int, tuple[int, WalkedRange | None]]:
        file, number = range_of_file
        begun = _whole(wanted[file], chosen)
        return file, (number, _readable(walked_range, begun, number, chosen.target_bytes, chosen.ports))

    def stored(ranges: Iterable[tuple[int, WalkedRange | None]], file: int) -> bytes | None:
        begun = _whole(wanted[file], chosen)
        splits = _readable(joined, begun, dict(ranges), chosen.target_bytes, chosen.ports)
        return None if splits is None else _stored(splits)

    numbers = [
        (file, number)
        for file, path in enumerate(wanted)
        for number in range(range_count(versions[path].size, chosen.target_bytes))
    ]
    ranges = spark.sparkContext.parallelize(numbers, min(len(numbers), parallelism)).map(walked)
    by_file = ranges.groupByKey(min(len(wanted), parallelism))
    many = by_file.map(lambda of_file: (of_file[0], stored(of_file[1], of_file[0]))).collect()
    for file, manifest in many:
        if manifest is not None:
            _keep(wanted[file], versions[wanted[file]], chosen, manifest)
    _remove_old(chosen.manifest_folder)
    return len(many)


def _readable(make: Callable[..., _Made], *arguments: object) -> _Made | None:
    """Return None for a file that cannot be read, because the read of it reports the reason."""
    try:
        return make(*arguments)
    except CaptureError:
        return None


def parts_of(file: str, options: UmpcapOptions, version: Version | None = None) -> list[CapturePart]:
    """Return the parts of a file: its kept splits if there are any, otherwise it is split now.

    A remote file, whose `version` is known from a listing, is then one part, because the driver would have to fetch it.
    """
    version = version or _version(file)
    if not _is_large(file, version, options):
        return [CapturePart(_whole(file, options), size_bytes=version.size)]
    splits = _kept(file, version, options)
    if splits is None and is_remote(file):
        return [CapturePart(_whole(file, options), size_bytes=options.target_bytes)]
    if splits is None:
        splits = _split(file, options)
        _keep(file, version, options, _stored(splits))
        _remove_old(options.manifest_folder)
    return [CapturePart(one, size_bytes=(one.end or version.size) - one.start) for one in splits]


def _whole(file: str, options: UmpcapOptions) -> Split:
    return Split(file, hardware_times=options.hardware_times)


def _split(file: str, options: UmpcapOptions) -> list[Split]:
    return split(file, options.target_bytes, options.ports, hardware_times=options.hardware_times)


def _version(file: str) -> Version:
    with suppress(OSError):
        return version_of(file)
    # The read reports a file that was removed.
    return Version(0, 0)


def _is_large(file: str, version: Version, options: UmpcapOptions) -> bool:
    return version.size > options.target_bytes and not is_compressed_name(file)


def _path(file: str, version: Version, options: UmpcapOptions) -> Path:
    named = (shown(file), *version, metadata.version("umstack"), _STATE_BYTES)
    key = repr((*named, options.target_bytes, options.ports.tcp, options.ports.store, options.hardware_times))
    return options.manifest_folder / (hashlib.sha256(key.encode()).hexdigest()[:32] + _SUFFIX)


def _kept(file: str, version: Version, options: UmpcapOptions) -> list[Split] | None:
    with suppress(OSError):
        path = _path(file, version, options)
        content = path.read_bytes()
        if content[:_DIGEST_BYTES] != _digest(content[_DIGEST_BYTES:]):
            _LOG.warning("%s is damaged: splitting %s again", path, file)
            return None
        os.utime(path)
        # The parameters of a URI may be others today.
        return [replace(_loaded(row), path=file) for row in from_ipc(content[_DIGEST_BYTES:]).to_pylist()]
    return None


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _loaded(row: dict[str, Any]) -> Split:
    interfaces = tuple(Interface(**one) for one in row.pop("interfaces"))
    return Split(**row, interfaces=interfaces)


def _stored(splits: list[Split]) -> bytes:
    # Manifests contain no keys.
    rows = [{**asdict(one), "path": shown(one.path)} for one in splits]
    return ipc(pa.Table.from_pylist(rows, schema=_SPLITS))


def _keep(file: str, version: Version, options: UmpcapOptions, stored: bytes) -> None:
    """Write a manifest, atomically: several drivers may write the same one."""
    try:
        path = _path(file, version, options)
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{os.getpid()}")
        written.write_bytes(_digest(stored) + stored)
        written.replace(path)
    except OSError as error:
        _LOG.warning("the splits of %s are not kept: %s", file, error)


def _remove_old(folder: Path) -> None:
    oldest = time.time() - _KEPT_SECONDS
    for path in folder.glob("*"):
        with suppress(OSError):
            if path.stat().st_mtime < oldest:
                path.unlink()
