"""The control plane of the kernel bypass: interfaces, BPF programs and where they are attached.

A library of its own: it knows interfaces and packets, never a topic, and imports nothing of umstack.
"""

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
from xdp.interface_watch import InterfaceChange, InterfaceWatch
from xdp.interfaces import (
    Interface,
    find_interface,
    interfaces,
    multicast_route,
    require_multicast_route,
)
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
