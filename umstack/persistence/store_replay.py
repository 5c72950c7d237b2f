"""replay() and StoreReplay: read what Stores have of a topic, also after its sources have ended."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import datetime

from umstack._engine.endpoint import Endpoint
from umstack.errors import NotConnected
from umstack.persistence.advertised import store_endpoint
from umstack.persistence.reader_side import RETRY_NS, LostRange, ReaderSide, RecoveredMessage
from umstack.persistence.replay_start import ReplayStart, replay_start
from umstack.persistence.session_ids import session_id_of
from umstack.store.wire import MalformedMessage, NoKeys, RegistrationError, StoreStream

_STREAM_BYTES = 4 << 20
_EXPECTED_NS = 90_000_000_000
"""Maximum wait for a message that the Store expects. It marks a message lost 30 s after its source ended."""
_NS = 1_000_000_000
_SPACE = 1 << 32
_log = logging.getLogger(__name__)
StoreAddress = str | tuple[str, int]


def replay(
    topic: str,
    store: tuple[str, int] | Sequence[StoreAddress],
    session_id: int | str,
    *,
    start: int | str | datetime | None = None,
    timeout: float = 10.0,
    is_explicit: bool = False,
) -> Iterator[RecoveredMessage]:
    """Yield what Stores have of a topic, oldest first, from the last acknowledgement of this session id.

    The sources may have ended. Messages are acknowledged in batches, when the message after the batch is
    requested or the iteration ends: a reader that is interrupted gets the messages of its last batch again.

    Args:
        topic: Name of the topic.
        store: Address and TCP port of the Store, or a list of Stores: each is asked for what the ones before it lack.
        session_id: Identifies the reader at the Stores, as a number or a text.
        start: First message of each source: a sequence number, or the time from which on the Store received messages
            (`datetime`, or text as in ISO 8601). None: the one after the last acknowledgement.
        timeout: Maximum wait in seconds for an answer.
        is_explicit: Acknowledge nothing: the next reader with this session id gets the same messages.

    Yields:
        The messages of each source in order. Those that the Stores have dropped or marked lost are skipped, which is
        logged. One that a Store expects, because its source may repeat it, is waited for.

    Raises:
        NotConnected: No Store answers, one refuses the reader, or expects the next message for too long.
        InvalidArgument: The session id, an address or the start is wrong.

    Example:
        ```python
        def read():
            for message in replay("orders", ("10.9.0.11", 14567), session_id=3):
                print(message.sqn, message.data)
        ```
    """
    is_one = isinstance(store, tuple) and len(store) == 2 and isinstance(store[1], int)
    stores: list[StoreAddress] = [store] if is_one else list(store)  # type: ignore[list-item, arg-type]
    first = None if start is None else replay_start(start)
    reading = StoreReplay(
        topic, stores, session_id_of(session_id), first, timeout=timeout, is_explicit=is_explicit
    )
    for item in reading.items():
        if isinstance(item, RecoveredMessage):
            yield item
        else:
            _log.warning("%s: no Store has messages %d to %d", topic, item.first_sqn, item.last_sqn)


class StoreReplay:
    """One reading of what Stores have of a topic.

    Args:
        topic: Name of the topic.
        stores: The Stores.
        session_id: Number that identifies the reader at the Stores.
        start: First message; None: the one after the last acknowledgement.
        timeout: Maximum wait in seconds for an answer.
        is_explicit: Acknowledge nothing.
        is_temporary: Let the Stores forget the reader at the end.
    """

    def __init__(
        self,
        topic: str,
        stores: Sequence[StoreAddress],
        session_id: int,
        start: ReplayStart | None = None,
        *,
        timeout: float = 10.0,
        is_explicit: bool = False,
        is_temporary: bool = False,
    ) -> None:
        self.topic = topic
        self._stores = [store_endpoint(store) for store in stores]
        self._session_id = session_id
        self._start = start
        self._timeout = timeout
        self._is_explicit = is_explicit
        self._is_temporary = is_temporary
        self._positions: dict[int, int] = {}
        """By session id of a source, the next number to deliver."""

    def items(self) -> Iterator[RecoveredMessage | LostRange]:
        """Yield messages, and those that no Store has, in order of each source.

        The Stores are read in turn: each continues where the one before it ended.

        Raises:
            NotConnected: No Store could be read.
        """
        left, is_read, failure = list(self._stores), False, None
        while left:
            endpoint = left.pop(0)
            others = [one for one in self._stores if one != endpoint]
            has_moved = False
            try:
                for item in self._read(endpoint):
                    has_moved = True
                    if isinstance(item, LostRange):
                        yield from self._fill(item, others)
                        self._positions[item.source_session_id] = (item.last_sqn + 1) % _SPACE
                    else:
                        yield item
                        self._positions[item.source_session_id] = (item.sqn + 1) % _SPACE
                is_read = True
            except NotConnected as error:
                failure = error
                if has_moved:
                    left.insert(0, endpoint)  # a Store ends connections on which nothing is sent for long
        if failure is not None and not is_read:
            raise failure

    def _fill(self, lost: LostRange, stores: Sequence[Endpoint]) -> Iterator[RecoveredMessage | LostRange]:
        """Yield from other Stores what one has lost."""
        if not stores:
            yield lost
            return
        next_sqn = lost.first_sqn
        try:
            for item in self._read(stores[0], lost):
                if isinstance(item, LostRange):
                    yield from self._fill(item, stores[1:])
                    next_sqn = (item.last_sqn + 1) % _SPACE
                else:
                    yield item
                    next_sqn = (item.sqn + 1) % _SPACE
        except NotConnected as error:
            _log.info("%s", error)
        if next_sqn != (lost.last_sqn + 1) % _SPACE:
            yield from self._fill(lost._replace(first_sqn=next_sqn), stores[1:])

    def _read(
        self, endpoint: Endpoint, only: LostRange | None = None
    ) -> Iterator[RecoveredMessage | LostRange]:
        """Yield what one Store has, from the positions on, or only what another one has lost."""
        side = ReaderSide(self.topic, self._session_id, self._start, only, self._positions)
        try:
            with socket.create_connection(endpoint, self._timeout) as peer:
                connection = _Connection(endpoint, peer, side, self._timeout)
                while not side.is_confirmed:
                    items = side.take()
                    if items:
                        yield from items
                        connection.moved_ns = connection.answered_ns = time.monotonic_ns()
                    if only is None and not self._is_explicit:
                        read = {one.source_reg_id: one for one in items if isinstance(one, RecoveredMessage)}
                        for last in read.values():
                            side.acknowledge(last)
                    if side.is_complete and not connection.is_confirming:
                        connection.is_confirming = True
                        if self._is_temporary:
                            side.forget()
                        side.confirm()
                    connection.exchange()
        except (OSError, MalformedMessage) as error:
            raise NotConnected(f"the Store at {endpoint}: {error}", hint="check that it runs") from error
        if side.error not in (None, RegistrationError.SOURCE_NOT_FOUND):
            raise NotConnected(
                f"the Store at {endpoint} refused the reader: {side.error}", hint="connect again"
            )
        if only is None:
            self._positions.update(side.next_sqns())


class _Connection:
    """The connection of a reader."""

    def __init__(self, endpoint: Endpoint, peer: socket.socket, side: ReaderSide, timeout: float) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._side = side
        self._timeout_ns = int(timeout * _NS)
        self._stream = StoreStream(endpoint, NoKeys(), _STREAM_BYTES, is_store=False)
        self._poll = select.poll()
        self._poll.register(peer, select.POLLIN)
        self.is_confirming = False
        self.answered_ns = self.moved_ns = time.monotonic_ns()
        """Times of the Store's last bytes, and of the last messages that were delivered."""

    def exchange(self) -> None:
        """Send what the reader requests, and receive for a short time. Raises OSError, NotConnected."""
        side = self._side
        self._stream.put(side.take_output())
        while self._stream.waiting_bytes:
            self._stream.flush(self._peer)
        is_ready = bool(self._poll.poll(RETRY_NS // 1_000_000))
        now_ns = time.monotonic_ns()
        if is_ready:
            if not self._stream.receive(self._peer):
                raise NotConnected(
                    f"the Store at {self._endpoint} ended the connection", hint="connect again"
                )
            for received in self._stream.messages():
                side.received(received, now_ns)
            self.answered_ns = now_ns
        elif side.expected is None and now_ns - self.answered_ns >= self._timeout_ns:
            raise TimeoutError("it does not answer")
        if side.expected is not None and now_ns - self.moved_ns >= _EXPECTED_NS:
            raise NotConnected(
                f"the Store at {self._endpoint} does not have message {side.expected.first_sqn} yet",
                hint="read again once the source has repeated the message",
            )
        side.tick(now_ns)


__all__ = ["StoreAddress", "StoreReplay", "replay"]
