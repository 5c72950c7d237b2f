"""Message properties and hot failover over AF_XDP rings and sockets, across a switch that loses datagrams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.netns.contexts import members
from tests.waiting import collect, wait_for
from umstack.lab import Lab
from umstack_xdp.xsk import unavailable

COUNT = 2000
LINKS = [
    "socket",
    pytest.param("xdp", marks=pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))),
]


@pytest.fixture
def lossy_lab(shared_lab: Lab) -> Iterator[Lab]:
    """Return a lab whose switch loses 2 % of the datagrams to each host."""
    for number in range(len(shared_lab.hosts)):
        shared_lab.port(number).set(loss=0.02)
    yield shared_lab
    for number in range(len(shared_lab.hosts)):
        shared_lab.port(number).set(loss=0.0)


def _messages(seed: int) -> list[tuple[bytes, dict[str, Any]]]:
    """Return messages of one datagram and of several, with and without properties."""
    print(f"seed {seed}")
    chosen = random.Random(seed)
    made = []
    for number in range(COUNT):
        size = chosen.choice((0, 10, 700, 1380, 1440, 5000))
        properties = {"number": number, "text": "x" * chosen.randrange(100)} if number % 3 else {}
        made.append((chosen.randbytes(size), properties))
    return made


@pytest.mark.parametrize("link", LINKS)
def test_properties_come_with_their_messages(lossy_lab: Lab, link: str) -> None:
    """W5: messages and properties arrive intact over every link, and after retransmissions."""
    messages = _messages(random.randrange(1 << 30))
    with (
        members(*lossy_lab.hosts[:2], link=link) as (publisher, subscriber),
        subscriber.receiver("properties") as receiver,
        publisher.source("properties") as source,
    ):
        source.wait_connected(timeout=10)
        received: list[Any] = []
        for number, (data, properties) in enumerate(messages, 1):
            source.send(data, properties=properties)
            if number % 100 == 0:
                source.flush()
                received += receiver.poll(1000, 0).messages()
        received += collect(receiver, COUNT - len(received), 30)
        assert [(message.data, dict(message.properties)) for message in received] == messages
        assert receiver.stats()["properties_dropped"] == 0
        assert subscriber.context.link_mode != "socket" or link == "socket"


@pytest.mark.parametrize("link", LINKS)
def test_two_lines_make_one_stream(lossy_lab: Lab, link: str) -> None:
    """W5: hot failover with properties works over rings while datagrams are lost and one line ends half way."""
    messages = _messages(random.randrange(1 << 30))
    with members(*lossy_lab.hosts[:3], link=link) as (first, second, subscriber):
        receiver = subscriber.host.call(lambda: subscriber.context.hot_failover_receiver("lines"))
        sources = [line.source("lines") for line in (first, second)]
        for source in sources:
            source.wait_connected(timeout=10)
        received: list[Any] = []
        for number, (data, properties) in enumerate(messages):
            for at, source in enumerate(sources):
                if at == 1 or number < COUNT // 2:
                    source.send_hot_failover(data, number, properties=properties)
            if number % 100 == 99:
                for source in sources:
                    source.flush()
                received += receiver.poll(1000, 0).messages()

        def are_all_here() -> bool:
            received.extend(receiver.poll(1000, 0.05).messages())
            return len(received) >= COUNT

        wait_for(are_all_here, "every number", 30)
        assert [message.hot_failover_sequence_number for message in received] == list(range(COUNT))
        assert [(message.data, dict(message.properties)) for message in received] == messages
        assert receiver.stats()["hf_lost"] == 0
