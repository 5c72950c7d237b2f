"""PySpark data sources: captures as DataFrames.

from umstack.spark import UmpcapDataSource

spark.dataSource.register(UmpcapDataSource)
spark.read.format("umpcap").load("captures/")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from umstack.spark.umpcap import UmpcapDataSource

__all__ = ["UmpcapDataSource"]


def __getattr__(name: str) -> Any:
    """Import the data source on first use: it needs PySpark, and other modules here do not."""
    if name == "UmpcapDataSource":
        from umstack.spark.umpcap import UmpcapDataSource

        return UmpcapDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
