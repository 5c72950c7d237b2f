"""Facts of captures: the counts and rows from which the analyses are computed, on one machine without Spark.

`facts.facts_of` reads each capture once and returns `Facts`. `Facts.merged` adds the facts of parts in any order.
`tables.tables_of` computes the tables of a report from them. docs/facts.md lists the schema.
"""
