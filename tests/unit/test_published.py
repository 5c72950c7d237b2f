"""Delta and Iceberg tables of a pipeline: the rows of its Parquet tables, each batch in one commit, once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pytest.importorskip("polars")

import duckdb
import polars as pl
import pyarrow as pa
from polars.testing import assert_frame_equal
from pyiceberg.catalog.sql import SqlCatalog

from tests.unit.pipeline_tables import SETTINGS, batches_of, made_capture, made_layout, take
from umstack.errors import Unsupported
from umstack.pipeline import published
from umstack.pipeline.layout import GOLD, SILVER, Layout, Partition, Settings
from umstack.pipeline.maintenance import compact_all, derive_again
from umstack.pipeline.published import DELTA, FORMATS, ICEBERG, PARQUET, publish, read_published

NAMES = ((SILVER, "sessions"), (SILVER, "losses"), (GOLD, "receiver_days"))


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> list[pa.Table]:
    """Return the facts of a capture in several batches."""
    found = batches_of(made_capture(tmp_path_factory.mktemp("capture")), 800_000)
    assert len(found) >= 3
    return found


@pytest.fixture(params=FORMATS[1:])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Return a folder of tables that are also kept in a format; a few, because each costs a commit."""
    monkeypatch.setattr(published, "_names", lambda: iter(NAMES))
    layout = made_layout(tmp_path / "tables")
    layout.save(replace(SETTINGS, table_format=request.param))
    return layout


def settings_of(layout: Layout) -> Settings:
    """Return the settings of a folder that has tables."""
    found = layout.settings()
    assert found is not None
    return found


def partitions_of(layout: Layout) -> list[Partition]:
    """Return all days and sessions."""
    return [(day, session) for session, days in layout.sessions().items() for day in days]


def commits(layout: Layout, name: str) -> int:
    """Return how many commits the log of a silver table has."""
    with published._table(layout, settings_of(layout), SILVER, name) as table:
        opened = table._table  # type: ignore[attr-defined]
        return opened.version() if hasattr(opened, "version") else len(opened.history())


def check(layout: Layout) -> None:
    """Fail if a table differs from its Parquet files, or has no rows."""
    for layer, name in NAMES:
        files = f"{layout.table(layer, name)}/**/*.parquet"
        wanted = pl.read_parquet(files, hive_partitioning=True)
        made = pl.from_arrow(read_published(layout.root, name))
        assert isinstance(made, pl.DataFrame)
        order = sorted(wanted.columns)
        assert_frame_equal(made.select(order).sort(order), wanted.select(order).sort(order))
        assert len(made) > 1


def test_each_batch_is_one_commit_and_a_repeated_one_is_recognised(
    folder: Layout, batches: list[pa.Table]
) -> None:
    """The number of the batch is in the log of each table; a batch with that number adds no commit."""
    for number, rows in enumerate(batches):
        take(folder, number, rows)
        publish(folder, settings_of(folder), partitions_of(folder), number)
        check(folder)
    with published._table(folder, settings_of(folder), SILVER, "losses") as table:
        assert table.batch() == len(batches) - 1
    before = commits(folder, "losses")
    publish(folder, settings_of(folder), partitions_of(folder), len(batches) - 1)
    assert commits(folder, "losses") == before
    publish(folder, settings_of(folder), partitions_of(folder), len(batches))
    assert commits(folder, "losses") > before
    check(folder)


def test_a_batch_killed_between_two_commits_is_completed_by_its_repetition(
    folder: Layout, batches: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that have the batch are left alone, the others get it."""
    take(folder, 0, batches[0])
    with monkeypatch.context() as killed:
        killed.setattr(published, "_names", lambda: iter((*NAMES[:1], ("no", "table"))))
        with pytest.raises(KeyError):
            publish(folder, settings_of(folder), partitions_of(folder), 0)
    before = commits(folder, "sessions")
    publish(folder, settings_of(folder), partitions_of(folder), 0)
    assert commits(folder, "sessions") == before
    check(folder)


def test_a_partition_that_became_empty_has_no_rows(folder: Layout, batches: list[pa.Table]) -> None:
    """A later batch may leave a session and day without a loss."""
    take(folder, 0, batches[0])
    publish(folder, settings_of(folder), partitions_of(folder), 0)
    lost = read_published(folder.root, "losses")
    day, session = lost["date"][0].as_py(), lost["session"][0].as_py()
    (folder.partition(SILVER, "losses", day, session) / "rows.parquet").unlink()
    publish(folder, settings_of(folder), [(day, session)], 1)
    left = read_published(folder.root, "losses")
    assert 0 < len(left) < len(lost)
    assert session not in left["session"].to_pylist()


def test_a_table_of_an_older_version_gets_the_new_columns(
    folder: Layout, batches: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were written before have null in them."""
    whole = published._schema
    with monkeypatch.context() as older:
        older.setattr(
            published,
            "_schema",
            lambda *names: pa.schema([field for field in whole(*names) if field.name != "restarts"]),
        )
        take(folder, 0, batches[0])
        publish(folder, settings_of(folder), partitions_of(folder), 0)
    assert "restarts" not in read_published(folder.root, "sessions").schema.names
    publish(folder, settings_of(folder), partitions_of(folder)[:1], 1)
    found = read_published(folder.root, "sessions")["restarts"]
    assert 0 < found.null_count < len(found)
    derive_again(folder.root)
    check(folder)


def test_a_folder_gets_a_format_later_and_is_compacted(
    folder: Layout, batches: list[pa.Table], tmp_path: Path
) -> None:
    """`--derive-again --format` makes the tables of a format from the facts; `--compact` changes no row."""
    wanted = settings_of(folder).table_format
    folder.save(replace(SETTINGS, table_format=PARQUET))
    for number, rows in enumerate(batches):
        take(folder, number, rows)
    publish(folder, settings_of(folder), partitions_of(folder), 0)
    assert not (folder.root / wanted).exists()
    derive_again(folder.root, table_format=wanted)
    assert settings_of(folder).table_format == wanted
    check(folder)
    compact_all(folder.root)
    check(folder)


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Spark starts, with the extra that brings it."""
    monkeypatch.setattr(published, "find_spec", lambda name: None)
    for name in (DELTA, ICEBERG):
        with pytest.raises(Unsupported, match=name) as refused:
            published.require(name)
        assert f"umstack[{name}]" in str(refused.value.hint)
    published.require(PARQUET)


def test_other_readers_see_the_same_rows(folder: Layout, batches: list[pa.Table]) -> None:
    """Polars reads the Delta table or the catalog itself, as the docs say; DuckDB reads the Arrow table."""
    take(folder, 0, batches[0])
    publish(folder, settings_of(folder), partitions_of(folder), 0)
    rows = read_published(folder.root, "losses")
    if settings_of(folder).table_format == DELTA:
        found = pl.scan_delta(str(folder.root / "delta/silver/losses")).collect()
    else:
        root = folder.root / "iceberg"
        catalog = SqlCatalog("umstack", uri=f"sqlite:///{root / 'catalog.db'}", warehouse=root.as_uri())
        found = pl.scan_iceberg(catalog.load_table("silver.losses")).collect()
        catalog.engine.dispose()
    order = sorted(found.columns)
    assert_frame_equal(found.select(order).sort(order), pl.DataFrame(rows).select(order).sort(order))
    assert duckdb.sql("SELECT count(*) FROM rows").fetchall() == [(len(rows),)]


@pytest.mark.parametrize("folder", [ICEBERG], indirect=True)
def test_a_batch_killed_around_a_commit_to_the_catalog_counts_once(
    folder: Layout, batches: list[pa.Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it, the files of the commit are left behind unused; behind it, the log has the batch."""

    class Killed(BaseException):
        """Stands for the end of the process."""

    real, left = SqlCatalog.commit_table, 0

    def commit(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        done = real(*arguments)
        left -= 1
        if left == 0:
            raise Killed
        return done

    take(folder, 0, batches[0])
    publish(folder, settings_of(folder), partitions_of(folder), 0)
    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    for number, at in enumerate((1, 2, 3, 4), 1):
        take(folder, number, batches[number % len(batches)])
        left = at
        with pytest.raises(Killed):
            publish(folder, settings_of(folder), partitions_of(folder), number)
        publish(folder, settings_of(folder), partitions_of(folder), number)
        check(folder)
