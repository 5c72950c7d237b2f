"""What a capture says about a messaging network: functions from DataFrames to DataFrames.

Each takes the packets of `spark.read.format("umpcap")`, or the observations made of them by `observations.observe`, and
gives a DataFrame. None collects, so they run alike on `local[*]` and on a cluster.
"""
