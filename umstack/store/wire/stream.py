"""StoreStream: one side of a connection between a client and a Store, with tags if the connection has a key.

Sources, receivers and Stores use the same class. A client with a key sends a greeting first; a Store answers a greeting
and otherwise continues without tags. The topics of a connection are not known yet: each registration must be
checked with `is_allowed`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Protocol, Self

from umstack._engine.endpoint import Endpoint
from umstack.key_file import Key
from umstack.store.wire.chain import HEADER_BYTES, MESSAGE_MAXIMUM_BYTES, message_bytes
from umstack.streams.byte_window import ByteWindow
from umstack.streams.tags import (
    GREETING_BYTES,
    KIND_BYTES,
    RECORD_HEADER_BYTES,
    RECORD_MAXIMUM_BYTES,
    RECORD_WINDOW_BYTES,
    Greeting,
    Refusal,
    SealedWindow,
    StreamKind,
    StreamTags,
    TagRefused,
    VerifiedWindow,
    decode_greeting,
    encode_greeting,
    is_greeting,
    key_check,
    may_become_greeting,
)

_SUBJECT_MASK = (1 << 32) - 1
PLAIN_WINDOW_BYTES = 2 * (MESSAGE_MAXIMUM_BYTES + 1)
"""Size of a receive window without tags: any message fits completely."""
_REFUSED = "the Store does not use this key of the client, or only with another option encryption"


class Keys(Protocol):
    """The keys in use, as a context's keyring has them."""

    def has(self, key: Key) -> bool:
        """Return true if any topic uses this key now."""

    def find(self, is_meant: Callable[[Key], bool]) -> Key | None:
        """Return the first key for which `is_meant` returns true, or None."""


class TopicKeys(Keys, Protocol):
    """The keys in use, and those of each topic."""

    def keys_of(self, topic: str) -> tuple[Key, ...]:
        """Return the keys of a topic, of which the first makes tags; empty if its connections have no tags."""


class StoreStream:
    """Messages in both directions. Used by one thread; the caller owns the socket."""

    def __init__(
        self, endpoint: Endpoint, keys: Keys, send_bytes: int, *, is_store: bool, key: Key | None = None
    ) -> None:
        """`endpoint` is the Store's, to which the client connected; `send_bytes` bounds what waits to be sent.

        `key` makes the tags of a client; without it the connection has none. A Store has no key before the client's
        greeting.
        """
        assert not (is_store and key is not None)
        self.endpoint = endpoint
        self.key = key
        self._keys = keys
        self._send_bytes = send_bytes
        self._is_store = is_store
        self.has_begun = False
        """True once it is known if the connection has tags, and the other side's greeting has arrived."""
        self._greeting = b""
        self._received: ByteWindow = ByteWindow(PLAIN_WINDOW_BYTES)
        self._sent: ByteWindow = ByteWindow(send_bytes)
        if key is not None:
            self._greeting = encode_greeting(Greeting(StreamKind.STORE, key_check(key), key.id, key.encrypts))
            self._received = VerifiedWindow()
            self._sent = SealedWindow(send_bytes, self._greeting)
        elif not is_store:
            self.has_begun = True

    @classmethod
    def of_client(cls, endpoint: Endpoint, keys: TopicKeys, topic: str, send_bytes: int) -> Self:
        """Return the side of a client of a topic, with the key that makes the topic's tags, if there is one."""
        key = next(iter(keys.keys_of(topic)), None)
        return cls(endpoint, keys, send_bytes, is_store=False, key=key)

    def is_allowed(self, topic_keys: tuple[Key, ...]) -> bool:
        """Return true if a topic with these keys may use the connection: with one of them, or without any."""
        return self.key in topic_keys if topic_keys else self.key is None

    @property
    def free_bytes(self) -> int:
        """Number of bytes of messages that `put` accepts now; 0 before the other side's greeting."""
        space = self._sent.free_bytes
        if self.key is None:
            return space
        # Two records that follow each other are longer than one record can be, because messages are shorter.
        return max(0, space - RECORD_HEADER_BYTES * (2 * space // RECORD_MAXIMUM_BYTES))

    @property
    def waiting_bytes(self) -> int:
        """Number of bytes that the kernel does not have yet."""
        return self._sent.held

    def put(self, messages: bytes) -> bool:
        """Queue whole messages, in as few records as possible with tags. Return false if there is no space for them.

        Raises ConnectionError if the tag cannot be made.
        """
        if len(messages) > self.free_bytes:
            return False
        if self.key is None:
            self._sent.append(messages)
            return True
        while len(messages) > RECORD_MAXIMUM_BYTES:
            size = 0
            while (following := size + message_bytes(messages[size : size + 4])) <= RECORD_MAXIMUM_BYTES:
                size = following
            self._sent.append(messages[:size])
            messages = messages[size:]
        self._sent.append(messages)
        return True

    def flush(self, peer: socket.socket) -> None:
        """Send as much as the kernel accepts. Raises OSError."""
        self._sent.send(peer)

    def receive(self, peer: socket.socket) -> bool:
        """Receive once. Return false at the end of the stream. Raises OSError, TagRefused.

        A Store that refuses a client's greeting answers with another one, which flush() sends, and ends the connection.
        """
        count = self._received.receive(peer)
        if count == 0 and not self.has_begun and not self._is_store:
            raise ConnectionError("the Store ended the connection before its greeting")
        if count and not self.has_begun:
            self._begin()
        return count != 0

    def messages(self) -> Iterator[bytes]:
        """Yield and remove the complete messages. Raises MalformedMessage, TagRefused."""
        while self.has_begun:
            data, at = bytes(self._received.filled), 0
            while 0 < (size := message_bytes(data[at : at + HEADER_BYTES])) <= len(data) - at:
                self._received.consume(size)
                yield data[at : at + size]
                at += size
            if self.key is not None and at < len(data):
                raise TagRefused(Refusal.WRONG)  # a record ends with a message
            if not self._received.show_next():
                return

    def _begin(self) -> None:
        """Exchange greetings, as far as bytes have arrived. Raises TagRefused, ConnectionError."""
        if self.key is not None:
            self._take_greeting(self.key)
        elif not is_greeting(self._received):
            self.has_begun = not may_become_greeting(self._received.peek(KIND_BYTES))
        elif self._received.held >= GREETING_BYTES:
            self._answer_greeting(self._received.peek(GREETING_BYTES))

    def _take_greeting(self, key: Key) -> None:
        received, sent = self._received, self._sent
        assert isinstance(received, VerifiedWindow)
        assert isinstance(sent, SealedWindow)
        theirs = received.take_greeting()
        if theirs is None:
            return
        if decode_greeting(theirs) != decode_greeting(self._greeting):
            raise TagRefused(Refusal.KEY, _REFUSED)
        tags = StreamTags(
            key, self._keys.has, StreamKind.STORE, (self._greeting, theirs), self.endpoint, is_server=False
        )
        sent.begin(tags)
        received.begin(tags)
        self.has_begun = True

    def _answer_greeting(self, theirs: bytes) -> None:
        said = decode_greeting(theirs)
        key = self._keys.find(lambda key: key.id == said.key_id and key_check(key) == said.subject)
        if key is None or said.kind is not StreamKind.STORE or key.encrypts != said.is_encrypted:
            refusal = said._replace(kind=StreamKind.STORE, subject=~said.subject & _SUBJECT_MASK)
            self._sent.append(encode_greeting(refusal))
            raise TagRefused(Refusal.KEY, _REFUSED)
        ours = encode_greeting(said)
        tags = StreamTags(
            key, self._keys.has, StreamKind.STORE, (theirs, ours), self.endpoint, is_server=True
        )
        self._received.consume(GREETING_BYTES)
        received, sent = VerifiedWindow(RECORD_WINDOW_BYTES), SealedWindow(self._send_bytes, ours)
        received.take_over(self._received)
        sent.begin(tags)
        self.key, self._received, self._sent, self.has_begun = key, received, sent, True
        received.begin(tags)


__all__ = ["PLAIN_WINDOW_BYTES", "Keys", "StoreStream", "TopicKeys"]
