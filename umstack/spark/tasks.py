"""How far Spark is with what it is at."""

from __future__ import annotations

from pyspark.sql import SparkSession


def tasks_of(spark: SparkSession) -> tuple[int, int]:
    """Of the stages that run: the tasks that are done, and how many there are."""
    tracker = spark.sparkContext.statusTracker()
    found = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    stages = [stage for stage in found if stage is not None]
    return sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
