"""replay(): reads what a Store has of a topic, also after its sources have ended."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from umstack._engine.endpoint import Endpoint
from umstack.errors import NotConnected
from umstack.persistence.reader_side import ReaderSide, RecoveredMessage
from umstack.persistence.session_ids import session_id_of
from umstack.store.wire import MalformedMessage, NoKeys, RegistrationError, StoreStream

_STREAM_BYTES = 4 << 20


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
        The messages of each source in order; messages that the Store dropped are skipped.

    Raises:
        NotConnected: The Store does not answer, or refuses the reader.
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
    stream = StoreStream(endpoint, NoKeys(), _STREAM_BYTES, is_store=False)
    try:
        with socket.create_connection(endpoint, timeout) as peer:
            is_asked = False
            while not side.is_confirmed:
                messages = side.take_messages()
                yield from messages
                if messages and not is_explicit:
                    for last in {message.source_reg_id: message for message in messages}.values():
                        side.acknowledge(last)
                if side.is_complete and not is_asked:
                    side.confirm()
                    is_asked = True
                stream.put(side.take_output())
                while stream.waiting_bytes:
                    stream.flush(peer)
                if not stream.receive(peer):
                    raise NotConnected(f"the Store at {endpoint} ended the connection", hint="connect again")
                for received in stream.messages():
                    side.received(received)
    except (OSError, MalformedMessage) as error:
        raise NotConnected(f"the Store at {endpoint}: {error}", hint="check that it runs") from error
    _check_accepted(side, endpoint)


def _check_accepted(side: ReaderSide, endpoint: Endpoint) -> None:
    if side.error not in (None, RegistrationError.SOURCE_NOT_FOUND):
        raise NotConnected(f"the Store at {endpoint} refused the reader: {side.error}", hint="connect again")


__all__ = ["replay"]
