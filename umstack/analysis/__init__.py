"""Analyses of captures: functions of facts, in Polars, independent of Spark.

`tables.tables_of` makes every table of docs/analysis.md from `umstack.facts.facts.Facts`. Reports without Spark, on
Spark, and the live monitor call the same functions.
"""
