"""The resolver cache, in C, against a model (UX-16)."""

from __future__ import annotations

import random
import threading

from umstack._engine.transport_address import TransportAddress
from umstack.resolution.cache import KnownSource, ResolverCache
from umstack.resolution.codec import (
    Advertisement,
    LbtrmAddress,
    LbtruAddress,
    ResolutionDatagram,
    TcpAddress,
    WireOption,
    encode,
    encode_advertisement,
)


def address(number: int) -> TransportAddress:
    """Return one of the sessions of all transports."""
    if number % 3 == 1:
        return LbtruAddress("10.0.0.1", number // 3, 14380 + number)
    if number % 3 == 2:
        return TcpAddress("10.0.0.1", number // 3, 14380 + number)
    return LbtrmAddress("10.0.0.1", "224.10.10.10", 7 + number, 14400, 14390)


def source(number: int, topic: str = "orders") -> KnownSource:
    return KnownSource(topic, number, address(3 * (number % 2)))


def record(one: KnownSource, ttl: int = 60, options: tuple[WireOption, ...] = ()) -> Advertisement:
    return Advertisement(one.topic, one.topic_index, ttl, one.address, options)


def advertise(cache: ResolverCache, *sources: KnownSource, ttl: int = 60) -> list[bytes]:
    """Process their advertisements; return those that concern the owner."""
    taken = cache.take(encode(ResolutionDatagram((), tuple(record(one, ttl) for one in sources))))
    assert taken is not None
    return taken.advertisements


def known(cache: ResolverCache, topic: str = "orders") -> list[KnownSource]:
    return list(cache.sources_of(topic, topic.encode()))


def test_the_cache_evicts_the_oldest() -> None:
    """UX-16: the cache is bounded; an advertisement refreshes its source."""
    cache = ResolverCache(3)
    advertise(cache, source(1), source(2), source(3))
    advertise(cache, source(1))
    advertise(cache, source(4, "trades"))
    assert known(cache) == [source(1), source(3)]
    assert known(cache, "trades") == [source(4, "trades")]
    assert (len(cache), cache.eviction_count) == (3, 1)


def test_advertised_sources_outlive_a_flood() -> None:
    """UX-16, bad input: a hundred sources, advertised in turns with a flood of forged ones, all survive if the
    cache can hold the sources advertised in between; all places stay in use."""
    cache = ResolverCache(300)
    genuine = [source(number, f"g{number}") for number in range(100)]
    forged = 0
    for _ in range(50):
        advertise(cache, *genuine)
        advertise(cache, *(source(forged + number, "forged") for number in range(100)))
        forged += 100
    advertise(cache, *genuine)
    assert {one.topic for one in genuine} <= set(cache.topics())
    assert len(cache) == 300
    assert cache.eviction_count == 5000 - 200


def test_the_cache_forgets_sessions_and_sources() -> None:
    cache = ResolverCache(10)
    for number in range(4):
        advertise(cache, source(number))
    cache.discard_sessions({source(0).address, address(99)})
    assert known(cache) == [source(1), source(3)]
    for one in (source(1), source(1), source(3)):
        advertise(cache, one, ttl=0)
    assert known(cache) == []
    assert cache.topics() == []
    assert len(cache) == 0


def test_more_sessions_can_be_forgotten_than_one_search_covers() -> None:
    cache = ResolverCache(5000)
    sources = [KnownSource("orders", 1, address(number)) for number in range(3, 3003)]
    for one in sources:
        advertise(cache, one)
    cache.discard_sessions([one.address for one in sources[:2500]])
    assert known(cache) == sources[2500:]


def test_a_session_without_an_id_is_the_same_in_either_form() -> None:
    """Wire: the information of a unicast session may omit its id or have 0 in its place."""
    short = encode_advertisement(Advertisement("orders", 1, 60, TcpAddress("10.0.0.1", 0, 14380)))
    long = short[:8] + b"\x0a" + short[9:-2] + bytes(4) + short[-2:]
    cache = ResolverCache(10)
    for raw in (short, long):
        assert cache.take(b"\0\0\0\1" + raw) is not None
    assert known(cache) == [KnownSource("orders", 1, TcpAddress("10.0.0.1", 0, 14380))]


def test_an_interest_ends_with_the_last_receiver_of_its_topic() -> None:
    cache = ResolverCache(10)
    query = encode(ResolutionDatagram(("orders",)))
    for has_source in (True, False):
        cache.add_interest(b"orders", has_source=has_source)
        cache.add_interest(b"orders", has_source=has_source)
        cache.remove_interest(b"orders", has_source=has_source)
    taken = cache.take(query)
    assert taken is not None
    assert taken.queries == [b"orders"]
    assert advertise(cache, source(1)) == [encode_advertisement(record(source(1)))]
    for has_source in (True, False):
        cache.remove_interest(b"orders", has_source=has_source)
    taken = cache.take(query)
    assert taken is not None
    assert taken.queries == []
    assert advertise(cache, source(1)) == []


def test_no_topic_of_interest_is_missed_and_few_others_match() -> None:
    """The set of interests is approximate: other topics may match, and the owner checks them; of ten thousand topics
    of interest it misses none."""
    cache = ResolverCache(10)
    names = [f"own/{number}".encode() for number in range(10_000)]
    for name in names:
        cache.add_interest(name, has_source=True)
    strange = 0
    for number, name in enumerate(names):
        taken = cache.take(encode(ResolutionDatagram((name.decode(), f"strange/{number}"))))
        assert taken is not None
        assert taken.queries[0] == name
        strange += len(taken.queries) - 1
    assert strange < 2500


class _Model:
    """Sources in the order of their first advertisement, and the set of settled ones."""

    def __init__(self) -> None:
        self.sources: dict[KnownSource, tuple[WireOption, ...]] = {}
        self.settled: set[KnownSource] = set()
        self.needs_all = False
        self.receivers: set[str] = set()

    def is_owners(self, one: KnownSource, ttl: int, options: tuple[WireOption, ...]) -> bool:
        """Process one advertisement."""
        had = self.sources.get(one, ())
        concerns = one.topic in self.receivers or bool(had)
        if ttl == 0:
            self.sources.pop(one, None)
            self.settled.discard(one)
            return concerns
        is_settled = one in self.settled and had == options
        self.sources[one] = options
        if is_settled:
            return False
        if concerns or self.needs_all or options:
            self.settled.discard(one)
            return True
        self.settled.add(one)
        return False


def test_it_agrees_with_the_model() -> None:
    """The cache equals the model for advertisements, final ones, options, ending sessions and changing
    receivers in any order.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    cache, model = ResolverCache(10_000), _Model()
    topics = [f"topic/{number}" * rng.randint(1, 20) for number in range(200)]
    for _ in range(4000):
        match rng.randrange(12):
            case 0:
                topic = rng.choice(topics)
                if topic in model.receivers:
                    model.receivers.remove(topic)
                    cache.remove_interest(topic.encode(), has_source=False)
                else:
                    model.receivers.add(topic)
                    cache.add_interest(topic.encode(), has_source=False)
            case 1:
                ended = {address(rng.randrange(1, 60)) for _ in range(rng.randint(1, 3))}
                cache.discard_sessions(ended)
                for one in [one for one in model.sources if one.address in ended]:
                    del model.sources[one]
                    model.settled.discard(one)
            case 2 if rng.random() < 0.2:
                model.needs_all = not model.needs_all
                cache.set_needs_all(model.needs_all)
            case 3 if rng.random() < 0.2:
                model.settled.clear()
                cache.unsettle()
            case _:
                _advertise_some(rng, topics, cache, model)
        assert len(cache) == len(model.sources)
    for topic in topics:
        assert known(cache, topic) == [one for one in model.sources if one.topic == topic]
    assert sorted(cache.topics()) == sorted({one.topic for one in model.sources})


def _advertise_some(rng: random.Random, topics: list[str], cache: ResolverCache, model: _Model) -> None:
    expected, given = set(), []
    for _ in range(rng.randint(1, 50)):
        one = KnownSource(rng.choice(topics), rng.randrange(3), address(rng.randrange(1, 60)))
        options = (WireOption(5, bytes([rng.randrange(2)])),) if rng.random() < 0.1 else ()
        advertisement = record(one, 0 if rng.random() < 0.1 else 60, options)
        given.append(advertisement)
        if model.is_owners(one, advertisement.ttl, options):
            expected.add(len(given) - 1)
    taken = cache.take(encode(ResolutionDatagram((), tuple(given))))
    assert taken is not None
    raws = [encode_advertisement(one) for one in given]
    must = [raws[number] for number in sorted(expected)]
    # The cache may match foreign topics: it may return more records, in the order of the datagram.
    left = iter(taken.advertisements)
    assert all(any(raw == found for found in left) for raw in must)
    for found in taken.advertisements:
        read = given[raws.index(found)]
        if found in must and rng.random() < 0.7 and read.ttl:
            cache.settle(found)
            settled = KnownSource(read.topic, read.index, read.transport)  # type: ignore[arg-type]
            if model.sources.get(settled) == read.options:
                model.settled.add(settled)


def test_topics_are_read_while_others_change() -> None:
    """Any thread may process datagrams: names are whole and reported once, whichever datagram another thread
    processes meanwhile.
    """
    cache = ResolverCache(500)
    stopping = threading.Event()

    def churn() -> None:
        number = 0
        while not stopping.is_set():
            advertise(cache, *(source(1, f"churning/{number + at}") for at in range(50)))
            number += 50

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            names = cache.topics()
            assert len(names) == len(set(names))
            assert all(name.startswith("churning/") for name in names)
    finally:
        stopping.set()
        thread.join()
