"""Random runs of topic resolution under attack: a seed chooses contexts, network and attacker, checkers watch.

The contexts are state machines of topic resolution (umstack/resolution/machine.py) under virtual time, each with a
model of the core's reactions: a limited number of receiving sessions, of which those without a datagram end after a
while or are evicted, and a bounded memory of ended sessions. A session solicits the position of its stream from the
source, by status messages, until it has a datagram, so it stays even if the source sends nothing else. The attacker
stays on the network until the end: it advertises sessions that do not exist, for wanted and other topics, ends sources
with forged records, floods queries and requests, replays datagrams, and sends malformed records and options.

Checked after every step: nothing raises; tables stay within their bounds; no context exceeds its rate limits or is
woken without end. And a receiver has every source of its topic within CONVERGENCE_NS after both exist.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from random import Random

from umstack._engine.transport_address import LbtipcAddress, LbtrmAddress, TransportAddress
from umstack.config import ContextOptions, ReceiverOptions, SourceOptions, WildcardReceiverOptions
from umstack.resolution.codec import WireOption
from umstack.resolution.machine import ResolutionEvent, ResolutionMachine, SourceFound
from umstack.resolution.pattern import TopicPattern
from umstack.sim.resolution_attacker import TOPICS, Attacker, SourceMade

_MS = 1_000_000
_SECOND = 1_000_000_000

CONVERGENCE_NS = 3 * _SECOND
"""Maximum time that a receiver may lack an existing source: some rounds of queries, each of which may be lost.

A topic that has a source, which may be forged, is queried once per second."""

# Tables, the attacker's rate and session timeouts are scaled down by about thirty.
_CACHE_MAXIMUM = 100
_SESSIONS_MAXIMUM = 16
_IDLE_PER_SOURCE_MAXIMUM = 2
_ENDED_REMEMBERED = 24
_FORGET_INTERVAL_NS = 500 * _MS
_IDLE_TIMEOUT_NS = 2 * _SECOND
_STATUS_INTERVAL_NS = 7 * _MS
_TOPICS_PER_PATTERN = 10
_RECORDS_PER_SECOND = 10
_DATAGRAM_MAXIMUM = 1400
_WINDOW_NS = _SECOND
_WAKEUPS_A_WINDOW = 3000

_CONTEXT = ContextOptions(
    resolver_cache_maximum_entries=_CACHE_MAXIMUM,
    resolver_initial_advertisements_per_second=_RECORDS_PER_SECOND,
    resolver_sustain_advertisements_per_second=_RECORDS_PER_SECOND,
    resolver_initial_queries_per_second=_RECORDS_PER_SECOND,
    resolver_sustain_queries_per_second=_RECORDS_PER_SECOND,
    resolver_wildcard_queries_per_second=_RECORDS_PER_SECOND,
)
_RECORDS_A_WINDOW = 5 * 11 * _RECORDS_PER_SECOND // 10
"""Of five queues, in the slices of 100 ms that overlap a second."""
_TABLES_OF_ITS_OWN = ("timers", "queued records")
"""Tables with some entries per source, receiver and pattern of the context, independent of received records."""
_SOURCE = SourceOptions(
    resolver_send_final_advertisements=True,
    resolver_advertisement_minimum_initial_duration_ns=_SECOND,
    resolver_advertisement_sustain_interval_ns=200 * _MS,
    resolver_advertisement_minimum_sustain_duration_ns=_SECOND,
)
_RECEIVER = ReceiverOptions(
    resolver_query_minimum_initial_duration_ns=_SECOND, resolver_query_sustain_interval_ns=200 * _MS
)
_WILDCARD = WildcardReceiverOptions(wildcard_maximum_topics=_TOPICS_PER_PATTERN)


class ResolutionCanary(Enum):
    """A removed bound: a run without it must fail, or the checkers miss faults."""

    NONE = "none"
    NO_RATE_LIMIT = "no-rate-limit"
    NO_CACHE_LIMIT = "no-cache-limit"
    ENDED_FORGOTTEN = "ended-forgotten"
    """The core's memory of ended sessions overflows without a report."""


_PLANTED = {
    ResolutionCanary.NO_RATE_LIMIT: ContextOptions(resolver_cache_maximum_entries=_CACHE_MAXIMUM),
    ResolutionCanary.NO_CACHE_LIMIT: replace(_CONTEXT, resolver_cache_maximum_entries=2**20),
}


def _source_of(address: TransportAddress) -> str | int:
    """Return the host that a session's share of the table is counted for."""
    return address.host_id if isinstance(address, LbtipcAddress) else address.source_ip


@dataclass(frozen=True, slots=True)
class ResolutionResult:
    """The result of a seed; `violation` is empty on success."""

    seed: int
    violation: str
    datagrams: int
    forged: int
    found: int
    digest: int

    @property
    def replay(self) -> str:
        """Return the command that repeats this seed."""
        return f"umstack sim --resolution --seed {self.seed}"


class _Violation(Exception):
    """A check failed."""


@dataclass(slots=True)
class _Session:
    """A receiving session of a host, with its topics."""

    created_ns: int
    topics: set[tuple[str, int]] = field(default_factory=set)
    is_active: bool = False


class _Host:
    """One simulated context: its resolution state machine and a model of its core."""

    def __init__(self, number: int, canary: ResolutionCanary) -> None:
        self.ip = f"10.0.0.{number + 1}"
        self.machine = ResolutionMachine(_PLANTED.get(canary, _CONTEXT), _DATAGRAM_MAXIMUM, 0)
        self.sources: list[SourceMade] = []
        self.wanted: dict[str, int] = {}
        self.sessions: dict[TransportAddress, _Session] = {}
        self.lacking_since_ns: dict[SourceMade, int] = {}
        self.has_pattern = False
        self._ended: deque[TransportAddress] = deque(maxlen=_ENDED_REMEMBERED)
        self._ended_count = 0
        self._ended_seen = 0
        self._canary = canary
        self._sent: deque[tuple[int, int]] = deque()
        self._sent_records = 0
        self._wakeups: deque[int] = deque()

    # The model of the core

    def apply(self, events: list[ResolutionEvent], now_ns: int) -> int:
        """Map the discovered sources, as the engine does. Return their number."""
        found = [event for event in events if isinstance(event, SourceFound)]
        for event in found:
            session = self.sessions.get(event.address)
            if session is None:
                if not self._make_space(event.address):
                    continue
                session = self.sessions[event.address] = _Session(now_ns)
            session.topics.add((event.topic, event.index))
        return len(found)

    def _make_space(self, address: TransportAddress) -> bool:
        """As um_node_evictable: the oldest idle session of the source over its share, or of all if the table is
        full."""
        idle = [(one.created_ns, known) for known, one in self.sessions.items() if not one.is_active]
        of_source = [one for one in idle if _source_of(one[1]) == _source_of(address)]
        if len(of_source) >= _IDLE_PER_SOURCE_MAXIMUM:
            self._end(min(of_source, key=lambda one: one[0])[1])
        elif len(self.sessions) >= _SESSIONS_MAXIMUM:
            if not idle:
                return False
            self._end(min(idle, key=lambda one: one[0])[1])
        return True

    def _end(self, address: TransportAddress) -> None:
        del self.sessions[address]
        self._ended.append(address)
        self._ended_count += 1

    def end_idle(self, now_ns: int) -> None:
        """End sessions that received nothing for the timeout."""
        for address, session in list(self.sessions.items()):
            if not session.is_active and now_ns - session.created_ns > _IDLE_TIMEOUT_NS:
                self._end(address)

    def forget_ended(self, now_ns: int) -> None:
        """Let the sources of ended sessions be rediscovered; runs every half second."""
        missed = self._ended_count - self._ended_seen > _ENDED_REMEMBERED
        ended = None if missed and self._canary is not ResolutionCanary.ENDED_FORGOTTEN else set(self._ended)
        self._ended_seen = self._ended_count
        self._ended.clear()
        if ended is None or ended:
            self.machine.forget_sessions(ended, now_ns)

    # Checks

    def check(self) -> None:
        """Check that every table is within its bound."""
        own = len(self.sources) + len(self.wanted) + self.has_pattern
        for name, size in self.machine.table_sizes().items():
            limit = 4 * own + 4 if name in _TABLES_OF_ITS_OWN else _CACHE_MAXIMUM
            if size > limit:
                raise _Violation(f"{self.ip}: {name} has {size} entries, the limit is {limit}")

    def sent(self, datagrams: list[bytes], now_ns: int) -> None:
        """Check the rate limits over a second, for any received datagrams."""
        self._wakeups.append(now_ns)
        for datagram in datagrams:
            records = datagram[1] + int.from_bytes(datagram[2:4], "big")
            self._sent.append((now_ns, records))
            self._sent_records += records
        while self._sent and self._sent[0][0] <= now_ns - _WINDOW_NS:
            self._sent_records -= self._sent.popleft()[1]
        while self._wakeups[0] <= now_ns - _WINDOW_NS:
            self._wakeups.popleft()
        if self._sent_records > _RECORDS_A_WINDOW:
            raise _Violation(
                f"{self.ip} sent {self._sent_records} records within a second, the limit is {_RECORDS_A_WINDOW}"
            )
        if len(self._wakeups) > _WAKEUPS_A_WINDOW:
            raise _Violation(f"{self.ip} was woken {len(self._wakeups)} times within a second")


class _World:
    """Hosts, the network between them, and the scheduled actions."""

    def __init__(self, seed: int, canary: ResolutionCanary) -> None:
        self.random = Random(seed)
        self.now_ns = 0
        self.datagrams = self.forged = self.found = self.digest = 0
        self._loss = self.random.choice((0.0, 0.05, 0.2))
        self._delay_ns = self.random.choice((_MS // 10, 5 * _MS, 30 * _MS))
        self.hosts = [_Host(n, canary) for n in range(self.random.randint(2, 3))]
        self.attacker = Attacker(self.random)
        self.end_ns = self.random.choice((4, 5)) * _SECOND
        self._sources: list[SourceMade] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0
        self._wakes: dict[int, int] = {}

    def at(self, time_ns: int, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._events, (max(time_ns, self.now_ns), self._serial, action))

    def run(self) -> None:
        self._plan()
        while self._events and self._events[0][0] <= self.end_ns:
            self.now_ns, _, action = heapq.heappop(self._events)
            action()
            self.digest = hash((self.digest, self.now_ns, self.found, self.datagrams))

    def _plan(self) -> None:
        random = self.random
        for index in range(random.randint(2, 5)):
            begins = random.randrange(self.end_ns // 2)
            self.at(begins, lambda index=index: self._make_source(index))  # type: ignore[misc]
        for _ in range(random.randint(2, 5)):
            host = random.choice(self.hosts)
            self.at(random.randrange(self.end_ns // 2), lambda host=host: self._make_receiver(host))  # type: ignore[misc]
        for host in self.hosts:
            self.at(0, lambda host=host: self._every_interval(host))  # type: ignore[misc]
            self.at(0, lambda host=host: self._look(host))  # type: ignore[misc]
            if random.random() < 0.3:
                self.at(random.randrange(self.end_ns // 2), lambda host=host: self._make_pattern(host))  # type: ignore[misc]
        self.at(0, self._attack)

    # Honest

    def _make_source(self, index: int) -> None:
        host = self.random.choice(self.hosts)
        address = LbtrmAddress(host.ip, "224.10.10.10", 1000 + index, 14400, 14390 + index)
        source = SourceMade(self.random.choice(TOPICS), index + 1, address, self.now_ns)
        host.sources.append(source)
        self._sources.append(source)
        options = (WireOption(4, bytes(20)),) if self.random.random() < 0.5 else ()
        host.machine.advertise(source.topic, source.index, address, _SOURCE, self.now_ns, options)
        self.attacker.add_source(source)
        self._wake(host)
        if self.random.random() < 0.5:
            self._send_data(source)

    def _make_receiver(self, host: _Host) -> None:
        topic = self.random.choice(TOPICS)
        host.wanted.setdefault(topic, self.now_ns)
        self._apply(host, host.machine.query(topic, _RECEIVER, self.now_ns))
        self._wake(host)

    def _make_pattern(self, host: _Host) -> None:
        host.has_pattern = True
        pattern = TopicPattern.of_prefix("orders")
        self._apply(host, host.machine.match(1, pattern, _WILDCARD, self.now_ns))
        self._wake(host)

    def _solicit(self, host: _Host, session: _Session, source: SourceMade) -> None:
        """Send a status message of a session without a position; its source answers to the group."""
        if session.is_active or host.sessions.get(source.address) is not session:
            return
        if self.random.random() >= self._loss:
            answered_ns = self.now_ns + 2 * self.random.randrange(self._delay_ns)
            self.at(answered_ns, lambda: self._reach_sessions(source))
        self.at(self.now_ns + _STATUS_INTERVAL_NS, lambda: self._solicit(host, session, source))

    def _reach_sessions(self, source: SourceMade) -> None:
        """Let a source send a datagram: sessions that receive it are no longer idle."""
        for other in self.hosts:
            session = other.sessions.get(source.address)
            if session is not None and self.random.random() >= self._loss:
                session.is_active = True

    def _send_data(self, source: SourceMade) -> None:
        """Send data, as a publishing source does."""
        self._reach_sessions(source)
        self.at(self.now_ns + 50 * _MS, lambda: self._send_data(source))

    def _every_interval(self, host: _Host) -> None:
        host.end_idle(self.now_ns)
        host.forget_ended(self.now_ns)
        self._wake(host)
        self.at(self.now_ns + _FORGET_INTERVAL_NS, lambda: self._every_interval(host))

    # Topic resolution of a host

    def _apply(self, host: _Host, events: list[ResolutionEvent]) -> None:
        before = dict(host.sessions)
        self.found += host.apply(events, self.now_ns)
        for source in self._sources:
            session = host.sessions.get(source.address)
            if session is not None and session is not before.get(source.address):
                self._solicit(host, session, source)

    def _wake(self, host: _Host) -> None:
        deadline_ns = host.machine.next_deadline_ns()
        if deadline_ns is None:
            return
        at_ns = max(deadline_ns, self.now_ns)
        planned_ns = self._wakes.get(id(host))
        if planned_ns is None or at_ns < planned_ns:
            self._wakes[id(host)] = at_ns
            self.at(at_ns, lambda: self._process(host, at_ns))

    def _process(self, host: _Host, planned_ns: int) -> None:
        if self._wakes.get(id(host)) != planned_ns:
            return  # an earlier wake-up replaced it
        del self._wakes[id(host)]
        self._apply(host, host.machine.left_topics(self.now_ns))
        datagrams = host.machine.datagrams_to_send(self.now_ns)
        host.sent(datagrams, self.now_ns)
        for datagram in datagrams:
            self.attacker.overhear(datagram)
            self._transmit(datagram)
        host.check()
        self._wake(host)

    def _transmit(self, datagram: bytes) -> None:
        self.datagrams += 1
        for host in self.hosts:
            if self.random.random() >= self._loss:
                arrives_ns = self.now_ns + self.random.randrange(self._delay_ns)
                self.at(arrives_ns, lambda host=host: self._receive(host, datagram))  # type: ignore[misc]

    def _receive(self, host: _Host, datagram: bytes) -> None:
        self._apply(host, host.machine.datagram_received(datagram, self.now_ns))
        host.check()
        self._wake(host)

    def _attack(self) -> None:
        self.forged += 1
        self._transmit(self.attacker.datagram())
        self.at(self.now_ns + _SECOND // self.attacker.rate_per_second, self._attack)

    def _look(self, host: _Host) -> None:
        """Check that the receiver has every source that it must have by now."""
        self.at(self.now_ns + 100 * _MS, lambda: self._look(host))
        for other in self.hosts:
            for source in other.sources:
                wanted_ns = host.wanted.get(source.topic)
                if wanted_ns is None:
                    continue
                session = host.sessions.get(source.address)
                if session is not None and (source.topic, source.index) in session.topics:
                    host.lacking_since_ns.pop(source, None)
                    continue
                since_ns = host.lacking_since_ns.setdefault(source, max(wanted_ns, source.since_ns))
                if self.now_ns - since_ns > CONVERGENCE_NS:
                    what = f"{source.topic[:10]}[{source.index}] of {other.ip}"
                    raise _Violation(f"{host.ip} has been missing {what} since {since_ns / 1e9:.1f} s")


def run_resolution_seed(seed: int, canary: ResolutionCanary = ResolutionCanary.NONE) -> ResolutionResult:
    """Run one seed."""
    world = _World(seed, canary)
    violation = ""
    try:
        world.run()
    except _Violation as error:
        violation = f"{world.now_ns / 1e9:.3f} s: {error}"
    except Exception as error:  # any error was caused by a datagram
        violation = f"{world.now_ns / 1e9:.3f} s: {type(error).__name__}: {error}"
    return ResolutionResult(seed, violation, world.datagrams, world.forged, world.found, world.digest)


def run_resolution_seeds(
    first: int, count: int | None = None, canary: ResolutionCanary = ResolutionCanary.NONE
) -> Iterator[ResolutionResult]:
    """Run `count` seeds from `first` on; forever if None."""
    seed = first
    while count is None or seed < first + count:
        yield run_resolution_seed(seed, canary)
        seed += 1
