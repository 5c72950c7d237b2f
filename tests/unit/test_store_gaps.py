"""Missing messages of a Store: a reader waits for those that may still arrive, and skips those that are lost."""

from __future__ import annotations

import pytest

from tests.data_messages import encode_data
from tests.simulated_disk import SimulatedDisk
from tests.store_simulation import split
from umstack._engine.endpoint import Endpoint
from umstack.persistence.messages import data_of
from umstack.persistence.reader_side import ReaderSide, ReadMessage
from umstack.persistence.receiver_side import ReceiverSide
from umstack.persistence.replay_start import ReplayStart
from umstack.persistence.source_side import FIRST_SQN_NAME, TRANSPORT_NAME, SourceSide
from umstack.store.protocol import StoreSide
from umstack.store.protocol.store_gaps import AWAY_NS, REPAIR_NS, StoreGaps
from umstack.store.protocol.store_receivers import first_since
from umstack.store.repository import ClientState, Repository, RepositorySettings, StoredMessage
from umstack.store.wire import (
    PROACTIVE,
    ConfigurationValue,
    Keepalive,
    KeepaliveSender,
    Registration,
    RegistrationResponse,
    RetainedRange,
    SourceRegistrationInformation,
    StabilityAck,
    StoreEntry,
    decode,
)

_SETTINGS = RepositorySettings(segment_bytes=1 << 18, staging_bytes=1 << 19, commit_bytes=1 << 18)
_SOURCE, _READER = 1, 2
_TICK_NS = 500_000_000


class OneStore:
    """A Store with one source, whose clock the test moves."""

    def __init__(self, first_sqn: int = 0) -> None:
        self.now_ns = 10**15
        repository = Repository(
            "simulated",
            _SETTINGS,
            files=SimulatedDisk(1),
            state=ClientState(None),
            wall_clock_ns=lambda: self.now_ns,
        )
        self.side = StoreSide(
            repository, Endpoint("10.0.0.1", 1), lambda: self.now_ns, lambda _topic, _source: True
        )
        self.source_id = 0
        self.register(first_sqn)

    def register(self, first_sqn: int = 0) -> None:
        """The source connects and registers."""
        self.side.connected(_SOURCE)
        values = (
            ConfigurationValue(TRANSPORT_NAME, "session"),
            ConfigurationValue(FIRST_SQN_NAME, str(first_sqn)),
        )
        self.side.received(
            _SOURCE,
            Registration(
                is_source=True,
                transport_index=0,
                topic_index=1,
                session_id=7,
                topic="orders",
                forwards_acks=False,
                configuration=values,
            ).encode(),
        )
        (answer,) = self.answers()
        assert isinstance(answer, RegistrationResponse)
        self.source_id = answer.reg_id

    def answers(self) -> list[object]:
        """Messages that the Store sent to the source."""
        return [decode(one) for one in split(self.side.take_output(_SOURCE, 1 << 20))]

    def keep(self, *sqns: int) -> None:
        """Messages arrive on the session, and are committed."""
        for sqn in sqns:
            self.side.data("session", 1, encode_data(1, sqn, b"%d" % sqn))
        self.commit()

    def gaps(self) -> StoreGaps:
        """Its gaps."""
        return self.side._gaps

    def commit(self) -> None:
        """Commit what is staged."""
        while (commit := self.side.repository.commit()) is not None:
            self.side.committed(commit)

    def keepalive(self, oldest_sqn: int, is_last: bool = False) -> None:
        """The source reports the oldest message that it may send again, and whether it ends."""
        self.side.received(
            _SOURCE,
            Keepalive(
                sender=KeepaliveSender.SOURCE,
                transport_index=0,
                topic_index=1,
                reg_id=self.source_id,
                store_index=0,
                oldest_sqn=oldest_sqn,
                is_last=is_last,
            ).encode(),
        )


class Reading:
    """A reader of that Store."""

    def __init__(self, store: OneStore, session_id: int = 3, start: ReplayStart | None = None) -> None:
        self.store, self.side = store, ReaderSide("orders", session_id, start)
        self.read: list[int] = []
        self.lost: list[tuple[int, int]] = []
        store.side.connected(_READER)

    def end(self) -> None:
        """Acknowledge nothing more."""
        self.store.side.write_consumption()
        self.store.side.disconnected(_READER)

    def run(self, seconds: float = 1.0, oldest_sqn: int | None = None) -> None:
        """Let time pass; the source sends keepalives with this number."""
        end_ns = self.store.now_ns + int(seconds * 1e9)
        while self.store.now_ns < end_ns:
            self.store.now_ns += _TICK_NS
            if oldest_sqn is not None:
                self.store.keepalive(oldest_sqn)
            for _ in range(4):
                for one in split(self.side.take_output()):
                    self.store.side.received(_READER, one)
                for one in split(self.store.side.take_output(_READER, 1 << 20)):
                    self.side.received(one, self.store.now_ns)
                for item in self.side.take():
                    if isinstance(item, ReadMessage):
                        self.read.append(item.sqn)
                        self.side.acknowledge({item.source_session_id: item.sqn + 1})
                    else:
                        self.lost.append((item.first_sqn, item.last_sqn))
            self.store.commit()
            self.side.tick(self.store.now_ns)


def test_a_reader_waits_for_what_the_store_gets_later() -> None:
    """A number that a Store does not have yet is requested again; nothing behind it is acknowledged. UP-39, UP-50."""
    store = OneStore()
    store.keep(0, 1, 4, 5)
    reading = Reading(store)
    reading.run(10, oldest_sqn=2)
    assert (reading.read, reading.lost, reading.side.is_complete) == ([0, 1], [], False)
    assert store.side.repository.state.receivers(0)[0].acknowledged_sqn in (None, 1)
    store.keep(2, 3)
    reading.run(oldest_sqn=6)
    assert (reading.read, reading.lost, reading.side.is_complete) == ([0, 1, 2, 3, 4, 5], [], True)


def test_the_first_messages_are_waited_for_too() -> None:
    """A new reader begins with the first message of the source, not with the oldest that the Store has."""
    store = OneStore()
    store.keep(2, 3)
    reading = Reading(store)
    reading.run(oldest_sqn=0)
    assert reading.read == []
    store.keep(0, 1)
    reading.run(oldest_sqn=0)
    assert reading.read == [0, 1, 2, 3]


@pytest.mark.parametrize("ends", ["repaired", "closed", "away", "restarted"])
def test_a_gap_that_stays_is_marked_lost(ends: str) -> None:
    """It is skipped once its source cannot fill it, reported, and late messages are refused. UP-40, UP-59."""
    store = OneStore()
    store.keep(0, 1, 4, 5)
    reading = Reading(store)
    if ends == "repaired":  # a connected source has no message before 6 left, and its NAKs have ended
        reading.run(REPAIR_NS / 1e9 - 1, oldest_sqn=6)
        assert reading.lost == []
        reading.run(3, oldest_sqn=6)
    elif ends == "closed":  # it ended with everything stable
        store.keepalive(6, is_last=True)
        store.side.disconnected(_SOURCE)
        reading.run(2)
    elif ends == "away":
        store.side.disconnected(_SOURCE)
        reading.run(AWAY_NS / 1e9 - 1)
        assert reading.lost == []
        reading.run(3)
    else:
        store.side.disconnected(_SOURCE)
        store.register(first_sqn=6)
        reading.run(2)
    assert (reading.read, reading.lost, reading.side.is_complete) == ([0, 1, 4, 5], [(2, 3)], True)
    reading.end()
    if ends == "away":
        store.register()
        store.side.received(_SOURCE, encode_data(1, 3, b"3", PROACTIVE))
        store.commit()
        (answer,) = store.answers()
        assert isinstance(answer, StabilityAck)
        assert (answer.is_lost, answer.ranges) == (True, ((3, 3),))
        again = Reading(store, session_id=4)
        again.run(oldest_sqn=0)
        assert (again.read, again.lost) == ([0, 1, 4, 5], [(2, 3)])


def test_a_connection_that_drops_is_not_the_end_of_its_source() -> None:
    """The source still serves NAKs, whose repair is kept; a gap is final only after their time. UP-40."""
    store = OneStore()
    store.keep(0, 1, 4, 5)
    store.keepalive(6)
    store.side.disconnected(_SOURCE)
    reading = Reading(store)
    reading.run(2)
    assert (reading.read, reading.lost) == ([0, 1], [])
    store.register()
    store.keep(2, 3)
    reading.run(2, oldest_sqn=6)
    assert (reading.read, reading.lost, reading.side.is_complete) == ([0, 1, 2, 3, 4, 5], [], True)


def test_a_source_reports_its_end_to_its_stores() -> None:
    """Only the keepalive of a closed source reports that it is the last."""
    side = SourceSide("orders", 7, (Endpoint("10.0.0.1", 1),))
    side.connected(0, 0)
    for _ in range(2):
        answer = RegistrationResponse(
            is_source=True,
            reg_id=9,
            transport_index=0,
            topic_index=1,
            low_sqn=0,
            high_sqn=2**32 - 1,
            session_id=7,
        )
        side.received(0, answer.encode(), 0)
        if not side.active_stores:
            side.attach("session", 1, 0)
    side.take_output(0)
    side.tick(side.limits.keepalive_interval_ns)
    side.end()
    sent = [decode(one) for one in split(side.take_output(0))]
    assert [one.is_last for one in sent if isinstance(one, Keepalive)] == [False, True]


def test_a_start_inside_a_marker_skips_the_lost_messages_only() -> None:
    """The messages behind the marker are delivered, and the rest of it is reported. UP-40."""
    store = OneStore()
    store.keep(*range(10))
    store.side.repository.mark_lost(0, 10, 14)
    store.keep(*range(15, 20))
    reading = Reading(store, start=ReplayStart(sqn=12))
    reading.run()
    assert (reading.read, reading.lost, reading.side.is_complete) == ([15, 16, 17, 18, 19], [(12, 14)], True)


def test_a_start_by_time_skips_what_has_no_time() -> None:
    """Missing, marked and damaged messages cost one pass, not a read each. UP-40."""
    disk = SimulatedDisk(1)
    repository = Repository("simulated", _SETTINGS, files=disk, state=ClientState(None))
    number = repository.register_source("orders", 7).number
    far, end = 1 << 30, (1 << 30) + 10
    for sqn in range(10):
        repository.append(number, sqn, b"readable", sqn)
    repository.mark_lost(number, 10, 999)
    for sqn in range(2000, 4000):
        repository.append(number, sqn, b"damaged", 50)
    for sqn in range(far, end):
        repository.append(number, sqn, b"readable", 100 + sqn - far)
    while repository.commit() is not None:
        pass
    for file in disk.files.values():
        file.current[:] = file.current.replace(b"damaged", b"DAMAGED")
    calls: list[tuple[int, int]] = []
    read = repository.read

    def counted(source: int, first: int, last: int, max_bytes: int = 1 << 20) -> list[StoredMessage]:
        calls.append((first, last))
        return read(source, first, last, max_bytes)

    vars(repository)["read"] = counted
    for time_ns, wanted in [(0, 0), (5, 5), (10, 10), (100, 10), (101, far + 1), (109, end - 1), (110, end)]:
        calls.clear()
        damage_count = repository.damage_count
        assert first_since(repository, number, repository.ranges(number), time_ns) == wanted, time_ns
        assert len(calls) < 80
        assert repository.damage_count - damage_count <= 2000


def test_marks_are_not_acknowledged_as_messages() -> None:
    """A commit of markers and messages acknowledges the messages only."""
    store = OneStore()
    store.keep(0, 3)
    store.side.disconnected(_SOURCE)
    store.now_ns += AWAY_NS
    reading = Reading(store)
    store.side._gaps._mark(0, 1, 3)
    store.register()
    store.side.data("session", 1, encode_data(1, 4, b"4"))
    store.commit()
    assert [one.ranges for one in store.answers() if isinstance(one, StabilityAck)] == [((4, 4),)]
    reading.run()
    assert (reading.read, reading.lost) == ([0, 3, 4], [(1, 2)])


class Receiving:
    """A receiver of one source with three Stores, which the test answers for."""

    def __init__(self, active: int) -> None:
        self.now_ns = 10**15
        endpoints = tuple(Endpoint("10.0.0.1", 1 + at) for at in range(3))
        self.side = ReceiverSide("orders", 3, "session", 1, endpoints)
        for at in range(active):
            self.activate(at)
        self.run(2)

    def activate(self, at: int) -> None:
        """A Store accepts the registration."""
        self.side.connected(at, self.now_ns)
        entry = StoreEntry(0, Endpoint("10.0.0.1", 1), source_reg_id=5)
        listed = SourceRegistrationInformation(topic_index=1, version=1, stores=(entry,))
        self.side.received(at, listed.encode(), self.now_ns)
        answer = RegistrationResponse(
            is_source=False, reg_id=9, transport_index=0, topic_index=1, low_sqn=0, high_sqn=9, session_id=3
        )
        self.side.received(at, answer.encode(), self.now_ns)

    def run(self, seconds: float) -> None:
        """Let time pass."""
        end_ns = self.now_ns + int(seconds * 1e9)
        while self.now_ns < end_ns:
            self.now_ns += 100_000_000
            self.side.tick(self.now_ns)

    def lack(self, at: int, sqn: int, until: int) -> None:
        """A Store answers that it does not have a message; the ones before `until` are lost there."""
        self.side.received(at, RetainedRange(until, 9, sqn).encode(), self.now_ns)

    def answer(self) -> object:
        """The answer that the fetch gets."""
        return decode(found) if (found := self.side.take_answers()) else None


def test_a_message_is_lost_when_a_majority_lost_it() -> None:
    """One Store's loss is not enough while the others are away, whatever time passes. UP-39, UP-40."""
    receiving = Receiving(active=1)
    receiving.side.request([4], 1, receiving.now_ns)
    for _ in range(3):
        receiving.lack(0, 4, 6)
        receiving.run(5)
    assert receiving.answer() is None
    receiving.activate(1)
    receiving.run(5)
    assert receiving.answer() is None
    receiving.lack(1, 4, 5)
    lost = receiving.answer()
    assert isinstance(lost, RetainedRange)
    assert lost.low_sqn == 5


def test_a_message_that_a_store_expects_is_not_lost() -> None:
    """An answer with the number itself means: ask again."""
    receiving = Receiving(active=3)
    receiving.side.request([4], 1, receiving.now_ns)
    for at in range(2):
        receiving.lack(at, 4, 6)
    receiving.lack(2, 4, 4)
    receiving.run(20)
    assert receiving.answer() is None
    receiving.side.received(2, encode_data(1, 4, b"4", 10), receiving.now_ns)
    assert receiving.side.take_answers()[-1:] == b"4"


def test_only_lasting_gaps_below_the_oldest_message_of_the_source_are_copied() -> None:
    """UP-83: those that the source can still fill are not, nor what the Store has dropped or marked lost."""
    store = OneStore()
    store.keep(0, 1, 4, 5, 9)
    number = store.side.repository.state.sources()[0].number
    assert list(store.side.missing()) == []  # the source has no other Store
    assert store.gaps().missing(number) == []
    store.keepalive(oldest_sqn=7)
    assert store.gaps().missing(number) == [(2, 3), (6, 6)]
    store.keepalive(oldest_sqn=12)
    assert store.gaps().missing(number) == [(2, 3), (6, 8), (10, 11)]
    store.side.repository.mark_lost(number, 6, 8)
    store.commit()
    assert store.gaps().missing(number) == [(2, 3), (10, 11)]
    store.side.repository.release({number: 4})
    assert store.gaps().missing(number) == [(10, 11)]
    assert store.side.copied(number, ReadMessage(1, 7, 10, data_of(encode_data(1, 10, b"10"))))
    assert store.side.copied(
        number, ReadMessage(1, 8, 11, data_of(encode_data(1, 11, b"of another session")))
    )
    store.commit()
    assert store.gaps().missing(number) == [(11, 11)]


def test_nothing_is_marked_lost_while_other_stores_are_asked() -> None:
    """UP-83: afterwards it is, and a message that is copied later is refused."""
    store = OneStore()
    store.keep(0, 1, 3)
    store.now_ns += REPAIR_NS
    store.keepalive(oldest_sqn=4)
    number = store.side.repository.state.sources()[0].number
    ranges = store.side.repository.ranges(number)
    store.side.copying(number)
    assert store.gaps().lost_until(number, 2, ranges, 0) == 2
    store.commit()
    assert store.side.repository.ranges(number) == [(0, 1), (3, 3)]
    store.side.copied_all(number)
    store.gaps().lost_until(number, 2, ranges, 0)
    store.commit()
    assert store.side.repository.ranges(number) == [(0, 3)]
    assert store.side.copied(number, ReadMessage(1, 7, 2, data_of(encode_data(1, 2, b"2"))))
    assert store.side.counters["late"] == 1


def test_a_copied_message_of_a_former_life_is_the_newest_of_an_empty_store() -> None:
    """UP-83: the first number of the current life is not, so the source may use it."""
    store = OneStore(first_sqn=5)
    number = store.side.repository.state.sources()[0].number
    assert store.side.copied(number, ReadMessage(1, 7, 2, data_of(encode_data(1, 2, b"2"))))
    newest = (
        1 << 32
    ) + 2  # earlier numbers exist: a Store counts from 2^32, so that none of them is negative
    assert store.side._newest_of(number) == newest
    store.commit()
    assert store.side.newest_sqns() == {number: newest}


def test_a_new_store_copies_and_misses_messages_from_before_the_wrap() -> None:
    """UP-83: their lower 32 bits are higher than those of the source's current life."""
    store = OneStore(first_sqn=5)
    number = store.side.repository.state.sources()[0].number
    store.keep(5, 6)
    sqn = (1 << 32) - 2
    assert store.side.copied(number, ReadMessage(1, 7, sqn, data_of(encode_data(1, sqn, b"before"))))
    store.commit()
    lap = 1 << 32
    assert store.side.repository.ranges(number) == [(lap - 2, lap - 2), (lap + 5, lap + 6)]
    assert store.gaps().lost_until(number, lap - 1, store.side.repository.ranges(number), lap + 5) == lap + 5
