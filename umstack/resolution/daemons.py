"""DaemonClient: topic resolution by unicast through resolution daemons, as a state machine without I/O.

The context sends keepalives to every daemon so that each of them relays to it. It sends its own records to the first
daemon in the list that responds. Contexts that briefly use different daemons therefore still receive each other's
records.

      idle --(a datagram received from it)--> alive --(nothing received for the activity timeout)--> idle

A daemon challenges a context that it does not know: its keepalives must repeat the daemon's cookie. A challenge with
another cookie means that the daemon has restarted, so it counts as idle until it answers.

While no daemon is alive, every record is sent to all of them. When the first one becomes alive again, the context
sends all its records and requests those of the others, because records sent meanwhile were lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from umstack.config import ContextOptions
from umstack.resolution.codec import KEEPALIVE, KeepaliveKind, decode_keepalive, encode_keepalive

Address = tuple[str, int]


@dataclass(slots=True)
class _Daemon:
    address: Address
    last_received_ns: int | None = None
    cookie: bytes | None = None
    is_challenging: bool = False


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
        """Use the daemons listed in resolver_unicast_daemon."""
        self._daemons = [_Daemon(address) for address in options.resolver_daemons]
        self._keepalive_ns = options.resolver_unicast_keepalive_interval_ns
        self._timeout_ns = options.resolver_unicast_activity_timeout_ns
        self._next_keepalive_ns = now_ns
        self.was_alive: Address | None = None
        self.change_count = 0
        """Number of times that the daemon in use changed to another one or to none."""

    def note_received(self, address: Address, data: bytes, now_ns: int) -> bool:
        """Account for a datagram from an address; return false if the address is not one of our daemons."""
        for daemon in self._daemons:
            if daemon.address == address:
                keepalive = decode_keepalive(data)
                if keepalive is None or keepalive[0] is KeepaliveKind.ANSWER:
                    daemon.last_received_ns = now_ns
                elif keepalive[0] is KeepaliveKind.CHALLENGE and keepalive[1] != daemon.cookie:
                    daemon.cookie, daemon.last_received_ns, daemon.is_challenging = keepalive[1], None, True
                return True
        return False

    def alive(self, now_ns: int) -> Address | None:
        """Return the daemon in use: the first that responds; None if none does."""
        for daemon in self._daemons:
            if daemon.last_received_ns is not None and now_ns - daemon.last_received_ns < self._timeout_ns:
                return daemon.address
        return None

    def states(self, now_ns: int) -> list[tuple[Address, bool]]:
        """Return every daemon in list order and whether it responds. Any thread."""
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

    def has_returned(self, now_ns: int) -> bool:
        """Return true if a daemon responds now but none did at the previous call."""
        alive, before = self.alive(now_ns), self.was_alive
        self.change_count += alive != before
        self.was_alive = alive
        return alive is not None and before is None

    def keepalives(self, now_ns: int) -> list[tuple[Address, bytes]]:
        """Return the keepalives that are due: to every daemon, or to those with a new cookie."""
        is_due = now_ns >= self._next_keepalive_ns
        if is_due:
            self._next_keepalive_ns = now_ns + self._keepalive_ns
        chosen = [daemon for daemon in self._daemons if is_due or daemon.is_challenging]
        for daemon in chosen:
            daemon.is_challenging = False
        return [(daemon.address, _keepalive(daemon.cookie)) for daemon in chosen]

    def deadline_ns(self) -> int:
        """Return when keepalives() must be called next; a new cookie comes with a datagram, which wakes the caller."""
        return self._next_keepalive_ns


def _keepalive(cookie: bytes | None) -> bytes:
    return KEEPALIVE if cookie is None else encode_keepalive(KeepaliveKind.RESPONSE, cookie)
