"""PySpark data sources: captures as DataFrames.

from umstack.spark import UmpcapDataSource

spark.dataSource.register(UmpcapDataSource)
spark.read.format("umpcap").load("captures/")
"""

from umstack.spark.umpcap import UmpcapDataSource

__all__ = ["UmpcapDataSource"]
