"""Connections of a Store's clients, as the protocol sees them, and the messages that wait for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from umstack._engine.endpoint import Endpoint
from umstack.store.wire import Registration, RegistrationError, RegistrationResponse


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Limits and permissions of a Store's clients: for one connection, if nothing else is stated.

    Args:
        sources: Maximum number of sources that one connection registers.
        receivers: Maximum number of receivers that one connection registers.
        requests: Maximum number of requests that wait to be served; more end the connection.
        serve_bytes: Bytes of messages read from the repository at a time.
        state_lifetime_ns: Time after which the state and the messages of a client that does not return are deleted.
        output_bytes: Bytes of answers and acknowledgements that wait for one connection; with more it must be ended.
        allows_receiver_pacing: Sources may be receiver-paced.
    """

    sources: int = 1024
    receivers: int = 4096
    requests: int = 8192
    serve_bytes: int = 1 << 18
    output_bytes: int = 2 << 20
    state_lifetime_ns: int = 24 * 3_600_000_000_000
    allows_receiver_pacing: bool = False


@dataclass(slots=True)
class RequestedRange:
    """Requests of a client for consecutive messages."""

    source: int
    """Number of the source."""
    sqn: int
    """The first message."""
    index: int
    """Index of its request; the others follow."""
    count: int = 1


@dataclass(slots=True)
class StoreConnection:
    """A client's connection."""

    number: int
    is_allowed: Callable[[str], bool]
    """Returns true if the connection may use a topic."""
    output: deque[bytes] = field(default_factory=deque)
    output_bytes: int = 0
    has_registered: bool = False
    sources: set[int] = field(default_factory=set)
    """Numbers of the sources that registered over it."""
    receivers: dict[int, int] = field(default_factory=dict)
    """Source number of each receiver that registered over it, by the receiver's registration id."""
    readable: dict[int, int] = field(default_factory=dict)
    """The numbers of these sources, by their registration id."""
    requests: deque[RequestedRange] = field(default_factory=deque)
    request_count: int = 0
    """Messages of all its requests."""


class MissingMessages(NamedTuple):
    """Messages that a Store misses, and the other Stores of their source."""

    source: int
    """Number of the source."""
    topic: str
    session_id: int
    peers: tuple[Endpoint, ...]
    ranges: tuple[tuple[int, int], ...]
    """First and last number of each gap."""


class Outbox:
    """Queues messages for the clients of a Store, and counts."""

    def __init__(self, limits: StoreLimits) -> None:
        self.limits = limits
        self.ready: set[int] = set()
        """Connections that got output or requests."""
        self.overfull: set[int] = set()
        """Connections whose clients do not read, and must be ended."""
        self.counters = dict.fromkeys(
            (
                "messages",
                "message_bytes",
                "duplicates",
                "late",
                "no_space",
                "proactive",
                "copied",
                "acknowledgements",
                "forwarded",
                "registrations",
                "replays",
                "served",
                "missing",
                "refused",
                "deregistered",
                "expired",
            ),
            0,
        )

    def put(self, one: StoreConnection, message: bytes) -> None:
        """Queue a message for a client. One that does not read gets no more, and its connection must be ended."""
        if one.output_bytes + len(message) > self.limits.output_bytes:
            self.overfull.add(one.number)
            return
        one.output.append(message)
        one.output_bytes += len(message)
        self.ready.add(one.number)

    def refuse(
        self, one: StoreConnection, wanted: Registration, error: RegistrationError, reason: str = ""
    ) -> None:
        self.counters["refused"] += 1
        response = RegistrationResponse(
            is_source=wanted.is_source,
            reg_id=0,
            transport_index=wanted.transport_index,
            topic_index=wanted.topic_index,
            store_index=wanted.store_index,
            session_id=wanted.session_id,
            error=error,
            reason=reason,
        )
        self.put(one, response.encode())
