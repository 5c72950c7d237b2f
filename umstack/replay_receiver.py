"""ReplayReceiver: plays a topic's messages again from Stores, and continues with the live stream (docs/store.md)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime

from umstack.config import ReceiverOptions
from umstack.errors import Closed, NotConnected, OptionError
from umstack.events import PROPERTIES_FLAG, BurstLoss, Event, Message, MessageWithProperties
from umstack.persistence.assembly import Item
from umstack.persistence.reader_side import LostRange
from umstack.persistence.replay_start import ReplayStart, replay_start
from umstack.persistence.session_ids import session_id_of, temporary_session_id
from umstack.persistence.store_replay import StoreAddress, StoreReplay
from umstack.receiver import Receiver
from umstack.store.wire import TopicKeys
from umstack_xdp.closing import Closing

_log = logging.getLogger(__name__)
FROM_BEFORE = 8
"""Flag of messages from before the receiver joined (UM-140)."""
FRAGMENT_FLAG = 4
"""Flag of messages that were fragmented."""


def event_of(topic: str, item: Item) -> Message | BurstLoss:
    """Return what a Store answered as an event of a receiver. Its source is named by its session id."""
    source = f"STORE:{item.source_session_id:#x}"
    if isinstance(item, LostRange):
        return BurstLoss(topic, source, item.first_sqn, item.last_sqn)
    kind = MessageWithProperties if item.properties else Message
    is_fragmented = item.first_sqn != item.sqn
    message = kind(
        data=item.data,
        topic=topic,
        source=source,
        sequence_number=item.sqn,
        first_sequence_number=item.first_sqn,
        received_ns=time.time_ns(),
        flags=FROM_BEFORE
        | (FRAGMENT_FLAG if is_fragmented else 0)
        | (PROPERTIES_FLAG if item.properties else 0),
        fragment_offset=0,
        message_length=len(item.data),
    )
    if isinstance(message, MessageWithProperties):
        message._properties = item.properties
    return message


class ReplayReceiver(Closing):
    """Receive what Stores have of a topic, then what its sources send. Made by Context.receiver(from_store=...).

    One thread reads it. The sources may have ended; then the iteration waits for a source that begins. A stored message
    has the time of the replay as `received_ns`: the Stores do not send the time at which they received it.

    Example:
        ```python
        def read(ctx):
            with ctx.receiver("orders", from_store=["10.9.0.11:14567"], start="2026-11-26T09:30") as receiver:
                for message in receiver:
                    print(message.sequence_number, message.data)
        ```
    """

    def __init__(self, replay: StoreReplay, open_live: Callable[[], Receiver]) -> None:
        """Open nothing yet; called by Context.receiver()."""
        self.topic = replay.topic
        self._replay = replay
        self._open_live = open_live
        self._chunks: Iterator[list[Item]] | None = replay.chunks()
        self._chunk: list[Item] = []
        self._read = 0
        """Items of the chunk that the application got."""
        self._live: Receiver | None = None
        self.closed = False

    @property
    def is_live(self) -> bool:
        """True once everything that the Stores had has been read."""
        return self._chunks is None

    def events(self, timeout: float | None = None) -> Iterator[Event]:
        """Iterate messages and events: first those of the Stores, then the live ones.

        Lost messages of the Stores are BurstLoss events. A second call continues where the first one ended, also
        after an error: then it connects to the Stores again.

        Args:
            timeout: End after this many seconds without a live message; None: wait, 0: end where the replay ends.

        Yields:
            Messages and events of each source in order.

        Raises:
            NotConnected: No Store could be read.
            Closed: The receiver is closed.

        Example:
            ```python
            def read(receiver):
                print([event for event in receiver.events(timeout=1)])
            ```
        """
        self._check_open()
        while (item := self._next_stored()) is not None:
            yield event_of(self.topic, item)
            self._check_open()
        if timeout == 0:
            return
        if self._live is None:
            self._live = self._open_live()
        yield from self._live._events_within(timeout)

    def _next_stored(self) -> Item | None:
        """Return the next message or loss of the Stores; None: there is none left. Raises NotConnected."""
        while self._chunks is not None:
            if self._read < len(self._chunk):
                self._read += 1
                return self._chunk[self._read - 1]
            self._chunk, self._read = [], 0
            try:
                chunk = next(self._chunks, None)
            except BaseException:
                self._chunks = self._replay.chunks()  # it continues behind the last chunk that was taken
                raise
            if chunk is None:
                self._chunks = None
            else:
                self._chunk = chunk
        return None

    def __iter__(self) -> Iterator[Message]:
        """Iterate the messages; lost ones are skipped (`events()` reports them)."""
        return (event for event in self.events() if isinstance(event, Message))

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the receiver of {self.topic!r} is closed", hint="make another one")

    def close(self) -> None:
        """Acknowledge the messages that were read, and stop. A second call does nothing.

        Example:
            ```python
            def consume(receiver):
                receiver.close()
            ```
        """
        if not self.closed and self._chunks is not None:
            self._replay.stop_after(self._read)
            try:
                next(self._chunks, None)
            except NotConnected as error:
                _log.warning(
                    "%s: the messages that were read last are not acknowledged: %s", self.topic, error
                )
        self.closed = True
        self._chunks = None
        if self._live is not None:
            self._live.close()


def receiver_start(
    topic: str,
    start: int | str | datetime | None,
    session_id: int | str | None,
    stores: Sequence[StoreAddress],
) -> ReplayStart | None:
    """Return the start of a receiver. Without Stores to play from it is a number, and needs a session id.

    Raises InvalidArgument and OptionError.
    """
    first = None if start is None else replay_start(start)
    if first is not None and not stores and (session_id is None or first.sqn is None):
        raise OptionError(
            f"receiver {topic!r}: start={start!r} without from_store=",
            hint="give from_store=, or a sequence number and session_id=",
        )
    return first


def check_replay(topic: str, options: ReceiverOptions, *excluded: object) -> None:
    """Raise OptionError if there is one of the arguments or options that a replay excludes."""
    if options.ume_explicit_ack_only:
        raise OptionError(
            f"receiver {topic!r}: from_store= acknowledges messages itself, and ume_explicit_ack_only is 1",
            hint="set ume_explicit_ack_only to 0, or use session_id= without from_store= and call acknowledge()",
        )
    if any(one is not None for one in excluded):
        raise OptionError(
            f"receiver {topic!r}: from_store= excludes on_message=, queue= and takes_group=",
            hint="iterate the receiver",
        )


def open_replay(
    topic: str,
    stores: Sequence[StoreAddress],
    start: ReplayStart | None,
    session_id: int | str | None,
    keys: TopicKeys,
    open_live: Callable[[int, int | None], Receiver],
) -> ReplayReceiver:
    """Return a receiver that continues after the replay as the session that read it. Raises InvalidArgument.

    `open_live` opens the receiver of the live messages with a session id, and from a number on.
    """
    number = temporary_session_id() if session_id is None else session_id_of(session_id)
    replay = StoreReplay(topic, stores, number, start, keys=keys)
    return ReplayReceiver(replay, lambda: open_live(number, None if start is None else start.sqn))


__all__ = ["ReplayReceiver", "check_replay", "event_of", "open_replay", "receiver_start"]
