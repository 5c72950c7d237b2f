"""The control plane of the kernel bypass: interfaces, BPF programs and where they are attached.

An independent library: it handles interfaces and packets, not topics, and imports nothing of umstack. Public names
are imported on first use, because importing netlink alone takes a fifth of a second and not every user needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if __name__ != "umstack_xdp":
    raise ImportError(
        f"this package is umstack_xdp, not {__name__}: two copies of it would not share their classes"
    )

from umstack_xdp.lazy_names import lazily, names_of

if TYPE_CHECKING:
    from umstack_xdp.attachment import Attachment as Attachment
    from umstack_xdp.attachment import AttachMode as AttachMode
    from umstack_xdp.attachment import Occupant as Occupant
    from umstack_xdp.attachment import occupants as occupants
    from umstack_xdp.errors import AttachError as AttachError
    from umstack_xdp.errors import BpfError as BpfError
    from umstack_xdp.errors import BrokerError as BrokerError
    from umstack_xdp.errors import FlowSteeringError as FlowSteeringError
    from umstack_xdp.errors import FlowSteeringUnsupportedError as FlowSteeringUnsupportedError
    from umstack_xdp.errors import GroupError as GroupError
    from umstack_xdp.errors import InterfaceError as InterfaceError
    from umstack_xdp.errors import NoMulticastRouteError as NoMulticastRouteError
    from umstack_xdp.errors import NoSuchInterfaceError as NoSuchInterfaceError
    from umstack_xdp.errors import NotBuiltError as NotBuiltError
    from umstack_xdp.errors import OccupiedError as OccupiedError
    from umstack_xdp.errors import RingError as RingError
    from umstack_xdp.errors import SteeringError as SteeringError
    from umstack_xdp.errors import XdpError as XdpError
    from umstack_xdp.flow_steering import FlowSteering as FlowSteering
    from umstack_xdp.groups import GroupMemberships as GroupMemberships
    from umstack_xdp.interface import Interface as Interface
    from umstack_xdp.interface import find_interface as find_interface
    from umstack_xdp.interface import interfaces as interfaces
    from umstack_xdp.interface import multicast_route as multicast_route
    from umstack_xdp.interface import require_multicast_route as require_multicast_route
    from umstack_xdp.interface_watch import InterfaceChange as InterfaceChange
    from umstack_xdp.interface_watch import InterfaceWatch as InterfaceWatch
    from umstack_xdp.loader import AttachedProgram as AttachedProgram
    from umstack_xdp.loader import BpfMap as BpfMap
    from umstack_xdp.loader import BpfObject as BpfObject
    from umstack_xdp.loader import BpfProgram as BpfProgram
    from umstack_xdp.loader import ProgramFacts as ProgramFacts
    from umstack_xdp.loader import TestRun as TestRun
    from umstack_xdp.loader import object_path as object_path
    from umstack_xdp.loader import unavailable as unavailable
    from umstack_xdp.ring_place import RingPlace as RingPlace
    from umstack_xdp.steering import FrameTimes as FrameTimes
    from umstack_xdp.steering import RuleCounters as RuleCounters
    from umstack_xdp.steering import Steering as Steering
    from umstack_xdp.steering import SteeringCounters as SteeringCounters
    from umstack_xdp.xsk import RingFacts as RingFacts
    from umstack_xdp.xsk import RingMode as RingMode
    from umstack_xdp.xsk import RingSet as RingSet
    from umstack_xdp.xsk import RingSettings as RingSettings
    from umstack_xdp.xsk import ring_bytes as ring_bytes

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
