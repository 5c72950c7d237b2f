"""Reads a pipeline's folder, or its copy in an object store, back as the tables of a report, without Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from umstack.analysis.tables import Tables, tables_of_part, together
from umstack.capture.reading.remote import is_remote
from umstack.facts.facts import Facts
from umstack.facts.packed import NO_SESSION
from umstack.pipeline.derive import periods
from umstack.pipeline.fetched import fetched
from umstack.pipeline.layout import (
    MESSAGES,
    SILVER,
    Layout,
    Settings,
    TablesError,
    opened,
    session_name,
    session_of,
)
from umstack.pipeline.parts import facts_of_day
from umstack.pipeline.table_schema import schemas


def read_tables(folder: str | os.PathLike[str]) -> tuple[Tables, int, list[str], Settings]:
    """Return the tables of all sessions, the number of packets, the names of the captures, and the settings.

    `folder` may be the URL of an object store. The tables are those of a report on the captures. Silver tables of a
    session that was active in several periods are of one period each, so the tables of such a session are made from its
    facts.
    """
    none = session_name(*NO_SESSION)
    with _unchanging(os.fspath(folder)) as (layout, settings):
        if layout.folders(MESSAGES):
            raise TablesError(
                f"{layout} has the messages of a journal, not the packets of captures",
                hint="a report needs captures: umstack pipeline captures/ --tables DIR",
            )
        sessions = layout.sessions()
        of_none = _merged(layout, none, sessions)
        parts = [tables_of_part(of_none, settings.mtu)]
        stored = []
        for session, days in sessions.items():
            if session == none:
                continue
            if len(periods(days)) > 1:
                parts.append(tables_of_part(_merged(layout, session, sessions), settings.mtu))
            else:
                stored.append(session)
        parts.append({name: _read(layout, name, stored, sessions) for name in schemas()[SILVER]})
        return together(parts), of_none.packets, layout.captures(), settings


@contextmanager
def _unchanging(tables: str) -> Iterator[tuple[Layout, Settings]]:
    """Open a folder of tables, which no batch changes meanwhile, or fetch those of an object store."""
    if is_remote(tables):
        with fetched(tables) as found:
            yield found
        return
    layout, settings = opened(tables)
    with layout.unchanging():
        yield layout, settings


def _merged(layout: Layout, session: str, sessions: dict[str, list[date]]) -> Facts:
    days = sessions.get(session, [])
    return Facts.merged(facts_of_day(layout, session, day, compacts=False) for day in days)


def _read(layout: Layout, name: str, stored: list[str], sessions: dict[str, list[date]]) -> pl.DataFrame:
    schema = schemas()[SILVER][name]
    files = [
        (file, session_of(session)[1])
        for session in stored
        for day in sessions[session]
        if (file := layout.partition(SILVER, name, day, session) / "rows.parquet").exists()
    ]
    # A file that an older version wrote may lack a column.
    tables = [_numbered(pq.read_table(file, partitioning=None), number) for file, number in files]
    rows = pa.concat_tables([schema.empty_table(), *tables], promote_options="default").select(schema.names)
    found = pl.from_arrow(rows)
    assert isinstance(found, pl.DataFrame)
    return found


def _numbered(rows: pa.Table, number: int) -> pa.Table:
    """Return rows of one session with its number instead of its session id."""
    at = rows.schema.get_field_index("session_id")
    return rows if at < 0 else rows.set_column(at, rows.schema.field(at), pa.repeat(number, len(rows)))
