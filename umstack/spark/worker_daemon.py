"""What Spark forks its Python workers from: Spark's own daemon, with what every worker of ours needs imported before.

An import of the data sources takes a worker about a second of processor time, and each query starts several.
`spark.python.daemon.module` names it (umstack.spark.spark_session does). Spark puts the module of the workers
in `sys.argv`, which its daemon reads itself.
"""

from __future__ import annotations

from importlib import import_module

from pyspark.daemon import manager

# Pandas is what pyarrow imports when it first makes an array. Polars starts its threads when it is first used, not when
# it is imported: until then a process of it can be forked.
for needed in (
    "pandas",
    "umstack.analysis.tables",
    "umstack.spark.umpcap_stream",
    "umstack.spark.live_source",
):
    import_module(needed)

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
