"""The settings of a session: those that save JVM work are in effect."""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import tempfile
import time
import zipimport
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from umstack.spark import driver_folder as folders
from umstack.spark.driver_folder import driver_folder
from umstack.spark.spark_session import class_archive, spark_session

_OWNER = """
import sys, time
from umstack.spark.driver_folder import driver_folder
with driver_folder("umstack-test-") as folder:
    (folder / "data").write_text("much")
    print(folder, flush=True)
    time.sleep(120)
"""


def test_the_next_start_removes_the_folder_of_a_killed_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a killed driver is removed; those of live drivers, with other names, and links stay."""
    monkeypatch.setattr(folders, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other, target = tmp_path / "other-1", tmp_path / "target"
    other.mkdir()
    target.mkdir()
    (tmp_path / "umstack-test-link").symlink_to(target)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    owners = [
        subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    try:
        killed, living = [Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout]
        owners[0].kill()
        owners[0].wait()
        assert (killed / "data").exists()
        with driver_folder("umstack-test-") as mine:
            assert mine.parent == tmp_path
            assert not killed.exists()
            assert (living / "data").exists()
            assert other.exists()
            assert target.exists()
        assert not mine.exists()
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()


def test_a_new_folder_without_a_lock_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new folder has no lock yet; two drivers that start at the same time keep their folders."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    young = tmp_path / "umstack-test-young"
    young.mkdir()
    with driver_folder("umstack-test-"):
        assert young.exists()
    monkeypatch.setattr(folders, "SETTLE_SECONDS", 0.05)
    time.sleep(0.1)
    with driver_folder("umstack-test-"):
        assert not young.exists()


def test_the_virtual_machine_maps_the_classes_that_are_shared(spark: Any) -> None:
    """Java uses the archive made by set-up; otherwise it would start without it and log nothing."""
    archive = class_archive()
    if not archive.exists():
        pytest.skip("there is no archive of classes: python -m umstack.report.class_archive makes it")
    machine = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive) in Path(f"/proc/{machine}/maps").read_text()


def test_projections_are_interpreted_for_little_data(spark: Any) -> None:
    """For a few rows compiling takes longer than interpreting, so no class is generated for this query."""
    compiled = (
        spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    )
    before = compiled.getCount()
    rows = spark.sql("SELECT id * 7 + 3 AS n FROM range(4) WHERE id > 0").collect()
    assert sorted(row["n"] for row in rows) == [10, 17, 24]
    assert compiled.getCount() == before


def test_a_task_neither_lists_archives_again_nor_collects_modules(spark: Any) -> None:
    """Spark does both in a worker for each task, and they took 0.15 s of it."""

    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        archives = [one for one in sys.path_importer_cache.values() if isinstance(one, zipimport.zipimporter)]
        listed: list[str] = []
        zipimport._read_directory = lambda path: listed.append(path) or {}  # type: ignore[attr-defined,func-returns-value]
        importlib.invalidate_caches()
        kept = sum(batch.num_rows for batch in batches)
        columns = [[kept], [len(archives)], [len(listed)], [gc.get_freeze_count()], [len(gc.get_objects())]]
        yield pa.record_batch(columns, names=["kept", "archives", "listed", "frozen", "objects"])

    schema = "kept long, archives long, listed long, frozen long, objects long"
    [row] = spark.range(3).coalesce(1).mapInArrow(look, schema).collect()
    assert row.kept == 3
    assert row.archives > 5, "PySpark is in an archive"
    assert row.listed == 0
    assert row.frozen > 5 * row.objects


def test_another_thread_uses_the_running_session_and_does_not_stop_it(spark: Any) -> None:
    """Spark has an active session per thread; a session that a thread did not start goes on after its end."""

    def used() -> Any:
        with spark_session("another") as session:
            return session

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(used).result() is spark
    assert spark.range(3).count() == 3
