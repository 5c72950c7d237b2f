"""Tables in an object store: after each batch, the changed files of a folder of tables become objects.

    DIR/silver/losses/date=2026-01-02/session=10.0.0.1_7/rows.parquet
    s3://bucket/tables/silver/losses/date=2026-01-02/session=10.0.0.1_7/rows.parquet

The folder has the checkpoint, the locks and the facts, and each packet counts once there. An object is written whole
under the name of its file and never renamed, so an upload that was killed is repeated with the same objects. A database
in the folder has the versions of the uploaded files. A name is entered before its object is written, so no object is
forgotten whose file a later compaction replaces.

While objects change there is an object `_umstack/unfinished`. The commits of Delta tables are written in their order,
after the files that they name.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from umstack.capture.reading.remote import arrow_uri, filesystem_of, is_remote, shown
from umstack.pipeline.layout import BRONZE, GOLD, SILVER, STATE, UNFINISHED, Layout, Partition, TablesError
from umstack.pipeline.published import DELTA
from umstack.pipeline.table_schema import bronze_schemas, schemas

_STORES = ("s3", "gs", "gcs", "abfs", "abfss")
"""Schemes of stores that show an object only when it is complete."""
_STATE_FILES = (f"{STATE}/layout.json", f"{STATE}/captures.json")
_UNFINISHED, _WRITER = f"{STATE}/{UNFINISHED}", f"{STATE}/writer.json"
_DELTA_LOG = "_delta_log"
_THREADS = 8
_DATABASE = """
    CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, version TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS writer (id TEXT NOT NULL);
"""
_BEING_WRITTEN = ""


def is_store(tables: str) -> bool:
    """Return true for the URL of an object store. TablesError for another remote file system."""
    if not is_remote(tables):
        return False
    if urlsplit(arrow_uri(tables)).scheme not in _STORES:
        raise TablesError(
            f"{shown(tables)} cannot hold tables: readers would see incomplete files",
            hint=f"name a folder, or a URL with one of {', '.join(_STORES)}",
        )
    return True


def default_work_folder(url: str) -> Path:
    """Return this user's folder in which the tables of a store are made."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "umstack" / "tables" / _key(url)


class Upload:
    """Makes the objects below a URL the same as the files of a folder of tables. Only the folder's owner may use it."""

    def __init__(self, layout: Layout, url: str) -> None:
        self._layout = layout
        self._url = url
        self._filesystem: Any
        self._filesystem, path = filesystem_of(url)
        self._path = path.rstrip("/")

    def everything(self) -> int:
        """Upload all files that changed since they were uploaded; return the number of objects that changed.

        Raises:
            TablesError: The store cannot be reached, or has the tables of another folder.
        """
        with self._opened() as known:
            self._claim(known)
            return self._update(known, [f"{tree}/" for tree in (BRONZE, SILVER, GOLD, DELTA)])

    def partitions(self, changed: Collection[Partition]) -> int:
        """Upload the changed files of these days and sessions; return the number of objects that changed."""
        tables = [(layer, name) for layer in (SILVER, GOLD) for name in schemas()[layer]]
        prefixes = [
            f"{self._layout.partition(layer, name, *one).relative_to(self._layout.root)}/"
            for layer, name in [*((BRONZE, name) for name in bronze_schemas()), *tables]
            for one in changed
        ]
        days = {day for day, _ in changed}
        for layer, name in tables if (self._layout.root / DELTA).exists() else ():
            prefixes += [f"{DELTA}/{layer}/{name}/date={day}/" for day in days]
            prefixes.append(f"{DELTA}/{layer}/{name}/{_DELTA_LOG}/")
        with self._opened() as known:
            return self._update(known, prefixes)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database of the uploaded files. TablesError for everything that fails, also in the store."""
        try:
            file = self._layout.state / f"upload-{_key(self._url)}.db"
            with closing(sqlite3.connect(file, isolation_level=None)) as known:
                known.executescript(_DATABASE)
                yield known
        except (OSError, sqlite3.Error) as error:
            line = str(error).splitlines()[0]
            hint = "run it again: it continues where it stopped"
            raise TablesError(f"uploading to {shown(self._url)}: {line}", hint=hint) from error

    def _claim(self, known: sqlite3.Connection) -> None:
        """Mark the store as that of this folder. TablesError if it has the tables of another one."""
        stored = known.execute("SELECT id FROM writer").fetchone()
        own = stored[0] if stored else secrets.token_hex(8)
        if not stored:
            known.execute("INSERT INTO writer VALUES (?)", (own,))
        if not self._exists(_WRITER):
            if self._exists(_STATE_FILES[0]):
                raise self._of_another("a folder that was copied")
            known.execute("DELETE FROM objects")
            self._put(_WRITER, json.dumps({"id": own, "folder": str(self._layout.root)}).encode())
        with self._filesystem.open_input_stream(self._at(_WRITER), compression=None) as stream:
            found = json.loads(stream.read())
        if found["id"] != own:
            raise self._of_another(f"the folder {found['folder']}")

    def _of_another(self, what: str) -> TablesError:
        return TablesError(
            f"{shown(self._url)} has the tables of {what}", hint="use that folder with --work, or another URL"
        )

    def _update(self, known: sqlite3.Connection, prefixes: list[str]) -> int:
        files = {name: _version(self._layout.root / name) for name in self._files(prefixes)}
        stored = dict(_stored(known, prefixes))
        changed = [name for name, version in files.items() if stored.get(name) != version]
        gone = stored.keys() - files.keys()
        if not changed and not gone:
            return 0
        self._put(_UNFINISHED, b"")
        _store(known, dict.fromkeys(changed, _BEING_WRITTEN))
        commits = {name for name in changed if f"/{_DELTA_LOG}/" in name}
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(self._put_file, [name for name in changed if name not in commits]))
            for name in sorted(commits):
                self._put_file(name)
            list(threads.map(self._remove, gone))
        self._remove(_UNFINISHED)
        _store(known, {name: files[name] for name in changed}, gone)
        return len(changed) + len(gone)

    def _files(self, prefixes: list[str]) -> Iterator[str]:
        root = self._layout.root
        yield from (name for name in _STATE_FILES if (root / name).exists())
        for prefix in prefixes:
            for file in (root / prefix).rglob("[!.]*"):
                if file.is_file():
                    yield str(file.relative_to(root))

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _exists(self, name: str) -> bool:
        return bool(self._filesystem.get_file_info(self._at(name)).is_file)

    def _put(self, name: str, content: bytes | pa.Buffer) -> None:
        with self._filesystem.open_output_stream(self._at(name), compression=None) as stream:
            stream.write(content)

    def _put_file(self, name: str) -> None:
        with pa.memory_map(str(self._layout.root / name)) as file:
            self._put(name, file.read_buffer())

    def _remove(self, name: str) -> None:
        if self._exists(name):
            self._filesystem.delete_file(self._at(name))


def _key(url: str) -> str:
    return hashlib.sha256(shown(url).rstrip("/").encode()).hexdigest()[:16]


def _version(file: Path) -> str:
    found = file.stat()
    return f"{found.st_size}-{found.st_mtime_ns}-{found.st_ino}"


def _stored(known: sqlite3.Connection, prefixes: list[str]) -> Iterator[tuple[str, str]]:
    yield from known.execute("SELECT * FROM objects WHERE name IN (?, ?)", _STATE_FILES)
    for prefix in prefixes:
        # "0" is the character after "/".
        between = (prefix, f"{prefix[:-1]}0")
        yield from known.execute("SELECT * FROM objects WHERE name >= ? AND name < ?", between)


def _store(known: sqlite3.Connection, versions: dict[str, str], gone: Collection[str] = ()) -> None:
    with known:
        known.execute("BEGIN")
        known.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?)", versions.items())
        known.executemany("DELETE FROM objects WHERE name = ?", [(name,) for name in gone])
