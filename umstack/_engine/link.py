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
from xdp.modes import Mode

if TYPE_CHECKING:
    import xdp
    from xdp.broker_client import BrokeredSteering

    Steering = xdp.Steering | BrokeredSteering

Group = tuple[str, int]

SLOT = 0
"""A context has the interface's program to itself, so its sockets are the only ones in it."""


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

    __slots__ = ("_changing", "_rings", "_steered", "_steering", "mode", "steps")

    def __init__(
        self,
        steps: Sequence[LinkStep],
        rings: xdp.RingSet | None = None,
        steering: Steering | None = None,
    ) -> None:
        """Own the ring set and the steering; the last step is the mode in effect."""
        self.steps, self.mode = tuple(steps), steps[-1].mode
        self._rings, self._steering = rings, steering
        self._steered: set[Group] = set()
        self._changing = threading.Lock()

    @property
    def kind(self) -> str:
        """`xdp` or `socket`."""
        return "socket" if self._rings is None else "xdp"

    @property
    def rings_address(self) -> int:
        """The um_rings for the core; 0 is kernel sockets."""
        return 0 if self._rings is None else self._rings.address

    @property
    def datagram_max_bytes(self) -> int | None:
        """The largest datagram the rings carry; None where only the MTU counts."""
        return None if self._rings is None else self._rings.facts.datagram_max_bytes

    def steer(self, groups: Iterable[Group]) -> None:
        """Steer exactly these groups into the rings; the rest goes to the kernel. Any thread."""
        if self._steering is None:
            return
        wanted = set(groups)
        with self._changing:
            for address, port in self._steered - wanted:
                self._steering.remove_rule(address, port)
            for address, port in wanted - self._steered:
                self._steering.add_rule(address, port, SLOT)
            self._steered = wanted

    def stats(self) -> dict[str, Any]:
        """The mode in effect, the steps that led to it and what the rings are made of."""
        found: dict[str, Any] = {
            "link_mode": str(self.mode),
            "link_steps": [step.as_json() for step in self.steps],
        }
        if self._rings is not None and self._steering is not None:
            facts = {**asdict(self._rings.facts), "mode": str(self._rings.facts.mode)}
            found["rings"] = {
                **facts,
                "received_by_queue": list(self._rings.received().values()),
                "program_attached": self._steering.attached(),
                "frame_times": str(self._steering.frame_times),
            }
            from xdp.broker_client import BrokeredSteering  # loaded by now, where there are rings

            if isinstance(self._steering, BrokeredSteering):
                found["rings"]["broker_lost"] = self._steering.lost
        return found

    def close(self) -> None:
        """Detach the program, then close the sockets that it redirected to; a second call does nothing."""
        with self._changing:
            if self._steering is not None:
                self._steering.close()
            if self._rings is not None:
                self._rings.close()
            self._steering = None


def rings_of_others(interface: xdp.Interface) -> str | None:
    """Describe the program that may keep groups from this host's sockets; None where there is none.

    Groups that another process receives over rings never reach the kernel, so a context on sockets receives nothing
    of them. Of an XDP program that is not ours, nothing is assumed. Takes microseconds where no program is there.
    """
    with contextlib.suppress(XdpError):
        if not has_program(interface):
            return None
        in_the_way = [str(there) for there in occupants(interface) if there.steers is not False]
        return "; ".join(in_the_way) or None
    return "an XDP program of which this process may know nothing"
