"""Contexts of this process on hosts of a lab. A socket belongs to the host whose thread made it, so objects are made
through the host; reading and sending may be done from anywhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.waiting import collect
from umstack import Context, Receiver, Source
from umstack.lab import Host

UNLIMITED = {"transport_lbtrm_data_rate_limit": 0, "transport_lbtrm_retransmit_rate_limit": 0}


class Member:
    """A context on a host."""

    def __init__(self, host: Host, **options: Any) -> None:
        """Open it."""
        self.host = host
        self.context = host.call(lambda: Context(host.interface, **{**UNLIMITED, **options}))

    def source(self, topic: str, **options: Any) -> Source:
        """Make a source there."""
        chosen = {"flow_control": "min", **options}
        return self.host.call(lambda: self.context.source(topic, **chosen))

    def receiver(self, topic: str, **options: Any) -> Receiver:
        """Make a receiver there."""
        return self.host.call(lambda: self.context.receiver(topic, **options))

    def link(self, counter: str) -> int:
        """A counter of the link."""
        return int(self.context.stats()["link_counters"][counter])


@contextmanager
def members(*hosts: Host, **options: Any) -> Iterator[list[Member]]:
    """A context on each of the hosts."""
    with ExitStack() as stack:
        made = []
        for host in hosts:
            made.append(Member(host, **options))
            stack.callback(made[-1].context.close)
        yield made


def numbered(count: int, size: int) -> list[bytes]:
    """Messages that tell which they are."""
    return [b"%08d" % i + bytes(size - 8) for i in range(count)]


def exchange(
    publisher: Member, subscriber: Member, count: int, size: int, **receiver_options: object
) -> None:
    """Send numbered messages and see that all arrive, in order."""
    topic = f"rings/{count}/{size}/{time.monotonic_ns()}"
    with subscriber.receiver(topic, **receiver_options) as receiver, publisher.source(topic) as source:
        source.wait_connected(timeout=10)
        messages = numbered(count, size)
        sender = threading.Thread(target=lambda: source.send_many(messages, flush=True))
        sender.start()
        received = collect(receiver, count, 20)
        sender.join()
        assert [message.data for message in received] == messages


def ring_facts(member: Member) -> dict[str, Any]:
    """What the statistics say of the rings."""
    facts: dict[str, Any] = member.context.stats()["rings"]
    return facts
