"""A port of the switch or router in one direction: loses, duplicates, reorders, corrupts and blocks datagrams.

bpf/lossy_port.bpf.c implements it and is attached only while it is needed: a lossless port
runs no program. The layouts of its maps are defined here, too; change both together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

from umstack.lab import namespaces
from umstack.lab.cables import port_name
from umstack.lab.detour import Detour
from umstack.lab.errors import LabError
from umstack.lab.links import index_of, netlink
from umstack_xdp import BpfMap, XdpError, traffic_control

T = TypeVar("T")

PortDirection = Literal["to_host", "from_host"]

_HOOKS: dict[PortDirection, traffic_control.Direction] = {"to_host": "egress", "from_host": "ingress"}
_CONFIG = struct.Struct("=QQQQIIIIQQ")
_COUNTERS = struct.Struct("=9Q")
_BLOCK, _UNICAST, _INGRESS, _COUNTS, _TCP = 1, 2, 4, 8, 16
_WHOLE = 1 << 32
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class PortSettings:
    """The faults of a port for UDP datagrams and TCP segments; rates are fractions from 0 to 1."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    """Rate of packets with one flipped bit; hosts then compute and verify checksums themselves."""
    block: bool = False
    unicast: bool = False
    """True: unicast UDP (NAKs) is affected like multicast."""
    tcp: bool = False
    """True: TCP segments are affected; hosts then cut them themselves, so that each is affected separately."""
    reorder_depth: int = 3
    """Number of datagrams that overtake a reordered one."""
    hold_ms: float = 2.0
    """Maximum ms that a datagram waits for others to overtake it (up to 30)."""
    seed: int = 0
    counts: bool = False
    """True: the program stays attached without faults, so that datagrams are counted, at the usual cost."""

    def __post_init__(self) -> None:
        """Check the limits of the program."""
        for name in ("loss", "duplicate", "reorder", "corrupt"):
            rate = getattr(self, name)
            if not 0 <= rate <= 1:
                raise LabError(f"a {name} rate of {rate} is impossible", hint="use a fraction from 0 to 1")
        if not 1 <= self.reorder_depth <= 1000 or not 0 < self.hold_ms <= 30:
            raise LabError(
                f"cannot hold a datagram for {self.reorder_depth} others or {self.hold_ms} ms",
                hint="use a reorder_depth of 1 to 1000 and a hold_ms above 0, up to 30",
            )

    @property
    def is_lossless(self) -> bool:
        """True if every datagram passes once and in order."""
        return not (self.loss or self.duplicate or self.reorder or self.corrupt or self.block)

    @property
    def needs_program(self) -> bool:
        """True if the program must be attached."""
        return self.counts or not self.is_lossless


@dataclass(frozen=True, slots=True)
class PortCounters:
    """Datagrams at the port by outcome: seen = passed + dropped + blocked."""

    seen: int = 0
    passed: int = 0
    dropped: int = 0
    blocked: int = 0
    duplicated: int = 0
    reordered: int = 0
    released: int = 0
    """Reordered datagrams that were passed on; all of them once none is held."""
    unheld: int = 0
    """Datagrams passed in order instead of reordered, because too many were held."""
    corrupted: int = 0


class Port:
    """One direction of a port. Changes take effect immediately. The state is in the kernel."""

    __slots__ = (
        "_before_corruption",
        "_before_loss",
        "_before_tcp",
        "_initial",
        "_middle",
        "direction",
        "host_number",
    )

    def __init__(
        self,
        middle: str,
        host_number: int,
        direction: PortDirection,
        initial: PortSettings,
        before_loss: Callable[[], None],
        before_tcp: Callable[[], None],
        before_corruption: Callable[[], None],
    ) -> None:
        """Describe a port; `before_loss` is called before datagrams are first affected, `before_tcp` before TCP
        segments are, and `before_corruption` before bits are flipped."""
        self._middle, self._before_loss, self._before_tcp = middle, before_loss, before_tcp
        self._before_corruption = before_corruption
        self._initial = replace(initial, seed=initial.seed & _SEED_MASK)
        self.host_number, self.direction = host_number, direction

    def set(self, **changes: Any) -> PortSettings:
        """Change some of `PortSettings`; return all current settings. A seed restarts the random series."""
        names = {field.name for field in fields(PortSettings)}
        if unknown := sorted(changes.keys() - names):
            raise LabError(f"a port has no {', '.join(unknown)}", hint=f"it has {', '.join(sorted(names))}")
        settings = replace(self.settings(), **changes)
        if not settings.is_lossless:
            self._before_loss()
        if settings.tcp and settings.needs_program:
            self._before_tcp()
        if settings.corrupt:
            self._before_corruption()
        return self._inside(lambda index: self._apply(index, settings, "seed" in changes))

    def settings(self) -> PortSettings:
        """Return the current settings."""
        return self._inside(lambda _: self._read("lossy_config", _settings, self._initial))

    def counters(self) -> PortCounters:
        """Return the counts since the port was first used."""
        return self._inside(lambda _: self._read("lossy_counters", _counters, PortCounters()))

    def is_attached(self) -> bool:
        """Return true if the program is attached to this port."""
        return self._inside(lambda index: bool(traffic_control.attached_program_ids(index, self._hook)))

    @property
    def _hook(self) -> traffic_control.Direction:
        return _HOOKS[self.direction]

    @property
    def _detour_name(self) -> str:
        return f"detour{self.host_number}{'' if self.direction == 'to_host' else 'in'}"

    def _apply(self, index: int, settings: PortSettings, is_new_series: bool) -> PortSettings:
        detour = Detour.find(self._detour_name)
        if detour is None and settings == self._initial:
            return settings
        detour = detour or Detour.build(self._detour_name)
        with detour.open_port_program() as lossy:
            lossy.map("lossy_config").write(self._packed(settings, index, detour.near))
            if is_new_series:
                lossy.map("lossy_index").write(bytes(8))
            is_attached = bool(traffic_control.attached_program_ids(index, self._hook))
            if is_attached and not settings.needs_program:
                traffic_control.detach(index, self._hook)
            elif settings.needs_program and not is_attached:
                traffic_control.attach(index, self._hook, lossy.program)
        return settings

    def _packed(self, settings: PortSettings, port_index: int, detour_index: int) -> bytes:
        flags = _BLOCK * settings.block | _UNICAST * settings.unicast | _COUNTS * settings.counts
        flags |= _TCP * settings.tcp | _INGRESS * (self._hook == "ingress")
        rates = (settings.loss, settings.duplicate, settings.reorder)
        return _CONFIG.pack(
            settings.seed & _SEED_MASK,
            *(round(rate * _WHOLE) for rate in rates),
            flags,
            port_index,
            detour_index,
            settings.reorder_depth,
            round(settings.hold_ms * 1e6),
            round(settings.corrupt * _WHOLE),
        )

    def _read(self, map_name: str, decode: Callable[[BpfMap], T], absent: T) -> T:
        detour = Detour.find(self._detour_name)
        if detour is None:
            return absent
        with detour.open_port_program() as lossy:
            return decode(lossy.map(map_name))

    def _inside(self, function: Callable[[int], T]) -> T:
        """Run the function with the port's index in the namespace of the port."""

        def run() -> T:
            name = port_name(self.host_number)
            with netlink(f"the lab's {name}") as route:
                index = index_of(route, name)
            return function(index)

        try:
            return namespaces.call(self._middle, run)
        except XdpError as error:
            raise LabError(f"{port_name(self.host_number)}: {error.message}", hint=error.hint) from error


def _settings(config: BpfMap) -> PortSettings:
    seed, loss, duplicate, reorder, flags, _, _, depth, hold_ns, corrupt = _CONFIG.unpack(config.read())
    return PortSettings(
        loss=round(loss / _WHOLE, 9),
        duplicate=round(duplicate / _WHOLE, 9),
        reorder=round(reorder / _WHOLE, 9),
        corrupt=round(corrupt / _WHOLE, 9),
        block=bool(flags & _BLOCK),
        unicast=bool(flags & _UNICAST),
        tcp=bool(flags & _TCP),
        counts=bool(flags & _COUNTS),
        reorder_depth=depth,
        hold_ms=hold_ns / 1e6,
        seed=seed,
    )


def _counters(counters: BpfMap) -> PortCounters:
    per_cpu = [_COUNTERS.unpack(value) for value in counters.read_per_cpu()]
    return PortCounters(*(sum(column) for column in zip(*per_cpu, strict=True)))
