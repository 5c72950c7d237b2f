"""The settings of one interface and its host as keys with values, so that stages of change are data.

queues.combined queues.rx queues.tx     number of queues           rings.rx rings.tx      descriptors
queues.*_max rings.*_max                at most (read only)        feature.NAME           an offload, 0 or 1
coalescing.rx_usecs .adaptive_rx        interrupts held back       interface.NAME         /sys/class/net/*/NAME
irq.NUMBER                              CPUs of an interrupt       sysctl.net/core/NAME   a sysctl
napi.POSITION.NAME                      `threaded` or `irq_suspend_timeout` of a NAPI instance, by its place among those
                                        of the interface: its number changes whenever the driver recreates it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, get_args

from umstack_xdp.closing import Closing
from umstack_xdp.errors import SettingError
from umstack_xdp.ethtool import Ethtool, QueueKind, RingKind
from umstack_xdp.facts import Coalescing, QueueCounts, RingSizes, Unknown
from umstack_xdp.interface import find_interface
from umstack_xdp.netdev_family import napi_instances, set_napi
from umstack_xdp.probe import interface_number, irqs, numa_node, sysctl, sysfs_directory

Value = int | str


class Host(Protocol):
    """Reads and writes settings."""

    interface: str
    mac: str

    def read(self, key: str) -> Value | Unknown:
        """Return a value."""

    def write(self, key: str, value: Value) -> None:
        """Change a value; raises SettingError."""

    def changeable_features(self) -> frozenset[str]:
        """Return the offloads that can be turned on and off here."""

    def irq_numbers(self) -> list[int]:
        """Return the interrupts of the interface's queues in numeric order."""

    def cpus(self) -> list[int]:
        """Return the CPUs near the interface."""

    def napi_ids(self) -> list[int]:
        """Return the ids of the interface's NAPI instances in creation order."""


class LinuxHost(Closing):
    """The running host. Context manager; works on the network namespace of the calling thread, one thread at a time."""

    __slots__ = ("_ethtool", "_interface", "interface", "mac")

    def __init__(self, interface: str) -> None:
        """Find the interface (as named for `find_interface`)."""
        self._interface = find_interface(interface)
        self.interface, self.mac = self._interface.name, self._interface.mac
        self._ethtool = Ethtool(self.interface)

    def read(self, key: str) -> Value | Unknown:
        """Return a value."""
        group, _, name = key.partition(".")
        return _READERS[group](self, name)

    def write(self, key: str, value: Value) -> None:
        """Change a value."""
        group, _, name = key.partition(".")
        _WRITERS[group](self, name, value)

    def changeable_features(self) -> frozenset[str]:
        """Return the offloads that can be turned on and off here."""
        return self._ethtool.changeable_features()

    def irq_numbers(self) -> list[int]:
        """Return the interrupts of the interface."""
        found = irqs(self._interface, self._ethtool.driver()[1])
        if isinstance(found, Unknown):
            return []
        return sorted(irq.number for irq in found if not irq.action.endswith(("-config", "-control")))

    def cpus(self) -> list[int]:
        """Return the CPUs of the interface's NUMA node, or all."""
        node = numa_node(self._ethtool.driver()[1])
        path = (
            Path("/sys/devices/system/cpu/online")
            if isinstance(node, Unknown)
            else Path(f"/sys/devices/system/node/node{node}/cpulist")
        )
        return cpu_list(path.read_text())

    def napi_ids(self) -> list[int]:
        """Return the ids of the interface's NAPI instances in creation order."""
        found = napi_instances(self._interface.index)
        return [] if isinstance(found, Unknown) else [one.id for one in found]

    def close(self) -> None:
        """Close the sockets."""
        self._ethtool.close()

    def _read_queues(self, name: str) -> Value | Unknown:
        queues = self._ethtool.queues()
        if isinstance(queues, Unknown):
            return queues
        return _of_queues(queues)[name]

    def _read_rings(self, name: str) -> Value | Unknown:
        rings = self._ethtool.rings()
        return rings if isinstance(rings, Unknown) else _of_rings(rings)[name]

    def _read_coalescing(self, name: str) -> Value | Unknown:
        coalescing = self._ethtool.coalescing()
        return coalescing if isinstance(coalescing, Unknown) else _of_coalescing(coalescing)[name]

    def _read_feature(self, name: str) -> Value | Unknown:
        features = self._ethtool.features()
        if isinstance(features, Unknown):
            return features
        return int(features[name]) if name in features else Unknown("this kernel has no such offload")

    def _read_interface(self, name: str) -> Value | Unknown:
        return interface_number(self._interface, name)

    def _read_irq(self, number: str) -> Value | Unknown:
        try:
            return _affinity(number).read_text().strip()
        except OSError as error:
            return Unknown(str(error))

    def _read_napi(self, name: str) -> Value | Unknown:
        position, _, setting = name.partition(".")
        instances = napi_instances(self._interface.index)
        if isinstance(instances, Unknown):
            return instances
        if int(position) >= len(instances):
            return _NO_NAPI
        one = instances[int(position)]
        return {"threaded": one.threaded, "irq_suspend_timeout": one.irq_suspend_timeout_ns}[setting]

    def _write_napi(self, name: str, value: Value) -> None:
        position, _, setting = name.partition(".")
        ids = self.napi_ids()
        if int(position) >= len(ids):
            raise SettingError(f"{self.interface}: setting {setting}", _NO_NAPI.reason)
        set_napi(ids[int(position)], setting, int(value))

    def _write_queues(self, name: str, value: Value) -> None:
        for kind in get_args(QueueKind):
            if kind == name:
                self._ethtool.set_queues(kind, int(value))

    def _write_rings(self, name: str, value: Value) -> None:
        for kind in get_args(RingKind):
            if kind == name:
                self._ethtool.set_ring(kind, int(value))

    def _write_coalescing(self, name: str, value: Value) -> None:
        if name == "rx_usecs":
            self._ethtool.set_rx_usecs(int(value))
        else:
            self._ethtool.set_rx_adaptive(bool(value))

    def _write_feature(self, name: str, value: Value) -> None:
        self._ethtool.set_feature(name, bool(value))

    def _write_interface(self, name: str, value: Value) -> None:
        directory = sysfs_directory(self._interface)
        if isinstance(directory, Unknown):
            raise SettingError(f"{self.interface}: setting {name}", directory.reason)
        _write(directory / name, value)

    def _write_irq(self, number: str, value: Value) -> None:
        _write(_affinity(number), value)


_NO_NAPI = Unknown(
    "the interface has no such NAPI instance now; a veth has them while GRO is on or an XDP program attached"
)


def cpu_list(text: str) -> list[int]:
    """Parse a list of CPUs in the kernel's notation: `0-3,8`."""
    cpus: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.extend(range(int(first), int(last or first) + 1))
    return cpus


def _of_queues(queues: QueueCounts) -> Mapping[str, int]:
    return {
        "combined": queues.combined,
        "rx": queues.rx - queues.combined,
        "tx": queues.tx - queues.combined,
        "combined_max": queues.combined_max,
    }


def _of_rings(rings: RingSizes) -> Mapping[str, int]:
    return {"rx": rings.rx, "tx": rings.tx, "rx_max": rings.rx_max, "tx_max": rings.tx_max}


def _of_coalescing(coalescing: Coalescing) -> Mapping[str, int]:
    return {"rx_usecs": coalescing.rx_usecs, "adaptive_rx": int(coalescing.is_rx_adaptive)}


def _affinity(irq: str) -> Path:
    return Path("/proc/irq", irq, "smp_affinity_list")


def _write(path: Path, value: Value) -> None:
    try:
        path.write_text(f"{value}\n")
    except OSError as error:
        raise SettingError(
            f"writing {value} to {path}", error.strerror or str(error), error.errno or 0
        ) from error


_READERS: Mapping[str, Callable[[LinuxHost, str], Value | Unknown]] = {
    "queues": LinuxHost._read_queues,
    "rings": LinuxHost._read_rings,
    "coalescing": LinuxHost._read_coalescing,
    "feature": LinuxHost._read_feature,
    "interface": LinuxHost._read_interface,
    "irq": LinuxHost._read_irq,
    "napi": LinuxHost._read_napi,
    "sysctl": lambda _host, name: sysctl(name),
}
_WRITERS: Mapping[str, Callable[[LinuxHost, str, Value], None]] = {
    "queues": LinuxHost._write_queues,
    "rings": LinuxHost._write_rings,
    "coalescing": LinuxHost._write_coalescing,
    "feature": LinuxHost._write_feature,
    "interface": LinuxHost._write_interface,
    "irq": LinuxHost._write_irq,
    "napi": LinuxHost._write_napi,
    "sysctl": lambda _host, name, value: _write(Path("/proc/sys", name), value),
}
