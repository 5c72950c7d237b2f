"""The application's side of the driver, and the protocol between both (docs/driver.md)."""

from umstack.driver.client import DriverClient, attach, listening_path
from umstack.driver.protocol import SharedLog, default_path

__all__ = ["DriverClient", "SharedLog", "attach", "default_path", "listening_path"]
