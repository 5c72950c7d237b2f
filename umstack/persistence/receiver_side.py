"""The receiver's side of persistence: one receiver of one source, at the source's Stores.

It registers, acknowledges what the application consumed, and gets the messages that a fetch requests from whichever
Store has them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from umstack._engine.endpoint import Endpoint
from umstack.persistence.messages import extended, sqn_of, start_near, with_topic_index
from umstack.persistence.pacing import PACING_NAME, Pacing
from umstack.persistence.source_side import TRANSPORT_NAME
from umstack.store.wire import (
    RECOVERED,
    REQUESTS_MAXIMUM,
    ConfigurationValue,
    ConsumptionAck,
    Keepalive,
    KeepaliveSender,
    MalformedMessage,
    Registration,
    RegistrationError,
    RegistrationResponse,
    RetainedRange,
    RetransmissionRequest,
    RetransmissionRequests,
    SourceRegistrationInformation,
    decode,
)

_SPACE = 1 << 32
RETRY_NS = 200_000_000
"""Time after which an unanswered registration, and a request that no Store could serve, is repeated."""
_QUORUM_NS = 1_000_000_000
"""Time after which a majority of the Stores suffices to agree on the first message."""
_KEEPALIVE_NS = 1_000_000_000
"""Interval of keepalives, which repeat the last acknowledgement."""
_SILENCE_NS = 10_000_000_000


class _State(enum.Enum):
    AWAY = enum.auto()
    ASKED = enum.auto()
    """A registration waits for its answer."""
    ACTIVE = enum.auto()


@dataclass(slots=True)
class _Store:
    """One Store of the source."""

    endpoint: Endpoint
    state: _State = _State.AWAY
    source_reg_id: int = 0
    receiver_reg_id: int = 0
    low_sqn: int = 0
    high_sqn: int = -1
    is_known: bool = False
    has_no_acks: bool = False
    """It knows the receiver, which has acknowledged nothing."""
    requested_ns: int = 0
    received_ns: int = 0
    kept_alive_ns: int = 0
    unanswered: int = 0
    """Keepalives that the Store has not answered on this connection."""
    output: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Wanted:
    """A requested message."""

    request_index: int
    tried: set[int] = field(default_factory=set)
    """Stores that do not have it now."""
    lost_until: dict[int, int] = field(default_factory=dict)
    """By Store that can never get it: the end of the messages that are lost there."""
    retry_ns: int = 0


class ReceiverSide:
    """One receiver of one source at its Stores. One thread; no sockets, no clock."""

    def __init__(
        self,
        topic: str,
        session_id: int,
        transport: str,
        topic_index: int,
        stores: tuple[Endpoint, ...],
        first_sqn: int | None = None,
        recovered_max: int | None = None,
        pacing: Pacing = Pacing.NONE,
        is_confirming: bool = True,
    ) -> None:
        """Messages before `first_sqn` are not wanted, nor those further before the newest one than `recovered_max`.

        None: all that were not acknowledged. With `pacing`, a new receiver begins at the live position.
        `is_confirming`: the Stores may forward its acknowledgements to the source.
        """
        self.topic = topic
        self.session_id = session_id
        self.transport = transport
        self.topic_index = topic_index
        self.mapped_topic_index = topic_index
        """The number of the topic for the fetch. That of a driver's log may differ from the one at the Stores."""
        self._stores = [_Store(endpoint) for endpoint in stores]
        self._quorum = len(stores) // 2 + 1
        self._first_connected_ns: int | None = None
        self._near: int | None = None
        """A number of the stream, from which the upper bits of others follow."""
        self._first_sqn = first_sqn
        self._recovered_max = recovered_max
        self._pacing = pacing
        self._is_confirming = is_confirming
        self.start_sqn: int | None = None
        """The first message to deliver, by consensus of the Stores; None: not known yet."""
        self._acknowledged: int | None = None
        self._wanted: dict[int, _Wanted] = {}
        self._answers: list[bytes] = []
        self._refusals: dict[int, str] = {}

    @property
    def identity(self) -> frozenset[tuple[Endpoint, int]]:
        """The source's registration ids at its Stores, which it keeps when it restarts."""
        return frozenset((one.endpoint, one.source_reg_id) for one in self._stores if one.source_reg_id)

    @property
    def has_store(self) -> bool:
        """True if requests can be served now."""
        return any(map(self.is_registered, range(len(self._stores))))

    def is_registered(self, store: int) -> bool:
        """Return true if requests can be served by this Store now."""
        return self._stores[store].state is _State.ACTIVE

    @property
    def high_sqn(self) -> int:
        """The newest message that the Stores had when they were last asked."""
        return max((one.high_sqn for one in self._stores if one.receiver_reg_id), default=-1) % _SPACE

    def take_output(self, store: int) -> bytes:
        """Return and forget the bytes to send to a Store."""
        output = b"".join(self._stores[store].output)
        self._stores[store].output.clear()
        return output

    def take_answers(self) -> bytes:
        """Return and forget the answers for the fetch, as its source would send them."""
        answers = b"".join(self._answers)
        self._answers.clear()
        return answers

    def take_refusals(self) -> dict[int, str]:
        """Return and forget the Stores that refused the receiver, and why."""
        refusals, self._refusals = self._refusals, {}
        return refusals

    # Connections

    def connected(self, store: int, now_ns: int) -> None:
        """The connection to a Store exists: register."""
        one = self._stores[store]
        one.received_ns, one.unanswered = now_ns, 0
        self._first_connected_ns = now_ns if self._first_connected_ns is None else self._first_connected_ns
        self._register(store, now_ns)

    def disconnected(self, store: int) -> None:
        """The connection to a Store ended: other Stores are asked for what it has not answered."""
        one = self._stores[store]
        one.state = _State.AWAY
        one.output.clear()

    def tick(self, now_ns: int) -> list[int]:
        """Repeat the requests that are due. Returns the silent Stores, whose connections must be ended."""
        silent = []
        for at, one in enumerate(self._stores):
            if one.state is _State.AWAY:
                continue
            if now_ns - one.received_ns >= _SILENCE_NS:
                silent.append(at)
            elif one.state is _State.ASKED and now_ns - one.requested_ns >= RETRY_NS:
                self._register(at, now_ns)
            elif one.state is _State.ACTIVE and now_ns - one.kept_alive_ns >= _KEEPALIVE_NS:
                self._keep_alive(at, now_ns)
        self._agree(now_ns)
        self._retry(now_ns)
        return silent

    def received(self, store: int, message: bytes, now_ns: int) -> None:
        """A message of a Store arrived. Raises MalformedMessage."""
        self._stores[store].received_ns = now_ns
        if message[0] == RECOVERED:
            self._on_recovered(message)
            return
        control = decode(message)
        if isinstance(control, SourceRegistrationInformation):
            if len(control.stores) != 1:
                raise MalformedMessage(f"a list of {len(control.stores)} sources instead of one")
            self._stores[store].source_reg_id = control.stores[0].source_reg_id
            self._register(store, now_ns)
        elif isinstance(control, RegistrationResponse):
            self._on_response(store, control, now_ns)
        elif isinstance(control, RetainedRange):
            self._on_missing(store, control, now_ns)
        elif isinstance(control, Keepalive):
            self._stores[store].unanswered = max(0, self._stores[store].unanswered - 1)

    # Registration

    def _register(self, store: int, now_ns: int) -> None:
        """Register; the first time, with the source's transport session, which the Store answers with its id."""
        one = self._stores[store]
        one.state, one.requested_ns = _State.ASKED, now_ns
        one.output.append(self._registration(store))

    def _registration(self, store: int) -> bytes:
        one = self._stores[store]
        values = [] if one.source_reg_id else [ConfigurationValue(TRANSPORT_NAME, self.transport)]
        if self._pacing:
            values.append(ConfigurationValue(PACING_NAME, str(self._pacing.value), 2))
        return Registration(
            is_source=False,
            transport_index=0,
            topic_index=self.topic_index,
            source_reg_id=one.source_reg_id,
            session_id=self.session_id,
            store_index=store,
            topic=self.topic,
            is_receiver_paced=bool(self._pacing),
            forwards_acks=self._is_confirming,
            configuration=tuple(values),
        ).encode()

    def _on_response(self, store: int, response: RegistrationResponse, now_ns: int) -> None:
        one = self._stores[store]
        if response.error is not None:
            if response.error is RegistrationError.SOURCE_NOT_FOUND:
                one.source_reg_id = 0
            else:
                self._refusals[store] = response.refusal
            one.requested_ns = now_ns
            return
        if self._near is None:
            self._near = response.high_sqn + _SPACE
        one.high_sqn = extended(response.high_sqn, self._near)
        if one.state is _State.ACTIVE:
            return
        one.low_sqn = extended(response.low_sqn, one.high_sqn)
        one.is_known, one.receiver_reg_id = response.is_known, response.reg_id
        one.has_no_acks = response.has_no_acks
        one.state = _State.ACTIVE
        self._acknowledge(one)
        self._agree(now_ns)

    def _agree(self, now_ns: int) -> None:
        """Agree on the first message once all Stores answered, or a majority after a while."""
        if self.start_sqn is not None or self._first_connected_ns is None:
            return
        active = [one for one in self._stores if one.state is _State.ACTIVE]
        is_late = now_ns - self._first_connected_ns >= _QUORUM_NS
        if len(active) < (self._quorum if is_late else len(self._stores)):
            return
        # An acknowledgement may have reached a minority: the highest one counts. With receiver pacing, a receiver that
        # has acknowledged nothing begins where it began at the first Store, and a new one at the newest live position.
        # Otherwise it gets all there is.
        acknowledged = [one.low_sqn for one in active if one.is_known and not one.has_no_acks]
        lows = [one.low_sqn for one in active if one.is_known] or [one.low_sqn for one in active]
        is_new = not any(one.is_known for one in active)
        start = max(acknowledged) if acknowledged else max(lows) if self._pacing and is_new else min(lows)
        newest = max(start, *(one.high_sqn for one in active))
        if self._first_sqn is not None:
            start = max(start, start_near(self._first_sqn, newest))
        if self._recovered_max is not None:
            start = max(start, newest - self._recovered_max)
        self.start_sqn = start % _SPACE
        for one in active:
            self._acknowledge(one)

    def _keep_alive(self, store: int, now_ns: int) -> None:
        """Repeat the last acknowledgement, and the registration, whose answer has the newest number."""
        one = self._stores[store]
        one.kept_alive_ns = now_ns
        one.unanswered += 1
        self._acknowledge(one)
        asked = Keepalive(
            sender=KeepaliveSender.RECEIVER,
            transport_index=0,
            topic_index=self.topic_index,
            reg_id=one.receiver_reg_id,
            store_index=store,
            needs_response=True,
        )
        one.output += [self._registration(store), asked.encode()]

    # Consumption

    def acknowledge(self, sqn: int) -> None:
        """The application consumed this message and all before it."""
        near = sqn + _SPACE if self._near is None else self._near
        found = extended(sqn, near)
        if self._acknowledged is None or found > self._acknowledged:
            self._acknowledged = self._near = found
            for one in self._stores:
                if one.state is _State.ACTIVE:
                    self._acknowledge(one)

    def _acknowledge(self, one: _Store) -> None:
        """Send the last acknowledgement; if there is none, and with receiver pacing, where this receiver begins."""
        is_start = self._acknowledged is None
        last = self._acknowledged
        if last is None:
            if not self._pacing or self.start_sqn is None:
                return
            last = self.start_sqn - 1
        ack = ConsumptionAck(
            transport_index=0,
            source_reg_id=one.source_reg_id,
            receiver_reg_id=one.receiver_reg_id,
            sqn=last % _SPACE,
            store_index=0,
            is_start=is_start,
        )
        one.output.append(ack.encode())

    def confirm(self, now_ns: int) -> None:
        """Ask the Stores for an answer to all acknowledgements so far: then `is_confirmed`."""
        for at, one in enumerate(self._stores):
            if one.state is _State.ACTIVE:
                self._keep_alive(at, now_ns)

    @property
    def is_confirmed(self) -> bool:
        """True if every connected Store has answered all keepalives."""
        return not any(one.unanswered for one in self._stores if one.state is _State.ACTIVE)

    # Requests of the fetch

    def forget_requests(self) -> None:
        """The fetch ended or begins again: nothing is requested any more."""
        self._wanted.clear()

    def request(self, sqns: list[int], request_index: int, now_ns: int) -> None:
        """Request messages from the Stores."""
        near = self.start_sqn or 0 if self._near is None else self._near
        added = []
        for sqn in sqns:
            found = extended(sqn, near)
            if found not in self._wanted:
                self._wanted[found] = _Wanted(request_index)
                added.append(found)
        self._ask(added, now_ns)

    def range_from(self, sqn: int, request_index: int) -> bytes:
        """Return the answer to a request for the range from this number on."""
        high = extended(self.high_sqn, sqn + _SPACE)
        return RetainedRange(sqn, max(high, sqn + _SPACE - 1) % _SPACE, request_index).encode()

    def _ask(self, sqns: list[int], now_ns: int) -> None:
        """Ask for each message the first Store that has not answered that it misses it."""
        active = [at for at, one in enumerate(self._stores) if one.state is _State.ACTIVE]
        by_store: dict[int, list[int]] = {}
        for sqn in sqns:
            wanted = self._wanted[sqn]
            wanted.retry_ns = now_ns + _QUORUM_NS
            at = next((at for at in active if at not in wanted.tried), None)
            if at is not None:
                by_store.setdefault(at, []).append(sqn)
            else:
                wanted.tried.clear()
                wanted.retry_ns = now_ns + RETRY_NS
        for at, found in by_store.items():
            for first in range(0, len(found), REQUESTS_MAXIMUM):
                requests = tuple(
                    RetransmissionRequest(sqn % _SPACE, sqn % _SPACE)
                    for sqn in found[first : first + REQUESTS_MAXIMUM]
                )
                source = self._stores[at].source_reg_id
                asked = RetransmissionRequests(transport_index=0, source_reg_id=source, requests=requests)
                self._stores[at].output.append(asked.encode())

    def _retry(self, now_ns: int) -> None:
        due = [sqn for sqn, wanted in self._wanted.items() if now_ns >= wanted.retry_ns]
        if not due:
            return
        self._declare_lost()
        self._ask([sqn for sqn in due if sqn in self._wanted], now_ns)

    def _declare_lost(self) -> None:
        """Answer that the oldest messages are lost, if a majority of the Stores and every connected one agree.

        Stores that are away may have what the connected ones miss, unless these are a majority: a stable message is
        held by one of them.
        """
        while self._wanted:
            oldest = min(self._wanted)
            wanted = self._wanted[oldest]
            active = {at for at, one in enumerate(self._stores) if one.state is _State.ACTIVE}
            if len(wanted.lost_until) < self._quorum or not active <= wanted.lost_until.keys():
                return
            end = min(wanted.lost_until.values())
            high = max(self._near or 0, end)
            self._answers.append(RetainedRange(end % _SPACE, high % _SPACE, wanted.request_index).encode())
            for sqn in [sqn for sqn in self._wanted if sqn < end]:
                del self._wanted[sqn]

    def _on_recovered(self, message: bytes) -> None:
        found = extended(sqn_of(message), self._near or 0)
        if self._wanted.pop(found, None) is not None:
            self._near = max(self._near or 0, found)
            # It may be stored under the topic index of a former life of the source.
            self._answers.append(with_topic_index(message, self.mapped_topic_index))

    def _on_missing(self, store: int, answer: RetainedRange, now_ns: int) -> None:
        sqn = extended(answer.request_index, self._near or 0)
        wanted = self._wanted.get(sqn)
        if wanted is None:
            return
        wanted.tried.add(store)
        end = extended(answer.low_sqn, sqn)
        if end > sqn:
            wanted.lost_until[store] = end
            self._declare_lost()
        if sqn in self._wanted:
            self._ask([sqn], now_ns)


__all__ = ["RETRY_NS", "ReceiverSide"]
