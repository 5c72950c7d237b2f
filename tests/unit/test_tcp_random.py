"""Random streams over TCP, by seed: peers that cut, stay idle, drip, are slow, lie, or disconnect at any byte.

The checks are those of the simulator over datagrams: in order, no duplicates, every gap declared by number. A
connected client of a receiver-paced source loses nothing; one of a source-paced source loses whole messages.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.unit.loopback import open_context, payloads
from tests.unit.tcp_peers import RawClient, RawSource, control_session_id, message, tsni
from tests.waiting import SECONDS, collect, wait_for
from umstack import BurstLoss, Context, EndOfSession, Message, Receiver, Source, UnrecoverableLoss
from umstack._engine.transport_address import TcpAddress

TOPIC = 7
CONNECTIONS = 25
LAST = 100_000


@pytest.fixture
def choose() -> random.Random:
    """Return the generator of a run; its seed is printed."""
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    with open_context() as context:
        yield context


def _data(sqn: int) -> bytes:
    return b"%d." % sqn * (1 + sqn % 50)


def _reset(peer: socket.socket) -> None:
    """Close the socket so that unread data is discarded."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()


# A source with random behaviour


def _stream(choose: random.Random, next_sqn: int) -> tuple[bytes, int]:
    """Return the bytes of one connection: continuing numbers, with gaps, repetitions and last numbers."""
    stream_bytes = b""
    for _ in range(choose.randrange(60)):
        kind = choose.random()
        if kind < 0.1:
            next_sqn += choose.randrange(1, 6)
        elif kind < 0.2:
            again = max(0, next_sqn - choose.randrange(1, 10))
            stream_bytes += message(TOPIC, again, _data(again))
            continue
        elif kind < 0.25 and next_sqn > 0:
            stream_bytes += tsni(TOPIC, next_sqn - 1)
            continue
        stream_bytes += message(TOPIC, next_sqn, _data(next_sqn))
        next_sqn += 1
    return stream_bytes, next_sqn


def _say(peer: socket.socket, stream_bytes: bytes, choose: random.Random) -> None:
    """Send in segments of any length, with pauses; the peer may have closed the connection."""
    at = 0
    with contextlib.suppress(OSError):
        while at < len(stream_bytes):
            size = choose.choice((1, 3, choose.randrange(1, 100), choose.randrange(1, 10_000)))
            peer.sendall(stream_bytes[at : at + size])
            at += size
            if choose.random() < 0.02:
                time.sleep(choose.random() * 0.01)  # the rest of a partial message must follow


def _play(raw: RawSource, choose: random.Random) -> None:
    """Serve several connections, each with a different end; the last sends the last number of every topic."""
    next_sqn = 0
    for _ in range(CONNECTIONS):
        peer = raw.accept()
        stream_bytes, next_sqn = _stream(choose, next_sqn)
        end = choose.randrange(5)
        if end == 0 and stream_bytes:
            stream_bytes = stream_bytes[: choose.randrange(len(stream_bytes))]
        elif end == 1:
            stream_bytes += choose.choice((b"\xff" * 40, b"GET / HTTP/1.1\r\n\r\n", bytes(64)))
        _say(peer, stream_bytes, choose)
        if end == 2:
            _reset(peer)
        else:
            peer.close()
    peer = raw.accept()
    _say(peer, message(TOPIC, LAST, b"last") + bytes.fromhex("01ff0004"), choose)


def _rows_until_the_end(receiver: Receiver) -> list[Any]:
    rows: list[Any] = []
    deadline = time.monotonic() + 2 * SECONDS
    while not rows or not isinstance(rows[-1], EndOfSession):
        rows += receiver.poll(1000, 0.1).events()
        assert time.monotonic() < deadline, f"{len(rows)} rows, the last {rows[-1:]}"
    return rows


def _numbers(row: Any) -> range:
    """Return the numbers that a row accounts for."""
    if isinstance(row, BurstLoss):
        return range(row.first_sequence_number, row.sequence_number + 1)
    if isinstance(row, Message | UnrecoverableLoss):
        return range(row.sequence_number, row.sequence_number + 1)
    return range(0)


def test_a_source_with_random_behaviour(context: Context, choose: random.Random) -> None:
    """UM-101, C16: if sources are cut at any byte, reset, lie or stay idle, every number is
    still delivered once, as a message or as a loss.
    """
    options: dict[str, Any] = {
        "transport_tcp_reconnect_interval": 2,
        "transport_tcp_reconnect_timeout": 60_000,
    }
    with RawSource() as raw, context.receiver("anything", **options) as receiver:
        player = threading.Thread(target=_play, args=(raw, choose))
        player.start()
        try:
            context._engine.map_source("anything", TOPIC, TcpAddress("127.0.0.1", raw.session_id, raw.port))
            rows = _rows_until_the_end(receiver)
        finally:
            player.join(2 * SECONDS)
        for row in rows:
            if isinstance(row, Message):
                expected = b"last" if row.sequence_number == LAST else _data(row.sequence_number)
                assert row.data == expected
        settled = [number for row in rows for number in _numbers(row)]
        assert settled == list(range(settled[0], LAST + 1))


def test_an_idle_source_blocks_no_other(context: Context) -> None:
    """A receiver with an idle or dripping source receives the messages of others meanwhile."""
    stream_bytes = message(TOPIC, 0, b"dripped")
    with (
        RawSource() as silent,
        RawSource() as dripping,
        context.receiver("silent") as waits,
        context.receiver("dripping") as drips,
    ):
        for topic, raw in (("silent", silent), ("dripping", dripping)):
            context._engine.map_source(topic, TOPIC, TcpAddress("127.0.0.1", raw.session_id, raw.port))
        assert silent.greeting(silent.accept()) == control_session_id(silent.session_id)
        peer = dripping.accept()
        with open_context() as other, other.source("honest", transport="tcp") as source:
            receiver = context.receiver("honest")
            source.wait_connected(timeout=SECONDS)
            for number, byte in enumerate(stream_bytes):
                peer.sendall(bytes([byte]))
                source.send(b"%d" % number, flush=True)
                assert payloads(collect(receiver, 1)) == [b"%d" % number]
        assert payloads(collect(drips, 1)) == [b"dripped"]
        assert len(waits.poll()) == 0


# Clients with random behaviour


class _Client:
    """Connects, reads slowly, disconnects at any byte, and stores the bytes read on each connection."""

    def __init__(self, source: Source, seed: int) -> None:
        self._transport = source.transport
        self._choose = random.Random(seed)
        self.streams: list[bytes] = []
        self.stops = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self.stops.is_set():
            with contextlib.suppress(OSError), RawClient(self._transport, receive_buffer=4096) as client:
                self._connection(client)

    def _connection(self, client: RawClient) -> None:
        choose = self._choose
        kind = choose.randrange(8)
        if kind == 0:  # disconnects before its greeting is complete
            client.socket.sendall(control_session_id(client.session_id)[: choose.randrange(12)])
            return
        if kind == 1:
            client.socket.sendall(choose.randbytes(choose.randrange(1, 600)))
            client.socket.settimeout(0.1)
            client.is_closed()
            return
        client.greet()
        read, most = b"", choose.choice((3_000, 100_000, 10_000_000))
        client.socket.settimeout(0.05)
        while len(read) < most and not self.stops.is_set():
            with contextlib.suppress(TimeoutError):
                more = client.socket.recv(choose.choice((1, 500, 65536)))
                if not more:
                    break
                read += more
            if choose.random() < 0.005:
                time.sleep(choose.random() * 0.02)  # slow now and then, intentionally
        self.streams.append(read)
        if kind == 2:
            client.socket.sendall(b"\xff" * 20)
        elif kind == 3:
            _reset(client.socket)


def _sqns(stream: bytes) -> list[int]:
    """Return the numbers of the whole messages in the stream, and check their payloads."""
    found, at = [], 0
    while at + 12 <= len(stream):
        kind, _, length, _, sqn = struct.unpack_from("!BBHII", stream, at)
        if at + length > len(stream):
            break
        if kind == 0:
            found.append(sqn)
            assert stream[at + 12 : at + length] == _data(sqn)
        at += length
    return found


@pytest.mark.parametrize("behavior", ["normal", "source_paced"])
def test_clients_with_random_behaviour(context: Context, choose: random.Random, behavior: str) -> None:
    """An honest receiver gets everything in order, and so does a client while it is connected.
    Source-paced, a client gets whole messages, ascending, and the source has counted at least its losses."""
    options: dict[str, Any] = {
        "transport": "tcp",
        "transport_tcp_multiple_receiver_behavior": behavior,
        "transport_tcp_sender_socket_buffer": 16384,
    }
    topic = f"clients-{behavior}"
    with open_context() as publisher, publisher.source(topic, **options) as source:
        receiver = context.receiver(topic)
        source.wait_connected(timeout=SECONDS)
        clients = [_Client(source, choose.randrange(2**32)) for _ in range(4)]
        try:
            sent = 0
            ends = time.monotonic() + 1.5
            while time.monotonic() < ends:
                batch = [_data(number) for number in range(sent, sent + 200)]
                assert source.send_many(batch, flush=True, timeout=SECONDS) == len(batch)
                assert payloads(collect(receiver, len(batch))) == batch
                sent += len(batch)
        finally:
            for client in clients:
                client.stops.set()
            for client in clients:
                client.thread.join(2 * SECONDS)
        wait_for(lambda: source.stats()["num_clients"] == 1)
        streams = [_sqns(stream) for client in clients for stream in client.streams]
        assert sum(map(len, streams)) > 0
        missed = sum(b - a - 1 for stream in streams for a, b in pairwise(stream))
        assert all(a < b for stream in streams for a, b in pairwise(stream))
        if behavior == "normal":
            assert missed == 0
        assert missed <= int(source.stats()["client_messages_lost"] or 0)
