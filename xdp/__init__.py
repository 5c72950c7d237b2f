"""The control plane of the kernel bypass: interfaces, BPF programs and where they are attached.

An independent library: it handles interfaces and packets, not topics, and imports nothing of umstack. Public names
are imported on first use, because importing netlink alone takes a fifth of a second and not every user needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdp.lazy_names import lazily, names_of

if TYPE_CHECKING:
    from xdp.attachment import Attachment as Attachment
    from xdp.attachment import AttachMode as AttachMode
    from xdp.attachment import Occupant as Occupant
    from xdp.attachment import occupants as occupants
    from xdp.errors import AttachError as AttachError
    from xdp.errors import BpfError as BpfError
    from xdp.errors import BrokerError as BrokerError
    from xdp.errors import FlowSteeringError as FlowSteeringError
    from xdp.errors import FlowSteeringUnsupportedError as FlowSteeringUnsupportedError
    from xdp.errors import GroupError as GroupError
    from xdp.errors import InterfaceError as InterfaceError
    from xdp.errors import NoMulticastRouteError as NoMulticastRouteError
    from xdp.errors import NoSuchInterfaceError as NoSuchInterfaceError
    from xdp.errors import NotBuiltError as NotBuiltError
    from xdp.errors import OccupiedError as OccupiedError
    from xdp.errors import RingError as RingError
    from xdp.errors import SteeringError as SteeringError
    from xdp.errors import XdpError as XdpError
    from xdp.flow_steering import FlowSteering as FlowSteering
    from xdp.groups import GroupMemberships as GroupMemberships
    from xdp.interface import Interface as Interface
    from xdp.interface import find_interface as find_interface
    from xdp.interface import interfaces as interfaces
    from xdp.interface import multicast_route as multicast_route
    from xdp.interface import require_multicast_route as require_multicast_route
    from xdp.interface_watch import InterfaceChange as InterfaceChange
    from xdp.interface_watch import InterfaceWatch as InterfaceWatch
    from xdp.loader import AttachedProgram as AttachedProgram
    from xdp.loader import BpfMap as BpfMap
    from xdp.loader import BpfObject as BpfObject
    from xdp.loader import BpfProgram as BpfProgram
    from xdp.loader import ProgramFacts as ProgramFacts
    from xdp.loader import TestRun as TestRun
    from xdp.loader import object_path as object_path
    from xdp.loader import unavailable as unavailable
    from xdp.ring_place import RingPlace as RingPlace
    from xdp.steering import FrameTimes as FrameTimes
    from xdp.steering import RuleCounters as RuleCounters
    from xdp.steering import Steering as Steering
    from xdp.steering import SteeringCounters as SteeringCounters
    from xdp.xsk import RingFacts as RingFacts
    from xdp.xsk import RingMode as RingMode
    from xdp.xsk import RingSet as RingSet
    from xdp.xsk import RingSettings as RingSettings
    from xdp.xsk import ring_bytes as ring_bytes

_HOME = {
    "Attachment": "attachment",
    "AttachMode": "attachment",
    "Occupant": "attachment",
    "occupants": "attachment",
    "AttachError": "errors",
    "BpfError": "errors",
    "BrokerError": "errors",
    "FlowSteeringError": "errors",
    "FlowSteeringUnsupportedError": "errors",
    "GroupError": "errors",
    "InterfaceError": "errors",
    "NoMulticastRouteError": "errors",
    "NoSuchInterfaceError": "errors",
    "NotBuiltError": "errors",
    "OccupiedError": "errors",
    "RingError": "errors",
    "SteeringError": "errors",
    "XdpError": "errors",
    "FlowSteering": "flow_steering",
    "FrameTimes": "steering",
    "GroupMemberships": "groups",
    "find_interface": "interface",
    "Interface": "interface",
    "interfaces": "interface",
    "multicast_route": "interface",
    "require_multicast_route": "interface",
    "InterfaceChange": "interface_watch",
    "InterfaceWatch": "interface_watch",
    "AttachedProgram": "loader",
    "BpfMap": "loader",
    "BpfObject": "loader",
    "BpfProgram": "loader",
    "object_path": "loader",
    "ProgramFacts": "loader",
    "TestRun": "loader",
    "unavailable": "loader",
    "RingPlace": "ring_place",
    "RuleCounters": "steering",
    "Steering": "steering",
    "SteeringCounters": "steering",
    "ring_bytes": "xsk",
    "RingFacts": "xsk",
    "RingMode": "xsk",
    "RingSet": "xsk",
    "RingSettings": "xsk",
}

__all__ = sorted(_HOME)
if not TYPE_CHECKING:  # a type checker would accept any name of a module that has __getattr__
    __getattr__ = lazily(__name__, _HOME)
__dir__ = names_of(__name__, _HOME)
