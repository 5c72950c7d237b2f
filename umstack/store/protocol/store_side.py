"""The Store's side of persistence: registrations, acknowledgements after commits, retransmissions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from umstack._engine.endpoint import Endpoint
from umstack.errors import ResourceLimit
from umstack.store.protocol.messages import data_of, extended
from umstack.store.protocol.source_side import FIRST_SQN_NAME, TRANSPORT_NAME
from umstack.store.repository import (
    Commit,
    CommittedRange,
    DiskFull,
    Repository,
    RepositoryError,
    SourceState,
    StagingFull,
)
from umstack.store.wire import (
    MESSAGE,
    PROACTIVE,
    RECOVERED,
    STORES_MAXIMUM,
    ConsumptionAck,
    Keepalive,
    KeepaliveSender,
    MalformedMessage,
    Registration,
    RegistrationError,
    RegistrationResponse,
    RetainedRange,
    RetransmissionRequests,
    SourceRegistrationInformation,
    SqnRange,
    StabilityAck,
    StoreEntry,
    StoreTerms,
    decode,
    with_type,
)

_SPACE = 1 << 32
_SQN_DIGITS = 10


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits of one connection.

    Args:
        sources: Maximum number of sources that one connection registers.
        receivers: Maximum number of receivers that one connection registers.
        requests: Maximum number of requests that wait to be served; more end the connection.
        serve_bytes: Bytes of messages read from the repository at a time.
    """

    sources: int = 1024
    receivers: int = 4096
    requests: int = 8192
    serve_bytes: int = 1 << 18


@dataclass(slots=True)
class _Source:
    """A source of this Store that has a connection."""

    number: int
    reg_id: int
    connection: int
    store_index: int
    topic_index: int
    transport: str = ""
    first_sqn: int = 0
    """First number of this life of the source."""
    answers_when_joined: bool = False


@dataclass(slots=True)
class _Connection:
    """A client's connection."""

    output: deque[bytes] = field(default_factory=deque)
    sources: set[int] = field(default_factory=set)
    """Numbers of the sources that registered over it."""
    receivers: dict[int, int] = field(default_factory=dict)
    """Source number of each receiver that registered over it, by the receiver's registration id."""
    readable: dict[int, int] = field(default_factory=dict)
    """The numbers of these sources, by their registration id."""
    requests: deque[tuple[int, int, int]] = field(default_factory=deque)
    """Source number, sqn, request index."""


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
        self.limits = limits or StoreLimits()
        self._wall_clock_ns = wall_clock_ns
        self._joins = joins
        self._connections: dict[int, _Connection] = {}
        self._sources: dict[int, _Source] = {}
        self._by_transport: dict[tuple[str, int], int] = {}
        self._newest: dict[int, int] = {}
        """Newest sqn of each source, staged or committed."""
        self._staged: set[tuple[int, int]] = set()
        """Source number and sqn of messages that wait for a commit."""
        self._consumed: dict[tuple[int, int], int] = {}
        self.counters = dict.fromkeys(
            ("messages", "duplicates", "proactive", "acknowledgements", "served", "missing", "refused"), 0
        )

    # Connections

    def connected(self, connection: int) -> None:
        """A client connected; the number is the caller's."""
        self._connections[connection] = _Connection()

    def disconnected(self, connection: int) -> None:
        """The connection ended. Its clients stay registered in the repository."""
        one = self._connections.pop(connection)
        for number in one.sources:
            source = self._sources[number]
            if source.connection == connection:
                self._detach(source)
                del self._sources[number]

    def take_output(self, connection: int, byte_count: int) -> bytes:
        """Return and forget whole messages for a connection, up to a number of bytes; serve requests as needed."""
        one = self._connections[connection]
        taken: list[bytes] = []
        while byte_count > 0:
            if not one.output and one.requests:
                self._serve(one)
            if not one.output or len(one.output[0]) > byte_count:
                break
            taken.append(one.output.popleft())
            byte_count -= len(taken[-1])
        return b"".join(taken)

    def received(self, connection: int, message: bytes) -> None:
        """A client's message arrived. Raises MalformedMessage: end the connection."""
        one = self._connections[connection]
        if message[0] in (MESSAGE, PROACTIVE):
            self._on_proactive(one, message)
            return
        control = decode(message)
        if isinstance(control, Registration) and control.is_source:
            self._register_source(connection, control)
        elif isinstance(control, Registration):
            self._register_receiver(one, control)
        elif isinstance(control, ConsumptionAck):
            self._on_consumption(one, control)
        elif isinstance(control, RetransmissionRequests):
            self._on_requests(one, control)
        elif isinstance(control, Keepalive) and control.needs_response:
            one.output.append(self._keepalive(control).encode())

    # Sources

    def _register_source(self, connection: int, wanted: Registration) -> None:
        one = self._connections[connection]
        if not wanted.topic or not wanted.session_id:
            self._refuse(one, wanted, RegistrationError.CONFIGURATION)
            return
        if len(one.sources) >= self.limits.sources:
            self._refuse(one, wanted, RegistrationError.LIMIT)
            return
        values = {value.name: value.value for value in wanted.configuration}
        first, transport = values.get(FIRST_SQN_NAME, "0"), values.get(TRANSPORT_NAME, "")
        if not (first.isascii() and first.isdigit() and len(first) <= _SQN_DIGITS):
            raise MalformedMessage(f"{FIRST_SQN_NAME} is not a number")
        known = self.repository.state.sources(wanted.topic)
        is_known = any(state.session_id == wanted.session_id for state in known)
        if not is_known and not transport:
            # It is registered when it begins to send: a Store that knows a source takes part in its consensus.
            one.output.append(self._first_answer(wanted).encode())
            return
        try:
            state = self.repository.register_source(wanted.topic, wanted.session_id)
        except (ResourceLimit, DiskFull):
            self._refuse(one, wanted, RegistrationError.LIMIT)
            return
        number = state.number
        before = self._sources.get(number)
        if before is not None and before.connection != connection:
            self._refuse(one, wanted, RegistrationError.USED_BY_SOURCE)
            return
        if before is not None:
            self._detach(before)
        source = _Source(number, state.registration_id, connection, wanted.store_index, wanted.topic_index)
        self._sources[number] = source
        one.sources.add(number)
        source.transport, source.first_sqn = transport, int(first) % _SPACE
        if source.transport:
            self._by_transport[source.transport, source.topic_index] = number
            source.answers_when_joined = True
            self.tick()
        else:
            self._answer_source(source, wanted.session_id)

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
            terms=self._terms(),
        )

    def _detach(self, source: _Source) -> None:
        self._by_transport.pop((source.transport, source.topic_index), None)

    def tick(self) -> None:
        """Answer the sources whose transport sessions have been joined."""
        for source in self._sources.values():
            if source.answers_when_joined:
                state = self.repository.state.source(source.number)
                assert state is not None
                if self._joins(state.topic, f"{source.transport}[{source.topic_index}]"):
                    source.answers_when_joined = False
                    self._answer_source(source, state.session_id)

    def _answer_source(self, source: _Source, session_id: int) -> None:
        ranges = self.repository.ranges(source.number)
        newest = self._newest.get(source.number, ranges[-1][1] if ranges else None)
        low = 0 if newest is None else ranges[0][0] if ranges else newest
        response = RegistrationResponse(
            is_source=True,
            reg_id=source.reg_id,
            transport_index=0,
            topic_index=source.topic_index,
            low_sqn=low % _SPACE,
            high_sqn=((low - 1) if newest is None else newest) % _SPACE,
            store_index=source.store_index,
            session_id=session_id,
            is_known=True,
            terms=self._terms(),
        )
        self._connections[source.connection].output.append(response.encode())

    def _newest_of(self, number: int) -> int | None:
        """Return the newest committed sqn of a source."""
        ranges = self.repository.ranges(number)
        return ranges[-1][1] if ranges else None

    def _terms(self) -> StoreTerms:
        return StoreTerms(
            durability=self.repository.settings.durability.value,
            flight_size_bytes=self.repository.flight_bytes(len(self._sources)),
        )

    def _keepalive(self, asked: Keepalive) -> Keepalive:
        return Keepalive(
            sender=KeepaliveSender.STORE,
            transport_index=asked.transport_index,
            topic_index=asked.topic_index,
            reg_id=asked.reg_id,
            store_index=asked.store_index,
            terms=self._terms() if asked.sender is KeepaliveSender.SOURCE else StoreTerms(),
        )

    # Messages

    def data(self, transport: str, topic_index: int, message: bytes, received_ns: int | None = None) -> bool:
        """A message arrived on a transport session. Returns false if the staging ring is full: commit first."""
        number = self._by_transport.get((transport, topic_index))
        return number is None or self._keep(number, message, received_ns)

    def _on_proactive(self, one: _Connection, message: bytes) -> None:
        topic_index = data_of(message).topic_index
        found = [at for at in one.sources if self._sources[at].topic_index == topic_index]
        if len(found) != 1:
            raise MalformedMessage(f"a message of topic {topic_index}, which is not registered here")
        self.counters["proactive"] += 1
        self._keep(found[0], with_type(message, MESSAGE), None)  # refused: the source repeats it

    def _keep(self, number: int, message: bytes, received_ns: int | None) -> bool:
        near = self._newest.get(number)
        if near is None:
            near = self._newest_of(number)
        if near is None:
            near = self._sources[number].first_sqn
        sqn = extended(data_of(message).sqn, near)
        if (number, sqn) in self._staged:
            return True
        if self.repository.holds(number, sqn):
            self.counters["duplicates"] += 1
            self._acknowledge(number, [(sqn, sqn)])
            return True
        try:
            self.repository.append(number, sqn, message, received_ns)
        except StagingFull:
            return False
        self._newest[number] = max(near, sqn)
        self._staged.add((number, sqn))
        self.counters["messages"] += 1
        return True

    def committed(self, commit: Commit) -> None:
        """A commit has reached the durability of the repository: acknowledge its messages."""
        ranges: dict[int, list[tuple[int, int]]] = {}
        for one in commit.ranges:
            ranges.setdefault(one.source, []).append((one.first_sqn, one.last_sqn))
            self._unstage(one)
        for number, found in ranges.items():
            self._acknowledge(number, found)

    def _unstage(self, done: CommittedRange) -> None:
        self._staged.difference_update((done.source, sqn) for sqn in range(done.first_sqn, done.last_sqn + 1))

    def _acknowledge(self, number: int, ranges: list[tuple[int, int]]) -> None:
        source = self._sources.get(number)
        if source is None:
            return
        ack = StabilityAck(
            transport_index=0,
            topic_index=source.topic_index,
            store_index=source.store_index,
            ranges=tuple(SqnRange(first % _SPACE, last % _SPACE) for first, last in _merged(ranges)),
        )
        self.counters["acknowledgements"] += 1
        self._connections[source.connection].output.append(ack.encode())

    # Receivers

    def _register_receiver(self, one: _Connection, wanted: Registration) -> None:
        sources = self.repository.state.sources(wanted.topic)
        if not sources:
            self._refuse(one, wanted, RegistrationError.SOURCE_NOT_FOUND)
            return
        if not wanted.source_reg_id:
            self._list_sources(one, wanted, sources)
            return
        found = next((state for state in sources if state.registration_id == wanted.source_reg_id), None)
        if found is None:
            self._refuse(one, wanted, RegistrationError.SOURCE_NOT_FOUND)
            return
        if len(one.receivers) >= self.limits.receivers:
            self._refuse(one, wanted, RegistrationError.LIMIT)
            return
        try:
            receiver = self.repository.state.register_receiver(
                found.number, wanted.session_id, now_ns=self._wall_clock_ns()
            )
        except RepositoryError:
            self._refuse(one, wanted, RegistrationError.USED_BY_RECEIVER)
            return
        one.receivers[receiver.registration_id] = found.number
        one.readable[found.registration_id] = found.number
        ranges = self.repository.ranges(found.number)
        acknowledged = self._consumed.get((found.number, receiver.registration_id), receiver.acknowledged_sqn)
        high = ranges[-1][1] if ranges else -1
        low = ranges[0][0] if ranges else 0
        if acknowledged is not None:
            low = min(max(low, acknowledged + 1), high + 1)
        response = RegistrationResponse(
            is_source=False,
            reg_id=receiver.registration_id,
            transport_index=wanted.transport_index,
            topic_index=wanted.topic_index,
            low_sqn=low % _SPACE,
            high_sqn=high % _SPACE,
            store_index=wanted.store_index,
            session_id=wanted.session_id,
            is_known=acknowledged is not None,
        )
        one.output.append(response.encode())

    def _list_sources(self, one: _Connection, wanted: Registration, sources: list[SourceState]) -> None:
        entries = tuple(
            StoreEntry(at, self.endpoint, source_reg_id=state.registration_id)
            for at, state in enumerate(sources[:STORES_MAXIMUM])
        )
        if len(sources) > STORES_MAXIMUM:
            self.counters["refused"] += len(sources) - STORES_MAXIMUM
        listed = SourceRegistrationInformation(topic_index=wanted.topic_index, version=1, stores=entries)
        one.output.append(listed.encode())

    def _on_consumption(self, one: _Connection, ack: ConsumptionAck) -> None:
        number = one.receivers.get(ack.receiver_reg_id)
        newest = None if number is None else self._newest_of(number)
        if number is None or newest is None:
            self.counters["refused"] += 1
            return
        sqn = extended(ack.sqn, newest)
        if sqn > newest:
            self.counters["refused"] += 1
            return
        key = number, ack.receiver_reg_id
        self._consumed[key] = max(sqn, self._consumed.get(key, sqn))

    def write_consumption(self) -> None:
        """Write the consumption acknowledgements since the last call; a lost one only causes duplicates."""
        if self._consumed:
            consumed, self._consumed = self._consumed, {}
            self.repository.state.acknowledge(consumed, self._wall_clock_ns())

    def _on_requests(self, one: _Connection, asked: RetransmissionRequests) -> None:
        if len(one.requests) + len(asked.requests) > self.limits.requests:
            raise MalformedMessage(f"more than {self.limits.requests} requests wait")
        source = one.readable.get(asked.source_reg_id)
        if source is None:
            raise MalformedMessage("a request for a source for which no receiver is registered")
        newest = self._newest_of(source) or 0
        one.requests.extend(
            (source, extended(request.sqn, newest), request.request_index) for request in asked.requests
        )

    def _serve(self, one: _Connection) -> None:
        """Answer the oldest requests: those for consecutive messages with one read."""
        source, first, index = one.requests[0]
        count = 1
        while count < len(one.requests) and one.requests[count][:2] == (source, first + count):
            count += 1
        found = self.repository.read(source, first, first + count - 1, self.limits.serve_bytes)
        held = {message.sqn: message.message for message in found if not message.lost_count}
        last = max(held, default=first)
        while one.requests and one.requests[0][0] == source and first <= one.requests[0][1] <= last:
            _, sqn, index = one.requests.popleft()
            if sqn in held:
                self.counters["served"] += 1
                one.output.append(with_type(held[sqn], RECOVERED))
            else:
                self._answer_missing(one, source, sqn, index)

    def _answer_missing(self, one: _Connection, source: int, sqn: int, index: int) -> None:
        """Report the next message that is held, or the number behind the newest one."""
        self.counters["missing"] += 1
        ranges = self.repository.ranges(source)
        high = ranges[-1][1] if ranges else sqn
        after = next((max(first, sqn + 1) for first, last in ranges if last > sqn), max(high, sqn) + 1)
        one.output.append(RetainedRange(after % _SPACE, high % _SPACE, index).encode())

    def _refuse(self, one: _Connection, wanted: Registration, error: RegistrationError) -> None:
        self.counters["refused"] += 1
        response = RegistrationResponse(
            is_source=wanted.is_source,
            reg_id=0,
            transport_index=wanted.transport_index,
            topic_index=wanted.topic_index,
            store_index=wanted.store_index,
            session_id=wanted.session_id,
            error=error,
        )
        one.output.append(response.encode())


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the ranges in order; those that touch become one. A commit has them in order of arrival."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
