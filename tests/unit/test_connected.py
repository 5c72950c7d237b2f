"""wait_connected() of both ends: what the source sends from then on arrives, over every transport."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.unit.loopback import FIXED_PORT, SHARED, open_context
from tests.unit.ways import EVERY_WAY, MAPS_HERE, alone
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, NotConnected
from umstack._engine import engine
from umstack._engine.subscription import Mapped, MappingRequest, map_sources

pytestmark = pytest.mark.usefixtures("way")
TRANSPORTS = ("lbtrm", "lbtru", "tcp", "lbtipc")
FLOW: dict[str, Any] = {
    "lbtrm": {"flow_control": "min", **SHARED},
    "lbtru": {"transport_lbtru_port": FIXED_PORT},
}
"""Sources with these options are of one session; the other transports have one port for all."""


@pytest.fixture
def publisher() -> Iterator[Context]:
    with open_context(
        transport_tcp_maximum_ports=1, transport_lbtipc_id_low=4000, transport_lbtipc_id_high=4000
    ) as context:
        yield context


@pytest.fixture
def subscriber() -> Iterator[Context]:
    with open_context() as context:
        yield context


@EVERY_WAY
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_what_is_sent_once_the_receiver_is_connected_arrives(
    publisher: Context, subscriber: Context, transport: str
) -> None:
    """The source is asked nothing: the receiver knows by itself that it is accepted."""
    for number in range(20):
        topic = f"first {number}"
        with publisher.source(topic, transport=transport) as source, subscriber.receiver(topic) as receiver:
            receiver.wait_connected(timeout=SECONDS)
            source.send(b"%d" % number, flush=True)
            assert [one.data for one in collect(receiver, 1)] == [b"%d" % number]


@alone(MAPS_HERE)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_source_is_connected_to_receivers_of_its_topic(
    publisher: Context, subscriber: Context, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver of another topic of the session does not count, nor one whose topic is not mapped yet."""
    other = publisher.source("other", transport=transport, **FLOW.get(transport, {}))
    with subscriber.receiver("other"):
        other.wait_connected(timeout=SECONDS)
        source = publisher.source("late", transport=transport, **FLOW.get(transport, {}))
        assert source.transport == other.transport
        may_map = threading.Event()

        def map_when_allowed(requests: Sequence[MappingRequest]) -> list[Mapped]:
            assert may_map.wait(SECONDS)
            return map_sources(requests)

        monkeypatch.setattr(engine, "map_sources", map_when_allowed)
        with subscriber.receiver("late") as receiver:
            with pytest.raises(NotConnected):
                source.wait_connected(timeout=0.3)
            may_map.set()
            source.wait_connected(timeout=SECONDS)
            source.send(b"arrives", flush=True)
            assert [one.data for one in collect(receiver, 1)] == [b"arrives"]
            other.wait_connected(timeout=SECONDS)
        wait_for(lambda: source.known_receivers == 0, "the end of the receiver")
        other.wait_connected(timeout=SECONDS)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_of_many_topics_of_a_session_is_connected(
    way: str, publisher: Context, subscriber: Context, transport: str
) -> None:
    """More topics than one report of a receiver holds; the end of one of them is reported, too."""
    names = [f"many {number}" for number in range(150)]
    sources = [publisher.source(name, transport=transport, **FLOW.get(transport, {})) for name in names]
    receivers = [subscriber.receiver(name) for name in names]
    if way == "alone":  # the driver spreads them over its TCP ports
        assert len({source.transport for source in sources}) == 1
    for source in sources:
        source.wait_connected(timeout=SECONDS)
    receivers[70].close()
    wait_for(lambda: sources[70].known_receivers == 0, "the end of the receiver")
    for source in sources[:70] + sources[71:]:
        source.wait_connected(timeout=SECONDS)


@EVERY_WAY
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_receiver_of_a_context_gets_the_first_message(
    publisher: Context, subscriber: Context, transport: str
) -> None:
    """A source knows a context as one receiver: what it sends then reaches all receivers of the topic there."""
    for number in range(20):
        topic = f"every {number}"
        with contextlib.ExitStack() as stack:
            receivers = [stack.enter_context(subscriber.receiver(topic)) for _ in range(8)]
            source = stack.enter_context(
                publisher.source(topic, transport=transport, **FLOW.get(transport, {}))
            )
            source.wait_connected(timeout=SECONDS)
            source.send(b"%d" % number, flush=True)
            for receiver in receivers:
                assert [one.data for one in collect(receiver, 1)] == [b"%d" % number]
