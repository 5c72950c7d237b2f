"""The tags of docs/authentication.md once more, in plain Python: AES-GCM and HMAC-SHA256 without libcrypto."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import struct

TRAILER_BYTES = 28
TAG_BYTES = 12
HEAD = bytes.fromhex("0862001c ff188000")
_POLYNOMIAL = 0xE1 << 120


def _sbox() -> list[int]:
    table = [0x63] * 256
    p = q = 1
    while True:
        p = p ^ (p << 1 & 0xFF) ^ (0x1B if p & 0x80 else 0)
        for shift in (1, 2, 4):
            q ^= q << shift & 0xFF
        q ^= 0x09 if q & 0x80 else 0
        rotated = [q << n & 0xFF | q >> (8 - n) for n in range(5)]
        table[p] = rotated[0] ^ rotated[1] ^ rotated[2] ^ rotated[3] ^ rotated[4] ^ 0x63
        if p == 1:
            return table


_SBOX = _sbox()


def _double(value: int) -> int:
    return (value << 1 ^ (0x1B if value & 0x80 else 0)) & 0xFF


def _round_keys(key: bytes) -> list[bytes]:
    words = [key[at : at + 4] for at in range(0, len(key), 4)]
    key_words, count = len(words), 4 * (len(words) + 7)
    constant = 1
    while len(words) < count:
        word = words[-1]
        if len(words) % key_words == 0:
            word = bytes(_SBOX[byte] for byte in word[1:] + word[:1])
            word = bytes([word[0] ^ constant]) + word[1:]
            constant = _double(constant)
        elif key_words == 8 and len(words) % key_words == 4:
            word = bytes(_SBOX[byte] for byte in word)
        words.append(bytes(a ^ b for a, b in zip(words[-key_words], word, strict=True)))
    return [b"".join(words[at : at + 4]) for at in range(0, count, 4)]


def aes(key: bytes, block: bytes) -> bytes:
    """One block, encrypted with a key of 16 or 32 bytes."""
    keys = _round_keys(key)
    state = [a ^ b for a, b in zip(block, keys[0], strict=True)]
    for number in range(1, len(keys)):
        state = [_SBOX[state[(at + 4 * (at % 4)) % 16]] for at in range(16)]
        if number < len(keys) - 1:
            mixed = []
            for column in range(0, 16, 4):
                a = state[column : column + 4]
                whole = a[0] ^ a[1] ^ a[2] ^ a[3]
                mixed += [a[i] ^ whole ^ _double(a[i] ^ a[(i + 1) % 4]) for i in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, keys[number], strict=True)]
    return bytes(state)


def _multiply(x: int, y: int) -> int:
    product = 0
    for bit in range(127, -1, -1):
        product ^= y if x >> bit & 1 else 0
        y = y >> 1 ^ (_POLYNOMIAL if y & 1 else 0)
    return product


def gmac(key: bytes, nonce: bytes, data: bytes, encrypted: bytes = b"") -> bytes:
    """AES-GCM's tag over data and encrypted bytes, with a nonce of 12 bytes."""
    subkey = int.from_bytes(aes(key, bytes(16)))
    padded = data + bytes(-len(data) % 16) + encrypted + bytes(-len(encrypted) % 16)
    padded += struct.pack(">QQ", 8 * len(data), 8 * len(encrypted))
    digest = 0
    for at in range(0, len(padded), 16):
        digest = _multiply(digest ^ int.from_bytes(padded[at : at + 16]), subkey)
    mask = int.from_bytes(aes(key, nonce + b"\0\0\0\1"))
    return (digest ^ mask).to_bytes(16)


def crypted(key: bytes, nonce: bytes, data: bytes) -> bytes:
    """AES-GCM's encryption of data, which is also its decryption."""
    blocks = (len(data) + 15) // 16
    stream = b"".join(aes(key, nonce + number.to_bytes(4)) for number in range(2, 2 + blocks))
    return bytes(a ^ b for a, b in zip(data, stream, strict=False))


def _address(ip: str, port: int) -> bytes:
    return ipaddress.IPv4Address(ip).packed + port.to_bytes(2)


def _derived(secret: bytes, label: bytes) -> bytes:
    return hmac.new(secret, label, hashlib.sha256).digest()


def session_tag(
    secret: bytes, source: tuple[str, int], group: tuple[str, int], session_id: int, covered: bytes
) -> bytes:
    """The tag of a datagram from a source to its group. `covered` ends with the stamp; `source` has the NAK port."""
    label = b"umstack session" + _address(*source) + _address(*group) + session_id.to_bytes(4)
    return gmac(_derived(secret, label)[:16], covered[-8:] + bytes(4), covered)[:TAG_BYTES]


def session_plaintext(
    secret: bytes,
    source: tuple[str, int],
    group: tuple[str, int],
    session_id: int,
    datagram: bytes,
    payloads: list[tuple[int, int]],
) -> bytes:
    """The payloads of an encrypted datagram, end to end, from their offsets and lengths; checks its tag."""
    label = b"umstack encrypted session" + _address(*source) + _address(*group) + session_id.to_bytes(4)
    key, covered = _derived(secret, label), datagram[:-TAG_BYTES]
    nonce = covered[-8:] + bytes(4)
    encrypted = b"".join(covered[at : at + length] for at, length in payloads)
    clear, end = b"", 0
    for at, length in payloads:
        clear, end = clear + covered[end:at], at + length
    assert gmac(key, nonce, clear + covered[end:], encrypted)[:TAG_BYTES] == datagram[-TAG_BYTES:]
    return crypted(key, nonce, encrypted)


def sender_tag(secret: bytes, purpose: str, sender: tuple[str, int], covered: bytes) -> bytes:
    """The tag of a datagram of a receiver (`control`) or of topic resolution (`lbmr`) from the address of `sender`."""
    key = _derived(secret, b"umstack " + purpose.encode())
    return hmac.new(key, _address(*sender) + covered, hashlib.sha256).digest()[:TAG_BYTES]


def key_check(secret: bytes) -> int:
    """By which responses name a key beside its identifier."""
    return int.from_bytes(_derived(secret, b"umstack key check")[:4])


class RecordStream:
    """One side of a keyed connection: of the request protocol, or of another kind."""

    LABELS = b"umstack request", b"umstack response", b"umstack tcp", b"umstack store"
    REQUESTS, RESPONSES, SESSION, STORE = range(4)

    def __init__(
        self,
        secret: bytes,
        key_id: int,
        topic: str,
        subject: int,
        *,
        is_server: bool,
        kind: int = REQUESTS,
    ) -> None:
        self.secret = secret
        self.topic = topic
        self.is_server = is_server
        self.label = self.LABELS[kind]
        head = HEAD[:7] + bytes([kind])
        self.greeting = head + struct.pack(">IIB", 0, subject, key_id) + os.urandom(11)
        self._keys = b"", b""
        self._numbers = [0, 0]
        self._named = [0, 0]
        self._connection = b""

    def begin(self, theirs: bytes, endpoint: tuple[str, int]) -> None:
        """The other side's greeting, and where the server was connected to."""
        greetings = theirs + self.greeting if self.is_server else self.greeting + theirs
        self._connection = greetings + _address(*endpoint) + self.topic.encode()
        made = self._made()
        ours, others = (1, 0) if self.is_server else (0, 1)
        self._keys = made[ours], made[others]

    def _made(self) -> list[bytes]:
        """The keys of both directions: from the client, from the server."""
        labels = [self.label + bytes([n]) for n in (0, 1)]
        return [_derived(self.secret, label + self._connection)[:16] for label in labels]

    def change_key(self, secret: bytes, key_id: int, *, ours: bool) -> None:
        """Use another key for the records of one direction from now on, and announce it."""
        self.secret = secret
        made = self._made()[0 if self.is_server != ours else 1]
        self._keys = (made, self._keys[1]) if ours else (self._keys[0], made)
        self._named[0 if ours else 1] = key_id

    def _record(self, direction: int, messages: bytes, number: int) -> bytes:
        key_id, self._named[direction] = self._named[direction], 0
        head = HEAD[:7] + bytes([key_id]) + struct.pack(">II", len(messages), number % 2**32)
        nonce = (number % 2**32).to_bytes(4) + (number >> 32).to_bytes(4) + bytes(4)
        return head + gmac(self._keys[direction], nonce, head + messages)[:TAG_BYTES] + messages

    def seal(self, messages: bytes) -> bytes:
        """The next record of ours."""
        number = self._numbers[0]
        self._numbers[0] += 1
        return self._record(0, messages, number)

    def leave_out(self, count: int) -> None:
        """Number the next record of ours as if `count` more had been sent; the numbers have 64 bits."""
        self._numbers[0] = (self._numbers[0] + count) % 2**64

    def opened(self, record: bytes) -> bytes:
        """Return the messages of the peer's next record; asserts that the record is correct."""
        number = self._numbers[1]
        self._numbers[1] += 1
        messages = record[TRAILER_BYTES:]
        assert record == self._record(1, messages, number)
        return messages
