"""Parquet parts: a journal's rows, written to files partitioned by day and session.

A part contains a range of a journal's offsets, or the rows of one day and session in it. Its name is
part-JOURNAL-FIRST-END.parquet. It is written under a hidden name, synced to disk and renamed, so a reader never sees an
incomplete one. The progress file is updated only when all parts of a range exist; a process killed before that writes
the same range again, with the same names and rows.

Progress never passes the end of the journal: a range of the journal is synced to disk before progress covers it, so a
crash of the machine leaves the journal at least as long. If the journal is shorter nevertheless (restored from a
backup), writing continues at its end, and new parts have another JOURNAL in their names.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from umstack.recorder.disk import sync_path
from umstack.recorder.errors import RecorderError
from umstack.recorder.journal import JournalReader, arrow
from umstack.recorder.tables import Table

if TYPE_CHECKING:
    import pyarrow

_LOG = logging.getLogger(__name__)
PART_ROWS = 1_000_000
PART_BYTES = 128 << 20
_PROGRESS_NAME = "parquet-progress.json"
TOPIC_INDEX = r"\[\d+\]$"
"""The end of a source's name that is not part of the session's."""
_NS_PER_DAY = 86_400_000_000_000


@dataclass(slots=True)
class _Progress:
    """The next offset of each table to write to Parquet, stored beside its journals."""

    path: Path
    journal_id: str
    offsets: dict[str, int]
    ids: dict[str, str] = field(default_factory=dict)
    """Ids of tables whose journal became shorter."""

    @classmethod
    def load(cls, directory: Path) -> _Progress:
        path = directory / _PROGRESS_NAME
        try:
            fields = json.loads(path.read_text())
            offsets = {str(k): int(v) for k, v in fields["offsets"].items()}
            ids = {str(k): str(v) for k, v in fields.get("ids", {}).items()}
            return cls(path, str(fields["journal"]), offsets, ids)
        except FileNotFoundError:
            progress = cls(path, secrets.token_hex(4), {})
            progress.save()
            return progress
        except (ValueError, KeyError, TypeError) as error:
            raise RecorderError(
                f"{path} is damaged: {error}", hint="restore it, or start in a new directory"
            ) from error

    def save(self) -> None:
        text = json.dumps({"journal": self.journal_id, "offsets": self.offsets, "ids": self.ids})
        replace_file(self.path, text.encode())

    def id_of(self, table: str) -> str:
        """Return the JOURNAL in the names of a table's parts."""
        return self.ids.get(table, self.journal_id)

    def restart(self, table: str, end: int) -> None:
        """Continue a table at the end of its journal, which is before the stored offset."""
        self.ids[table] = secrets.token_hex(4)
        self.offsets[table] = end
        self.save()


class PartWriter:
    """Writes the parts of one table. One thread at a time."""

    def __init__(self, table: Table, journals: Path, out: Path, progress: _Progress) -> None:
        self.table = table
        self._reader = JournalReader(journals / table.name)
        self._out = out / table.name
        self._progress = progress
        self.part_count = 0
        self._remove_unfinished()
        stored, end = progress.offsets.get(table.name, 0), self._reader.end
        if stored > end:
            _LOG.warning(
                "the journal of %s ends at row %d, but rows up to %d are in Parquet: part of the journal was lost; "
                "recording continues at its end",
                table.name,
                end,
                stored,
            )
            progress.restart(table.name, end)

    @property
    def _id(self) -> str:
        return self._progress.id_of(self.table.name)

    @property
    def written(self) -> int:
        """The first offset that is not in Parquet yet."""
        return max(self._progress.offsets.get(self.table.name, 0), self._reader.start)

    @property
    def waiting(self) -> int:
        """Number of rows that are not in Parquet yet."""
        return self._reader.end - self.written

    @property
    def waiting_bytes(self) -> int:
        """Approximate size of the rows that are not in Parquet yet."""
        return self._reader.size_bytes(self.written)

    def write_next(self, rows_maximum: int, bytes_maximum: int) -> int:
        """Write the next range; returns the number of rows, 0 if there are none."""
        start = self.written
        end = self._interrupted_end(start)
        batches = self._take(start, end, rows_maximum, bytes_maximum)
        if not batches:
            return 0
        pa = arrow()
        rows = pa.Table.from_batches(batches)
        end = start + rows.num_rows
        try:
            self._write_parts(rows, f"part-{self._id}-{start:020d}-{end:020d}.parquet")
            self._reader.sync_before(end)
            self._progress.offsets[self.table.name] = end
            self._progress.save()
        except OSError as error:
            raise RecorderError(
                f"writing {self._out}: {error.strerror or error}", errno=error.errno or 0
            ) from error
        return int(rows.num_rows)

    def forget_written(self) -> None:
        """Release the journal's segments that are in Parquet."""
        self._reader.truncate(self.written)

    def _take(
        self, start: int, end: int | None, rows_maximum: int, bytes_maximum: int
    ) -> list[pyarrow.RecordBatch]:
        """The batches of a range, up to its end if one is given, else up to the limits."""
        batches: list[pyarrow.RecordBatch] = []
        rows = size = 0
        for batch in self._reader.read(start, end):
            # The range ends where a version with other columns continued the journal.
            if batches and batch.schema != batches[0].schema:
                break
            batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if end is None and (rows >= rows_maximum or size >= bytes_maximum):
                break
        return batches

    def _interrupted_end(self, start: int) -> int | None:
        """The end of a range for which a killed process had completed some parts."""
        pattern = f"day=*/session=*/part-{self._id}-{start:020d}-*.parquet"
        found = next(iter(self._out.glob(pattern)), None)
        return int(found.stem.rpartition("-")[2]) if found is not None else None

    def _remove_unfinished(self) -> None:
        for file in self._out.glob("day=*/session=*/.part-*.tmp"):
            file.unlink(missing_ok=True)

    def _write_parts(self, rows: pyarrow.Table, name: str) -> None:
        made: list[tuple[Path, Path]] = []
        try:
            for (day, session), share in partitions(rows, self.table):
                directory = self._out / f"day={day}" / f"session={quote(session, safe='')}"
                directory.mkdir(parents=True, exist_ok=True)
                hidden = directory / f".{name}.tmp"
                made.append((hidden, directory / name))
                _write_parquet(share, hidden)
        except BaseException:
            for hidden, _ in made:
                with suppress(OSError):
                    hidden.unlink(missing_ok=True)
            raise
        for hidden, final in made:
            hidden.replace(final)
            sync_path(final.parent)
        self.part_count += len(made)


def open_part_writers(tables: tuple[Table, ...], journals: Path, out: Path) -> list[PartWriter]:
    """A writer for each table, from one set of journals to one output."""
    try:
        journals.mkdir(parents=True, exist_ok=True)
        progress = _Progress.load(journals)
        return [PartWriter(table, journals, out, progress) for table in tables]
    except OSError as error:
        raise RecorderError(
            f"recording to {out}: {error.strerror or error}", errno=error.errno or 0
        ) from error


def session_of(source: str) -> str:
    """The transport session in a source's name, which may end with a topic index."""
    return re.sub(TOPIC_INDEX, "", source)


def partitions(rows: pyarrow.Table, table: Table) -> list[tuple[tuple[str, str], pyarrow.Table]]:
    """The rows by day (UTC) and session, order preserved."""
    pa = arrow()
    import pyarrow.compute as pc

    times = rows.column(table.time_column)
    days = pc.divide(times, _NS_PER_DAY).cast(pa.int32()).cast(pa.date32())
    sources = rows.column(table.session_column)
    sessions = pc.replace_substring_regex(sources, TOPIC_INDEX, "")
    instants = pc.divide(times, 1000).cast(pa.timestamp("us", "UTC"))
    whole = rows.append_column(table.instant_column, instants)
    keys = pa.table({"day": days, "session": sessions}).group_by(["day", "session"]).aggregate([])
    if keys.num_rows == 1:
        return [(_key(keys.to_pylist()[0]), whole)]
    return [
        (_key(key), whole.filter(pc.and_(pc.equal(days, key["day"]), pc.equal(sessions, key["session"]))))
        for key in keys.to_pylist()
    ]


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return row["day"].isoformat(), row["session"]


def _write_parquet(rows: pyarrow.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    with path.open("wb") as file:
        pq.write_table(rows, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically."""
    hidden = path.with_name(f".{path.name}.tmp")
    with hidden.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    hidden.replace(path)
    sync_path(path.parent)
