"""The receivers of a Store: registrations, consumption, and the messages that they request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from umstack._engine.endpoint import Endpoint
from umstack.persistence.messages import end_near, extended, start_near
from umstack.persistence.replay_start import start_of
from umstack.persistence.source_side import TRANSPORT_NAME
from umstack.store.protocol.store_connections import Outbox, RequestedRange, StoreConnection
from umstack.store.protocol.store_gaps import StoreGaps
from umstack.store.protocol.store_pacing import StorePacing, pacing_of
from umstack.store.repository import DiskFull, Repository, SourceState, StoredMessage
from umstack.store.wire import (
    RECOVERED,
    STORES_MAXIMUM,
    ConsumptionAck,
    MalformedMessage,
    Registration,
    RegistrationError,
    RegistrationResponse,
    RetainedRange,
    RetransmissionRequests,
    SourceRegistrationInformation,
    StoreEntry,
    StoreTerms,
    with_type,
)

_SPACE = 1 << 32
_NS_PER_MS = 1_000_000


def first_since(repository: Repository, number: int, ranges: list[tuple[int, int]], time_ns: int) -> int:
    """Return the first sqn of a source that was received at or after a time; behind the newest if there is none.

    Each message is read at most once, so damaged ones cost no more than one pass over them.
    """
    low, high = ranges[0][0], ranges[-1][1] + 1
    while low < high:
        middle = (low + high) // 2
        found = _first_received(repository, number, middle, high - 1)
        if found is None or found.received_ns >= time_ns:
            high = middle
        else:
            low = found.sqn + 1
    return next((max(first, low) for first, last in ranges if last >= low), low)


def _first_received(repository: Repository, number: int, sqn: int, last_sqn: int) -> StoredMessage | None:
    """Return the first message of a part that can be read; markers have no time of reception."""
    while found := repository.read(number, sqn, last_sqn, max_bytes=1):
        if not found[0].lost_count:
            return found[0]
        sqn = found[0].sqn + found[0].lost_count
    return None


class StoreReceivers:
    """Registers receivers and serves their requests. One thread."""

    def __init__(
        self,
        repository: Repository,
        endpoint: Endpoint,
        wall_clock_ns: Callable[[], int],
        outbox: Outbox,
        gaps: StoreGaps,
        pacing: StorePacing,
        number_of: Callable[[str, int], int | None],
    ) -> None:
        """`number_of` returns the number of the source with a transport session and topic index, if it is connected."""
        self._number_of = number_of
        self._repository = repository
        self._endpoint = endpoint
        self._wall_clock_ns = wall_clock_ns
        self._outbox = outbox
        self._gaps = gaps
        self._pacing = pacing
        self._consumed: dict[tuple[int, int], int] = {}
        self._started: dict[tuple[int, int], int] = {}
        """Where receivers begin that have acknowledged nothing."""

    def register(self, one: StoreConnection, wanted: Registration) -> None:
        if not one.is_allowed(wanted.topic):
            self._outbox.refuse(one, wanted, RegistrationError.CONFIGURATION)
            return
        sources = self._repository.state.sources(wanted.topic)
        if not sources:
            self._outbox.refuse(one, wanted, RegistrationError.SOURCE_NOT_FOUND)
            return
        one.has_registered = True
        transport = next((each.value for each in wanted.configuration if each.name == TRANSPORT_NAME), "")
        if not wanted.source_reg_id and transport:
            number = self._number_of(transport, wanted.topic_index)
            found_sources = [state for state in sources if state.number == number]
            if found_sources:
                self._list_sources(one, wanted, found_sources)
            else:
                self._outbox.refuse(one, wanted, RegistrationError.SOURCE_NOT_FOUND)
            return
        if not wanted.source_reg_id:
            self._list_sources(one, wanted, sources)
            return
        found = next((state for state in sources if state.registration_id == wanted.source_reg_id), None)
        if found is None:
            self._outbox.refuse(one, wanted, RegistrationError.SOURCE_NOT_FOUND)
            return
        if len(one.receivers) >= self._outbox.limits.receivers:
            self._outbox.refuse(one, wanted, RegistrationError.LIMIT)
            return
        self._register_at(one, wanted, found)

    def _register_at(self, one: StoreConnection, wanted: Registration, found: SourceState) -> None:
        """Register a receiver of a source, and answer where it begins."""
        known = self._repository.state.receiver(found.number, wanted.session_id)
        if reason := self._pacing.refusal_of_receiver(wanted, found, known):
            self._outbox.refuse(one, wanted, RegistrationError.CONFIGURATION, reason)
            return
        ranges, newest = self._repository.ranges(found.number), self._repository.newest_sqn(found.number)
        high = -1 if newest is None else newest
        pacing = pacing_of(wanted)
        try:
            receiver = self._repository.state.register_receiver(
                found.number,
                wanted.session_id,
                activity_timeout_ns=wanted.activity_timeout_ms * _NS_PER_MS,
                state_lifetime_ns=wanted.state_lifetime_ms * _NS_PER_MS,
                pacing=pacing,
                first_sqn=high + 1 if pacing else None,  # it begins at the live position
                is_confirming=wanted.forwards_acks,
                now_ns=self._wall_clock_ns(),
            )
        except DiskFull:
            self._outbox.refuse(one, wanted, RegistrationError.LIMIT)
            return
        one.receivers[receiver.registration_id] = found.number
        one.readable[found.registration_id] = found.number
        acknowledged = self._consumed.get((found.number, receiver.registration_id))
        next_sqn = receiver.next_sqn if acknowledged is None else acknowledged + 1
        low = self._gaps.first_sqn(found.number, ranges) if ranges else high + 1
        if next_sqn is not None:
            low = min(next_sqn, high + 1)
        start = start_of(wanted.configuration)
        if start is not None and ranges:
            oldest = self._gaps.first_sqn(found.number, ranges)
            if start.sqn is not None:
                wanted_sqn = start_near(start.sqn % _SPACE, high)
            else:
                wanted_sqn = first_since(self._repository, found.number, ranges, start.time_ns)
            low = min(max(wanted_sqn, oldest), high + 1)
        self._outbox.counters["registrations"] += 1
        self._outbox.counters["replays"] += low <= high
        response = RegistrationResponse(
            is_source=False,
            reg_id=receiver.registration_id,
            transport_index=wanted.transport_index,
            topic_index=wanted.topic_index,
            low_sqn=low % _SPACE,
            high_sqn=high % _SPACE,
            store_index=wanted.store_index,
            session_id=wanted.session_id,
            is_known=next_sqn is not None and known is not None,
            has_no_acks=acknowledged is None and receiver.acknowledged_sqn is None and known is not None,
            is_receiver_paced=bool(pacing),
            terms=StoreTerms(source_session_id=found.session_id),
        )
        self._outbox.put(one, response.encode())

    def deregister(self, one: StoreConnection, wanted: Registration) -> None:
        """Delete the state of a receiver that registered over this connection."""
        number = one.receivers.pop(wanted.reg_id, None)
        if number is None:
            self._outbox.refuse(one, wanted, RegistrationError.SOURCE_NOT_FOUND)
            return
        self.forget(number, wanted.reg_id)
        self._outbox.counters["deregistered"] += 1
        response = RegistrationResponse(
            is_source=False,
            reg_id=wanted.reg_id,
            transport_index=wanted.transport_index,
            topic_index=wanted.topic_index,
            store_index=wanted.store_index,
            session_id=wanted.session_id,
            is_deregistration=True,
        )
        self._outbox.put(one, response.encode())

    def forget(self, source: int, reg_id: int) -> None:
        """Delete the state of a receiver."""
        self._consumed.pop((source, reg_id), None)
        self._started.pop((source, reg_id), None)
        self._repository.state.forget_receiver(source, reg_id)

    def forget_source(self, connections: Iterable[StoreConnection], source: int) -> None:
        """A source is deleted: its receivers are no longer registered, and cannot request its messages."""
        self._consumed = {key: sqn for key, sqn in self._consumed.items() if key[0] != source}
        self._started = {key: sqn for key, sqn in self._started.items() if key[0] != source}
        for one in connections:
            one.receivers = {reg_id: at for reg_id, at in one.receivers.items() if at != source}
            one.readable = {reg_id: at for reg_id, at in one.readable.items() if at != source}
            one.requests = deque(wanted for wanted in one.requests if wanted.source != source)
            one.request_count = sum(wanted.count for wanted in one.requests)

    def _list_sources(self, one: StoreConnection, wanted: Registration, sources: list[SourceState]) -> None:
        entries = tuple(
            StoreEntry(at, self._endpoint, source_reg_id=state.registration_id)
            for at, state in enumerate(sources[:STORES_MAXIMUM])
        )
        if len(sources) > STORES_MAXIMUM:
            self._outbox.counters["refused"] += len(sources) - STORES_MAXIMUM
        listed = SourceRegistrationInformation(topic_index=wanted.topic_index, version=1, stores=entries)
        self._outbox.put(one, listed.encode())

    def consumed(self, one: StoreConnection, ack: ConsumptionAck) -> None:
        number = one.receivers.get(ack.receiver_reg_id)
        newest = None if number is None else self._repository.newest_sqn(number)
        if number is None or newest is None:
            self._outbox.counters["refused"] += 1
            return
        key = number, ack.receiver_reg_id
        if ack.is_start:
            self._started[key] = end_near(ack.sqn, newest)
            return
        # A receiver may consume a message before it is committed here; it repeats the acknowledgement.
        end = end_near(ack.sqn, newest)
        if end > 0:  # otherwise nothing before number 0 was consumed
            self._consumed[key] = max(end - 1, self._consumed.get(key, end - 1))

    def write_consumption(self) -> set[int]:
        """Write the consumption acknowledgements since the last call; a lost one only causes duplicates.

        If the disk is full, they stay for the next call.

        Returns:
            The numbers of their sources.
        """
        if self._started:
            self._repository.state.begin(self._started)
            self._started = {}
        written, sources = self._consumed, {source for source, _ in self._consumed}
        if written:
            self._repository.state.acknowledge(written, self._wall_clock_ns())
            self._consumed = {}
        return sources

    def requested(self, one: StoreConnection, asked: RetransmissionRequests) -> None:
        if one.request_count + len(asked.requests) > self._outbox.limits.requests:
            raise MalformedMessage(f"more than {self._outbox.limits.requests} requests wait")
        source = one.readable.get(asked.source_reg_id)
        if source is None:
            raise MalformedMessage("a request for a source for which no receiver is registered")
        newest = self._repository.newest_sqn(source) or 0
        self._outbox.ready.add(one.number)
        one.request_count += len(asked.requests)
        wanted: RequestedRange | None = None
        for index, sqn in asked.requests:
            if wanted and (index, sqn) == (wanted.index + wanted.count, (wanted.sqn + wanted.count) % _SPACE):
                wanted.count += 1
            else:
                wanted = RequestedRange(source, extended(sqn, newest), index)
                one.requests.append(wanted)

    def serve(self, one: StoreConnection) -> None:
        """Answer a part of the oldest requests, with one read."""
        wanted = one.requests[0]
        last = wanted.sqn + wanted.count - 1
        found = self._repository.read(wanted.source, wanted.sqn, last, self._outbox.limits.serve_bytes)
        held = [message for message in found if not message.lost_count]
        end = max((one.sqn + max(one.lost_count, 1) for one in found), default=last + 1)
        count = min(end, last + 1) - wanted.sqn
        if held:
            self._outbox.counters["served"] += len(held)
            self._outbox.put(one, b"".join([with_type(message.message, RECOVERED) for message in held]))
        if len(held) < count:
            here = {message.sqn for message in held}
            missing = [at for at in range(count) if wanted.sqn + at not in here]
            self._answer_missing(one, wanted.source, [(wanted.sqn + at, wanted.index + at) for at in missing])
        one.request_count -= count
        if count == wanted.count:
            one.requests.popleft()
        else:
            wanted.sqn += count
            wanted.index += count
            wanted.count -= count

    def _answer_missing(self, one: StoreConnection, source: int, missing: list[tuple[int, int]]) -> None:
        """Report the next number that is held or expected; it is the requested one if that may still arrive."""
        self._outbox.counters["missing"] += len(missing)
        ranges = self._repository.ranges(source)
        begin = self._gaps.begin(source)
        for sqn, index in missing:
            high = ranges[-1][1] if ranges else sqn
            after = self._gaps.lost_until(source, sqn, ranges, begin)
            self._outbox.put(one, RetainedRange(after % _SPACE, high % _SPACE, index).encode())
