"""The driver: one process that owns the link of an interface for the applications of the host (docs/driver.md)."""

from umstack.driving.driver import Driver, DriverEvent, DriverLimits

__all__ = ["Driver", "DriverEvent", "DriverLimits"]
