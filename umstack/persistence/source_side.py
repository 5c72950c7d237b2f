"""The source's side of persistence: registers at Stores, and knows which of its messages are stable."""

from __future__ import annotations

import enum
import heapq
from dataclasses import dataclass, field

from umstack._engine.endpoint import Endpoint
from umstack.persistence.events import (
    DeliveryConfirmed,
    FlightSize,
    MessageStable,
    NotStable,
    Registered,
    RegistrationRefused,
    SourceBlocked,
    SourceEvent,
    SourceUnblocked,
    StoreBack,
    StoreUnresponsive,
)
from umstack.persistence.flight import Flight
from umstack.persistence.messages import extended, with_topic_index
from umstack.persistence.pacing import (
    FLIGHT_BYTES_NAME,
    FLIGHT_MESSAGES_NAME,
    PACING_NAME,
    RETAINED_BYTES_NAME,
)
from umstack.store.wire import (
    ConfigurationValue,
    DeliveryConfirmation,
    Keepalive,
    KeepaliveSender,
    Registration,
    RegistrationResponse,
    StabilityAck,
    StoreEntry,
    StoreTerms,
    decode,
)

TRANSPORT_NAME = "umstack_transport_session"
"""Configuration value of a registration: the transport session whose data the Store is to keep."""
FIRST_SQN_NAME = "umstack_first_sqn"
"""Configuration value of a registration: the first number of the source, from which an empty Store counts."""
_SPACE = 1 << 32
_NS_PER_MS = 1_000_000
_PROACTIVE_BYTES = 1 << 20
"""Maximum bytes that one tick repeats to a Store."""


RECEIVERS_MAX = 65_536
"""Receivers of a source that confirm; those beyond are ignored."""


class StabilityRule(enum.StrEnum):
    """Which Stores must have a message before it is stable; the same number must accept the registration."""

    QUORUM = "quorum"
    """A majority of the list."""
    ALL_ACTIVE = "all-active"
    """All that are registered, and at least a majority of the list."""
    ALL = "all"


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """Limits and times of a persistent source.

    Args:
        flight_messages: Maximum number of messages, or fragments of long ones, that are not stable.
        flight_bytes: Maximum bytes of messages that are not stable.
        registration_interval_ns: Time after which an unanswered registration is repeated.
        activity_timeout_ns: Time without bytes after which a Store counts as unresponsive.
        keepalive_interval_ns: Time between keepalives that ask a Store for an answer.
        repeat_ns: Age at which a message that is not stable is sent again to the Stores that miss it.
        lifetime_ns: Age at which a message that is not stable is given up.
        is_receiver_paced: The Stores keep messages until all receivers have acknowledged them.
        retained_bytes: With receiver pacing, maximum bytes that a Store keeps of the source; 0: the Store's limit.
        confirmations: Number of receivers that must confirm a message before it leaves flight.
        reports_confirmations: Report DeliveryConfirmed events.
    """

    flight_messages: int = 1000
    flight_bytes: int = 8 << 20
    registration_interval_ns: int = 3_000_000_000
    activity_timeout_ns: int = 10_000_000_000
    keepalive_interval_ns: int = 2_000_000_000
    repeat_ns: int = 1_000_000_000
    lifetime_ns: int = 1_200_000_000_000
    is_receiver_paced: bool = False
    retained_bytes: int = 0
    confirmations: int = 0
    reports_confirmations: bool = False


class _State(enum.Enum):
    AWAY = enum.auto()
    """Not connected."""
    ASKED = enum.auto()
    """The first registration waits for its answer, which has the numbers that the Store holds."""
    ANSWERED = enum.auto()
    """The Store's numbers are known; the source does not have its transport session yet."""
    JOINING = enum.auto()
    """The second registration, with the transport session, waits for its answer."""
    ACTIVE = enum.auto()


@dataclass(slots=True)
class _Store:
    """One Store of the list."""

    endpoint: Endpoint
    state: _State = _State.AWAY
    reg_id: int = 0
    next_sqn: int | None = None
    """The number behind the newest message that it holds; None: it does not know the source, and has no vote."""
    requested_ns: int = 0
    received_ns: int = 0
    kept_alive_ns: int = 0
    flight_bytes: int | None = None
    """Bytes in flight that it allows."""
    blocked: SourceBlocked | None = None
    """The receiver for which it lets the source wait."""
    was_active: bool = False
    refusal: str = ""
    """Why it refused the source the last time, as reported; empty once it accepted the source."""
    output: list[bytes] = field(default_factory=list)


class SourceSide:
    """One persistent source and its Stores. One thread; no sockets, no clock.

    The messages in flight are the sent ones without enough acknowledgements: no counter that could stick exists.
    Acknowledgements of messages that were never sent, or of another source, are ignored.
    """

    def __init__(
        self,
        topic: str,
        session_id: int,
        stores: tuple[Endpoint, ...],
        rule: StabilityRule = StabilityRule.QUORUM,
        limits: SourceLimits | None = None,
    ) -> None:
        self.topic = topic
        self.session_id = session_id
        self.rule = rule
        self.limits = limits or SourceLimits()
        self._stores = [_Store(endpoint) for endpoint in stores]
        self._quorum = len(stores) if rule is StabilityRule.ALL else len(stores) // 2 + 1
        self._transport = ""
        self._topic_index = 0
        self._first_requested_ns: int | None = None
        self.first_sqn: int | None = None
        """Number of the first message, by consensus of the Stores; None: not known yet."""
        self.flight = Flight(len(stores), self._quorum)
        """The messages that are not stable. It is within the limits while enough Stores are registered."""
        self._is_registered = False
        self._is_over = False
        """True since a FlightSize event reported that the limits of messages in flight are reached."""
        self._events: list[SourceEvent] = []
        self._confirmed: dict[int, int] = {}
        """The last message that each receiver has confirmed, by its session id."""
        self.forged_count = 0
        """Acknowledgements that name another source, or messages that were never sent."""

    # Results

    def take_events(self) -> list[SourceEvent]:
        """Return and forget the events since the last call."""
        events, self._events = self._events, []
        return events

    def take_output(self, store: int) -> bytes:
        """Return and forget the bytes to send to a Store."""
        output = b"".join(self._stores[store].output)
        self._stores[store].output.clear()
        return output

    @property
    def has_quorum(self) -> bool:
        """True if enough Stores are registered."""
        return len(self.active_stores) >= self._quorum

    @property
    def active_stores(self) -> list[int]:
        """Positions of the registered Stores."""
        return [at for at, store in enumerate(self._stores) if store.state is _State.ACTIVE]

    @property
    def blocked(self) -> SourceBlocked | None:
        """The receiver for which the source may not send, although enough Stores are registered; None: it may send.

        A Store without space keeps nothing more of the source, so enough others must have space.
        """
        active = [self._stores[at] for at in self.active_stores]
        waiting = [one.blocked for one in active if one.blocked is not None]
        required = len(active) if self.rule is StabilityRule.ALL_ACTIVE else self._quorum
        return waiting[0] if waiting and len(active) - len(waiting) < required else None

    @property
    def unstable(self) -> list[int]:
        """Numbers of the messages in flight, in order."""
        return list(self.flight)

    def note_full(self) -> None:
        """A sender waits because the limits of messages in flight are reached."""
        self._note_flight(False)

    def _limit(self) -> None:
        """Set the limits of messages in flight: of the source and its Stores; none without a quorum, or if blocked."""
        allowed = [one.flight_bytes for one in self._stores if one.flight_bytes is not None]
        messages = self.limits.flight_messages if self.has_quorum and self.blocked is None else 0
        self.flight.limit(messages, min([self.limits.flight_bytes, *allowed]))

    # Inputs

    def attach(self, transport: str, topic_index: int, now_ns: int) -> None:
        """The source exists, or has a new transport session: announce it to the Stores. `first_sqn` must be known."""
        assert self.first_sqn is not None
        self._transport, self._topic_index = transport, topic_index
        for at, store in enumerate(self._stores):
            if store.state in (_State.ANSWERED, _State.JOINING, _State.ACTIVE):
                self._register(at, _State.JOINING, now_ns)
        self._limit()

    @property
    def transport(self) -> str:
        """The announced transport session; empty before the first."""
        return self._transport

    def connected(self, store: int, now_ns: int) -> None:
        """The connection to a Store exists: register."""
        self._stores[store].received_ns = now_ns
        self._first_requested_ns = now_ns if self._first_requested_ns is None else self._first_requested_ns
        self._register(store, _State.ASKED, now_ns)

    def disconnected(self, store: int) -> None:
        """The connection to a Store ended."""
        one = self._stores[store]
        was_active, one.state, one.flight_bytes = one.state is _State.ACTIVE, _State.AWAY, None
        one.output.clear()
        self._note_terms(store, StoreTerms(), 0)
        self._limit()
        if was_active:
            self._events.append(StoreUnresponsive(store, self.has_quorum))
            self._note(0, self.flight.next_sqn, 0)

    def refused(self, store: int, reason: str) -> None:
        """A Store refused the source, or one of the two refused the other's key; each refusal is reported once."""
        if self._stores[store].refusal != reason:
            self._stores[store].refusal = reason
            self._events.append(RegistrationRefused(store, reason))

    def received(self, store: int, message: bytes, now_ns: int) -> None:
        """A message of a Store arrived. Raises MalformedMessage."""
        self._stores[store].received_ns = now_ns
        control = decode(message)
        if isinstance(control, RegistrationResponse):
            self._on_response(store, control, now_ns)
            self._limit()
        elif isinstance(control, StabilityAck):
            self._on_stability(store, control)
        elif isinstance(control, DeliveryConfirmation):
            self._on_confirmation(control)
        elif isinstance(control, Keepalive):
            self._note_terms(store, control.terms, now_ns)
            self._limit()

    def _note_terms(self, store: int, terms: StoreTerms, now_ns: int) -> None:
        """Note what a Store allows, and report if a receiver blocks the source there, or no longer does."""
        one = self._stores[store]
        one.flight_bytes = terms.flight_size_bytes
        if not terms.blocking_session_id:
            if one.blocked is not None:
                one.blocked = None
                self._events.append(SourceUnblocked(store))
        elif one.blocked is None:
            since_ns = now_ns - terms.blocked_ms * _NS_PER_MS
            one.blocked = SourceBlocked(store, terms.blocking_session_id, since_ns)
            self._events.append(one.blocked)

    def tick(self, now_ns: int) -> list[int]:
        """Repeat and give up old messages. Returns the unresponsive Stores, whose connections must be ended."""
        limits, silent = self.limits, []
        for at, store in enumerate(self._stores):
            if store.state is _State.AWAY:
                continue
            if now_ns - store.received_ns >= limits.activity_timeout_ns:
                silent.append(at)
            elif store.state in (_State.ASKED, _State.JOINING):
                if now_ns - store.requested_ns >= limits.registration_interval_ns:
                    self._register(at, store.state, now_ns)
            elif now_ns - store.kept_alive_ns >= limits.keepalive_interval_ns:
                store.kept_alive_ns = now_ns
                store.output.append(self._keepalive(at).encode())
        self._agree(now_ns)
        self._repeat(now_ns)
        return silent

    # Registration

    def _register(self, store: int, state: _State, now_ns: int) -> None:
        one = self._stores[store]
        one.state, one.requested_ns = state, now_ns
        values: tuple[ConfigurationValue, ...] = ()
        if state is _State.JOINING:
            first = ConfigurationValue(FIRST_SQN_NAME, str(self.first_sqn))
            values = ConfigurationValue(TRANSPORT_NAME, self._transport), first
        limits = self.limits
        if limits.is_receiver_paced:
            values += (
                ConfigurationValue(PACING_NAME, "1"),
                ConfigurationValue(FLIGHT_BYTES_NAME, str(limits.flight_bytes)),
                ConfigurationValue(FLIGHT_MESSAGES_NAME, str(limits.flight_messages)),
                ConfigurationValue(RETAINED_BYTES_NAME, str(limits.retained_bytes)),
            )
        entries = tuple(StoreEntry(at, each.endpoint) for at, each in enumerate(self._stores))
        registration = Registration(
            is_source=True,
            is_receiver_paced=limits.is_receiver_paced,
            forwards_acks=limits.confirmations > 0 or limits.reports_confirmations,
            transport_index=0,
            topic_index=self._topic_index,
            session_id=self.session_id,
            store_index=store,
            topic=self.topic,
            stores=entries,
            configuration=values,
        )
        one.output.append(registration.encode())

    def _keepalive(self, store: int, is_last: bool = False) -> Keepalive:
        return Keepalive(
            sender=KeepaliveSender.SOURCE,
            transport_index=0,
            topic_index=self._topic_index,
            reg_id=self._stores[store].reg_id,
            store_index=store,
            needs_response=True,
            oldest_sqn=self.flight.oldest_sqn % _SPACE,
            is_last=is_last,
        )

    def end(self) -> None:
        """The source ends: report to its Stores which messages it might still have sent; they expect no others."""
        for at in self.active_stores:
            self._stores[at].output.append(self._keepalive(at, is_last=True).encode())

    def _on_response(self, store: int, response: RegistrationResponse, now_ns: int) -> None:
        one = self._stores[store]
        if one.state not in (_State.ASKED, _State.JOINING):
            return  # the answer to a repeated registration
        if response.error is not None:
            self.refused(store, response.refusal)
            return
        one.reg_id = response.reg_id
        self._note_terms(store, response.terms, now_ns)
        if one.state is _State.JOINING:
            self._activate(store)
            return
        is_empty = response.high_sqn == (response.low_sqn - 1) % _SPACE
        known = (each.next_sqn for each in self._stores if each.next_sqn)
        near = next(
            known, response.high_sqn + _SPACE
        )  # numbers of two Stores may lie on both sides of the wrap
        if response.is_known:
            one.next_sqn = 0 if is_empty else extended(response.high_sqn, near) + 1
        one.state = _State.ANSWERED
        self._agree(now_ns)
        if self._transport:
            self._register(store, _State.JOINING, now_ns)

    def _agree(self, now_ns: int) -> None:
        """Find the first number once enough Stores answered: all of them, or a quorum after the first interval."""
        if self.first_sqn is not None or self._first_requested_ns is None:
            return
        answered = [one for one in self._stores if one.state is _State.ANSWERED]
        is_late = now_ns - self._first_requested_ns >= self.limits.registration_interval_ns
        if len(answered) < (self._quorum if is_late else len(self._stores)):
            return
        held = [one.next_sqn for one in answered if one.next_sqn is not None]
        # A stable message is held by a majority, so a majority that knows the source has the last number. Fewer have it
        # only if all Stores answer, as they must for the first registration of a source. If most of these are empty and
        # another is not, they may have been started without their disks, whose numbers would be used again.
        minority, is_whole = len(self._stores) // 2, len(answered) == len(self._stores)
        is_safe = is_whole and (not any(held) or len(answered) - len(held) <= minority)
        if len(held) <= minority and not is_safe:
            reason = "too few Stores know the source, which may be new or its Stores wiped: start all of them"
            if RegistrationRefused(-1, reason) not in self._events:
                self._events.append(RegistrationRefused(-1, reason))
            return
        first = max(held, default=0)
        if not is_whole:
            # A Store that is away may hold messages of the former life that were never stable: their numbers are not
            # used again.
            first += self.limits.flight_messages
        self.first_sqn = first % _SPACE
        self.flight.begin(self.first_sqn)
        if self.limits.confirmations:
            self.flight.confirm(self.first_sqn)

    def _activate(self, store: int) -> None:
        one = self._stores[store]
        one.state, one.refusal = _State.ACTIVE, ""
        if one.was_active:
            self._events.append(StoreBack(store))
        one.was_active = True
        if not self._is_registered and self.has_quorum:
            self._is_registered = True
            assert self.first_sqn is not None
            self._events.append(Registered(self.first_sqn, tuple(self.active_stores)))

    # Stability

    def _on_stability(self, store: int, ack: StabilityAck) -> None:
        if (ack.topic_index, ack.store_index) != (self._topic_index, store) or not self._transport:
            self.forged_count += 1
            return
        for first, last in ack.ranges:
            low = extended(first, self.flight.next_sqn)
            high = low + (last - first) % _SPACE
            if high >= self.flight.next_sqn:
                self.forged_count += 1
            else:
                self._note(low, high, 1 << store, is_lost=ack.is_lost)

    def _on_confirmation(self, confirmed: DeliveryConfirmation) -> None:
        """A receiver has consumed messages: those that enough receivers have consumed may leave flight."""
        if self.first_sqn is None or not self._transport or confirmed.topic_index != self._topic_index:
            self.forged_count += 1
            return
        receiver, sqn = confirmed.session_id, extended(confirmed.sqn, self.flight.next_sqn)
        last = self._confirmed.get(receiver, self.first_sqn - 1)
        is_known = receiver in self._confirmed or len(self._confirmed) < RECEIVERS_MAX
        if sqn >= self.flight.next_sqn or not receiver or not is_known:
            self.forged_count += 1
            return
        if sqn <= last:
            return  # by another Store, or of a former life
        self._confirmed[receiver] = sqn
        if self.limits.reports_confirmations:
            self._events.append(DeliveryConfirmed(receiver, last + 1, sqn))
        count = self.limits.confirmations
        if 0 < count <= len(self._confirmed):
            self.flight.confirm(heapq.nlargest(count, self._confirmed.values())[-1] + 1)
            self._note(0, self.flight.next_sqn, 0)

    def _note(self, first_sqn: int, last_sqn: int, stores: int, *, is_lost: bool = False) -> None:
        """Stores, given as bits, have messages, or gave them up: report those that are stable, or cannot become it."""
        required = sum(1 << at for at in self.active_stores) if self.rule is StabilityRule.ALL_ACTIVE else 0
        for left in self.flight.note(first_sqn, last_sqn, stores, is_lost, required):
            last = self._events[-1] if self._events else None
            if not left.is_stable:
                self._events += map(NotStable, range(left.first_sqn, left.last_sqn + 1))
            elif isinstance(last, MessageStable) and last.last_sqn + 1 == left.first_sqn:
                self._events[-1] = MessageStable(last.first_sqn, left.last_sqn)
            else:
                self._events.append(MessageStable(left.first_sqn, left.last_sqn))
        self._note_space()

    def _note_space(self) -> None:
        if self._is_over and self.flight.has_space(0):
            self._note_flight(True)

    def _note_flight(self, has_space: bool) -> None:
        """Report when the limits of messages in flight are reached, and when there is space again."""
        if self._is_over == has_space:
            self._is_over = not has_space
            self._events.append(FlightSize(self._is_over, len(self.flight), self.flight.byte_count))

    def _repeat(self, now_ns: int) -> None:
        """Send old messages again to the Stores that miss them; give up those whose lifetime ended."""
        space = dict.fromkeys(self.active_stores, _PROACTIVE_BYTES)
        expired_ns, due_ns = now_ns - self.limits.lifetime_ns, now_ns - self.limits.repeat_ns
        sqn, stores = 0, sum(1 << at for at in space)
        while (due := self.flight.due(sqn, expired_ns, due_ns, stores)) is not None:
            sqn = due.sqn + 1
            if due.has_expired:
                self.flight.remove(due.sqn)
                self._events.append(NotStable(due.sqn))
                continue
            message = with_topic_index(due.message, self._topic_index)
            for at in space:
                if not due.stores >> at & 1 and space[at] >= len(message):
                    space[at] -= len(message)
                    self._stores[at].output.append(message)
                    self.flight.repeated(due.sqn, now_ns)
            stores = sum(1 << at for at in space if space[at] >= len(message))
        self._note_space()
