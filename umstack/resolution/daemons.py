"""DaemonClient: topic resolution by unicast through resolution daemons, as a state machine without I/O.

The context sends keepalives to every daemon, so that each relays to it; its own records go to the first daemon in the
list that responds. So contexts that briefly use different daemons still receive each other's records.

      idle --(a datagram received from it)--> alive --(nothing received for the activity timeout)--> idle

While none is alive, every record is sent to all of them. When a daemon returns after none was alive, the context sends
its records again and requests those of the others, because records sent meanwhile were lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from umstack.config import ContextOptions

Address = tuple[str, int]


@dataclass(slots=True)
class _Daemon:
    address: Address
    last_received_ns: int | None = None


class DaemonClient:
    """Not thread-safe; `now_ns` must never go back."""

    __slots__ = (
        "_daemons",
        "_keepalive_ns",
        "_next_keepalive_ns",
        "_timeout_ns",
        "change_count",
        "was_alive",
    )

    def __init__(self, options: ContextOptions, now_ns: int) -> None:
        """The daemons are those of resolver_unicast_daemon."""
        self._daemons = [_Daemon(address) for address in options.resolver_daemons]
        self._keepalive_ns = options.resolver_unicast_keepalive_interval_ns
        self._timeout_ns = options.resolver_unicast_activity_timeout_ns
        self._next_keepalive_ns = now_ns
        self.was_alive: Address | None = None
        self.change_count = 0
        """How often another daemon, or none, became the one that is used."""

    def heard(self, address: Address, now_ns: int) -> bool:
        """Something came from an address. False when that is no daemon of ours."""
        for daemon in self._daemons:
            if daemon.address == address:
                daemon.last_received_ns = now_ns
                return True
        return False

    def alive(self, now_ns: int) -> Address | None:
        """The daemon that is used: the first that answers; None while none does."""
        for daemon in self._daemons:
            if daemon.last_received_ns is not None and now_ns - daemon.last_received_ns < self._timeout_ns:
                return daemon.address
        return None

    def states(self, now_ns: int) -> list[tuple[Address, bool]]:
        """Every daemon, in the order of the list, and whether it answers. Any thread."""
        return [
            (
                one.address,
                (last := one.last_received_ns) is not None and now_ns - last < self._timeout_ns,
            )
            for one in self._daemons
        ]

    def destinations(self, now_ns: int) -> list[Address]:
        """Return the destinations of due records."""
        alive = self.alive(now_ns)
        return [daemon.address for daemon in self._daemons] if alive is None else [alive]

    def has_come_back(self, now_ns: int) -> bool:
        """True if a daemon answers, and none did when this was last asked."""
        alive, before = self.alive(now_ns), self.was_alive
        self.change_count += alive != before
        self.was_alive = alive
        return alive is not None and before is None

    def keepalives(self, now_ns: int) -> list[Address]:
        """The daemons that are due a keepalive: all or none."""
        if now_ns < self._next_keepalive_ns:
            return []
        self._next_keepalive_ns = now_ns + self._keepalive_ns
        return [daemon.address for daemon in self._daemons]

    def deadline_ns(self) -> int:
        """When keepalives() is next to be called."""
        return self._next_keepalive_ns
