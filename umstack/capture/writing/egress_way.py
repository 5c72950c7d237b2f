"""Selects where outgoing packets are captured: at the device, or at tc egress, before the kernel cuts runs of
datagrams.

A packet socket captures at the device. If the device does not cut runs (UDP GSO), the kernel has cut them by then, and
delivers every datagram to the capture on the sender's processor. At tc egress a run is still one packet, which costs
the sender a fraction (xdp/egress_tap.py), and almost nothing if it can be mirrored. But packets that pass tc egress
may not leave the device, so it is selected only if it shows the same packets as the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from umstack.capture.writing.errors import CaptureError
from umstack.capture.writing.packet_filter import PacketFilter
from umstack.errors import error_from_os
from umstack_xdp.egress_facts import EgressFacts, egress_facts
from umstack_xdp.egress_tap import EgressFilter, EgressTap
from umstack_xdp.errors import NotBuiltError, XdpError
from umstack_xdp.facts import Unknown
from umstack_xdp.interface import Interface, find_interface
from umstack_xdp.mirror_device import MirrorDevice

Way = Literal["tc", "device"]
WantedWay = Literal["auto", "tc", "device"]

_PASSING = {"noqueue", "mq", "mqprio", "multiq", "pfifo_fast", "pfifo", "bfifo", "prio", "fq", "fq_codel"}
"""Queueing disciplines that neither drop nor delay packets while the device keeps up."""


@dataclass(frozen=True, slots=True)
class EgressChoice:
    """Where outgoing packets are captured, and the reason."""

    way: Way
    reason: str
    is_costly: bool = False
    """True if senders on this host pay for every single datagram, which tc egress would avoid."""
    copied: str = ""
    """At tc egress: the reason why runs of datagrams are copied, which costs the sender; empty: mirrored."""


def choose(wanted: WantedWay, facts: EgressFacts, *, filter_fits: bool) -> EgressChoice:
    """Choose the way. Raises CaptureError if tc is requested and not available."""
    if wanted == "device":
        return EgressChoice("device", "as requested")
    missing = list(_missing(facts, filter_fits=filter_fits))
    if wanted == "tc":
        if missing:
            raise _cannot(missing)
        return EgressChoice("tc", "as requested")
    if facts.segments_udp is True:
        return EgressChoice("device", "it cuts runs of datagrams itself, so they are whole there")
    reasons = [*missing, *_doubts(facts)]
    if reasons:
        return EgressChoice("device", "; ".join(reasons), is_costly=True)
    return EgressChoice("tc", "the device does not cut runs of datagrams; the kernel does, behind tc egress")


def _missing(facts: EgressFacts, *, filter_fits: bool) -> Iterator[str]:
    """Yield the reasons that make the tap impossible."""
    if facts.missing:
        yield f"tc egress requires {', '.join(facts.missing)}"
    if not filter_fits:
        yield "tc egress requires a filter with few ranges, of IPv4"


def _doubts(facts: EgressFacts) -> Iterator[str]:
    """Yield the reasons why tc egress may show other packets than the device, including unknown facts."""
    for fact in (
        facts.segments_udp,
        facts.programs,
        facts.has_filters,
        facts.disciplines,
    ):
        if isinstance(fact, Unknown) and not facts.missing:
            yield fact.reason
    if facts.programs and not isinstance(facts.programs, Unknown):
        yield f"{facts.programs} other programs at tc egress may drop or change what passes"
    if facts.has_filters is True:
        yield "a filter at tc egress may drop or change what passes"
    if not isinstance(facts.disciplines, Unknown) and (others := sorted(set(facts.disciplines) - _PASSING)):
        yield f"the queueing discipline {', '.join(others)} may drop or hold back what passed tc egress"


def _cannot(reasons: list[str]) -> CaptureError:
    return CaptureError(
        f"outgoing packets cannot be captured at tc egress: {'; '.join(reasons)}",
        hint="provide these, or use --egress auto or --egress device",
    )


def egress_filter(wanted: PacketFilter | None) -> EgressFilter | None:
    """Return the same filter for the tap; None if it does not fit the tap, which selects IPv4 only, or if everything
    is captured.

    Without a filter, packets of other protocols, such as tunnels, would be cut although they have rules of their own.
    """
    if wanted is None or any(low.version == 6 for low, _ in wanted.groups):
        return None
    groups = [(int(low), int(high)) for low, high in wanted.groups]
    found = EgressFilter(groups, wanted.group_ports, wanted.unicast_ports, wanted.stream_ports)
    return found if found.fits() else None


def _mirror() -> tuple[MirrorDevice | None, str]:
    """Return the mirror, or the reason why there is none."""
    try:
        return MirrorDevice(), ""
    except XdpError as error:
        return None, str(error)


def _tapped(
    choice: EgressChoice, interface: Interface, wanted: EgressFilter, ring_bytes: int
) -> tuple[EgressChoice, EgressTap]:
    mirror, copied = _mirror()
    try:
        return replace(choice, copied=copied), EgressTap(interface, wanted, ring_bytes, mirror)
    except BaseException:
        if mirror is not None:
            mirror.close()
        raise


def open_egress(
    name: str, wanted: WantedWay, packet_filter: PacketFilter | None, ring_bytes: int
) -> tuple[EgressChoice, EgressTap | None]:
    """Choose the way for an interface, and attach the tap if it is used."""
    if wanted == "device":
        return EgressChoice("device", "as requested"), None
    try:
        interface = find_interface(name)
        facts = egress_facts(interface)
        try:
            tap_filter = egress_filter(packet_filter)
        except NotBuiltError:
            tap_filter = None  # the facts also report this
        choice = choose(wanted, facts, filter_fits=tap_filter is not None)
        if choice.way == "device" or tap_filter is None:
            return choice, None
        return _tapped(choice, interface, tap_filter, ring_bytes)
    except XdpError as error:
        if wanted == "tc":
            raise CaptureError(error.message, hint=error.hint) from error
        return EgressChoice("device", error.message.splitlines()[0], is_costly=True), None
    except OSError as error:
        raise error_from_os(error, f"inspecting {name}") from error
