"""The ports that identify packets of the stack in a capture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CapturePorts:
    """Port ranges, first to last, whose packets are ours, well-formed or not.

    The defaults cover those of the configuration options. A datagram to another port is LBT-RM only if every length in
    it agrees, and LBT-RU if also its source port is one of LBT-RU; other TCP ports are ignored.
    """

    lbtrm: tuple[int, int] = (14390, 14401)
    """UDP destination ports of sessions."""
    resolution: tuple[int, int] = (12965, 12965)
    """UDP destination ports of topic resolution."""
    tcp: tuple[int, int] = (14371, 14395)
    """TCP ports of sources: LBT-TCP, and requests of late join and off-transport recovery. (0, 0): none."""
    lbtru: tuple[int, int] = (14360, 14389)
    """UDP ports of sources and receivers of LBT-RU."""
    store: tuple[int, int] = (14567, 14569)
    """TCP ports of Stores. (0, 0): none."""
