"""Spark's daemon that forks Python workers, with the modules imported that every worker of ours needs.

Importing the data sources takes about a second of CPU time per worker, and each query starts several.
`spark.python.daemon.module` names this module (umstack.spark.spark_session sets it). Spark passes the module of the
workers in `sys.argv`, which its daemon reads itself.
"""

from __future__ import annotations

from importlib import import_module

from pyspark.daemon import manager

# pyarrow imports pandas when it first makes an array. Polars starts its threads on first use, not on import: until then
# its process can be forked.
for needed in (
    "pandas",
    "umstack.pipeline.derive",
    "umstack.spark.umpcap_stream",
    "umstack.spark.live_source",
):
    import_module(needed)

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
