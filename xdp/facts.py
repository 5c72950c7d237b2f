"""The facts about an interface and its host that matter to the bypass.

Each fact is a value, or `Unknown` with the reason: a kernel that is too old, a missing privilege, or an interface
without the feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from xdp.stacking import StackedDevice

AttachMode = Literal["native", "generic", "offload", "several"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be found out, and why."""

    reason: str

    def __str__(self) -> str:
        """Show it the way tables do."""
        return f"unknown ({self.reason})"


@dataclass(frozen=True, slots=True)
class AttachedXdp:
    """An XDP program that is on the interface, ours or another's."""

    program_id: int
    mode: AttachMode
    description: str
    """Its name, and who has it open, as far as this process may know."""
    removal: str
    """The command that frees the interface."""
    steers: bool | None = None
    """True if it redirects groups into another process's rings; None if unknown."""


@dataclass(frozen=True, slots=True)
class Irq:
    """One interrupt of the interface and the CPUs it may run on, as the kernel writes them (`0-3,8`)."""

    number: int
    action: str
    cpus: str


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Receive and transmit queues in use, and how many there could be."""

    rx: int
    tx: int
    rx_max: int
    tx_max: int
    combined: int
    combined_max: int


@dataclass(frozen=True, slots=True)
class RingSizes:
    """Descriptors in a receive and a transmit ring, and how many there could be."""

    rx: int
    tx: int
    rx_max: int
    tx_max: int


@dataclass(frozen=True, slots=True)
class Coalescing:
    """How long, or for how many frames, the NIC waits before it raises an interrupt."""

    rx_usecs: int
    rx_frames: int
    tx_usecs: int
    tx_frames: int
    is_rx_adaptive: bool
    is_tx_adaptive: bool


@dataclass(frozen=True, slots=True)
class Timestamping:
    """The NIC's clock, and which of the frames on the wire it can stamp with it for the kernel's sockets."""

    hardware_clock: int | None
    """The number of its device /dev/ptpN; None: it has no clock."""
    receives: bool
    sends: bool


@dataclass(frozen=True, slots=True)
class HugePages:
    """The default huge page pool."""

    page_bytes: int
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Napi:
    """A NAPI instance: what polls a NIC's queue, and how."""

    id: int
    threaded: int | Unknown
    """0: in soft interrupts; 1: by a kernel thread; 2: by one that never sleeps."""
    irq_suspend_timeout_ns: int | Unknown
    """How long interrupts stay off while a process that prefers busy polling finds something; 0: not at all."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One interface, this host and this process, as they were when asked."""

    interface: str
    index: int
    is_up: bool
    has_carrier: bool
    is_multicast: bool
    is_loopback: bool
    addresses: tuple[str, ...]
    mtu_bytes: int
    driver: str | Unknown
    bus: str | Unknown
    speed_mbps: int | Unknown
    kernel_release: str
    kernel_version: tuple[int, int]
    queues: QueueCounts | Unknown
    rings: RingSizes | Unknown
    coalescing: Coalescing | Unknown
    features: Mapping[str, bool] | Unknown
    xdp_features: frozenset[str] | Unknown
    rx_metadata_features: frozenset[str] | Unknown
    xsk_features: frozenset[str] | Unknown
    timestamping: Timestamping | Unknown
    zero_copy_max_segments: int | Unknown
    attached: AttachedXdp | Unknown | None
    irqs: tuple[Irq, ...] | Unknown
    numa_node: int | Unknown
    napi_defer_hard_irqs: int | Unknown
    gro_flush_timeout_ns: int | Unknown
    napi: tuple[Napi, ...] | Unknown
    busy_poll_us: int | Unknown
    busy_read_us: int | Unknown
    unprivileged_bpf_disabled: int | Unknown
    huge_pages: HugePages | Unknown
    capabilities: frozenset[str] | Unknown
    memlock_limit_bytes: int | None
    """None is no limit."""
    missing_parts: tuple[str, ...]
    """Parts of the bypass missing from the build, each with how to add it; empty if complete."""
    stack: tuple[StackedDevice, ...] = ()
    """The devices below the interface, itself first; empty without any."""
    nics: tuple[Facts, ...] = ()
    """The NICs on whose queues rings for it would be, where these are not its own: those of `xdp.ring_place`."""
    vlans_above: tuple[str, ...] = ()
    """The VLAN devices that lie on it."""

    def has_capability(self, name: str) -> bool:
        """True if this process has the capability, or if that is unknown."""
        return isinstance(self.capabilities, Unknown) or name in self.capabilities

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON has it; an unknown fact is `{"unknown": reason}`."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Unknown):
        return {"unknown": value.reason}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value
