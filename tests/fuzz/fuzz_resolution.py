"""Topic resolution with local sources and receivers and arbitrary datagrams: nothing raises, tables stay bounded, rates
hold, and datagrams sent can be decoded.
"""

from __future__ import annotations

from umstack.config import ContextOptions, ReceiverOptions, SourceOptions, WildcardReceiverOptions
from umstack.resolution.codec import Advertisement, LbtrmAddress, Rejected, ResolutionDatagram, decode, encode
from umstack.resolution.machine import ResolutionEvent, ResolutionMachine, SourceFound, SourceGone
from umstack.resolution.pattern import TopicPattern
from umstack.resolution.wildcards import TopicLeft, TopicMatched

INSTRUMENTED = ("umstack.resolution",)
_CACHE_MAX = 4
_DATAGRAM_MAX = 400
_TOPICS = ("orders", "trades", "a" * 200)
_OPTIONS = ContextOptions(resolver_cache_maximum_entries=_CACHE_MAX)
_SOURCE, _RECEIVER, _WILDCARD = SourceOptions(), ReceiverOptions(), WildcardReceiverOptions()
_OWN = LbtrmAddress("10.0.0.1", "224.10.10.10", 7, 14400, 14390)
_MS = 1_000_000


def _advertisement(topic: str, data: bytes) -> bytes:
    """Return a well-formed advertisement of one of a few sources and sessions, or of its end."""
    index, session, ttl = (data[at] if len(data) > at else 0 for at in range(3))
    address = _OWN._replace(session_id=session % 8)
    record = Advertisement(topic, index % 4, 0 if ttl & 1 else 60, address)
    return encode(ResolutionDatagram(advertisements=(record,)))


class _World:
    """A machine, and the events that it must have reported."""

    def __init__(self) -> None:
        self.machine = ResolutionMachine(_OPTIONS, _DATAGRAM_MAX, 0)
        self.now_ns = 0
        self.users = dict.fromkeys(_TOPICS, 0)
        self.found: dict[str, set[SourceFound]] = {topic: set() for topic in _TOPICS}
        self.matching: dict[int, set[str]] = {}

    def follow(self, events: list[ResolutionEvent]) -> None:
        """Check events: a source or a topic is reported once, and its end only after it."""
        for event in events:
            match event:
                case SourceFound():
                    assert self.users[event.topic] > 0, "an event of a topic without receivers"
                    self.found[event.topic].add(event)
                case SourceGone():
                    self.found[event.topic].remove(SourceFound(event.topic, event.index, event.address))
                case TopicMatched():
                    assert event.topic not in self.matching[event.key]
                    assert event.topic.startswith("o")
                    self.matching[event.key].add(event.topic)
                case TopicLeft():
                    self.matching[event.key].remove(event.topic)

    def step(self, operation: int, data: bytes) -> None:
        """Run one operation of the context, of time or of the network."""
        machine, topic = self.machine, _TOPICS[(operation >> 4) % len(_TOPICS)]
        match operation & 15:
            case 0:
                machine.advertise(topic, 1, _OWN, _SOURCE, self.now_ns)
            case 1:
                machine.withdraw(topic, 1, _OWN)
            case 2:
                self.users[topic] += 1
                self.follow(machine.query(topic, _RECEIVER, self.now_ns))
            case 3:
                machine.stop_query(topic)
                self.users[topic] = max(self.users[topic] - 1, 0)
                if not self.users[topic]:
                    self.found[topic].clear()
            case 4:
                self._forget_session_of(topic)
            case 5:
                machine.request_resolution()
            case 6 | 7:
                self.now_ns += len(data) * _MS * (1000 if operation & 128 else 1)
                self._send()
            case 8:
                self._wildcard((operation >> 4) % 4, ends=bool(operation & 128))
            case 9 | 10:
                self.follow(machine.datagram_received(_advertisement(topic, data), self.now_ns))
            case _:
                self.follow(machine.datagram_received(data, self.now_ns))
        self.follow(machine.left_topics(self.now_ns))
        assert len(machine.topics()) <= _CACHE_MAX
        assert (
            machine.table_sizes()["reported sources"] <= _CACHE_MAX
        )  # one that gives way ends without an event

    def _forget_session_of(self, topic: str) -> None:
        for found in list(self.found[topic])[:1]:
            self.machine.forget_sessions({found.address}, self.now_ns)
            for others in self.found.values():
                others -= {one for one in others if one.address == found.address}

    def _wildcard(self, key: int, *, ends: bool) -> None:
        if ends and key in self.matching:
            self.machine.stop_matching(key)
            del self.matching[key]
        elif not ends and key not in self.matching:
            self.matching[key] = set()
            self.follow(self.machine.match(key, TopicPattern.of_prefix("o"), _WILDCARD, self.now_ns))

    def _send(self) -> None:
        for datagram in self.machine.datagrams_to_send(self.now_ns):
            assert 0 < len(datagram) <= _DATAGRAM_MAX
            assert not isinstance(decode(datagram), Rejected)
        self.follow(self.machine.left_topics(self.now_ns))
        deadline_ns = self.machine.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns


def one_input(data: bytes) -> None:
    """Run operations, each a byte that selects it, a length, and this many bytes."""
    decode(data)
    world = _World()
    while data:
        operation, length = data[0], data[1] if len(data) > 1 else 0
        world.step(operation, data[2 : 2 + length])
        data = data[2 + length :]
    world.machine.stats()
