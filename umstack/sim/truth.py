"""What really happened in a simulated run: what a capture of it ought to be judged to hold.

The trace says of every datagram what became of it at every host. So it is known, not inferred, which host missed what,
when it asked, what answered, and which retransmission helped nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from umstack.sim.capture import START_NS, SWITCH, address_of, host_address, hosts_of, point_name
from umstack.sim.trace import Datagram, Fate, Kind, Type
from umstack.sim.world import World

_ONE_TO_ONE = (Type.NAK, Type.STATUS)
_LOSS_ROWS = (Kind.UNRECOVERABLE_LOSS, Kind.BURST_LOSS)


@dataclass(slots=True)
class Loss:
    """A number that a host asked for, or of which it never got the first sending."""

    receiver: str
    sqn: int
    sent_ns: int | None
    """When it was sent first."""
    came_at_first: bool = False
    """The first sending arrived after all: it was only late."""
    naks_ns: list[int] = field(default_factory=list)
    """When the host asked for it."""
    repair_sent_ns: int | None = None
    """When the first copy that arrived had been sent; None: none ever arrived."""
    repaired_ns: int | None = None
    """When that copy arrived."""


@dataclass(slots=True)
class SessionTruth:
    """What became of a session's datagrams. Sequence numbers are those on the wire; times have `start_ns` in them."""

    publisher: str
    session_id: int
    group: str
    datagrams: int = 0
    data_bytes: int = 0
    retransmissions: int = 0
    useful_retransmissions: int = 0
    """Of these, those by which a host got what it did not have."""
    session_messages: int = 0
    naks: int = 0
    """NAK packets that hosts sent, received or not."""
    status_messages: int = 0
    ncfs: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    """Sequence numbers in NCFs, by reason."""
    first_sqn: int | None = None
    last_sqn: int | None = None
    losses: list[Loss] = field(default_factory=list)
    """In order of receiver and number."""
    duplicates: dict[str, int] = field(default_factory=dict)
    """First sendings that reached a host more than once: copies beyond the first."""


@dataclass(frozen=True, slots=True)
class Unrecoverable:
    """A loss that an application was told of: from its first to its last topic sequence number."""

    time_ns: int
    receiver: int
    kind: str
    first_sequence_number: int
    last_sequence_number: int


@dataclass(slots=True)
class Truth:
    """What a run holds."""

    start_ns: int
    points: dict[str, str]
    """The interfaces of the capture: what each is called, and its host's address (nothing for the switch)."""
    sessions: list[SessionTruth]
    unrecoverable: list[Unrecoverable]

    def to_dict(self) -> dict[str, Any]:
        """The truth for machines."""
        return asdict(self)


@dataclass(slots=True)
class _Session:
    """A session in the making."""

    told: SessionTruth
    sent: dict[int, int] = field(default_factory=dict)
    has: dict[int, dict[int, tuple[int, int]]] = field(default_factory=dict)
    first_sendings: dict[int, Counter[int]] = field(default_factory=dict)
    missed: dict[int, set[int]] = field(default_factory=dict)
    asked: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    useful: set[int] = field(default_factory=set)


def truth_of(world: World, *, start_ns: int = START_NS) -> Truth:
    """What happened in this world so far; `start_ns` is what virtual time 0 is called."""
    trace = world.trace()
    sessions: dict[tuple[int, int], _Session] = {}
    sent_at: dict[int, int] = {}
    for entry in trace:
        now_ns = start_ns + entry.time_ns
        if entry.fate is Fate.SENT:
            sent_at[entry.serial] = now_ns
            _on_sent(sessions, entry, now_ns)
        elif entry.type is Type.DATA and entry.serial in sent_at:
            session = sessions[entry.source[0], entry.session_id]
            _on_arrival(session, entry, now_ns, sent_at[entry.serial])
    points = {point_name(SWITCH): ""} | {point_name(host): host_address(host) for host in hosts_of(trace)}
    return Truth(
        start_ns,
        points,
        [_told(session) for session in sessions.values() if session.told.group],
        list(_unrecoverable(world, start_ns)),
    )


def _on_sent(sessions: dict[tuple[int, int], _Session], entry: Datagram, now_ns: int) -> None:
    publisher = entry.destination[0] if entry.type in _ONE_TO_ONE else entry.source[0]
    key = (publisher, entry.session_id)
    session = sessions.setdefault(key, _Session(SessionTruth(address_of(publisher), entry.session_id, "")))
    told = session.told
    if entry.type not in _ONE_TO_ONE:
        told.group = f"{address_of(entry.destination[0])}:{entry.destination[1]}"
    if entry.type is Type.DATA and entry.retransmission:
        told.retransmissions += 1
    elif entry.type is Type.DATA:
        told.datagrams += 1
        told.data_bytes += len(entry.data)
        told.first_sqn = entry.sqn if told.first_sqn is None else told.first_sqn
        told.last_sqn = entry.sqn
        session.sent[entry.sqn] = now_ns
    elif entry.type is Type.SM:
        told.session_messages += 1
    elif entry.type is Type.STATUS:
        told.status_messages += 1
    elif entry.type is Type.NCF:
        told.ncfs += 1
        reason = entry.ncf_reason.name.lower()
        told.refused[reason] = told.refused.get(reason, 0) + len(entry.sqns)
    elif entry.type is Type.NAK:
        told.naks += 1
        asked = session.asked.setdefault(entry.sender, {})
        for sqn in entry.sqns:
            asked.setdefault(sqn, []).append(now_ns)


def _on_arrival(session: _Session, entry: Datagram, now_ns: int, sent_ns: int) -> None:
    """A copy of a datagram reached a host, or was lost on the way to it."""
    host = entry.receiver
    if entry.fate is Fate.DROPPED:
        if not entry.retransmission:
            session.missed.setdefault(host, set()).add(entry.sqn)
        return
    if not entry.retransmission:
        session.first_sendings.setdefault(host, Counter())[entry.sqn] += 1
    has = session.has.setdefault(host, {})
    if entry.sqn not in has:
        has[entry.sqn] = (sent_ns, now_ns)
        if entry.retransmission:
            session.useful.add(entry.serial)


def _told(session: _Session) -> SessionTruth:
    told = session.told
    told.useful_retransmissions = len(session.useful)
    for host in sorted({*session.missed, *session.asked}):
        came = session.first_sendings.get(host, Counter())
        asked = session.asked.get(host, {})
        never_came = session.missed.get(host, set()) - came.keys()
        for sqn in sorted(never_came | asked.keys()):
            repair_sent_ns, repaired_ns = session.has.get(host, {}).get(sqn, (None, None))
            told.losses.append(
                Loss(
                    host_address(host),
                    sqn,
                    session.sent.get(sqn),
                    sqn in came,
                    asked.get(sqn, []),
                    repair_sent_ns,
                    repaired_ns,
                )
            )
    for host, came in sorted(session.first_sendings.items()):
        if copies := came.total() - len(came):
            told.duplicates[host_address(host)] = copies
    return told


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
