"""Facts of captures, and the analyses made of them, on one machine without Spark.

`facts.facts_of` reads captures once and gives `Facts`; `Facts.merged` adds those of parts, in any order;
`tables.tables_of` makes the tables of a report of them. docs/facts.md has the schema.
"""
