"""What a receiver delivers: messages, and the events of the sessions that carry them.

Each is a named tuple: made in bulk from the columns of a batch, immutable, and as cheap as Python allows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from umstack.errors import Closed, InvalidArgument, NotBytes, Unsupported
from umstack.message_properties import NO_PROPERTIES, MessageProperties

if TYPE_CHECKING:
    from umstack._engine.core_context import Responds
    from umstack._engine.row_sources import RowOwner

REQUEST_FLAG = 0x40
PROPERTIES_FLAG = 0x1000


class Message(NamedTuple):
    """One message of a topic."""

    data: bytes
    topic: str
    source: str
    """The source's transport session and topic index: "LBTRM:ip:port:session:group:port[index]", or
    "LBTRU:ip:port:session[index]"."""
    sequence_number: int
    """Topic sequence number of the last fragment (UM-57)."""
    first_sequence_number: int
    """Topic sequence number of the first fragment; the same for an unfragmented message (UM-59)."""
    received_ns: int
    """Wall-clock time of arrival, nanoseconds since 1970."""
    flags: int
    """1: first of an explicit batch, 2: last of one (UM-37), 4: was fragmented, 8: from before the receiver joined
    (UM-140), 0x20: recovered off the transport (UM-142), 0x40: a request, 0x1000: with properties."""
    fragment_offset: int
    """With ordered_delivery 0: payload bytes of the message before this fragment (UM-58)."""
    message_length: int
    """With ordered_delivery 0: payload bytes of the whole message."""
    sent_ns: int = 0
    """Time of sending by the publisher's wall clock (option send_timestamps); 0 where the message does not say."""

    @property
    def hot_failover_sequence_number(self) -> int:
        """Of a hot failover receiver's message: its number, of 64 bits; `sequence_number` is the lower half of it, and
        `first_sequence_number` the upper."""
        return self.first_sequence_number << 32 | self.sequence_number

    @property
    def properties(self) -> MessageProperties:
        """What its sender gave it beside the data, by name; empty for most messages. Read when it is looked at."""
        return NO_PROPERTIES

    @property
    def is_request(self) -> bool:
        """Whether its sender waits for responses."""
        return bool(self.flags & REQUEST_FLAG)

    def respond(self, data: Any, *, timeout: float | None = None) -> None:
        """Send `data` to the sender of a request, within `timeout` seconds: see Request.

        Raises InvalidArgument for a plain message.
        """
        raise InvalidArgument(
            f"a message on {self.topic!r} is no request: nobody waits for a response",
            hint="respond where is_request is true; Source.request() sends requests",
        )


class MessageWithProperties(Message):
    """A message that has properties."""

    _properties: MessageProperties

    @property
    def properties(self) -> MessageProperties:
        """What its sender gave it beside the data, by name."""
        return self._properties

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, properties={dict(self.properties)!r})"


class Request(Message):
    """A message whose sender waits for responses: any number of them, from any receiver of the topic.

    `request_index` is the number by which its sender knows it, `requester` the address and TCP port where it waits.
    """

    request_index: int
    requester: tuple[str, int]
    _responder: Responds | None
    _owner: RowOwner | None
    _properties: MessageProperties = NO_PROPERTIES

    @property
    def properties(self) -> MessageProperties:
        """What its sender gave it beside the data, by name."""
        return self._properties

    def respond(self, data: Any, *, timeout: float | None = None) -> None:
        """Send a response. Any thread, also once the callback that got the request has returned, and more than once.

        `data` is any contiguous buffer. The call returns when the response is with the kernel, or waits behind others
        for the kernel to take it; while response_session_maximum_buffer bytes wait already it waits up to `timeout`
        seconds (None: as long as the requester takes something; 0: not at all) and then raises BackPressured. A
        response that was cut off by that is not delivered in part. Whether the requester still waits is not known here.
        Raises ResponseFailed when the requester cannot be reached or takes nothing, MessageTooLong, ResourceLimit with
        too many requesters, NotBytes for a str, Unsupported where its context sends no responses, and Closed once its
        receiver or context is closed.
        """
        if isinstance(data, str):
            raise NotBytes(f"a response on {self.topic!r} is bytes, not str")
        if self._owner is None or self._owner.closed:
            raise Closed(f"responding on {self.topic!r}: its receiver is closed")
        if self._responder is None:
            raise Unsupported(f"responding on {self.topic!r}: its context sends no responses")
        view = memoryview(data).cast("B")
        self._responder.respond(self.topic, self.requester, self.request_index, view, timeout)


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


class HotFailoverReset(NamedTuple):
    """The numbering of a hot failover stream goes on at another number; UM's HF_RESET."""

    topic: str
    source: str
    """The one whose reset came first."""
    sequence_number: int
    """The number of the next message."""


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


class NakCutoff(NamedTuple):
    """The transport session that carries a source has stopped its NAKs by itself (UX-21): it was at its limit for
    transport_lbtrm_nak_cutoff_interval. `nak_cutoff(False)` of the receiver or the context starts them again."""

    topic: str
    source: str


Event = (
    Message
    | BeginningOfSession
    | EndOfSession
    | UnrecoverableLoss
    | BurstLoss
    | HotFailoverReset
    | SourceCreated
    | SourceDeleted
    | NoSource
    | NakCutoff
)
