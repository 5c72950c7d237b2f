"""Where the rings of an interface are: on the queues of a NIC, which is the interface itself or one that it lies on.

A VLAN device has no queues. What arrives for it comes by those of its NIC, with a tag, which steering rules compare and
which frames that are sent have to bear. A bond has none either: what arrives comes by those of each of its members, and
what is sent leaves by one of them. Address, neighbours and group memberships stay those of the VLAN device or the bond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyroute2 import IPRoute

from xdp.interface import Interface, find_interface, off_the_event_loop
from xdp.stacking import StackedDevice, nics_below, stack_of

_PRIORITY_SHIFT = 13


@dataclass(frozen=True, slots=True)
class RingPlace:
    """The NIC that rings of an interface are on, and what frames bear there."""

    interface: Interface
    """Whose datagrams these are, and from whose Ethernet address they are sent."""
    device: Interface
    """Whose queues the rings are on."""
    vlan: int = 0
    """The VLAN of the frames' tag; 0: they have none."""
    priority: int = 0
    """Of that tag, in what is sent."""
    is_bonded: bool = False
    """Whether the NIC is a member of a bond, perhaps the only one for now."""

    @property
    def tag_control(self) -> int:
        """What the tag of a frame that is sent says (IEEE 802.1Q); 0: there is none."""
        return self.priority << _PRIORITY_SHIFT | self.vlan if self.vlan else 0


def ring_places(interface: Interface, stack: Sequence[StackedDevice]) -> tuple[RingPlace, ...]:
    """The places for rings of an interface that lies on these devices; none where it can have no rings."""
    vlan = next((device for device in stack if device.kind == "vlan"), None)
    number, priority = (vlan.vlan or 0, vlan.vlan_priority) if vlan else (0, 0)
    is_bonded = any(device.kind == "bond" for device in stack)
    nics = (
        interface if name == interface.name else find_interface(name)
        for name in nics_below(stack, interface.name)
    )
    return tuple(RingPlace(interface, nic, number, priority, is_bonded) for nic in nics)


@off_the_event_loop
def stack_now(interface: Interface) -> tuple[StackedDevice, ...]:
    """What the interface lies on, by the kernel's word."""
    with IPRoute() as route:
        links = list(route.get_links())
    return stack_of(links, interface.name)


def ring_places_now(interface: Interface) -> tuple[RingPlace, ...]:
    """The places for rings of an interface as it is now."""
    return ring_places(interface, stack_now(interface))
