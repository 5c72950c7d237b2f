"""The true events of a simulated run, which an analysis of its capture must find.

The trace shows the fate of every datagram at every host. So it is known, not inferred, which datagrams a host missed,
when it sent NAKs, what the response was, and which retransmissions were useless.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from umstack._core import lib
from umstack._engine.core_address import is_ipv6, named
from umstack.sim.capture import START_NS, SWITCH, host_address, hosts_of, point_name
from umstack.sim.trace import Datagram, Fate, Kind, Type
from umstack.sim.world import World

_ONE_TO_ONE = (Type.NAK, Type.STATUS)
_SHOWING = (Type.DATA, Type.SM)
_LOSS_ROWS = (Kind.UNRECOVERABLE_LOSS, Kind.BURST_LOSS)


@dataclass(slots=True)
class Loss:
    """A sqn that a host NAKed, or whose first transmission it never received."""

    receiver: str
    sqn: int
    sent_ns: int | None
    """Time of the first transmission."""
    came_at_first: bool = False
    """True if the first transmission arrived late."""
    is_revealed: bool = False
    """True if a later first transmission, or a session message, showed the host that the sqn was sent."""
    naks_ns: list[int] = field(default_factory=list)
    """Times of the host's NAKs."""
    repair_sent_ns: int | None = None
    """Send time of the first copy that arrived; None: none arrived."""
    repaired_ns: int | None = None
    """Arrival time of that copy."""


@dataclass(slots=True)
class SessionTruth:
    """The fates of a session's datagrams. Sqns are those on the wire; times include `start_ns`."""

    publisher: str
    session_id: int
    group: str
    datagrams: int = 0
    data_bytes: int = 0
    retransmissions: int = 0
    useful_retransmissions: int = 0
    """Retransmissions of these that gave a host a missing datagram."""
    session_messages: int = 0
    naks: int = 0
    """NAK packets that hosts sent, including lost ones."""
    status_messages: int = 0
    ncfs: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Sqns in NCFs, by reason."""
    first_sqn: int | None = None
    last_sqn: int | None = None
    losses: list[Loss] = field(default_factory=list)
    """Sorted by receiver and sqn."""
    duplicates: dict[str, int] = field(default_factory=dict)
    """Extra copies of first transmissions that reached a host, except those within microseconds of another."""


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """A loss reported to an application, from its first to its last topic sqn."""

    time_ns: int
    receiver: int
    kind: str
    first_sequence_number: int
    last_sequence_number: int


@dataclass(slots=True)
class Truth:
    """The true events of a run."""

    start_ns: int
    points: dict[str, str]
    """The interfaces of the capture: names with host addresses (empty for the switch)."""
    sessions: list[SessionTruth]
    unrecoverable: list[Unrecoverable]

    def to_dict(self) -> dict[str, Any]:
        """Return the truth as JSON-compatible values."""
        return asdict(self)


@dataclass(slots=True)
class _Session:
    """The truth of a session while it is collected."""

    truth: SessionTruth
    sent: dict[int, int] = field(default_factory=dict)
    has: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    first_sendings: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    missed: dict[int, set[int]] = field(default_factory=dict)
    asked: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    shown: dict[int, int] = field(default_factory=dict)
    """The newest sqn that first transmissions and session messages showed to each host."""
    useful: set[int] = field(default_factory=set)


def truth_of(world: World, *, start_ns: int = START_NS) -> Truth:
    """Return the events of this world so far; `start_ns`: wall-clock time of virtual time 0."""
    trace = world.trace()
    sessions: dict[tuple[str, int], _Session] = {}
    sent_at: dict[int, int] = {}
    for entry in trace:
        now_ns = start_ns + entry.time_ns
        if entry.fate is Fate.SENT:
            sent_at[entry.serial] = now_ns
            _on_sent(sessions, entry, now_ns)
        elif entry.type in _SHOWING and entry.serial in sent_at:
            session = sessions[entry.source[0], entry.session_id]
            _on_arrival(session, entry, now_ns, sent_at[entry.serial])
    has_ipv6 = any(is_ipv6(publisher) for publisher, _ in sessions)
    addresses = {point_name(host): host_address(host, has_ipv6) for host in hosts_of(trace)}
    points = {point_name(SWITCH): ""} | addresses
    return Truth(
        start_ns,
        points,
        [_finished(session) for session in sessions.values() if session.truth.group],
        list(_unrecoverable(world, start_ns)),
    )


def _on_sent(sessions: dict[tuple[str, int], _Session], entry: Datagram, now_ns: int) -> None:
    publisher = entry.destination[0] if entry.type in _ONE_TO_ONE else entry.source[0]
    key = (publisher, entry.session_id)
    session = sessions.setdefault(key, _Session(SessionTruth(publisher, entry.session_id, "")))
    truth = session.truth
    if entry.type not in _ONE_TO_ONE:
        truth.group = named(*entry.destination)
    if entry.type is Type.DATA and entry.retransmission:
        truth.retransmissions += 1
    elif entry.type is Type.DATA:
        truth.datagrams += 1
        truth.data_bytes += len(entry.data)
        truth.first_sqn = entry.sqn if truth.first_sqn is None else truth.first_sqn
        truth.last_sqn = entry.sqn
        session.sent[entry.sqn] = now_ns
    elif entry.type is Type.SM:
        truth.session_messages += 1
    elif entry.type is Type.STATUS:
        truth.status_messages += 1
    elif entry.type is Type.NCF:
        truth.ncfs += 1
        reason = entry.ncf_reason.name.lower()
        truth.refused[reason] = truth.refused.get(reason, 0) + len(entry.sqns)
    elif entry.type is Type.NAK:
        truth.naks += 1
        asked = session.asked.setdefault(entry.sender, {})
        for sqn in entry.sqns:
            asked.setdefault(sqn, []).append(now_ns)


def _on_arrival(session: _Session, entry: Datagram, now_ns: int, sent_ns: int) -> None:
    """Record that a copy of a datagram or a session message reached a host, or was lost on the way."""
    host, is_first = entry.receiver, not entry.retransmission
    if entry.fate is not Fate.DROPPED and is_first:
        newest = entry.lead if entry.type is Type.SM else entry.sqn
        if _is_after(newest, session.shown.setdefault(host, newest)):
            session.shown[host] = newest
    if entry.type is Type.SM:
        return
    if entry.fate is Fate.DROPPED:
        if is_first:
            session.missed.setdefault(host, set()).add(entry.sqn)
        return
    if is_first:
        session.first_sendings.setdefault(host, {}).setdefault(entry.sqn, []).append(now_ns)
    has = session.has.setdefault(host, {})
    if entry.sqn not in has:
        has[entry.sqn] = (sent_ns, now_ns)
        if entry.retransmission:
            session.useful.add(entry.serial)


def _is_after(sqn: int, other: int) -> bool:
    """Return true if a sqn follows another; sqns wrap."""
    return 0 < (sqn - other) % 2**32 < 2**31


def _finished(session: _Session) -> SessionTruth:
    truth = session.truth
    has_ipv6 = is_ipv6(truth.publisher)
    truth.useful_retransmissions = len(session.useful)
    for host in sorted({*session.missed, *session.asked}):
        came = session.first_sendings.get(host, {})
        asked = session.asked.get(host, {})
        never_came = session.missed.get(host, set()) - came.keys()
        for sqn in sorted(never_came | asked.keys()):
            repair_sent_ns, repaired_ns = session.has.get(host, {}).get(sqn, (None, None))
            truth.losses.append(
                Loss(
                    host_address(host, has_ipv6),
                    sqn,
                    session.sent.get(sqn),
                    sqn in came,
                    host in session.shown and not _is_after(sqn, session.shown[host]),
                    asked.get(sqn, []),
                    repair_sent_ns,
                    repaired_ns,
                )
            )
    for host, came in sorted(session.first_sendings.items()):
        if copies := sum(_copies(times) for times in came.values()):
            truth.duplicates[host_address(host, has_ipv6)] = copies
    return truth


def _copies(times: list[int]) -> int:
    """Return the arrivals of a datagram after its first one that a capture does not recognize as copies of a packet."""
    return sum(after - before > lib.UM_COPIES_WITHIN_NS for before, after in pairwise(times))


def _unrecoverable(world: World, start_ns: int) -> Iterator[Unrecoverable]:
    for row in world.rows():
        if row.kind in _LOSS_ROWS:
            yield Unrecoverable(
                start_ns + row.time_ns,
                row.receiver,
                row.kind.name.lower(),
                row.first_sequence_number,
                row.sequence_number,
            )
