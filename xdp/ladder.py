"""The mode ladder as data: the requirements of each link mode, and which modes a host supports.

`decide` is a pure function of facts. It returns the mode to open, and for each better one why it is unavailable and
what would change that. Opening may still fail: the caller then tries the next step that is not `CANNOT`. An unknown
fact excludes no mode: the kernel decides when the mode is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from umstack_xdp.capabilities import missing_capabilities
from umstack_xdp.drivers import Driver, KernelVersion, known_drivers, shown_version
from umstack_xdp.facts import Facts, Unknown
from umstack_xdp.modes import Mode as Mode
from umstack_xdp.modes import Wanted as Wanted

TAGS_STRIPPED = "rx-vlan-hw-parse"
"""The offload with which a NIC strips 802.1Q tags."""
RING_BYTES_PER_QUEUE = (4096 + 2048) * 4096
"""Default memory locked by the rings of one receive queue, in bytes: receive and send frames of 4096 bytes each."""
_BYPASS_KERNEL = (5, 15)
_MULTI_BUFFER_KERNEL = (6, 6)
_GENERIC_MULTI_BUFFER_KERNEL = (6, 9)
# A frame buffer is a page of 4096 bytes; XDP keeps 256 of them free before the frame.
_BUFFER_BYTES = 4096 - 256
_LINK_HEADER_BYTES = 14 + 2 * 4
_MAX_SINGLE_BUFFER_MTU_BYTES = _BUFFER_BYTES - _LINK_HEADER_BYTES


class Verdict(StrEnum):
    """The decision about a mode."""

    USE = "use"
    CANNOT = "cannot"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a mode is unavailable, and the command or change that enables it."""

    problem: str
    remedy: str
    needs_privilege: bool = False
    """True if this process has no permission; false if the host or the NIC does not support the mode."""

    def __str__(self) -> str:
        """Show both."""
        return f"{self.problem}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class Step:
    """One mode and its decision. `reasons` is empty unless the mode is unavailable or was not requested."""

    mode: Mode
    verdict: Verdict
    reasons: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts that requirements are checked against: an interface, or a NIC below it."""

    facts: Facts
    ring_bytes: int
    driver: Driver | None
    is_tagged: bool = False
    """True if rings on the NIC receive datagrams with a VLAN tag."""

    @property
    def frame_buffers(self) -> int:
        """Number of buffers that the largest frame of the interface takes."""
        return ceil((self.facts.mtu_bytes + _LINK_HEADER_BYTES) / _BUFFER_BYTES)


Requirement = Callable[[Situation], Reason | None]


@dataclass(frozen=True, slots=True)
class Rung:
    """One mode and its requirements."""

    mode: Mode
    of_interface: tuple[Requirement, ...]
    """Requirements of the context's interface."""
    of_nic: tuple[Requirement, ...] = ()
    """Requirements of each NIC with rings: the interface itself, or the devices below it."""


def decide(
    facts: Facts,
    wanted: Wanted | str = Wanted.AUTO,
    *,
    ring_bytes: int | None = None,
    drivers: Mapping[str, Driver] | None = None,
) -> list[Step]:
    """Decide on every mode, best first. At most one step is `USE`, and none if the requested mode is unavailable.

    `ring_bytes` is the memory that the rings will lock; default: that of all receive queues.
    """
    asked = _ASKED[Wanted(wanted)]
    table = known_drivers() if drivers is None else drivers
    nics = facts.nics or (facts,)
    needed_bytes = sum(map(_ring_bytes, nics)) if ring_bytes is None else ring_bytes
    is_tagged = any(device.kind == "vlan" for device in facts.stack)

    def situation(of: Facts) -> Situation:
        driver = None if isinstance(of.driver, Unknown) else table.get(of.driver)
        return Situation(of, needed_bytes, driver, is_tagged)

    above, below = situation(facts), [situation(nic) for nic in nics]
    steps: list[Step] = []
    for rung in LADDER:
        found = [needs(above) for needs in rung.of_interface]
        found += [needs(one) for one in below for needs in rung.of_nic]
        reasons = tuple(dict.fromkeys(reason for reason in found if reason is not None))
        if reasons:
            steps.append(Step(rung.mode, Verdict.CANNOT, reasons))
        elif rung.mode not in asked:
            steps.append(Step(rung.mode, Verdict.NOT_TRIED, (_not_asked_for(wanted),)))
        elif chosen(steps) is not None:
            steps.append(Step(rung.mode, Verdict.NOT_TRIED))
        else:
            steps.append(Step(rung.mode, Verdict.USE))
    return steps


def chosen(steps: Sequence[Step]) -> Mode | None:
    """Return the mode to use; None if the requested mode is unavailable."""
    return next((step.mode for step in steps if step.verdict is Verdict.USE), None)


def modes_of(wanted: Wanted | str) -> frozenset[Mode]:
    """Return the modes that a request allows."""
    return _ASKED[Wanted(wanted)]


def _ring_bytes(facts: Facts) -> int:
    return RING_BYTES_PER_QUEUE * (1 if isinstance(facts.queues, Unknown) else max(facts.queues.rx, 1))


def _not_asked_for(wanted: Wanted | str) -> Reason:
    return Reason(f"another mode, {wanted}, was requested", "ask for link=auto")


def _is_up(situation: Situation) -> Reason | None:
    facts = situation.facts
    if facts.is_up:
        return None
    return Reason(f"{facts.interface} is down", f"ip link set dev {facts.interface} up")


def _has_address(situation: Situation) -> Reason | None:
    facts = situation.facts
    if facts.addresses:
        return None
    return Reason(
        f"{facts.interface} has no IPv4 address", f"ip address add ADDRESS/PREFIX dev {facts.interface}"
    )


def _does_multicast(situation: Situation) -> Reason | None:
    facts = situation.facts
    if facts.is_multicast or facts.is_loopback:
        return None
    return Reason(f"{facts.interface} does no multicast", f"ip link set dev {facts.interface} multicast on")


def _leaves_the_host(situation: Situation) -> Reason | None:
    if not situation.facts.is_loopback:
        return None
    return Reason(
        "rings are past the kernel, which is where loopback ends", "use link=socket, or another interface"
    )


def _lies_on_nothing(situation: Situation) -> Reason | None:
    """Reject other stacked devices: a driver's program sees frames on the NIC's queue, and the kernel puts them only
    into rings of that queue. Rings of a bond, which passes the program to its members, would get none. Generic mode was
    tried on a macvlan, which the kernel serves like VLANs and bonds: 26 of 2,000 messages arrived."""
    facts = situation.facts
    if not facts.stack:
        return None
    lower = " or ".join(facts.stack[-1].lower or facts.stack[0].lower) or "the NIC below"
    return Reason(
        f"{facts.stack[0]}: its frames come by the queues of {lower}, and what the kernel does with them there is more "
        "than a tag of one VLAN, or the choice of a bond's member",
        "use link=socket, under which all of that is the kernel's",
    )


def _leaves_the_tag(situation: Situation) -> Reason | None:
    """Require that the NIC leaves the tag, because without it a VLAN's datagram looks like one of the NIC itself."""
    facts = situation.facts
    if (
        not situation.is_tagged
        or isinstance(facts.features, Unknown)
        or not facts.features.get(TAGS_STRIPPED)
    ):
        return None
    return Reason(
        f"{facts.interface} takes VLAN tags off before a program sees them",
        f"ethtool -K {facts.interface} {TAGS_STRIPPED} off",
    )


def _is_built(situation: Situation) -> Reason | None:
    missing = situation.facts.missing_parts
    if not missing:
        return None
    problem, _, remedy = missing[0].partition("; ")
    return Reason(problem, remedy or "see docs/doctor.md")


def _kernel(needed: KernelVersion, what: str) -> Requirement:
    def requirement(situation: Situation) -> Reason | None:
        if situation.facts.kernel_version >= needed:
            return None
        return Reason(
            f"{what} needs Linux {shown_version(needed)}, this is {situation.facts.kernel_release}",
            "run a newer kernel",
        )

    return requirement


def _may(situation: Situation) -> Reason | None:
    missing = missing_capabilities(situation.facts.capabilities)
    if not missing:
        return None
    return Reason(
        f"this process lacks {', '.join(missing)}",
        "run as root, or start `umstack broker`, or: "
        "setcap cap_net_raw,cap_net_admin,cap_bpf,cap_ipc_lock+ep PYTHON",
        needs_privilege=True,
    )


def _may_lock_memory(situation: Situation) -> Reason | None:
    limit, needed = situation.facts.memlock_limit_bytes, situation.ring_bytes
    if limit is None or limit >= needed or situation.facts.has_capability("CAP_IPC_LOCK"):
        return None
    return Reason(
        f"the rings need {needed} bytes of locked memory, the limit is {limit}",
        "ulimit -l unlimited (LimitMEMLOCK=infinity in a systemd unit), or CAP_IPC_LOCK",
        needs_privilege=True,
    )


def _is_free(situation: Situation) -> Reason | None:
    """Require that no other program is attached: the kernel allows one, and ours never replaces another."""
    attached = situation.facts.attached
    if attached is None or isinstance(attached, Unknown):
        return None
    return Reason(f"an XDP program is there already: {attached.description}", attached.removal)


def _driver_runs_xdp(situation: Situation) -> Reason | None:
    """Require XDP in the driver by the kernel's declaration or, without one, by the table."""
    facts, driver = situation.facts, situation.driver
    name = "its driver" if isinstance(facts.driver, Unknown) else facts.driver
    if not isinstance(facts.xdp_features, Unknown):
        missing = {"basic", "redirect"} - facts.xdp_features
        if not missing:
            return None
        return Reason(
            f"{name} declares no XDP {' and '.join(sorted(missing))}", "use a NIC from docs/drivers.md"
        )
    if driver is None or driver.native is None:
        return Reason(f"{name} is not known to run XDP programs", "use a NIC from docs/drivers.md")
    return _kernel(driver.native, f"XDP in {name}")(situation)


def _driver_has_zero_copy(situation: Situation) -> Reason | None:
    facts, driver = situation.facts, situation.driver
    name = "its driver" if isinstance(facts.driver, Unknown) else facts.driver
    if driver is None or driver.zero_copy is None:
        return Reason(f"{name} is not on the allow-list of zero-copy", "use a NIC from docs/drivers.md")
    if not isinstance(facts.xdp_features, Unknown) and "xsk-zerocopy" not in facts.xdp_features:
        return Reason(
            f"{name} declares no zero-copy on this device", "update the kernel or the NIC's firmware"
        )
    return _kernel(driver.zero_copy, f"zero-copy in {name}")(situation)


def _no_offload_in_the_way(situation: Situation) -> Reason | None:
    facts, driver = situation.facts, situation.driver
    if driver is None or isinstance(facts.features, Unknown):
        return None
    on = [name for name in driver.needs_off if facts.features.get(name)]
    if not on:
        return None
    return Reason(
        f"{driver.name} takes no XDP program while {' and '.join(on)} is on",
        f"ethtool -K {facts.interface} {' '.join(f'{name} off' for name in on)}",
    )


def _smaller_mtu(situation: Situation, problem: str) -> Reason:
    facts = situation.facts
    return Reason(
        f"a frame of MTU {facts.mtu_bytes} takes {situation.frame_buffers} buffers: {problem}",
        f"ip link set dev {facts.interface} mtu {_MAX_SINGLE_BUFFER_MTU_BYTES}",
    )


def _copies_large_frames(situation: Situation) -> Reason | None:
    facts = situation.facts
    if situation.frame_buffers == 1:
        return None
    if facts.kernel_version < _MULTI_BUFFER_KERNEL:
        return _smaller_mtu(
            situation, f"AF_XDP takes more than one since Linux {shown_version(_MULTI_BUFFER_KERNEL)}"
        )
    if not isinstance(facts.xdp_features, Unknown) and "rx-sg" not in facts.xdp_features:
        return _smaller_mtu(situation, "the driver declares no rx-sg")
    return None


def _carries_large_frames(situation: Situation) -> Reason | None:
    segments = situation.facts.zero_copy_max_segments
    if isinstance(segments, Unknown) or situation.frame_buffers <= max(segments, 1):
        return None
    return _smaller_mtu(situation, f"the driver's zero-copy takes {max(segments, 1)}")


def _generic_carries_large_frames(situation: Situation) -> Reason | None:
    since = _GENERIC_MULTI_BUFFER_KERNEL
    if situation.frame_buffers == 1 or situation.facts.kernel_version >= since:
        return None
    return _smaller_mtu(situation, f"generic XDP takes more than one since Linux {shown_version(since)}")


_SOCKET = (_is_up, _has_address, _does_multicast)
_BYPASS = (
    *_SOCKET,
    _leaves_the_host,
    _is_built,
    _kernel(_BYPASS_KERNEL, "the bypass"),
    _may,
    _may_lock_memory,
)
_ON_NIC = (_lies_on_nothing, _is_up, _is_free, _leaves_the_tag)
_IN_DRIVER = (
    *_ON_NIC,
    _driver_runs_xdp,
    _no_offload_in_the_way,
    _copies_large_frames,
)
LADDER = (
    Rung(Mode.ZERO_COPY, _BYPASS, (*_IN_DRIVER, _driver_has_zero_copy, _carries_large_frames)),
    Rung(Mode.NATIVE, _BYPASS, _IN_DRIVER),
    Rung(Mode.GENERIC, _BYPASS, (*_ON_NIC, _generic_carries_large_frames)),
    Rung(Mode.SOCKET, _SOCKET),
)
_BYPASS_MODES = frozenset({Mode.ZERO_COPY, Mode.NATIVE, Mode.GENERIC})
_ASKED: dict[Wanted, frozenset[Mode]] = {
    Wanted.AUTO: frozenset(Mode),
    Wanted.XDP: _BYPASS_MODES,
    **{Wanted(mode.value): frozenset({mode}) for mode in Mode},
}
