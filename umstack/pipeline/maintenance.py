"""Keeps a folder of tables in order, without Spark: compaction, deriving tables again, files that show the columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from urllib.parse import unquote

from umstack.facts.packed import NO_SESSION
from umstack.pipeline.derive import derive_session
from umstack.pipeline.layout import (
    BRONZE,
    FACTS,
    MESSAGES,
    Layout,
    opened,
    session_name,
    session_of,
)
from umstack.pipeline.parts import compact, write_parquet
from umstack.pipeline.published import compact_published, publish, require
from umstack.pipeline.table_schema import bronze_schemas, schemas
from umstack.pipeline.upload import Upload

_EMPTY_FILE = "empty.parquet"


def derive_again(
    folder: Path, mtu: int | None = None, table_format: str | None = None, store: str | None = None
) -> int:
    """Derive all tables again, after an upgrade or for another MTU or format; return the number of sessions.

    `store` is the URL of the tables' copy in an object store, which changes, too.
    """
    layout, settings = opened(folder)
    with layout.owned():
        settings = replace(
            settings, mtu=mtu or settings.mtu, table_format=table_format or settings.table_format
        )
        require(settings.table_format)
        write_empty_tables(layout)
        sessions = layout.sessions()
        with layout.changing():
            for session in sessions:
                publish(layout, settings, derive_session(layout, settings, session_of(session)))
            layout.save(settings)
        if store is not None:
            Upload(layout, store).everything()
        return len(sessions)


def compact_all(folder: Path, store: str | None = None) -> tuple[int, int]:
    """Replace the files of each session and day by one; return how many files there were and are.

    `store` is the URL of the tables' copy in an object store, which changes, too.
    """
    layout, settings = opened(folder)
    before = after = 0
    with layout.owned():
        for name in (FACTS, MESSAGES):
            for part in layout.folders(name):
                with layout.session_locked(unquote(part.name.removeprefix("session="))):
                    before += compact(part)
                    after += 1
        compact_published(layout, settings)
        if store is not None:
            Upload(layout, store).everything()
    return before, after


def write_empty_tables(layout: Layout) -> None:
    """Write a file without rows for each table, which has the table's columns: readers find them all, also new ones."""
    for layer, tables in {BRONZE: bronze_schemas(), **schemas()}.items():
        for name, schema in tables.items():
            folder = layout.partition(layer, name, date(1970, 1, 1), session_name(*NO_SESSION))
            write_parquet(folder / _EMPTY_FILE, schema.empty_table())
