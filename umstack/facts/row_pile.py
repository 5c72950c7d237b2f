"""Collects rows whose number grows with the losses of a capture. Many rows are kept in an unnamed file, not in memory.

The file is in Arrow's IPC format and is mapped, so rows are read without a copy, and the system can reclaim their
pages. It has no name: the system removes it with the process, however that ends. Rows are added before any are read.
Objects are not shared by threads.
"""

from __future__ import annotations

import mmap
import tempfile
import threading
from collections.abc import Callable, Iterator
from copy import copy
from itertools import groupby
from typing import Any
from weakref import WeakSet

import polars as pl
import pyarrow as pa

from umstack.facts.sends import large_files_folder

SLICE_ROWS = 1 << 15
"""Rows that are held in memory before they are written to the file, and rows of a slice."""

_MAPPED: WeakSet[mmap.mmap] = WeakSet()
"""The files of all piles."""
_MAPPED_LOCK = threading.Lock()

Key = tuple[Any, ...]
"""The order of rows. All keys of a pile have the same types, without None."""
Change = Callable[[pl.DataFrame], pl.DataFrame]


def in_slices(rows: pl.DataFrame, *, overlap: int = 0) -> Iterator[pl.DataFrame]:
    """Yield rows in slices, each with the first rows of the next one as an overlap. After each, pages are released."""
    for start in range(0, len(rows), SLICE_ROWS):
        yield rows.slice(start, SLICE_ROWS + overlap)
        _release_pages()


def _release_pages() -> None:
    """Release the pages of all rows in files. Those that are still used are read again."""
    with _MAPPED_LOCK:
        files = list(_MAPPED)
    for mapped in files:
        mapped.madvise(mmap.MADV_DONTNEED)


class RowPile:
    """Rows of one schema by key. The rows of a key are in one slice; rows with the key () have none."""

    def __init__(self, *, spills: bool = True) -> None:
        """Start without rows. Unless `spills`, all rows are held in memory, in one slice."""
        self.spills = spills
        self._empty: pl.DataFrame | None = None
        self._held: list[tuple[Key, pl.DataFrame]] = []
        self._held_rows = 0
        self._written: _RowFile | None = None
        self._changes: tuple[Change, ...] = ()

    @classmethod
    def of(cls, rows: pl.DataFrame) -> RowPile:
        """Return a pile that holds these rows in memory."""
        pile = cls(spills=False)
        pile.add(rows)
        return pile

    def __len__(self) -> int:
        return self._held_rows + (0 if self._written is None else self._written.rows)

    @property
    def is_in_file(self) -> bool:
        """True if rows were written to the file."""
        return self._written is not None

    @property
    def schema(self) -> pl.DataFrame:
        """The columns, without rows."""
        if self._empty is None:
            raise ValueError("nothing was added to the pile")
        return self._as_changed(self._empty)

    def add(self, rows: pl.DataFrame, key: Key = ()) -> None:
        """Add rows. Empty rows give the pile its schema."""
        if self._empty is None:
            self._empty = rows.clear()
        if not len(rows):
            return
        self._held.append((key, rows))
        self._held_rows += len(rows)
        if self.spills and self._held_rows >= SLICE_ROWS:
            self._spill()

    def add_by(self, rows: pl.DataFrame, *key: pl.Expr) -> None:
        """Add rows, each with the values of these expressions as its key."""
        names = [f"key {place}" for place in range(len(key))]
        keyed = rows.with_columns(one.alias(name) for name, one in zip(names, key, strict=True))
        self.add(rows.clear())
        for values, part in keyed.partition_by(names, as_dict=True, include_key=False).items():
            self.add(part, values)

    def changed(self, change: Change) -> RowPile:
        """Return a pile with the same rows, changed when they are read. Nothing can be added to either."""
        if self._written is not None:
            self._spill()
        other = copy(self)
        other._changes = (*self._changes, change)
        return other

    def slices(self) -> Iterator[pl.DataFrame]:
        """Yield all rows by ascending key in slices of at least `SLICE_ROWS`, except for the last; at least one slice.

        The pages of a slice in the file are released when the next one is read.
        """
        if self._written is None:
            yield self.frame()
            return
        for rows in self._read().slices():
            yield self._as_changed(rows)

    def groups(self) -> Iterator[tuple[Key, pl.DataFrame]]:
        """Yield each key and its rows, by ascending key."""
        if self._written is not None:
            for key, rows in self._read().groups():
                yield key, self._as_changed(rows)
            return
        for key, those in groupby(sorted(self._held, key=_key), _key):
            yield key, self._as_changed(pl.concat([rows for _, rows in those]))

    def frame(self) -> pl.DataFrame:
        """Return all rows by ascending key. Those in the file are mapped: memory holds them while they are used."""
        if self._written is not None:
            return self._as_changed(self._read().frame())
        if self._empty is None:
            raise ValueError("a pile without a schema has no rows")
        held = [rows for _, rows in sorted(self._held, key=_key)]
        return self._as_changed(pl.concat([self._empty, *held]) if len(held) != 1 else held[0])

    def _as_changed(self, rows: pl.DataFrame) -> pl.DataFrame:
        for change in self._changes:
            rows = change(rows)
        return rows

    def _read(self) -> _RowFile:
        assert self._written is not None
        self._spill()
        return self._written

    def _spill(self) -> None:
        by_key: dict[Key, list[pl.DataFrame]] = {}
        for key, rows in self._held:
            by_key.setdefault(key, []).append(rows)
        for key, parts in by_key.items():
            table = _compact(pl.concat(parts))
            if self._written is None:
                self._written = _RowFile(table.schema)
            self._written.write(key, table)
        self._held, self._held_rows = [], 0


class _RowFile:
    """Batches of rows in the file, and the key of each."""

    def __init__(self, schema: pa.Schema) -> None:
        self.rows = 0
        self._batches: list[tuple[Key, int, int]] = []
        """Key, number and rows of each batch."""
        self._file = tempfile.TemporaryFile(prefix="umstack-rows-", dir=large_files_folder())  # noqa: SIM115
        self._writer = pa.ipc.new_file(self._file, schema)
        self._mapped: mmap.mmap | None = None
        self._reader: pa.ipc.RecordBatchFileReader | None = None

    def write(self, key: Key, table: pa.Table) -> None:
        for batch in table.combine_chunks().to_batches():
            self._writer.write_batch(batch)
            self._batches.append((key, len(self._batches), len(batch)))
            self.rows += len(batch)

    def slices(self) -> Iterator[pl.DataFrame]:
        batches = self._in_order()
        self._open()
        numbers: list[int] = []
        waiting = 0
        for place, (key, number, rows) in enumerate(batches):
            numbers.append(number)
            waiting += rows
            is_last = place + 1 == len(batches)
            if is_last or (waiting >= SLICE_ROWS and (not key or batches[place + 1][0] != key)):
                yield self._of(numbers)
                _release_pages()
                numbers, waiting = [], 0

    def groups(self) -> Iterator[tuple[Key, pl.DataFrame]]:
        batches = self._in_order()
        self._open()
        for key, those in groupby(batches, _key):
            yield key, self._of([number for _, number, _ in those])
            _release_pages()

    def frame(self) -> pl.DataFrame:
        self._open()
        return self._of([number for _, number, _ in self._in_order()])

    def _in_order(self) -> list[tuple[Key, int, int]]:
        return sorted(self._batches, key=_key)

    def _open(self) -> None:
        if self._mapped is None:
            self._writer.close()
            self._file.flush()
            # The file lives as long as its mapping.
            self._mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            with _MAPPED_LOCK:
                _MAPPED.add(self._mapped)
            self._file.close()
            self._reader = pa.ipc.open_file(pa.py_buffer(self._mapped))

    def _of(self, numbers: list[int]) -> pl.DataFrame:
        assert self._reader is not None
        table = pa.Table.from_batches([self._reader.get_batch(number) for number in numbers])
        frame = pl.from_arrow(table, rechunk=False)
        assert isinstance(frame, pl.DataFrame)
        return frame


def _key(entry: tuple[Any, ...]) -> Key:
    key: Key = entry[0]
    return key


def _compact(rows: pl.DataFrame) -> pa.Table:
    """Return rows as an Arrow table whose text has no unused bytes, in the type that Polars maps without a copy."""
    table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    viewed = [
        field.with_type(pa.string_view()) if field.type == pa.large_string() else field
        for field in table.schema
    ]
    return table.cast(pa.schema(viewed))
