"""Silver and gold tables as Delta or Iceberg tables, for readers that want snapshots and a log of changes.

    DIR/delta/silver/losses/            a Delta table
    DIR/iceberg/catalog.db              the SQL catalog of the Iceberg tables silver.losses, gold.receiver_days, ...

A pipeline makes its Parquet files first, as without a format. Then it replaces the partitions that the batch changed,
in one commit per table, which also writes the number of the batch into the table's log. A batch that Spark repeats
after a crash is skipped by the tables that have its number already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from umstack.errors import Unsupported
from umstack.pipeline.layout import GOLD, SILVER, Layout, Partition, Settings, opened
from umstack.pipeline.table_schema import layer_of, schemas, with_partitions

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
FORMATS = (PARQUET, DELTA, ICEBERG)
_PACKAGES = {DELTA: "deltalake", ICEBERG: "pyiceberg"}
_APPLICATION = "umstack"
_BATCH = "umstack.batch"


class _Table(Protocol):
    """A table of a format."""

    def batch(self) -> int:
        """Return the number of the last batch in the table's log; -1 without any."""

    def has_any(self, partitions: Collection[Partition]) -> bool:
        """Return true if the table has rows of one of these partitions."""

    def replace(self, partitions: Collection[Partition], rows: pa.Table, batch: int | None) -> None:
        """Replace the rows of these partitions, and note the batch, in one commit."""

    def files(self) -> list[str]:
        """Return the Parquet files of the current snapshot."""

    def rows(self) -> pa.Table:
        """Return all rows."""

    def compact(self) -> None:
        """Merge small files and remove files that no reader needs any more, as far as the library can."""


def require(table_format: str) -> None:
    """Raise Unsupported if the package of a format is not installed."""
    package = _PACKAGES.get(table_format)
    if package is not None and find_spec(package) is None:
        raise Unsupported(
            f"tables as {table_format} need {package}", hint=f"pip install 'umstack[{table_format}]'"
        )


def publish(
    layout: Layout, settings: Settings, partitions: Collection[Partition], batch: int | None = None
) -> None:
    """Bring the tables of the folder's format up to date with its Parquet files.

    Args:
        layout: The folder.
        settings: Its settings, with the format.
        partitions: The days and sessions whose files have changed.
        batch: The number of the batch that changed them; None: a change that is no batch.
    """
    if settings.table_format == PARQUET or not partitions:
        return
    for layer, name in _names():
        with _table(layout, settings, layer, name) as table:
            if batch is not None and table.batch() >= batch:
                continue
            rows = _rows(layout, layer, name, partitions)
            if len(rows) or table.has_any(partitions):
                table.replace(partitions, rows, batch)


def compact_published(layout: Layout, settings: Settings) -> None:
    """Compact the tables of the folder's format."""
    if settings.table_format != PARQUET:
        for layer, name in _names():
            with _table(layout, settings, layer, name) as table:
                table.compact()


def snapshot_files(layout: Layout, settings: Settings, name: str) -> list[str]:
    """Return the Parquet files of a silver or gold table's current snapshot."""
    with _table(layout, settings, layer_of(name) or "", name) as table:
        return table.files()


def read_published(folder: str | Path, name: str) -> pa.Table:
    """Return all rows of a silver or gold table that a pipeline keeps as Delta or Iceberg.

    Args:
        folder: The folder that `umstack pipeline` fills.
        name: The name of the table in docs/tables.md.

    Raises:
        TablesError: The folder has no tables.
        Unsupported: The package of the format is not installed.

    Example:
        >>> from umstack.pipeline.published import read_published
        >>> read_published("tables", "receiver_days")    # doctest: +SKIP
    """
    layout, settings = opened(folder)
    with _table(layout, settings, layer_of(name) or "", name) as table:
        return table.rows()


def _names() -> Iterator[tuple[str, str]]:
    for layer in (SILVER, GOLD):
        for name in schemas()[layer]:
            yield layer, name


def _schema(layer: str, name: str) -> pa.Schema:
    return with_partitions(schemas()[layer][name])


def _rows(layout: Layout, layer: str, name: str, partitions: Collection[Partition]) -> pa.Table:
    schema, found = _schema(layer, name), []
    for day, session in sorted(partitions):
        file = layout.partition(layer, name, day, session) / "rows.parquet"
        if file.exists():
            rows = pq.read_table(file, partitioning=None)
            rows = rows.append_column("date", pa.repeat(pa.scalar(day, pa.date32()), len(rows)))
            found.append(rows.append_column("session", pa.repeat(session, len(rows))))
    # A file that an older version wrote may lack a column.
    whole = pa.concat_tables([schema.empty_table(), *found], promote_options="default")
    return whole.select(schema.names).cast(schema)


@contextmanager
def _table(layout: Layout, settings: Settings, layer: str, name: str) -> Iterator[_Table]:
    """Open a table, which is made if it does not exist."""
    require(settings.table_format)
    root = layout.root / settings.table_format
    if settings.table_format == DELTA:
        yield _DeltaTable(root / layer / name, _schema(layer, name))
    else:
        with _catalog(root) as catalog:
            yield _IcebergTable(catalog, f"{layer}.{name}", _schema(layer, name))


class _DeltaTable:
    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        from deltalake import DeltaTable

        self._table: Any = DeltaTable.create(
            str(folder), schema, mode="ignore", partition_by=["date", "session"], name=folder.name
        )

    def batch(self) -> int:
        found = self._table.transaction_version(_APPLICATION)
        return -1 if found is None else int(found)

    def has_any(self, partitions: Collection[Partition]) -> bool:
        return not {(str(day), session) for day, session in partitions}.isdisjoint(
            (one["date"], one["session"]) for one in self._table.partitions()
        )

    def replace(self, partitions: Collection[Partition], rows: pa.Table, batch: int | None) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        noted = [] if batch is None else [Transaction(_APPLICATION, batch)]
        properties = CommitProperties(app_transactions=noted)
        chosen = " OR ".join(map(_in_sql, sorted(partitions)))
        if len(rows):
            write_deltalake(
                self._table,
                rows,
                mode="overwrite",
                predicate=chosen,
                schema_mode="merge",
                commit_properties=properties,
            )
        else:
            self._table.delete(chosen, commit_properties=properties)

    def files(self) -> list[str]:
        return [str(uri) for uri in self._table.file_uris()]

    def rows(self) -> pa.Table:
        return self._table.to_pyarrow_table()

    def compact(self) -> None:
        self._table.optimize.compact()
        # Readers may use the files of earlier versions for a week.
        self._table.vacuum(dry_run=False)


def _in_sql(partition: Partition) -> str:
    day, session = partition
    quoted = session.replace("'", "''")
    return f"(date = DATE '{day}' AND session = '{quoted}')"


@contextmanager
def _catalog(root: Path) -> Iterator[Any]:
    from pyiceberg.catalog.sql import SqlCatalog

    root.mkdir(parents=True, exist_ok=True)
    catalog = SqlCatalog(_APPLICATION, uri=f"sqlite:///{root / 'catalog.db'}", warehouse=root.as_uri())
    try:
        yield catalog
    finally:
        catalog.engine.dispose()


class _IcebergTable:
    def __init__(self, catalog: Any, identifier: str, schema: pa.Schema) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        plain = pa.schema([pa.field(field.name, field.type) for field in schema])
        try:
            self._table: Any = catalog.load_table(identifier)
        except NoSuchTableError:
            catalog.create_namespace_if_not_exists(identifier.partition(".")[0])
            with (
                catalog.create_table_transaction(identifier, plain) as making,
                making.update_spec() as spec,
            ):
                spec.add_identity("date")
                spec.add_identity("session")
            self._table = catalog.load_table(identifier)
        self._schema = plain

    def batch(self) -> int:
        return int(self._table.properties.get(_BATCH, -1))

    def has_any(self, partitions: Collection[Partition]) -> bool:
        wanted = self._table.scan(row_filter=_in_expressions(partitions))
        return next(iter(wanted.plan_files()), None) is not None

    def replace(self, partitions: Collection[Partition], rows: pa.Table, batch: int | None) -> None:
        with self._table.transaction() as change:
            if set(self._schema.names) - set(self._table.schema().column_names):
                with change.update_schema() as update:
                    update.union_by_name(self._schema)
            if self.has_any(partitions):
                change.delete(_in_expressions(partitions))
            if len(rows):
                change.append(rows.cast(self._schema))
            if batch is not None:
                change.set_properties({_BATCH: str(batch)})

    def files(self) -> list[str]:
        return [task.file.file_path for task in self._table.scan().plan_files()]

    def rows(self) -> pa.Table:
        return self._table.scan().to_arrow()

    def compact(self) -> None:
        """Each commit writes one file per partition, so there are none to merge; old snapshots stay."""


def _in_expressions(partitions: Collection[Partition]) -> Any:
    from pyiceberg.expressions import And, EqualTo, Or

    equal: Any = EqualTo  # its annotations are those of its fields, not of its constructor
    chosen = [And(equal("date", day), equal("session", session)) for day, session in sorted(partitions)]
    return Or(*chosen) if len(chosen) > 1 else chosen[0]
