"""The control plane of the kernel bypass: interfaces, BPF programs and where they are attached.

A library of its own: it knows interfaces and packets, never a topic, and imports nothing of umstack.
"""

from xdp.errors import (
    BpfError,
    InterfaceError,
    NoMulticastRouteError,
    NoSuchInterfaceError,
    NotBuiltError,
    XdpError,
)
from xdp.interface_watch import InterfaceChange, InterfaceWatch
from xdp.interfaces import (
    Interface,
    find_interface,
    interfaces,
    multicast_route,
    require_multicast_route,
)
from xdp.loader import AttachedProgram, BpfMap, BpfObject, BpfProgram, TestRun, object_path, unavailable

__all__ = [
    "AttachedProgram",
    "BpfError",
    "BpfMap",
    "BpfObject",
    "BpfProgram",
    "Interface",
    "InterfaceChange",
    "InterfaceError",
    "InterfaceWatch",
    "NoMulticastRouteError",
    "NoSuchInterfaceError",
    "NotBuiltError",
    "TestRun",
    "XdpError",
    "find_interface",
    "interfaces",
    "multicast_route",
    "object_path",
    "require_multicast_route",
    "unavailable",
]
