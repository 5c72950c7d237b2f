"""Measurements of the stack against raw kernel sockets, taken in the same run (`umstack bench`).

A measurement is carried out by child processes in two hosts of the lab; what one of them does is in `*_ends.py`, and
the measurement as a whole in the module of its name: throughput, latency, recovery, flow, scale. The raw baselines are
in `raw.py`.
"""
