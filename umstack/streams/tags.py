"""Tags on a TCP stream of LBMC messages: greetings, and windows of records that are sealed and checked.

Each side begins with a greeting: what the connection is about, the key's identifier and a nonce. Both greetings and
where the connection leads to make its keys, so that nothing of one connection or direction is right in another. Then
all messages go in records, each with a number and a tag. Recovery and requests share this; bytes, keys and tags are
those of ffi/authentication/stream_tags.h.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from umstack._core import ffi, lib
from umstack._engine.endpoint import Endpoint
from umstack._engine.keyring import core_key_set
from umstack.key_file import Key
from umstack.repeated_records import RepeatedRecords
from umstack.streams.byte_window import ByteWindow

GREETING_BYTES: int = lib.UM_RECORD_HEADER_BYTES
RECORD_WINDOW_BYTES = 2 * (lib.UM_RECORD_BYTES_MAX + lib.UM_RECORD_HEADER_BYTES)
"""Size of a window that receives records: twice the longest, so that any record fits completely."""
RECORD_HEADER_BYTES: int = lib.UM_RECORD_HEADER_BYTES
PROOF = bytes.fromhex("08ff0004")
"""Empty control message: first record of a side without other data, because only a record proves the key."""
KIND_BYTES = 8
"""Number of first bytes that identify a greeting and its kind."""

_GREETING_HEAD = bytes.fromhex("0862001cff1880")

KeysOf = Callable[[str], tuple[Key, ...]]
"""The keys of a topic in use now, the first of which makes tags; none: its connections have no tags."""

_records = RepeatedRecords(logging.getLogger("umstack.authentication"))


class StreamKind(IntEnum):
    """The purpose of a connection with tags."""

    REQUESTS = lib.UM_STREAM_REQUESTS
    """Of late join and off-transport recovery."""
    RESPONSES = lib.UM_STREAM_RESPONSES


class Refusal(Enum):
    """Why a connection is refused: the ends of the counters *_dropped_tag_*."""

    MISSING = "missing"
    KEY = "key"
    WRONG = "wrong"
    REPLAYED = "replayed"


class TagRefused(ConnectionError):
    """The received record is not the next one that the other side sent; end the connection."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(f"{_MEANINGS[reason]} (tag {reason.value})")
        self.reason = reason


_MEANINGS = {
    Refusal.MISSING: "the other side sent what has no tag: it has no key for the topic",
    Refusal.KEY: "the other side's key is not in use here",
    Refusal.WRONG: "a record was changed on the way, or was made for another connection or without the key",
    Refusal.REPLAYED: "a record came twice, or one before it is lacking",
}


_REFUSALS = {
    int(lib.UM_TAG_KEY_UNKNOWN): Refusal.KEY,
    int(lib.UM_TAG_WRONG): Refusal.WRONG,
    int(lib.UM_TAG_REPLAYED): Refusal.REPLAYED,
}


def count_refusal(refusal: TagRefused, counters: object, prefix: str, peer: str) -> None:
    """Count a connection that ends for its tags in `{prefix}_dropped_tag_*`, and log it at most every few seconds."""
    counter = f"{prefix}_dropped_tag_{refusal.reason.value}"
    setattr(counters, counter, getattr(counters, counter) + 1)
    _records.write(counter, logging.WARNING, "a connection with %s was ended: %s", peer, refusal)


# Greetings


class Greeting(NamedTuple):
    """The content of a greeting, except its nonce."""

    kind: StreamKind
    subject: int
    """Of requests the topic's index, of responses key_check()."""
    key_id: int


def is_greeting(received: ByteWindow) -> bool:
    """True if a connection without tags so far begins with a greeting."""
    return received.peek(len(_GREETING_HEAD)) == _GREETING_HEAD


def may_become_greeting(first_bytes: bytes) -> bool:
    """True if a peer that has sent no more than this may be sending a greeting, whose kind is not here yet."""
    return len(first_bytes) < KIND_BYTES and _GREETING_HEAD.startswith(first_bytes)


def kind_of(first_bytes: bytes) -> StreamKind | None:
    """The kind of the greeting that a peer's first KIND_BYTES begin; None where they begin none."""
    if len(first_bytes) < KIND_BYTES or not first_bytes.startswith(_GREETING_HEAD):
        return None
    kind = first_bytes[len(_GREETING_HEAD)]
    return StreamKind(kind) if kind < lib.UM_STREAM_KINDS else None


def encode_greeting(greeting: Greeting) -> bytes:
    """A greeting with a nonce of its own. Raises ConnectionError."""
    said = ffi.new("um_stream_greeting *", greeting._asdict())
    out = ffi.new("uint8_t[]", GREETING_BYTES)
    if lib.um_stream_greeting_write(out, said) != 0:
        raise ConnectionError("a greeting: libcrypto has no random numbers")
    return bytes(ffi.buffer(out))


def decode_greeting(data: bytes) -> Greeting:
    """Decode a complete greeting. Raises TagRefused if it is not one."""
    said = ffi.new("um_stream_greeting *")
    if not lib.um_stream_greeting_read(data, said):
        raise TagRefused(Refusal.MISSING)
    return Greeting(StreamKind(said.kind), said.subject, said.key_id)


def key_check(key: Key) -> int:
    """Return a value that distinguishes keys with the same identifier where no topic selects one."""
    return int(lib.um_stream_key_check(core_key_set((key,)).keys))


class StreamTags:
    """The tags of one connection, whose key stays the one it was greeted with. One thread."""

    __slots__ = ("_handle", "_is_in_use", "key")

    def __init__(
        self,
        key: Key,
        is_in_use: Callable[[Key], bool],
        kind: StreamKind,
        greetings: tuple[bytes, bytes],
        endpoint: Endpoint,
        topic: str = "",
        *,
        is_server: bool,
    ) -> None:
        """`greetings` are those of who connected and of who was connected to, which is the server, at `endpoint`;
        `topic` is its name where the connection is of one. A key that is in use no more accepts nothing.

        Raises ConnectionError.
        """
        self.key = key
        self._is_in_use = is_in_use
        where = socket.inet_aton(endpoint.ip) + endpoint.port.to_bytes(2, "big")
        connection = b"".join((*greetings, where, topic.encode("utf-8", "surrogateescape")))
        chosen = core_key_set((key,))  # owns what its member refers to
        handle = lib.um_stream_tags_open(chosen.keys, kind, is_server, connection, len(connection))
        if handle == ffi.NULL:
            raise ConnectionError("the tags of a connection: libcrypto failed, or memory")
        self._handle = ffi.gc(handle, lib.um_stream_tags_close)

    def seal(self, record: Any, length: int) -> None:
        """Make a record of `length` bytes behind its header's place. Raises ConnectionError."""
        if lib.um_stream_tags_seal(self._handle, ffi.cast("uint8_t *", record), length) != 0:
            raise ConnectionError("the tag of a record: libcrypto failed")

    def verify(self, record: Any) -> None:
        """Accept the next record of the connection. Raises TagRefused."""
        if not self._is_in_use(self.key):
            raise TagRefused(Refusal.KEY)  # removed from the key file since
        status = lib.um_stream_tags_verify(self._handle, record)
        if status != lib.UM_TAG_OK:
            raise TagRefused(_REFUSALS[status])


class SealedWindow(ByteWindow):
    """Bytes to send; what is filled or appended at once, whole messages, becomes a record. Begins with a greeting."""

    __slots__ = ("_tags",)

    def __init__(self, capacity: int, greeting: bytes) -> None:
        super().__init__(capacity)
        super().append(greeting)
        self._tags: StreamTags | None = None

    def begin(self, tags: StreamTags) -> None:
        """The other side has greeted: there is space from now on."""
        self._tags = tags

    @property
    def space(self) -> Any:
        """Where the messages of the next record go."""
        return super().space + RECORD_HEADER_BYTES

    @property
    def free_bytes(self) -> int:
        """Bytes of messages that the next record may have."""
        space = super().free_bytes
        return max(0, space - RECORD_HEADER_BYTES) if self._tags is not None else 0

    def fill(self, count: int) -> None:
        """So many bytes of messages were written at `space`: a record of its own."""
        if count:
            assert self._tags is not None
            self._tags.seal(super().space, count)
            super().fill(RECORD_HEADER_BYTES + count)

    def append(self, data: bytes) -> None:
        """Add a record of some messages, for which there must be space."""
        assert len(data) <= self.free_bytes
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

    @property
    def filled(self) -> memoryview:
        """The bytes of the messages seen, in place."""
        return super().filled[: self._seen]

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
        record = ffi.cast("uint8_t *", self.pointer)
        length = lib.um_stream_record_bytes(record, received)
        if length in (0, -errno.EBADMSG):
            raise TagRefused(Refusal.MISSING)
        if not 0 < length <= received:
            return False
        self._tags.verify(record)
        super().consume(RECORD_HEADER_BYTES)
        self._seen = length - RECORD_HEADER_BYTES
        return True


__all__ = [
    "GREETING_BYTES",
    "KIND_BYTES",
    "PROOF",
    "RECORD_HEADER_BYTES",
    "Greeting",
    "KeysOf",
    "Refusal",
    "SealedWindow",
    "StreamKind",
    "StreamTags",
    "TagRefused",
    "VerifiedWindow",
    "count_refusal",
    "decode_greeting",
    "encode_greeting",
    "is_greeting",
    "key_check",
    "kind_of",
    "may_become_greeting",
]
