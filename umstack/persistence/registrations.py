"""StoreRegistrations: the registrations of a context's receivers at Stores, and their connections.

Used on the streams thread, except for methods with another note. A registration is the connection of its source's
fetch: what the core requests of a source goes to the Stores, and their answers come back as the source's.
"""

from __future__ import annotations

import logging
import selectors
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from umstack._core import ffi, lib
from umstack._engine.endpoint import Endpoint
from umstack._engine.engine import Engine, MappedStart
from umstack._engine.subscription import LateMapping, Subscription
from umstack._engine.transport_address import TransportAddress, transport_name
from umstack.persistence.pacing import Pacing
from umstack.persistence.receiver_side import ReceiverSide
from umstack.persistence.store_link import StoreLink
from umstack.recovery import RecoveryService
from umstack.recovery.fetch import Fetch
from umstack.repeated_records import RepeatedRecords
from umstack.store.wire import MalformedMessage, TopicKeys
from umstack.streams import Streams
from umstack.streams.counters import StreamCounters
from umstack.streams.tags import TagRefused, count_refusal

_TICK_NS = 100_000_000
_RETRY_NS = 300_000_000
_STREAM_BYTES = 1 << 20
_REQUEST_BYTES = 1 << 16
_OPTION_BYTES = 28
_LOOK_NS = 1_000_000_000
"""Interval at which it is checked if the Stores have messages that did not arrive."""
_CLOSE_SECONDS = 2.0
_CONFIRM_NS = 1_000_000_000
"""Maximum wait for the Stores' answers to the last acknowledgements of a receiver."""
_CONFIRM_TICK_NS = 2_000_000
_SQN = struct.Struct("!I")
_records = RepeatedRecords(logging.getLogger("umstack.persistence"))
REGISTRATIONS_MAX = 4096
"""Registrations of a context; a source beyond them is received without its Stores."""


class ReceiverSession(NamedTuple):
    """The session of a receiver at Stores."""

    number: int
    """Its session id."""
    first_sqn: int | None = None
    """It wants no earlier messages; None: all that it has not acknowledged."""
    recovered_max: int | None = None
    """It wants no messages further before the newest one; None: all."""
    pacing: Pacing = Pacing.NONE
    """How it takes part in receiver-paced persistence."""
    is_confirming: bool = True
    """The Stores may forward its acknowledgements to its sources."""


@dataclass(frozen=True, slots=True)
class StoredSource:
    """A source that advertises Stores, and the session id of a receiver that wants it."""

    topic: str
    topic_index: int
    transport: str
    address: TransportAddress
    advertiser: str
    session: Any
    """A copy of the core's um_session_id; through a driver, that of the source's log."""
    stores: tuple[Endpoint, ...]
    log_topic_index: int | None = None
    """The number of the topic in the source's log; None: the source reaches the receiver without a driver."""

    @property
    def name(self) -> str:
        """The source's name in messages."""
        return f"{self.transport}[{self.topic_index}]"

    @property
    def mapped_topic_index(self) -> int:
        """The number of the topic in the session that the core has mapped."""
        return self.topic_index if self.log_topic_index is None else self.log_topic_index


class StoreRegistration:
    """One receiver of one source at its Stores."""

    def __init__(
        self,
        subscription: Subscription,
        session: ReceiverSession,
        source: StoredSource,
        selector: selectors.BaseSelector,
        on_start: Callable[[StoreRegistration, int], None],
        keys: TopicKeys,
        counters: StreamCounters,
    ) -> None:
        self.subscription = subscription
        self.side = ReceiverSide(
            source.topic,
            session.number,
            source.transport,
            source.topic_index,
            source.stores,
            session.first_sqn,
            session.recovered_max,
            session.pacing,
            session.is_confirming,
        )
        self.follow(source)
        self.is_open = True
        self.wanted_sqn: int | None = None
        """The first message to deliver, while the source is not mapped yet."""
        self.has_started = False
        """True once the Stores agreed on the first message: the source may be mapped."""
        self._on_start: Callable[[StoreRegistration, int], None] | None = on_start
        self._counters = counters
        self._links = [
            StoreLink(
                endpoint, selector, partial(self._on_ready, at), _STREAM_BYTES, _RETRY_NS, keys, source.topic
            )
            for at, endpoint in enumerate(source.stores)
        ]
        self._fetch: Fetch | None = None
        self._core = ffi.new("um_fetch_connection *")
        self._requests = ffi.new("char[]", _REQUEST_BYTES)
        self._is_range_due = False
        self._looked_ns = 0
        self._high_sqn: int | None = None
        """The newest number that the Stores had one look ago."""

    def follow(self, source: StoredSource) -> None:
        """Continue with the same source, which may have another log."""
        self.source = source
        self.side.mapped_topic_index = source.mapped_topic_index

    # The fetch

    def attach(self, fetch: Fetch) -> StoreRegistration:
        """Let the source's fetch use the Stores. Raises ConnectionError while there are none."""
        if not self.side.has_store:
            raise ConnectionError("no Store of the source answers")
        self._fetch = fetch
        fetch.connection = self
        lib.um_fetch_on_connect(fetch.raw, self._core)
        fetch.raw.left_over = fetch.held_bytes
        self._is_range_due = True
        return self

    @property
    def request_space(self) -> tuple[Any, int]:
        """Pointer to the place for the fetch's next requests, and the number of bytes that it may write there."""
        return self._requests, _REQUEST_BYTES

    def fill_requests(self, count: int) -> None:
        """Pass the requests that the fetch has written to the Stores."""
        written = bytes(ffi.buffer(self._requests, count))
        sqns, at, fetch = [], 0, self._fetch
        while at < count:
            end = at + int.from_bytes(written[at + 2 : at + 4], "big")
            sqns += [
                _SQN.unpack_from(written, option + 16)[0] for option in range(at + 4, end, _OPTION_BYTES)
            ]
            at = end
        if fetch is not None:
            self.side.request(sqns, fetch.raw.request_index, time.monotonic_ns())

    def flush(self) -> None:
        """Answer a due request for the range, and send requests."""
        fetch = self._fetch
        if fetch is not None and self._is_range_due:
            self._is_range_due = False
            self.side.forget_requests()
            request = ffi.new("uint8_t[]", lib.UM_RANGE_REQUEST_BYTES_MAX)
            lib.um_fetch_request_range(fetch.raw, request)
            raw = fetch.raw
            has_begun = raw.has_progressed and not raw.is_awaiting_range
            first = int(raw.next_sqn if has_begun else raw.plan.bounds.low_sqn)
            self._give(self.side.range_from(first, raw.request_index))
        self._write()

    def detach(self, fetch: Fetch) -> None:
        """Remove the fetch; the registration stays."""
        self._fetch = fetch.connection = None
        self.side.forget_requests()
        lib.um_fetch_on_disconnect(fetch.raw)

    def _give(self, answers: bytes) -> None:
        fetch = self._fetch
        if fetch is not None and answers:
            with ffi.from_buffer("char[]", answers) as data:
                fetch.take(data, len(answers))

    def close(self) -> None:
        """End the fetch's use of the Stores; it attaches again when it is its time. The registration stays."""
        if self._fetch is not None:
            self.detach(self._fetch)

    # Connections

    def run(self, now_ns: int) -> None:
        """Connect where it is time to, repeat requests, and send."""
        for at, link in enumerate(self._links):
            if link.is_due(now_ns):
                self._connect(at, now_ns)
        for at in self.side.tick(now_ns):
            self._end(at, now_ns)
        self._give(self.side.take_answers())
        self._write()
        for at, reason in self.side.take_refusals().items():
            _records.write(
                ("refused", self.source.topic, self.source.stores[at]),
                logging.WARNING,
                "the Store at %s:%d refuses the receiver of %r: %s",
                *self.source.stores[at],
                self.source.topic,
                reason,
            )
        start = self.side.start_sqn
        if start is not None and self._on_start is not None:
            on_start, self._on_start = self._on_start, None
            on_start(self, start)
        elif start is not None and now_ns >= self._looked_ns + _LOOK_NS:
            self._looked_ns = now_ns
            high, self._high_sqn = self._high_sqn, self.side.high_sqn
            if high is not None:  # they have had it for a while, so it is not on its way here
                source = self.source
                self.subscription.note_stored(source.session, source.mapped_topic_index, high)

    def _connect(self, at: int, now_ns: int) -> None:
        try:
            self._links[at].connect(now_ns)
        except OSError:
            self._end(at, now_ns)

    def _on_ready(self, at: int, mask: int, now_ns: int) -> None:
        link = self._links[at]
        if not link.is_open:
            return
        try:
            if not link.is_connected:
                if not link.finish_connecting():
                    return
                self.side.connected(at, now_ns)
            if mask & selectors.EVENT_READ:
                for message in link.receive():
                    self.side.received(at, message, now_ns)
        except TagRefused as refusal:
            endpoint = self.source.stores[at]
            count_refusal(refusal, self._counters, "recovery", f"{endpoint.ip}:{endpoint.port}")
            self._end(at, now_ns)
        except (MalformedMessage, OSError):
            self._end(at, now_ns)
        self.run(now_ns)

    def _write(self) -> None:
        for at, link in enumerate(self._links):
            if link.is_connected:
                try:
                    link.send(self.side.take_output(at))
                except OSError:
                    self._end(at, time.monotonic_ns())

    def _end(self, at: int, now_ns: int) -> None:
        self._links[at].end(now_ns)
        self.side.disconnected(at)
        if not self.side.has_store:
            self.close()

    def end(self) -> None:
        """Send the last acknowledgements as far as the kernel takes them, and close the connections."""
        if self.is_open:
            self.is_open = False
            self.close()
            self._write()
            for at in range(len(self._links)):
                self._end(at, 0)


@dataclass(frozen=True, slots=True)
class _Ending:
    """The registrations of a closed receiver, until their Stores have its last acknowledgements."""

    registrations: list[StoreRegistration]
    since_ns: int
    done: threading.Event


class StoreRegistrations:
    """The registrations of a context."""

    def __init__(self, engine: Engine, streams: Streams, recovery: RecoveryService) -> None:
        self._engine = engine
        self._streams = streams
        self._recovery = recovery
        recovery.use_stores(self.find)
        self._lock = threading.Lock()
        self._acknowledged: dict[tuple[Subscription, str], int] = {}
        self._registrations: dict[tuple[Subscription, str], StoreRegistration] = {}
        self._by_name: dict[tuple[Subscription, str], StoreRegistration] = {}
        """Also by the names that the sources had before they restarted."""
        self._sessions: dict[Subscription, ReceiverSession] = {}
        self._ending: list[_Ending] = []
        self._is_running = False
        self._due_ns = 0

    # Any thread

    def add_receiver(self, subscription: Subscription, session: ReceiverSession) -> None:
        """Register a receiver from now on at the Stores of its sources."""
        self._sessions[subscription] = session

    def find(self, subscription: Subscription, name: str) -> StoreRegistration | None:
        """Return the registration for a source."""
        return self._registrations.get((subscription, name))

    def takes(
        self,
        topic: str,
        topic_index: int,
        address: TransportAddress,
        advertiser: str,
        stores: tuple[Endpoint, ...],
    ) -> Callable[[Subscription, Any], bool]:
        """Return a function that returns true for a receiver which gets the found source through a registration."""

        def takes(subscription: Subscription, config: Any) -> bool:
            if not stores or subscription not in self._sessions:
                return False
            name = transport_name(address)
            identity = ffi.new("um_session_id *", config.id)
            source = StoredSource(topic, topic_index, name, address, advertiser, identity, stores)
            self._found(subscription, source)
            return True

        return takes

    def _found(self, subscription: Subscription, source: StoredSource) -> None:
        selector = self._streams.loop.open()
        if not self._is_running:
            self._is_running = True
            self._streams.loop.add_work(self._run)
        self._streams.loop.submit(partial(self._register, subscription, source, selector))

    def of_log(self, subscription: Subscription, source: StoredSource) -> StoreRegistration | None:
        """Return the registration for a source whose log a driver has announced, once the log may be mapped."""
        key = subscription, source.name
        known = self._registrations.get(key)
        if known is not None and known.has_started:
            known.follow(source)
            return known
        if key not in self._by_name and subscription in self._sessions:
            self._found(subscription, source)
        return None

    def acknowledge(self, subscription: Subscription, consumed: dict[str, int]) -> None:
        """The application consumed the messages of these sources up to these numbers."""
        with self._lock:
            self._acknowledged.update({(subscription, name): sqn for name, sqn in consumed.items()})

    def remove_receiver(self, subscription: Subscription) -> None:
        """Send the last acknowledgements of a receiver that is being closed, and end its registrations."""
        if self._sessions.pop(subscription, None) is None or not self._is_running:
            return
        done = threading.Event()
        self._streams.loop.submit(partial(self._remove, subscription, done))
        done.wait(_CLOSE_SECONDS)

    # The streams thread

    def _register(
        self, subscription: Subscription, source: StoredSource, selector: selectors.BaseSelector
    ) -> None:
        session = self._sessions.get(subscription)
        key = subscription, source.name
        if session is None or len(self._by_name) >= REGISTRATIONS_MAX:
            return
        known = self._by_name.get(key)
        if known is not None:
            known.follow(source)
            if known is self._registrations.get(key) and known.side.start_sqn is not None:
                self._start(known, known.wanted_sqn)
            return
        keys, counters = self._engine.keyring, self._streams.counters
        registration = StoreRegistration(
            subscription, session, source, selector, self._on_start, keys, counters
        )
        self._registrations[key] = self._by_name[key] = registration
        registration.run(time.monotonic_ns())

    def _on_start(self, registration: StoreRegistration, start_sqn: int) -> None:
        """The Stores agreed on a receiver's first message. A restarted source continues where its receiver stopped."""
        subscription = registration.subscription
        for key, former in list(self._registrations.items()):
            if key[0] is not subscription or former is registration:
                continue
            if not former.side.identity & registration.side.identity:
                continue
            position = subscription.unmap(
                former.source.session, former.source.mapped_topic_index, former.source.name
            )
            if position is None:
                position = former.wanted_sqn  # it ended before it was mapped
            if position is not None and (position - start_sqn) % (1 << 32) < 1 << 31:
                start_sqn = position
            del self._registrations[key]
            for name in [name for name, one in self._by_name.items() if one is former]:
                self._by_name[name] = registration
            former.end()
        self._start(registration, start_sqn)

    def _start(self, registration: StoreRegistration, start_sqn: int | None) -> None:
        """Map the source: begin to deliver at this number, or where its last session stopped."""
        source = registration.source
        registration.wanted_sqn, registration.has_started = start_sqn, True
        if source.log_topic_index is not None:
            return  # it is mapped when its log is announced again
        self._recovery.expect()

        def join(subscription: Subscription, session: Any, mapping: LateMapping) -> None:
            self._recovery.join(subscription, session, source.topic_index, mapping, registration)

        is_mapped = self._engine.map_source(
            source.topic,
            source.topic_index,
            source.address,
            source.stores[0],
            join,
            source.advertiser,
            start=MappedStart(registration.subscription, start_sqn),
        )
        registration.wanted_sqn = None if is_mapped else start_sqn

    def _run(self, now_ns: int) -> int | None:
        if now_ns >= self._due_ns:
            self._due_ns = now_ns + _TICK_NS
            self._take_acknowledged()
            for registration in list(self._registrations.values()):
                registration.run(now_ns)
        if self._ending:
            self._end_confirmed(now_ns)
            return min(self._due_ns, now_ns + _CONFIRM_TICK_NS)
        return self._due_ns if self._registrations else None

    def _take_acknowledged(self) -> None:
        with self._lock:
            consumed, self._acknowledged = self._acknowledged, {}
        for key, sqn in consumed.items():
            registration = self._by_name.get(key)
            if registration is not None:
                registration.side.acknowledge(sqn)

    def _remove(self, subscription: Subscription, done: threading.Event) -> None:
        self._take_acknowledged()
        now_ns = time.monotonic_ns()
        ending = [key for key in self._registrations if key[0] is subscription]
        for key in ending:
            self._registrations[key].side.confirm(now_ns)
        for key in [key for key in self._by_name if key[0] is subscription]:
            del self._by_name[key]
        self._ending.append(_Ending([self._registrations.pop(key) for key in ending], now_ns, done))

    def _end_confirmed(self, now_ns: int) -> None:
        for one in list(self._ending):
            for registration in one.registrations:
                registration.run(now_ns)
            is_late = now_ns - one.since_ns >= _CONFIRM_NS
            if is_late or all(registration.side.is_confirmed for registration in one.registrations):
                for registration in one.registrations:
                    registration.end()
                self._ending.remove(one)
                one.done.set()


__all__ = ["REGISTRATIONS_MAX", "ReceiverSession", "StoreRegistration", "StoreRegistrations", "StoredSource"]
