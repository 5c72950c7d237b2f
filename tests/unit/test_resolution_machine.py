"""Topic resolution without I/O, in virtual time: discovery, answers, cache, limits, hostile input."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from time import monotonic

import pytest

from umstack.config import Config, ContextOptions
from umstack.errors import OptionError, TopicNameError
from umstack.resolution.codec import (
    Advertisement,
    LbtrmAddress,
    OtherTransport,
    RequestScope,
    ResolutionDatagram,
    WildcardQuery,
    WireOption,
    decode,
    encode,
    encode_request,
    encode_wildcard_query,
    pack_wildcard_queries,
)
from umstack.resolution.machine import (
    ResolutionMachine,
    SourceFound,
    SourceGone,
)
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.schedule import PhaseTimer
from umstack.resolution.wildcards import TopicLeft, TopicMatched

MS = 1_000_000
SECOND = 1000 * MS
ADDRESS = LbtrmAddress("10.9.0.1", "224.10.10.10", 0x5EED0001, 14400, 14390)
SOURCE = Config().source_options()
RECEIVER = Config().receiver_options()


def machine(size: int = 1472, **options: int) -> ResolutionMachine:
    return ResolutionMachine(Config().context_options(**options), size, now_ns=0)


def run(resolver: ResolutionMachine, start_ns: int, end_ns: int) -> Iterator[tuple[int, ResolutionDatagram]]:
    """Wake the machine exactly at its deadlines; yield its datagrams with the time in ms."""
    now_ns = start_ns
    while True:
        for data in resolver.datagrams_to_send(now_ns):
            assert len(data) <= resolver.datagram_maximum_bytes
            datagram = decode(data)
            assert isinstance(datagram, ResolutionDatagram)
            yield now_ns // MS, datagram
        deadline_ns = resolver.next_deadline_ns()
        if deadline_ns is None or deadline_ns > end_ns:
            return
        assert deadline_ns > now_ns, "a deadline that makes no progress"
        now_ns = deadline_ns


def advertised(*topics: str, ttl: int = 60, address: LbtrmAddress = ADDRESS) -> bytes:
    records = (Advertisement(topic, number, ttl, address) for number, topic in enumerate(topics))
    return encode(ResolutionDatagram(advertisements=tuple(records)))


def query_for(*topics: str) -> bytes:
    return encode(ResolutionDatagram(queries=topics))


def test_a_source_is_advertised_on_schedule() -> None:
    """UX-14: the machine sends exactly by the schedule, and then stops."""
    resolver = machine()
    resolver.advertise("orders", 3, ADDRESS, SOURCE, 0)
    sent = list(run(resolver, 0, 10**12))
    assert [time for time, _ in sent[:9]] == [0, 10, 30, 70, 150, 310, 630, 1130, 1630]
    assert [time for time, _ in sent][-1] == 65000
    assert {datagram.advertisements for _, datagram in sent} == {(Advertisement("orders", 3, 60, ADDRESS),)}
    assert resolver.next_deadline_ns() is None
    assert resolver.stats()["tr_advertisements_sent"] == len(sent)


def test_a_receiver_queries_on_schedule() -> None:
    """UX-14: a receiver sends queries by the schedule."""
    resolver = machine()
    assert resolver.query("orders", RECEIVER, 0) == []
    times = [time for time, datagram in run(resolver, 0, 10**12) if datagram.queries == ("orders",)]
    assert times[:6] == [0, 20, 60, 140, 300, 500]
    assert times[-1] == 65000


def test_a_topic_with_a_source_is_queried_less_often() -> None:
    """resolver_query_initial_until_resolved: the sustaining phase starts once a source is known, and with 0 only
    after the initial phase (UX-14); a second source is still found."""
    for option, expected in ((1, [0, 20, *range(1100, 3000, 1000)]), (0, [0, 20, 60, 140, 300])):
        resolver = machine()
        options = Config().receiver_options(resolver_query_initial_until_resolved=option)
        resolver.query("orders", options, 0)
        times = [time for time, _ in run(resolver, 0, 50 * MS)]
        resolver.datagram_received(advertised("orders"), 55 * MS)
        times += [time for time, _ in run(resolver, 55 * MS, 3000 * MS)]
        assert times[: len(expected)] == expected
        elsewhere = ADDRESS._replace(session_id=9)
        found = resolver.datagram_received(advertised("orders", address=elsewhere), 3000 * MS)
        assert found == [SourceFound("orders", 0, elsewhere)]


def test_a_known_topic_is_queried_once_and_then_sustained() -> None:
    """UX-16: the cache knows the source; the query finds others."""
    resolver = machine()
    resolver.datagram_received(advertised("orders"), 0)
    assert len(resolver.query("orders", RECEIVER, 5 * MS)) == 1
    times = [time for time, _ in run(resolver, 5 * MS, 10**12)]
    assert times[:3] == [5, 1100, 2100]
    assert times[-1] == 60100


def test_discovery_reports_a_source_once() -> None:
    """UM-6: the advertisement carries everything needed to join; repeats are not reported."""
    resolver = machine()
    resolver.query("orders", RECEIVER, 0)
    assert resolver.stats()["tr_rcv_unresolved_topics"] == 1
    found = resolver.datagram_received(advertised("orders", "other"), 5)
    assert found == [SourceFound("orders", 0, ADDRESS)]
    assert resolver.datagram_received(advertised("orders"), 6) == []
    elsewhere = ADDRESS._replace(session_id=9)
    assert resolver.datagram_received(advertised("orders", address=elsewhere), 7) == [
        SourceFound("orders", 0, elsewhere)
    ]
    stats = resolver.stats()
    assert (stats["tr_rcv_topics"], stats["tr_rcv_unresolved_topics"]) == (1, 0)


def test_a_query_is_answered_at_once_and_restarts_sustaining() -> None:
    """UX-14: in the quiescent phase, one answer is sent immediately and then 60 more, one per second."""
    resolver = machine()
    resolver.advertise("orders", 3, ADDRESS, SOURCE, 0)
    list(run(resolver, 0, 100 * SECOND))
    now = 100 * SECOND + 7 * MS
    resolver.datagram_received(query_for("trades"), now)
    assert resolver.next_deadline_ns() is None
    resolver.datagram_received(query_for("orders", "orders", "orders"), now)
    assert resolver.next_deadline_ns() == 0
    times = [time for time, _ in run(resolver, now, 10**12)]
    assert times == [100_007, *range(101_100, 160_101, 1000)]


def test_a_query_in_the_initial_phase_does_not_disturb_it() -> None:
    """UX-14: a query in the initial phase does not change that phase."""
    resolver = machine()
    resolver.advertise("orders", 3, ADDRESS, SOURCE, 0)
    before = [time for time, _ in run(resolver, 0, 200 * MS)]
    resolver.datagram_received(query_for("orders"), 203 * MS)
    after = [time for time, _ in run(resolver, 203 * MS, 1200 * MS)]
    assert before + after == [0, 10, 30, 70, 150, 203, 310, 630, 1130]


def test_answers_can_be_switched_off() -> None:
    """With resolver_advertisement_send_immediate_response 0, a query only restarts the sustaining phase."""
    resolver = machine()
    quiet = Config().source_options(resolver_advertisement_send_immediate_response=0)
    resolver.advertise("orders", 3, ADDRESS, quiet, 0)
    list(run(resolver, 0, 100 * SECOND))
    resolver.datagram_received(query_for("orders"), 100 * SECOND)
    assert [time for time, _ in run(resolver, 100 * SECOND, 102 * SECOND)] == [101_000, 102_000]


def test_a_new_receiver_finds_cached_sources_at_once() -> None:
    """UX-16: the cache has sources of topics without receivers; without the cache a query is needed."""
    with_cache, without = machine(), machine(resolver_cache=0)
    for resolver in (with_cache, without):
        assert resolver.datagram_received(advertised("orders"), 0) == []
    assert with_cache.query("orders", RECEIVER, 1) == [SourceFound("orders", 0, ADDRESS)]
    assert without.query("orders", RECEIVER, 1) == []
    assert with_cache.stats()["tr_cache_entries"] == 1


def test_queries_stop_at_the_source_threshold() -> None:
    """UX-16: resolution_number_of_sources_query_threshold."""
    resolver = machine()
    options = Config().receiver_options(
        resolution_number_of_sources_query_threshold=2, resolver_query_initial_until_resolved=0
    )
    resolver.query("orders", options, 0)
    resolver.datagram_received(advertised("orders"), 0)
    assert [time for time, _ in run(resolver, 0, 60 * MS)] == [0, 20, 60]
    resolver.datagram_received(advertised("orders", address=ADDRESS._replace(session_id=9)), 61 * MS)
    assert list(run(resolver, 61 * MS, 10**12)) == []


def test_queries_do_not_start_when_the_cache_reaches_the_threshold() -> None:
    """UX-16: no queries start if the cache reaches the threshold."""
    resolver = machine()
    resolver.datagram_received(advertised("orders"), 0)
    options = Config().receiver_options(resolution_number_of_sources_query_threshold=1)
    assert len(resolver.query("orders", options, 0)) == 1
    assert list(run(resolver, 0, 10**12)) == []


def test_several_receivers_of_a_topic_share_one_query() -> None:
    """One query serves all receivers of a topic; closing the last one ends it."""
    resolver = machine()
    resolver.query("orders", RECEIVER, 0)
    resolver.datagram_received(advertised("orders"), 0)
    assert resolver.query("orders", RECEIVER, 1) == [SourceFound("orders", 0, ADDRESS)]
    resolver.stop_query("orders")
    assert resolver.stats()["tr_rcv_topics"] == 1
    resolver.stop_query("orders")
    resolver.stop_query("orders")
    assert resolver.stats()["tr_rcv_topics"] == 0
    assert resolver.datagram_received(advertised("orders", address=ADDRESS._replace(session_id=9)), 2) == []
    assert list(run(resolver, 2, 10**12)) == []


def test_an_ended_session_is_queried_and_rediscovered() -> None:
    """UM-106: receivers outlive sessions and match later sources, also after an outage."""
    resolver = machine()
    resolver.query("orders", RECEIVER, 0)
    resolver.datagram_received(advertised("orders"), 0)
    list(run(resolver, 0, 100 * SECOND))
    resolver.forget_sessions({ADDRESS}, 100 * SECOND)
    assert resolver.stats()["tr_rcv_unresolved_topics"] == 1
    assert [time for time, _ in run(resolver, 100 * SECOND, 102 * SECOND)] == [101_000, 102_000]
    assert resolver.datagram_received(advertised("orders"), 103 * SECOND) == [
        SourceFound("orders", 0, ADDRESS)
    ]


def test_a_topic_whose_sessions_end_again_and_again_is_queried() -> None:
    """A session that ends every half second does not postpone the queries, which are sent every second."""
    resolver = machine()
    resolver.query("orders", RECEIVER, 0)
    resolver.datagram_received(advertised("orders"), 0)
    queries = 0
    for now_ns in range(SECOND // 2, 30 * SECOND, SECOND // 2):
        queries += sum(bool(one.queries) for _, one in run(resolver, now_ns - SECOND // 2 + 1, now_ns))
        resolver.datagram_received(advertised("orders"), now_ns)
        resolver.forget_sessions({ADDRESS}, now_ns)
    assert queries >= 29


def test_a_source_that_does_not_answer_is_advertised_in_spite_of_queries() -> None:
    """resolver_advertisement_send_immediate_response 0: the queries of two receivers postpone no record that is due."""
    resolver = machine()
    options = Config().source_options(resolver_advertisement_send_immediate_response=0)
    resolver.advertise("orders", 0, ADDRESS, options, 0)
    list(run(resolver, 0, 90 * SECOND))
    times: list[int] = []
    for now_ns in range(90 * SECOND, 120 * SECOND, SECOND // 2):
        resolver.datagram_received(query_for("orders"), now_ns)
        times += [time for time, _ in run(resolver, now_ns, now_ns + SECOND // 2 - 1)]
    assert times == [*range(91_000, 120_000, 1000)]


def test_a_final_advertisement_ends_a_source() -> None:
    """UM-103: with resolver_send_final_advertisements, the default, receivers learn of the deletion immediately."""
    publisher, subscriber = machine(), machine()
    polite = Config().source_options(resolver_send_final_advertisements=1)
    publisher.advertise("orders", 0, ADDRESS, polite, 0)
    subscriber.query("orders", RECEIVER, 0)
    (first,) = publisher.datagrams_to_send(0)
    assert subscriber.datagram_received(first, 1) == [SourceFound("orders", 0, ADDRESS)]
    publisher.withdraw("orders", 0, ADDRESS)
    assert publisher.next_deadline_ns() == 0
    (last,) = publisher.datagrams_to_send(2)
    assert subscriber.datagram_received(last, 3) == [SourceGone("orders", 0, ADDRESS)]
    assert subscriber.datagram_received(last, 3) == []
    assert subscriber.stats()["tr_cache_entries"] == 0
    assert publisher.next_deadline_ns() is None


def test_a_withdrawn_source_sends_and_answers_nothing() -> None:
    """By default only its final advertisement; without final advertisements, nothing."""
    resolver = machine()
    resolver.advertise("orders", 0, ADDRESS, SOURCE, 0)
    resolver.withdraw("orders", 0, ADDRESS)
    assert [[one.ttl for one in sent.advertisements] for _, sent in run(resolver, 0, SECOND)] == [[0]]
    silent = Config().source_options(resolver_send_final_advertisements=0)
    resolver.advertise("orders", 0, ADDRESS, silent, 0)
    resolver.withdraw("orders", 0, ADDRESS)
    resolver.withdraw("orders", 0, ADDRESS)
    resolver.datagram_received(query_for("orders"), 1)
    assert list(run(resolver, 1, 10**12)) == []
    assert resolver.stats()["tr_src_topics"] == 0


def test_many_topics_share_datagrams_within_the_initial_limit() -> None:
    """UX-5: 1000 topics at 1000 per second, 100 ms slices, several records per datagram, each topic served."""
    resolver = machine(resolver_initial_advertisements_per_second=1000, resolver_initial_advertisement_bps=0)
    for number in range(1000):
        resolver.advertise(f"topic.{number:04}", number, ADDRESS, SOURCE, 0)
    sent = list(run(resolver, 0, 999 * MS))
    per_slice = [sum(len(d.advertisements) for t, d in sent if t // 100 == n) for n in range(10)]
    assert per_slice == [100] * 10
    assert {a.topic for _, d in sent for a in d.advertisements} == {f"topic.{n:04}" for n in range(1000)}
    assert max(len(d.advertisements) for _, d in sent) > 20
    assert resolver.stats()["tr_records_deferred"] > 0


def test_a_record_delayed_by_the_limit_keeps_its_schedule() -> None:
    """UX-5, UX-14: 300 topics at 100 per second are late, but sustain and end at their normal times."""
    resolver = machine(resolver_initial_advertisements_per_second=100)
    for number in range(300):
        resolver.advertise(f"topic.{number}", number, ADDRESS, SOURCE, 0)
    sent: dict[str, list[int]] = {}
    for time, datagram in run(resolver, 0, 10**12):
        for advertisement in datagram.advertisements:
            sent.setdefault(advertisement.topic, []).append(time)
    assert len(sent) == 300
    for times in sent.values():
        sustaining = [time for time in times if time >= 9000]
        assert sustaining == list(range(9000, 65001, 1000))


def test_bits_per_second_are_limited() -> None:
    """UX-5: 1 Mbit/s in the sustaining phase, exceeded by less than one record per slice."""
    resolver = machine(size=1000)
    options = Config().source_options(resolver_advertisement_minimum_initial_interval=0)
    for number in range(2000):
        resolver.advertise(f"{'x' * 100}{number:04}", number, ADDRESS, options, 0)
    sent = [(t, len(encode(d))) for t, d in run(resolver, 0, 10 * SECOND)]
    for second in range(10):
        total = sum(size for time, size in sent if time // 1000 == second)
        assert total <= 125_000 + 10 * 129 + 4 * 200
        assert total >= 100_000


@pytest.mark.parametrize("phase", ["initial", "sustain"])
def test_queries_have_a_separate_limit(phase: str) -> None:
    """UX-5: advertisements do not use the quota of queries."""
    resolver = machine(**{f"resolver_{phase}_queries_per_second": 100})
    options = Config().receiver_options(
        **({} if phase == "initial" else {"resolver_query_minimum_initial_interval": 0})
    )
    for number in range(500):
        resolver.query(f"topic.{number}", options, 0)
        resolver.advertise(f"topic.{number}", number, ADDRESS, SOURCE, 0)
    start_ms = 0 if phase == "initial" else 1000
    sent = list(run(resolver, 0, start_ms * MS + 1999 * MS))
    first_ms = next(time for time, datagram in sent if datagram.queries)
    assert start_ms * 3 // 4 <= first_ms <= start_ms, "at most a quarter early, together with others"
    assert sum(len(datagram.queries) for time, datagram in sent if time < first_ms + 2000) == 200
    assert len({q for _, datagram in sent for q in datagram.queries}) > 100


def test_the_first_records_of_many_topics_are_not_delayed_by_repeated_ones() -> None:
    """UX-14: topics created one after the other are advertised once before any is repeated beyond the limit."""
    resolver = machine(resolver_initial_advertisements_per_second=500)
    seen: dict[str, int] = {}
    for number in range(1000):  # one each millisecond
        resolver.advertise(f"topic.{number}", number, ADDRESS, SOURCE, number * MS)
        for data in resolver.datagrams_to_send(number * MS):
            datagram = decode(data)
            assert isinstance(datagram, ResolutionDatagram)
            for one in datagram.advertisements:
                seen.setdefault(one.topic, number)
    for time, datagram in run(resolver, SECOND, 3 * SECOND):
        for one in datagram.advertisements:
            seen.setdefault(one.topic, time)
    assert len(seen) == 1000
    assert max(seen.values()) <= 2000 + 100


def test_records_beyond_the_limit_cost_nothing_until_they_may_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cost of creating many topics is counted: timers examined grow with the topics, not with their square."""
    examined = 0
    may_go = PhaseTimer.may_go

    def counted(self: PhaseTimer, now_ns: int) -> bool:
        nonlocal examined
        examined += 1
        return may_go(self, now_ns)

    monkeypatch.setattr(PhaseTimer, "may_go", counted)
    resolver = machine()
    for number in range(5000):
        resolver.query(f"topic.{number}", RECEIVER, number * MS // 5)
        resolver.datagrams_to_send(number * MS // 5)
    assert len(list(run(resolver, SECOND, 2 * SECOND))) < 100
    assert examined <= 2 * 5000
    assert resolver.counters.tr_queries_sent >= 5000


def test_a_flood_of_queries_is_answered_within_the_limit() -> None:
    """Hostile input: 200 datagrams of 255 queries produce no more answers than the advertisement limit allows."""
    resolver = machine()
    for number in range(255):
        resolver.advertise(f"t{number}", number, ADDRESS, SOURCE, 0)
    list(run(resolver, 0, 100 * SECOND))
    flood = query_for(*(f"t{number}" for number in range(255)))
    sent_bytes = 0
    for millisecond in range(200):
        now = 100 * SECOND + millisecond * MS
        resolver.datagram_received(flood, now)
        sent_bytes += sum(map(len, resolver.datagrams_to_send(now)))
    assert 12_500 < sent_bytes <= 2 * 12_600
    assert len(resolver._timers) <= 255


def test_a_newcomer_is_answered_while_another_queries_every_topic() -> None:
    """Attack: 2,000 topics are queried again and again. Another address is answered within two slices of the limit,
    where all repetitions need a second; and the repetitions go on, in turns with a thousand forged newcomers."""
    resolver, topics = machine(), [f"a.longer.topic.name.{number}" for number in range(2000)]
    for number, topic in enumerate(topics):
        resolver.advertise(topic, number, ADDRESS, SOURCE, 0)
    list(run(resolver, 0, 200 * SECOND))
    flood = [query_for(*topics[start : start + 200]) for start in range(0, 2000, 200)]
    forged = [(query_for(topics[number]), f"10.8.{number // 250}.{number % 250}") for number in range(1000)]
    asked_ms, wanted = 1000, topics[1500]
    answered_ms: list[int] = []
    repeated: set[str] = set()
    for time_ms in range(0, 2500, 50):
        now = 300 * SECOND + time_ms * MS
        for datagram in flood:
            resolver.datagram_received(datagram, now, "10.9.9.9")
        for datagram, sender in forged if time_ms > asked_ms + 500 else []:
            resolver.datagram_received(datagram, now, sender)
        if time_ms == asked_ms:
            resolver.datagram_received(query_for(wanted), now, "10.9.9.7")
        for data in resolver.datagrams_to_send(now):
            answer = decode(data)
            assert isinstance(answer, ResolutionDatagram)
            names = {one.topic for one in answer.advertisements}
            answered_ms += [time_ms] * (wanted in names and time_ms >= asked_ms)
            repeated |= names.intersection(topics[1000:]) if time_ms > asked_ms + 500 else set()
    assert answered_ms[0] <= asked_ms + 200
    assert len(repeated) > 500
    assert resolver.counters.tr_queries_not_prompt > 90_000
    assert sum(len(queue) for queue in resolver._queues.values()) <= 2000


def test_a_flood_that_asks_for_every_source_costs_few_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack: a wildcard query or a request of a few bytes has each source answer, ten times per second at most, and
    the last query of a flood is still answered."""
    resolver, answered = machine(), 0
    for number in range(100):
        resolver.advertise(f"t{number}", number, ADDRESS, SOURCE, 0)
    list(run(resolver, 0, 100 * SECOND))
    original = PhaseTimer.answered

    def counted(self: PhaseTimer, now_ns: int) -> None:
        nonlocal answered
        answered += 1
        original(self, now_ns)

    monkeypatch.setattr(PhaseTimer, "answered", counted)
    (wildcard,) = pack_wildcard_queries([encode_wildcard_query(".*")], 1472)
    request = encode_request(RequestScope.ADVERTISEMENTS)
    for millisecond in range(1000):
        now = 100 * SECOND + millisecond * MS
        resolver.datagram_received(request if millisecond % 2 else wildcard, now)
        resolver.datagrams_to_send(now)
    assert 9 * 100 <= answered <= 11 * 100
    last = [datagram for time, datagram in run(resolver, now, now + SECOND) if time > 100_999]
    assert len({one.topic for datagram in last for one in datagram.advertisements}) == 100


def test_a_resolution_request_makes_all_contexts_send() -> None:
    """A context sends its request after its interface was down; the other contexts advertise and query."""
    quiet, asking = machine(), machine()
    quiet.advertise("orders", 0, ADDRESS, SOURCE, 0)
    quiet.query("trades", RECEIVER, 0)
    list(run(quiet, 0, 100 * SECOND))
    asking.request_resolution()
    asking.request_resolution()
    assert asking.next_deadline_ns() == 0
    (request,) = asking.datagrams_to_send(0)
    assert request == encode_request(RequestScope.QUERIES | RequestScope.ADVERTISEMENTS)
    quiet.datagram_received(request, 100 * SECOND)
    ((_, answer),) = run(quiet, 100 * SECOND, 100 * SECOND)
    assert answer.queries == ("trades",)
    assert [a.topic for a in answer.advertisements] == ["orders"]


def test_re_advertising_restarts_the_schedule() -> None:
    resolver = machine()
    resolver.advertise("orders", 0, ADDRESS, SOURCE, 0)
    list(run(resolver, 0, 70 * MS))
    resolver.advertise("orders", 0, ADDRESS, SOURCE, 100 * MS)
    assert [time for time, _ in run(resolver, 100 * MS, 200 * MS)] == [100, 110, 130, 170]


@pytest.mark.parametrize(
    "address",
    [
        ADDRESS._replace(group="10.0.0.1"),
        ADDRESS._replace(source_ip="0.0.0.0"),
        ADDRESS._replace(source_ip="255.255.255.255"),
        ADDRESS._replace(source_ip="224.0.0.1"),
        ADDRESS._replace(session_id=0),
        ADDRESS._replace(destination_port=0),
        ADDRESS._replace(nak_port=0),
    ],
)
def test_advertisements_that_cannot_be_joined_are_ignored(address: LbtrmAddress) -> None:
    """Hostile input: well-formed nonsense is counted, not reported."""
    resolver = machine()
    resolver.query("orders", RECEIVER, 0)
    assert resolver.datagram_received(advertised("orders", address=address), 0) == []
    assert resolver.stats()["tr_records_ignored"] == 1


def test_other_transports_are_ignored() -> None:
    resolver = machine()
    resolver.query("orders", RECEIVER, 0)
    other = Advertisement("orders", 1, 60, OtherTransport(0, bytes(6)))
    assert resolver.datagram_received(encode(ResolutionDatagram(advertisements=(other,))), 0) == []
    assert resolver.stats()["tr_records_ignored"] == 1


def test_drops_are_counted_by_reason() -> None:
    """Dropped datagrams count in tr_dgrams_dropped_ver, _type and _malformed, and always as received."""
    resolver = machine()
    for data in (b"\x20\0\0\0", b"\x02\0\0\0", bytes.fromhex("01010000015e4d00"), b"\0\x01\0\0", b""):
        assert resolver.datagram_received(data, 0) == []
    stats = resolver.stats()
    assert (
        stats["tr_dgrams_dropped_ver"],
        stats["tr_dgrams_dropped_type"],
        stats["tr_dgrams_dropped_malformed"],
    ) == (1, 1, 2)
    assert (stats["tr_dgrams_rcved"], stats["tr_bytes_rcved"]) == (5, 20)


def test_forged_sources_cannot_grow_memory() -> None:
    """Hostile input: resolver_cache_maximum_entries bounds the cache and the reported sources."""
    resolver = machine(resolver_cache_maximum_entries=100)
    resolver.query("orders", RECEIVER, 0)
    found = 0
    for session in range(1, 1001):
        found += len(
            resolver.datagram_received(
                advertised("orders", f"t{session}", address=ADDRESS._replace(session_id=session)), 0
            )
        )
    stats = resolver.stats()
    assert found == 1000
    assert resolver.table_sizes()["reported sources"] == 100
    assert stats["tr_sources_refused"] == 900
    assert (stats["tr_cache_entries"], stats["tr_cache_evictions"]) == (100, 1900)


def test_new_sources_replace_the_one_advertised_longest_ago() -> None:
    """resolver_cache_maximum_entries: it is reported again when it is advertised, so that forged sources keep none
    out. It is not queried: more sources than the maximum would answer each other's queries without end."""
    resolver = machine(resolver_cache_maximum_entries=2)
    sources = [ADDRESS._replace(session_id=1 + number) for number in range(3)]
    topics = [f"orders.{number}" for number in range(3)]
    for topic in topics:
        resolver.query(topic, Config().receiver_options(resolution_number_of_sources_query_threshold=1), 0)

    def advertise(number: int) -> bool:
        return bool(resolver.datagram_received(advertised(topics[number], address=sources[number]), 0))

    assert [advertise(number) for number in (0, 1, 2)] == [True, True, True]
    assert [advertise(number) for number in (1, 2, 1)] == [False, False, False]
    assert resolver.interest()["unresolved"] == [topics[0]]
    assert not any(one.queries for _, one in run(resolver, 0, 90 * SECOND))
    assert advertise(0)
    assert resolver.interest()["unresolved"] == [topics[2]]


def test_options_of_forged_sources_cannot_grow_memory() -> None:
    """Hostile input: options are remembered for at most as many sources as are followed; the newest are kept."""
    resolver = machine(resolver_cache_maximum_entries=10)

    def advertise(number: int, *options: WireOption) -> None:
        record = Advertisement("orders", number, 60, ADDRESS, options)
        resolver.datagram_received(encode(ResolutionDatagram(advertisements=(record,))), 0)

    for number in range(1000):
        advertise(number, WireOption(7, b"one"))
    assert sum(bool(resolver.topic_options("orders", number, ADDRESS)) for number in range(1000)) == 10
    advertise(3, WireOption(7, b"two"))
    assert resolver.topic_options("orders", 3, ADDRESS) == (WireOption(7, b"two"),)
    advertise(3)
    assert resolver.topic_options("orders", 3, ADDRESS) == ()


def test_a_resolution_request_does_not_query_known_topics() -> None:
    """A topic with as many sources as its threshold is no longer queried, with or without a request."""
    resolver = machine()
    options = Config().receiver_options(resolution_number_of_sources_query_threshold=1)
    resolver.query("orders", options, 0)
    resolver.query("trades", options, 0)
    resolver.datagram_received(advertised("orders"), 0)
    list(run(resolver, 0, 100 * SECOND))
    resolver.datagram_received(encode_request(RequestScope.QUERIES), 100 * SECOND)
    assert [datagram.queries for _, datagram in run(resolver, 100 * SECOND, 100 * SECOND)] == [("trades",)]


def test_an_ended_session_makes_space_for_another() -> None:
    """The limit applies to sources followed now, not to all sources ever followed."""
    resolver = machine(resolver_cache_maximum_entries=1)
    resolver.query("orders", RECEIVER, 0)
    for session in range(1, 4):
        address = ADDRESS._replace(session_id=session)
        assert resolver.datagram_received(advertised("orders", address=address), 0) != []
        resolver.forget_sessions({address}, 0)
    resolver.datagram_received(advertised("orders"), 0)
    resolver.stop_query("orders")
    resolver.query("trades", RECEIVER, 0)
    assert resolver.datagram_received(advertised("trades"), 0) != []


def test_a_record_that_waits_is_not_queued_twice() -> None:
    """Hostile input: queries for a source delayed by the limit add nothing to the output."""
    resolver = machine(resolver_sustain_advertisements_per_second=10)
    for topic in ("a", "b"):
        resolver.advertise(topic, 1, ADDRESS, SOURCE, 0)
    list(run(resolver, 0, 100 * SECOND))
    for millisecond in range(50):
        now = 100 * SECOND + millisecond * MS
        resolver.datagram_received(query_for("a", "b"), now)
        sent = [
            d for data in resolver.datagrams_to_send(now) if isinstance(d := decode(data), ResolutionDatagram)
        ]
        assert sum(len(datagram.advertisements) for datagram in sent) == (millisecond == 0)
    later = run(resolver, 100 * SECOND + 50 * MS, 100 * SECOND + 900 * MS)
    assert sorted(a.topic for _, datagram in later for a in datagram.advertisements) == ["a", "b"]


def test_noise_is_harmless() -> None:
    """Hostile input: random bytes between good datagrams change nothing; the seed is printed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}", file=sys.stderr)
    generator = random.Random(seed)
    resolver = machine()
    resolver.advertise("orders", 0, ADDRESS, SOURCE, 0)
    resolver.query("trades", RECEIVER, 0)
    for now in range(3000):
        head = bytes((generator.choice([0, 0, 1, 7, 8]), generator.randrange(4), 0, generator.randrange(4)))
        resolver.datagram_received(head + generator.randbytes(generator.randrange(60)), now * MS)
        resolver.datagrams_to_send(now * MS)
    found = resolver.datagram_received(advertised("trades"), 3001 * MS)
    assert found == [SourceFound("trades", 0, ADDRESS)]


def test_bad_topic_names_are_refused_and_leave_no_trace() -> None:
    resolver = machine()
    with pytest.raises(TopicNameError):
        resolver.query("", RECEIVER, 0)
    with pytest.raises(TopicNameError):
        resolver.advertise("x" * 247, 0, ADDRESS, SOURCE, 0)
    assert (resolver.stats()["tr_rcv_topics"], resolver.stats()["tr_src_topics"]) == (0, 0)


def test_the_longest_records_fit_the_smallest_datagram() -> None:
    """resolver_datagram_max_size may be 500."""
    resolver = machine(size=500)
    for number in range(5):
        resolver.advertise(f"{number}{'x' * 245}", number, ADDRESS, SOURCE, 0)
        resolver.query(f"{number}{'x' * 245}", RECEIVER, 0)
    assert len(list(run(resolver, 0, 0))) >= 8


# Wildcard receivers


WILDCARD = Config().wildcard_receiver_options()


def wildcard_queries(resolver: ResolutionMachine, end_ns: int) -> list[tuple[int, tuple[str, ...]]]:
    """Return the times (ms) and patterns of the wildcard queries that the machine sends until `end_ns`."""
    found, now_ns = [], 0
    while True:
        for data in resolver.datagrams_to_send(now_ns):
            datagram = decode(data)
            assert isinstance(datagram, WildcardQuery)
            found.append((now_ns // MS, datagram.patterns))
        deadline_ns = resolver.next_deadline_ns()
        if deadline_ns is None or deadline_ns > end_ns:
            return found
        now_ns = deadline_ns


def test_a_wildcard_receiver_keeps_a_topic_whose_source_was_replaced() -> None:
    """It is queried at once, and answers before the receiver would leave the topic."""
    resolver = machine(resolver_cache_maximum_entries=1)
    resolver.match(1, TopicPattern.of_prefix("orders"), WILDCARD, 0)
    wildcard_queries(resolver, 90 * SECOND)
    now_ns = 90 * SECOND
    options = Config().receiver_options(resolution_number_of_sources_query_threshold=1)
    for number, topic in enumerate(("orders", "trades")):
        source = advertised(topic, address=ADDRESS._replace(session_id=1 + number))
        assert TopicMatched(1, "orders") in resolver.datagram_received(source, now_ns) or number
        resolver.query(topic, options, now_ns)
    assert resolver.left_topics(now_ns) == []
    queries = [one.queries for _, one in run(resolver, now_ns, now_ns + SECOND // 2)]
    assert queries == [("orders",)]
    resolver.datagram_received(
        advertised("orders", address=ADDRESS._replace(session_id=1)), now_ns + SECOND // 2
    )
    assert resolver.left_topics(now_ns + 5 * SECOND) == []


def test_a_pattern_is_queried_in_an_initial_phase_only() -> None:
    """UX-15: ticks are 30 ms, intervals double up to the maximum, and the query is quiescent after the
    duration.
    """
    resolver = machine()
    options = Config().wildcard_receiver_options(resolver_query_minimum_duration=2)
    assert resolver.match(1, TopicPattern.of_prefix("orders."), options, 0) == []
    times = [
        time for time, patterns in wildcard_queries(resolver, 60 * SECOND) if patterns == (r"^orders\.",)
    ]
    assert times == [0, 60, 150, 360, 750, 1560]
    resolver.stop_matching(1)
    assert resolver.next_deadline_ns() is None


def test_a_matching_topic_is_reported_once_whether_known_or_new() -> None:
    """Wildcard receivers: cached topics are reported immediately and others when they are advertised, each
    once.
    """
    resolver = machine()
    resolver.datagram_received(advertised("orders.eu", "prices"), 0)
    pattern = TopicPattern.of_expression(r"^orders\.(eu|us)$")
    assert resolver.match(7, pattern, WILDCARD, 0) == [TopicMatched(7, "orders.eu")]
    data = advertised("orders.eu", "orders.us", "orders.jp")
    assert resolver.datagram_received(data, 1) == [TopicMatched(7, "orders.us")]
    assert resolver.datagram_received(data, 2) == []
    assert resolver.stats()["tr_wildcard_topics"] == 2
    resolver.stop_matching(7)
    assert resolver.datagram_received(advertised("orders.us", "orders.eu"), 3) == []
    assert resolver.stats()["tr_wildcard_topics"] == 0


def test_a_topic_leaves_after_the_timeout_without_a_source() -> None:
    """resolver_no_source_linger_timeout: a source that returns in time keeps its topic; later the topic joins
    again."""
    resolver = machine()
    resolver.match(1, TopicPattern.of_prefix("a"), WILDCARD, 0)
    resolver.datagrams_to_send(0)
    resolver.datagram_received(advertised("a1"), 0)
    resolver.query("a1", RECEIVER, 0)
    resolver.datagram_received(advertised("a1", ttl=0), SECOND)
    assert resolver.left_topics(SECOND) == []
    assert resolver.left_topics(2 * SECOND - 1) == []
    resolver.datagram_received(advertised("a1"), 2 * SECOND - 1)
    assert resolver.left_topics(10 * SECOND) == []
    resolver.forget_sessions({ADDRESS}, 10 * SECOND)
    assert resolver.left_topics(10 * SECOND) == []
    assert resolver.left_topics(11 * SECOND) == [TopicLeft(1, "a1")]
    resolver.stop_query("a1")
    assert resolver.datagram_received(advertised("a1"), 12 * SECOND) == [TopicMatched(1, "a1")]


def test_sources_answer_wildcard_queries_without_evaluating_them() -> None:
    """Bad input: the pattern of an unknown sender costs nothing; the requester filters the answers."""
    resolver = machine()
    resolver.advertise("one", 1, ADDRESS, SOURCE, 0)
    resolver.advertise("two", 2, ADDRESS, SOURCE, 0)
    list(run(resolver, 0, 10 * SECOND))
    hostile = pack_wildcard_queries([encode_wildcard_query("((((a+)+)+)+)+$" * 8)], 1472)
    resolver.datagram_received(hostile[0], 10 * SECOND)
    (_, answer), *_ = run(resolver, 10 * SECOND, 10 * SECOND)
    assert {one.topic for one in answer.advertisements} == {"one", "two"}
    assert resolver.stats()["tr_wildcard_queries_rcved"] == 1


def test_an_exponential_pattern_takes_bounded_time() -> None:
    """Bad input: a match that takes too long is aborted and counted, and the pattern pauses before the next one."""
    resolver = machine()
    resolver.match(1, TopicPattern.of_expression(r"^(a|aa)+$"), WILDCARD, 0)
    names = ["a" * 200 + f"b{number}" for number in range(20)]
    begin = monotonic()
    for number, name in enumerate(names):
        assert resolver.datagram_received(advertised(name), number * MS) == []
    assert monotonic() - begin < 1
    assert resolver.stats()["tr_patterns_given_up"] == 1
    assert resolver.datagram_received(advertised("aaa"), SECOND) == [TopicMatched(1, "aaa")]


def test_a_pattern_that_matches_everything_is_bounded() -> None:
    """Bad input: at most wildcard_maximum_topics topics; the rest are counted."""
    resolver = machine()
    options = Config().wildcard_receiver_options(wildcard_maximum_topics=3)
    resolver.match(1, TopicPattern.of_expression("."), options, 0)
    events = resolver.datagram_received(advertised(*map(str, range(10))), 0)
    assert [event.topic for event in events] == ["0", "1", "2"]
    assert resolver.stats()["tr_wildcard_topics_refused"] == 7


@pytest.mark.parametrize("expression", ["(", "a" * 300, "a\0b"])
def test_an_invalid_pattern_is_refused(expression: str) -> None:
    """Bad input: a pattern that is no expression, or that a query cannot carry, is refused."""
    with pytest.raises((OptionError, TopicNameError)):
        TopicPattern.of_expression(expression)


def test_foreign_topic_options_evict_no_advertised_ones() -> None:
    """UX-16: the options of a source that starts after a flood of advertisements with options are remembered."""
    resolver = ResolutionMachine(ContextOptions(resolver_cache_maximum_entries=3), 1400, 0)
    options = (WireOption(4, bytes(20)),)
    for index in range(10):
        advertisement = Advertisement("flood", index, 60, ADDRESS, options)
        resolver.datagram_received(encode(ResolutionDatagram(advertisements=(advertisement,))), index)
    assert resolver.topic_options("flood", 9, ADDRESS) == options
    assert resolver.topic_options("flood", 0, ADDRESS) == ()
    assert resolver.table_sizes()["topic options"] == 3
