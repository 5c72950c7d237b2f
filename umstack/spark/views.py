"""The tables of a pipeline as views of Spark SQL."""

from __future__ import annotations

import os

from pyspark.sql import SparkSession

from umstack.pipeline.layout import BRONZE, opened
from umstack.pipeline.table_schema import bronze_schemas, schemas, with_partitions
from umstack.spark.column_notes import commented


def register_views(spark: SparkSession, tables: str | os.PathLike[str], prefix: str = "") -> list[str]:
    """Make a temporary view of each table of a pipeline.

    A view has the files that exist now: call this again, or `REFRESH TABLE`, to see those of later batches.

    Args:
        spark: The session that gets the views; earlier views of the same names are replaced.
        tables: The folder that `umstack pipeline` fills.
        prefix: Beginning of the names of the views, for folders of several networks.

    Returns:
        The names of the views: those of the tables in docs/tables.md, `facts` and `messages`.

    Raises:
        TablesError: The folder has no tables, or those of a newer version.

    Example:
        >>> from umstack.spark import register_views
        >>> register_views(spark, "tables")    # doctest: +SKIP
        >>> spark.sql("SELECT receiver, sum(lost) FROM receiver_days GROUP BY ALL").show()    # doctest: +SKIP
    """
    layout, _ = opened(tables)
    names = []
    for layer, of_layer in {BRONZE: bronze_schemas(), **schemas()}.items():
        for name, schema in of_layer.items():
            reader = spark.read.schema(commented(with_partitions(schema)))
            reader.parquet(str(layout.table(layer, name))).createOrReplaceTempView(prefix + name)
            names.append(prefix + name)
    return names
