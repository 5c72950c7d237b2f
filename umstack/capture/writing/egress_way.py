"""Where a capture sees what goes out: at the device, or at tc egress, before the kernel cuts runs of datagrams.

At the device is where a packet socket looks. Where the device does not cut runs (UDP GSO) itself, the kernel has done
so by then, and every single datagram is delivered on the sender's processor. At tc egress a run is still one packet,
which costs the sender a fraction (xdp/egress_tap.py), and next to nothing where it can be mirrored. But not everything
that passes there need leave: so it is chosen only where what it shows is what the device would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from umstack.capture.writing.errors import CaptureError
from umstack.capture.writing.packet_filter import PacketFilter
from umstack.errors import error_from_os
from xdp.egress_facts import EgressFacts, egress_facts
from xdp.egress_tap import EgressFilter, EgressTap
from xdp.errors import NotBuiltError, XdpError
from xdp.facts import Unknown
from xdp.interface import Interface, find_interface
from xdp.mirror_device import MirrorDevice

Way = Literal["tc", "device"]
WantedWay = Literal["auto", "tc", "device"]

_PASSING = {"noqueue", "mq", "mqprio", "multiq", "pfifo_fast", "pfifo", "bfifo", "prio", "fq", "fq_codel"}
"""Queueing disciplines that drop nothing and shape nothing as long as the device keeps up."""


@dataclass(frozen=True, slots=True)
class EgressChoice:
    """Where what goes out is seen, and why there."""

    way: Way
    reason: str
    costs_sender: bool = False
    """Whether senders on this host pay for every single datagram, which the other way would spare them."""
    copied: str = ""
    """At tc egress: why runs of datagrams are copied at the sender's expense; empty: they are mirrored."""


def choose(wanted: WantedWay, facts: EgressFacts, *, filter_fits: bool) -> EgressChoice:
    """Choose. Raises CaptureError where tc is asked for and cannot be had."""
    if wanted == "device":
        return EgressChoice("device", "as asked for")
    missing = list(_missing(facts, filter_fits=filter_fits))
    if wanted == "tc":
        if missing:
            raise _cannot(missing)
        return EgressChoice("tc", "as asked for")
    if facts.segments_udp is True:
        return EgressChoice("device", "it cuts runs of datagrams itself, so they are seen whole there")
    reasons = [*missing, *_doubts(facts)]
    if reasons:
        return EgressChoice("device", "; ".join(reasons), costs_sender=True)
    return EgressChoice("tc", "the device does not cut runs of datagrams; the kernel does, behind tc egress")


def _missing(facts: EgressFacts, *, filter_fits: bool) -> Iterator[str]:
    """What makes the tap impossible."""
    if facts.missing:
        yield f"tc egress would take {', '.join(facts.missing)}"
    if not filter_fits:
        yield "tc egress takes a filter with few ranges, and none that keeps everything"


def _doubts(facts: EgressFacts) -> Iterator[str]:
    """What would make tc egress show something else than the device does; what is not known is doubted."""
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
        hint="provide what is missing, or use --egress auto or --egress device",
    )


def egress_filter(wanted: PacketFilter | None) -> EgressFilter | None:
    """The same filter for the tap; None where it has no space for it, or where everything is to be kept.

    Of everything, what is neither a datagram nor a stream of the stack's is cut by rules of its own (tunnels).
    """
    if wanted is None:
        return None
    groups = [(int(low), int(high)) for low, high in wanted.groups]
    found = EgressFilter(groups, wanted.group_ports, wanted.unicast_ports, wanted.stream_ports)
    return found if found.fits() else None


def _mirror() -> tuple[MirrorDevice | None, str]:
    """The mirror, or why there is none."""
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
    """Choose for an interface, and attach the tap where it is to be used."""
    if wanted == "device":
        return EgressChoice("device", "as asked for"), None
    try:
        interface = find_interface(name)
        facts = egress_facts(interface)
        try:
            tap_filter = egress_filter(packet_filter)
        except NotBuiltError:
            tap_filter = None  # which the facts tell, too
        choice = choose(wanted, facts, filter_fits=tap_filter is not None)
        if choice.way == "device" or tap_filter is None:
            return choice, None
        return _tapped(choice, interface, tap_filter, ring_bytes)
    except XdpError as error:
        if wanted == "tc":
            raise CaptureError(error.message, hint=error.hint) from error
        return EgressChoice("device", error.message.splitlines()[0], costs_sender=True), None
    except OSError as error:
        raise error_from_os(error, f"finding out about {name}") from error
