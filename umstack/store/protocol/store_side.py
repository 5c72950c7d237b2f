"""The Store's side of persistence: registrations, acknowledgements after commits, retransmissions.

One file, because every message of a client and every commit changes the same sources and connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from umstack._engine.endpoint import Endpoint
from umstack.errors import ResourceLimit
from umstack.persistence.messages import data_of, extended, sqn_of, with_topic_index
from umstack.persistence.pacing import RETAINED_BYTES_NAME
from umstack.persistence.reader_side import ReadMessage
from umstack.persistence.source_side import FIRST_SQN_NAME, TRANSPORT_NAME
from umstack.store.protocol.staged_numbers import StagedNumbers
from umstack.store.protocol.store_connections import MissingMessages, Outbox, StoreConnection, StoreLimits
from umstack.store.protocol.store_gaps import StoreGaps
from umstack.store.protocol.store_pacing import StorePacing, values_of
from umstack.store.protocol.store_receivers import StoreReceivers
from umstack.store.repository import (
    Commit,
    DiskFull,
    ReceivedRows,
    Repository,
    StagingFull,
)
from umstack.store.wire import (
    MESSAGE,
    PROACTIVE,
    ConsumptionAck,
    DeliveryConfirmation,
    Keepalive,
    KeepaliveSender,
    MalformedMessage,
    Registration,
    RegistrationError,
    RegistrationResponse,
    RetransmissionRequests,
    SqnRange,
    StabilityAck,
    StoreTerms,
    decode,
    decode_number,
    with_type,
)

_SPACE = 1 << 32
SESSIONS_MAX = 65_536
"""Transport sessions of sources that receivers may name; beyond, the oldest is forgotten."""
_NS_PER_MS = 1_000_000


@dataclass(slots=True)
class _Source:
    """A source of this Store that has a connection."""

    number: int
    reg_id: int
    connection: int
    store_index: int
    topic_index: int
    topic: str
    session_id: int
    is_receiver_paced: bool
    wants_acks: bool
    """It has the acknowledgements of its receivers forwarded."""
    forwarded: dict[int, int] = field(default_factory=dict)
    """The last one of each receiver, by its session id."""
    has_more_acks: bool = False
    """Some wait until it has read those before."""
    transport: str = ""
    first_sqn: int = 0
    """First number of this life of the source."""
    peers: tuple[Endpoint, ...] = ()
    """The other Stores of the source."""


class StoreSide:
    """One Store: its repository, and the state of its connections. One thread; no sockets, no clock.

    A message is acknowledged only after the commit that contains it, to the connection that registered its source last.
    Messages, acknowledgements and requests count only over the connection that registered their client.
    """

    def __init__(
        self,
        repository: Repository,
        endpoint: Endpoint,
        wall_clock_ns: Callable[[], int],
        joins: Callable[[str, str], bool],
        limits: StoreLimits | None = None,
    ) -> None:
        """`joins(topic, source)` joins the session of a source, named as in `Message.source`; true once it has."""
        self.repository = repository
        self.endpoint = endpoint
        self._joins = joins
        self._outbox = Outbox(limits or StoreLimits())
        self.counters = self._outbox.counters
        """Numbers of messages and clients, by name."""
        self._wall_clock_ns = wall_clock_ns
        self._staged = StagedNumbers()
        """Messages and markers that wait for a commit."""
        self._gaps = StoreGaps(repository, wall_clock_ns, self._staged)
        self._pacing = StorePacing(repository, wall_clock_ns, self._outbox.limits.allows_receiver_pacing)
        self._receivers = StoreReceivers(
            repository,
            endpoint,
            wall_clock_ns,
            self._outbox,
            self._gaps,
            self._pacing,
            lambda transport, topic_index: self._of_session.get((transport, topic_index)),
        )
        self._connections: dict[int, StoreConnection] = {}
        repository.state.touch_all(wall_clock_ns())
        self._joining: set[int] = set()
        """Sources that wait for an answer until their transport sessions are joined."""
        self._sources: dict[int, _Source] = {}
        self._by_transport: dict[tuple[str, int], int] = {}
        self._of_session: dict[tuple[str, int], int] = {}
        """Also those of sources that ended: receivers that know their advertisements may register still."""
        self._newest: dict[int, int] = {}
        """Newest sqn of each source, staged or committed."""

    # Connections

    def connected(self, connection: int, is_allowed: Callable[[str], bool] = lambda _topic: True) -> None:
        """A client connected; the number is the caller's. `is_allowed` returns true for the topics it may use."""
        self._connections[connection] = StoreConnection(connection, is_allowed)

    def disconnected(self, connection: int) -> None:
        """The connection ended. Its clients stay registered in the repository."""
        one = self._connections.pop(connection)
        self._outbox.ready.discard(connection)
        self._outbox.overfull.discard(connection)
        for number in one.sources:
            source = self._sources[number]
            if source.connection == connection:
                self._detach(source)
                del self._sources[number]
                self._gaps.heard([number])  # it may go on, and serve NAKs

    def has_registered(self, connection: int) -> bool:
        """Return true if a registration over this connection was accepted."""
        return self._connections[connection].has_registered

    def take_ready(self) -> set[int]:
        """Return and forget the connections that got output since the last call."""
        ready, self._outbox.ready = self._outbox.ready, set()
        return ready

    def take_overfull(self) -> set[int]:
        """Return and forget the connections that must be ended, because their clients do not read."""
        overfull, self._outbox.overfull = self._outbox.overfull, set()
        return overfull

    def has_output(self, connection: int) -> bool:
        """Return true if `take_output` has something to return."""
        one = self._connections[connection]
        return bool(one.output or one.requests)

    def take_output(self, connection: int, byte_count: int) -> bytes:
        """Return and forget whole messages for a connection, up to a number of bytes; serve requests as needed."""
        one = self._connections[connection]
        taken: list[bytes] = []
        while byte_count > 0:
            if not one.output and one.requests:
                self._receivers.serve(one)
            if not one.output or len(one.output[0]) > byte_count:
                break
            taken.append(one.output.popleft())
            byte_count -= len(taken[-1])
            one.output_bytes -= len(taken[-1])
        return b"".join(taken)

    def received(self, connection: int, message: bytes) -> None:
        """A client's message arrived. Raises MalformedMessage: end the connection."""
        one = self._connections[connection]
        self._gaps.heard(one.sources)
        if message[0] in (MESSAGE, PROACTIVE):
            self._on_proactive(one, message)
            return
        control = decode(message)
        if isinstance(control, Registration) and control.is_deregistration:
            if control.is_source:
                self._deregister_source(one, control)
            else:
                self._receivers.deregister(one, control)
        elif isinstance(control, Registration) and control.is_source:
            self._register_source(connection, control)
        elif isinstance(control, Registration):
            self._receivers.register(one, control)
        elif isinstance(control, ConsumptionAck):
            self._receivers.consumed(one, control)
        elif isinstance(control, RetransmissionRequests):
            self._receivers.requested(one, control)
        elif isinstance(control, Keepalive):
            if control.oldest_sqn is not None:
                self._on_oldest(one, control)
            if control.needs_response:
                self._outbox.put(one, self._keepalive(one, control).encode())

    def write_consumption(self) -> None:
        """Write the consumption acknowledgements since the last call; a lost one only causes duplicates.

        Messages of receiver-paced sources that all receivers have acknowledged are dropped. Raises DiskFull.
        """
        written = self._receivers.write_consumption()
        for source in self._sources.values():
            if source.has_more_acks or source.number in written:
                self._forward_acks(source)
        self._release()

    def _forward_acks(self, source: _Source) -> None:
        """Forward the written acknowledgements of receivers that allow it to a source that wants them.

        As many as half of its output may hold; the others follow as it reads.
        """
        if not source.wants_acks:
            return
        connection, source.has_more_acks = self._connections[source.connection], False
        for receiver in self.repository.state.receivers(source.number):
            sqn = receiver.acknowledged_sqn
            if not receiver.is_confirming or sqn is None or source.forwarded.get(receiver.session_id) == sqn:
                continue
            if connection.output_bytes > self._outbox.limits.output_bytes // 2:
                source.has_more_acks = True
                return
            source.forwarded[receiver.session_id] = sqn
            self.counters["forwarded"] += 1
            confirmation = DeliveryConfirmation(
                transport_index=0,
                topic_index=source.topic_index,
                user_reg_id=0,
                sqn=sqn % _SPACE,
                ack_id=self.counters["forwarded"] % _SPACE,
                session_id=receiver.session_id,
            )
            self._outbox.put(connection, confirmation.encode())

    def _release(self) -> None:
        """Drop messages of receiver-paced sources, and report to those that are blocked, or not any more."""
        for number in self._pacing.release():
            source = self._sources[number]
            report = Keepalive(
                sender=KeepaliveSender.STORE,
                transport_index=0,
                topic_index=source.topic_index,
                reg_id=source.reg_id,
                store_index=source.store_index,
                has_seen_topic=number not in self._joining,
                terms=self._terms(number),
            )
            self._outbox.put(self._connections[source.connection], report.encode())

    # Sources

    def _register_source(self, connection: int, wanted: Registration) -> None:
        one = self._connections[connection]
        if not wanted.topic or not wanted.session_id or not one.is_allowed(wanted.topic):
            self._outbox.refuse(one, wanted, RegistrationError.CONFIGURATION)
            return
        if len(one.sources) >= self._outbox.limits.sources:
            self._outbox.refuse(one, wanted, RegistrationError.LIMIT)
            return
        values = values_of(wanted)
        first, transport = values.get(FIRST_SQN_NAME, "0"), values.get(TRANSPORT_NAME, "")
        first_sqn = decode_number(FIRST_SQN_NAME, first) % _SPACE
        known = self.repository.state.sources(wanted.topic)
        state = next((state for state in known if state.session_id == wanted.session_id), None)
        if reason := self._pacing.refusal_of_source(wanted, state):
            self._outbox.refuse(one, wanted, RegistrationError.CONFIGURATION, reason)
            return
        if state is None and not transport:
            # It is registered when it begins to send: a Store that knows a source takes part in its consensus.
            one.has_registered = True
            self._outbox.put(one, self._first_answer(wanted).encode())
            return
        before = None if state is None else self._sources.get(state.number)
        if before is not None and before.connection != connection:
            self._outbox.refuse(one, wanted, RegistrationError.USED_BY_SOURCE)
            return
        # Only a receiver-paced source may lower the limit, which refusal_of_source has compared with the Store's.
        retained = values.get(RETAINED_BYTES_NAME, "0") if wanted.is_receiver_paced else "0"
        try:
            state = self.repository.register_source(
                wanted.topic,
                wanted.session_id,
                retention_bytes=decode_number(RETAINED_BYTES_NAME, retained),
                activity_timeout_ns=wanted.activity_timeout_ms * _NS_PER_MS,
                state_lifetime_ns=wanted.state_lifetime_ms * _NS_PER_MS,
                is_receiver_paced=wanted.is_receiver_paced,
            )
        except (ResourceLimit, DiskFull):
            self._outbox.refuse(one, wanted, RegistrationError.LIMIT)
            return
        number = state.number
        if before is not None:
            self._detach(before)
        source = _Source(
            number,
            state.registration_id,
            connection,
            wanted.store_index,
            wanted.topic_index,
            wanted.topic,
            wanted.session_id,
            wanted.is_receiver_paced,
            wanted.forwards_acks and bool(transport),
        )
        self._outbox.counters["registrations"] += 1
        self._sources[number] = source
        self._pacing.registered(number, wanted)
        one.sources.add(number)
        one.has_registered = True
        source.transport = transport
        source.first_sqn = self._first_number(number, first_sqn)
        source.peers = tuple(
            one.endpoint for one in wanted.stores if one.index != wanted.store_index and one.endpoint
        )
        if source.transport:
            self._by_transport[source.transport, source.topic_index] = number
            self._of_session.pop((source.transport, source.topic_index), None)
            self._of_session[source.transport, source.topic_index] = number
            if len(self._of_session) > SESSIONS_MAX:
                del self._of_session[next(iter(self._of_session))]
            self._gaps.registered(number, source.first_sqn)
            self._joining.add(number)
            self._answer_if_joined(source)
        else:
            self._answer_source(source)
        self._release()

    def _deregister_source(self, one: StoreConnection, wanted: Registration) -> None:
        """Delete a source and its messages, acknowledged by receivers or not."""
        number = next(
            (at for at in one.sources if self._sources[at].topic == wanted.topic
             and self._sources[at].session_id == wanted.session_id),
            None,
        )  # fmt: skip
        if number is None:
            self._outbox.refuse(one, wanted, RegistrationError.SOURCE_NOT_FOUND)
            return
        source = self._sources[number]
        newest = self._newest_of(number)
        try:
            self._forget_source(number)
        except DiskFull:
            self._outbox.refuse(one, wanted, RegistrationError.LIMIT)
            return
        self.counters["deregistered"] += 1
        response = RegistrationResponse(
            is_source=True,
            reg_id=source.reg_id,
            transport_index=0,
            topic_index=wanted.topic_index,
            high_sqn=_SPACE - 1 if newest is None else newest % _SPACE,
            store_index=wanted.store_index,
            session_id=wanted.session_id,
            is_deregistration=True,
        )
        self._outbox.put(one, response.encode())

    def _forget_source(self, number: int) -> None:
        for commit in self.repository.forget_source(number):
            self.committed(commit)
        self._receivers.forget_source(self._connections.values(), number)
        self._newest.pop(number, None)
        self._gaps.forget(number)
        source = self._sources.pop(number, None)
        if source is not None:
            self._detach(source)
            self._connections[source.connection].sources.discard(number)

    def check_lifetimes(self) -> None:
        """Store that the connected clients are active, and delete those that did not return within their lifetime.

        Raises DiskFull.
        """
        self.repository.state.touch(
            self._sources,
            [(at, reg_id) for one in self._connections.values() for reg_id, at in one.receivers.items()],
            self._wall_clock_ns(),
        )
        sources, receivers = self.repository.state.expired(
            self._outbox.limits.state_lifetime_ns, self._wall_clock_ns()
        )
        for number, reg_id in receivers:
            self._receivers.forget(number, reg_id)
        for number in sources:
            self._forget_source(number)
        self.counters["expired"] += len(receivers) + len(sources)

    def _first_answer(self, wanted: Registration) -> RegistrationResponse:
        """Return the answer to a source that this Store does not know."""
        return RegistrationResponse(
            is_source=True,
            reg_id=0,
            transport_index=0,
            topic_index=wanted.topic_index,
            low_sqn=0,
            high_sqn=_SPACE - 1,
            store_index=wanted.store_index,
            session_id=wanted.session_id,
            is_receiver_paced=wanted.is_receiver_paced,
            terms=self._terms(),
        )

    def _detach(self, source: _Source) -> None:
        self._by_transport.pop((source.transport, source.topic_index), None)
        self._joining.discard(source.number)
        self._pacing.left(source.number)

    def tick(self) -> None:
        """Answer the sources whose transport sessions have been joined."""
        for number in list(self._joining):
            self._answer_if_joined(self._sources[number])

    def _answer_if_joined(self, source: _Source) -> None:
        if self._joins(source.topic, f"{source.transport}[{source.topic_index}]"):
            self._joining.discard(source.number)
            self._answer_source(source)

    def _answer_source(self, source: _Source) -> None:
        ranges = self.repository.ranges(source.number)
        newest = self._newest_of(source.number)
        low = 0 if newest is None else ranges[0][0] if ranges else newest
        response = RegistrationResponse(
            is_source=True,
            reg_id=source.reg_id,
            transport_index=0,
            topic_index=source.topic_index,
            low_sqn=low % _SPACE,
            high_sqn=((low - 1) if newest is None else newest) % _SPACE,
            store_index=source.store_index,
            session_id=source.session_id,
            is_known=True,
            is_receiver_paced=source.is_receiver_paced,
            terms=self._terms(source.number),
        )
        self._outbox.put(self._connections[source.connection], response.encode())
        self._forward_acks(source)

    def _terms(self, number: int = -1) -> StoreTerms:
        """Return the terms for a source, given by its number; -1: it has none yet."""
        session_id, blocked_ms = self._pacing.blocked_ms(number)
        return StoreTerms(
            durability=self.repository.settings.durability.value,
            flight_size_bytes=self.repository.flight_bytes(len(self._sources)),
            blocking_session_id=session_id,
            blocked_ms=blocked_ms,
        )

    def _on_oldest(self, one: StoreConnection, asked: Keepalive) -> None:
        """A source reports the oldest message that it may send again."""
        assert asked.oldest_sqn is not None
        for number in one.sources:
            source = self._sources[number]
            if source.reg_id == asked.reg_id:
                near = self._newest_of(number)
                oldest = extended(asked.oldest_sqn % _SPACE, source.first_sqn if near is None else near)
                self._gaps.keeps_from(number, oldest)
                if asked.is_last:
                    self._gaps.ended(number)

    def _keepalive(self, one: StoreConnection, asked: Keepalive) -> Keepalive:
        number = next((at for at in one.sources if self._sources[at].reg_id == asked.reg_id), -1)
        return Keepalive(
            sender=KeepaliveSender.STORE,
            transport_index=asked.transport_index,
            topic_index=asked.topic_index,
            reg_id=asked.reg_id,
            store_index=asked.store_index,
            has_seen_topic=number not in self._joining,
            terms=self._terms(number) if asked.sender is KeepaliveSender.SOURCE else StoreTerms(),
        )

    # Messages

    def data(self, transport: str, topic_index: int, message: bytes, received_ns: int | None = None) -> bool:
        """A message arrived on a transport session. Returns false if the staging ring is full: commit first."""
        number = self._by_transport.get((transport, topic_index))
        return number is None or self._keep(number, message, received_ns)

    def rows(self, transport: str, topic_index: int, rows: ReceivedRows, first: int) -> int:
        """Keep received messages of a transport session from a row on, which follow the newest one of their source.

        Returns:
            How many: none if the first row is another one, or there is no space. Then it is one for `data`.
        """
        number = self._by_transport.get((transport, topic_index))
        newest = None if number is None else self._newest_of(number)
        if number is None or newest is None or self._pacing.is_blocked(number):
            return 0
        sqn = extended(rows.sqns[first], newest)
        if sqn <= newest:
            return 0  # it may be staged, held or marked lost
        kept, byte_count = self.repository.append_rows(number, sqn, rows, first, topic_index)
        if kept:
            self._newest[number] = sqn + kept - 1
            self._staged.add(number, sqn, sqn + kept - 1)
            self._outbox.counters["messages"] += kept
            self._outbox.counters["message_bytes"] += byte_count
        return kept

    def missing(self) -> Iterator[MissingMessages]:
        """Yield what this Store misses and only the other Stores of a source can have."""
        for number, source in self._sources.items():
            is_open = number not in self._joining and not self._pacing.is_blocked(number)
            if source.peers and source.transport and is_open:
                ranges = tuple(self._gaps.missing(number))
                if ranges:
                    yield MissingMessages(number, source.topic, source.session_id, source.peers, ranges)

    def copying(self, number: int) -> None:
        """Other Stores are asked for the missing messages of a source: until `copied_all`, none of them is lost."""
        self._gaps.copied.add(number)

    def copied_all(self, number: int) -> None:
        """The other Stores have answered."""
        self._gaps.copied.discard(number)

    def copied(self, number: int, message: ReadMessage) -> bool:
        """A message of a source came from another Store. Returns false if the staging ring is full: commit first."""
        source = self._sources.get(number)
        if source is None or source.session_id != message.source_session_id:
            return True  # the source has left meanwhile
        is_kept = self._keep(
            number, with_type(with_topic_index(message.stored.encoded, source.topic_index), MESSAGE), None
        )
        self._outbox.counters["copied"] += is_kept
        return is_kept

    def _on_proactive(self, one: StoreConnection, message: bytes) -> None:
        topic_index = data_of(message).topic_index
        found = [at for at in one.sources if self._sources[at].topic_index == topic_index]
        if len(found) != 1:
            raise MalformedMessage(f"a message of topic {topic_index}, which is not registered here")
        self._outbox.counters["proactive"] += 1
        self._keep(found[0], with_type(message, MESSAGE), None)  # refused: the source repeats it

    def _keep(self, number: int, message: bytes, received_ns: int | None) -> bool:
        newest = self._newest_of(number)
        near = self._sources[number].first_sqn if newest is None else newest
        sqn = extended(sqn_of(message), near)
        if (number, sqn) in self._staged:
            return True
        if self.repository.holds(number, sqn):
            is_lost = self._gaps.is_marked_lost(number, sqn)
            self._outbox.counters["late" if is_lost else "duplicates"] += 1
            self._acknowledge(number, [(sqn, sqn)], is_lost)
            return True
        if self._pacing.is_dropped(number, sqn):
            self._outbox.counters["duplicates"] += 1
            self._acknowledge(number, [(sqn, sqn)])
            return True
        if not self._pacing.has_space(number, len(message)):
            self._outbox.counters["no_space"] += 1
            return True  # not acknowledged: the source repeats it, or it is copied from another Store
        try:
            self.repository.append(number, sqn, message, received_ns)
        except StagingFull:
            return False
        self._newest[number] = sqn if newest is None else max(newest, sqn)
        self._staged.add(number, sqn, sqn)
        self._outbox.counters["messages"] += 1
        self._outbox.counters["message_bytes"] += len(message)
        return True

    def _newest_of(self, number: int) -> int | None:
        """Return the newest sqn of a source, staged or committed."""
        newest = self._newest.get(number)
        return self.repository.newest_sqn(number) if newest is None else newest

    def _first_number(self, number: int, first_sqn: int) -> int:
        """Return the 64-bit number of the first message of a source's life.

        A Store without messages of the source may be one that replaced another: the numbers before the first one exist,
        and their lower 32 bits may be higher. They must not be negative, so this Store counts from 2^32.
        """
        newest = self._newest_of(number)
        if newest is not None:
            return extended(first_sqn, newest)
        return first_sqn + _SPACE if first_sqn else 0

    def newest_sqns(self) -> dict[int, int]:
        """Return the newest sqn of each source that has messages, by its number."""
        found = {
            state.number: self.repository.newest_sqn(state.number)
            for state in self.repository.state.sources()
        }
        return {number: newest for number, newest in found.items() if newest is not None}

    def committed(self, commit: Commit) -> None:
        """A commit has reached the durability of the repository: acknowledge its messages."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for one in commit.ranges:
            ranges.setdefault(one.source, []).extend(
                self._gaps.without_marks(one.source, one.first_sqn, one.last_sqn)
            )
            self._staged.discard(one.source, one.first_sqn, one.last_sqn)
        if self._pacing.is_full(ranges):
            self._release()
        for number, found in ranges.items():
            if found:
                self._acknowledge(number, found)

    def _acknowledge(self, number: int, ranges: list[tuple[int, int]], is_lost: bool = False) -> None:
        """Report messages as stable, or as lost to a source that has repeated them too late."""
        source = self._sources.get(number)
        if source is None:
            return
        ack = StabilityAck(
            transport_index=0,
            topic_index=source.topic_index,
            store_index=source.store_index,
            ranges=tuple(SqnRange(first % _SPACE, last % _SPACE) for first, last in _merged(ranges)),
            is_lost=is_lost,
        )
        self._outbox.counters["acknowledgements"] += 1
        self._outbox.put(self._connections[source.connection], ack.encode())


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order; those that touch become one. A commit has them in order of arrival."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
