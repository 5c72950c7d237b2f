"""Messages, and the events of the sessions that carry them, as receivers deliver them.

Each is a named tuple: made in bulk from the columns of a batch, immutable and cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from umstack.errors import Closed, InvalidArgument, NotBytes, Unsupported
from umstack.message_properties import NO_PROPERTIES, MessageProperties

if TYPE_CHECKING:
    from umstack._engine.core_context import Responds
    from umstack._engine.row_sources import RowOwner
    from umstack.buffers import Buffer

REQUEST_FLAG = 0x40
PROPERTIES_FLAG = 0x1000


class Message(NamedTuple):
    """One message of a topic.

    Example:
        ```python
        for message in rcv.poll(timeout=0.1).messages():
            print(message.topic, message.sequence_number, message.data)
        ```
    """

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
    """Send time by the publisher's wall clock (option send_timestamps), nanoseconds since 1970; 0 if unknown."""

    @property
    def hot_failover_sequence_number(self) -> int:
        """64-bit message number of a hot failover stream.

        `first_sequence_number` is its upper half, `sequence_number` its lower half.
        """
        return self.first_sequence_number << 32 | self.sequence_number

    @property
    def properties(self) -> MessageProperties:
        """Properties by name; empty for most messages. Decoded on first use."""
        return NO_PROPERTIES

    @property
    def is_request(self) -> bool:
        """True if its sender waits for responses."""
        return bool(self.flags & REQUEST_FLAG)

    def respond(self, data: Buffer, *, timeout: float | None = None) -> None:
        """Send a response to a request; see Request.respond().

        Args:
            data: Any contiguous buffer of bytes.
            timeout: Maximum wait in seconds; None: no timeout.

        Raises:
            InvalidArgument: The message is not a request.

        Example:
            ```python
            for message in rcv.poll(timeout=0.1).messages():
                if message.is_request:
                    message.respond(b"42")
            ```
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
        """Properties by name."""
        return self._properties

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, properties={dict(self.properties)!r})"


class Request(Message):
    """A message whose sender waits for responses, from any receiver of the topic.

    `request_index` is the number by which its sender identifies it, `requester` the address and TCP port for responses.

    Example:
        ```python
        def on_message(event):
            if isinstance(event, umstack.Request):
                event.respond(b"42")
        ctx.receiver("quotes", on_message)
        ```
    """

    request_index: int
    requester: tuple[str, int]
    _responder: Responds | None
    _owner: RowOwner | None
    _properties: MessageProperties = NO_PROPERTIES

    @property
    def properties(self) -> MessageProperties:
        """Properties by name."""
        return self._properties

    def respond(self, data: Buffer, *, timeout: float | None = None) -> None:
        """Send a response. Any thread, also after the callback returned, any number of times.

        Returns when the kernel has the response, or when it is queued behind others. It does not report whether the
        requester still waits. A response cut short by a lost connection is not delivered in part.

        Args:
            data: Any contiguous buffer of bytes.
            timeout: Maximum wait in seconds while response_session_maximum_buffer bytes are queued; None: while the
                requester reads, 0: do not wait.

        Raises:
            BackPressured: The queue was still full after `timeout`.
            ResponseFailed: The requester cannot be reached or has stopped reading.
            MessageTooLong: The response exceeds response_maximum_message_length.
            ResourceLimit: Too many requesters are connected.
            NotBytes: `data` is a str.
            Unsupported: The context sends no responses.
            Closed: The receiver or context is closed.

        Example:
            ```python
            def on_message(event):
                if isinstance(event, umstack.Request):
                    event.respond(b"42")
            ctx.receiver("quotes", on_message)
            ```
        """
        if isinstance(data, str):
            raise NotBytes(f"a response on {self.topic!r} is bytes, not str")
        if self._owner is None or self._owner.closed:
            raise Closed(f"responding on {self.topic!r}: its receiver is closed")
        if self._responder is None:
            raise Unsupported(f"responding on {self.topic!r}: its context sends no responses")
        view = memoryview(cast("bytes", data)).cast("B")
        self._responder.respond(self.topic, self.source, self.requester, self.request_index, view, timeout)


class BeginningOfSession(NamedTuple):
    """The first datagram of a source's transport session arrived (UM-76).

    Example:
        ```python
        started = [event for event in rcv.poll().events() if isinstance(event, umstack.BeginningOfSession)]
        ```
    """

    topic: str
    source: str


class EndOfSession(NamedTuple):
    """The transport session was idle for its activity timeout (UM-105).

    Example:
        ```python
        ended = [event for event in rcv.poll().events() if isinstance(event, umstack.EndOfSession)]
        ```
    """

    topic: str
    source: str


class UnrecoverableLoss(NamedTuple):
    """One topic sequence number is lost and will not be delivered (UM-101).

    A message longer than `receiver_maximum_message_length` is one event, with the number of its first fragment.

    Example:
        ```python
        lost = [event for event in rcv.poll().events() if isinstance(event, umstack.UnrecoverableLoss)]
        ```
    """

    topic: str
    source: str
    sequence_number: int


class BurstLoss(NamedTuple):
    """A range of topic sequence numbers is lost and will not be delivered (UX-7).

    Example:
        ```python
        lost = [event for event in rcv.poll().events() if isinstance(event, umstack.BurstLoss)]
        ```
    """

    topic: str
    source: str
    first_sequence_number: int
    sequence_number: int


class HotFailoverReset(NamedTuple):
    """The numbering of a hot failover stream continues at another number; UM's HF_RESET.

    Example:
        ```python
        resets = [event for event in rcv.poll().events() if isinstance(event, umstack.HotFailoverReset)]
        ```
    """

    topic: str
    source: str
    """The source whose reset arrived first."""
    sequence_number: int
    """The number of the next message."""


class SourceCreated(NamedTuple):
    """A source of the topic was discovered; its messages follow (option source_notification).

    It precedes all other events of the source, which may not have sent anything yet.

    Example:
        ```python
        created = [event for event in rcv.poll().events() if isinstance(event, umstack.SourceCreated)]
        ```
    """

    topic: str
    source: str


class SourceDeleted(NamedTuple):
    """A source's session ended or the receiver was closed (option source_notification).

    No more of its messages follow. A source that is rediscovered is reported as created again.

    Example:
        ```python
        deleted = [event for event in rcv.poll().events() if isinstance(event, umstack.SourceDeleted)]
        ```
    """

    topic: str
    source: str


class NoSource(NamedTuple):
    """Queries for sources got no response (option resolution_no_source_notification_threshold).

    Example:
        ```python
        missing = [event for event in rcv.poll().events() if isinstance(event, umstack.NoSource)]
        ```
    """

    topic: str
    """The topic, or the pattern of a wildcard receiver."""
    source: str
    """Empty."""
    queries: int
    """Queries sent since the topic last had a source, or since its queries last restarted."""


class CutLoose(NamedTuple):
    """The receiver was cut loose from a source, because its queue was full for too long.

    The limit is receiver_full_queue_hold_interval. Messages first_sequence_number to sequence_number were dropped
    meanwhile. With off-transport recovery (use_otr) they are fetched and follow this event; otherwise a loss event
    follows. Other receivers were not affected.

    Example:
        ```python
        slow = [event for event in rcv.poll().events() if isinstance(event, umstack.CutLoose)]
        ```
    """

    topic: str
    source: str
    first_sequence_number: int
    sequence_number: int


class NakCutoff(NamedTuple):
    """A source's transport session stopped its own NAKs (UX-21).

    It was at its limit for transport_lbtrm_nak_cutoff_interval. `nak_cutoff(False)` of the receiver or the context
    resumes them.

    Example:
        ```python
        stopped = [event for event in rcv.poll().events() if isinstance(event, umstack.NakCutoff)]
        ```
    """

    topic: str
    source: str


class StaleTags(NamedTuple):
    """Datagrams of a source with right tags were dropped, because its clock differs from this host's.

    The difference exceeds authentication_time_tolerance: one of both clocks is wrong. The event is repeated at most
    every 10 s while it lasts; the counter dgrams_dropped_tag_stale has the number of datagrams.

    Example:
        ```python
        stale = [event for event in rcv.poll().events() if isinstance(event, umstack.StaleTags)]
        ```
    """

    topic: str
    source: str


class InterfaceChanged(NamedTuple):
    """The interface of the context has changed: another address or interface, or none.

    Event queues, wildcard and hot failover receivers get it once, not once per topic.

    Example:
        ```python
        for event in rcv.poll().events():
            if isinstance(event, umstack.InterfaceChanged) and not event.is_followed:
                print(event.interface, event.change)
        ```
    """

    topic: str
    """Empty in the readers of many topics."""
    source: str
    """Empty."""
    interface: str
    """Its name, after the change."""
    change: str
    """The kind of the change:

    - gone: it was removed, or moved to another network namespace.
    - returned: it is back after it was gone.
    - made_again: another interface has its name, as after a removal or a return under another index.
    - renamed: it has another name.
    - address_changed: it has another address.
    - address_removed: it has no IPv4 address.
    """
    is_followed: bool
    """True if everything of the context uses the changed interface; False: some or all of it does not, which the log
    explains."""


class DriverLost(NamedTuple):
    """The driver that the context is attached to has ended, or has cut this process off.

    The receiver gets no more messages through it, except those that are in its logs already. The context looks for the
    driver for driver_search_timeout; sources begin again with BeginningOfSession.

    Example:
        ```python
        lost = [event for event in rcv.poll().events() if isinstance(event, umstack.DriverLost)]
        ```
    """

    topic: str
    source: str
    """Empty."""


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
    | CutLoose
    | StaleTags
    | InterfaceChanged
    | DriverLost
)
