"""Contexts of this process on hosts of a lab. A socket belongs to the network namespace of the thread that creates it,
so objects are created through the host; any thread may read and send."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.unit.store_thread import SETTINGS
from tests.waiting import collect
from umstack import Context, Receiver, Source
from umstack.lab import Host
from umstack.store.protocol import StoreLimits
from umstack.store.server import StoreServer

UNLIMITED = {"transport_lbtrm_data_rate_limit": 0, "transport_lbtrm_retransmit_rate_limit": 0}


class Member:
    """A context on a host."""

    def __init__(self, host: Host, **options: Any) -> None:
        """Open the context."""
        self.host = host
        self.context = host.call(lambda: Context(host.interface, **{**UNLIMITED, **options}))

    def source(self, topic: str, **options: Any) -> Source:
        """Create a source on the host."""
        chosen = {"flow_control": "min", **options}
        return self.host.call(lambda: self.context.source(topic, **chosen))

    def receiver(self, topic: str, **options: Any) -> Receiver:
        """Create a receiver on the host."""
        return self.host.call(lambda: self.context.receiver(topic, **options))

    def link(self, counter: str) -> int:
        """Return a counter of the link."""
        return int(self.context.stats()["link_counters"][counter])


@contextmanager
def members(*hosts: Host, **options: Any) -> Iterator[list[Member]]:
    """Open a context on each of the hosts."""
    with ExitStack() as stack:
        made = []
        for host in hosts:
            made.append(Member(host, **options))
            stack.callback(made[-1].context.close)
        yield made


@contextmanager
def store_on(member: Member, directory: Path) -> Iterator[StoreServer]:
    """Run a Store on a member's host, which allows receiver pacing."""
    host = member.host
    limits = StoreLimits(allows_receiver_pacing=True)
    with host.call(
        lambda: StoreServer(member.context, directory, (host.address, 0), SETTINGS, limits=limits)
    ) as store:
        thread = threading.Thread(target=lambda: host.call(store.serve))
        thread.start()
        try:
            yield store
        finally:
            store.stop()
            thread.join()


def numbered(count: int, size: int) -> list[bytes]:
    """Return messages that contain their number."""
    return [b"%08d" % i + bytes(size - 8) for i in range(count)]


def exchange(
    publisher: Member, subscriber: Member, count: int, size: int, **receiver_options: object
) -> None:
    """Send numbered messages and check that all arrive in order."""
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
    """Return the statistics of the rings."""
    facts: dict[str, Any] = member.context.stats()["rings"]
    return facts
