"""Measurements of the stack against raw kernel sockets, taken in the same run (`umstack bench`).

Child processes in two hosts of the lab carry out a measurement. The modules `*_ends.py` contain the code of one child,
and the module with the measurement's name contains the measurement as a whole: throughput, latency, recovery, flow,
scale. The raw baselines are in `raw.py`.
"""
