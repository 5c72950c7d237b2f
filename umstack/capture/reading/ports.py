"""The ports by which packets of the stack are known in a capture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapturePorts:
    """Ports, each from first to last, whose packets are ours, well formed or not.

    The defaults cover those of the options of the same purpose. A datagram to any other port is taken for LBT-RM only
    when every length in it agrees, and for LBT-RU when it comes from one of its ports as well; of TCP nothing else is
    looked at.
    """

    lbtrm: tuple[int, int] = (14390, 14401)
    """UDP destination ports of sessions."""
    resolution: tuple[int, int] = (12965, 12965)
    """UDP destination ports of topic resolution."""
    tcp: tuple[int, int] = (14371, 14395)
    """TCP ports of sources: LBT-TCP, and requests of late join and off-transport recovery. (0, 0): none."""
    lbtru: tuple[int, int] = (14360, 14389)
    """UDP ports of sources and receivers of LBT-RU."""
