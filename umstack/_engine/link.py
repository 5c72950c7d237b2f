"""The link of a context, kernel sockets or AF_XDP rings, and the steps that led to it (design W7).

Rings carry a context's data both ways; NAKs, topic resolution and group membership stay on kernel sockets (design W5).
What opens rings is umstack._engine.ring_link: a context on kernel sockets does not import it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from xdp.attachment import has_program, occupants
from xdp.errors import XdpError
from xdp.interface import lies_on_others
from xdp.modes import Mode

if TYPE_CHECKING:
    import xdp
    from xdp.broker_client import BrokeredSteering

    Steering = xdp.Steering | BrokeredSteering

Group = tuple[str, int]

SLOT = 0
"""A context has a NIC's program to itself, so its sockets are the only ones in it."""


@dataclass(frozen=True, slots=True)
class OpenedRings:
    """The rings on one NIC, and the program there that steers datagrams into them."""

    steering: Steering
    ring_set: xdp.RingSet


@dataclass(frozen=True, slots=True)
class LinkStep:
    """One requested mode and its outcome; `errno` is 0 unless the kernel refused an attempt."""

    mode: Mode
    errno: int = 0
    reason: str = ""
    """Empty for the mode in effect."""
    tried: bool = True
    """False where the facts of host and interface forbade it."""
    remedy: str = ""
    needs_privilege: bool = False

    def as_json(self) -> dict[str, Any]:
        """As it stands in the statistics."""
        return asdict(self)


class DataLink:
    """The link of a context, and the steps that led to it. Closed after its context."""

    __slots__ = ("_changing", "_opened", "_steered", "mode", "steps")

    def __init__(self, steps: Sequence[LinkStep], opened: OpenedRings | None = None) -> None:
        """Own what was opened; the last step is the mode in effect."""
        self.steps, self.mode = tuple(steps), steps[-1].mode
        self._opened = opened
        self._steered: set[Group] = set()
        self._changing = threading.Lock()

    @property
    def kind(self) -> str:
        """`xdp` or `socket`."""
        return "socket" if self.mode is Mode.SOCKET else "xdp"

    @property
    def rings_address(self) -> int:
        """The um_rings for the core; 0 is kernel sockets."""
        return 0 if self._opened is None else self._opened.ring_set.address

    @property
    def datagram_max_bytes(self) -> int | None:
        """The largest datagram the rings carry; None where only the MTU counts."""
        return None if self._opened is None else self._opened.ring_set.facts.datagram_max_bytes

    def steer(self, groups: Iterable[Group]) -> None:
        """Steer exactly these groups into the rings; the rest goes to the kernel. Any thread."""
        wanted = set(groups)
        with self._changing:
            if self._opened is None:
                return
            steering, vlan = self._opened.steering, self._opened.ring_set.place.vlan
            for address, port in self._steered - wanted:
                steering.remove_rule(address, port, vlan)
            for address, port in wanted - self._steered:
                steering.add_rule(address, port, SLOT, vlan)
            self._steered = wanted

    def follow(self) -> None:
        """Do as the interface does, which has changed: send from the address it has now. Any thread."""
        with self._changing:
            if self._opened is not None:
                self._opened.ring_set.learn_address()

    def stats(self) -> dict[str, Any]:
        """The mode in effect, the steps that led to it and what the rings are made of."""
        found: dict[str, Any] = {
            "link_mode": str(self.mode),
            "link_steps": [step.as_json() for step in self.steps],
        }
        if self._opened is not None:
            steering, ring_set = self._opened.steering, self._opened.ring_set
            facts = {**asdict(ring_set.facts), "mode": str(ring_set.facts.mode)}
            found["rings"] = {
                **facts,
                "device": ring_set.place.device.name,
                "vlan": ring_set.place.vlan,
                "received_by_queue": list(ring_set.received().values()),
                "program_attached": steering.attached(),
                "frame_times": str(steering.frame_times),
            }
            from xdp.broker_client import BrokeredSteering  # loaded by now, where there are rings

            if isinstance(steering, BrokeredSteering):
                found["rings"]["broker_lost"] = steering.lost
        return found

    def close(self) -> None:
        """Detach the program, then close the sockets that it redirected to; a second call does nothing."""
        with self._changing:
            if self._opened is not None:
                self._opened.steering.close()
                self._opened.ring_set.close()
            self._opened = None


def rings_of_others(interface: xdp.Interface) -> str | None:
    """Describe the program that may keep groups from this host's sockets; None where there is none.

    Groups that another process receives over rings never reach the kernel, so a context on sockets receives nothing
    of them. Of an XDP program that is not ours, nothing is assumed. Takes microseconds where no program is there.
    """
    with contextlib.suppress(XdpError):
        devices = [interface]
        if lies_on_others(interface.name):
            from xdp.ring_place import ring_places_now

            devices += [place.device for place in ring_places_now(interface)]
        in_the_way = [
            str(there)
            for device in devices
            if has_program(device)
            for there in occupants(device)
            if there.steers is not False
        ]
        return "; ".join(in_the_way) or None
    return "an XDP program of which this process may know nothing"
