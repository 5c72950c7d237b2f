"""Topic resolution as a state machine without I/O that accepts times and datagrams and returns datagrams and events.

Sources advertise, and receivers query (UX-14, UX-15). A source responds to a query immediately. Advertisements are
cached for later receivers (UX-16). Due records pass a rate limiter (UX-5) and share datagrams. A malformed datagram is
dropped and counted, and all state stored because of a datagram is bounded.

One file, because advertisements, queries and wildcard queries share one schedule and the same
rate-limited queues.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from umstack._engine.core_address import UNKNOWN_IP
from umstack._engine.transport_address import LbtipcAddress, TransportAddress
from umstack.config import ContextOptions, ReceiverOptions, SourceOptions, WildcardReceiverOptions
from umstack.errors import OptionError
from umstack.resolution.cache import Intake, KnownSource, ResolverCache
from umstack.resolution.codec import (
    Advertisement,
    OtherTransport,
    Rejected,
    RejectReason,
    RequestScope,
    ResolutionRequest,
    WildcardQuery,
    WireOption,
    decode,
    decode_advertisement,
    decode_topic_name,
    encode_advertisement,
    encode_query,
    encode_request,
    encode_wildcard_query,
    pack,
    pack_wildcard_queries,
)
from umstack.resolution.counters import ResolutionCounters
from umstack.resolution.limiter import Askers, ResolutionLimiter
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.schedule import EARLY_MAX_NS, Phase, PhaseSettings, PhaseTimer
from umstack.resolution.topic_name import encode_topic_name
from umstack.resolution.wildcards import TopicLeft, TopicMatched, WildcardTable

ADVERTISEMENT_TTL = 60
EXAMINED_MAX = 256
"""Maximum number of records that are examined whether they may be sent early."""
FINAL_TTL = 0
ANSWER_ALL_NS_PER_SOURCE = 100_000
"""Minimum interval between answers of every source, by the number of sources: 10,000 answers per second."""
ANSWER_ALL_MINIMUM_NS = 100_000_000


@dataclass(frozen=True, slots=True)
class SourceFound:
    """A source of a topic that has a receiver here was advertised for the first time, or for the first time by its
    session's own address."""

    topic: str
    index: int
    address: TransportAddress
    advertiser: str = UNKNOWN_IP
    """The address that the advertisement came from."""


@dataclass(frozen=True, slots=True)
class SourceGone:
    """A source of such a topic announced its end."""

    topic: str
    index: int
    address: TransportAddress


@dataclass(frozen=True, slots=True)
class Unanswered:
    """`queries` queries for a topic, or of wildcard receiver `key`, were sent, and no source is known."""

    topic: str
    key: int | None
    queries: int


ResolutionEvent = SourceFound | SourceGone | TopicMatched | TopicLeft | Unanswered


class _Kind(StrEnum):
    """The kind of a record."""

    ADVERTISEMENT = "advertisement"
    QUERY = "query"
    WILDCARD_QUERY = "wildcard query"


class _Record:
    """An encoded record with its timer and a flag that is true while the record is queued to be sent."""

    __slots__ = (
        "deferred",
        "encoded",
        "gone",
        "kind",
        "scheduled_ns",
        "subject",
        "timer",
        "unanswered",
        "waiting",
        "was_sent",
    )

    def __init__(self, encoded: bytes, timer: PhaseTimer, kind: _Kind, subject: str | int = "") -> None:
        """`subject` is the topic of a query, or the key of a wildcard query."""
        self.subject = subject
        self.unanswered = 0
        self.encoded = encoded
        self.timer = timer
        self.kind = kind
        self.scheduled_ns: int | None = None
        self.waiting = False
        self.was_sent = False
        self.deferred = False
        self.gone = False


class _AdvertisedSource:
    """A source of this context."""

    __slots__ = ("advertisement", "answers_queries", "has_final_advertisement", "options", "record")

    def __init__(self, advertisement: Advertisement, record: _Record, options: SourceOptions) -> None:
        self.advertisement = advertisement
        self.record = record
        self.options = options
        self.answers_queries = options.resolver_advertisement_send_immediate_response
        self.has_final_advertisement = options.resolver_send_final_advertisements


class _WantedTopic:
    """A topic of receivers of this context, and the sources reported to them."""

    __slots__ = ("ends_initial_phase", "known", "no_source_thresholds", "record", "threshold", "users")

    def __init__(self, record: _Record, threshold: int, *, ends_initial_phase: bool) -> None:
        self.no_source_thresholds: set[int] = set()
        self.record = record
        self.threshold = threshold
        self.ends_initial_phase = ends_initial_phase
        """True if the topic is queried less often once a source is known."""
        self.users = 1
        self.known: dict[KnownSource, str] = {}
        """The advertiser of each source."""


class _Queue:
    """Due records, which one rate limiter admits. Those never sent go first, so the repetitions of many topics do not
    delay the first record of another. Prompt answers take turns with the other records, so neither kind waits for all
    of the other."""

    __slots__ = ("_first", "_prompt", "_prompt_was_last", "_repeated", "limiter")

    def __init__(self, records_per_second: int, bits_per_second: int) -> None:
        self.limiter = ResolutionLimiter(records_per_second, bits_per_second)
        self._first: OrderedDict[_Record, None] = OrderedDict()
        self._prompt: OrderedDict[_Record, None] = OrderedDict()
        self._repeated: OrderedDict[_Record, None] = OrderedDict()
        self._prompt_was_last = False

    def __len__(self) -> int:
        return len(self._first) + len(self._prompt) + len(self._repeated)

    def append(self, record: _Record, *, is_prompt: bool) -> None:
        records = self._repeated if record.was_sent else self._first
        (self._prompt if is_prompt and record.was_sent else records)[record] = None

    def promote(self, record: _Record) -> None:
        """Make a repeated record that waits here a prompt one."""
        if record in self._repeated:
            del self._repeated[record]
            self._prompt[record] = None

    def next(self) -> _Record | None:
        """Return the record to send next, which stays in the queue."""
        while records := self._next_records():
            record = next(iter(records))
            if not record.gone:
                return record
            del records[record]
        return None

    def _next_records(self) -> OrderedDict[_Record, None]:
        if self._first or not self._prompt:
            return self._first or self._repeated
        return self._repeated if self._repeated and self._prompt_was_last else self._prompt

    def pop(self) -> None:
        """Remove the record that next() returned."""
        records = self._next_records()
        self._prompt_was_last = records is self._prompt
        records.popitem(last=False)

    def due_ns(self) -> int | None:
        """Return when the next record may be sent; None if there is none, 0 if it has not been refused yet."""
        record = self.next()
        return None if record is None else self.limiter.slice_end_ns if record.deferred else 0


class ResolutionMachine:
    """The topic resolution of one context. Not thread-safe; `now_ns` must not decrease."""

    def __init__(self, options: ContextOptions, datagram_maximum_bytes: int, now_ns: int) -> None:
        """`datagram_maximum_bytes` is the largest UDP payload to send."""
        self.counters = ResolutionCounters()
        self.datagram_maximum_bytes = datagram_maximum_bytes
        self._epoch_ns = now_ns
        self._sources: dict[str, dict[KnownSource, _AdvertisedSource]] = {}
        self._wanted: dict[str, _WantedTopic] = {}
        self._cache = ResolverCache(options.resolver_cache_maximum_entries)
        self._remembers = options.resolver_cache
        """True if sources advertised earlier are reported to new receivers."""
        self._sources_maximum = options.resolver_cache_maximum_entries
        self._reported: dict[KnownSource, None] = {}
        """Every source in a `known`, in the order of the last advertisements that the cache passed on."""
        self._topic_options: dict[KnownSource, tuple[WireOption, ...]] = {}
        self._timers: list[tuple[int, int, _Record]] = []
        self._timer_serial = 0
        self._last_start_ns: dict[_Kind, int] = {}
        self._final_advertisements: list[bytes] = []
        self._requests: list[bytes] = []
        self._unanswered: list[ResolutionEvent] = []
        self._wildcards = WildcardTable(self.counters, options.resolver_cache_maximum_entries)
        self._wildcard_records: dict[int, _Record] = {}
        self._askers = Askers()
        self._is_answering_all = False
        self._answer_all_ns = now_ns
        """When every source may be advertised again because a wildcard query or a request was received."""
        wildcard_queries = _Queue(
            options.resolver_wildcard_queries_per_second, options.resolver_wildcard_query_bps
        )
        self._queues = {
            (_Kind.WILDCARD_QUERY, Phase.INITIAL): wildcard_queries,
            (_Kind.WILDCARD_QUERY, Phase.SUSTAINING): wildcard_queries,
            (_Kind.ADVERTISEMENT, Phase.INITIAL): _Queue(
                options.resolver_initial_advertisements_per_second, options.resolver_initial_advertisement_bps
            ),
            (_Kind.ADVERTISEMENT, Phase.SUSTAINING): _Queue(
                options.resolver_sustain_advertisements_per_second, options.resolver_sustain_advertisement_bps
            ),
            (_Kind.QUERY, Phase.INITIAL): _Queue(
                options.resolver_initial_queries_per_second, options.resolver_initial_query_bps
            ),
            (_Kind.QUERY, Phase.SUSTAINING): _Queue(
                options.resolver_sustain_queries_per_second, options.resolver_sustain_query_bps
            ),
        }

    # Calls of the context

    def advertise(
        self,
        topic: str,
        index: int,
        address: TransportAddress,
        options: SourceOptions,
        now_ns: int,
        topic_options: tuple[WireOption, ...] = (),
    ) -> None:
        """Announce a source. Announcing it again restarts its schedule."""
        name = encode_topic_name(topic)
        key = KnownSource(topic, index, address)
        self._remove(key)
        if topic not in self._sources:
            self._cache.add_interest(name, has_source=True)
        advertisement = Advertisement(topic, index, ADVERTISEMENT_TTL, address, topic_options)
        timer = self._timer(PhaseSettings.for_advertisements(options), _Kind.ADVERTISEMENT, now_ns)
        record = _Record(encode_advertisement(advertisement), timer, _Kind.ADVERTISEMENT)
        self._sources.setdefault(topic, {})[key] = _AdvertisedSource(advertisement, record, options)
        self._schedule(record)

    def _timer(self, settings: PhaseSettings, kind: _Kind, now_ns: int) -> PhaseTimer:
        """Return a schedule that starts now. A record created less than a tick after another waits for the next tick,
        so that a thousand topics created together share datagrams."""
        last_ns, self._last_start_ns[kind] = self._last_start_ns.get(kind), now_ns
        follows = last_ns is not None and now_ns - last_ns < settings.initial_tick_ns
        return PhaseTimer(settings, now_ns, self._epoch_ns, waits_for_tick=follows)

    def move_sources(self, moved: Mapping[TransportAddress, TransportAddress], now_ns: int) -> None:
        """Announce the sources of sessions whose address has changed at the new one, by the former address."""
        for sources in list(self._sources.values()):
            for (topic, index, former), source in list(sources.items()):
                if former in moved:
                    self.withdraw(topic, index, former)
                    of_topic = source.advertisement.options
                    self.advertise(topic, index, moved[former], source.options, now_ns, of_topic)

    def withdraw(self, topic: str, index: int, address: TransportAddress) -> None:
        """Stop announcing a source, and announce its end if its options request it."""
        source = self._remove(KnownSource(topic, index, address))
        if source is not None and source.has_final_advertisement:
            final = Advertisement(topic, index, FINAL_TTL, address)
            self._final_advertisements.append(encode_advertisement(final))

    def _remove(self, key: KnownSource) -> _AdvertisedSource | None:
        sources = self._sources.get(key.topic, {})
        source = sources.pop(key, None)
        if source is not None:
            self._retire(source.record)
            if not sources:
                del self._sources[key.topic]
                self._cache.remove_interest(encode_topic_name(key.topic), has_source=True)
        return source

    def query(self, topic: str, options: ReceiverOptions, now_ns: int) -> list[ResolutionEvent]:
        """Look for sources of a topic; return those already known.

        Several receivers may query a topic: each gets all known sources, and the schedule restarts.
        """
        name = encode_topic_name(topic)
        ends_initial_phase = options.resolver_query_initial_until_resolved
        known = self._cache.sources_of(topic, name) if self._remembers else {}
        wanted = self._wanted.get(topic)
        is_resolved = ends_initial_phase and bool(known or (wanted and wanted.known))
        settings = PhaseSettings.for_queries(options, is_resolved=is_resolved)
        timer = self._timer(settings, _Kind.QUERY, now_ns)
        record = _Record(encode_query(topic), timer, _Kind.QUERY, topic)
        threshold = options.resolution_number_of_sources_query_threshold
        if wanted is None:
            wanted = _WantedTopic(record, threshold, ends_initial_phase=ends_initial_phase)
            self._wanted[topic] = wanted
            self._cache.add_interest(name, has_source=False)
            self.counters.tr_rcv_unresolved_topics += 1
        else:
            self._retire(wanted.record)
            wanted.record, wanted.threshold = record, max(threshold, wanted.threshold)
            wanted.ends_initial_phase = ends_initial_phase
            wanted.users += 1
        wanted.no_source_thresholds.add(options.resolution_no_source_notification_threshold)
        for source, advertiser in known.items():
            self._report(wanted, source, advertiser)
        if not self._remembers:
            self._cache.unsettle()  # the topic's next advertisements carry the missing sources
        if len(wanted.known) < wanted.threshold:
            self._schedule(record)
        return [SourceFound(*source, advertiser) for source, advertiser in wanted.known.items()]

    def stop_query(self, topic: str) -> None:
        """Remove one receiver of the topic; after the last one, its events are no longer reported."""
        wanted = self._wanted.get(topic)
        if wanted is None:
            return
        wanted.users -= 1
        if wanted.users == 0:
            del self._wanted[topic]
            self._cache.remove_interest(encode_topic_name(topic), has_source=False)
            for source in wanted.known:
                del self._reported[source]
            self.counters.tr_rcv_unresolved_topics -= not wanted.known
            self._retire(wanted.record)

    def match(
        self, key: int, pattern: TopicPattern, options: WildcardReceiverOptions, now_ns: int
    ) -> list[ResolutionEvent]:
        """Look for topics that match a pattern, for wildcard receiver `key`; return those already known.

        Raises OptionError with resolver_cache 0, because then no topics are remembered.
        """
        timer = self._timer(PhaseSettings.for_wildcard_queries(options), _Kind.WILDCARD_QUERY, now_ns)
        record = _Record(encode_wildcard_query(pattern.text), timer, _Kind.WILDCARD_QUERY, key)
        self._wildcard_records[key] = record
        self._schedule(record)
        self._cache.set_needs_all(True)
        self._cache.unsettle()  # undecided topics are decided when advertised again
        return list(self._wildcards.add(key, pattern, options, self.topics(), now_ns))

    def stop_matching(self, key: int) -> None:
        """Remove a wildcard receiver that has ended; nothing more is reported to it."""
        self._wildcards.remove(key)
        record = self._wildcard_records.pop(key, None)
        if record is not None:
            self._retire(record)
        self._cache.set_needs_all(bool(self._wildcard_records))

    def left_topics(self, now_ns: int) -> list[ResolutionEvent]:
        """Return the topics of wildcard receivers that have had no source for the timeout."""
        left = self._wildcards.left(now_ns)
        if left:
            self._cache.unsettle()  # these topics join again when they are advertised again
        return list(left)

    def forget_sessions(self, ended: Collection[TransportAddress] | None, now_ns: int) -> None:
        """Forget the sources of ended sessions so that their next advertisements are reported. None: too many sessions
        ended to list, so every reported source is forgotten.

        Their topics are queried again too, so that a source that was unreachable and has stopped advertising is
        rediscovered.
        """
        if ended is None:
            self._cache.unsettle()
        else:
            self._cache.discard_sessions(ended)
            for known in [one for one in self._topic_options if one.address in ended]:
                del self._topic_options[known]
        for wanted in self._wanted.values():
            lost = [known for known in wanted.known if ended is None or known.address in ended]
            for source in lost:
                self._unreport(wanted, source)
            if lost:
                wanted.record.timer.prolong(now_ns)
                self._schedule(wanted.record)

    def request_resolution(self) -> None:
        """Request that all processes advertise and query again, for example after an interface was down."""
        if not self._requests:
            self._requests.append(encode_request(RequestScope.QUERIES | RequestScope.ADVERTISEMENTS))

    def resend_all(self, now_ns: int) -> None:
        """Advertise and query everything, and request this of others: earlier datagrams may have been lost."""
        self._request_received(
            RequestScope.ADVERTISEMENTS | RequestScope.QUERIES | RequestScope.WILDCARD_QUERIES, now_ns
        )
        self.request_resolution()

    def topics(self) -> list[str]:
        """Return the topics of received advertisements. Any thread."""
        self._check_remembers()
        return self._cache.topics()

    def sources_of(self, topic: str) -> list[KnownSource]:
        """Return the sources in received advertisements of a topic. Any thread."""
        self._check_remembers()
        return list(self._cache.sources_of(topic, encode_topic_name(topic)))

    def _check_remembers(self) -> None:
        if not self._remembers:
            raise OptionError(
                "with resolver_cache 0 only topics with a receiver are known",
                hint="leave resolver_cache at 1",
            )

    def interest(self) -> dict[str, list[str]]:
        """Return the advertised topics, the queried topics, and the queried ones without a source. Any thread."""
        wanted = list(self._wanted.items())
        return {
            "advertised": list(self._sources),
            "queried": [topic for topic, _ in wanted],
            "unresolved": [topic for topic, one in wanted if not one.known],
            "patterns": self._wildcards.patterns(),
        }

    # Received records

    def datagram_received(self, data: bytes, now_ns: int, sender: str = UNKNOWN_IP) -> list[ResolutionEvent]:
        """Handle one datagram from an address. Never raises on its content."""
        self.counters.tr_dgrams_rcved += 1
        self.counters.tr_bytes_rcved += len(data)
        intake = self._cache.take(data, sender)
        if intake is not None:
            return self._records_received(intake, now_ns, sender)
        datagram = decode(data)
        if isinstance(datagram, WildcardQuery):
            self._wildcard_query_received(len(datagram.patterns), now_ns)
        elif isinstance(datagram, ResolutionRequest):
            self._request_received(datagram.scope, now_ns)
        elif isinstance(datagram, Rejected):
            self._count_drop(datagram)
        else:
            raise AssertionError(
                "the C decoder accepts a datagram of records that the Python decoder rejects"
            )
        return []

    def _records_received(self, intake: Intake, now_ns: int, sender: str) -> list[ResolutionEvent]:
        counters = self.counters
        counters.tr_queries_rcved += intake.query_count
        counters.tr_advertisements_rcved += intake.advertisement_count
        counters.tr_records_ignored += intake.ignored_count
        events: list[ResolutionEvent] = []
        for name in intake.queries:
            self._query_received(decode_topic_name(name), now_ns, sender)
        for raw in intake.advertisements:
            if self._advertisement_received(decode_advertisement(raw), now_ns, sender, events):
                self._cache.settle(raw)
        return events

    def _count_drop(self, datagram: Rejected) -> None:
        reason = datagram.reason
        if reason is RejectReason.VERSION:
            self.counters.tr_dgrams_dropped_ver += 1
        elif reason is RejectReason.TYPE:
            self.counters.tr_dgrams_dropped_type += 1
        else:
            self.counters.tr_dgrams_dropped_malformed += 1

    def _query_received(self, topic: str, now_ns: int, sender: str) -> None:
        sources = self._sources.get(topic)
        if not sources:
            return
        is_prompt = self._askers.takes_prompt_answer(sender, now_ns)
        self.counters.tr_queries_not_prompt += not is_prompt
        for source in sources.values():
            self._answer(source, now_ns, is_prompt=is_prompt)

    def _wildcard_query_received(self, count: int, now_ns: int) -> None:
        """Advertise every source within the rate limits: patterns from the network are never evaluated here."""
        self.counters.tr_wildcard_queries_rcved += count
        self._answer_all(now_ns)

    def _answer_all(self, now_ns: int) -> None:
        """Advertise every source, soon if that was done a moment ago: 20 forged bytes must not cost a pass
        over thousands of sources."""
        self._is_answering_all = True
        self._run_answer_all(now_ns)

    def _run_answer_all(self, now_ns: int) -> None:
        if not self._is_answering_all or now_ns < self._answer_all_ns:
            return
        self._is_answering_all = False
        count = sum(map(len, self._sources.values()))
        self._answer_all_ns = now_ns + max(ANSWER_ALL_MINIMUM_NS, count * ANSWER_ALL_NS_PER_SOURCE)
        for sources in self._sources.values():
            for source in sources.values():
                self._answer(source, now_ns, is_prompt=False)

    def _answer(self, source: _AdvertisedSource, now_ns: int, *, is_prompt: bool) -> None:
        if source.answers_queries:
            source.record.timer.answered(now_ns)
            self._enqueue(source.record, is_prompt=is_prompt)
        else:
            source.record.timer.prolong(now_ns)
        self._schedule(source.record)

    def _advertisement_received(
        self, advertisement: Advertisement, now_ns: int, sender: str, events: list[ResolutionEvent]
    ) -> bool:
        """Handle an advertisement of a joinable session; return true if repeating it would have no further effect."""
        address = advertisement.transport
        assert not isinstance(address, OtherTransport)
        source = KnownSource(advertisement.topic, advertisement.index, address)
        self._note_options(source, advertisement)
        wanted = self._wanted.get(advertisement.topic)
        if advertisement.ttl == FINAL_TTL:
            if wanted is not None and self._unreport(wanted, source):
                events.append(SourceGone(source.topic, source.topic_index, address))
            return False
        matched, is_decided = self._wildcards.advertised(advertisement.topic, now_ns)
        events += matched
        if wanted is None:
            return is_decided
        advertiser = wanted.known.get(source)
        if advertiser is not None:
            self._reported[source] = self._reported.pop(source)
            if (
                advertiser != sender
                and not isinstance(address, LbtipcAddress)
                and address.source_ip == sender
            ):
                wanted.known[source] = sender
                events.append(SourceFound(*source, sender))
            return is_decided
        self._report(wanted, source, sender)
        events.append(SourceFound(*source, sender))
        if len(wanted.known) >= wanted.threshold:
            wanted.record.timer.stop()
        elif wanted.ends_initial_phase:
            wanted.record.timer.resolved(now_ns)
        return is_decided

    def _note_options(self, source: KnownSource, advertisement: Advertisement) -> None:
        """Store the topic options of a source. The number of sources is bounded: at the limit, the one advertised
        longest ago is removed."""
        if advertisement.ttl == FINAL_TTL or not advertisement.options:
            self._topic_options.pop(source, None)
            return
        if (
            self._topic_options.pop(source, None) is None
            and len(self._topic_options) >= self._sources_maximum
        ):
            del self._topic_options[next(iter(self._topic_options))]
            self._cache.unsettle()  # store the removed one when it is advertised again
        self._topic_options[source] = advertisement.options

    def topic_options(self, topic: str, index: int, address: TransportAddress) -> tuple[WireOption, ...]:
        """Return the options of the source's newest advertisement."""
        return self._topic_options.get(KnownSource(topic, index, address), ())

    def _request_received(self, scope: RequestScope, now_ns: int) -> None:
        if RequestScope.ADVERTISEMENTS in scope:
            self._answer_all(now_ns)
        if RequestScope.WILDCARD_QUERIES in scope:
            for record in self._wildcard_records.values():
                self._enqueue(record)
        if RequestScope.QUERIES in scope:
            for wanted in self._wanted.values():
                if len(wanted.known) < wanted.threshold:
                    wanted.record.timer.answered(now_ns)
                    self._schedule(wanted.record)
                    self._enqueue(wanted.record)

    # Sending

    def datagrams_to_send(self, now_ns: int) -> list[bytes]:
        """Return the datagrams with all due records that the rate limits admit."""
        self._run_answer_all(now_ns)
        self._run_timers(now_ns)
        if any(due_ns <= now_ns for due_ns in self._queue_deadlines()):
            self._take_along(now_ns)
        elif not (self._final_advertisements or self._requests):
            return []
        due: dict[_Kind, list[bytes]] = {kind: [] for kind in _Kind}
        due[_Kind.ADVERTISEMENT], self._final_advertisements = self._final_advertisements, []
        requests, self._requests = self._requests, []
        for (kind, _), queue in self._queues.items():
            self._drain(queue, due[kind], now_ns)
        queries, wildcard_queries = due[_Kind.QUERY], due[_Kind.WILDCARD_QUERY]
        self.counters.tr_queries_sent += len(queries)
        self.counters.tr_wildcard_queries_sent += len(wildcard_queries)
        self.counters.tr_advertisements_sent += len(due[_Kind.ADVERTISEMENT])
        size = self.datagram_maximum_bytes
        return [
            *requests,
            *pack(queries, due[_Kind.ADVERTISEMENT], size),
            *pack_wildcard_queries(wildcard_queries, size),
        ]

    def next_deadline_ns(self) -> int | None:
        """Return when datagrams_to_send() will next return a datagram; None for never, 0 for now."""
        if self._final_advertisements or self._requests:
            return 0
        deadlines = self._queue_deadlines()
        while self._timers and self._timers[0][2].gone:
            heapq.heappop(self._timers)
        if self._timers:
            deadlines.append(self._timers[0][0])
        if self._is_answering_all:
            deadlines.append(self._answer_all_ns)
        deadlines += self._wildcards.deadlines()
        return min(deadlines, default=None)

    def _queue_deadlines(self) -> list[int]:
        found = (queue.due_ns() for queue in self._queues.values())
        return [due_ns for due_ns in found if due_ns is not None]

    def table_sizes(self) -> dict[str, int]:
        """Return the number of entries of each table, for checks."""
        return {
            "reported sources": len(self._reported),
            "topic options": len(self._topic_options),
            "cache": len(self._cache),
            "timers": len(self._timers),
            "queued records": sum(len(queue) for queue in self._queues.values()),
        }

    def stats(self) -> dict[str, int]:
        """Return every counter by name. Any thread."""
        counters = self.counters
        counters.tr_src_topics = len(self._sources)
        counters.tr_rcv_topics = len(self._wanted)
        if self._remembers:
            counters.tr_cache_entries = len(self._cache)
            counters.tr_cache_evictions = self._cache.eviction_count
        return counters.as_dict()

    def _run_timers(self, now_ns: int) -> None:
        while self._timers and self._timers[0][0] <= now_ns:
            scheduled_ns, _, record = heapq.heappop(self._timers)
            if record.gone or record.scheduled_ns != scheduled_ns:
                continue
            record.scheduled_ns = None
            deadline_ns = record.timer.deadline_ns
            if deadline_ns is not None and deadline_ns <= now_ns:
                if record.waiting:
                    continue  # already queued; _drain continues its schedule
                self._enqueue(record)
            self._resume(record, now_ns)

    def _take_along(self, now_ns: int) -> None:
        """Queue the records that may be sent early, because datagrams are being sent anyway.

        A bounded number is examined, because more fill datagrams of their own.
        """
        later = []
        examined = 0
        while self._timers and self._timers[0][0] <= now_ns + EARLY_MAX_NS and examined < EXAMINED_MAX:
            examined += 1
            entry = heapq.heappop(self._timers)
            scheduled_ns, _, record = entry
            if record.gone or record.scheduled_ns != scheduled_ns:
                continue
            if record.waiting or not record.timer.may_go(now_ns):
                later.append(entry)
                continue
            record.scheduled_ns = None
            self._enqueue(record)
            record.timer.fire(now_ns)
            self._schedule(record)
        for entry in later:
            heapq.heappush(self._timers, entry)

    def _drain(self, queue: _Queue, out: list[bytes], now_ns: int) -> None:
        while (record := queue.next()) is not None:
            if not queue.limiter.admit(len(record.encoded), now_ns):
                if not record.deferred:
                    record.deferred = True
                    self.counters.tr_records_deferred += 1
                return
            queue.pop()
            record.waiting = record.deferred = False
            record.was_sent = True
            out.append(record.encoded)
            if record.kind is not _Kind.ADVERTISEMENT:
                self._note_unanswered(record)
            if record.scheduled_ns is None:
                self._resume(record, now_ns)

    def _note_unanswered(self, record: _Record) -> None:
        """Count a query that is sent, and report unanswered ones at each multiple of a receiver's threshold."""
        if isinstance(record.subject, int):
            key, topic = record.subject, ""
            thresholds = self._wildcards.no_source_thresholds(key)
        else:
            key, topic = None, record.subject
            wanted = self._wanted.get(topic)
            thresholds = wanted.no_source_thresholds if wanted is not None and not wanted.known else set()
        if not thresholds:
            record.unanswered = 0
            return
        record.unanswered += 1
        if any(one and record.unanswered % one == 0 for one in thresholds):
            self._unanswered.append(Unanswered(topic, key, record.unanswered))

    def take_unanswered(self) -> list[ResolutionEvent]:
        """Return the topics and patterns without a source whose queries reached a threshold since the last call."""
        found, self._unanswered = self._unanswered, []
        return found

    def _resume(self, record: _Record, now_ns: int) -> None:
        """Continue the schedule of a record that was sent or became due again while queued."""
        deadline_ns = record.timer.deadline_ns
        if deadline_ns is not None and deadline_ns <= now_ns:
            record.timer.fire(now_ns)
        self._schedule(record)

    def _enqueue(self, record: _Record, *, is_prompt: bool = False) -> None:
        if not record.waiting:
            record.waiting = True
            phase = Phase.INITIAL if record.timer.phase is Phase.INITIAL else Phase.SUSTAINING
            self._queues[record.kind, phase].append(record, is_prompt=is_prompt)
        elif is_prompt:
            for phase in (Phase.INITIAL, Phase.SUSTAINING):
                self._queues[record.kind, phase].promote(record)

    def _schedule(self, record: _Record) -> None:
        """Schedule a check of the record by its deadline. An earlier check remains: it finds nothing due and is
        repeated."""
        deadline_ns = record.timer.deadline_ns
        if deadline_ns is None or (record.scheduled_ns is not None and record.scheduled_ns <= deadline_ns):
            return
        record.scheduled_ns = deadline_ns
        self._timer_serial += 1
        heapq.heappush(self._timers, (deadline_ns, self._timer_serial, record))

    @staticmethod
    def _retire(record: _Record) -> None:
        record.gone = True
        record.timer.stop()

    def _report(self, wanted: _WantedTopic, source: KnownSource, advertiser: str) -> None:
        """Remember a source of a topic, in place of the first in `_reported` if there is no space."""
        if source in wanted.known:
            return
        self.counters.tr_rcv_unresolved_topics -= not wanted.known
        wanted.record.unanswered = 0
        self._wildcards.has_source(source.topic)
        wanted.known[source] = advertiser
        self._reported[source] = None
        if len(self._reported) > self._sources_maximum:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget a reported source, which is received all the same. Its next advertisement is reported again.

        It is not queried: with more sources than there is space for, each answer would be the next one's query. Only
        wildcard receivers, which leave a topic without sources, have to find it again.
        """
        self.counters.tr_sources_refused += 1
        oldest = next(iter(self._reported))
        wanted = self._wanted[oldest.topic]
        self._unreport(wanted, oldest)
        if self._wildcards.is_sourceless(oldest.topic):
            self._enqueue(wanted.record)
        self._cache.unsettle()

    def _unreport(self, wanted: _WantedTopic, source: KnownSource) -> bool:
        if source not in wanted.known:
            return False
        del wanted.known[source]
        del self._reported[source]
        self.counters.tr_rcv_unresolved_topics += not wanted.known
        if not wanted.known:
            self._wildcards.lost_last_source(source.topic)
        return True
