"""Writes tables with Spark in a format that it has a data source for: Delta, Iceberg, ORC. Parquet needs no Spark.

The data source comes with the user's Spark (`spark-submit --packages`, or the cluster's jars).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from umstack.errors import InvalidArgument

PARQUET = "parquet"


def write_table(spark: SparkSession, table: pa.Table, folder: Path, kind: str) -> None:
    """Write a table, replacing an older one."""
    writer = spark.createDataFrame(table).write.format(kind).mode("overwrite")
    try:
        writer.save(folder.as_uri())
    except (PySparkException, Py4JJavaError) as error:
        raise _refused(kind, error) from error


def append_table(
    spark: SparkSession, table: pa.Table, folder: Path, kind: str, stream: str, number: int
) -> None:
    """Append the rows of batch `number` of a stream.

    Delta identifies batches by stream and number and skips a repeated one. Other formats then contain the rows twice.
    """
    writer = spark.createDataFrame(table).write.format(kind).mode("append")
    writer = writer.option("txnAppId", stream).option("txnVersion", number)
    try:
        writer.save(folder.as_uri())
    except (PySparkException, Py4JJavaError) as error:
        raise _refused(kind, error) from error


def _refused(kind: str, error: Exception) -> InvalidArgument:
    # PySpark has no exception for an unknown data source; it is a Java exception.
    message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    line = str(message).splitlines()[0]
    hint = "Spark needs the format's jars: name them in spark.jars.packages"
    return InvalidArgument(f"tables cannot be written as {kind}: {line}", hint=hint)
