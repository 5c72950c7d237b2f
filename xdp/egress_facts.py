"""Facts about an interface's egress path: what splits runs of datagrams, and what may drop or delay them.

Works on the network namespace of the calling thread.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from umstack_xdp.capabilities import held_capabilities, missing_capabilities
from umstack_xdp.egress_tap import NAME, egress_program_count
from umstack_xdp.errors import XdpError
from umstack_xdp.ethtool import Ethtool
from umstack_xdp.facts import Unknown
from umstack_xdp.interface import Interface, off_the_event_loop
from umstack_xdp.loader import unavailable
from umstack_xdp.traffic_control import disciplines, has_filters

_SEGMENTATION = "tx-udp-segmentation"
_NEEDED = ("CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON")


@dataclass(frozen=True, slots=True)
class EgressFacts:
    """Facts about one interface at the time of the call."""

    segments_udp: bool | Unknown
    """True if the device itself splits runs of datagrams, so that the kernel does not."""
    programs: int | Unknown
    """Number of programs at its egress attached by tcx."""
    has_filters: bool | Unknown
    """True if a clsact qdisc has filters at its egress."""
    disciplines: tuple[str, ...] | Unknown
    """The kinds of its queueing disciplines, which packets pass after the egress hook."""
    missing: tuple[str, ...]
    """Requirements of the tap that this process, kernel or installation does not meet."""


@off_the_event_loop
def egress_facts(interface: Interface) -> EgressFacts:
    """Return the facts about the egress of an interface."""
    missing = [*filter(None, [unavailable(NAME)]), *missing_capabilities(held_capabilities(), _NEEDED)]
    programs = _programs(interface) if not missing else Unknown("requirements are missing")
    if isinstance(programs, Unknown) and not missing:
        missing.append(programs.reason)
    with Ethtool(interface.name) as ethtool:
        features = ethtool.features()
    return EgressFacts(
        segments_udp=features if isinstance(features, Unknown) else features.get(_SEGMENTATION, False),
        programs=programs,
        has_filters=_has_filters(interface),
        disciplines=_disciplines(interface),
        missing=tuple(missing),
    )


def _programs(interface: Interface) -> int | Unknown:
    try:
        return egress_program_count(interface)
    except XdpError as error:
        if getattr(error, "errno", 0) == errno.EINVAL:
            return Unknown("tcx, which Linux has from 6.6 on")
        return Unknown(error.message)


def _has_filters(interface: Interface) -> bool | Unknown:
    try:
        return has_filters(interface.index, "egress")
    except XdpError as error:
        return Unknown(error.message)


def _disciplines(interface: Interface) -> tuple[str, ...] | Unknown:
    try:
        return disciplines(interface.index)
    except XdpError as error:
        return Unknown(error.message)
