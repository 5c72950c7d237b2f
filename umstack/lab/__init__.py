"""The lab: hosts and a lossy switch in network namespaces on one machine, isolated from everything outside.

`Lab` creates one; docs/architecture.md shows the path of a datagram through it.
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
