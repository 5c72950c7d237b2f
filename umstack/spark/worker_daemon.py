"""Spark's daemon that forks Python workers, with the modules imported that every worker of ours needs.

Importing the data sources takes about a second of CPU time per worker, and each query starts several.
`spark.python.daemon.module` names this module (umstack.spark.spark_session sets it). Spark passes the module of the
workers in `sys.argv`, which its daemon reads itself.

A worker also does two things per task whose time grows with the imported modules, 0.15 s together, so the daemon makes
both cheap: it lists the archives again that modules come from (pyspark.zip, once per package), and collects garbage.
"""

from __future__ import annotations

import gc
import zipimport
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


def _keep_directory(self: zipimport.zipimporter) -> None:
    """Keep the list of an archive's files. Archives that Spark adds later have other names."""


if __name__ == "__main__":
    zipimport.zipimporter.invalidate_caches = _keep_directory  # type: ignore[method-assign]
    # The imported modules live as long as the worker, so no collection needs to look at them.
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
