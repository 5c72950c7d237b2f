"""A pipeline of tables from captures: facts (bronze), analyses of sessions (silver), rollups and findings (gold).

`umstack.pipeline.run` fills a folder of tables with Spark; `umstack.pipeline.read_back` reads it without Spark.
"""
