"""Keeps a folder of tables in order, without Spark: compaction, deriving tables again, files that show the columns."""

from __future__ import annotations

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
    Settings,
    opened,
    session_name,
    session_of,
)
from umstack.pipeline.parts import compact, write_parquet
from umstack.pipeline.table_schema import bronze_schemas, schemas

_EMPTY_FILE = "empty.parquet"


def derive_again(folder: Path, mtu: int | None = None) -> int:
    """Derive all tables again from the facts, after an upgrade or for another MTU; return the number of sessions."""
    layout, settings = opened(folder)
    with layout.owned():
        if mtu is not None:
            settings = Settings(settings.captures, mtu, settings.hardware_times)
        write_empty_tables(layout)
        sessions = layout.sessions()
        with layout.changing():
            for session in sessions:
                derive_session(layout, settings, session_of(session))
            layout.save(settings)
        return len(sessions)


def compact_all(folder: Path) -> tuple[int, int]:
    """Replace the files of each session and day by one; return how many files there were and are."""
    layout, _ = opened(folder)
    before = after = 0
    with layout.owned():
        for name in (FACTS, MESSAGES):
            for part in layout.folders(name):
                with layout.session_locked(unquote(part.name.removeprefix("session="))):
                    before += compact(part)
                    after += 1
    return before, after


def write_empty_tables(layout: Layout) -> None:
    """Write a file without rows for each table, which has the table's columns: readers find them all, also new ones."""
    for layer, tables in {BRONZE: bronze_schemas(), **schemas()}.items():
        for name, schema in tables.items():
            folder = layout.partition(layer, name, date(1970, 1, 1), session_name(*NO_SESSION))
            write_parquet(folder / _EMPTY_FILE, schema.empty_table())
