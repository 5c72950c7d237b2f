"""The devices below an interface: the trunk of a VLAN device, the members of a bond, and other stacked devices.

In data centers an interface is often not a NIC: `bond0.100` is a VLAN of a bond of two NICs. There the kernel joins
groups, tags frames, chooses a member and fails over; rings belong to the queues of a NIC below
(`umstack_xdp.ring_place`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DEPTH_MAX = 8
_AGGREGATES = ("bond", "team")
_UPON_ONE = ("vlan", "macvlan", "macvtap", "ipvlan", "ipvtap")
_VLAN_PROTOCOLS = {0x8100: "802.1Q", 0x88A8: "802.1ad"}
_RING_VLAN_PROTOCOL = "802.1Q"
"""Protocol of the tags that the steering program supports."""
_RING_BOND_MODES = ("active-backup", "balance-xor", "802.3ad")
"""Bond modes in which one member may send all datagrams of a group and no member modifies the others' traffic."""
_SLAVE_ACTIVE = 0
_SLAVE_LINK_UP = 0
_BOND_MODES = (
    "balance-rr",
    "active-backup",
    "balance-xor",
    "broadcast",
    "802.3ad",
    "balance-tlb",
    "balance-alb",
)


@dataclass(frozen=True, slots=True)
class StackedDevice:
    """A device above other devices."""

    name: str
    kind: str
    """Kind as in `ip -d link`: vlan, bond, team, bridge, macvlan, ..."""
    lower: tuple[str, ...]
    """Devices below it, such as the members of a bond; empty if none, or if in another network namespace."""
    vlan: int | None = None
    vlan_protocol: str | None = None
    vlan_priority: int = 0
    """Priority of ordinary traffic in its tags."""
    mode: str | None = None
    """Mode of a bond."""
    active: str | None = None
    """The active member, for bonds that send by one member only."""
    carrying: tuple[str, ...] = ()
    """Members by which the bond may send: up and, with LACP, in the active aggregator."""

    def __str__(self) -> str:
        """Describe it for display."""
        lower = (
            ", ".join(f"{one} (active)" if one == self.active else one for one in self.lower)
            or "nothing here"
        )
        if self.kind == "vlan":
            return f"{self.name} is VLAN {self.vlan} ({self.vlan_protocol}) of {lower}"
        how = f" ({self.mode})" if self.mode else ""
        return f"{self.name} is a {self.kind}{how} of {lower}"


def stack_of(links: Sequence[Any], name: str) -> tuple[StackedDevice, ...]:
    """Return the interface and the devices below it, top first; of several, the active or first one.

    `links` are the link messages of rtnetlink for the whole namespace.
    """
    by_name = {link.get_attr("IFLA_IFNAME"): link for link in links}
    by_index = {link["index"]: link.get_attr("IFLA_IFNAME") for link in links}
    found: list[StackedDevice] = []
    following: str | None = name
    while following in by_name and len(found) < _DEPTH_MAX:
        device = _device(by_name[following], links, by_index)
        if device is None:
            break
        found.append(device)
        following = device.active or next(iter(device.lower), None)
    return tuple(found)


def nics_below(stack: Sequence[StackedDevice], name: str) -> tuple[str, ...]:
    """Return the NICs whose queues can have the interface's rings: itself if it is not stacked on others.

    Empty if the kernel does more on the way than an 802.1Q tag and the choice of a bond's member. `stack` is the
    interface's; the NICs themselves are not checked.
    """
    if not stack:
        return (name,)
    device, below = stack[0], stack[1:]
    if device.kind == "vlan" and device.vlan_protocol == _RING_VLAN_PROTOCOL:
        if not below:
            return device.lower
        return nics_below(below, below[0].name) if below[0].kind == "bond" else ()
    if device.kind == "bond" and device.mode in _RING_BOND_MODES and not below:
        return device.lower
    return ()


def nic_that_sends(stack: Sequence[StackedDevice], name: str) -> str | None:
    """Return which of these NICs sends frames now; None if no member of the bond may send.

    A bond that hashes uses one member per group; the first is as good as any.
    """
    for device in stack:
        if device.kind == "bond":
            may_send = (device.active,) if device.mode == "active-backup" else device.carrying
            return next(iter(may_send), None)
    return next(iter(nics_below(stack, name)), None)


def vlans_above(links: Iterable[Any], index: int) -> tuple[str, ...]:
    """Return the VLAN devices above the interface with this index."""
    return tuple(
        link.get_attr("IFLA_IFNAME")
        for link in links
        if _kind(link) == "vlan" and link.get_attr("IFLA_LINK") == index and not _is_elsewhere(link)
    )


def _kind(link: Any) -> str | None:
    info = link.get_attr("IFLA_LINKINFO")
    return None if info is None else info.get_attr("IFLA_INFO_KIND")


def _is_elsewhere(link: Any) -> bool:
    """Return true if its lower device is in another network namespace, where its index is not valid here."""
    return link.get_attr("IFLA_LINK_NETNSID") is not None


def _carries(member: Any) -> bool:
    info = member.get_attr("IFLA_LINKINFO")
    data = None if info is None else info.get_attr("IFLA_INFO_SLAVE_DATA")
    if data is None:
        return False
    state, up = data.get_attr("IFLA_BOND_SLAVE_STATE"), data.get_attr("IFLA_BOND_SLAVE_MII_STATUS")
    return bool(state == _SLAVE_ACTIVE and up == _SLAVE_LINK_UP)


def _priority(mappings: Any) -> int:
    """Return the tag's priority for the kernel's priority 0, the default of traffic."""
    mapped = [] if mappings is None else mappings.get_attrs("IFLA_VLAN_QOS_MAPPING")
    return next((int(one["to"]) for one in mapped if one["from"] == 0), 0)


def _device(link: Any, links: Iterable[Any], by_index: Mapping[int, str]) -> StackedDevice | None:
    kind, name = _kind(link), link.get_attr("IFLA_IFNAME")
    data = None if kind is None else link.get_attr("IFLA_LINKINFO").get_attr("IFLA_INFO_DATA")
    if kind in _UPON_ONE:
        below = None if _is_elsewhere(link) else by_index.get(link.get_attr("IFLA_LINK"))
        lower = () if below is None else (below,)
        if kind != "vlan" or data is None:
            return StackedDevice(name, kind, lower)
        protocol = data.get_attr("IFLA_VLAN_PROTOCOL")
        shown = _VLAN_PROTOCOLS.get(protocol, str(protocol))
        return StackedDevice(
            name,
            kind,
            lower,
            vlan=data.get_attr("IFLA_VLAN_ID"),
            vlan_protocol=shown,
            vlan_priority=_priority(data.get_attr("IFLA_VLAN_EGRESS_QOS")),
        )
    if kind in (*_AGGREGATES, "bridge"):
        members = tuple(
            one.get_attr("IFLA_IFNAME") for one in links if one.get_attr("IFLA_MASTER") == link["index"]
        )
        if kind != "bond" or data is None:
            return StackedDevice(name, kind, members)
        number, active = data.get_attr("IFLA_BOND_MODE"), data.get_attr("IFLA_BOND_ACTIVE_SLAVE")
        mode = _BOND_MODES[number] if number is not None and number < len(_BOND_MODES) else None
        carrying = tuple(
            one.get_attr("IFLA_IFNAME")
            for one in links
            if one.get_attr("IFLA_MASTER") == link["index"] and _carries(one)
        )
        return StackedDevice(name, kind, members, mode=mode, active=by_index.get(active), carrying=carrying)
    return None
