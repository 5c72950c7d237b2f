"""What topic resolution repeats is counted and not taken in again, until something of it is missing again (UX-16)."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from umstack.config import Config
from umstack.resolution import codec, machine
from umstack.resolution.codec import (
    Advertisement,
    LbtrmAddress,
    OtherTransport,
    ResolutionDatagram,
    WireOption,
    decode,
    decode_plain_advertisement,
    decode_topic_name,
    encode,
    encode_advertisement,
    pack,
    split_plain,
)
from umstack.resolution.machine import ResolutionMachine, SourceFound
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.repeats import DatagramCounts, RepeatedDatagrams
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
    """The advertisements that a machine decodes."""
    seen: list[bytes] = []

    def note(raw: bytes) -> object:
        seen.append(raw)
        return decode_plain_advertisement(raw)

    monkeypatch.setattr(machine, "decode_plain_advertisement", note)
    return seen


def test_what_is_known_is_not_decoded_again(decoded: list[bytes]) -> None:
    """A datagram that comes again, and its advertisements in another, are counted; what is new there is taken in."""
    resolver = context()
    resolver.query("b", RECEIVER, 0)
    assert resolver.datagram_received(advertised("a", "b"), 1) == [SourceFound("b", 1, ADDRESS)]
    assert len(decoded) == 2
    assert resolver.datagram_received(advertised("a", "b"), 2) == []
    assert resolver.datagram_received(advertised("b", "a", "c"), 3) == []
    assert len(decoded) == 3
    assert sorted(resolver.topics()) == ["a", "b", "c"]
    stats = resolver.stats()
    assert (stats["tr_dgrams_rcved"], stats["tr_advertisements_rcved"]) == (3, 7)


def test_repeated_records_are_counted_as_what_they_are() -> None:
    """Those that are ignored, queries and advertisements with options count each time."""
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
def test_what_was_forgotten_is_taken_in_again(
    forget: Callable[[ResolutionMachine], object], decoded: list[bytes]
) -> None:
    """A source that is advertised again after it was forgotten is found again by the very same datagram."""
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


def test_an_evicted_source_is_known_again() -> None:
    """A cache that is full: what made room is taken in when it is advertised again, in the same datagram."""
    resolver = context(resolver_cache_maximum_entries=2)
    for topics in (("a", "b"), ("c",), ("a", "b")):
        resolver.datagram_received(advertised(*topics), 1)
    assert sorted(resolver.topics()) == ["a", "b"]


def test_a_query_is_answered_by_a_source_that_came_later() -> None:
    """A datagram of queries that concerned nobody is looked at again once there is a source."""
    resolver = context()
    query = encode(ResolutionDatagram(queries=("orders",)))
    for now in (1, 2, 3):
        resolver.datagram_received(query, now)
    resolver.advertise("orders", 3, ADDRESS, SOURCE, 10)
    resolver.datagrams_to_send(10)
    for now in (20, 30):
        resolver.datagram_received(query, now)
        assert resolver.next_deadline_ns() == 0, "an answer each time"
        assert len(resolver.datagrams_to_send(now)) == 1
    resolver.withdraw("orders", 3, ADDRESS)
    resolver.datagram_received(query, 40)
    assert resolver.datagrams_to_send(40) == []


def test_a_receiver_without_a_cache_learns_from_the_same_datagram() -> None:
    """resolver_cache 0: a topic is known from the advertisement after the query only."""
    resolver = context(resolver_cache=0)
    for now in (1, 2):
        resolver.datagram_received(advertised("a"), now)
    resolver.query("a", RECEIVER, 3)
    assert resolver.datagram_received(advertised("a"), 4) == [SourceFound("a", 1, ADDRESS)]


def test_a_topic_that_left_a_wildcard_receiver_joins_again() -> None:
    """resolver_no_source_linger_timeout, and the same advertisement as before."""
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


def test_a_wildcard_receiver_that_was_full_takes_the_topic_later() -> None:
    """wildcard_maximum_topics: what was refused is offered again."""
    resolver = context()
    options = Config().wildcard_receiver_options(wildcard_maximum_topics=1)
    resolver.match(7, TopicPattern.of_prefix("a"), options, 0)
    for now in (1, 2, 3):
        resolver.datagram_received(advertised("a1", "a2"), now)
    assert resolver.stats()["tr_wildcard_topics_refused"] == 3


def test_splitting_agrees_with_decoding() -> None:
    """Whatever the bytes: what the quick way takes apart, the decoder takes apart alike; the rest it leaves."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    taken = 0
    for _ in range(5000):
        queries = tuple(f"q{i}" * rng.randint(1, 90) for i in range(rng.randint(0, 4)))
        records = tuple(
            Advertisement(f"t{i}", i, 60, ADDRESS, (WireOption(1, b"x"),) if rng.random() < 0.1 else ())
            for i in range(rng.randint(0, 4))
        )
        data = bytearray(encode(ResolutionDatagram(queries, records)))
        for _ in range(rng.randint(0, 2)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = bytes(data[: rng.randint(0, len(data))] if rng.random() < 0.3 else data)
        plain, expected = split_plain(cut), decode(cut)
        if plain is None:
            continue
        found = [decode_plain_advertisement(raw) for raw in plain.advertisements]
        if any(isinstance(one, codec.Rejected) for one in found):
            assert isinstance(expected, codec.Rejected)
            continue
        taken += 1
        assert isinstance(expected, ResolutionDatagram)
        assert tuple(map(decode_topic_name, plain.queries)) == expected.queries
        assert tuple(found) == expected.advertisements
    assert taken > 500


def test_what_is_remembered_is_bounded() -> None:
    """Bad input: datagrams that are all different take 4 MiB and 4096 entries at most."""
    repeats: RepeatedDatagrams[DatagramCounts] = RepeatedDatagrams()
    counts = DatagramCounts(1, 0, 0)
    for number in range(10_000):
        repeats.remember(number.to_bytes(4, "big"), counts)
    assert sum(repeats.find(number.to_bytes(4, "big")) is not None for number in range(10_000)) == 4096
    for number in range(100):
        repeats.remember(number.to_bytes(4, "big") + bytes(65_000), counts)
    kept = [repeats.find(number.to_bytes(4, "big") + bytes(65_000)) is not None for number in range(100)]
    assert kept[-1]
    assert 60 <= sum(kept) <= 64
    repeats.remember(bytes(5_000_000), counts)
    assert repeats.find(bytes(5_000_000)) is None


def test_topics_that_are_made_at_once_share_datagrams() -> None:
    """UX-15: the first goes out at once, those that follow it within a tick at the next tick, together."""
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
