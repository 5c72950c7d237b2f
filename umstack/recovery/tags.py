"""Tags on a connection of the request protocol: greetings, and windows of records that are sealed and checked.

Each side begins with a greeting: the topic, the key's identifier and a nonce. Both greetings, the source's endpoint
and the topic's name make the keys of the connection (ffi/authentication/stream_tags.h), so that nothing of one
connection, direction or topic is right in another. Then all messages go in records, each with a number and a tag.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Callable
from enum import Enum
from typing import Any

from umstack._core import ffi, lib
from umstack._engine.endpoint import Endpoint
from umstack._engine.keyring import core_key_set
from umstack.key_file import Key
from umstack.repeated_records import RepeatedRecords
from umstack.streams.byte_window import ByteWindow
from umstack.streams.counters import StreamCounters

GREETING_BYTES: int = lib.UM_RECORD_HEADER_BYTES
RECORD_WINDOW_BYTES = 2 * (lib.UM_RECORD_BYTES_MAX + lib.UM_RECORD_HEADER_BYTES)
"""Of a window that receives records: twice the longest, so that one always becomes whole within it."""

_HEADER_BYTES: int = lib.UM_RECORD_HEADER_BYTES
_NONCE_BYTES = 11
_GREETING = struct.Struct(f"!8sIIB{_NONCE_BYTES}s")
_GREETING_HEAD = bytes.fromhex("0862001cff188000")

KeysOf = Callable[[str], tuple[Key, ...]]
"""The keys of a topic in use now, the first of which makes tags; none: its connections have no tags."""

_records = RepeatedRecords(logging.getLogger("umstack.authentication"))


class Refusal(Enum):
    """Why a connection is refused: the ends of the counters recovery_dropped_tag_*."""

    MISSING = "missing"
    KEY = "key"
    WRONG = "wrong"
    REPLAYED = "replayed"


class TagRefused(ConnectionError):
    """What was received is not what the other side of the connection sent next; the connection is to end."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(f"a record of the request protocol: tag {reason.value}")
        self.reason = reason


def count_refusal(refusal: TagRefused, counters: StreamCounters, peer: str) -> None:
    """Count a connection that ends for its tags, and log it at most every few seconds."""
    counter = f"recovery_dropped_tag_{refusal.reason.value}"
    setattr(counters, counter, getattr(counters, counter) + 1)
    _records.write(
        counter, logging.WARNING, "a connection with %s was ended: tag %s", peer, refusal.reason.value
    )


def is_greeting(received: ByteWindow) -> bool:
    """Whether a connection without tags so far begins with a greeting."""
    return received.peek(len(_GREETING_HEAD)) == _GREETING_HEAD


def greeting(topic_index: int, key: Key) -> bytes:
    """A greeting with a nonce of its own."""
    return _GREETING.pack(_GREETING_HEAD, 0, topic_index, key.id, os.urandom(_NONCE_BYTES))


def decode_greeting(data: bytes) -> tuple[int, int]:
    """Topic index and key identifier of a whole greeting. Raises TagRefused when it is none."""
    head, length, topic_index, key_id, _ = _GREETING.unpack(data)
    if head != _GREETING_HEAD or length != 0:
        raise TagRefused(Refusal.MISSING)
    return topic_index, key_id


class StreamTags:
    """The tags of one connection, whose key stays the one it was greeted with. One thread."""

    __slots__ = ("_handle", "_key", "_keys_of", "topic")

    def __init__(
        self,
        key: Key,
        keys_of: KeysOf,
        topic: str,
        endpoint: Endpoint,
        greetings: tuple[bytes, bytes],
        *,
        is_server: bool,
    ) -> None:
        """`greetings` are the receiver's and the source's, `endpoint` the source's. Raises ConnectionError."""
        self._key = key
        self._keys_of = keys_of
        self.topic = topic
        where = socket.inet_aton(endpoint.ip) + endpoint.port.to_bytes(2, "big")
        connection = b"".join((*greetings, where, topic.encode("utf-8", "surrogateescape")))
        chosen = core_key_set((key,))  # owns what its member refers to
        handle = lib.um_stream_tags_open(chosen.keys, is_server, connection, len(connection))
        if handle == ffi.NULL:
            raise ConnectionError("the tags of a recovery connection: libcrypto failed, or memory")
        self._handle = ffi.gc(handle, lib.um_stream_tags_close)

    def seal(self, record: Any, length: int) -> None:
        """Make a record of `length` bytes behind its header's place. Raises ConnectionError."""
        if lib.um_stream_tags_seal(self._handle, record, length) != 0:
            raise ConnectionError("the tag of a record: libcrypto failed, or the connection is used up")

    def verify(self, record: Any) -> None:
        """Accept the next record of the connection. Raises TagRefused."""
        if self._key not in self._keys_of(self.topic):
            raise TagRefused(Refusal.KEY)  # removed from the key file since
        status = lib.um_stream_tags_verify(self._handle, record)
        if status != lib.UM_TAG_OK:
            raise TagRefused(Refusal.REPLAYED if status == lib.UM_TAG_REPLAYED else Refusal.WRONG)


class SealedWindow(ByteWindow):
    """Bytes to send; what is filled or appended at once, whole messages, becomes a record. Begins with a greeting."""

    __slots__ = ("_tags",)

    def __init__(self, capacity: int, greeting: bytes) -> None:
        super().__init__(capacity)
        super().append(greeting)
        self._tags: StreamTags | None = None

    def begin(self, tags: StreamTags) -> None:
        """The other side has greeted: there is room from now on."""
        self._tags = tags

    @property
    def space(self) -> Any:
        """Where the messages of the next record go."""
        return super().space + _HEADER_BYTES

    @property
    def room(self) -> int:
        """Bytes of messages that the next record may have."""
        room = super().room
        return max(0, room - _HEADER_BYTES) if self._tags is not None else 0

    def fill(self, count: int) -> None:
        """So many bytes of messages were written at `space`: a record of its own."""
        if count:
            assert self._tags is not None
            self._tags.seal(super().space, count)
            super().fill(_HEADER_BYTES + count)

    def append(self, data: bytes) -> None:
        """Add a record of some messages, for which there must be room."""
        assert len(data) <= self.room
        ffi.memmove(self.space, data, len(data))
        self.fill(len(data))


class VerifiedWindow(ByteWindow):
    """Bytes received: what is seen of them are the messages of one record, whose tag was right; then of the next.

    Before `begin` nothing is seen but the greeting that `take_greeting` takes.
    """

    __slots__ = ("_seen", "_tags")

    def __init__(self, capacity: int = RECORD_WINDOW_BYTES) -> None:
        super().__init__(capacity)
        self._tags: StreamTags | None = None
        self._seen = 0

    def __len__(self) -> int:
        return self._seen

    def take_over(self, others: ByteWindow) -> None:
        """Take all bytes of another window, which is no longer than this one."""
        self.append(others.peek(others.held))

    def take_greeting(self) -> bytes | None:
        """The greeting, once all of it is here. Raises TagRefused where it is none."""
        whole = super().peek(GREETING_BYTES)
        if not _GREETING_HEAD.startswith(whole[: len(_GREETING_HEAD)]):
            raise TagRefused(Refusal.MISSING)
        if len(whole) < GREETING_BYTES:
            return None
        super().consume(GREETING_BYTES)
        return whole

    def begin(self, tags: StreamTags) -> None:
        """Check records from now on. Raises TagRefused."""
        self._tags = tags
        self.show_next()

    def peek(self, count: int) -> bytes:
        """The first bytes of the messages seen, as many of them as there are."""
        return super().peek(min(count, self._seen))

    def consume(self, count: int) -> None:
        """The first bytes are used; behind the last of a record `show_next` shows the next."""
        assert count <= self._seen
        self._seen -= count
        super().consume(count)

    def show_next(self) -> bool:
        """Show the next record if nothing is seen and it is here whole: whether it did. Raises TagRefused."""
        received = self.held
        if self._seen or self._tags is None or not received:
            return False
        record = self.pointer
        length = lib.um_stream_record_bytes(record, received)
        if length in (0, -errno.EBADMSG):
            raise TagRefused(Refusal.MISSING)
        if not 0 < length <= received:
            return False
        self._tags.verify(record)
        super().consume(_HEADER_BYTES)
        self._seen = length - _HEADER_BYTES
        return True


__all__ = [
    "GREETING_BYTES",
    "KeysOf",
    "Refusal",
    "SealedWindow",
    "StreamTags",
    "TagRefused",
    "VerifiedWindow",
    "count_refusal",
    "decode_greeting",
    "greeting",
    "is_greeting",
]
