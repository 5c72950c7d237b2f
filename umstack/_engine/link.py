"""The link of a context: kernel sockets, or AF_XDP rings opened by walking down the mode ladder (`xdp.ladder`).

A mode that the facts forbid is recorded with its reason and not tried; every other mode is tried, with its own flags,
and a step that failed is recorded with its errno, so that the mode in effect and the reasons for it can be shown. A
forced link fails with what the host lacks.
A process without the capabilities has a broker open its rings, where there is one (`xdp.broker`, docs/privileges.md).
Rings carry a context's data both ways; NAKs, topic resolution and group membership stay on kernel sockets (design W5).
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import xdp
from umstack.config import ContextOptions
from umstack.errors import PermissionNeeded, UmError, Unsupported
from xdp.broker_client import BrokeredSteering, ask_broker, open_brokered_rings
from xdp.capabilities import missing_capabilities
from xdp.facts import Facts, Unknown
from xdp.ladder import Mode, Step, Verdict, Wanted, decide, modes_of
from xdp.probe import probe_interface

Group = tuple[str, int]
Steering = xdp.Steering | BrokeredSteering
OpenRings = Callable[[Mode], tuple[Steering, xdp.RingSet]]

_SLOT = 0
"""A context has the interface's program to itself, so its sockets are the only ones in it."""

_RINGS = {
    Mode.ZERO_COPY: (xdp.AttachMode.NATIVE, xdp.RingMode.ZERO_COPY),
    Mode.NATIVE: (xdp.AttachMode.NATIVE, xdp.RingMode.COPY),
    Mode.GENERIC: (xdp.AttachMode.GENERIC, xdp.RingMode.COPY),
}
_DENIED = (errno.EPERM, errno.EACCES)


@dataclass(frozen=True, slots=True)
class LinkStep:
    """One requested mode and its outcome; `errno` is 0 unless the kernel refused an attempt."""

    mode: Mode
    errno: int = 0
    reason: str = ""
    """Empty for the mode in effect."""
    tried: bool = True
    """False where the facts of host and interface forbade it."""
    remedy: str = ""
    needs_privilege: bool = False

    def as_json(self) -> dict[str, Any]:
        """As it stands in the statistics."""
        return asdict(self)


class DataLink:
    """The link of a context, and the steps that led to it. Closed after its context."""

    __slots__ = ("_changing", "_rings", "_steered", "_steering", "mode", "steps")

    def __init__(
        self,
        steps: Sequence[LinkStep],
        rings: xdp.RingSet | None = None,
        steering: Steering | None = None,
    ) -> None:
        """Own the ring set and the steering; the last step is the mode in effect."""
        self.steps, self.mode = tuple(steps), steps[-1].mode
        self._rings, self._steering = rings, steering
        self._steered: set[Group] = set()
        self._changing = threading.Lock()

    @property
    def kind(self) -> str:
        """`xdp` or `socket`."""
        return "socket" if self._rings is None else "xdp"

    @property
    def rings_address(self) -> int:
        """The um_rings for the core; 0 is kernel sockets."""
        return 0 if self._rings is None else self._rings.address

    @property
    def datagram_max_bytes(self) -> int | None:
        """The largest datagram the rings carry; None where only the MTU counts."""
        return None if self._rings is None else self._rings.facts.datagram_max_bytes

    def steer(self, groups: Iterable[Group]) -> None:
        """Steer exactly these groups into the rings; the rest goes to the kernel. Any thread."""
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
        if self._rings is not None and self._steering is not None:
            facts = {**asdict(self._rings.facts), "mode": str(self._rings.facts.mode)}
            found["rings"] = {
                **facts,
                "received_by_queue": list(self._rings.received().values()),
                "program_attached": self._steering.attached(),
            }
            if isinstance(self._steering, BrokeredSteering):
                found["rings"]["broker_lost"] = self._steering.lost
        return found

    def close(self) -> None:
        """Detach the program, then close the sockets that it redirected to; a second call does nothing."""
        with self._changing:
            if self._steering is not None:
                self._steering.close()
            if self._rings is not None:
                self._rings.close()
            self._steering = None


def open_link(
    wanted: str, interface: xdp.Interface, settings: xdp.RingSettings, broker: Path | None = None
) -> DataLink:
    """Open the link by the first mode that works, of those that `wanted` (a value of the option `link`) allows.

    `broker` is the socket of the broker, which opens the rings where this process lacks the capabilities.
    """
    if wanted == Wanted.SOCKET:
        return DataLink([LinkStep(Mode.SOCKET)])
    facts = probe_interface(interface)
    if broker is not None and missing_capabilities(facts.capabilities) and broker.is_socket():
        facts = _as_brokered(facts, broker)
    else:
        broker = None
    judged = decide(facts, wanted, ring_bytes=xdp.ring_bytes(interface, settings))
    return walk_down(wanted, interface, judged, lambda mode: _open_rings(mode, interface, settings, broker))


def open_context_link(options: ContextOptions, interface: xdp.Interface) -> DataLink:
    """Open the link that the options of a context request."""
    settings = xdp.RingSettings(
        receive_frames=1 << (options.link_xdp_receive_frames - 1).bit_length(),
        queues=options.link_xdp_queues,
        verify_checksum=options.link_xdp_checksum,
        busy_poll_us=options.link_xdp_busy_poll,
    )
    return open_link(options.link, interface, settings, broker=Path(options.link_xdp_broker))


def _as_brokered(facts: Facts, broker: Path) -> Facts:
    """The facts with the capabilities of the broker; unknown without an answer, so that each step tries the broker."""
    try:
        return ask_broker(broker).added_to(facts)
    except xdp.BrokerError as error:
        return replace(facts, capabilities=Unknown(error.message))


def rings_of_others(interface: xdp.Interface) -> str | None:
    """Describe the program that may keep groups from this host's sockets; None where there is none.

    Groups that another process receives over rings never reach the kernel, so a context on sockets receives nothing
    of them. Of an XDP program that is not ours, nothing is assumed. Takes microseconds where no program is there.
    """
    if not interface.has_xdp_program:
        return None
    with contextlib.suppress(xdp.XdpError):
        in_the_way = [str(there) for there in xdp.occupants(interface) if there.steers is not False]
        return "; ".join(in_the_way) or None
    return "an XDP program of which this process may know nothing"


def walk_down(
    wanted: str, interface: xdp.Interface, judged: Sequence[Step], open_rings: OpenRings
) -> DataLink:
    """Try what the ladder does not forbid, the best first; sockets work wherever they are requested."""
    steps: list[LinkStep] = []
    for step in judged:
        is_requested = step.mode in modes_of(wanted)
        if step.mode is Mode.SOCKET and is_requested:
            return DataLink([*steps, LinkStep(step.mode)])
        if is_requested and step.verdict is Verdict.CANNOT:
            steps.append(_ruled_out(step))
        elif is_requested:
            try:
                steering, rings = open_rings(step.mode)
            except xdp.XdpError as error:
                steps.append(_refused(step.mode, error))
            else:
                return DataLink([*steps, LinkStep(step.mode)], rings, steering)
    raise _nothing_worked(interface, steps)


def _ruled_out(step: Step) -> LinkStep:
    return LinkStep(
        step.mode,
        reason=" and ".join(reason.problem for reason in step.reasons),
        tried=False,
        remedy="; ".join(reason.remedy for reason in step.reasons),
        needs_privilege=any(reason.needs_privilege for reason in step.reasons),
    )


def _refused(mode: Mode, error: xdp.XdpError) -> LinkStep:
    number = int(getattr(error, "errno", 0))
    return LinkStep(mode, number, error.message, remedy=error.hint, needs_privilege=number in _DENIED)


def _open_rings(
    mode: Mode, interface: xdp.Interface, settings: xdp.RingSettings, broker: Path | None
) -> tuple[Steering, xdp.RingSet]:
    attach_mode, ring_mode = _RINGS[mode]
    if broker is not None:
        return open_brokered_rings(broker, interface, attach_mode, ring_mode, settings)
    steering = xdp.Steering.attach(interface, attach_mode, max_slots=1)
    rings: xdp.RingSet | None = None
    try:
        rings = xdp.RingSet(interface, ring_mode, settings)
        for queue, fd in rings.sockets.items():
            steering.put_socket(_SLOT, queue, fd)
    except BaseException:
        steering.close()
        if rings is not None:
            rings.close()
        raise
    return steering, rings


def _nothing_worked(interface: xdp.Interface, steps: Sequence[LinkStep]) -> UmError:
    """The error of a link without any mode. The last mode needs the least, so its remedy is the hint."""
    modes_by_reason: dict[str, list[Mode]] = {}
    for step in steps:
        modes_by_reason.setdefault(step.reason, []).append(step.mode)
    tried = "; ".join(f"{', '.join(modes)}: {reason}" for reason, modes in modes_by_reason.items())
    last = steps[-1]
    kind = PermissionNeeded if last.needs_privilege else Unsupported
    return kind(f"no AF_XDP link on {interface.name}: {tried}", hint=last.remedy, errno=last.errno)
