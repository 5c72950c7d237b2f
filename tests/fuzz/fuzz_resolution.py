"""Topic resolution between its own sources and receivers and anybody's datagrams: nothing raises, tables stay bounded,
rates hold, and what is sent can be read.
"""

from __future__ import annotations

from umstack.config import ContextOptions, ReceiverOptions, SourceOptions
from umstack.resolution.codec import LbtrmAddress, Rejected, decode
from umstack.resolution.machine import ResolutionMachine, SourceFound, SourceGone

INSTRUMENTED = ("umstack.resolution",)
_CACHE_MAX = 4
_DATAGRAM_MAX = 400
_TOPICS = ("orders", "trades", "a" * 200)
_OPTIONS = ContextOptions(resolver_cache_maximum_entries=_CACHE_MAX)
_SOURCE, _RECEIVER = SourceOptions(), ReceiverOptions()
_OWN = LbtrmAddress("10.0.0.1", "224.10.10.10", 7, 14400, 14390)
_MS = 1_000_000


class _World:
    """A machine, and what it must have told."""

    def __init__(self) -> None:
        self.machine = ResolutionMachine(_OPTIONS, _DATAGRAM_MAX, 0)
        self.now_ns = 0
        self.users = dict.fromkeys(_TOPICS, 0)
        self.found: dict[str, set[SourceFound]] = {topic: set() for topic in _TOPICS}

    def told(self, events: list[SourceFound | SourceGone]) -> None:
        for event in events:
            assert self.users[event.topic] > 0, "an event of a topic that nobody wants"
            if isinstance(event, SourceFound):
                self.found[event.topic].add(event)
            else:
                self.found[event.topic].discard(SourceFound(event.topic, event.topic_index, event.address))

    def step(self, operation: int, data: bytes) -> None:
        machine, topic = self.machine, _TOPICS[operation >> 4 & 3 if operation >> 4 & 3 < 3 else 0]
        match operation & 15:
            case 0:
                machine.advertise(topic, 1, _OWN, _SOURCE, self.now_ns)
            case 1:
                machine.withdraw(topic, 1, _OWN)
            case 2:
                self.users[topic] += 1
                self.told(list(machine.query(topic, _RECEIVER, self.now_ns)))
            case 3:
                machine.stop_query(topic)
                self.users[topic] = max(self.users[topic] - 1, 0)
                if not self.users[topic]:
                    self.found[topic].clear()
            case 4:
                for found in list(self.found[topic])[:1]:
                    machine.forget_session(found.address, self.now_ns)
                    for others in self.found.values():
                        others -= {one for one in others if one.address == found.address}
            case 5:
                machine.request_resolution()
            case 6 | 7:
                self.now_ns += len(data) * _MS * (100 if operation & 128 else 1)
                self._send()
            case _:
                self.told(list(machine.datagram_received(data, self.now_ns)))
        assert len(machine.topics()) <= _CACHE_MAX
        assert sum(map(len, self.found.values())) <= _CACHE_MAX

    def _send(self) -> None:
        for datagram in self.machine.datagrams_to_send(self.now_ns):
            assert 0 < len(datagram) <= _DATAGRAM_MAX
            assert not isinstance(decode(datagram), Rejected)
        deadline_ns = self.machine.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns


def one_input(data: bytes) -> None:
    """Operations: a byte that says which, a length, and so many bytes."""
    decode(data)
    world = _World()
    while data:
        operation, length = data[0], data[1] if len(data) > 1 else 0
        world.step(operation, data[2 : 2 + length])
        data = data[2 + length :]
    world.machine.stats()
