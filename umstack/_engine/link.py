"""The link of a context: kernel sockets or AF_XDP rings, with the steps of the mode ladder that chose it (W7).

Rings carry a context's data both ways; NAKs, topic resolution and group membership stay on kernel sockets (W5).
umstack._engine.ring_link opens rings: a context on kernel sockets does not import it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from umstack_xdp.attachment import has_program, occupants
from umstack_xdp.errors import XdpError
from umstack_xdp.interface import lies_on_others
from umstack_xdp.modes import Mode

if TYPE_CHECKING:
    import umstack_xdp as xdp
    from umstack_xdp.bonded_rings import BondedRings
    from umstack_xdp.broker_client import BrokeredSteering

    Steering = xdp.Steering | BrokeredSteering

Group = tuple[str, int]

_log = logging.getLogger("umstack.link")

SLOT = 0
"""A context has a NIC's program to itself, so its sockets are the only ones in it."""


@dataclass(frozen=True, slots=True)
class OpenedRings:
    """The rings on one NIC, and the program there that steers datagrams into them."""

    steering: Steering
    ring_set: xdp.RingSet

    @property
    def is_bonded(self) -> bool:
        """True if the NIC is a member of a bond; the bond then chooses the NIC that sends."""
        return self.ring_set.place.is_bonded

    def close(self) -> None:
        """Detach the program, then close the sockets that it redirected to."""
        self.steering.close()
        self.ring_set.close()


@dataclass(frozen=True, slots=True)
class LinkStep:
    """One requested mode and its outcome. `errno` is 0 unless the kernel refused the attempt."""

    mode: Mode
    errno: int = 0
    reason: str = ""
    """Why the mode is not in effect. Empty for the mode in effect."""
    tried: bool = True
    """False where the facts of host and interface forbade it."""
    remedy: str = ""
    needs_privilege: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it in the form of the statistics."""
        return asdict(self)


class DataLink:
    """The link of a context, and the steps that chose it. It is closed after its context."""

    __slots__ = (
        "_bond",
        "_changing",
        "_groups",
        "_members",
        "_opened",
        "_steered",
        "mode",
        "shared_groups",
        "steps",
    )

    def __init__(self, steps: Sequence[LinkStep], opened: Sequence[OpenedRings] = ()) -> None:
        """Take ownership of rings on one NIC or on the members of a bond. The last step is the mode in effect."""
        self.steps, self.mode = tuple(steps), steps[-1].mode
        self._opened = tuple(opened)
        self._groups: set[Group] = set()
        self._steered: dict[str, set[Group]] = {}
        """The groups steered on each NIC, by its name."""
        self.shared_groups: set[str] = set()
        """Groups of this context that other sockets of the host have joined, so that the kernel serves all of them."""
        self._changing = threading.Lock()
        self._bond: BondedRings | None = None
        self._members: set[str] = set()
        """The names of the bond's current members."""
        if any(one.is_bonded for one in self._opened):
            self._bind()

    @property
    def kind(self) -> str:
        """`xdp` or `socket`."""
        return "socket" if self.mode is Mode.SOCKET else "xdp"

    def step_down(self) -> str | None:
        """Return why the driver does not run the program, with the remedies; None unless generic mode was stepped
        down to.
        """
        if self.mode is not Mode.GENERIC or len(self.steps) == 1:
            return None
        return "; ".join(
            f"{step.mode}: {step.reason}" + (f" ({step.remedy})" if step.remedy else "")
            for step in self.steps[:-1]
        )

    @property
    def rings_address(self) -> int:
        """The address of the um_rings for the core, 0 for kernel sockets."""
        if self._bond is not None:
            return self._bond.address
        return self._opened[0].ring_set.address if self._opened else 0

    @property
    def datagram_max_bytes(self) -> int | None:
        """The largest datagram the rings carry. None if only the MTU limits it."""
        return min((one.ring_set.facts.datagram_max_bytes for one in self._opened), default=None)

    def _bind(self) -> None:
        from umstack_xdp.bonded_rings import BondedRings

        try:
            self._bond = BondedRings([one.ring_set for one in self._opened])
            self.follow()
        except BaseException:
            self.close()
            raise

    def steer(self, groups: Iterable[Group], of_others: Collection[str], sent_to: Collection[str]) -> None:
        """Steer these groups into the rings, except those that others on this host have joined. Any thread.

        The kernel receives the rest. If others have joined one of the groups `sent_to`, datagrams leave through
        sockets, because frames of a ring do not reach receivers of their host.
        """
        wanted = set(groups)
        shared = set(of_others) & ({address for address, _ in wanted} | set(sent_to))
        with self._changing:
            self._groups = {group for group in wanted if group[0] not in shared}
            self._steer()
            for one in self._opened:
                one.ring_set.send_by_socket(not shared.isdisjoint(sent_to))
            if shared != self.shared_groups:
                self._share(shared)

    def _share(self, shared: set[str]) -> None:
        """Log a change of the groups that this context has in common with others."""
        former, self.shared_groups = self.shared_groups, shared
        name = self._opened[0].ring_set.place.interface.name if self._opened else ""
        if added := sorted(shared - former):
            _log.warning(
                "%s: others on this host receive %s, too: the kernel serves them, and the rings do not; "
                "`umstack driver %s` serves all over rings",
                name,
                ", ".join(added),
                name,
            )
        if gone := sorted(former - shared):
            _log.info("%s: %s left to the rings again", name, ", ".join(gone))

    def _steer(self) -> None:
        """Apply `_groups` to every NIC, and no group to a NIC that left the bond."""
        for one in self._opened:
            is_member = self._bond is None or one.ring_set.place.device.name in self._members
            self._steer_on(one, self._groups if is_member else set())

    def _steer_on(self, one: OpenedRings, wanted: set[Group]) -> None:
        place = one.ring_set.place
        steered = self._steered.get(place.device.name, set())
        for address, port in steered - wanted:
            one.steering.remove_rule(address, port, place.vlan)
        for address, port in wanted - steered:
            one.steering.add_rule(address, port, SLOT, place.vlan)
        self._steered[place.device.name] = wanted

    def follow(self) -> None:
        """Adopt changes of the interface: its Ethernet address, and the member that its bond sends through.

        Any thread may call it.
        """
        with self._changing:
            for one in self._opened:
                one.ring_set.learn_address()
            if self._bond is None:
                return
            from umstack_xdp.ring_place import stack_now
            from umstack_xdp.stacking import nic_that_sends, nics_below

            interface = self._opened[0].ring_set.place.interface
            stack = stack_now(interface)
            sends_by = nic_that_sends(stack, interface.name)
            self._members = set(nics_below(stack, interface.name))
            self._steer()
            if sends_by != self._bond.sends_by:
                self._bond.send_by(sends_by)
                _log.info("%s sends by %s", interface.name, sends_by or "what the kernel chooses")

    def stats(self) -> dict[str, Any]:
        """The mode in effect, the steps that led to it and what the rings are made of."""
        found: dict[str, Any] = {
            "link_mode": str(self.mode),
            "link_steps": [step.as_json() for step in self.steps],
        }
        if self._opened:
            steerings = [one.steering for one in self._opened]
            ring_sets = [one.ring_set for one in self._opened]
            devices = [one.place.device.name for one in ring_sets]
            found["rings"] = {
                **asdict(ring_sets[0].facts),
                "mode": str(ring_sets[0].facts.mode),
                "locked_bytes": sum(one.facts.locked_bytes for one in ring_sets),
                "devices": devices,
                "sends_by": devices[0] if self._bond is None else self._bond.sends_by,
                "vlan": ring_sets[0].place.vlan,
                "shared_groups": sorted(self.shared_groups),
                "received_by_queue": [count for one in ring_sets for count in one.received().values()],
                "program_attached": all(one.attached() for one in steerings),
                "frame_times": str(steerings[0].frame_times),
            }
            from umstack_xdp.broker_client import BrokeredSteering  # already imported if there are rings

            brokered = [one.lost for one in steerings if isinstance(one, BrokeredSteering)]
            if brokered:
                found["rings"]["broker_lost"] = next(filter(None, brokered), "")
        return found

    def close(self) -> None:
        """Detach the programs, then close the sockets they redirected to. A second call does nothing."""
        with self._changing:
            for one in self._opened:
                one.steering.close()
            if self._bond is not None:
                self._bond.close()
            for one in self._opened:
                one.ring_set.close()
            self._opened, self._bond = (), None


def why_others_take_groups(interface: xdp.Interface) -> str | None:
    """Describe the program that takes datagrams before this host's sockets, and the consequence. None if there is none.

    A context with rings leaves to the kernel what others join (DataLink.steer); nothing is known of other products'
    programs. Takes microseconds without a program.
    """
    with contextlib.suppress(XdpError):
        devices = [interface]
        if lies_on_others(interface.name):
            from umstack_xdp.ring_place import ring_places_now

            devices += [place.device for place in ring_places_now(interface)]
        there = [one for device in devices if has_program(device) for one in occupants(device)]
        in_the_way = [one for one in there if one.steers is not False]
        if not in_the_way:
            return None
        named = "; ".join(map(str, in_the_way))
        instead = (
            f"run `umstack driver {interface.name}` and open both contexts with driver='auto', or use another "
            "interface, or link=socket in both"
        )
        if any(one.steers is None for one in in_the_way):
            program = f"{interface.name} has an XDP program: {named}"
            return f"{program}; groups that it takes do not reach this context: {instead}"
        return (
            f"{interface.name} is used by rings of another context: {named}; groups that both receive leave those "
            f"rings within a second, and the kernel serves both: {instead}"
        )
    return (
        f"{interface.name} may have an XDP program of which this process may know nothing, and whose groups do not "
        "reach this context"
    )
