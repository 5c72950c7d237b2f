"""Captures watched as they grow: the findings of the report, a window of time at a time."""

from umstack.monitor.run import MonitorOptions, monitor

__all__ = ["MonitorOptions", "monitor"]
