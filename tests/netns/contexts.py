"""Contexts of this process on hosts of a lab. A socket belongs to the host whose thread made it, so objects are made
through the host; reading and sending may be done from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

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
