"""Reads the facts from netlink, ethtool, /proc and /sys, without privileges as far as possible.

Works on the network namespace of the calling thread. /sys shows the interfaces of the namespace in which it was
mounted: if that is another one, facts that only /sys has are unknown.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

from pyroute2 import IPRoute

from umstack_xdp.attachment import occupants
from umstack_xdp.capabilities import held_capabilities
from umstack_xdp.errors import XdpError
from umstack_xdp.ethtool import Ethtool
from umstack_xdp.facts import AttachedXdp, AttachMode, Facts, HugePages, Irq, Unknown
from umstack_xdp.interface import Interface, find_interface, interfaces, off_the_event_loop
from umstack_xdp.loader import unavailable
from umstack_xdp.netdev_family import device_features, napi_instances
from umstack_xdp.ring_place import ring_places
from umstack_xdp.stacking import stack_of, vlans_above
from umstack_xdp.xsk import unavailable as rings_unavailable

_SYS_NET = Path("/sys/class/net")
_ATTACH_MODES: dict[str, AttachMode] = {
    "xdp": "native",
    "xdpgeneric": "generic",
    "xdpoffload": "offload",
    "xdpmulti": "several",
}
_NO_SYSFS = Unknown(
    "/sys belongs to another network namespace; enter this one by `ip netns exec`, which mounts its own"
)
BPF_OBJECTS = ("steering",)


def probe(wanted: str | None = None) -> Facts:
    """Return the facts about one interface (as named for `find_interface`)."""
    return probe_interface(find_interface(wanted))


def multicast_interfaces() -> list[Interface]:
    """Return the interfaces that can carry multicast: up, with an address, and capable of it; and the loopback."""
    candidates = [item for item in interfaces() if item.is_up and item.addresses]
    return [item for item in candidates if item.is_multicast or item.is_loopback]


@off_the_event_loop
def probe_interface(interface: Interface) -> Facts:
    """Return the facts about a known interface."""
    with Ethtool(interface.name) as ethtool:
        driver, bus = ethtool.driver()
        queues, rings, coalescing = ethtool.queues(), ethtool.rings(), ethtool.coalescing()
        features, speed_mbps = ethtool.features(), ethtool.speed_mbps()
        timestamping = ethtool.timestamping()
    declared = device_features(interface.index)
    with IPRoute() as route:
        links = list(route.get_links())
    stack = stack_of(links, interface.name)
    release = os.uname().release
    return Facts(
        interface=interface.name,
        index=interface.index,
        is_up=interface.is_up,
        has_carrier=interface.has_carrier,
        is_multicast=interface.is_multicast,
        is_loopback=interface.is_loopback,
        addresses=tuple(map(str, interface.addresses)),
        mtu_bytes=interface.mtu_bytes,
        driver="loopback" if interface.is_loopback else driver,
        bus=bus,
        speed_mbps=speed_mbps,
        kernel_release=release,
        kernel_version=kernel_version(release),
        queues=queues,
        rings=rings,
        coalescing=coalescing,
        features=features,
        xdp_features=declared.xdp,
        rx_metadata_features=declared.rx_metadata,
        xsk_features=declared.xsk,
        timestamping=timestamping,
        zero_copy_max_segments=declared.zero_copy_max_segments,
        attached=_attached(interface),
        irqs=irqs(interface, bus),
        numa_node=numa_node(bus),
        napi_defer_hard_irqs=interface_number(interface, "napi_defer_hard_irqs"),
        gro_flush_timeout_ns=interface_number(interface, "gro_flush_timeout"),
        napi=napi_instances(interface.index),
        busy_poll_us=sysctl("net/core/busy_poll"),
        busy_read_us=sysctl("net/core/busy_read"),
        unprivileged_bpf_disabled=sysctl("kernel/unprivileged_bpf_disabled"),
        huge_pages=_huge_pages(),
        capabilities=held_capabilities(),
        memlock_limit_bytes=memlock_limit_bytes(),
        missing_parts=missing_parts(),
        stack=stack,
        nics=tuple(probe_interface(place.device) for place in ring_places(interface, stack)) if stack else (),
        vlans_above=vlans_above(links, interface.index),
    )


def running_kernel() -> tuple[int, int]:
    """Return the version of the running kernel."""
    return kernel_version(os.uname().release)


def kernel_version(release: str) -> tuple[int, int]:
    """Parse the first two numbers of a release such as `6.1.0-13-amd64`."""
    major, minor = ([*release.split("-")[0].split("."), "0"])[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def missing_parts() -> tuple[str, ...]:
    """Return the parts of the bypass missing from this build, each with how to add it."""
    reasons = [*(unavailable(name) for name in BPF_OBJECTS), rings_unavailable()]
    return tuple(dict.fromkeys(filter(None, reasons)))


def sysctl(name: str) -> int | Unknown:
    """Read a sysctl with a single integer value."""
    return _number(Path("/proc/sys", name))


def sysfs_directory(interface: Interface) -> Path | Unknown:
    """Return the interface's directory in /sys; unknown if /sys belongs to another namespace."""
    directory = _SYS_NET / interface.name
    shown = {path.name for path in _SYS_NET.iterdir()} if _SYS_NET.is_dir() else set()
    if not {item.name for item in interfaces()} <= shown:
        return _NO_SYSFS
    try:
        is_same = (
            int((directory / "ifindex").read_text()) == interface.index
            and (directory / "address").read_text().strip() == interface.mac
        )
    except (OSError, ValueError) as error:
        return Unknown(str(error))
    return directory if is_same else _NO_SYSFS


def interface_number(interface: Interface, name: str) -> int | Unknown:
    """Read an integer from /sys/class/net/INTERFACE."""
    directory = sysfs_directory(interface)
    return directory if isinstance(directory, Unknown) else _number(directory / name)


def _number(path: Path) -> int | Unknown:
    try:
        return int(path.read_text())
    except FileNotFoundError:
        return Unknown(f"no {path} here")
    except (OSError, ValueError) as error:
        return Unknown(str(error))


def _attached(interface: Interface) -> AttachedXdp | Unknown | None:
    with IPRoute() as route:
        link = route.get_links(interface.index)[0]
    xdp = link.get_attr("IFLA_XDP")
    if xdp is None:
        return Unknown("this kernel does not report it")
    mode = xdp.get_attr("IFLA_XDP_ATTACHED")
    if mode is None or mode not in _ATTACH_MODES:
        return None
    names = ("IFLA_XDP_PROG_ID", "IFLA_XDP_DRV_PROG_ID", "IFLA_XDP_SKB_PROG_ID", "IFLA_XDP_HW_PROG_ID")
    number = int(next((value for name in names if (value := xdp.get_attr(name))), 0))
    # Its name and holders require privileges and the build's loader; its presence requires neither.
    with suppress(XdpError):
        for occupant in occupants(interface):
            if occupant.program_id == number:
                return AttachedXdp(
                    number,
                    _ATTACH_MODES[mode],
                    str(occupant),
                    occupant.removal(interface.name),
                    occupant.steers,
                )
    way = f"bpftool net show dev {interface.name} (as root) shows what it is"
    return AttachedXdp(number, _ATTACH_MODES[mode], f"program {number} ({_ATTACH_MODES[mode]} mode)", way)


def _pci_device(bus: str | Unknown) -> Path | None:
    """Return the device in /sys/bus, which is the same in every network namespace."""
    if isinstance(bus, Unknown):
        return None
    path = Path("/sys/bus/pci/devices", bus)
    return path if path.is_dir() else None


def irqs(interface: Interface, bus: str | Unknown) -> tuple[Irq, ...] | Unknown:
    """Return the interrupts of the PCI device; for other devices, those whose action contains the interface's name."""
    device, name = _pci_device(bus), interface.name
    numbers = {path.name for path in (device / "msi_irqs").glob("*")} if device else set()
    if device is None:
        directory = sysfs_directory(interface)
        if isinstance(directory, Unknown) or not (directory / "device").exists():
            return Unknown("no device of its own, so no interrupts")
    found = []
    for line in Path("/proc/interrupts").read_text().splitlines()[1:]:
        number, _, rest = line.strip().partition(":")
        action = rest.split()[-1] if rest.split() else ""
        is_named = device is None and (action == name or action.startswith(f"{name}-"))
        if number.isdigit() and (number in numbers or is_named):
            found.append(_irq(int(number), action))
    return tuple(found) or Unknown("no interrupt bears its name")


def _irq(number: int, action: str) -> Irq:
    try:
        cpus = Path(f"/proc/irq/{number}/smp_affinity_list").read_text().strip()
    except OSError:
        cpus = ""
    return Irq(number, action, cpus)


def numa_node(bus: str | Unknown) -> int | Unknown:
    """Return the NUMA node of the PCI device."""
    device = _pci_device(bus)
    if device is None:
        return Unknown("not a PCI device")
    node = _number(device / "numa_node")
    return Unknown("the host has one node, or does not report it") if node == -1 else node


def _huge_pages() -> HugePages | Unknown:
    read: dict[str, int] = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("HugePages_Total", "HugePages_Free", "Hugepagesize"):
            read[name] = int(value.split()[0])
    if "Hugepagesize" not in read:
        return Unknown("this kernel has no huge pages")
    return HugePages(read["Hugepagesize"] * 1024, read["HugePages_Total"], read["HugePages_Free"])


def memlock_limit_bytes() -> int | None:
    """Return how many bytes this process may lock; None: no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if limit == resource.RLIM_INFINITY else limit
