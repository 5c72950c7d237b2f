"""Telemetry: the schema of the counters, reading them, and showing them to other processes."""
