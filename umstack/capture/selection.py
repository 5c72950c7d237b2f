"""Which packets of a capture become rows: the decoder leaves out the others before it makes any column of them."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from umstack._core import lib

TYPES = ("DATA", "SM", "NAK", "NCF", "LBMR", "STATUS", "TCP", "ACK", "CREQ", "RST", "FILTER")
"""Texts of `packet_type`, in the order of the core's numbers."""
VALUES_MAX: int = lib.UM_PACKET_SELECTION_VALUES_MAX
"""How many sessions, and how many destinations, a selection can name."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a packet must have. None asks for nothing; an empty set is met by no packet. It can be pickled."""

    time_low_ns: int = -(2**63)
    """The first time, inclusive. A packet without a time is left out by any bound."""
    time_high_ns: int = 2**63 - 1
    """The last time, inclusive."""
    is_timed: bool = False
    """Leave out packets without a time, whatever the bounds."""
    types: frozenset[str] | None = None
    sessions: frozenset[int] | None = None
    destinations: frozenset[str] | None = None
    """Addresses in the form that the column `destination_address` has."""

    @property
    def is_everything(self) -> bool:
        """Whether nothing is asked for."""
        return self == Selection()

    def fill(self, core: Any) -> None:
        """Write it into a um_packet_selection."""
        low, high = max(self.time_low_ns, -(2**63)), min(self.time_high_ns, 2**63 - 1)
        if any(
            wanted is not None and not wanted for wanted in (self.types, self.sessions, self.destinations)
        ):
            low, high = 1, 0
        if low > high:
            low, high = 1, 0
        core.by_time = self.is_timed or (low, high) != (-(2**63), 2**63 - 1)
        core.time_low_ns, core.time_high_ns = low, high
        core.types = sum(1 << TYPES.index(name) for name in self.types or ())
        sessions, destinations = sorted(self.sessions or ()), sorted(self.destinations or ())
        if max(len(sessions), len(destinations)) > VALUES_MAX:
            raise ValueError(f"a selection names at most {VALUES_MAX} sessions and destinations")
        core.session_count = len(sessions)
        for i, session in enumerate(sessions):
            core.sessions[i] = session
        core.destination_count = len(destinations)
        for i, text in enumerate(destinations):
            address = ipaddress.ip_address(text)
            core.destinations[i].ip_version = address.version
            core.destinations[i].address = address.packed.ljust(16, b"\0")
