"""The lab: hosts and a lossy switch in network namespaces, on one machine, touching nothing outside.

`Lab` makes one; see docs/architecture.md for how a datagram crosses it.
"""

from umstack.lab.errors import LabError
from umstack.lab.host import Host
from umstack.lab.lab import Lab
from umstack.lab.offload import Segmentation
from umstack.lab.port import Port, PortCounters, PortDirection, PortSettings

__all__ = [
    "Host",
    "Lab",
    "LabError",
    "Port",
    "PortCounters",
    "PortDirection",
    "PortSettings",
    "Segmentation",
]
