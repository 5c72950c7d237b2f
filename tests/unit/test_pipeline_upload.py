"""A pipeline's tables in an object store: the objects are the files, also after an upload that was killed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("polars")
pytest.importorskip("moto")

import polars as pl
from polars.testing import assert_frame_equal

from tests.unit.object_store import copied_to, made_bucket, objects, running_store
from tests.unit.pipeline_tables import (
    SETTINGS,
    START_NS,
    batches_of,
    made_capture,
    made_layout,
    packed_facts,
    take,
)
from umstack.analysis.tables import tables_of
from umstack.capture.reading.remote import Version
from umstack.errors import UmError
from umstack.facts.facts import facts_of
from umstack.pipeline import fetched, parts, upload
from umstack.pipeline.fetched import Fetched
from umstack.pipeline.layout import DAY_NS, SILVER, Layout, Partition, TablesError, opened
from umstack.pipeline.maintenance import compact_all
from umstack.pipeline.published import publish
from umstack.pipeline.read_back import read_tables
from umstack.pipeline.upload import Upload, is_store

_FOLDERS = itertools.count()


@pytest.fixture(scope="module")
def store() -> Iterator[tuple[Any, str]]:
    """Run a store with a bucket; yield its file system, and the query part of URLs."""
    with running_store() as query:
        yield made_bucket("lake", query), query


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a capture of one day with two sessions."""
    return made_capture(tmp_path_factory.mktemp("capture"))


@pytest.fixture
def where(store: tuple[Any, str]) -> tuple[Any, str, str]:
    """Return the file system, and path and URL of a folder of its own."""
    path = f"lake/tables-{next(_FOLDERS)}"
    return store[0], path, f"s3://{path}?{store[1]}"


def _files(layout: Layout) -> dict[str, bytes]:
    """Return the tables' files of a folder."""
    found = (file for file in layout.root.rglob("*.*") if file.is_file())
    names = {str(file.relative_to(layout.root)): file for file in found}
    wanted = (f"{upload.STATE}/layout.json", f"{upload.STATE}/captures.json")
    return {
        name: file.read_bytes()
        for name, file in names.items()
        if not name.startswith(upload.STATE) or name in wanted
    }


def _shown(contents: dict[str, bytes]) -> dict[str, bytes]:
    """Leave out the object that names the writer."""
    return {name: content for name, content in contents.items() if not name.endswith("/writer.json")}


def _partitions(layout: Layout) -> set[Partition]:
    return {(day, session) for session, days in layout.sessions().items() for day in days}


def test_objects_are_the_files_of_each_batch(
    tmp_path: Path, capture: str, where: tuple[Any, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compactions on the way leave no object behind; a copy of the store has the report's tables."""
    monkeypatch.setattr(parts, "PARTS_MAX", 2)
    filesystem, path, url = where
    layout = made_layout(tmp_path / "tables")
    layout.add_captures([capture])
    assert Upload(layout, url).everything() > 20
    assert Upload(layout, url).everything() == 0
    for number, rows in enumerate(batches_of(capture, 1_200_000)):
        take(layout, number, rows)
        assert Upload(layout, url).partitions(_partitions(layout)) > 5
        assert _shown(objects(filesystem, path)) == _files(layout)
    compact_all(layout.root, url)
    found = objects(filesystem, path)
    assert _shown(found) == _files(layout)
    made, packets, captures, settings = read_tables(copied_to(tmp_path / "copy", found))
    assert (packets, captures, settings) == (1500, [capture], SETTINGS)
    for name, table in tables_of(facts_of([capture])).items():
        assert_frame_equal(made[name], table, rel_tol=1e-12, abs_tol=0)


class _Killed(BaseException):
    """Stands for the end of the process."""


def test_an_upload_killed_at_any_object_and_repeated_is_complete(
    tmp_path: Path, capture: str, where: tuple[Any, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after an object is written or removed; the next batch merges files that were being uploaded."""
    monkeypatch.setattr(parts, "PARTS_MAX", 3)
    monkeypatch.setattr(upload, "_THREADS", 1)
    filesystem, path, url = where
    layout = made_layout(tmp_path / "tables")
    batches = iter(batches_of(capture, 150_000) * 2)
    left = 0

    def counted(name: str) -> None:
        real = getattr(Upload, name)

        def operation(*arguments: Any) -> None:
            nonlocal left
            for is_before in (True, False):
                left -= 1
                if left == 0:
                    raise _Killed
                if is_before:
                    real(*arguments)

        monkeypatch.setattr(Upload, name, operation)

    for name in ("_put", "_remove"):
        counted(name)
    kills = 0
    for at in (3, 6, 9, 30):
        take(layout, at, next(batches))
        left = at
        with pytest.raises(_Killed):
            Upload(layout, url).everything()
        kills += filesystem.get_file_info(f"{path}/{upload.STATE}/unfinished").is_file
        left = 0
        take(layout, at, next(batches))
    Upload(layout, url).everything()
    assert kills == 3  # the first was killed as it wrote its name
    assert _shown(objects(filesystem, path)) == _files(layout)


def test_a_new_day_changes_its_own_objects_only(tmp_path: Path, where: tuple[Any, str, str]) -> None:
    """Objects of other days keep their time; Polars reads the tables of both."""
    _, path, url = where
    layout = made_layout(tmp_path / "tables")
    Upload(layout, url).everything()
    days, written = [], []
    real = Upload._put

    def put(self: Upload, name: str, content: Any) -> None:
        written.append(name)
        real(self, name, content)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Upload, "_put", put)
        for number in (0, 2):
            made = made_capture(tmp_path, start_ns=START_NS + number * DAY_NS)
            take(layout, number, packed_facts(facts_of([made])))
            written.clear()
            Upload(layout, url).partitions({one for one in _partitions(layout) if one[0] not in days})
            days = [day for day, _ in _partitions(layout)]
            of_days = {part for name in written for part in name.split("/") if part.startswith("date=")}
            assert of_days == {f"date={max(days)}"}
            assert len(written) > 20
    query = url.partition("?")[2]
    endpoint = query.partition("endpoint_override=")[2].partition("&")[0]
    read = pl.scan_parquet(
        f"s3://{path}/silver/losses/**/rows.parquet",
        storage_options={
            "aws_endpoint_url": f"http://{endpoint}",
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        },
        hive_partitioning=True,
    ).collect()
    wanted = pl.read_parquet(layout.table(SILVER, "losses") / "**" / "rows.parquet", hive_partitioning=True)
    assert_frame_equal(read.sort(read.columns), wanted.sort(read.columns))


def test_commits_of_delta_tables_follow_their_files(
    tmp_path: Path, capture: str, where: tuple[Any, str, str]
) -> None:
    """At each object written, the Delta tables in the store can be read: none or all rows of a batch."""
    pytest.importorskip("deltalake")
    from deltalake import DeltaTable

    filesystem, path, url = where
    layout = made_layout(tmp_path / "tables")
    settings = replace(SETTINGS, table_format="delta")
    layout.save(settings)
    counts: list[int] = []
    real = Upload._put_file

    def put(self: Upload, name: str) -> None:
        real(self, name)
        if "/silver/losses/_delta_log/" in f"/{name}":
            local = copied_to(
                tmp_path / f"seen-{len(counts)}", objects(filesystem, f"{path}/delta/silver/losses")
            )
            counts.append(len(DeltaTable(local).to_pyarrow_table()))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Upload, "_put_file", put)
        for number, rows in enumerate(batches_of(capture, 900_000)[:2]):
            take(layout, number, rows)
            publish(layout, settings, _partitions(layout), number)
            Upload(layout, url).partitions(_partitions(layout))
    losses = len(pl.read_parquet(layout.table(SILVER, "losses") / "**" / "rows.parquet"))
    assert counts[-1] == losses > 10
    assert counts == sorted(counts)


def test_a_store_belongs_to_one_folder(tmp_path: Path, where: tuple[Any, str, str]) -> None:
    """Another folder would leave objects that nobody removes. An emptied store is filled again."""
    filesystem, path, url = where
    layout, other = (made_layout(tmp_path / name) for name in ("tables", "other"))
    many = Upload(layout, url).everything()
    with pytest.raises(TablesError, match=f"has the tables of the folder {layout.root}"):
        Upload(other, url).everything()
    filesystem.delete_file(f"{path}/{upload.STATE}/writer.json")
    with pytest.raises(TablesError, match="has the tables of a folder that was copied"):
        Upload(other, url).everything()
    filesystem.delete_dir(path)
    assert Upload(layout, url).everything() == many


def test_a_report_reads_the_tables_of_a_store(
    tmp_path: Path, capture: str, where: tuple[Any, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fetches silver tables, and facts only where it needs them; a batch that comes meanwhile is fetched, too."""
    filesystem, path, url = where
    layout = made_layout(tmp_path / "tables")
    layout.add_captures([capture])
    batches = batches_of(capture, 900_000)
    take(layout, 0, batches[0])
    Upload(layout, url).everything()
    update, updates, seen = fetched._update, list[int](), set[str]()

    def updated(of: Fetched, known: dict[str, Version], wanted: dict[str, Version]) -> None:
        update(of, known, wanted)
        seen.update(wanted)
        updates.append(len({*wanted.items()} - {*known.items()}))
        if len(updates) < len(batches):
            take(layout, len(updates), batches[len(updates)])
            Upload(layout, url).everything()

    monkeypatch.setattr(fetched, "_update", updated)
    made, packets, captures, settings = read_tables(url)
    assert (packets, captures, settings) == (1500, [capture], SETTINGS)
    for name, table in tables_of(facts_of([capture])).items():
        assert_frame_equal(made[name], table, rel_tol=1e-12, abs_tol=0)
    assert len(updates) == len(batches) > 1
    assert 0 < max(updates[1:]) < updates[0]
    assert {one.split("/")[3] for one in seen if one.startswith("bronze/")} == {"session=none"}
    monkeypatch.setattr(fetched, "_update", update)
    # Each session is active in two periods now: its tables are made from its facts.
    later = made_capture(tmp_path, start_ns=START_NS + 2 * DAY_NS)
    take(layout, 9, packed_facts(facts_of([later])))
    Upload(layout, url).everything()
    made, wanted = read_tables(url)[0], tables_of(facts_of([capture, later]))
    assert_frame_equal(made["sessions"], wanted["sessions"], rel_tol=1e-12, abs_tol=0)
    assert made["losses"].equals(wanted["losses"])
    monkeypatch.setattr(fetched, "_ROUND_SECONDS", 0)
    with filesystem.open_output_stream(f"{path}/_umstack/unfinished") as stream:
        stream.write(b"")
    with pytest.raises(TablesError, match=f"the objects of s3://{path} have changed") as failed:
        read_tables(url)
    assert "a pipeline was killed" in failed.value.hint
    with pytest.raises(TablesError, match="s3://lake/nothing has no tables"):
        read_tables(f"s3://lake/nothing?{where[2].partition('?')[2]}")


def test_a_store_that_cannot_be_used_is_reported(tmp_path: Path, where: tuple[Any, str, str]) -> None:
    """The error has the URL without connection parameters."""
    layout = made_layout(tmp_path / "tables")
    query = where[2].partition("?")[2].replace("allow_bucket_creation=true", "allow_bucket_creation=false")
    with pytest.raises(TablesError, match=r"uploading to s3://absent/tables: ") as failed:
        Upload(layout, f"s3://absent/tables?{query}").everything()
    assert "endpoint_override" not in str(failed.value)
    with pytest.raises(TablesError, match="s3://lake/tables is no folder") as failed:
        opened("s3://lake/tables?region=x")
    assert "work folder" in failed.value.hint
    assert opened(layout.root.as_uri()) == opened(layout.root)
    assert Layout(layout.state / "layout.json").settings() is None
    assert is_store("gs://bucket/tables")
    assert not is_store("/tables")
    assert not is_store("file:///tables")
    with pytest.raises(UmError, match="hdfs://head/tables cannot hold tables"):
        is_store("hdfs://head/tables")
