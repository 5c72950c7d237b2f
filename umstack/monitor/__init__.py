"""Monitors captures while they grow: the findings of the report, one time window after the other."""

from umstack.monitor.run import MonitorOptions, monitor

__all__ = ["MonitorOptions", "monitor"]
