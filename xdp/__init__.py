"""The control plane of the kernel bypass: interfaces, BPF programs and where they are attached.

A library of its own: it knows interfaces and packets, never a topic, and imports nothing of umstack.
A name is imported when it is first asked for: netlink alone takes a fifth of a second, which not every user needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xdp.attachment import Attachment, AttachMode, Occupant, occupants
    from xdp.errors import (
        AttachError,
        BpfError,
        BrokerError,
        FlowSteeringError,
        FlowSteeringUnsupportedError,
        GroupError,
        InterfaceError,
        NoMulticastRouteError,
        NoSuchInterfaceError,
        NotBuiltError,
        OccupiedError,
        RingError,
        SteeringError,
        XdpError,
    )
    from xdp.flow_steering import FlowSteering
    from xdp.groups import GroupMemberships
    from xdp.interface import (
        Interface,
        find_interface,
        interfaces,
        multicast_route,
        require_multicast_route,
    )
    from xdp.interface_watch import InterfaceChange, InterfaceWatch
    from xdp.loader import (
        AttachedProgram,
        BpfMap,
        BpfObject,
        BpfProgram,
        ProgramFacts,
        TestRun,
        object_path,
        unavailable,
    )
    from xdp.steering import RuleCounters, Steering, SteeringCounters
    from xdp.xsk import RingFacts, RingMode, RingPort, RingSettings, ring_bytes

_HOMES = {
    "AttachError": "xdp.errors",
    "AttachMode": "xdp.attachment",
    "AttachedProgram": "xdp.loader",
    "Attachment": "xdp.attachment",
    "BpfError": "xdp.errors",
    "BpfMap": "xdp.loader",
    "BpfObject": "xdp.loader",
    "BpfProgram": "xdp.loader",
    "BrokerError": "xdp.errors",
    "FlowSteering": "xdp.flow_steering",
    "FlowSteeringError": "xdp.errors",
    "FlowSteeringUnsupportedError": "xdp.errors",
    "GroupError": "xdp.errors",
    "GroupMemberships": "xdp.groups",
    "Interface": "xdp.interface",
    "InterfaceChange": "xdp.interface_watch",
    "InterfaceError": "xdp.errors",
    "InterfaceWatch": "xdp.interface_watch",
    "NoMulticastRouteError": "xdp.errors",
    "NoSuchInterfaceError": "xdp.errors",
    "NotBuiltError": "xdp.errors",
    "Occupant": "xdp.attachment",
    "OccupiedError": "xdp.errors",
    "ProgramFacts": "xdp.loader",
    "RingError": "xdp.errors",
    "RingFacts": "xdp.xsk",
    "RingMode": "xdp.xsk",
    "RingPort": "xdp.xsk",
    "RingSettings": "xdp.xsk",
    "RuleCounters": "xdp.steering",
    "Steering": "xdp.steering",
    "SteeringCounters": "xdp.steering",
    "SteeringError": "xdp.errors",
    "TestRun": "xdp.loader",
    "XdpError": "xdp.errors",
    "find_interface": "xdp.interface",
    "interfaces": "xdp.interface",
    "multicast_route": "xdp.interface",
    "object_path": "xdp.loader",
    "occupants": "xdp.attachment",
    "require_multicast_route": "xdp.interface",
    "ring_bytes": "xdp.xsk",
    "unavailable": "xdp.loader",
}

__all__ = [
    "AttachError",
    "AttachMode",
    "AttachedProgram",
    "Attachment",
    "BpfError",
    "BpfMap",
    "BpfObject",
    "BpfProgram",
    "BrokerError",
    "FlowSteering",
    "FlowSteeringError",
    "FlowSteeringUnsupportedError",
    "GroupError",
    "GroupMemberships",
    "Interface",
    "InterfaceChange",
    "InterfaceError",
    "InterfaceWatch",
    "NoMulticastRouteError",
    "NoSuchInterfaceError",
    "NotBuiltError",
    "Occupant",
    "OccupiedError",
    "ProgramFacts",
    "RingError",
    "RingFacts",
    "RingMode",
    "RingPort",
    "RingSettings",
    "RuleCounters",
    "Steering",
    "SteeringCounters",
    "SteeringError",
    "TestRun",
    "XdpError",
    "find_interface",
    "interfaces",
    "multicast_route",
    "object_path",
    "occupants",
    "require_multicast_route",
    "ring_bytes",
    "unavailable",
]


def __getattr__(name: str) -> Any:
    """Import what a name stands for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'xdp' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found
