"""Registrations and acknowledgements that a Store must survive, and that change nothing of others. No sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_store_lifetimes import Store, registration
from umstack.persistence.pacing import RETAINED_BYTES_NAME
from umstack.store.protocol import StoreLimits, StoreSide
from umstack.store.wire import ConsumptionAck, DeliveryConfirmation, MalformedMessage, RegistrationError

_SPACE = 1 << 32
SOURCE, READER, OTHER = 1, 2, 3
HUGE = 10**19


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A Store with three connections."""
    one = Store(tmp_path)
    one.connect(SOURCE, READER, OTHER)
    yield one
    one.repository.close()


def acknowledge(store: Store, source_id: int, receiver_id: int, sqn: int) -> None:
    """A receiver has consumed every message up to this one."""
    ack = ConsumptionAck(
        transport_index=0,
        source_reg_id=source_id,
        receiver_reg_id=receiver_id,
        sqn=sqn % _SPACE,
        store_index=0,
    )
    store.side.received(READER, ack.encode())
    store.side.write_consumption()


def test_a_huge_limit_is_no_error(store: Store) -> None:
    """One that SQLite cannot hold: only a receiver-paced source may lower the limit, and it is refused."""
    assert store.source(SOURCE, "orders", more={RETAINED_BYTES_NAME: HUGE}).error is None
    assert store.repository.state.sources("orders")[0].retention_bytes == 0
    refused = store.source(OTHER, "trades", more={RETAINED_BYTES_NAME: HUGE}, is_receiver_paced=True)
    assert refused.error is RegistrationError.CONFIGURATION


def test_a_topic_that_is_no_text_is_malformed(store: Store) -> None:
    """No name of a topic can be compared with it, or written."""
    encoded = registration("orders", 7).encode()
    with pytest.raises(MalformedMessage, match="UTF-8"):
        store.side.received(SOURCE, encoded.replace(b"orders", b"\xff\xfeders"))


def test_a_refused_registration_changes_nothing(store: Store) -> None:
    """Another connection claims the session id of a source in use, with a limit of one byte."""
    reg_id = store.source(SOURCE, "orders", activity_timeout_ms=1000).reg_id
    before = store.repository.state.sources("orders")
    refused = store.source(OTHER, "orders", activity_timeout_ms=1, more={RETAINED_BYTES_NAME: 1})
    assert refused.error is RegistrationError.USED_BY_SOURCE
    assert store.repository.state.sources("orders") == before
    assert store.source(SOURCE, "orders").reg_id == reg_id


def test_an_acknowledgement_before_the_first_number_is_none(store: Store) -> None:
    """A replay that has a part of a message which begins with number 0 has consumed nothing yet."""
    reg_id = store.source(SOURCE, "orders").reg_id
    receiver_id = store.receiver(READER, "orders", reg_id).reg_id
    store.keep(0, 1)
    acknowledge(store, reg_id, receiver_id, -1)
    assert store.receiver(READER, "orders", reg_id).low_sqn == 0
    acknowledge(store, reg_id, receiver_id, 0)
    assert store.receiver(READER, "orders", reg_id).low_sqn == 1


def test_acknowledgements_are_forwarded_as_the_source_reads(tmp_path: Path) -> None:
    """UP-62: those of many receivers exceed what may wait for a connection, which is not ended for that."""
    store = Store(tmp_path)
    limits = StoreLimits(output_bytes=2000, receivers=200)
    store.side = StoreSide(
        store.repository, store.side.endpoint, lambda: store.now_ns, lambda *_: True, limits
    )
    store.connect(SOURCE, READER)
    reg_id = store.source(SOURCE, "orders").reg_id
    store.keep(0)
    for session_id in range(1, 101):
        receiver_id = store.receiver(READER, "orders", reg_id, session_id).reg_id
        acknowledge(store, reg_id, receiver_id, 0)
        store.output(SOURCE)
    before = store.side.counters["forwarded"]
    store.source(SOURCE, "orders")  # it registers again: all are forwarded
    for _ in range(20):
        store.side.write_consumption()
        found = [one for one in store.output(SOURCE) if isinstance(one, DeliveryConfirmation)]
        assert len(found) < 50
    assert not store.side.take_overfull()
    assert store.side.counters["forwarded"] == before + 100
    store.repository.close()
