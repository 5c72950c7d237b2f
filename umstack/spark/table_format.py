"""Tables written by Spark in a format it has a data source for: Delta, Iceberg, ORC; Parquet needs no Spark.

The data source comes with the Spark of who asks (`spark-submit --packages`, or jars of the cluster).
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
    """Write a table in place of an older one."""
    writer = spark.createDataFrame(table).write.format(kind).mode("overwrite")
    try:
        writer.save(folder.as_uri())
    except (PySparkException, Py4JJavaError) as error:
        raise _refused(kind, error) from error


def append_table(
    spark: SparkSession, table: pa.Table, folder: Path, kind: str, stream: str, number: int
) -> None:
    """Append the rows of batch `number` of a stream.

    Delta knows by the two which batches it has: one that is done again is not written again. Other formats have it
    twice then.
    """
    writer = spark.createDataFrame(table).write.format(kind).mode("append")
    writer = writer.option("txnAppId", stream).option("txnVersion", number)
    try:
        writer.save(folder.as_uri())
    except (PySparkException, Py4JJavaError) as error:
        raise _refused(kind, error) from error


def _refused(kind: str, error: Exception) -> InvalidArgument:
    # An unknown data source is an exception of Java's that PySpark has no name for.
    said = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    line = str(said).splitlines()[0]
    hint = "Spark has the format only with its jars: name them in spark.jars.packages"
    return InvalidArgument(f"tables cannot be written as {kind}: {line}", hint=hint)
