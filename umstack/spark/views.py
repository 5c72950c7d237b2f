"""The tables of a pipeline as views of Spark SQL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from umstack.capture.reading.remote import is_remote, shown
from umstack.pipeline.fetched import stored_rows, stored_settings
from umstack.pipeline.layout import BRONZE, TablesError, opened
from umstack.pipeline.published import DELTA, PARQUET, snapshot_files
from umstack.pipeline.table_schema import bronze_schemas, schemas, with_partitions
from umstack.spark.column_notes import commented
from umstack.spark.umpcap_tables import reader_of_files, table_schema


def register_views(spark: SparkSession, tables: str | os.PathLike[str], prefix: str = "") -> list[str]:
    """Make a temporary view of each table of a pipeline.

    A view has the files that exist now: call this again to see those of later batches. Of tables that are also kept as
    Delta or Iceberg, it has the current snapshot; Spark needs no jar for them.

    Args:
        spark: The session that gets the views; earlier views of the same names are replaced.
        tables: The folder that `umstack pipeline` fills, or the URL of its object store.
        prefix: Beginning of the names of the views, for folders of several networks.

    Returns:
        The names of the views: those of the tables in docs/tables.md, `facts` and `messages`; of an object store, the
        silver and gold tables.

    Raises:
        TablesError: The folder has no tables, or those of a newer version.

    Example:
        >>> from umstack.spark import register_views
        >>> register_views(spark, "tables")    # doctest: +SKIP
        >>> spark.sql("SELECT receiver, sum(lost) FROM receiver_days GROUP BY ALL").show()    # doctest: +SKIP
    """
    if is_remote(os.fspath(tables)):
        return _of_store(spark, os.fspath(tables), prefix)
    layout, settings = opened(tables)
    names = []
    for layer, of_layer in {BRONZE: bronze_schemas(), **schemas()}.items():
        for name, schema in of_layer.items():
            columns = commented(with_partitions(schema))
            if layer == BRONZE or settings.table_format == PARQUET:
                rows = spark.read.schema(columns).parquet(str(layout.table(layer, name)))
            else:
                files = snapshot_files(layout, settings, name)
                rows = _of_snapshot(spark, columns, files, is_delta=settings.table_format == DELTA)
            rows.createOrReplaceTempView(prefix + name)
            names.append(prefix + name)
    return names


def _of_store(spark: SparkSession, url: str, prefix: str) -> list[str]:
    """Make a view of each silver and gold table below a URL. The workers read the objects as they read captures."""
    if stored_settings(url) is None:
        raise TablesError(
            f"{shown(url)} has no tables", hint="make them: umstack pipeline captures/ --tables URL"
        )
    names = []
    for layer, of_layer in schemas().items():
        for name in of_layer:
            files = spark.createDataFrame(
                stored_rows(url, layer, name), "path string, day date, session string"
            )
            columns = table_schema(name)
            rows = files.mapInArrow(reader_of_files(url, name), columns)
            rows.createOrReplaceTempView(prefix + name)
            names.append(prefix + name)
    return names


def _of_snapshot(
    spark: SparkSession, columns: StructType, files: Sequence[str], *, is_delta: bool
) -> DataFrame:
    """Read files of a snapshot. The columns of the partitions are in Iceberg's files, and in the names of Delta's
    folders."""
    if not files:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns)
    if is_delta:
        reader = reader.option("basePath", str(Path(files[0]).parents[2]))
    return reader.parquet(*files)
