"""The end of a Store's clients: deregistration, and lifetimes by the Store's clock. No sockets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.data_messages import encode_data
from umstack._engine.endpoint import Endpoint
from umstack.persistence.source_side import FIRST_SQN_NAME, TRANSPORT_NAME
from umstack.store.protocol import StoreLimits, StoreSide
from umstack.store.repository import Repository, RepositorySettings
from umstack.store.wire import (
    ConfigurationValue,
    Keepalive,
    KeepaliveSender,
    MalformedMessage,
    Registration,
    RegistrationError,
    RegistrationResponse,
    RetainedRange,
    RetransmissionRequest,
    RetransmissionRequests,
    StabilityAck,
    decode,
    message_bytes,
)
from umstack.store.wire.decoding import ControlMessage

SETTINGS = RepositorySettings(segment_bytes=1 << 18, staging_bytes=1 << 19, commit_bytes=1 << 18)
SECOND = 1_000_000_000
LIFETIME_S = 100


class Store:
    """A Store without sockets, whose clock the test sets; sessions are joined at once if the test allows it."""

    def __init__(self, directory: Path) -> None:
        self.now_ns = 1_000 * SECOND
        self.is_joined = True
        self.repository = Repository(directory, SETTINGS, wall_clock_ns=lambda: self.now_ns)
        limits = StoreLimits(state_lifetime_ns=LIFETIME_S * SECOND, allows_receiver_pacing=True)
        self.side = StoreSide(
            self.repository,
            Endpoint("10.0.0.1", 1),
            lambda: self.now_ns,
            lambda topic, source: self.is_joined,
            limits,
        )

    def connect(self, *numbers: int) -> None:
        """Connect clients."""
        for number in numbers:
            self.side.connected(number)

    def ask(self, connection: int, message: Registration | Keepalive) -> list[ControlMessage]:
        """The answers to a message."""
        self.side.received(connection, message.encode())
        return self.output(connection)

    def output(self, connection: int) -> list[ControlMessage]:
        """The control messages that wait for a client."""
        data, found = self.side.take_output(connection, 1 << 20), []
        while data:
            size = message_bytes(data[:4])
            control = decode(data[:size])
            assert control is not None
            found.append(control)
            data = data[size:]
        return found

    def source(
        self,
        connection: int,
        topic: str,
        session_id: int = 7,
        more: dict[str, int] | None = None,
        first_sqn: int = 0,
        **fields: int,
    ) -> RegistrationResponse:
        """Register a source with its transport session, and more configuration values."""
        values = (
            ConfigurationValue(TRANSPORT_NAME, f"session {topic}"),
            ConfigurationValue(FIRST_SQN_NAME, str(first_sqn)),
            *(ConfigurationValue(name, str(value)) for name, value in (more or {}).items()),
        )
        found = self.ask(connection, registration(topic, session_id, configuration=values, **fields))
        return [one for one in found if isinstance(one, RegistrationResponse)][-1]

    def receiver(
        self, connection: int, topic: str, reg_id: int, session_id: int = 3, **fields: object
    ) -> RegistrationResponse:
        """Register a receiver of a source."""
        (found,) = self.ask(
            connection, registration(topic, session_id, is_source=False, source_reg_id=reg_id, **fields)
        )
        assert isinstance(found, RegistrationResponse)
        return found

    def keep(self, *sqns: int, topic: str = "orders", size: int = 1000) -> None:
        """Messages of a source arrive and are committed, as far as there is space."""
        for sqn in sqns:
            self.side.data(f"session {topic}", 1, encode_data(1, sqn, bytes(size)))
        while (commit := self.repository.commit()) is not None:
            self.side.committed(commit)

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass."""
        self.now_ns += int(seconds * SECOND)
        self.side.check_lifetimes()

    def topics(self) -> list[str]:
        """The topics of the registered sources."""
        return [state.topic for state in self.repository.state.sources()]


def registration(topic: str, session_id: int, **fields: object) -> Registration:
    chosen: dict[str, object] = {"is_source": True, "transport_index": 0, "topic_index": 1, **fields}
    return Registration(topic=topic, session_id=session_id, **chosen)  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A Store."""
    one = Store(tmp_path)
    yield one
    one.repository.close()


def test_a_deregistered_source_is_deleted_with_its_messages(store: Store) -> None:
    """Messages of others that it commits are acknowledged; its receivers can request nothing. UP-3, UP-70."""
    store.connect(1, 2, 3)
    reg_id = store.source(1, "orders").reg_id
    store.source(2, "trades", 8)
    receiver = store.receiver(3, "orders", reg_id)
    store.side.data("session orders", 1, encode_data(1, 0, b"order"))
    store.side.data("session trades", 1, encode_data(1, 0, b"trade"))
    refused = store.ask(2, registration("orders", 7, is_deregistration=True))
    assert isinstance(refused[0], RegistrationResponse)
    assert refused[0].error is RegistrationError.SOURCE_NOT_FOUND
    found = store.ask(1, registration("orders", 7, is_deregistration=True))
    last = found[-1]
    assert isinstance(last, RegistrationResponse)
    assert (last.is_deregistration, last.error, last.high_sqn) == (True, None, 0)
    assert isinstance(store.output(2)[0], StabilityAck)
    assert store.topics() == ["trades"]
    requests = RetransmissionRequests(
        transport_index=0, source_reg_id=reg_id, requests=(RetransmissionRequest(0, 0),)
    )
    with pytest.raises(MalformedMessage):
        store.side.received(3, requests.encode())
    (gone,) = store.ask(
        3, registration("orders", 3, is_source=False, is_deregistration=True, reg_id=receiver.reg_id)
    )
    assert isinstance(gone, RegistrationResponse)
    assert gone.error is RegistrationError.SOURCE_NOT_FOUND
    assert store.source(1, "orders").error is None


def test_a_deregistered_receiver_begins_again(store: Store) -> None:
    """Its acknowledgements are forgotten; another one's stay. UP-70."""
    store.connect(1, 2)
    reg_id = store.source(1, "orders").reg_id
    one = store.receiver(2, "orders", reg_id)
    state = store.repository.state
    state.acknowledge({(0, one.reg_id): 5}, store.now_ns)
    (answer,) = store.ask(
        2, registration("orders", 3, is_source=False, is_deregistration=True, reg_id=one.reg_id)
    )
    assert isinstance(answer, RegistrationResponse)
    assert answer.is_deregistration
    assert state.receivers(0) == []
    assert not store.receiver(2, "orders", reg_id).is_known


def test_clients_that_stay_away_are_deleted_after_their_lifetime(store: Store, tmp_path: Path) -> None:
    """The shorter of theirs and the Store's counts; connected ones stay, and a restart begins again.

    UP-66, UP-67: the newest registration states the lifetime.
    """
    store.connect(1, 2, 3)
    orders = store.source(1, "orders").reg_id
    store.source(2, "trades", 8, state_lifetime_ms=3_600_000)
    store.source(2, "trades", 8, state_lifetime_ms=10_000)
    store.receiver(3, "orders", orders, state_lifetime_ms=20_000)
    store.pass_seconds(3 * LIFETIME_S)
    assert store.topics() == ["orders", "trades"]
    for connection in (2, 3):
        store.side.disconnected(connection)
    store.pass_seconds(11)
    assert store.topics() == ["orders"]
    assert len(store.repository.state.receivers(0)) == 1
    store.pass_seconds(10)
    assert store.repository.state.receivers(0) == []
    store.side.disconnected(1)
    store.pass_seconds(LIFETIME_S - 1)
    assert store.topics() == ["orders"]
    store.repository.close()
    again = Store(tmp_path)
    again.now_ns = store.now_ns + 1_000_000 * SECOND
    again.side = StoreSide(again.repository, Endpoint("10.0.0.1", 1), lambda: again.now_ns, lambda *_: True)
    again.pass_seconds(LIFETIME_S - 1)
    assert again.topics() == ["orders"]
    again.pass_seconds(24 * 3600)
    assert again.topics() == []
    assert again.side.counters["expired"] == 1
    again.repository.close()


def test_keepalives_report_a_session_that_is_not_joined(store: Store) -> None:
    """The source learns that the Store does not receive it; the session may come later. UP-26, UP-28."""
    store.connect(1)
    store.is_joined = False
    values = ConfigurationValue(TRANSPORT_NAME, "session orders"), ConfigurationValue(FIRST_SQN_NAME, "0")
    assert store.ask(1, registration("orders", 7, configuration=values)) == []
    reg_id = store.repository.state.sources()[0].registration_id
    asked = Keepalive(
        sender=KeepaliveSender.SOURCE,
        transport_index=0,
        topic_index=1,
        reg_id=reg_id,
        store_index=0,
        needs_response=True,
    )
    (answer,) = store.ask(1, asked)
    assert isinstance(answer, Keepalive)
    assert not answer.has_seen_topic
    store.is_joined = True
    store.side.tick()
    assert isinstance(store.output(1)[0], RegistrationResponse)
    (answer,) = store.ask(1, asked)
    assert isinstance(answer, Keepalive)
    assert answer.has_seen_topic


def test_only_registered_sources_are_kept(store: Store) -> None:
    """A streaming source of the same topic is left alone, and so is a source before its registration. UP-10, UP-27."""
    store.connect(1)
    store.side.data("session orders", 1, encode_data(1, 0, b"before"))
    store.source(1, "orders")
    store.side.data("another session", 1, encode_data(1, 0, b"streaming"))
    store.side.data("session orders", 1, encode_data(1, 0, b"kept"))
    store.repository.commit()
    (message,) = store.repository.read(0, 0)
    assert message.message.endswith(b"kept")
    assert store.side.counters["messages"] == 1


def test_a_session_id_belongs_to_one_connection(store: Store) -> None:
    """A second claimant is refused until the first one is gone, without a wait. UP-15, UP-17."""
    store.connect(1, 2)
    first = store.source(1, "orders")
    assert store.source(2, "orders").error is RegistrationError.USED_BY_SOURCE
    store.side.disconnected(1)
    again = store.source(2, "orders")
    assert (again.error, again.reg_id, again.is_known) == (None, first.reg_id, True)


def test_registration_ids_count_up(store: Store) -> None:
    """From a number that the Store chose when it was created, 0 left out. UP-18."""
    store.connect(1)
    ids = [store.source(1, f"topic {number}").reg_id for number in range(3)]
    assert all((after - before) % (1 << 32) in (1, 2) for before, after in pairwise(ids))
    assert 0 not in ids


def test_a_gap_holds_back_no_acknowledgement(store: Store) -> None:
    """Ranges on both sides of it are acknowledged; the answer 2: message 2 may still come. UP-41, UP-50."""
    store.connect(1, 2)
    reg_id = store.source(1, "orders").reg_id
    for sqn in (0, 1, 4):
        store.side.data("session orders", 1, encode_data(1, sqn, b"data"))
    commit = store.repository.commit()
    assert commit is not None
    store.side.committed(commit)
    (ack,) = store.output(1)
    assert isinstance(ack, StabilityAck)
    assert ack.ranges == ((0, 1), (4, 4))
    store.receiver(2, "orders", reg_id)
    asked = RetransmissionRequests(
        transport_index=0, source_reg_id=reg_id, requests=(RetransmissionRequest(9, 2),)
    )
    store.side.received(2, asked.encode())
    assert store.output(2) == [RetainedRange(2, 4, 9)]


def test_a_receiver_never_starts_above_the_newest_message(store: Store) -> None:
    """Even if it acknowledged more, as it may have before the Store lost its messages. UP-38."""
    store.connect(1, 2)
    reg_id = store.source(1, "orders").reg_id
    store.side.data("session orders", 1, encode_data(1, 0, b"data"))
    store.repository.commit()
    receiver = store.receiver(2, "orders", reg_id)
    store.repository.state.acknowledge({(0, receiver.reg_id): 50}, store.now_ns)
    again = store.receiver(2, "orders", reg_id)
    assert (again.low_sqn, again.high_sqn) == (1, 0)


def test_a_receiver_has_a_limit_of_waiting_requests(store: Store) -> None:
    """More end its connection, so that they cannot fill the memory. UP-84."""
    store.connect(1, 2)
    reg_id = store.source(1, "orders").reg_id
    store.receiver(2, "orders", reg_id)
    requests = tuple(RetransmissionRequest(number, number) for number in range(2000))
    asked = RetransmissionRequests(transport_index=0, source_reg_id=reg_id, requests=requests).encode()
    for _ in range(StoreLimits().requests // len(requests)):
        store.side.received(2, asked)
    with pytest.raises(MalformedMessage):
        store.side.received(2, asked)
