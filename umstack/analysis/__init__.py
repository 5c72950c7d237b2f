"""What a capture says about a messaging network: functions of facts, in Polars, with no Spark in them.

`tables.tables_of` makes every table of docs/analysis.md of `umstack.facts.facts.Facts`. Alone, on Spark and live the
same functions are called.
"""
