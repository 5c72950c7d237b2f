"""The state machines of persistence, by seed: a source, three Stores on simulated disks, readers, a lossy network."""

from __future__ import annotations

import random

import pytest

from tests.simulated_disk import SimulatedDisk
from umstack._engine.endpoint import Endpoint
from umstack.store.protocol import (
    MessageStable,
    ReaderSide,
    RegistrationRefused,
    SourceLimits,
    SourceSide,
    StoreSide,
    encode_data,
)
from umstack.store.protocol.messages import extended
from umstack.store.repository import ClientState, Repository, RepositorySettings
from umstack.store.wire import SqnRange, StabilityAck, message_bytes

_MS = 1_000_000
_SETTINGS = RepositorySettings(segment_bytes=1 << 18, staging_bytes=1 << 19, commit_bytes=1 << 18)
_LIMITS = SourceLimits(
    flight_messages=12,
    registration_interval_ns=20 * _MS,
    repeat_ns=5 * _MS,
    keepalive_interval_ns=10 * _MS,
    activity_timeout_ns=1000 * _MS,
)
_ENDPOINTS = tuple(Endpoint("10.9.0.11", 14567 + at) for at in range(3))
_SOURCE = 1


def _split(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = message_bytes(data)
        found.append(data[:size])
        data = data[size:]
    return found


class _Store:
    """A Store that can crash: its disk keeps what was synced, and any part of the rest."""

    def __init__(self, at: int, seed: int) -> None:
        self.disk = SimulatedDisk(seed + at)
        self.endpoint = _ENDPOINTS[at]
        self.state = ClientState(None)
        self.is_up = False
        self.start()

    def start(self) -> None:
        repository = Repository(".", _SETTINGS, files=self.disk, state=self.state, wall_clock_ns=lambda: 1)
        self.side = StoreSide(repository, self.endpoint, lambda: 1, lambda topic, source: True)
        self.is_up, self.connections = True, 0

    def crash(self) -> None:
        self.disk.crash()
        self.is_up = False

    def commit(self) -> None:
        while (commit := self.side.repository.commit()) is not None:
            self.side.committed(commit)

    def read(self, session_id: int) -> dict[int, bytes]:
        """Return everything that a reader gets, by number."""
        reader = ReaderSide("orders", session_id)
        self.connections += 1
        connection = 1000 + self.connections
        self.side.connected(connection)
        found: dict[int, bytes] = {}
        while not reader.is_complete:
            for message in reader.take_messages():
                assert message.sqn not in found
                assert not found or message.sqn - max(found) < 1 << 31
                found[message.sqn] = message.data
                reader.acknowledge(message)
            for request in _split(reader.take_output()):
                self.side.received(connection, request)
            for answer in _split(self.side.take_output(connection, 1 << 20)):
                reader.received(answer)
        self.side.disconnected(connection)
        return found


class _World:
    """One source after another with the same session id, and three Stores."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.stores = [_Store(at, seed) for at in range(3)]
        self.now_ns = 0
        self.life = 0
        self.stable: dict[int, bytes] = {}
        self.sent: dict[int, bytes] = {}
        self.start_source()

    def start_source(self) -> None:
        self.life += 1
        self.source = SourceSide("orders", 7, _ENDPOINTS, limits=_LIMITS)
        self.is_attached = False
        self.linked: set[int] = set()

    def unlink(self, at: int, *, store_ends: bool) -> None:
        if at in self.linked:
            self.linked.discard(at)
            self.source.disconnected(at)
            if not store_ends:
                self.stores[at].side.disconnected(_SOURCE)

    def step(self) -> None:
        """One random action, then some exchange."""
        self.now_ns += _MS
        action = self.draw.random()
        at = self.draw.randrange(3)
        store = self.stores[at]
        if action < 0.02 and store.is_up:
            self.unlink(at, store_ends=True)
            store.crash()
        elif action < 0.06 and not store.is_up:
            store.start()
        elif action < 0.07:
            for each in range(3):
                self.unlink(each, store_ends=False)
            self.start_source()
        elif action < 0.10:
            self.unlink(at, store_ends=False)
        elif action < 0.13:
            self.forge(at)
        elif action < 0.6:
            self.publish()
        self.exchange()

    def forge(self, at: int) -> None:
        """Acknowledge messages that were never sent, and those of another source."""
        for index, first in (
            (self.life, self.source.next_sqn),
            (self.life + 1, max(self.source.next_sqn - 3, 0)),
        ):
            ranges = (SqnRange(first, first + self.draw.randrange(4)),)
            ack = StabilityAck(transport_index=0, topic_index=index, store_index=at, ranges=ranges)
            self.source.received(at, ack.encode(), self.now_ns)

    def publish(self) -> None:
        if not self.is_attached or not self.source.can_send(40):
            return
        sqn = self.source.next_sqn
        payload = b"%d.%d" % (self.life, sqn)
        assert sqn not in self.sent or sqn not in self.stable, "the number of a stable message was used again"
        self.sent[sqn] = payload
        message = encode_data(self.life, sqn, payload)
        self.source.sent(sqn, message, self.now_ns)
        for store in self.stores:
            if store.is_up and self.draw.random() < 0.8:
                store.side.data(f"session {self.life}", self.life, message)

    def exchange(self) -> None:
        for at, store in enumerate(self.stores):
            if not store.is_up:
                continue
            if at not in self.linked and self.draw.random() < 0.3:
                self.linked.add(at)
                store.side.connected(_SOURCE)
                self.source.connected(at, self.now_ns)
        for at in self.source.tick(self.now_ns):
            self.unlink(at, store_ends=False)
        for at in list(self.linked):
            store = self.stores[at]
            for message in _split(self.source.take_output(at)):
                store.side.received(_SOURCE, message)
            if self.draw.random() < 0.7:
                store.commit()
            store.side.tick()
            for message in _split(store.side.take_output(_SOURCE, 1 << 20)):
                self.source.received(at, message, self.now_ns)
        self.settle()

    def settle(self) -> None:
        """Attach a source that may start, and check its events and what is in flight."""
        if self.source.first_sqn is not None and not self.is_attached:
            self.is_attached = True
            self.source.attach(f"session {self.life}", self.life, self.now_ns)
        for event in self.source.take_events():
            if isinstance(event, MessageStable):
                for sqn in range(event.first_sqn, event.last_sqn + 1):
                    self.stable[sqn] = self.sent[sqn]
            assert not isinstance(event, RegistrationRefused), event
        unstable = [
            sqn for sqn in range(self.source.first_sqn or 0, self.source.next_sqn) if sqn not in self.stable
        ]
        assert self.source.unstable == unstable, "in flight are the sent messages that are not stable"

    def check(self) -> None:
        """Every stable message is readable, equal and in order at a majority of the Stores."""
        for store in self.stores:
            if not store.is_up:
                store.start()
        copies = [store.read(3) for store in self.stores]
        assert all(list(copy) == sorted(copy) for copy in copies)
        for sqn, payload in self.stable.items():
            held = [copy[sqn] for copy in copies if sqn in copy]
            assert held.count(payload) >= 2, (sqn, payload, held)
            assert set(held) == {payload}, (sqn, payload, held)
        for store in self.stores:
            assert store.read(3) == {}, "an acknowledged message was delivered twice"


@pytest.mark.parametrize("first", range(0, 100, 25))
def test_stable_messages_survive_crashes_losses_and_forged_acknowledgements(first: int) -> None:
    """Sources, Stores, disks and connections end at random; see the checks of `_World`."""
    stable_count = 0
    for seed in range(first, first + 25):
        world = _World(seed)
        for _ in range(120):
            world.step()
        world.check()
        stable_count += len(world.stable)
    assert stable_count > 300


def test_numbers_are_extended_to_the_nearest() -> None:
    """Across the wrap in both directions, and never below 0."""
    assert extended(0xFFFFFF9C, 0) == 0xFFFFFF9C
    assert extended(5, 0xFFFFFFFE) == (1 << 32) + 5
    assert extended(0xFFFFFFFE, (1 << 32) + 5) == 0xFFFFFFFE
