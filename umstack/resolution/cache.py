"""The resolver cache: advertised sources, including those of topics without a receiver here (UX-16).

C code handles the datagrams (ffi/core/resolution/resolver_cache.h): known records, and records of topics without a
receiver here, never become Python objects.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Collection
from itertools import islice
from random import SystemRandom
from typing import Any, NamedTuple

from umstack._core import ffi, lib
from umstack._engine.core_address import UNKNOWN_IP, core_ip, ip_text
from umstack._engine.transport_address import TransportAddress, address_of, fill_identity
from umstack.resolution.codec import decode_topic_name

_NAMES_BYTES = 64 * 1024
_SOURCES_AT_ONCE = 16


class KnownSource(NamedTuple):
    """One source: its topic, the topic index in its messages, and its session."""

    topic: str
    topic_index: int
    address: TransportAddress


class Intake(NamedTuple):
    """The result of handling a datagram: counts, and the encoded records that the owner must handle."""

    query_count: int
    advertisement_count: int
    ignored_count: int
    """Number of advertisements of sessions that cannot be joined."""
    queries: list[bytes]
    """Queried names of topics that may have a source here."""
    advertisements: list[bytes]
    """Advertisements of topics that may have a receiver here, of new topics if all are needed, and with options."""


class ResolverCache:
    """Sources by topic. When the cache is full, a new source replaces the one advertised longest ago.

    One thread at a time, except for topics() and the sizes. Callers call add_interest() once per interested source or
    receiver, and remove_interest() the same number of times.
    """

    __slots__ = ("_handle", "_intake", "_lock", "_memory")

    def __init__(self, maximum_entries: int) -> None:
        # Mapped memory, so that of several megabytes only the pages in use occupy memory.
        size = lib.um_resolver_cache_footprint(maximum_entries)
        self._memory: Any = ffi.from_buffer("uint8_t[]", mmap.mmap(-1, size))
        key = ffi.new("um_siphash_key *", [SystemRandom().getrandbits(64) for _ in range(2)])
        self._handle: Any = lib.um_resolver_cache_init(self._memory, maximum_entries, key[0])
        self._intake: Any = ffi.new("um_resolver_intake *")
        self._lock = threading.Lock()
        """The calls into C release the interpreter lock."""

    def __len__(self) -> int:
        return int(lib.um_resolver_cache_count(self._handle))

    @property
    def eviction_count(self) -> int:
        """Return the number of evicted sources."""
        return int(lib.um_resolver_cache_evictions(self._handle))

    def take(self, data: bytes, advertiser: str = UNKNOWN_IP) -> Intake | None:
        """Handle a datagram of queries and advertisements from an address; return None for any other or a malformed
        one."""
        found = self._intake
        with self._lock:
            sender = ffi.new("um_ip *", core_ip(advertiser))
            if not lib.um_resolver_cache_take(self._handle, data, len(data), sender[0], found):
                return None
        queries: list[bytes] = []
        advertisements: list[bytes] = []
        if found.owner_records:
            records = [
                data[one.offset : one.offset + one.bytes]
                for one in islice(found.records, found.owner_records)
            ]
            queries, advertisements = records[: found.owner_queries], records[found.owner_queries :]
        return Intake(
            found.query_count, found.advertisement_count, found.ignored_count, queries, advertisements
        )

    def settle(self, advertisement: bytes) -> None:
        """Mark this advertisement as handled, so that take() omits it until it changes."""
        with self._lock:
            lib.um_resolver_cache_settle(self._handle, advertisement, len(advertisement))

    def unsettle(self) -> None:
        """Make take() return every advertisement that may be of interest once more."""
        with self._lock:
            lib.um_resolver_cache_unsettle(self._handle)

    def set_needs_all(self, needs_all: bool) -> None:
        """Set whether take() returns the advertisements of all topics."""
        lib.um_resolver_cache_set_needs_all(self._handle, needs_all)

    def add_interest(self, name: bytes, *, has_source: bool) -> None:
        """Add a source or a receiver of a topic."""
        interest = lib.UM_TOPIC_HAS_SOURCE if has_source else lib.UM_TOPIC_HAS_RECEIVER
        lib.um_resolver_cache_add_interest(self._handle, name, len(name), interest)

    def remove_interest(self, name: bytes, *, has_source: bool) -> None:
        """Remove a source or a receiver of a topic."""
        interest = lib.UM_TOPIC_HAS_SOURCE if has_source else lib.UM_TOPIC_HAS_RECEIVER
        lib.um_resolver_cache_remove_interest(self._handle, name, len(name), interest)

    def discard_sessions(self, addresses: Collection[TransportAddress]) -> None:
        """Forget every source of these sessions."""
        left = iter(addresses)
        while some := list(islice(left, lib.UM_RESOLVER_SESSIONS_MAX)):
            sessions = ffi.new("um_session_id[]", len(some))
            for session, address in zip(sessions, some, strict=True):
                fill_identity(session, address)
            with self._lock:
                lib.um_resolver_cache_remove_sessions(self._handle, sessions, len(some))

    def sources_of(self, topic: str, name: bytes) -> dict[KnownSource, str]:
        """Return the sources of a topic in the order of their first advertisements, and their advertisers; `name` is
        the encoded topic."""
        space = _SOURCES_AT_ONCE
        while True:
            found = ffi.new("um_known_source[]", space)
            with self._lock:
                count = lib.um_resolver_cache_sources_of(self._handle, name, len(name), found, space)
            if count <= space:
                return {
                    KnownSource(topic, one.topic_index, address_of(one.session)): ip_text(one.advertiser)
                    for one in islice(found, count)
                }
            space = count

    def topics(self) -> list[str]:
        """Return the topics with a known source. Any thread."""
        cursor, buffer = ffi.new("uint32_t *"), ffi.new("char[]", _NAMES_BYTES)
        names: list[bytes] = []
        with self._lock:
            while count := lib.um_resolver_cache_topics(self._handle, cursor, buffer, _NAMES_BYTES):
                names += ffi.buffer(buffer, count - 1)[:].split(b"\0")
        return [decode_topic_name(name) for name in names]
