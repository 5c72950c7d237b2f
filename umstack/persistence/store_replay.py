"""replay() and StoreReplay: read what Stores have of a topic, also after its sources have ended."""

from __future__ import annotations

import itertools
import logging
import select
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

from umstack._engine.endpoint import Endpoint
from umstack._engine.keyring import FileKeys
from umstack.config import Config
from umstack.errors import NotConnected
from umstack.key_file import NO_KEYS
from umstack.persistence.advertised import store_endpoint
from umstack.persistence.assembly import Assembly, Item, RecoveredMessage
from umstack.persistence.reader_side import RETRY_NS, LostRange, ReaderSide, ReadMessage
from umstack.persistence.replay_start import ReplayStart, replay_start
from umstack.persistence.session_ids import session_id_of
from umstack.store.wire import MalformedMessage, RegistrationError, StoreStream, TopicKeys

_STREAM_BYTES = 4 << 20
EXPECTED_SECONDS = 90.0
"""Maximum wait for a message that the Store expects. It marks a message lost 30 s after its source ended."""
_NS = 1_000_000_000
_SPACE = 1 << 32
_log = logging.getLogger(__name__)
StoreAddress = str | tuple[str, int]
StoredItem = ReadMessage | LostRange


def replay(
    topic: str,
    store: tuple[str, int] | Sequence[StoreAddress],
    session_id: int | str,
    *,
    start: int | str | datetime | None = None,
    timeout: float = 10.0,
    is_explicit: bool = False,
    authentication_key_file: str | Path | None = None,
    encryption: str = "none",
) -> Iterator[RecoveredMessage]:
    """Yield what Stores have of a topic, oldest first, from the last acknowledgement of this session id.

    The sources may have ended. Messages are acknowledged in batches, when the message after the batch is
    requested or the iteration ends: a reader that is interrupted gets the messages of its last batch again.

    Args:
        topic: Name of the topic.
        store: Address and TCP port of the Store, or a list of Stores: each adds the messages
            that the earlier ones do not have.
        session_id: Identifies the reader at the Stores, as a number or a text.
        start: First message of each source: a sequence number, or the time from which on the Store received messages
            (`datetime`, or text as in ISO 8601). None: the one after the last acknowledgement.
        timeout: Maximum wait in seconds for an answer.
        is_explicit: Acknowledge nothing: the next reader with this session id gets the same messages.
        authentication_key_file: File with the keys of the topic (docs/authentication.md). None: the topic has none.
        encryption: As the context option of the Store: `none`, or `aes-256-gcm` with a key file.

    Yields:
        The messages of each source in order. Those that the Stores have dropped or marked lost are skipped, which is
        logged. One that a Store expects, because its source may repeat it, is waited for.

    Raises:
        NotConnected: No Store answers, one refuses the reader, or expects the next message for too long.
        InvalidArgument: The session id, an address or the start is wrong.
        OptionError: The key file can be read by others, or encryption is wrong.

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
        topic,
        stores,
        session_id_of(session_id),
        first,
        timeout=timeout,
        is_explicit=is_explicit,
        keys=_keys_of(authentication_key_file, encryption),
    )
    for item in itertools.chain.from_iterable(reading.chunks()):
        if isinstance(item, RecoveredMessage):
            yield item
        else:
            _log.warning("%s: no Store has messages %d to %d", topic, item.first_sqn, item.last_sqn)


def _keys_of(file: str | Path | None, encryption: str) -> FileKeys:
    """Return the keys of a file. Raises OptionError, or the error of the file."""
    named = {} if file is None else {"authentication_scope": "all", "authentication_key_file": str(file)}
    return FileKeys(Config().context_options(**named, encryption=encryption))


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
        expected_timeout: Maximum wait in seconds for a message that a Store expects.
        keys: The keys in use.
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
        expected_timeout: float = EXPECTED_SECONDS,
        keys: TopicKeys = NO_KEYS,
    ) -> None:
        self.topic = topic
        self._stores = [store_endpoint(store) for store in stores]
        self._session_id = session_id
        self._start = start
        self._timeout = timeout
        self._is_explicit = is_explicit
        self._is_temporary = is_temporary
        self._expected_ns = int(expected_timeout * _NS)
        self._keys = keys
        self._positions: dict[int, int] = {}
        """By session id of a source, the number behind the last message, fragment or lost range that was read."""
        self._taken: dict[int, int] = {}
        """The same for whole messages that the caller took: these are acknowledged."""
        self._assembly = Assembly()
        self._failed: dict[Endpoint, NotConnected] = {}
        self._stop_after: int | None = None

    @property
    def failures(self) -> list[NotConnected]:
        """Why Stores could not be read to the end: messages that only they have were not played."""
        return list(self._failed.values())

    def chunks(self) -> Iterator[list[Item]]:
        """Yield messages, and those that no Store has, in order of each source.

        The Stores are read in turn: each continues where the one before it ended. A chunk is acknowledged when the
        next one is requested. Another call continues behind the last chunk that was taken.

        Raises:
            NotConnected: No Store could be read.
        """
        self._positions.update(self._assembly.unfinished)
        self._assembly.abandon()
        for read in self._read_all():
            if items := self._assembly.take(read):
                yield items
                for item in items[: self._stop_after]:
                    last_sqn = item.last_sqn if isinstance(item, LostRange) else item.sqn
                    self._taken[item.source_session_id] = (last_sqn + 1) % _SPACE

    def _read_all(self) -> Iterator[list[StoredItem]]:
        """Yield what the Stores have, in order of each source. Raises NotConnected if none could be read."""
        self._failed.clear()
        left = list(self._stores) if self._stop_after is None else []
        is_read, failure = False, None
        while left:
            endpoint = left.pop(0)
            others = [one for one in self._stores if one != endpoint]
            has_moved = False
            keys = self._keys.keys_of(self.topic)
            try:
                for items in self._read(endpoint):
                    has_moved = True
                    yield from self._deliver(items, others)
                is_read = True
                self._failed.pop(endpoint, None)
            except NotConnected as error:
                # A Store ends connections on which nothing is sent for long, and those whose key was removed.
                if has_moved or self._keys.keys_of(self.topic) != keys:
                    left.insert(0, endpoint)
                else:
                    failure = error
                    self._note_failed(endpoint, error)
            if is_read and self._stop_after is not None:
                return
        if failure is not None and not is_read:
            raise failure

    def stop_after(self, count: int) -> None:
        """End after so many items of the last chunk: the next request acknowledges them, and returns nothing."""
        self._stop_after = count

    def _note_failed(self, endpoint: Endpoint, error: NotConnected) -> None:
        self._failed[endpoint] = error
        _log.warning("%s: %s", self.topic, error)

    def _deliver(self, items: Sequence[StoredItem], others: Sequence[Endpoint]) -> Iterator[list[StoredItem]]:
        """Yield items in order, and in place of a lost range the messages that the other Stores have of it."""
        for is_lost, found in itertools.groupby(items, lambda item: isinstance(item, LostRange)):
            if is_lost and others:
                for lost in found:
                    assert isinstance(lost, LostRange)
                    yield from self.fill(lost, others)
                    if self._stop_after is not None:
                        return
                continue
            rows = list(found)
            yield rows
            for row in rows:
                last_sqn = row.last_sqn if isinstance(row, LostRange) else row.sqn
                self._positions[row.source_session_id] = (last_sqn + 1) % _SPACE
            if self._stop_after is not None:
                return

    def fill(self, lost: LostRange, stores: Sequence[Endpoint]) -> Iterator[list[StoredItem]]:
        """Yield from other Stores what one has lost. A Store that failed in this replay is not asked again.

        Args:
            lost: The messages.
            stores: The Stores to ask, in this order.

        Yields:
            Messages and fragments, and those that none of these Stores has, in order.
        """
        left = [one for one in stores if one not in self._failed]
        missing, end = lost, (lost.last_sqn + 1) % _SPACE
        while left and missing.first_sqn != end:
            has_moved = False
            try:
                for items in self._read(left[0], missing):
                    yield from self._deliver(items, left[1:])
                    if self._stop_after is not None:
                        return
                    has_moved = True
                    missing = missing._replace(first_sqn=self._positions[lost.source_session_id])
                left.pop(0)
            except NotConnected as error:
                if not has_moved:
                    self._note_failed(left.pop(0), error)
        if missing.first_sqn != end:
            yield from self._deliver([missing], ())

    def _read(self, endpoint: Endpoint, only: LostRange | None = None) -> Iterator[list[StoredItem]]:
        """Yield what one Store has, from the positions on, or only what another one has lost."""
        side = ReaderSide(self.topic, self._session_id, self._start, only, self._positions)
        try:
            with socket.create_connection(endpoint, self._timeout) as peer:
                connection = _Connection(endpoint, self._keys, peer, side, self._timeout, self._expected_ns)
                while not side.is_confirmed:
                    if self._stop_after is None and (items := side.take()):
                        yield items
                        connection.moved_ns = connection.answered_ns = time.monotonic_ns()
                    if only is None and not self._is_explicit:
                        side.acknowledge(self._taken)
                    is_stopped = self._stop_after is not None and side.is_registered
                    if (side.is_complete or is_stopped) and not connection.is_confirming:
                        connection.is_confirming = True
                        if self._is_temporary:
                            side.forget()
                        side.confirm()
                    connection.exchange()
        except (OSError, MalformedMessage) as error:
            raise NotConnected(f"the Store at {endpoint}: {error}", hint="check that it runs") from error
        if side.error is not None and side.error is not RegistrationError.SOURCE_NOT_FOUND:
            raise NotConnected(
                f"the Store at {endpoint} refused the reader: {side.error.name.lower()}",
                hint="give the reader the topic's keys, or connect again",
            )
        if only is None and self._stop_after is None:
            self._positions.update(side.acknowledged())
            self._taken.update(side.acknowledged() | self._assembly.unfinished)


class _Connection:
    """The connection of a reader."""

    def __init__(
        self,
        endpoint: Endpoint,
        keys: TopicKeys,
        peer: socket.socket,
        side: ReaderSide,
        timeout: float,
        expected_ns: int,
    ) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._side = side
        self._timeout_ns = int(timeout * _NS)
        self._expected_ns = expected_ns
        self._stream = StoreStream.of_client(endpoint, keys, side.topic, _STREAM_BYTES)
        self._poll = select.poll()
        self._poll.register(peer, select.POLLIN)
        self.is_confirming = False
        self.answered_ns = self.moved_ns = time.monotonic_ns()
        """Times of the Store's last bytes, and of the last messages that were delivered."""

    def exchange(self) -> None:
        """Send what the reader requests, and receive for a short time. Raises OSError, NotConnected."""
        side = self._side
        if self._stream.has_begun:
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
        if side.expected is not None and now_ns - self.moved_ns >= self._expected_ns:
            raise NotConnected(
                f"the Store at {self._endpoint} does not have message {side.expected.first_sqn} yet",
                hint="read again once the source has repeated the message",
            )
        side.tick(now_ns)


__all__ = ["StoreAddress", "StoreReplay", "StoredItem", "replay"]
