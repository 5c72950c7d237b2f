"""What a receiver delivers: messages, and the events of the sessions that carry them.

Each is a named tuple: made in bulk from the columns of a batch, immutable, and as cheap as Python allows.
"""

from __future__ import annotations

from typing import NamedTuple


class Message(NamedTuple):
    """One message of a topic."""

    data: bytes
    topic: str
    source: str
    """The source's transport session and topic index: "LBTRM:ip:port:session:group:port[index]"."""
    sequence_number: int
    """Topic sequence number of the last fragment (UM-57)."""
    first_sequence_number: int
    """Topic sequence number of the first fragment; the same for an unfragmented message (UM-59)."""
    received_ns: int
    """Wall-clock time of arrival, nanoseconds since 1970."""
    flags: int
    """1: first of an explicit batch, 2: last of one (UM-37), 4: was fragmented, 8: from before the receiver joined
    (UM-140), 0x20: recovered off the transport (UM-142)."""
    fragment_offset: int
    """With ordered_delivery 0: payload bytes of the message before this fragment (UM-58)."""
    message_length: int
    """With ordered_delivery 0: payload bytes of the whole message."""
    sent_ns: int = 0
    """Time of sending by the publisher's wall clock (option send_timestamps); 0 where the message does not say."""


class BeginningOfSession(NamedTuple):
    """The transport session that carries a source has begun: its first datagram arrived (UM-76)."""

    topic: str
    source: str


class EndOfSession(NamedTuple):
    """The transport session has been idle for its activity timeout (UM-105)."""

    topic: str
    source: str


class UnrecoverableLoss(NamedTuple):
    """One topic sequence number will not be delivered (UM-101)."""

    topic: str
    source: str
    sequence_number: int


class BurstLoss(NamedTuple):
    """A run of topic sequence numbers will not be delivered (UX-7)."""

    topic: str
    source: str
    first_sequence_number: int
    sequence_number: int


class SourceCreated(NamedTuple):
    """A source of the topic was found, and what it sends is delivered from now on (option source_notification).

    It comes before anything else of the source, which need not have sent anything yet.
    """

    topic: str
    source: str


class SourceDeleted(NamedTuple):
    """Nothing more comes of this source: its session has ended, or the receiver was closed (source_notification).

    A source that is found again is created again.
    """

    topic: str
    source: str


class NoSource(NamedTuple):
    """Queries for the topic's sources were not answered (option resolution_no_source_notification_threshold)."""

    topic: str
    """Of a wildcard receiver: its pattern."""
    source: str
    """Empty."""
    queries: int
    """How many were sent since there was a source, or since the topic was last asked for anew."""


Event = (
    Message
    | BeginningOfSession
    | EndOfSession
    | UnrecoverableLoss
    | BurstLoss
    | SourceCreated
    | SourceDeleted
    | NoSource
)
