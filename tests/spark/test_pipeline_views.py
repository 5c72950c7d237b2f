"""The tables of a pipeline in Spark SQL, the data source, DuckDB and Polars: the same rows in each."""

from __future__ import annotations

import re
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("polars")

import duckdb
import polars as pl
import pyarrow.parquet as pq
from polars.testing import assert_frame_equal

from tests.unit.pipeline_tables import DAY, START_NS, made_capture, made_layout, packed_facts, take
from umstack.capture import CaptureError
from umstack.facts.facts import facts_of
from umstack.pipeline.layout import DAY_NS, SILVER, Layout, TablesError
from umstack.pipeline.table_schema import schemas, with_partitions
from umstack.spark import UmpcapDataSource, register_views

PAGE = Path(__file__).parents[2] / "docs" / "pipeline.md"


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return the tables of two days, in a folder named as in the docs."""
    folder = tmp_path_factory.mktemp("views")
    (folder / "captures").mkdir()
    made = made_layout(folder / "tables")
    for number in range(2):
        capture = made_capture(folder / "captures", START_NS + number * DAY_NS)
        take(made, number, packed_facts(facts_of([capture])))
    return made


@pytest.mark.timeout(300)
def test_views_of_an_object_store_have_the_same_rows(spark: Any, layout: Layout) -> None:
    """Without a jar for the store: the workers read the objects."""
    pytest.importorskip("moto")
    from tests.unit.object_store import KEYS, made_bucket, running_store
    from umstack.pipeline.upload import Upload

    with running_store() as query:
        made_bucket("views", query)
        keys = f"{KEYS['AWS_ACCESS_KEY_ID']}:{KEYS['AWS_SECRET_ACCESS_KEY']}"
        url = f"s3://{keys}@views/tables?{query}"
        Upload(layout, url).everything()
        assert register_views(spark, url, prefix="store_") == [
            f"store_{one}" for of in schemas().values() for one in of
        ]
        register_views(spark, url.replace("s3://", "s3a://"), prefix="hadoop_")
        assert spark.table("hadoop_losses").count() == spark.table("store_losses").count() > 0
        for layer, name in (("silver", "losses"), ("gold", "receiver_days"), ("silver", "ip_fragments")):
            files = f"{layout.table(layer, name)}/**/*.parquet"
            wanted = _frame(pl.scan_parquet(files, hive_partitioning=True).collect())
            assert_frame_equal(_frame(spark.table(f"store_{name}").toArrow()), wanted, check_dtypes=False)
        of_days = spark.sql(
            "SELECT date, sum(lost) FROM store_receiver_days GROUP BY date ORDER BY date"
        ).collect()
        assert [row["date"] for row in of_days] == [DAY, DAY + timedelta(days=1)]
        with pytest.raises(TablesError, match="s3://views/nothing has no tables"):
            register_views(spark, url.replace("tables", "nothing"))


def _frame(table: Any) -> pl.DataFrame:
    """Return rows in an order and with types that do not depend on the reader."""
    found = pl.DataFrame(table)
    flat = [name for name, kind in found.schema.items() if not kind.is_nested()]
    return found.select(sorted(found.columns)).sort(sorted(flat))


@pytest.mark.timeout(300)
def test_each_table_has_the_same_rows_in_every_reader(spark: Any, layout: Layout) -> None:
    """Views, the data source, DuckDB and Polars; also tables without rows."""
    register_views(spark, layout.root, prefix="net_")
    spark.dataSource.register(UmpcapDataSource)
    with_rows = set()
    for layer, tables in schemas().items():
        for name, schema in tables.items():
            files = f"{layout.table(layer, name)}/**/*.parquet"
            wanted = _frame(pl.scan_parquet(files, hive_partitioning=True).collect())
            assert wanted.columns == sorted(with_partitions(schema).names)
            by_view = spark.table(f"net_{name}")
            read = spark.read.format("umpcap").option("rows", name).load(str(layout.root))
            assert read.schema["date"].metadata["comment"]
            by_duckdb = duckdb.sql(
                f"FROM read_parquet('{files}', hive_partitioning = true, union_by_name = true)"
            )
            for rows in (by_view.toArrow(), read.toArrow(), by_duckdb.to_arrow_table()):
                assert_frame_equal(_frame(rows), wanted, check_exact=True)
            if len(wanted):
                with_rows.add(name)
    assert {"sessions", "losses", "incidents", "topics", "findings", "topic_days", "rates"} <= with_rows
    assert spark.table("net_facts").where("date = DATE'2026-03-05'").count() > 0


@pytest.mark.timeout(300)
def test_rows_of_captures_are_those_of_the_tables(spark: Any, layout: Layout) -> None:
    """The data source computes a table of captures with the rows that a pipeline derives."""
    spark.dataSource.register(UmpcapDataSource)

    def rows(name: str, path: Path) -> pl.DataFrame:
        return _frame(spark.read.format("umpcap").option("rows", name).load(str(path)).toArrow())

    for name in ("losses", "receiver_days"):
        made = rows(name, layout.root.parent / "captures")
        assert set(made["date"]) == {DAY, date(2026, 3, 5)}
        assert_frame_equal(made, rows(name, layout.root))
    with pytest.raises(Exception, match="name of a table"):
        rows("loses", layout.root)
    with pytest.raises(Exception, match="a stream has only packets and facts"):
        spark.readStream.format("umpcap").option("rows", "losses").load(str(layout.root)).writeStream.format(
            "memory"
        ).queryName("nothing").start().processAllAvailable()


def test_a_file_of_an_older_version_has_null_in_a_new_column(spark: Any, layout: Layout) -> None:
    """All readers agree on a table of which one file lacks a column."""
    spark.dataSource.register(UmpcapDataSource)
    file = sorted(layout.table(SILVER, "sessions").rglob("rows.parquet"))[0]
    whole = pq.read_table(file, partitioning=None)
    pq.write_table(whole.drop_columns(["restarts"]), file)
    try:
        register_views(spark, layout.root)
        files = f"{layout.table(SILVER, 'sessions')}/**/*.parquet"
        found = [
            spark.table("sessions").toArrow(),
            spark.read.format("umpcap").option("rows", "sessions").load(str(layout.root)).toArrow(),
            duckdb.sql(f"FROM read_parquet('{files}', union_by_name = true)").to_arrow_table(),
            pl.scan_parquet(files, missing_columns="insert").collect().to_arrow(),
        ]
        assert [sorted(rows["restarts"].to_pylist(), key=str) for rows in found] == [[1, None]] * 4
    finally:
        pq.write_table(whole, file)


def test_the_analyses_of_the_docs_answer_the_question(
    spark: Any, layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark SQL, DuckDB and Polars print the receiver that lost most, first, with the right number."""
    monkeypatch.chdir(layout.root.parent)
    losses = pl.read_parquet("tables/silver/losses/**/rows.parquet")
    totals = losses.group_by("receiver").len().sort("len", descending=True)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        assert len(block.strip().splitlines()) <= 12
        exec(block, {"spark": spark})
        printed = capsys.readouterr().out
        assert re.search(rf"{totals['receiver'][0]}\W+{totals['len'][0]}\b", printed), printed
        assert printed.index(totals["receiver"][0]) < printed.index(totals["receiver"][1])


def test_a_column_that_a_table_lacks_is_an_error(spark: Any, layout: Layout) -> None:
    """The error names the column."""
    spark.dataSource.register(UmpcapDataSource)
    reader = spark.read.format("umpcap").option("rows", "losses").schema("nothing string")
    with pytest.raises(Exception, match="losses has no column nothing") as raised:
        reader.load(str(layout.root)).collect()
    assert CaptureError.__name__ in str(raised.value)
