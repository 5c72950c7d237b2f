"""RecoveryServer: serves retained messages to receivers connected to a context's request port (UM-138, UM-140).

The port limits the number of connections; their buffers, the send rate, and idle and stall times are also bounded.
When the port is full, a new connection replaces one that has requested nothing, or one of the address that has the
most. The time spent on requests is shared equally by the addresses that they come from, because requests differ in what
they cost.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter

from umstack._core import ffi, lib
from umstack._engine.publication import Publication
from umstack.config import ContextOptions
from umstack.recovery.codec import (
    CONTROL,
    HEADER_BYTES,
    OPTION_MESSAGE_REQUEST,
    OPTION_RANGE_REQUEST,
)
from umstack.recovery.turns import Turns
from umstack.streams.byte_window import ByteWindow
from umstack.streams.counters import StreamCounters
from umstack.streams.request_port import IDLE_PEER_NS, PeerKind, RequestPort
from umstack.streams.tags import (
    GREETING_BYTES,
    KeysOf,
    Refusal,
    SealedWindow,
    StreamKind,
    StreamTags,
    TagRefused,
    VerifiedWindow,
    count_refusal,
    decode_greeting,
    encode_greeting,
    is_greeting,
)

_REQUEST_WINDOW_BYTES = 131072
_ANSWER_WINDOW_BYTES = 131072
_MESSAGE_MAX_BYTES = 65535
_RANGE_BYTES = 20
_TOPIC_INDEX_AT = HEADER_BYTES + 12
"""Offset of the topic index in a control message that requests messages."""
_PACE_NS = 2_000_000
_TURN_NS = 1_000_000
"""Time for the requests of one connection before the next one has its turn."""
_TURNS_NS = 5_000_000
"""Time for requests before the sockets are looked at again."""
_NS_PER_S = 1_000_000_000


class _Connection:
    """One receiver's connection."""

    __slots__ = (
        "active_ns", "answers", "interest", "is_useful", "opened_ns", "peer", "publications", "requests", "served",
        "socket", "tags",
    )  # fmt: skip

    def __init__(self, socket_: socket.socket, peer: tuple[str, int], now_ns: int) -> None:
        self.socket = socket_
        self.peer = peer
        self.requests = ByteWindow(_REQUEST_WINDOW_BYTES)
        self.answers = ByteWindow(_ANSWER_WINDOW_BYTES)
        self.tags: StreamTags | None = None
        self.publications: dict[int, Publication] = {}
        """The sources whose range was requested, by topic index."""
        self.served = ffi.new("um_served *")
        self.is_useful = False
        """True once the range of a source was requested that exists."""
        self.opened_ns = self.active_ns = now_ns
        self.interest = selectors.EVENT_READ


class RecoveryServer:
    """Serves the sources of one context. Used only by the recovery service's thread."""

    def __init__(
        self,
        options: ContextOptions,
        port: RequestPort,
        selector: selectors.BaseSelector,
        counters: StreamCounters,
        keys_of: KeysOf,
    ) -> None:
        """Serve receivers that connect to the port."""
        self._selector = selector
        self._counters = counters
        self._keys_of = keys_of
        self._rate = options.recovery_data_rate_limit_bits_per_second // 8
        self._idle_ns = options.recovery_idle_timeout_ns
        self._allowance = 0.0
        self._allowance_ns = 0
        self._connections: dict[int, _Connection] = {}
        self._publications: dict[int, Publication] = {}
        self._turns: Turns[_Connection] = Turns()
        self.endpoint = port.endpoint
        port.serve(PeerKind.RECOVERY, self)

    def add(self, publication: Publication) -> None:
        """Serve a source from now on."""
        self._publications[publication.topic_index] = publication

    def remove(self, publication: Publication) -> None:
        """Stop serving a source; requests for it are no longer answered."""
        self._publications.pop(publication.topic_index, None)
        for one in self._connections.values():
            one.publications.pop(publication.topic_index, None)

    def run(self, now_ns: int) -> int | None:
        """Continue work that waited for the rate limit, and end idle connections. Returns when to call again."""
        self._refill(now_ns)
        for one in list(self._connections.values()):
            if now_ns - one.active_ns > self._idle_ns:
                self._counters.recovery_connections_idle += 1
                self._drop(one)
        self._take_turns(now_ns)
        if not self._connections:
            return None
        if self._turns:
            return now_ns + (_PACE_NS if self._is_out_of_rate else 0)
        return now_ns + self._idle_ns // 4

    @property
    def _is_out_of_rate(self) -> bool:
        return self._rate > 0 and self._allowance <= 0

    def _take_turns(self, now_ns: int) -> None:
        """Serve waiting connections for a while, each for a moment."""
        began_ns = time.monotonic_ns()
        at_ns = began_ns
        while self._turns and not self._is_out_of_rate and at_ns - began_ns < _TURNS_NS:
            address, one = self._turns.next()
            turn_ns, at_ns = at_ns, self._serve(one, now_ns, at_ns + _TURN_NS)
            self._turns.charge(address, at_ns - turn_ns)

    def close(self) -> None:
        """Close every connection."""
        for one in list(self._connections.values()):
            self._drop(one)

    # Connections

    def adopt(self, peer: socket.socket, now_ns: int) -> None:
        """Serve a receiver whose connection the port has accepted."""
        try:
            one = _Connection(peer, peer.getpeername(), now_ns)
        except OSError:  # the peer has already closed it
            peer.close()
            return
        self._connections[peer.fileno()] = one
        self._selector.register(peer, one.interest, lambda mask, at_ns: self._on_ready(one, mask, at_ns))

    @property
    def connection_count(self) -> int:
        """Return the number of connections, all of which count towards the limit of the port."""
        return len(self._connections)

    def make_space(self, now_ns: int, newcomer_ip: str) -> bool:
        """End the oldest connection that has requested nothing, because receivers send their request immediately. If
        there is none, end the one of the address that has the most that was idle for longest, if that address keeps at
        least as many as the newcomer's. Return false otherwise."""
        silent = [
            one
            for one in self._connections.values()
            if not one.is_useful and now_ns - one.opened_ns > IDLE_PEER_NS
        ]
        if silent:
            self._counters.recovery_connections_idle += 1
            self._drop(min(silent, key=lambda one: one.opened_ns))
            return True
        counts = Counter(one.peer[0] for one in self._connections.values())
        address, most = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if most <= counts[newcomer_ip] + 1:
            return False
        self._counters.recovery_connections_displaced += 1
        of_address = (one for one in self._connections.values() if one.peer[0] == address)
        self._drop(min(of_address, key=lambda one: one.active_ns))
        return True

    def _drop(self, one: _Connection) -> None:
        self._turns.remove(one.peer[0], one)
        if self._connections.pop(one.socket.fileno(), None) is not None:
            self._selector.unregister(one.socket)
            one.socket.close()

    def _on_ready(self, one: _Connection, mask: int, now_ns: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                count = one.requests.receive(one.socket)
                if count == 0:
                    self._drop(one)
                    return
            before = len(one.answers)
            one.answers.send(one.socket)
            if len(one.answers) < before or mask & selectors.EVENT_READ:
                one.active_ns = now_ns
        except ConnectionError:
            self._drop(one)
            return
        self._watch(one)
        if not len(one.answers) and one.requests.held:
            self._turns.add(one.peer[0], one)

    # Requests

    def _refill(self, now_ns: int) -> None:
        """Refill the bytes that may be sent now, to at most 10 ms of the rate."""
        if self._rate:
            passed_ns = min(now_ns - self._allowance_ns, _NS_PER_S // 100)
            most = self._rate / 100
            self._allowance = min(self._allowance + self._rate * passed_ns / _NS_PER_S, most)
            self._allowance_ns = now_ns

    def _serve(self, one: _Connection, now_ns: int, until_ns: int) -> int:
        """Serve received requests as far as the rate, the socket, the buffers and the time allow; return the time then.

        The connection waits for another turn if requests are left.
        """
        has_time = True
        try:
            while has_time and not len(one.answers) and not self._is_out_of_rate:
                while has_time and one.answers.free_bytes >= _MESSAGE_MAX_BYTES and self._answer(one):
                    has_time = time.monotonic_ns() < until_ns
                if not len(one.answers):
                    break
                self._allowance -= len(one.answers)
                one.active_ns = now_ns
                one.answers.send(one.socket)
                has_time = has_time and time.monotonic_ns() < until_ns
        except TagRefused as refusal:
            count_refusal(refusal, self._counters, "recovery", f"{one.peer[0]}:{one.peer[1]}")
            self._drop(one)
        except ConnectionError:
            self._drop(one)
        if one.socket.fileno() >= 0:
            self._watch(one)
            if not len(one.answers) and one.requests.held and (not has_time or self._is_out_of_rate):
                self._turns.add(one.peer[0], one)
        return time.monotonic_ns()

    def _watch(self, one: _Connection) -> None:
        interest = selectors.EVENT_READ if one.requests.free_bytes else 0
        interest |= selectors.EVENT_WRITE if len(one.answers) else 0
        if interest != one.interest and interest:
            one.interest = interest
            self._selector.modify(one.socket, interest, self._selector.get_key(one.socket).data)

    def _answer(self, one: _Connection) -> bool:
        """Answer some requests into the send buffer; return false if none is left, the space does not suffice, or the
        connection ended."""
        one.requests.show_next()
        if not one.is_useful and one.tags is None and is_greeting(one.requests):
            return self._answer_greeting(one)
        header = one.requests.peek(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return False
        length = int.from_bytes(header[2:4], "big")
        if header[0] != CONTROL or length < HEADER_BYTES or length > _MESSAGE_MAX_BYTES:
            return self._reject(one)
        if len(one.requests) < length:
            return False
        if header[1] == OPTION_RANGE_REQUEST:
            return self._answer_range(one, length)
        if header[1] == OPTION_MESSAGE_REQUEST and length > _TOPIC_INDEX_AT + 4:
            return self._answer_messages(one, length)
        return self._reject(one)

    def _answer_greeting(self, one: _Connection) -> bool:
        """Send our greeting and tag the following messages; the receiver chose the key."""
        theirs = one.requests.peek(GREETING_BYTES)
        if len(theirs) < GREETING_BYTES:
            return False
        said = decode_greeting(theirs)
        publication = self._publications.get(said.subject)
        keys = self._keys_of(publication.topic) if publication is not None else ()
        key = next((key for key in keys if key.id == said.key_id), None)
        if publication is None or key is None:
            raise TagRefused(Refusal.KEY)
        ours = encode_greeting(said)
        topic = publication.topic
        one.tags = StreamTags(
            key, lambda key: key in self._keys_of(topic), StreamKind.REQUESTS, (theirs, ours), self.endpoint, topic,
            is_server=True,
        )  # fmt: skip
        one.requests.consume(GREETING_BYTES)
        requests, answers = VerifiedWindow(), SealedWindow(_ANSWER_WINDOW_BYTES, ours)
        requests.take_over(one.requests)
        requests.begin(one.tags)
        answers.begin(one.tags)
        one.requests, one.answers = requests, answers
        return True

    def _reject(self, one: _Connection) -> bool:
        self._counters.recovery_malformed += 1
        self._drop(one)
        return False

    def _answer_range(self, one: _Connection, length: int) -> bool:
        request = ffi.new("um_range_request *")
        is_good = lib.um_range_request_read(ffi.cast("uint8_t *", one.requests.pointer), length, request)
        if not is_good:
            return self._reject(one)
        if one.answers.free_bytes < _RANGE_BYTES:
            return False
        one.requests.consume(length)
        publication = self._publications.get(request.topic_index)
        if publication is None:
            self._counters.recovery_requests_unknown += 1  # the source was closed since it was advertised
            return True
        self._check_tags(one, publication)
        low, high = ffi.new("uint32_t *"), ffi.new("uint32_t *")
        if lib.um_publication_retained(publication.handle, ffi.addressof(request, "bounds"), low, high) != 0:
            return True  # the source is being closed
        one.is_useful = True
        one.publications[request.topic_index] = publication
        one.answers.fill(
            lib.um_recovery_write_range(
                ffi.cast("uint8_t *", one.answers.space), low[0], high[0], request.request_index
            )
        )
        return True

    def _check_tags(self, one: _Connection, publication: Publication) -> None:
        """Raise TagRefused if the connection has no tags and the topic has keys, or its key is none of the topic's."""
        keys = self._keys_of(publication.topic)
        if one.tags is None and keys:
            raise TagRefused(Refusal.MISSING)
        if one.tags is not None and one.tags.key not in keys:
            raise TagRefused(Refusal.KEY)

    def _answer_messages(self, one: _Connection, length: int) -> bool:
        topic_index = int.from_bytes(one.requests.peek(_TOPIC_INDEX_AT + 4)[_TOPIC_INDEX_AT:], "big")
        publication = one.publications.get(topic_index)
        if publication is None and not one.is_useful:
            return self._reject(one)
        if publication is None:
            one.requests.consume(length)
            self._counters.recovery_requests_unknown += 1
            return True
        self._check_tags(one, publication)
        space = one.answers.free_bytes
        result = lib.um_publication_serve(
            publication.handle, one.served, one.requests.pointer, len(one.requests), one.answers.space, space
        )
        if result == lib.UM_CLOSED:
            self.remove(publication)
            return True
        if result != 0:
            return self._reject(one)
        one.requests.consume(one.served.consumed)
        one.answers.fill(one.served.written)
        return bool(one.served.written or one.served.consumed)
