"""Opens the link of a context by the mode ladder (`umstack_xdp.ladder`).

A mode that the facts of the host forbid is not tried, and its reason is recorded. Every other mode is tried in turn,
and a failed attempt is recorded with its errno, so that users can see the mode in effect and why. A forced link that
cannot be opened raises an error with the reason.
In a process without the capabilities a broker opens the rings, if there is one (`umstack_xdp.broker`,
docs/privileges.md).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import umstack_xdp as xdp
from umstack._engine.link import SLOT, DataLink, LinkStep, OpenedRings
from umstack.config import ContextOptions
from umstack.errors import PermissionNeeded, UmError, Unsupported
from umstack_xdp.broker_client import ask_broker, open_brokered_rings
from umstack_xdp.capabilities import missing_capabilities
from umstack_xdp.facts import Facts, Unknown
from umstack_xdp.ladder import Mode, Step, Verdict, Wanted, decide, modes_of
from umstack_xdp.probe import probe_interface
from umstack_xdp.ring_place import ring_places

OpenRings = Callable[[Mode], Sequence[OpenedRings]]

_RINGS = {
    Mode.ZERO_COPY: (xdp.AttachMode.NATIVE, xdp.RingMode.ZERO_COPY),
    Mode.NATIVE: (xdp.AttachMode.NATIVE, xdp.RingMode.COPY),
    Mode.GENERIC: (xdp.AttachMode.GENERIC, xdp.RingMode.COPY),
}
_DENIED = (errno.EPERM, errno.EACCES)


def open_link(
    wanted: str, interface: xdp.Interface, settings: xdp.RingSettings, broker: Path | None = None
) -> DataLink:
    """Open the link by the first mode that works, among those that `wanted` (a value of the option `link`) allows.

    `broker` is the socket of the broker, which opens the rings if this process lacks the capabilities.
    """
    if wanted == Wanted.SOCKET:
        return DataLink([LinkStep(Mode.SOCKET)])
    facts = probe_interface(interface)
    if broker is not None and missing_capabilities(facts.capabilities) and broker.is_socket():
        facts = _as_brokered(facts, broker)
    else:
        broker = None
    places = ring_places(interface, facts.stack)
    judged = decide(facts, wanted, ring_bytes=sum(xdp.ring_bytes(place.device, settings) for place in places))
    return walk_down(wanted, interface, judged, lambda mode: _open_all(mode, places, settings, broker))


def open_context_link(options: ContextOptions, interface: xdp.Interface) -> DataLink:
    """Open the link that the options of a context request."""
    settings = xdp.RingSettings(
        receive_frames=1 << (options.link_xdp_receive_frames - 1).bit_length(),
        queues=options.link_xdp_queues,
        verify_checksum=options.link_xdp_checksum,
        busy_poll_us=options.link_xdp_busy_poll,
        kernel_times=options.transport_lbtrm_receiver_timestamp,
        nic_times=options.link_xdp_nic_timestamps,
    )
    return open_link(options.link, interface, settings, broker=Path(options.link_xdp_broker))


def _as_brokered(facts: Facts, broker: Path) -> Facts:
    """Return the facts with the broker's capabilities, unknown if it does not answer, so that each step tries it."""
    try:
        return ask_broker(broker).added_to(facts)
    except xdp.BrokerError as error:
        return replace(facts, capabilities=Unknown(error.message))


def walk_down(
    wanted: str, interface: xdp.Interface, judged: Sequence[Step], open_rings: OpenRings
) -> DataLink:
    """Try the modes that the ladder does not forbid, the best first. Sockets always work if requested."""
    steps: list[LinkStep] = []
    for step in judged:
        is_requested = step.mode in modes_of(wanted)
        if step.mode is Mode.SOCKET and is_requested:
            return DataLink([*steps, LinkStep(step.mode)])
        if is_requested and step.verdict is Verdict.CANNOT:
            steps.append(_ruled_out(step))
        elif is_requested:
            try:
                return DataLink([*steps, LinkStep(step.mode)], open_rings(step.mode))
            except xdp.XdpError as error:
                steps.append(_refused(step.mode, error))
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


def _open_all(
    mode: Mode, places: Sequence[xdp.RingPlace], settings: xdp.RingSettings, broker: Path | None
) -> list[OpenedRings]:
    """Open rings on every NIC below the interface, or on none."""
    opened: list[OpenedRings] = []
    with ExitStack() as undo:
        for place in places:
            one = _open_rings(mode, place, settings, broker)
            undo.callback(one.close)
            opened.append(one)
        undo.pop_all()
    return opened


def _open_rings(
    mode: Mode, place: xdp.RingPlace, settings: xdp.RingSettings, broker: Path | None
) -> OpenedRings:
    attach_mode, ring_mode = _RINGS[mode]
    if broker is not None:
        return OpenedRings(*open_brokered_rings(broker, place, attach_mode, ring_mode, settings))
    steering = xdp.Steering.attach(place.device, attach_mode, max_slots=1, frame_times=settings.frame_times)
    rings: xdp.RingSet | None = None
    try:
        rings = xdp.RingSet(place, ring_mode, settings.for_program(steering.frame_times))
        for queue, fd in rings.sockets.items():
            steering.put_socket(SLOT, queue, fd)
    except BaseException:
        steering.close()
        if rings is not None:
            rings.close()
        raise
    return OpenedRings(steering, rings)


def _nothing_worked(interface: xdp.Interface, steps: Sequence[LinkStep]) -> UmError:
    """Return the error for a link without a working mode. The last mode needs the least, so its remedy is the hint."""
    modes_by_reason: dict[str, list[Mode]] = {}
    for step in steps:
        modes_by_reason.setdefault(step.reason, []).append(step.mode)
    tried = "; ".join(f"{', '.join(modes)}: {reason}" for reason, modes in modes_by_reason.items())
    last = steps[-1]
    kind = PermissionNeeded if last.needs_privilege else Unsupported
    return kind(f"no AF_XDP link on {interface.name}: {tried}", hint=last.remedy, errno=last.errno)
