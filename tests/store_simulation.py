"""A simulated network with a persistent source, readers and Stores on simulated disks, run by a seed.

Everything ends at random: the source, a reader, a Store with its machine, a connection, a multicast message on its way;
one Store is replaced by an empty one. With receiver pacing two receivers, one of them blocking, lag and end, too.
An adversary with its own connections forges registrations, acknowledgements and
messages. The content of a message names the life of the source that sent it, so that a wrong message is noticed.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from dataclasses import dataclass, field

from tests.data_messages import encode_data
from tests.flights import put_in_flight
from tests.paced_receivers import Link, PacedReceiver, split
from tests.simulated_disk import PowerFailure, SimulatedDisk, pull_the_plug
from umstack._engine.endpoint import Endpoint
from umstack.persistence.events import (
    MessageStable,
    NotStable,
    Registered,
    RegistrationRefused,
    SourceBlocked,
)
from umstack.persistence.messages import extended
from umstack.persistence.pacing import Pacing
from umstack.persistence.reader_side import LostRange, ReaderSide, ReadMessage
from umstack.persistence.source_side import SourceLimits, SourceSide, StabilityRule
from umstack.store.protocol import StoreLimits, StoreSide
from umstack.store.repository import ClientState, Repository, RepositorySettings
from umstack.store.wire import (
    ConsumptionAck,
    MalformedMessage,
    Registration,
    RegistrationError,
    SqnRange,
    StabilityAck,
)

MS = 1_000_000
TOPIC, TOPIC_INDEX = "orders", 7
SOURCE_SESSION = 70
_STORES = 3
_FLIGHT = 40
_FRAGMENT_BYTES = 24
_SPACE = 1 << 32
_SETTINGS = RepositorySettings(segment_bytes=1 << 18, staging_bytes=1 << 19, commit_bytes=1 << 18)
_SETTLED_STEPS_MAXIMUM = 5_000
_FLIGHT_BYTES = 4_000
_RETAINED_BYTES = 24_000
"""Kept by a Store for the source, if it is receiver-paced."""
_RECORD_BYTES = 64
"""Of a message, about."""
_LIFETIME_NS = 60_000 * MS
"""State lifetime at the Stores."""
_SLOW_NS = 4_000 * MS
"""Receivers deliver nothing for this long, in turns."""


class Failed(AssertionError):
    """An invariant does not hold."""


@dataclass
class StoreHost:
    """A Store, its disk, and whether it runs."""

    disk: SimulatedDisk
    state: ClientState
    side: StoreSide | None = None
    restart_ns: int = 0
    read: dict[int, set[int]] = field(default_factory=dict)
    """By session id of a reader, the numbers that it got from this Store."""
    began: dict[int, int] = field(default_factory=dict)
    """By session id of a blocking receiver, the highest number at which it began here."""
    acknowledged: dict[int, int] = field(default_factory=dict)
    """By session id of a reader, the highest number that it acknowledged."""


class Simulation:
    """One run.

    Args:
        seed: Decides everything.
        rule: Stability rule of the source.
        first_sqn: Number of the first message; not 0: the Stores know the source already.
        lies: The disks report syncs that they did not make.
        is_paced: The source is receiver-paced.
    """

    def __init__(
        self,
        seed: int,
        *,
        rule: StabilityRule = StabilityRule.QUORUM,
        first_sqn: int = 0,
        lies: bool = False,
        is_paced: bool = False,
    ) -> None:
        self.random = random.Random(seed)
        self.rule, self.first_sqn, self.lies = rule, first_sqn, lies
        self.is_paced = is_paced
        self.now_ns = 10**9
        self.has_faults = True
        self.has_replaced = False
        self.life = 0
        """Number of the source's life."""
        self.highest = first_sqn - 1
        """Highest number ever sent."""
        self.sent: dict[int, bytes] = {}
        """Content of the messages of this life of the source."""
        self.stable: dict[int, bytes] = {}
        """Content of every message that a source reported as stable."""
        self.source: SourceSide | None = None
        self.is_attached = self.is_refused = False
        self.source_links: dict[int, Link] = {}
        self.multicast: deque[tuple[str, bytes, int]] = deque()
        """Transport session, message, and the Store that is to get it."""
        self.reader: ReaderSide | None = None
        self.reader_link: Link | None = None
        self.reader_next: int | None = None
        self.read_count = 0
        self.lost_count = 0
        """Ranges that readers skipped."""
        self.forged_count = 0
        self.blocked_count = 0
        """Times at which a receiver blocked the source."""
        kinds = {40: Pacing.BLOCKING, 41: Pacing.NON_BLOCKING} if is_paced else {}
        self.receivers = [
            PacedReceiver(session_id, kind, self.random, self._true) for session_id, kind in kinds.items()
        ]
        self.has_receivers = True
        self._links = 0
        self.hosts = [StoreHost(self._disk(), ClientState(None)) for _ in range(_STORES)]
        for host in self.hosts:
            self._start_store(host)

    # ---- parties ----

    def _disk(self) -> SimulatedDisk:
        return SimulatedDisk(self.random.randrange(1 << 32), lies=self.lies)

    def _link(self, store: int) -> Link:
        self._links += 1
        side = self.hosts[store].side
        assert side is not None
        side.connected(self._links)
        return Link(self._links, store)

    def _start_store(self, host: StoreHost) -> None:
        repository = Repository("simulated", _SETTINGS, files=host.disk, state=host.state)
        if self.first_sqn and not host.state.sources() and not self.has_replaced:
            source = repository.register_source(
                TOPIC, SOURCE_SESSION, is_receiver_paced=self.is_paced, retention_bytes=_RETAINED_BYTES
            )
            repository.append(
                source.number, self.first_sqn - 1, encode_data(TOPIC_INDEX, self.first_sqn - 1, b"0")
            )
            repository.commit()
        endpoint = Endpoint("10.0.0.1", 14567)
        limits = StoreLimits(allows_receiver_pacing=True, state_lifetime_ns=_LIFETIME_NS)
        host.side = StoreSide(repository, endpoint, lambda: self.now_ns, lambda topic, source: True, limits)

    def _stop_store(self, number: int) -> None:
        host = self.hosts[number]
        if host.side is None:
            return
        pull_the_plug(host.side.repository)
        host.disk.crash()
        host.side = None
        host.restart_ns = self.now_ns + self.random.randrange(20_000) * MS
        if number in self.source_links:
            self._cut_source(number)
        if self.reader_link is not None and self.reader_link.store == number:
            self._end_reader()
        for receiver in self.receivers:
            receiver.disconnect(self._sides(), number)

    def _sides(self) -> list[StoreSide | None]:
        return [host.side for host in self.hosts]

    def _start_source(self) -> None:
        self.life += 1
        self.sent, self.is_refused = {}, False
        endpoints = tuple(Endpoint(f"10.0.0.{number + 1}", 14567) for number in range(_STORES))
        limits = SourceLimits(
            flight_messages=_FLIGHT,
            flight_bytes=_FLIGHT_BYTES,
            lifetime_ns=3600_000 * MS,
            is_receiver_paced=self.is_paced,
            retained_bytes=_RETAINED_BYTES if self.is_paced else 0,
        )
        self.source = SourceSide(TOPIC, SOURCE_SESSION, endpoints, self.rule, limits)
        self.source.flight.split(_FRAGMENT_BYTES)
        self.is_attached = False

    def _stop_source(self) -> None:
        self.source = None
        for number in list(self.source_links):
            self._cut_source(number)

    def _cut_source(self, number: int) -> None:
        link = self.source_links.pop(number)
        side = self.hosts[number].side
        if side is not None:
            side.disconnected(link.number)
        if self.source is not None:
            self.source.disconnected(number)

    def _start_reader(self) -> None:
        running = [number for number, host in enumerate(self.hosts) if host.side is not None]
        if running:
            self.reader_link = self._link(self.random.choice(running))
            self.reader = ReaderSide(TOPIC, self.random.choice((30, 31)))
            self.reader_next = None

    def _end_reader(self) -> None:
        link, self.reader, self.reader_link = self.reader_link, None, None
        side = None if link is None else self.hosts[link.store].side
        if side is not None and link is not None:
            side.disconnected(link.number)

    # ---- a run ----

    def run(self, steps: int) -> None:
        """Run with faults for so many steps, then without faults until every message is stable."""
        for _ in range(steps):
            self.step()
        self.has_faults = False
        for _ in range(_SETTLED_STEPS_MAXIMUM):
            self.step()
            source = self.source
            if source is not None and source.has_quorum and not source.unstable and not self.multicast:
                break
            if self.is_refused and self.has_replaced:
                break  # too few of the Stores are left that know the source: an operator must decide
        else:
            raise Failed(f"not settled: {self.source and self.source.unstable}")
        if self.is_paced and not (self.is_refused and self.has_replaced):
            self._outlive_receivers()
        self._check_stored()

    def _outlive_receivers(self) -> None:
        """The receivers end and do not return: the source sends more than a Store keeps, and all becomes stable."""
        for receiver in self.receivers:
            receiver.end(self._sides(), self.now_ns)
        self.has_receivers = False
        wanted = self.highest + 2 * _RETAINED_BYTES // _RECORD_BYTES
        for _ in range(_SETTLED_STEPS_MAXIMUM):
            self.step(sends=self.highest < wanted)
            source = self.source
            if self.highest >= wanted and source is not None and not source.unstable and not self.multicast:
                return
        assert self.source is not None
        raise Failed(f"blocked by receivers that ended: {self.source.blocked}, {self.source.unstable}")

    def step(self, *, sends: bool | None = None) -> None:
        """Let time pass and do some of what is possible. `sends`: the source sends; None: while there are faults."""
        self.now_ns += self.random.choice((0, 1, 10, 100, 400)) * MS
        if self.has_faults:
            self._fault()
        for host in self.hosts:
            if host.side is None and (self.now_ns >= host.restart_ns or not self.has_faults):
                self._start_store(host)
        if self.source is None:
            self._start_source()
        if self.reader is None and self.random.random() < 0.1:
            self._start_reader()
        self._connect()
        self._send(self.has_faults if sends is None else sends)
        self._spread()
        self._run_source()
        self._run_reader()
        self._run_receivers()
        self._run_stores()

    def _fault(self) -> None:
        kind = self.random.random()
        if kind < 0.005 and not self._is_repair_needed():
            self._stop_source()
        elif kind < 0.015:
            self._stop_store(self.random.randrange(_STORES))
        elif kind < 0.017 and not self.has_replaced:
            self.has_replaced = True
            number = self.random.randrange(_STORES)
            self._stop_store(number)
            self.replaced = self.hosts[number]
            self.replaced.disk, self.replaced.state = self._disk(), ClientState(None)
            self.replaced.read, self.replaced.acknowledged = {}, {}
        elif kind < 0.03 and self.source_links:
            self._cut_source(self.random.choice(list(self.source_links)))
        elif kind < 0.035:
            self._end_reader()
        elif kind < 0.055:
            self._forge()
        elif kind < 0.065 and self.receivers:
            self.random.choice(self.receivers).end(self._sides(), self.now_ns)

    def _is_repair_needed(self) -> bool:
        """True once the Store that replaced another knows the source, but not its older messages.

        Until Stores repair each other, a source that starts again then needs all of them (docs/store.md).
        """
        return self.has_replaced and bool(self.replaced.state.sources())

    def _forge(self) -> None:
        """An unknown sender claims to be a source or a receiver that is registered; a Store acknowledges messages that
        were never sent, and those of another source."""
        number = self.random.randrange(_STORES)
        if self.source is not None and number in self.source_links and self.is_attached:
            first = self.source.flight.next_sqn
            for index, sqn in ((TOPIC_INDEX, first), (TOPIC_INDEX + 1, max(first - 3, 0))):
                ranges = (SqnRange(sqn % _SPACE, (sqn + self.random.randrange(4)) % _SPACE),)
                ack = StabilityAck(transport_index=0, topic_index=index, store_index=number, ranges=ranges)
                self.source.received(number, ack.encode(), self.now_ns)
        side = self.hosts[number].side
        if side is None or number not in self.source_links:
            return  # who knows the session id of an absent source can take its place; keys prevent that
        reg_id = side.repository.state.sources()[0].registration_id if side.repository.state.sources() else 1
        link = self._link(number)
        sqn = self.random.randrange(_SPACE)
        forged = self.random.choice((
            Registration(
                is_source=True, transport_index=0, topic_index=TOPIC_INDEX, session_id=SOURCE_SESSION, topic=TOPIC,
            ).encode(),
            ConsumptionAck(
                transport_index=0, source_reg_id=reg_id, receiver_reg_id=reg_id + 1, sqn=sqn, store_index=0
            ).encode(),
            encode_data(TOPIC_INDEX, self.highest + 1, b"forged", 2),
        ))  # fmt: skip
        try:
            side.received(link.number, forged)
        except MalformedMessage:
            self.forged_count += 1
        side.disconnected(link.number)

    # ---- the source ----

    def _connect(self) -> None:
        source = self.source
        assert source is not None
        for number, host in enumerate(self.hosts):
            if host.side is not None and number not in self.source_links and self.random.random() < 0.3:
                self.source_links[number] = self._link(number)
                source.connected(number, self.now_ns)

    def _send(self, sends: bool) -> None:
        source = self.source
        assert source is not None
        if source.first_sqn is not None and not self.is_attached:
            self.is_attached = True
            source.attach(f"session {self.life}", TOPIC_INDEX, self.now_ns)
            for receiver in self.receivers:
                if receiver.side is not None:
                    self._start_receiver(receiver)
        for _ in range(self.random.randrange(6) if sends else 0):
            first = self._true(source.flight.next_sqn)
            parts = [
                (b"%d/%d " % (self.life, first + at)).ljust(_FRAGMENT_BYTES)
                for at in range(self.random.choice((1, 1, 3)))
            ]
            parts[-1] = parts[-1].rstrip()
            payload, properties_bytes = b"".join(parts), self.random.choice((0, 0, 5))
            if not self.is_attached or not put_in_flight(source, payload, self.now_ns, properties_bytes):
                return
            for at, part in enumerate(parts):
                place = (first % _SPACE, at * _FRAGMENT_BYTES, len(payload)) if len(parts) > 1 else None
                sqn = first + at
                message = encode_data(
                    TOPIC_INDEX, sqn, part, fragment=place, properties_bytes=properties_bytes
                )
                self.highest = max(self.highest, sqn)
                self.sent[sqn] = message
                for store in range(_STORES):
                    if self.random.random() > 0.1:
                        self.multicast.append((f"session {self.life}", message, store))
                for receiver in self.receivers:
                    if self.random.random() > 0.1:
                        receiver.hear(sqn, message)

    def _true(self, sqn: int) -> int:
        """The number since the first message of the run; parties that restart know its lower 32 bits only."""
        return extended(sqn % _SPACE, max(self.highest, 0))

    def _spread(self) -> None:
        """Deliver a part of the data sessions."""
        for _ in range(min(self.random.randrange(40), len(self.multicast))):
            transport, message, store = self.multicast.popleft()
            side = self.hosts[store].side
            if side is not None:
                side.data(transport, TOPIC_INDEX, message)

    def _run_source(self) -> None:
        source = self.source
        assert source is not None
        for number in source.tick(self.now_ns):
            self._cut_source(number)
        for number, link in list(self.source_links.items()):
            link.to_store.extend(split(source.take_output(number)))
            self._carry_to_store(link)
            for _ in range(min(self.random.randrange(60), len(link.to_client))):
                source.received(number, link.to_client.popleft(), self.now_ns)
        if len(source.unstable) > _FLIGHT:
            raise Failed(f"{len(source.unstable)} messages in flight")
        for event in source.take_events():
            match event:
                case MessageStable():
                    for sqn in range(self._true(event.first_sqn), self._true(event.last_sqn) + 1):
                        self.stable[sqn] = self.sent[sqn]
                case RegistrationRefused():
                    self.is_refused = event.store < 0
                case NotStable():
                    raise Failed(f"{event}: no message outlived its lifetime, and no Store gave one up")
                case Registered() if self.stable and self._true(event.first_sqn) <= max(self.stable):
                    raise Failed(f"the source uses stable numbers again: {event}, stable {max(self.stable)}")
                case SourceBlocked():
                    self.blocked_count += 1
                case _:
                    pass

    def _carry_to_store(self, link: Link) -> None:
        side = self.hosts[link.store].side
        assert side is not None
        for _ in range(min(self.random.randrange(30), len(link.to_store))):
            side.received(link.number, link.to_store.popleft())

    # ---- readers ----

    def _run_reader(self) -> None:
        reader, link = self.reader, self.reader_link
        if reader is None or link is None:
            return
        link.to_store.extend(split(reader.take_output()))
        self._carry_to_store(link)
        for _ in range(min(self.random.randrange(60), len(link.to_client))):
            reader.received(link.to_client.popleft(), self.now_ns)
        reader.tick(self.now_ns)
        host = self.hosts[link.store]
        for message in reader.take():
            if isinstance(message, LostRange):
                self.lost_count += 1
                continue
            sqn = self._true(message.sqn)
            if self.reader_next is not None and sqn < self.reader_next:
                raise Failed(f"message {sqn} was read after {self.reader_next - 1}")
            self.reader_next = sqn + 1
            self._check_content(sqn, message.stored.encoded)
            self.read_count += 1
            host.read.setdefault(reader.session_id, set()).add(sqn)
            if self.random.random() < 0.5:
                reader.acknowledge({message.source_session_id: message.sqn + 1})
                host.acknowledged[reader.session_id] = max(sqn, host.acknowledged.get(reader.session_id, 0))
        if reader.error not in (None, RegistrationError.SOURCE_NOT_FOUND):
            raise Failed(f"a reader was refused: {reader.error}")
        if reader.is_complete:
            self._end_reader()

    def _check_content(self, sqn: int, message: bytes) -> None:
        known = self.stable.get(sqn)
        if known is not None and known[1:] != message[1:]:  # but for the type
            raise Failed(f"stable message {sqn} is {message!r} instead of {known!r}")
        if b"forged" in message:
            raise Failed(f"forged message {sqn}")

    def _check_read(self, host: StoreHost, sqn: int) -> None:
        """No reader has acknowledged a number that it did not get, and that its Store holds now."""
        for session_id, acknowledged in host.acknowledged.items():
            if self.first_sqn <= sqn <= acknowledged and sqn not in host.read[session_id]:
                raise Failed(f"message {sqn} was acknowledged by reader {session_id}, which never got it")

    # ---- receivers with pacing ----

    def _start_receiver(self, receiver: PacedReceiver) -> None:
        receiver.end(self._sides(), self.now_ns)
        stores = tuple(Endpoint(f"10.0.0.{number + 1}", 14567) for number in range(_STORES))
        receiver.start(TOPIC, f"session {self.life}", TOPIC_INDEX, stores)

    def _run_receivers(self) -> None:
        for receiver in self.receivers if self.is_attached and self.has_receivers else ():
            away_ns = self.now_ns - receiver.ended_ns
            if receiver.side is None and self.random.random() < 0.05:
                self._start_receiver(receiver)
            if receiver.side is None:
                continue
            for number, side in enumerate(self._sides()):
                if side is not None and number not in receiver.links and self.random.random() < 0.3:
                    receiver.links[number] = self._link(number)
                    receiver.side.connected(number, self.now_ns)
            reached, began = receiver.reached, receiver.next_sqn
            is_slow = self.has_faults and self.now_ns // _SLOW_NS % 2 == 0
            delivered = receiver.run(self._sides(), self.now_ns, is_slow=is_slow)
            if began is None and receiver.next_sqn is not None and reached is not None:
                self._check_start(
                    receiver, delivered[0][0] if delivered else receiver.next_sqn, reached, away_ns
                )
            for sqn, content in delivered:
                if isinstance(content, int):
                    self._check_lost(receiver, range(sqn, content))
                else:
                    self._check_content(sqn, content)

    def _check_start(self, receiver: PacedReceiver, start: int, reached: int, away_ns: int) -> None:
        """A receiver continues where it was, once most Stores have noted where it began."""
        known = 0
        for host in self.hosts:
            for state in host.state.sources():
                one = host.state.receiver(state.number, receiver.session_id)
                known += (
                    one is not None
                    and one.next_sqn is not None
                    and self._true(one.next_sqn % _SPACE) <= reached
                )
        if start > reached and away_ns < _LIFETIME_NS // 2 and not self.has_replaced and known > _STORES // 2:
            raise Failed(f"receiver {receiver.session_id} begins at {start} instead of {reached}")

    def _check_lost(self, receiver: PacedReceiver, lost: range) -> None:
        """No message is lost for a receiver that a Store holds which has registered it."""
        for number in receiver.registered & receiver.links.keys():
            side = self.hosts[number].side
            assert side is not None
            for state in side.repository.state.sources():
                for first, last in side.repository.ranges(state.number):
                    for sqn in range(self._true(first % _SPACE), self._true(last % _SPACE) + 1):
                        if sqn in lost and not side.repository.read(state.number, first, first)[0].lost_count:
                            raise Failed(
                                f"{sqn} is lost for receiver {receiver.session_id}, and Store {number} has it"
                            )

    def _note_began(self, host: StoreHost) -> None:
        """Note where blocking receivers begin, before they state that they began earlier at another Store."""
        for state in host.state.sources():
            for one in host.state.receivers(state.number):
                if one.pacing is Pacing.BLOCKING and one.first_sqn is not None:
                    began = self._true(one.first_sqn % _SPACE)
                    host.began[one.session_id] = max(began, host.began.get(one.session_id, 0))

    def _check_released(self, host: StoreHost) -> None:
        """No message was dropped that a registered blocking receiver wants and has not got."""
        repository = host.side.repository if host.side is not None else None
        assert repository is not None
        reached = {one.session_id: one.reached or 0 for one in self.receivers}
        for state in host.state.sources():
            low = self._true(repository.low_sqn(state.number) % _SPACE)
            for one in host.state.receivers(state.number):
                if one.pacing is Pacing.BLOCKING and repository.low_sqn(state.number):
                    allowed = max(reached[one.session_id], host.began[one.session_id])
                    if low > allowed:
                        raise Failed(
                            f"messages before {low} were dropped, receiver {one.session_id} is at {allowed}"
                        )
            if self.is_paced and repository.retained_bytes(state.number) > _RETAINED_BYTES:
                raise Failed(f"{repository.retained_bytes(state.number)} bytes are kept")

    # ---- Stores ----

    def _run_stores(self) -> None:
        for number, host in enumerate(self.hosts):
            side = host.side
            if side is None:
                continue
            self._note_began(host)
            if self.random.random() < 0.5:
                host.disk.fail_after = (
                    self.random.randrange(3) if self.has_faults and self.random.random() < 0.04 else 1 << 60
                )
                try:
                    commit = side.repository.commit()
                except PowerFailure:
                    self._stop_store(number)
                    continue
                host.disk.fail_after = 1 << 60
                if commit is not None:
                    side.committed(commit)
                side.write_consumption()
                side.check_lifetimes()
                self._check_released(host)
            side.tick()
            for receiver in self.receivers:
                if number in receiver.links:
                    link = receiver.links[number]
                    link.to_client.extend(split(side.take_output(link.number, 1 << 20)))
            links = [self.source_links.get(number), self.reader_link]
            for link in links:
                if link is not None and link.store == number:
                    link.to_client.extend(split(side.take_output(link.number, 1 << 20)))

    def _check_stored(self) -> None:
        """Every stable message is readable and equal in at least one Store."""
        held: set[int] = set()
        dropped = self.first_sqn
        for host in self.hosts:
            assert host.side is not None
            for state in host.state.sources():
                low = host.side.repository.low_sqn(state.number)
                dropped = max(dropped, self._true(low % _SPACE) if low else 0)
                for first, last in host.side.repository.ranges(state.number):
                    for stored in host.side.repository.read(state.number, first, last, 1 << 30):
                        if not stored.lost_count:
                            sqn = self._true(stored.sqn % _SPACE)
                            self._check_content(sqn, stored.message)
                            self._check_read(host, sqn)
                            held.add(sqn)
        if missing := sorted(sqn for sqn in self.stable.keys() - held if sqn >= dropped):
            raise Failed(f"stable and in no Store: {missing[:10]}")
        for number in range(_STORES):
            if (again := [self._read(number), self._read(number)][1]) > 0:
                raise Failed(f"{again} acknowledged messages were delivered twice")

    def _read(self, store: int) -> int:
        """Let a reader of its own read and acknowledge everything that a Store has; return how many messages."""
        side, link, reader = self.hosts[store].side, self._link(store), ReaderSide(TOPIC, 33)
        assert side is not None
        count = 0
        while True:
            for message in reader.take():
                if isinstance(message, ReadMessage):
                    reader.acknowledge({message.source_session_id: message.sqn + 1})
                    count += 1
            for data in split(reader.take_output()):
                side.received(link.number, data)
            answers = split(side.take_output(link.number, 1 << 20))
            if not answers:
                break
            for data in answers:
                reader.received(data, self.now_ns)
        side.write_consumption()
        side.disconnected(link.number)
        return count


def simulate(
    seed: int,
    steps: int = 300,
    *,
    rule: StabilityRule = StabilityRule.QUORUM,
    first_sqn: int = 0,
    lies: bool = False,
    is_paced: bool = False,
) -> Simulation:
    """Run a seed; an error names it."""
    simulation = Simulation(seed, rule=rule, first_sqn=first_sqn, lies=lies, is_paced=is_paced)
    try:
        simulation.run(steps)
    except Exception as error:
        kind = "receiver-paced" if is_paced else "source-paced"
        raise Failed(f"seed {seed}, {rule}, first sqn {first_sqn}, {kind}: {error!r}") from error
    return simulation


def main() -> None:
    """Run seeds of every rule, from FIRST, and report those that fail."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    failures = 0
    for seed in range(first, first + count):
        rule = list(StabilityRule)[seed % 3]
        try:
            simulate(seed, rule=rule, first_sqn=_SPACE - 100 if seed % 2 else 0, is_paced=seed % 4 > 1)
        except Failed as failure:
            failures += 1
            print(failure)
    print(f"{failures} of {count} seeds failed")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()

__all__ = ["Failed", "Simulation", "simulate"]
