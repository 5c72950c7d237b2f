"""Tags on a TCP stream of LBMC messages: greetings, and windows of records that are sealed and checked.

With a key that encrypts, sealing and verifying a record also encrypts and decrypts its payloads in place.

Each side starts with a greeting: the subject of the connection, the key's identifier and a nonce. The keys of the
connection are derived from both greetings and the server's endpoint, so that a record is valid for one connection and
direction only. After that all messages are sent in records, each with a number and a tag. Recovery and requests share
this; bytes, keys and tags are those of ffi/authentication/stream_tags.h.
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
"""Size of a receive window: twice the longest record, so that any record fits completely."""
RECORD_HEADER_BYTES: int = lib.UM_RECORD_HEADER_BYTES
RECORD_MAXIMUM_BYTES: int = lib.UM_RECORD_BYTES_MAX
"""Most bytes of messages in one record."""
PROOF = bytes.fromhex("08ff0004")
"""Empty control message: first record of a side without other data, because only a record proves the key."""
KIND_BYTES = 8
"""Number of first bytes that identify a greeting and its kind."""

_GREETING_HEAD = bytes.fromhex("0862001cff1880")

_ENCRYPTED = 0x80
"""Flag in the kind of a greeting."""

KeysOf = Callable[[str], tuple[Key, ...]]
"""Returns a topic's current keys, of which the first makes tags. If empty, the topic's connections have no tags."""

_records = RepeatedRecords(logging.getLogger("umstack.authentication"))


class StreamKind(IntEnum):
    """The purpose of a connection with tags."""

    REQUESTS = lib.UM_STREAM_REQUESTS
    """Late join and off-transport recovery."""
    RESPONSES = lib.UM_STREAM_RESPONSES
    SESSION = lib.UM_STREAM_SESSION
    """LBT-TCP, whose connections are the core's."""
    STORE = lib.UM_STREAM_STORE
    """Persistence: a source or receiver connects to a Store."""


class Refusal(Enum):
    """Why a connection is refused; the values are the suffixes of the counters *_dropped_tag_*."""

    MISSING = "missing"
    KEY = "key"
    WRONG = "wrong"
    REPLAYED = "replayed"
    ENCRYPTION = "encryption"


class TagRefused(ConnectionError):
    """The received record is not the next one that the other side sent; the connection must be ended."""

    def __init__(self, reason: Refusal, meaning: str | None = None) -> None:
        """`meaning` is the text of the error; None: the one of the reason."""
        super().__init__(f"{meaning or _MEANINGS[reason]} (tag {reason.value})")
        self.reason = reason


_MEANINGS = {
    Refusal.MISSING: "the other side sent data without a tag: it has no key for the topic",
    Refusal.KEY: "the other side's key is not in use here",
    Refusal.WRONG: "a record was modified in transit, or was made for another connection or without the key",
    Refusal.REPLAYED: "a record was repeated, or an earlier one is missing",
    Refusal.ENCRYPTION: "the option encryption differs between the two sides",
}


_REFUSALS = {
    int(lib.UM_TAG_KEY_UNKNOWN): Refusal.KEY,
    int(lib.UM_TAG_WRONG): Refusal.WRONG,
    int(lib.UM_TAG_REPLAYED): Refusal.REPLAYED,
}


def count_refusal(refusal: TagRefused, counters: object, prefix: str, peer: str) -> None:
    """Count a connection ended for its tags in `{prefix}_dropped_tag_*`, and log it at most every few seconds."""
    counter = f"{prefix}_dropped_tag_{refusal.reason.value}"
    setattr(counters, counter, getattr(counters, counter) + 1)
    _records.write(counter, logging.WARNING, "a connection with %s was ended: %s", peer, refusal)


# Greetings


class Greeting(NamedTuple):
    """The content of a greeting, except its nonce."""

    kind: StreamKind
    subject: int
    """Requests: the topic index; responses and Stores: key_check()."""
    key_id: int
    is_encrypted: bool
    """True if the payloads of the records are encrypted."""


def is_greeting(received: ByteWindow) -> bool:
    """Return true if a new connection starts with a greeting."""
    return received.peek(len(_GREETING_HEAD)) == _GREETING_HEAD


def may_become_greeting(first_bytes: bytes) -> bool:
    """Return true if these first bytes may be the start of a greeting whose kind has not arrived yet."""
    return len(first_bytes) < KIND_BYTES and _GREETING_HEAD.startswith(first_bytes)


def kind_of(first_bytes: bytes) -> StreamKind | None:
    """Return the kind of greeting that starts with these bytes; None if they do not start a greeting."""
    if len(first_bytes) < KIND_BYTES or not first_bytes.startswith(_GREETING_HEAD):
        return None
    kind = first_bytes[len(_GREETING_HEAD)] & ~_ENCRYPTED
    return StreamKind(kind) if kind < lib.UM_STREAM_KINDS else None


def encode_greeting(greeting: Greeting) -> bytes:
    """Return a greeting with a new nonce. Raises ConnectionError."""
    said = ffi.new("um_stream_greeting *", greeting._asdict())
    out = ffi.new("uint8_t[]", GREETING_BYTES)
    if lib.um_stream_greeting_write(out, said) != 0:
        raise ConnectionError("cannot make a greeting: libcrypto returned no random numbers")
    return bytes(ffi.buffer(out))


def decode_greeting(data: bytes) -> Greeting:
    """Decode a complete greeting. Raises TagRefused if it is not one."""
    said = ffi.new("um_stream_greeting *")
    if not lib.um_stream_greeting_read(data, said):
        raise TagRefused(Refusal.MISSING)
    return Greeting(StreamKind(said.kind), said.subject, said.key_id, said.is_encrypted)


def key_check(key: Key) -> int:
    """Return a value that distinguishes keys with the same identifier if no topic selects one."""
    chosen = core_key_set((key,))  # owns the memory that its member points to
    return int(lib.um_stream_key_check(chosen.keys))


class StreamTags:
    """The tags of one connection. Its key does not change. Used by one thread."""

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
        """`greetings` are the client's and the server's, which listens at `endpoint`; `topic` is the topic's name if
        the connection belongs to one. With a key that is no longer in use no record is accepted.

        Raises ConnectionError; TagRefused if a greeting does not agree with the key on encryption.
        """
        if any(decode_greeting(greeting).is_encrypted != key.encrypts for greeting in greetings):
            raise TagRefused(Refusal.ENCRYPTION)
        self.key = key
        self._is_in_use = is_in_use
        where = socket.inet_aton(endpoint.ip) + endpoint.port.to_bytes(2, "big")
        connection = b"".join((*greetings, where, topic.encode("utf-8", "surrogateescape")))
        chosen = core_key_set((key,))  # owns the memory that its member points to
        handle = lib.um_stream_tags_open(chosen.keys, kind, is_server, connection, len(connection))
        if handle == ffi.NULL:
            raise ConnectionError(
                "cannot set up the tags of a connection: libcrypto failed, or out of memory"
            )
        self._handle = ffi.gc(handle, lib.um_stream_tags_close)

    def seal(self, record: Any, length: int) -> None:
        """Complete a record with `length` bytes of messages after its header. Raises ConnectionError."""
        if lib.um_stream_tags_seal(self._handle, ffi.cast("uint8_t *", record), length) != 0:
            raise ConnectionError("cannot tag a record: libcrypto failed")

    def verify(self, record: Any) -> None:
        """Accept the next record of the connection. Raises TagRefused."""
        if not self._is_in_use(self.key):
            raise TagRefused(Refusal.KEY)  # the key was removed from the key file
        status = lib.um_stream_tags_verify(self._handle, record)
        if status != lib.UM_TAG_OK:
            raise TagRefused(_REFUSALS[status])


class SealedWindow(ByteWindow):
    """Bytes to send: each fill or append of whole messages becomes one record. Starts with a greeting."""

    __slots__ = ("_tags",)

    def __init__(self, capacity: int, greeting: bytes) -> None:
        super().__init__(capacity)
        super().append(greeting)
        self._tags: StreamTags | None = None

    def begin(self, tags: StreamTags) -> None:
        """Accept messages from now on, because the other side's greeting has arrived."""
        self._tags = tags

    @property
    def space(self) -> Any:
        """Pointer to the place for the messages of the next record."""
        return super().space + RECORD_HEADER_BYTES

    @property
    def free_bytes(self) -> int:
        """Number of message bytes that fit the next record."""
        space = super().free_bytes
        return max(0, space - RECORD_HEADER_BYTES) if self._tags is not None else 0

    def fill(self, count: int) -> None:
        """Make a record of the `count` bytes of messages written at `space`."""
        if count:
            assert self._tags is not None
            self._tags.seal(super().space, count)
            super().fill(RECORD_HEADER_BYTES + count)

    def append(self, data: bytes) -> None:
        """Append messages as one record; the caller has checked that they fit."""
        assert len(data) <= self.free_bytes
        ffi.memmove(self.space, data, len(data))
        self.fill(len(data))


class VerifiedWindow(ByteWindow):
    """Received bytes: shows the messages of one verified record at a time.

    Before `begin`, only `take_greeting` reads from it.
    """

    __slots__ = ("_seen", "_tags")

    def __init__(self, capacity: int = RECORD_WINDOW_BYTES) -> None:
        super().__init__(capacity)
        self._tags: StreamTags | None = None
        self._seen = 0

    def __len__(self) -> int:
        return self._seen

    def take_over(self, others: ByteWindow) -> None:
        """Move all bytes of another window, which is no larger than this one, into this one."""
        self.append(others.peek(others.held))

    def take_greeting(self) -> bytes | None:
        """Return the greeting once it is complete, else None. Raises TagRefused if it is not a greeting."""
        whole = super().peek(GREETING_BYTES)
        if not _GREETING_HEAD.startswith(whole[: len(_GREETING_HEAD)]):
            raise TagRefused(Refusal.MISSING)
        if len(whole) < GREETING_BYTES:
            return None
        super().consume(GREETING_BYTES)
        return whole

    def begin(self, tags: StreamTags) -> None:
        """Verify records from now on. Raises TagRefused."""
        self._tags = tags
        self.show_next()

    @property
    def filled(self) -> memoryview:
        """View of the messages shown, in place."""
        return super().filled[: self._seen]

    def peek(self, count: int) -> bytes:
        """Return the first bytes of the messages shown, at most `count`."""
        return super().peek(min(count, self._seen))

    def consume(self, count: int) -> None:
        """Remove the first `count` bytes shown; at the end of a record `show_next` shows the next one."""
        assert count <= self._seen
        self._seen -= count
        super().consume(count)

    def show_next(self) -> bool:
        """Show the next record if it is complete and all shown bytes are consumed; true if shown. Raises TagRefused."""
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
    "RECORD_MAXIMUM_BYTES",
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
