"""The link of a context: kernel sockets, or AF_XDP rings opened by walking down the modes one after another.

Every mode is tried on purpose, with its own flags; a step that failed is kept with its errno, so that the mode in
effect and the reasons for it can be shown. A link that was forced fails with what is missing.
A process without the capabilities has a broker open its rings, where there is one (`xdp.broker`, docs/privileges.md).
Rings carry a context's data both ways; NAKs, topic resolution and group membership stay on kernel sockets (design W5).
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import xdp
from umstack.errors import PermissionNeeded, UmError, Unsupported
from xdp.broker_client import BrokeredSteering, open_brokered_rings
from xdp.capabilities import held_capabilities, missing_capabilities

Group = tuple[str, int]
Steering = xdp.Steering | BrokeredSteering

_SLOT = 0
"""A context has the interface's program to itself, so its sockets are the only ones in it."""

_PERMISSION_ERRNOS = (errno.EPERM, errno.EACCES)


class LinkMode(StrEnum):
    """How data travels, the best first."""

    ZERO_COPY = "zero-copy"
    NATIVE = "native"
    GENERIC = "generic"
    SOCKET = "socket"


_WANTED: dict[str, tuple[LinkMode, ...]] = {
    "auto": (LinkMode.SOCKET,),
    "socket": (LinkMode.SOCKET,),
    "xdp": (LinkMode.ZERO_COPY, LinkMode.NATIVE, LinkMode.GENERIC),
}
_RINGS = {
    LinkMode.ZERO_COPY: (xdp.AttachMode.NATIVE, xdp.RingMode.ZERO_COPY),
    LinkMode.NATIVE: (xdp.AttachMode.NATIVE, xdp.RingMode.COPY),
    LinkMode.GENERIC: (xdp.AttachMode.GENERIC, xdp.RingMode.COPY),
}


@dataclass(frozen=True, slots=True)
class LinkStep:
    """One mode that was tried: `errno` is 0 and `reason` empty for the one in effect."""

    mode: LinkMode
    errno: int = 0
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """As it stands in the statistics."""
        return asdict(self)


class DataLink:
    """What data travels on, and how it came to be that. Closed after its context."""

    __slots__ = ("_changing", "_port", "_steered", "_steering", "mode", "steps")

    def __init__(
        self,
        steps: Sequence[LinkStep],
        port: xdp.RingPort | None = None,
        steering: Steering | None = None,
    ) -> None:
        """Own the port and the steering; the last step is the mode in effect."""
        self.steps, self.mode = tuple(steps), steps[-1].mode
        self._port, self._steering = port, steering
        self._steered: set[Group] = set()
        self._changing = threading.Lock()

    @property
    def kind(self) -> str:
        """`xdp` or `socket`."""
        return "socket" if self._port is None else "xdp"

    @property
    def port_address(self) -> int:
        """The um_port for the core; 0 is kernel sockets."""
        return 0 if self._port is None else self._port.address

    @property
    def datagram_max_bytes(self) -> int | None:
        """The largest datagram the rings carry; None where only the MTU counts."""
        return None if self._port is None else self._port.facts.datagram_max_bytes

    def steer(self, groups: Iterable[Group]) -> None:
        """Have exactly these groups' datagrams come by the rings; the rest goes to the kernel. Any thread."""
        if self._steering is None:
            return
        wanted = set(groups)
        with self._changing:
            for address, port in self._steered - wanted:
                self._steering.remove_rule(address, port)
            for address, port in wanted - self._steered:
                self._steering.add_rule(address, port, _SLOT)
            self._steered = wanted

    def stats(self) -> dict[str, Any]:
        """The mode in effect, the steps that led to it and what the rings are made of."""
        found: dict[str, Any] = {
            "link_mode": str(self.mode),
            "link_steps": [step.as_json() for step in self.steps],
        }
        if self._port is not None and self._steering is not None:
            facts = {**asdict(self._port.facts), "mode": str(self._port.facts.mode)}
            found["rings"] = {
                **facts,
                "received_by_queue": list(self._port.received().values()),
                "program_attached": self._steering.attached(),
            }
            if isinstance(self._steering, BrokeredSteering):
                found["rings"]["broker_lost"] = self._steering.lost
        return found

    def close(self) -> None:
        """Take the program off, then close the sockets it fed; a second call does nothing."""
        with self._changing:
            if self._steering is not None:
                self._steering.close()
            if self._port is not None:
                self._port.close()
            self._steering = None


def open_link(
    wanted: str,
    interface: xdp.Interface,
    settings: xdp.RingSettings,
    modes: Sequence[LinkMode] | None = None,
    broker: Path | None = None,
) -> DataLink:
    """Open the link by the first mode that works, of those that `wanted` (a value of the option `link`) allows.

    `broker` is the socket of the one to ask where this process lacks the capabilities.
    """
    missing = missing_capabilities(held_capabilities())
    if not missing or broker is None or not broker.is_socket():
        broker = None
    modes = modes or _WANTED[wanted]
    if interface.is_loopback and LinkMode.SOCKET not in modes:
        raise Unsupported(
            f"no AF_XDP link on {interface.name}: rings are past the kernel, which is where loopback ends",
            hint="use link='socket', or another interface",
        )
    steps: list[LinkStep] = []
    failures: list[xdp.XdpError] = []
    for mode in modes:
        if mode is LinkMode.SOCKET:
            return DataLink([*steps, LinkStep(mode)])
        try:
            steering, port = _open_rings(mode, interface, settings, broker)
            return DataLink([*steps, LinkStep(mode)], port, steering)
        except xdp.XdpError as error:
            failures.append(error)
            steps.append(_failed(mode, error, () if broker else missing))
    raise _nothing_worked(interface, steps, failures[-1])


def _failed(mode: LinkMode, error: xdp.XdpError, missing: Sequence[str]) -> LinkStep:
    number, reason = int(getattr(error, "errno", 0)), str(error)
    if missing and number in _PERMISSION_ERRNOS:
        reason += f"; this process lacks {', '.join(missing)}, and no broker is there (`umstack broker`)"
    return LinkStep(mode, number, reason)


def _open_rings(
    mode: LinkMode, interface: xdp.Interface, settings: xdp.RingSettings, broker: Path | None
) -> tuple[Steering, xdp.RingPort]:
    attach_mode, ring_mode = _RINGS[mode]
    if broker is not None:
        return open_brokered_rings(broker, interface, attach_mode, ring_mode, settings)
    steering = xdp.Steering.attach(interface, attach_mode, max_slots=1)
    port: xdp.RingPort | None = None
    try:
        port = xdp.RingPort(interface, ring_mode, settings)
        for queue, fd in port.sockets.items():
            steering.put_socket(_SLOT, queue, fd)
    except BaseException:
        steering.close()
        if port is not None:
            port.close()
        raise
    return steering, port


def _nothing_worked(interface: xdp.Interface, steps: Sequence[LinkStep], last: xdp.XdpError) -> UmError:
    tried = "; ".join(f"{step.mode}: {step.reason}" for step in steps)
    number = steps[-1].errno
    kind = PermissionNeeded if number in _PERMISSION_ERRNOS else Unsupported
    return kind(f"no AF_XDP link on {interface.name}: {tried}", hint=last.hint, errno=number)
