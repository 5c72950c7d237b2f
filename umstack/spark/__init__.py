"""PySpark data sources: captures as DataFrames, and the tables of a pipeline as views.

from umstack.spark import UmpcapDataSource

spark.dataSource.register(UmpcapDataSource)
spark.read.format("umpcap").load("captures/")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umstack.spark.umpcap import UmpcapDataSource
    from umstack.spark.umpcap_manifest import find_splits
    from umstack.spark.views import register_views

__all__ = ["UmpcapDataSource", "find_splits", "register_views"]


def __getattr__(name: str) -> Any:
    """Import on first use: they need PySpark, which other modules here do not."""
    if name == "UmpcapDataSource":
        from umstack.spark.umpcap import UmpcapDataSource

        return UmpcapDataSource
    if name == "find_splits":
        from umstack.spark.umpcap_manifest import find_splits

        return find_splits
    if name == "register_views":
        from umstack.spark.views import register_views

        return register_views
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
