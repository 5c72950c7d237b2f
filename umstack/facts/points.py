"""Points of capture: where packets were seen. A point is a series of files (a rotation) and one of its interfaces.

Facts identify a point by the whole path of its files, so that facts of several folders can be merged at any time:
`hostA/eth0.pcap` and `hostB/eth0.pcap` are two points. Tables and findings contain the shortest distinct names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from umstack.facts.kinds import ROTATION as ROTATION_PATTERN

_ROTATION = re.compile(ROTATION_PATTERN)
_LOCAL = re.compile(r"^file:(?://)?")
_COLUMNS = ("point", "from_point", "to_point")


def series_of(path: str) -> str:
    """Return the path that the files of a rotation have in common: without the rotation's suffix."""
    folder, separator, name = _LOCAL.sub("", path).rpartition("/")
    return f"{folder}{separator}{_ROTATION.sub('', name)}"


def point_name(path: str, interface: str | None) -> str:
    """Return the point of capture of a packet in a file. A "/" in the name of an interface becomes "_"."""
    series = series_of(path)
    return f"{series}:{interface.replace('/', '_')}" if interface else series


def points(batch: pa.RecordBatch) -> pa.Array:
    """Return the points of capture of packets of one file."""
    series = series_of(batch.column("capture_file")[0].as_py())
    interfaces = batch.column("interface_name")
    if interfaces.null_count == len(interfaces):
        return pa.repeat(series, len(interfaces))
    named = pc.replace_substring(interfaces.cast(pa.string()), "/", "_")
    has_name = pc.not_equal(pc.fill_null(named, ""), "")
    return pc.if_else(has_name, pc.binary_join_element_wise(series, named, ":"), series)


def short_names(wanted: Iterable[str], taken: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a short name for each point: the shortest end of its path that no other point's files have.

    Names in `taken` (short names by point) are kept: a point that is added later gets a longer name than one before.
    """
    names = dict(taken or {})
    files = {point: _file_of(point) for point in names.keys() | set(wanted)}
    used = {_file_of(short) for short in names.values()}
    fixed = {files[point]: _file_of(short) for point, short in names.items()}
    lengths = dict.fromkeys(files.values(), 1) | dict.fromkeys(fixed, 0)
    while True:
        ends: dict[str, list[str]] = {}
        for file, length in lengths.items():
            if length:
                ends.setdefault(_end(file, length), []).append(file)
        longer = [
            file
            for end, those in ends.items()
            if len(those) > 1 or end in used
            for file in those
            if _end(file, lengths[file]) != file
        ]
        if not longer:
            break
        for file in longer:
            lengths[file] += 1
    for point, file in files.items():
        if point not in names:
            short = fixed.get(file) or _end(file, lengths[file])
            names[point] = short + point[len(file) :]
    return names


def renamed(table: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    """Return the table with these names of points."""
    present = [name for name in _COLUMNS if name in table.columns]
    if not len(table) or not present:
        return table
    return table.with_columns(pl.col(present).replace(names))


def points_in(tables: Iterable[pl.DataFrame]) -> set[str]:
    """Return all points of tables."""
    found: set[str] = set()
    for table in tables:
        for name in _COLUMNS:
            if name in table.columns:
                found.update(table[name].drop_nulls().unique().to_list())
    return found


def _file_of(point: str) -> str:
    """Return the path of a point without the name of the interface."""
    folder, separator, name = point.rpartition("/")
    return f"{folder}{separator}{name.partition(':')[0]}"


def _end(file: str, length: int) -> str:
    """Return the last parts of a path, as many as `length`."""
    return "/".join(file.split("/")[-length:])
