"""The place of an interface's rings: the queues of a NIC, which is the interface itself or a device below it.

A VLAN device has no queues: its datagrams arrive on the queues of its NIC with a tag, which steering rules compare and
sent frames carry. A bond has no queues either: its datagrams arrive on the queues of all members, and one member sends
them. Address, neighbours and group memberships remain those of the VLAN device or the bond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyroute2 import IPRoute

from umstack_xdp.interface import Interface, find_interface, off_the_event_loop
from umstack_xdp.stacking import StackedDevice, nics_below, stack_of

_PRIORITY_SHIFT = 13


@dataclass(frozen=True, slots=True)
class RingPlace:
    """The NIC that has the rings of an interface, and the tag of its frames.

    Example:
        ```python
        eth0 = xdp.find_interface("eth0")
        place = xdp.RingPlace(eth0, eth0)
        assert place.tag_control == 0
        ```
    """

    interface: Interface
    """The interface of the datagrams; they are sent from its Ethernet address."""
    device: Interface
    """The device whose queues have the rings."""
    vlan: int = 0
    """The VLAN of the frames' tag; 0: no tag."""
    priority: int = 0
    """Priority in the tag of sent frames."""
    is_bonded: bool = False
    """True if the NIC is a member of a bond, even the only one."""

    @property
    def tag_control(self) -> int:
        """Tag control information of sent frames (IEEE 802.1Q); 0: no tag."""
        return self.priority << _PRIORITY_SHIFT | self.vlan if self.vlan else 0


def ring_places(interface: Interface, stack: Sequence[StackedDevice]) -> tuple[RingPlace, ...]:
    """Return the ring places of an interface above these devices; none if it cannot have rings."""
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
    """Return the devices below the interface, as the kernel reports them."""
    with IPRoute() as route:
        links = list(route.get_links())
    return stack_of(links, interface.name)


def ring_places_now(interface: Interface) -> tuple[RingPlace, ...]:
    """Return the current ring places of an interface."""
    return ring_places(interface, stack_now(interface))
