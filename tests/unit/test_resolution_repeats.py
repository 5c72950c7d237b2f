"""Repeated resolution records are counted and not processed again, until one of them is needed again (UX-16)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from umstack.config import Config
from umstack.resolution import machine
from umstack.resolution.codec import (
    Advertisement,
    LbtrmAddress,
    OtherTransport,
    ResolutionDatagram,
    WireOption,
    decode,
    decode_advertisement,
    encode,
    encode_advertisement,
    pack,
)
from umstack.resolution.machine import ResolutionMachine, SourceFound
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.wildcards import TopicMatched

ADDRESS = LbtrmAddress("10.9.0.1", "224.10.10.10", 0x5EED0001, 14400, 14390)
OTHER = ADDRESS._replace(session_id=2)
SOURCE = Config().source_options()
RECEIVER = Config().receiver_options()
WILDCARD = Config().wildcard_receiver_options()


def context(**options: int) -> ResolutionMachine:
    return ResolutionMachine(Config().context_options(**options), 1472, now_ns=0)


def advertised(*topics: str, address: LbtrmAddress = ADDRESS, ttl: int = 60) -> bytes:
    records = [encode_advertisement(Advertisement(topic, 1, ttl, address)) for topic in topics]
    return pack([], records, 65000)[0]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the advertisements that a machine decodes."""
    seen: list[bytes] = []

    def note(raw: bytes) -> Advertisement:
        seen.append(raw)
        return decode_advertisement(raw)

    monkeypatch.setattr(machine, "decode_advertisement", note)
    return seen


def test_only_relevant_records_are_decoded(decoded: list[bytes]) -> None:
    """Foreign topics are known and counted without decoding; records of the context's receivers are decoded once,
    whatever else the datagram contains; a wildcard receiver has all of them decoded once."""
    resolver = context()
    resolver.query("b", RECEIVER, 0)
    assert resolver.datagram_received(advertised("a", "b"), 1) == [SourceFound("b", 1, ADDRESS)]
    assert [decode_advertisement(raw).topic for raw in decoded] == ["b"]
    for now in (2, 3):
        assert resolver.datagram_received(advertised("b", "a", "c"), now) == []
    assert len(decoded) == 1
    assert sorted(resolver.topics()) == ["a", "b", "c"]
    stats = resolver.stats()
    assert (stats["tr_dgrams_rcved"], stats["tr_advertisements_rcved"]) == (3, 8)
    assert resolver.query("c", RECEIVER, 4) == [SourceFound("c", 1, ADDRESS)]
    resolver.match(7, TopicPattern.of_prefix("d"), WILDCARD, 5)
    for now in (6, 7):
        resolver.datagram_received(advertised("d", "e"), now)
    assert len(decoded) == 3
    resolver.stop_matching(7)
    resolver.datagram_received(advertised("f"), 8)
    assert len(decoded) == 3


def test_repeated_records_are_counted_by_kind() -> None:
    """Ignored records, queries, and advertisements with options count each time."""
    ignored = Advertisement("x", 1, 60, OtherTransport(0x20, b"????"))
    with_options = Advertisement("y", 1, 60, ADDRESS, (WireOption(1, b"ab"),))
    data = [
        encode(ResolutionDatagram(("q",), (ignored, Advertisement("a", 1, 60, ADDRESS)))),
        encode(ResolutionDatagram(("q", "r"), (ignored, with_options))),
    ]
    once, thrice = context(), context()
    for datagram in data:
        once.datagram_received(datagram, 1)
    for datagram in data * 3:
        thrice.datagram_received(datagram, 1)
    for name in ("tr_queries_rcved", "tr_advertisements_rcved", "tr_records_ignored", "tr_bytes_rcved"):
        assert thrice.stats()[name] == 3 * once.stats()[name] > 0


FORGETTING: dict[str, Callable[[ResolutionMachine], object]] = {
    "a session that ended": lambda resolver: resolver.forget_sessions({ADDRESS}, 5),
    "a last advertisement": lambda resolver: resolver.datagram_received(advertised("a", ttl=0), 5),
    "other options": lambda resolver: resolver.datagram_received(
        encode(ResolutionDatagram((), (Advertisement("a", 1, 60, ADDRESS, (WireOption(1, b"ab"),)),))), 5
    ),
}


@pytest.mark.parametrize("forget", FORGETTING.values(), ids=FORGETTING)
def test_a_forgotten_source_is_processed_again(
    forget: Callable[[ResolutionMachine], object], decoded: list[bytes]
) -> None:
    """The same datagram rediscovers a source that was forgotten."""
    resolver = context()
    resolver.query("a", RECEIVER, 0)
    resolver.datagram_received(advertised("a"), 1)
    resolver.datagram_received(advertised("a"), 2)
    forget(resolver)
    before = len(decoded)
    events = resolver.datagram_received(advertised("a"), 6)
    assert len(decoded) == before + 1
    assert resolver.topics() == ["a"]
    assert resolver.topic_options("a", 1, ADDRESS) == ()
    assert resolver.stats()["tr_rcv_unresolved_topics"] == 0
    assert events in ([], [SourceFound("a", 1, ADDRESS)])


def test_an_evicted_source_is_learned_again() -> None:
    """A source evicted from a full cache is learned again from the same datagram."""
    resolver = context(resolver_cache_maximum_entries=2)
    for topics in (("a", "b"), ("c",), ("a", "b")):
        resolver.datagram_received(advertised(*topics), 1)
    assert sorted(resolver.topics()) == ["a", "b"]


def test_a_query_is_answered_by_a_later_source() -> None:
    """A datagram of queries without a matching source is processed again once there is one."""
    resolver = context()
    query = encode(ResolutionDatagram(queries=("orders",)))
    for now in (1, 2, 3):
        resolver.datagram_received(query, now)
    resolver.advertise("orders", 3, ADDRESS, SOURCE, 10)
    resolver.datagrams_to_send(10)
    for now in (20, 30):
        resolver.datagram_received(query, now)
        assert resolver.next_deadline_ns() == 0, "one answer per query"
        assert len(resolver.datagrams_to_send(now)) == 1
    resolver.withdraw("orders", 3, ADDRESS)
    assert len(resolver.datagrams_to_send(39)) == 1, "the final advertisement"
    resolver.datagram_received(query, 40)
    assert resolver.datagrams_to_send(40) == []


def test_a_receiver_without_a_cache_learns_from_the_same_datagram() -> None:
    """resolver_cache 0: a topic is known only from an advertisement after the query."""
    resolver = context(resolver_cache=0)
    for now in (1, 2):
        resolver.datagram_received(advertised("a"), now)
    resolver.query("a", RECEIVER, 3)
    assert resolver.datagram_received(advertised("a"), 4) == [SourceFound("a", 1, ADDRESS)]


def test_a_replaced_source_is_found_later() -> None:
    """resolver_cache_maximum_entries: the same advertisement offers a source again that another has replaced."""
    resolver = context(resolver_cache_maximum_entries=1)
    resolver.query("a", RECEIVER, 0)
    assert resolver.datagram_received(advertised("a"), 1) != []
    resolver.query("b", RECEIVER, 2)
    for now in (3, 4):
        assert resolver.datagram_received(advertised("b"), now) == [SourceFound("b", 1, ADDRESS)]
        assert resolver.datagram_received(advertised("a"), now) == [SourceFound("a", 1, ADDRESS)]


def test_a_topic_that_left_a_wildcard_receiver_joins_again() -> None:
    """After resolver_no_source_linger_timeout, a topic joins again on the same advertisement as before."""
    resolver = context()
    resolver.match(7, TopicPattern.of_prefix("a"), WILDCARD, 0)
    assert resolver.datagram_received(advertised("a"), 1) == [TopicMatched(7, "a")]
    resolver.query("a", RECEIVER, 2)
    resolver.datagram_received(advertised("a"), 3)
    resolver.forget_sessions({ADDRESS}, 4)
    second = 1_000_000_000
    assert resolver.left_topics(5) == []
    resolver.datagram_received(advertised("z"), 6)
    assert len(resolver.left_topics(5 * second)) == 1
    resolver.stop_query("a")
    assert resolver.datagram_received(advertised("a"), 6 * second) == [TopicMatched(7, "a")]


def test_a_full_wildcard_receiver_accepts_the_topic_later() -> None:
    """wildcard_maximum_topics: a refused topic is offered again."""
    resolver = context()
    options = Config().wildcard_receiver_options(wildcard_maximum_topics=1)
    resolver.match(7, TopicPattern.of_prefix("a"), options, 0)
    for now in (1, 2, 3):
        resolver.datagram_received(advertised("a1", "a2"), now)
    assert resolver.stats()["tr_wildcard_topics_refused"] == 3


def test_topics_created_at_once_share_datagrams() -> None:
    """UX-15: the first record is sent immediately; topics created within a tick are sent together at the next
    tick.
    """
    resolver = context()
    millisecond = 1_000_000
    for number in range(30):
        resolver.advertise(f"t{number}", number + 1, ADDRESS, SOURCE, number * millisecond // 10)
        resolver.query(f"q{number}", RECEIVER, number * millisecond // 10)
    assert [len(data) > 0 for data in resolver.datagrams_to_send(0)] == [True]
    assert resolver.next_deadline_ns() == 10 * millisecond
    sent = [decode(data) for data in resolver.datagrams_to_send(20 * millisecond)]
    assert all(isinstance(one, ResolutionDatagram) for one in sent)
    topics = {entry.topic for one in sent for entry in one.advertisements}  # type: ignore[union-attr]
    assert len(topics) == 30
    assert len(sent) <= 2


def test_topics_created_within_a_second_share_datagrams() -> None:
    """UX-15: a hundred topics with different ticks use a few full datagrams per second, not one per tick, and are
    advertised and queried as often as a single topic."""
    resolver, lone = context(), context()
    millisecond = 1_000_000
    end = 8_000 * millisecond
    sent = []
    lone.advertise("t", 1, ADDRESS, SOURCE, 0)
    lone.query("q", RECEIVER, 0)
    now = 0
    for number in range(100):
        now = number * 10 * millisecond
        resolver.advertise(f"t{number}", number + 1, ADDRESS, SOURCE, now)
        resolver.query(f"q{number}", RECEIVER, now)
        sent += resolver.datagrams_to_send(now)
    made = len(sent)
    for machine_, until in ((resolver, end), (lone, end)):
        at = now if machine_ is resolver else 0
        while at <= until:
            found = machine_.datagrams_to_send(at)
            sent += found if machine_ is resolver else []
            at = machine_.next_deadline_ns() or 0
            assert at > 0
    assert len(sent) - made < 8 * 25
    for name in ("tr_advertisements_sent", "tr_queries_sent"):
        assert 90 * lone.stats()[name] <= resolver.stats()[name] <= 105 * lone.stats()[name]


def test_a_session_that_advertises_itself_replaces_another_advertiser() -> None:
    """A host that repeats an honest advertisement first is its advertiser only until the source advertises itself."""
    resolver = context()
    resolver.query("a", RECEIVER, 0)
    own, data = ADDRESS.source_ip, advertised("a")
    assert resolver.datagram_received(data, 1, "10.9.9.9") == [SourceFound("a", 1, ADDRESS, "10.9.9.9")]
    assert resolver.datagram_received(data, 2, "10.9.9.8") == []
    assert resolver.datagram_received(data, 3, own) == [SourceFound("a", 1, ADDRESS, own)]
    assert resolver.datagram_received(data, 4, "10.9.9.9") == []
    assert resolver.query("a", RECEIVER, 5) == [SourceFound("a", 1, ADDRESS, own)]
