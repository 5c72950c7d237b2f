"""The way of received messages into a Store: many at a time where they follow each other, and the same one by one."""

from __future__ import annotations

import os
import random
from array import array
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import pytest

from tests.data_messages import encode_data
from tests.simulated_disk import SimulatedDisk
from umstack._core import ffi
from umstack._engine.endpoint import Endpoint
from umstack.batch import Batch
from umstack.persistence.source_side import FIRST_SQN_NAME, TRANSPORT_NAME
from umstack.store.intake import Intake
from umstack.store.protocol import StoreSide
from umstack.store.protocol.staged_numbers import StagedNumbers
from umstack.store.repository import ClientState, Repository, RepositorySettings
from umstack.store.wire import ConfigurationValue, Registration

_SPACE = 1 << 32
_SETTINGS = RepositorySettings(
    segment_bytes=1 << 20, staging_bytes=1 << 19, commit_bytes=1 << 18, source_bytes=1 << 26
)
_SESSIONS = ("LBTRM:10.0.0.1:1:2:239.1.1.1:3[5]", "LBTRM:10.0.0.2:1:2:239.1.1.1:3[0]")
_UNKNOWN = "LBTRM:10.0.0.3:1:2:239.1.1.1:3[0]"
_OF_EVENTS = ("", "eth0")
"""Sources of NoSource and InterfaceChanged."""
_EVENT, _FRAGMENT, _PROPERTIES = 0x100, 4, 0x1000


@dataclass
class Rows:
    """A batch as its columns."""

    offsets: array[int] = field(default_factory=lambda: array("i", [0]))
    sequence_numbers: array[int] = field(default_factory=lambda: array("I"))
    sources: array[int] = field(default_factory=lambda: array("I"))
    flags: array[int] = field(default_factory=lambda: array("H"))
    received_ns: array[int] = field(default_factory=lambda: array("q"))
    places: list[array[int]] = field(default_factory=lambda: [array("I") for _ in range(4)])
    """First sqns, offsets and lengths of fragments; offsets and lengths of properties."""
    payload: bytes = b""

    def __len__(self) -> int:
        return len(self.flags)

    def source_of(self, number: int) -> str:
        """The name of a source."""
        return (*_SESSIONS, _UNKNOWN, *_OF_EVENTS)[number]

    def _columns_of_parts(self) -> tuple[object, ...]:
        kinds = ("uint32_t[]", "uint32_t[]", "uint32_t[]", "um_properties_place[]")
        return tuple(ffi.from_buffer(kind, place) for kind, place in zip(kinds, self.places, strict=True))

    def add(self, source: int, sqn: int, payload: bytes, flags: int) -> None:
        """Append a row."""
        for column, value in zip(self.places, fragment_of(sqn, payload), strict=False):
            column.append(value)
        self.places[3].extend((0, properties_bytes_of(sqn)))
        self.payload += payload
        self.offsets.append(len(self.payload))
        self.sequence_numbers.append(sqn % _SPACE)
        self.sources.append(source)
        self.flags.append(flags)
        self.received_ns.append(10**18 + len(self))


def fragment_of(sqn: int, payload: bytes) -> tuple[int, int, int]:
    """Fields of a fragment, if this message is one."""
    return (sqn - sqn % 3) % _SPACE, sqn % 3 * 100, 300 + len(payload)


def properties_bytes_of(sqn: int) -> int:
    """Length of the properties, if this message has any."""
    return 40 + sqn % 7


def store(first_sqns: tuple[int, int]) -> StoreSide:
    """A Store where both sources are registered."""
    repository = Repository("simulated", _SETTINGS, files=SimulatedDisk(1), state=ClientState(None))
    side = StoreSide(repository, Endpoint("10.0.0.1", 1), lambda: 10**18, lambda _topic, _source: True)
    for at, (name, first) in enumerate(zip(_SESSIONS, first_sqns, strict=True)):
        transport, _, index = name[:-1].rpartition("[")
        side.connected(at)
        values = (
            ConfigurationValue(TRANSPORT_NAME, transport),
            ConfigurationValue(FIRST_SQN_NAME, str(first)),
        )
        registration = Registration(
            is_source=True,
            transport_index=0,
            topic_index=int(index),
            session_id=7 + at,
            topic="orders",
            configuration=values,
        )
        side.received(at, registration.encode())
        side.take_output(at, 1 << 20)
    return side


def commit(side: StoreSide) -> None:
    """Commit what is staged."""
    while (done := side.repository.commit()) is not None:
        side.committed(done)


def contents(side: StoreSide) -> list[object]:
    """Everything the Store has, and has counted."""
    states = side.repository.state.sources()
    kept = [
        (one.sqn, one.received_ns, one.message, one.lost_count)
        for state in states
        for one in side.repository.read(state.number, 0, max_bytes=1 << 26)
    ]
    outputs = [b"".join(iter(partial(side.take_output, at, 1 << 20), b"")) for at in range(2)]
    return [kept, outputs, dict(side.counters), side.newest_sqns()]


def one_by_one(side: StoreSide, rows: Rows) -> None:
    """Pass each message to the Store by itself."""
    for at in range(len(rows)):
        transport, _, index = rows.source_of(rows.sources[at])[:-1].rpartition("[")
        flags = rows.flags[at]
        if not flags & 0xF00:
            first, offset, total, places = (column[at] for column in (*rows.places[:3], rows.places[3][1::2]))
            data = encode_data(
                int(index),
                rows.sequence_numbers[at],
                rows.payload[rows.offsets[at] : rows.offsets[at + 1]],
                fragment=(first, offset, total) if flags & _FRAGMENT else None,
                properties_bytes=places if flags & _PROPERTIES else 0,
            )
            while not side.data(transport, int(index), data, rows.received_ns[at]):
                commit(side)


def random_rows(numbers: random.Random, next_sqns: list[int]) -> Rows:
    """Messages of two sources, mostly in order; with gaps, copies, late ones, events, fragments, an unknown source."""
    rows = Rows()
    for _ in range(numbers.randrange(1, 60)):
        source = numbers.randrange(2)
        for _ in range(numbers.choice((1, 1, 3, 30))):
            kind = numbers.random()
            sqn = next_sqns[source]
            if kind < 0.05:
                sqn += numbers.randrange(1, 5)
            elif kind < 0.15:
                sqn = max(0, sqn - numbers.randrange(1, 9))
            more = numbers.choice((0, 0, 0, _FRAGMENT, _PROPERTIES, _FRAGMENT | _PROPERTIES))
            flags = _EVENT if kind > 0.97 else more if more else numbers.choice((0, 0, 3, 8))
            payload = numbers.randbytes(numbers.choice((0, 1, 70, 1400, 9000)))
            number = 2 if 0.93 < kind < 0.95 else source
            if flags == _EVENT:
                number = numbers.choice((source, 3, 4))
            rows.add(number, sqn, payload, flags)
            if flags != _EVENT and not 0.93 < kind < 0.95:
                next_sqns[source] = max(next_sqns[source], sqn + 1)
    return rows


def seeded() -> random.Random:
    """Random numbers that UM_SEED repeats."""
    seed = int(os.environ.get("UM_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"UM_SEED={seed}")
    return random.Random(seed)


@pytest.mark.parametrize("first", [0, _SPACE - 40])
def test_batches_are_kept_like_single_messages(first: int) -> None:
    """UP-50: the same messages, times, acknowledgements and counters, whatever is missing, repeated or in the way."""
    numbers = seeded()
    for _ in range(6):
        many, single = store((first, first + 5)), store((first, first + 5))
        intake, next_sqns = Intake(many), [first, first + 5]
        for _ in range(8):
            rows = random_rows(numbers, next_sqns)
            intake.take(cast("Batch", rows))
            while intake.is_waiting:
                if not intake.keep():
                    commit(many)
            one_by_one(single, rows)
            commit(many)
            commit(single)
        assert contents(many) == contents(single)
        many.repository.close()
        single.repository.close()


def test_staged_numbers_are_those_added_and_not_discarded() -> None:
    """Against a set of numbers."""
    numbers = seeded()
    staged, expected = StagedNumbers(), set[tuple[int, int]]()
    for _ in range(5000):
        source, first = numbers.randrange(2), numbers.randrange(300)
        last = first + numbers.choice((0, 0, 5, 40))
        places = {(source, sqn) for sqn in range(first, last + 1)}
        if numbers.random() < 0.5:
            staged.discard(source, first, last)
            expected -= places
        elif not places & expected:
            staged.add(source, first, last)
            expected |= places
        probes = {(at, sqn) for at in range(3) for sqn in numbers.sample(range(350), 20)}
        assert {place for place in probes if place in staged} == probes & expected
