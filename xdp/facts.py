"""The facts about an interface and its host that the bypass depends on.

Each fact is a value, or `Unknown` with the reason: a kernel that is too old, a missing privilege, or an interface
without the feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from umstack_xdp.stacking import StackedDevice

AttachMode = Literal["native", "generic", "offload", "several"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """An unknown fact, and the reason."""

    reason: str

    def __str__(self) -> str:
        """Return the text shown in tables."""
        return f"unknown ({self.reason})"


@dataclass(frozen=True, slots=True)
class AttachedXdp:
    """An XDP program attached to the interface, ours or another's."""

    program_id: int
    mode: AttachMode
    description: str
    """Its name and the processes that have it open, as far as this process may read them."""
    removal: str
    """The command that frees the interface."""
    steers: bool | None = None
    """True if it redirects groups into another process's rings; None if unknown."""


@dataclass(frozen=True, slots=True)
class Irq:
    """One interrupt of the interface and the CPUs allowed for it, in the kernel's notation (`0-3,8`)."""

    number: int
    action: str
    cpus: str


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Current and maximum numbers of receive and transmit queues."""

    rx: int
    tx: int
    rx_max: int
    tx_max: int
    combined: int
    combined_max: int


@dataclass(frozen=True, slots=True)
class RingSizes:
    """Current and maximum numbers of descriptors in a receive and a transmit ring."""

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
    """The NIC's clock, and the frames that it can timestamp for the kernel's sockets."""

    hardware_clock: int | None
    """The number of its device /dev/ptpN; None: no clock."""
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
    """A NAPI instance, which polls a NIC queue."""

    id: int
    threaded: int | Unknown
    """0: polled in soft interrupts; 1: by a kernel thread; 2: by a kernel thread that never sleeps."""
    irq_suspend_timeout_ns: int | Unknown
    """How long interrupts stay off while a process with preferred busy polling finds datagrams; 0: never off."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One interface, this host and this process, at the time of the call."""

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
    """None: no limit."""
    missing_parts: tuple[str, ...]
    """Parts of the bypass missing from the build, each with how to add it; empty if complete."""
    stack: tuple[StackedDevice, ...] = ()
    """The interface and the devices below it; empty if there are none below."""
    nics: tuple[Facts, ...] = ()
    """The NICs whose queues have the interface's rings, if not its own (`umstack_xdp.ring_place`)."""
    vlans_above: tuple[str, ...] = ()
    """The VLAN devices above it."""

    def has_capability(self, name: str) -> bool:
        """Return true if this process has the capability, or if that is unknown."""
        return isinstance(self.capabilities, Unknown) or name in self.capabilities

    def to_json(self) -> dict[str, Any]:
        """Return all facts as JSON values; an unknown fact is `{"unknown": reason}`."""
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
