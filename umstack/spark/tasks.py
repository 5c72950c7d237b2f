"""Progress of Spark's running stages."""

from __future__ import annotations

from pyspark.sql import SparkSession


def tasks_of(spark: SparkSession) -> tuple[int, int]:
    """Return the number of completed tasks and of all tasks of the running stages."""
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
