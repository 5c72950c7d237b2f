"""Peers that connect to a source over TCP: clients that filter topics, and peers that are idle, lie, or are many."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections import deque
from collections.abc import Iterator

import pytest

from tests.unit.loopback import open_context, payloads
from tests.unit.tcp_peers import RawClient, control_session_id, ssf_request
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, Source

MESSAGE, CONTROL, END = 0, 8, 1
PLACES = 1024
"""Clients that a session may have, UM_TCP_CLIENTS_MAX."""


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    with open_context() as context:
        yield context


@pytest.fixture
def source(context: Context) -> Iterator[Source]:
    """Yield a source without a receiver of this stack."""
    with context.source("peers", transport="tcp") as source:
        yield source


def _clients(source: Source) -> int:
    return int(source.stats()["num_clients"] or 0)


def _refused(source: Source) -> int:
    return int(source.stats()["connections_refused"] or 0)


def test_a_client_that_names_the_session_gets_its_messages(source: Source) -> None:
    """A client gets messages back to back, and the end of the session (UM-105)."""
    with RawClient(source.transport) as client:
        client.greet()
        assert client.answer()[2] == 0x81  # flags: it answers requests, and sends every topic
        source.send(b"one")
        source.send(b"two", flush=True)
        got = [client.read() for _ in range(2)]
        assert [(kind, topic, body[8:]) for kind, topic, body in got] == [
            (MESSAGE, source.topic_index, b"one"),
            (MESSAGE, source.topic_index, b"two"),
        ]
        source.close()
        assert client.read()[0] == END
        assert client.is_closed()


@pytest.mark.parametrize(
    "sent_bytes",
    [
        control_session_id(1),
        b"GET / HTTP/1.1\r\nHost: source\r\n\r\n",
        bytes(100),
        b"\xff" * 600,
        bytes.fromhex("0000ffff") + bytes(600),
    ],
    ids=["another session", "http", "zeros", "ones", "a long message"],
)
def test_a_peer_with_another_greeting_is_refused(source: Source, sent_bytes: bytes) -> None:
    """The peer is closed and counted, and gets nothing."""
    with RawClient(source.transport) as client:
        client.socket.sendall(sent_bytes)
        source.send(b"not for it", flush=True)
        assert client.is_closed()
        assert _refused(source) == 1
        assert source.receiver_events() == []


def test_a_peer_of_another_network_is_refused(context: Context) -> None:
    """AE-19: over TCP, flow_control_receivers_allowed decides which peers may connect."""
    options = {"flow_control_receivers_allowed": "10.0.0.0/8"}
    with (
        context.source("closed", transport="tcp", **options) as source,
        RawClient(source.transport) as client,
    ):
        assert client.is_closed()
        assert _refused(source) == 1
        assert _clients(source) == 0


def test_a_greeting_may_arrive_byte_by_byte(source: Source) -> None:
    """A control message may arrive in pieces; until it is complete the peer is not a client."""
    with RawClient(source.transport) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in control_session_id(client.session_id):
            assert _clients(source) == 0
            client.socket.sendall(bytes([byte]))
            time.sleep(0.002)
        wait_for(lambda: _clients(source) == 1)


def _drip_until_closed(client: RawClient, sent_bytes: bytes) -> int:
    """Send one byte per second until the source closes; return the number of bytes sent."""
    client.socket.settimeout(1)
    for count in range(len(sent_bytes)):
        try:
            client.socket.sendall(sent_bytes[count : count + 1])
            assert client.socket.recv(1) == b"", "an unknown peer received data"
        except TimeoutError:
            continue
        except ConnectionError:
            pass
        return count
    raise AssertionError("a greeting that is too slow is refused")


def test_an_idle_or_dripping_peer_blocks_nothing_and_is_closed(source: Source) -> None:
    """An unknown peer cannot block a receiver-paced source, and its connection is closed."""
    with (
        RawClient(source.transport) as idle,
        RawClient(source.transport) as dripping,
        RawClient(source.transport) as client,
    ):
        client.greet()
        client.answer()
        source.send_many([bytes(1000)] * 1000, flush=True)
        for _ in range(1000):
            assert client.read()[0] == MESSAGE
        begun = time.monotonic()
        assert _drip_until_closed(dripping, control_session_id(dripping.session_id)) > 0
        assert idle.is_closed()
        assert time.monotonic() - begun < SECONDS
        assert _refused(source) == 2
        assert _clients(source) == 1


def test_a_client_that_reads_nothing_is_dropped_after_the_stall_timeout(context: Context) -> None:
    """A receiver-paced source waits for a client that does not read, but not forever."""
    options = {"flow_control_stall_timeout": 300, "transport_tcp_sender_socket_buffer": 65536}
    with (
        context.source("stalled", transport="tcp", **options) as source,
        RawClient(source.transport, receive_buffer=4096) as client,
    ):
        client.greet()
        wait_for(lambda: _clients(source) == 1)
        begun = time.monotonic()
        assert source.send_many([bytes(1000)] * 20_000, flush=True, timeout=SECONDS) == 20_000
        assert 0.25 < time.monotonic() - begun < SECONDS
        assert [event.kind for event in source.receiver_events()] == [
            "connect",
            "receiver_stalled",
            "disconnect",
        ]
        assert source.stats()["receivers_stalled"] == 1


def test_a_client_that_stalled_does_not_block_the_source_again(context: Context) -> None:
    """The slow client may connect again, but for a while it loses the messages it does not
    read, and blocks nothing.
    """
    options = {"flow_control_stall_timeout": 1000, "transport_tcp_sender_socket_buffer": 65536}
    with context.source("again", transport="tcp", **options) as source:
        with RawClient(source.transport, receive_buffer=4096) as stalls:
            stalls.greet()
            wait_for(lambda: _clients(source) == 1)
            source.send_many([bytes(1000)] * 20_000, flush=True, timeout=SECONDS)
            assert source.stats()["receivers_stalled"] == 1
        assert source.stats()["client_messages_lost"] == 0
        with RawClient(source.transport, receive_buffer=4096) as again:
            again.greet()
            wait_for(lambda: _clients(source) == 1)
            source.send_many([bytes(1000)] * 20_000, flush=True, timeout=SECONDS)
            assert int(source.stats()["client_messages_lost"] or 0) > 0
            lost = [event.kind for event in source.receiver_events() if event.kind == "receiver_loses"]
            assert lost, "the client gets no loss event"


def _joined(source: Source) -> RawClient:
    """Connect until the source has a client: a busy source may displace one whose greeting is still under way."""
    clients = [RawClient(source.transport)]
    clients[-1].greet()

    def has_joined() -> bool:
        if clients[-1].was_refused:
            clients.pop().close()
            clients.append(RawClient(source.transport))
            clients[-1].greet()
        return _clients(source) == 1

    wait_for(has_joined, "the client")
    return clients[-1]


def test_ten_thousand_connections_leave_space_for_a_client(context: Context, source: Source) -> None:
    """Connections without a greeting are bounded: a client with a greeting can join while they exist
    and after them.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    _, address, port, _ = source.transport.split(":")
    unknown_peers: deque[socket.socket] = deque()

    def add_unknown_peer() -> None:
        unknown_peer = socket.socket()
        unknown_peer.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            unknown_peer.connect((address, int(port)))
        unknown_peers.append(unknown_peer)
        if len(unknown_peers) == 200:
            unknown_peers.popleft().close()

    try:
        for number in range(10_000):
            add_unknown_peer()
            if number == 5000:
                with _joined(source) as client:
                    client.answer()
                    source.send(b"among others", flush=True)
                    assert client.read()[2][8:] == b"among others"
        wait_for(lambda: add_unknown_peer() or _refused(source) > 1000, "refused connections")
        wait_for(lambda: _clients(source) == 0, "the end of the first client")
        with _joined(source) as client:
            client.answer()
            source.send(b"after them", flush=True)
            assert client.read()[2][8:] == b"after them"
    finally:
        for unknown_peer in unknown_peers:
            unknown_peer.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_greeting_that_has_arrived_is_read_before_its_peer_is_displaced() -> None:
    """Of many clients that connect and greet between two runs of the loop, none is refused for being the oldest."""
    count = 100
    with (
        open_context("sequential") as context,
        context.source("crowd", transport="tcp") as source,
        contextlib.ExitStack() as clients,
    ):
        for _ in range(count):
            clients.enter_context(RawClient(source.transport)).greet()
        wait_for(lambda: context.process_events(0) >= 0 and _clients(source) + _refused(source) == count)
        assert _refused(source) == 0


def test_one_host_displaces_only_its_own_connections(source: Source) -> None:
    """Idle connections of one address do not displace a client of another whose greeting is still under way."""
    _, address, port, _ = source.transport.split(":")
    with RawClient(source.transport) as client, contextlib.ExitStack() as idle:
        for _ in range(200):
            peer = idle.enter_context(socket.socket())
            peer.bind(("127.0.0.2", 0))
            peer.connect((address, int(port)))
        wait_for(lambda: _refused(source) >= 200 + 1 - 64)
        client.greet()
        client.answer()
        source.send(b"for the client", flush=True)
        assert client.read()[2][8:] == b"for the client"


def test_a_host_that_takes_every_place_gives_way_to_another(context: Context) -> None:
    """UM_TCP_CLIENTS_MAX clients of one address that read nothing: a client of another address joins at once, and one
    of the same address is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    options = {"transport_tcp_multiple_receiver_behavior": "source_paced"}
    try:
        with (
            context.source("crowded", transport="tcp", **options) as source,
            contextlib.ExitStack() as crowd,
        ):
            for number in range(PLACES):
                crowd.enter_context(RawClient(source.transport, own_address="127.0.0.2")).greet()
                if number % 32 == 31:
                    wait_for(lambda joined=number + 1: _clients(source) == joined)  # type: ignore[misc]
            with RawClient(source.transport, own_address="127.0.0.2") as another:
                wait_for(lambda: another.was_refused, "the end of one too many")
            with RawClient(source.transport) as client:
                client.greet()
                client.answer()
                source.send(b"for everybody", flush=True)
                assert client.read()[2][8:] == b"for everybody"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Source-side filtering


@pytest.fixture
def filtered(context: Context) -> Iterator[tuple[Source, Source]]:
    """Yield two topics on one session that filters at the source."""
    options = {
        "transport": "tcp",
        "transport_session_name": "filtered",
        "transport_source_side_filtering_behavior": "inclusion",
    }
    with context.source("wanted", **options) as one, context.source("unwanted", **options) as other:
        assert one.transport == other.transport
        yield one, other


def _topics(client: RawClient, count: int) -> list[int]:
    return [topic for kind, topic, _ in (client.read() for _ in range(count)) if kind == MESSAGE]


def test_a_client_gets_the_topics_it_includes(filtered: tuple[Source, Source]) -> None:
    """UX-27: the client gets no topics at first, then the topics it includes, until it excludes them."""
    wanted, unwanted = filtered
    with RawClient(wanted.transport) as client:
        client.greet()
        offer = client.answer()
        assert offer[2] == 0xA1  # flags: it answers requests, and sends no topic before one
        index = int.from_bytes(offer[8:12], "big")
        wanted.send(b"too early", flush=True)
        client.socket.sendall(ssf_request(client.session_id, index, wanted.topic_index))
        _until_wanted(wanted, unwanted, client)
        exclude = ssf_request(client.session_id, index, wanted.topic_index, included=False)
        client.socket.sendall(exclude + ssf_request(client.session_id, index, unwanted.topic_index))
        _until_wanted(unwanted, wanted, client)


def _until_wanted(wanted: Source, unwanted: Source, client: RawClient) -> None:
    """Send on both topics until the requested one arrives; from then on the other must not."""
    client.socket.settimeout(0.05)
    deadline = time.monotonic() + SECONDS
    came = [0]
    while came != [wanted.topic_index]:
        assert time.monotonic() < deadline
        unwanted.send(b"unwanted", flush=True)
        wanted.send(b"wanted", flush=True)
        with contextlib.suppress(BlockingIOError, TimeoutError):
            came = _topics(client, 1)
    client.socket.settimeout(SECONDS)
    for _ in range(5):
        unwanted.send(b"unwanted", flush=True)
        wanted.send(b"last", flush=True)
    seen: list[tuple[int, bytes]] = []
    while [body for _, body in seen].count(b"last") < 5:
        _, topic, body = client.read()
        seen.append((topic, body[8:]))
    assert {topic for topic, _ in seen} == {wanted.topic_index}, seen


def test_a_receiver_of_one_topic_gets_only_that_topic(filtered: tuple[Source, Source]) -> None:
    """UX-27: the source sends topics with receivers; a second receiver adds its topic to the same connection."""
    wanted, unwanted = filtered
    with open_context() as receiving, receiving.receiver("wanted") as receiver:
        wanted.wait_connected(timeout=SECONDS)
        first: list[bytes] = []
        while not first:
            wanted.send(b"x", flush=True)
            first = payloads(receiver.poll(1, 0.05).messages())
        for number in range(100):
            unwanted.send(b"u%d" % number, flush=True)
            wanted.send(b"w%d" % number, flush=True)
        got = [data for data in payloads(collect(receiver, 100)) if data != b"x"]
        got += payloads(collect(receiver, 100 - len(got)))
        assert got == [b"w%d" % number for number in range(100)]
        (session,) = receiving.stats()["receiver_transports"]
        assert session["lbm_msgs_no_topic_rcved"] == 0
        with receiving.receiver("unwanted") as other:
            second: list[bytes] = []
            while not second:
                unwanted.send(b"y", flush=True)
                second = payloads(other.poll(1, 0.05).messages())
            assert _clients(unwanted) == 1


def test_without_filtering_a_receiver_gets_every_topic(context: Context) -> None:
    """UX-27: no filtering is the default; the receiving side drops messages of other topics."""
    options = {"transport": "tcp", "transport_session_name": "unfiltered"}
    with (
        context.source("mine", **options) as mine,
        context.source("not-mine", **options) as other,
        open_context() as receiving,
        receiving.receiver("mine") as receiver,
    ):
        mine.wait_connected(timeout=SECONDS)
        other.send(b"other", flush=True)
        mine.send(b"mine", flush=True)
        assert payloads(collect(receiver, 1)) == [b"mine"]
        (session,) = receiving.stats()["receiver_transports"]
        assert session["lbm_msgs_no_topic_rcved"] == 1
