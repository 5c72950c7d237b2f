"""Selects the packets of a capture that become rows; the decoder skips the others before it fills columns."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from umstack._core import lib

TYPES = ("DATA", "SM", "NAK", "NCF", "LBMR", "STATUS", "TCP", "ACK", "CREQ", "RST", "FILTER")
"""Texts of `packet_type`, in the order of the core's numbers."""
VALUES_MAX: int = lib.UM_PACKET_SELECTION_VALUES_MAX
"""Maximum number of sessions, and of destinations, in a selection."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Conditions on packets. None means no condition; an empty set matches no packet. Can be pickled."""

    time_low_ns: int = -(2**63)
    """The first time, inclusive. Any bound excludes packets without a time."""
    time_high_ns: int = 2**63 - 1
    """The last time, inclusive."""
    is_timed: bool = False
    """Exclude packets without a time, even without bounds."""
    types: frozenset[str] | None = None
    sessions: frozenset[int] | None = None
    destinations: frozenset[str] | None = None
    """Addresses in the form of the column `destination_address`."""

    @property
    def is_everything(self) -> bool:
        """True if there are no conditions."""
        return self == Selection()

    def fill(self, core: Any) -> None:
        """Write the selection into a um_packet_selection."""
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
            raise ValueError(f"a selection has at most {VALUES_MAX} sessions and destinations")
        core.session_count = len(sessions)
        for i, session in enumerate(sessions):
            core.sessions[i] = session
        core.destination_count = len(destinations)
        for i, text in enumerate(destinations):
            address = ipaddress.ip_address(text)
            core.destinations[i].ip_version = address.version
            core.destinations[i].address = address.packed.ljust(16, b"\0")
