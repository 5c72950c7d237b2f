"""How a session is set up: what spares a virtual machine work is really used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from umstack.analysis.spark_session import class_archive


def test_the_virtual_machine_maps_the_classes_that_are_shared(spark: Any) -> None:
    """The archive that set-up makes is one this Java takes; it would start without, and not say so."""
    archive = class_archive()
    if not archive.exists():
        pytest.skip("there is no archive of classes: python -m umstack.report.class_archive makes it")
    machine = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    assert str(archive) in Path(f"/proc/{machine}/maps").read_text()


def test_where_there_is_little_projections_are_interpreted(spark: Any) -> None:
    """To compile one takes longer than to run it over a few rows: not a class is made for this query."""
    compiled = (
        spark.sparkContext._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    )
    before = compiled.getCount()
    rows = spark.sql("SELECT id * 7 + 3 AS n FROM range(4) WHERE id > 0").collect()
    assert sorted(row["n"] for row in rows) == [10, 17, 24]
    assert compiled.getCount() == before
