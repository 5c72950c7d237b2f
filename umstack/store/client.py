"""replay(): reads what a Store has of a topic, also after its sources have ended."""

from __future__ import annotations

import logging
import select
import socket
import time
from collections.abc import Iterator

from umstack._engine.endpoint import Endpoint
from umstack.errors import NotConnected
from umstack.persistence.reader_side import RETRY_NS, ReaderSide, RecoveredMessage
from umstack.persistence.session_ids import session_id_of
from umstack.store.wire import MalformedMessage, NoKeys, RegistrationError, StoreStream

_STREAM_BYTES = 4 << 20
_EXPECTED_NS = 90_000_000_000
"""Maximum wait for a message that the Store expects. It marks a message lost 30 s after its source ended."""
_NS = 1_000_000_000
_log = logging.getLogger(__name__)


def replay(
    topic: str,
    store: tuple[str, int],
    session_id: int | str,
    *,
    timeout: float = 10.0,
    is_explicit: bool = False,
) -> Iterator[RecoveredMessage]:
    """Yield what a Store has of a topic, oldest first, from the last acknowledgement of this session id.

    The sources may have ended. Messages are acknowledged in batches, when the message after the batch is
    requested or the iteration ends: a reader that is interrupted gets the messages of its last batch again.

    Args:
        topic: Name of the topic.
        store: Address and TCP port of the Store.
        session_id: Identifies the reader at the Store, as a number or a text.
        timeout: Maximum wait in seconds for an answer.
        is_explicit: Acknowledge nothing: the next reader with this session id gets the same messages.

    Yields:
        The messages of each source in order. Those that the Store has dropped or marked lost are skipped, which is
        logged. One that the Store expects, because its source may repeat it, is waited for.

    Raises:
        NotConnected: The Store does not answer, refuses the reader, or expects the next message for too long.
        InvalidArgument: The session id is out of range.

    Example:
        ```python
        def read():
            for message in replay("orders", ("10.9.0.11", 14567), session_id=3):
                print(message.sqn, message.data)
        ```
    """
    endpoint = Endpoint(*store)
    side = ReaderSide(topic, session_id_of(session_id))
    try:
        with socket.create_connection(endpoint, timeout) as peer:
            connection = _Connection(endpoint, peer, side, timeout)
            while not side.is_confirmed:
                messages = side.take_messages()
                for lost in side.take_lost():
                    _log.warning("%s: the Store at %s has lost %s", topic, endpoint, lost)
                if messages:
                    yield from messages
                    connection.moved_ns = connection.answered_ns = time.monotonic_ns()
                if messages and not is_explicit:
                    for last in {message.source_reg_id: message for message in messages}.values():
                        side.acknowledge(last)
                connection.exchange()
    except (OSError, MalformedMessage) as error:
        raise NotConnected(f"the Store at {endpoint}: {error}", hint="check that it runs") from error
    _check_accepted(side, endpoint)


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
        self._is_confirming = False
        self.answered_ns = self.moved_ns = time.monotonic_ns()
        """Times of the Store's last bytes, and of the last messages that were delivered."""

    def exchange(self) -> None:
        """Send what the reader requests, and receive for a short time. Raises OSError, NotConnected."""
        side = self._side
        if side.is_complete and not self._is_confirming:
            self._is_confirming = True
            side.confirm()
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
                f"the Store at {self._endpoint} does not have {side.expected} yet",
                hint="read again once the source has repeated the message",
            )
        side.tick(now_ns)


def _check_accepted(side: ReaderSide, endpoint: Endpoint) -> None:
    if side.error not in (None, RegistrationError.SOURCE_NOT_FOUND):
        raise NotConnected(f"the Store at {endpoint} refused the reader: {side.error}", hint="connect again")


__all__ = ["replay"]
