"""The folder of a pipeline's tables: its paths, its version, and the locks of those that write and read it.

    DIR/bronze/facts/date=2026-01-02/session=10.0.0.1_7/part-000000000000-000000000003.parquet
    DIR/silver/losses/date=2026-01-02/session=10.0.0.1_7/rows.parquet
    DIR/gold/receiver_days/date=2026-01-02/session=10.0.0.1_7/rows.parquet
    DIR/_umstack/       the version, the names of the captures, Spark's checkpoint, the locks

One writer at a time holds the lock `owner`. It holds the lock `batch` while a batch changes tables, and marks the batch
as unfinished; readers that need all tables of one state share that lock. Tasks of the writer hold the lock of their
session, because a task of a killed pipeline may still run when the next one starts.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from umstack.capture.reading.remote import is_remote, shown
from umstack.errors import UmError, naming_path
from umstack.facts.packed import NO_SESSION
from umstack.facts.sessions import parts_of, session_number
from umstack.recorder.parquet_parts import replace_file

VERSION = 2
"""Version of the layout: 1 did not have the ports of sessions, so nothing can be added to its facts. A table may get a
column without a new version: old files then lack it."""
DAY_NS = 86_400 * 1_000_000_000
BRONZE, SILVER, GOLD = "bronze", "silver", "gold"
FACTS, MESSAGES, MESSAGE_COUNTS = "facts", "messages", "message_counts"
Partition = tuple[date, str]
"""Day and session of a table's partition."""
STATE = "_umstack"
"""Folder of everything that is not a table, below the folder of tables."""
UNFINISHED = "unfinished"
"""File of the state that exists while a batch changes tables."""
_COMPACTION = "compaction"
_FORMAT = "umstack tables"
_SESSION_LOCKS = 64
_NO_SESSION_NAME = "none"


class TablesError(UmError):
    """A folder of tables cannot be used."""

    default_hint = "see docs/pipeline.md"


@dataclass(frozen=True, slots=True)
class Settings:
    """The options that the tables of a folder were made with; they stay the same, because tables of others differ."""

    captures: str
    """A file, folder or glob; or the folder of a recorder's journal."""
    mtu: int = 1500
    hardware_times: bool = False
    table_format: str = "parquet"
    """Format in which silver and gold tables are also kept: delta or iceberg (umstack.pipeline.published)."""


def day_of(time_ns: int) -> date:
    """Return the day (UTC) of a time."""
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).date()


def half_written(file: Path) -> Path:
    """Return the name under which this process writes a file before it gets its own name."""
    return file.with_name(f".{file.name}.{os.getpid()}")


def remove_half_written(folder: Path) -> None:
    """Remove the files below a folder that a killed process began to write."""
    for file in folder.rglob(".*.parquet.*"):
        file.unlink(missing_ok=True)


def beside(partition: Path) -> Path:
    """Return the folder in which a compaction prepares a partition, and leaves its old files: no reader looks there."""
    day, table, _, root = partition.parents[:4]
    return root / STATE / _COMPACTION / table.name / day.name / partition.name


def session_name(publisher: str, session_id: int) -> str:
    """Return the value of the partition column `session`: publisher, session id, and the port if it is known."""
    if (publisher, session_id) == NO_SESSION:
        return _NO_SESSION_NAME
    short, port = parts_of(session_id)
    return f"{publisher}_{short}_{port}" if port else f"{publisher}_{short}"


def session_of(name: str) -> tuple[str, int]:
    """Return the session with this `session_name`."""
    if name == _NO_SESSION_NAME:
        return NO_SESSION
    publisher, number, *port = name.split("_")
    return publisher, session_number(int(number), int(port[0])) if port else int(number)


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below a folder of tables."""

    root: Path

    def __str__(self) -> str:
        return str(self.root)

    @property
    def state(self) -> Path:
        """Folder of everything that is not a table."""
        return self.root / STATE

    @property
    def checkpoint(self) -> Path:
        """Spark's checkpoint."""
        return self.state / "checkpoint"

    def table(self, layer: str, name: str) -> Path:
        """Return the folder of a table."""
        return self.root / layer / name

    def partition(self, layer: str, name: str, day: date, session: str) -> Path:
        """Return the folder of a table's partition."""
        return self.table(layer, name) / f"date={day.isoformat()}" / f"session={quote(session, safe='')}"

    def days(self, session: str) -> list[date]:
        """Return the days of which there are facts of a session."""
        here = f"session={quote(session, safe='')}"
        return [_day(folder.parent) for folder in self.folders(FACTS) if folder.name == here]

    def sessions(self) -> dict[str, list[date]]:
        """Return the sessions that have facts, by the value of their partition, with their days."""
        found: dict[str, list[date]] = {}
        for folder in self.folders(FACTS):
            found.setdefault(unquote(folder.name.removeprefix("session=")), []).append(_day(folder.parent))
        return found

    def folders(self, name: str) -> list[Path]:
        """Return the folders of a bronze table that have files of batches."""
        return sorted({file.parent for file in self.table(BRONZE, name).glob("date=*/session=*/part-*")})

    def settings(self) -> Settings | None:
        """Return the settings, or None if the folder has no tables. TablesError for those of a newer version."""
        try:
            text = (self.state / "layout.json").read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return parsed_settings(text, str(self))

    def save(self, settings: Settings) -> None:
        """Write version and settings."""
        found = {
            "format": _FORMAT,
            "version": VERSION,
            "captures": settings.captures,
            "mtu": settings.mtu,
            "hardware_times": settings.hardware_times,
            "table_format": settings.table_format,
        }
        self._save("layout.json", found)

    def captures(self) -> list[str]:
        """Return the names of the captures that were found so far."""
        with suppress(FileNotFoundError):
            found: list[str] = json.loads((self.state / "captures.json").read_text(encoding="utf-8"))
            return found
        return []

    def add_captures(self, files: list[str]) -> None:
        """Add names of captures."""
        known = self.captures()
        if (every := sorted({*known, *files})) != known:
            self._save("captures.json", every)

    def _save(self, name: str, content: Any) -> None:
        self._replace(self.state / name, (json.dumps(content, indent=1) + "\n").encode())

    def _replace(self, file: Path, content: bytes) -> None:
        with naming_path(f"writing {file}"):
            replace_file(file, content)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the lock of the only writer, and remove its unfinished files. TablesError if another process has it."""
        with naming_path(f"creating {self.state}"):
            self.state.mkdir(parents=True, exist_ok=True)
        with _locked(self.state / "owner", fcntl.LOCK_EX | fcntl.LOCK_NB) as is_locked:
            if not is_locked:
                raise TablesError(
                    f"another process writes the tables in {self.root}",
                    hint="one pipeline writes a folder at a time: wait for it, or name another folder",
                )
            if self._unfinished.exists():
                remove_half_written(self.root)
            # The files that a killed compaction prepared or replaced: the partition has all its rows.
            shutil.rmtree(self.state / _COMPACTION, ignore_errors=True)
            yield

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock of a batch that changes tables. If the block fails, the batch stays marked as unfinished."""
        with _locked(self.state / "batch", fcntl.LOCK_EX):
            self._replace(self._unfinished, b"")
            yield
            self._unfinished.unlink()

    @contextmanager
    def unchanging(self) -> Iterator[None]:
        """Let no batch change tables. TablesError if a batch was interrupted, because tables may not agree then."""
        with _locked(self.state / "batch", fcntl.LOCK_SH):
            if self._unfinished.exists():
                raise TablesError(
                    f"a pipeline was interrupted while it wrote the tables in {self.root}",
                    hint="run the pipeline again: it repeats the batch",
                )
            yield

    @property
    def _unfinished(self) -> Path:
        return self.state / UNFINISHED

    @contextmanager
    def session_locked(self, session: str) -> Iterator[None]:
        """Hold the lock of a session, which it shares with a few others."""
        folder = self.state / "sessions"
        with naming_path(f"creating {folder}"):
            folder.mkdir(exist_ok=True)
        with _locked(folder / f"{zlib.crc32(session.encode()) % _SESSION_LOCKS:02}", fcntl.LOCK_EX):
            yield


def parsed_settings(text: str, name: str) -> Settings:
    """Return the settings in a layout.json of the tables `name`. TablesError for those of a newer version."""
    found = json.loads(text)
    if found.get("format") != _FORMAT or found["version"] > VERSION:
        raise TablesError(
            f"the tables in {name} have version {found.get('version')}, this umstack reads up to {VERSION}",
            hint="use the version of umstack that wrote them, or a newer one",
        )
    if found["version"] < VERSION:
        raise TablesError(
            f"the tables in {name} have version {found['version']}, whose sessions have no ports",
            hint="make them again in another folder: umstack pipeline captures/ --tables DIR",
        )
    # Earlier versions knew only Parquet.
    table_format = found.get("table_format", "parquet")
    return Settings(found["captures"], found["mtu"], found["hardware_times"], table_format)


def opened(folder: str | os.PathLike[str]) -> tuple[Layout, Settings]:
    """Return the layout and the settings of a folder that has tables. TablesError if it has none."""
    name = os.fspath(folder)
    if is_remote(name):
        raise TablesError(
            f"{shown(name)} is no folder of a file system",
            hint="name the work folder of the pipeline, or a copy of the objects (docs/cluster.md)",
        )
    layout = Layout(local_path(name).resolve())
    settings = layout.settings()
    if settings is None:
        raise TablesError(
            f"{layout.root} has no tables", hint="make them: umstack pipeline captures/ --tables DIR"
        )
    return layout, settings


def local_path(name: str) -> Path:
    """Return the path of a folder that is named by a path or a file:// URL."""
    return Path(unquote(urlsplit(name).path) if name.startswith("file://") else name)


def _day(folder: Path) -> date:
    return date.fromisoformat(folder.name.removeprefix("date="))


@contextmanager
def _locked(file: Path, how: int) -> Iterator[bool]:
    """Hold a lock of a file; yields False if it cannot be had without waiting. The kernel releases it at any end."""
    with naming_path(f"locking {file}"):
        lock = os.open(file, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.flock(lock, how)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)
