"""LBT-RU over loopback: connecting, ports, clients that go, strays and translated addresses (UX-10, UX-11, UM-111)."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.loopback import PORTS, connect, open_context
from tests.unit.ways import (
    FROM_AND_TO_A_DRIVER,
    FULL_LOG,
    ITS_COUNTERS,
    ITS_SESSION,
    MAPS_ITSELF,
    OVER_THE_NETWORK,
    alone,
    from_own_link,
)
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context, EndOfSession, Receiver, Source
from umstack._core import lib
from umstack._engine.source_events import ReceiverEvent
from umstack._engine.transport_address import LbtruAddress
from umstack.errors import NotConnected, OptionError, UmError
from umstack.key_file import write_new_key_file
from umstack.scapy import LBTRU, LBTRUData, LBTRUSessionId

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = FROM_AND_TO_A_DRIVER

LBTRU_SOURCE = {"transport": "lbtru"}


@pytest.fixture
def publisher(way: str) -> Iterator[Context]:
    with open_context(**PORTS) as context:
        yield context


@pytest.fixture
def subscriber(way: str) -> Iterator[Context]:
    with open_context(**PORTS) as context:
        yield context


def _port(source: Source) -> int:
    return int(source.transport.split(":")[2])


def _transport(context: Context, side: str) -> dict[str, Any]:
    return context.stats()[f"{side}_transports"][0]


def _clients(source: Source) -> int:
    return int(source.stats()["num_clients"])


def _join(publisher: Context, subscriber: Context, topic: str, **options: Any) -> tuple[Source, Receiver]:
    """A source and a receiver that is connected."""
    source = publisher.source(topic, **LBTRU_SOURCE, **options)
    receiver = subscriber.receiver(topic)
    source.wait_connected(timeout=SECONDS)
    return source, receiver


def _expect(source: Source, receivers: list[Receiver], count: int = 5000) -> None:
    messages = [b"%08d" % number for number in range(count)]
    source.send_many(messages, flush=True)
    for receiver in receivers:
        assert [one.data for one in collect(receiver, count)] == messages


@pytest.mark.parametrize("flow_control", ["none", "min", "max"])
def test_every_receiver_gets_everything_in_order(flow_control: str) -> None:
    """UX-11, UM-111: several receivers of an LBT-RU source, with every policy of flow control."""
    with open_context() as publisher, open_context() as first, open_context() as second:
        source = publisher.source("all", **LBTRU_SOURCE, flow_control=flow_control)
        receivers = [first.receiver("all"), second.receiver("all"), second.receiver("all")]
        for receiver in receivers:
            receiver.wait_connected(timeout=SECONDS)
        source.wait_connected(2, timeout=SECONDS)
        _expect(source, receivers)
        large = bytes(300_000)
        source.send(large, flush=True)
        assert all(collect(receiver, 1)[0].data == large for receiver in receivers)
        assert source.transport.startswith("LBTRU:127.0.0.1:")
        assert receivers[0].sources == [f"{source.transport}[{source.topic_index}]"]


@from_own_link(FULL_LOG)
def test_a_tagged_receiver_alone_holds_the_source(publisher: Context, subscriber: Context) -> None:
    """Over LBT-RU, receivers without the tag do not count."""
    source = publisher.source(
        "tagged",
        **LBTRU_SOURCE,
        flow_control="tagged",
        flow_control_group_tag=7,
        flow_control_group_minimum_size=1,
    )
    plain = subscriber.receiver("tagged")
    wait_for(lambda: _clients(source) == 1, "the connection")
    with pytest.raises(NotConnected):
        source.send(b"nobody counts", flush=True, timeout=0)
    with open_context() as third:
        tagged = third.receiver("tagged", flow_control_group_tag=7)
        wait_for(lambda: lib.um_publication_connected(source._handle), "the tagged receiver")
        _expect(source, [plain, tagged], 100)


def test_what_is_retained_comes_before_the_present(publisher: Context, subscriber: Context) -> None:
    """UM-136, UM-140 over LBT-RU: a late joiner has the past and the present, each message once."""
    source = publisher.source("late", **LBTRU_SOURCE, late_join=1, retransmit_retention_size_limit=2**26)
    source.send_many([b"%06d" % number for number in range(5000)], flush=True)
    receiver = subscriber.receiver("late", use_late_join=True)
    got = collect(receiver, 5000)
    source.wait_connected(timeout=SECONDS)
    source.send_many([b"%06d" % number for number in range(5000, 5100)], flush=True)
    got += collect(receiver, 100)
    assert [int(one.data) for one in got] == list(range(5100))


def test_receivers_connect_and_disconnect_as_events(publisher: Context, subscriber: Context) -> None:
    """UX-11: CONNECT and DISCONNECT events of the source; a receiver that is closed goes at once."""
    source, receiver = _join(publisher, subscriber, "events")
    (event,) = _of_network(source, "connect")
    assert event.receiver.startswith("127.0.0.1:")
    assert event.amount == 1
    receiver.close()
    wait_for(lambda: source.known_receivers == 0, "the end of the connection", seconds=SECONDS / 2)
    (gone,) = _of_network(source, "disconnect")
    assert (gone.receiver, gone.amount) == (event.receiver, 0)
    assert not source.receiver_events()


def _of_network(source: Source, kind: str) -> list[ReceiverEvent]:
    """Return the new events of a kind, without those about processes of this host, which attach to a log."""
    events = source.receiver_events()
    return [one for one in events if one.kind == kind and not one.receiver.startswith("process ")]


class Peer:
    """A UDP socket that is somebody else on the network."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.settimeout(SECONDS)

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def connect(self, source: Source) -> None:
        """Connect as a receiver does, with the client id that the source gives."""
        _, host, port, session_id = source.transport.split(":")
        self.to, self.session = (host, int(port)), bytes.fromhex(session_id)
        options = b"\x02\x08\0\0" + self.session + b"\0\x08\0\0"
        self.socket.sendto(b"\x06\x01\0\0" + options + bytes(4), self.to)
        answer = self.socket.recv(2048)
        assert answer[0] == 2
        assert answer[2:4] == b"\x80\0"
        self.socket.sendto(b"\x05\x01\0\0" + answer[8:12] + options + answer[-4:], self.to)


@from_own_link(ITS_COUNTERS)
def test_a_peer_that_connects_and_sends_nothing_is_dropped(publisher: Context, subscriber: Context) -> None:
    """UX-11: after the client activity timeout; others are served meanwhile."""
    source, receiver = _join(publisher, subscriber, "silent", transport_lbtru_client_activity_timeout=1000)
    peer = Peer()
    peer.connect(source)
    wait_for(lambda: _clients(source) == 2, "the peer's connection")
    _expect(source, [receiver], 1000)
    wait_for(lambda: _clients(source) == 1, "the end of the peer's connection")
    kinds = [(one.kind, one.receiver) for one in source.receiver_events()]
    assert ("disconnect", f"127.0.0.1:{peer.port}") in kinds
    _expect(source, [receiver], 1000)


@alone(ITS_COUNTERS)
def test_ten_thousand_connection_requests_keep_no_receiver_out(
    publisher: Context, subscriber: Context
) -> None:
    """UX-11: from as many addresses, none of which acknowledges: they take no place, and a receiver connects among
    them."""
    source = publisher.source("flooded", **LBTRU_SOURCE)
    _, host, port, session_id = source.transport.split(":")
    request = b"\x06\x01\0\0" + b"\x02\x08\0\0" + bytes.fromhex(session_id) + b"\0\x08\0\0" + bytes(4)
    receiver = None
    for number in range(10_000):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown:
            unknown.bind((f"127.1.{number >> 8}.{number & 0xFF}", 0))
            unknown.sendto(request, (host, int(port)))
        if number == 5000:
            receiver = subscriber.receiver("flooded")
    assert receiver is not None
    wait_for(lambda: _clients(source) == 1, "the connection")
    _expect(source, [receiver], 1000)
    stats = source.stats()
    assert (stats["num_clients"], stats["clients_refused"]) == (1, 0)
    assert stats["creqs_rcved"] > 1000


@from_own_link(ITS_COUNTERS)
def test_a_full_table_refuses_and_is_counted(publisher: Context, subscriber: Context) -> None:
    """UX-11: transport_lbtru_maximum_clients bounds who is sent data."""
    source, receiver = _join(publisher, subscriber, "full", transport_lbtru_maximum_clients=1)
    Peer().connect(source)
    wait_for(lambda: source.stats()["clients_refused"] == 1, "the refusal")
    assert _clients(source) == 1
    _expect(source, [receiver], 100)


@alone(ITS_COUNTERS)
def test_a_receiver_of_another_network_is_not_taken(publisher: Context) -> None:
    """AE-19: over LBT-RU flow_control_receivers_allowed decides who may be a client."""
    source = publisher.source("closed", transport="lbtru", flow_control_receivers_allowed="10.0.0.0/8")
    Peer().connect(source)
    wait_for(lambda: source.stats()["clients_refused"] == 1, "the refusal")
    assert _clients(source) == 0


@alone(ITS_SESSION)
def test_a_stray_with_another_session_id_is_dropped_and_counted(
    publisher: Context, subscriber: Context
) -> None:
    """UX-11: dgrams_dropped_sid counts at the receiver, to which a restarted source would send."""
    source, receiver = _join(publisher, subscriber, "stray")
    port = next(one.receiver for one in source.receiver_events()).split(":")[1]
    stray = LBTRU() / LBTRUData(sqn=1, trail=1, options=[LBTRUSessionId(session_id=1)])
    # From the source's own port, which it has to itself: by a socket of its process that is bound there, too.
    source_port = _port(source)
    source.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", source_port))
        other.sendto(bytes(stray), ("127.0.0.1", int(port)))
    wait_for(lambda: _transport(subscriber, "receiver")["dgrams_dropped_sid"] == 1, "the drop")
    assert receiver.stats()["messages_delivered"] == 0


@alone(MAPS_ITSELF)
def test_a_source_that_answers_nobody_ends_after_the_attempts(subscriber: Context) -> None:
    """UX-11: connection requests at intervals that double, for the time of the attempts, then EndOfSession."""
    silent = Peer()
    receiver = subscriber.receiver(
        "dead", transport_lbtru_connect_interval=10, transport_lbtru_maximum_connect_attempts=5
    )
    subscriber._engine.map_source("dead", 1, LbtruAddress("127.0.0.1", 9, silent.port))
    requests = [silent.socket.recv(100) for _ in range(3)]
    assert all(one[0] == 6 and one[8:12] == b"\0\0\0\x09" for one in requests)
    events: list[Any] = []
    wait_for(lambda: events.extend(receiver.poll(10, 0.05).events()) or events, "EndOfSession")
    assert isinstance(events[-1], EndOfSession)


class Translator:
    """A NAT between one receiver and a source: datagrams leave by a port of its own, which rebind() changes."""

    def __init__(self, source: Source) -> None:
        _, host, port, self.session_id = source.transport.split(":")
        self._to = (host, int(port))
        self._inside = Peer().socket
        self._outside = Peer().socket
        self._receiver: tuple[str, int] | None = None
        self._stopping = False
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._out, self._back)]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> LbtruAddress:
        """The source as the receiver sees it."""
        return LbtruAddress("127.0.0.1", int(self.session_id, 16), self._inside.getsockname()[1])

    def rebind(self) -> None:
        """From now on another port outside."""
        old, self._outside = self._outside, Peer().socket
        old.close()

    def close(self) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join()

    def _out(self) -> None:
        self._inside.settimeout(0.05)
        while not self._stopping:
            try:
                data, self._receiver = self._inside.recvfrom(2048)
            except TimeoutError:
                continue
            self._outside.sendto(data, self._to)

    def _back(self) -> None:
        while not self._stopping:
            outside = self._outside
            try:
                outside.settimeout(0.05)
                data = outside.recv(2048)
            except OSError:
                continue
            if self._receiver is not None:
                self._inside.sendto(data, self._receiver)


@alone(MAPS_ITSELF)
def test_an_address_that_is_translated_and_changes(publisher: Context, subscriber: Context) -> None:
    """UX-11: a receiver behind a NAT is identified by its translated address. When that changes, the source's reset
    makes it reconnect, and the messages it missed are repaired."""
    source = publisher.source("translated", **LBTRU_SOURCE, transport_lbtru_client_activity_timeout=2000)
    translator = Translator(source)
    receiver = subscriber.receiver("elsewhere", transport_lbtru_acknowledgement_interval=50)
    subscriber._engine.map_source("elsewhere", source.topic_index, translator.address)
    wait_for(lambda: _clients(source) == 1, "the connection")
    messages = [b"%04d" % number for number in range(200)]
    source.send_many(messages[:100], flush=True)
    got = [one.data for one in collect(receiver, 100)]
    translator.rebind()
    source.send_many(messages[100:], flush=True)
    got += [one.data for one in collect(receiver, 100)]
    assert got == messages
    assert _transport(subscriber, "receiver")["resets_rcved"] >= 1
    assert source.stats()["clients_connected"] == 2
    translator.close()


def test_datagrams_without_a_session_id(publisher: Context, subscriber: Context) -> None:
    """With transport_lbtru_use_session_id 0 the transport name has no session id."""
    source, receiver = _join(publisher, subscriber, "bare", transport_lbtru_use_session_id=0)
    assert len(source.transport.split(":")) == 3
    _expect(source, [receiver], 2000)


@from_own_link(ITS_COUNTERS)
def test_keyed_datagrams_cover_lbtru(tmp_path: Path) -> None:
    """docs/authentication.md: every LBT-RU datagram carries a tag; a peer without the key gets no answer."""
    file = tmp_path / "keys"
    write_new_key_file(file, ["keyed"])
    keys: dict[str, Any] = {"authentication_key_file": str(file), "authentication_scope": "all"}
    with open_context(**keys) as publisher, open_context(**keys) as subscriber:
        source, receiver = _join(publisher, subscriber, "keyed", flow_control="min")
        _expect(source, [receiver], 2000)
        dropped = {n: v for n, v in _transport(subscriber, "receiver").items() if "dropped_tag" in n and v}
        assert not dropped
        peer = Peer()
        peer.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.connect(source)
        wait_for(lambda: source.stats()["dgrams_dropped_tag_missing"] == 1, "the drop")


@from_own_link(ITS_COUNTERS)
def test_datagrams_of_lbtru_have_a_size_of_their_own() -> None:
    """transport_lbtru_datagram_max_size limits datagrams; a value above the context's datagram size is refused."""
    with open_context(transport_lbtru_datagram_max_size=600) as publisher, open_context() as subscriber:
        source, receiver = _join(publisher, subscriber, "sized")
        _expect(source, [receiver], 1000)
        source.send(bytes(10_000), flush=True)
        assert collect(receiver, 1)[0].data == bytes(10_000)
        stats = source.stats()
        assert stats["fragments_sent"] >= 1000 + 10_000 // 600
        assert _transport(publisher, "source")["bytes_sent"] / stats["msgs_sent"] <= 600
    with (
        open_context(transport_lbtru_datagram_max_size=4000) as context,
        pytest.raises(OptionError, match="transport_lbtru_datagram_max_size 4000"),
    ):
        context.source("too.large", **LBTRU_SOURCE)


# Ports


@OVER_THE_NETWORK
def test_sources_go_round_the_ports_of_the_pool() -> None:
    """UX-10: up to transport_lbtru_maximum_ports sessions, then those in turn; an explicit port joins the pool."""
    with open_context(transport_lbtru_maximum_ports=3) as context:
        explicit = context.source("e", **LBTRU_SOURCE, transport_lbtru_port=_free_port())
        pooled = [context.source(f"t{number}", **LBTRU_SOURCE) for number in range(8)]
        ports = {_port(source) for source in (explicit, *pooled)}
        assert len(ports) == 3
        assert all(40000 <= _port(source) <= 49999 for source in pooled[:2])
        assert {_port(source) for source in pooled[2:]} == ports
        again = context.source("again", **LBTRU_SOURCE, transport_lbtru_port=_port(explicit))
        assert again.transport == explicit.transport


def _free_port() -> int:
    peer = Peer()
    port = peer.port
    peer.socket.close()
    return port


@OVER_THE_NETWORK
def test_a_port_that_is_taken(publisher: Context) -> None:
    """A port in use is an error that names it, or, with transport_lbtru_allow_ephemeral, another port is taken."""
    taken = Peer()
    with pytest.raises(UmError, match=str(taken.port)):
        publisher.source("t", **LBTRU_SOURCE, transport_lbtru_port=taken.port)
    source = publisher.source(
        "t", **LBTRU_SOURCE, transport_lbtru_port=taken.port, transport_lbtru_allow_ephemeral=1
    )
    assert _port(source) != taken.port


@alone(ITS_COUNTERS)
def test_receive_ports_that_are_all_taken(caplog: pytest.LogCaptureFixture) -> None:
    """When the port range is used up, a session gets an ephemeral port, with a warning."""
    caplog.set_level(logging.WARNING, "umstack.resolution")
    port = _free_port()
    own = {"transport_lbtru_port_low": port, "transport_lbtru_port_high": port}
    with open_context() as publisher, open_context() as subscriber:
        sources = [publisher.source(f"t{number}", **LBTRU_SOURCE) for number in range(2)]
        receivers = [subscriber.receiver(f"t{number}", **own) for number in range(2)]
        for source, receiver in zip(sources, receivers, strict=True):
            wait_for(lambda source=source: _clients(source) == 1, "the connection")
            _expect(source, [receiver], 10)
        at = [int(source.receiver_events()[0].receiver.split(":")[1]) for source in sources]
        assert port in at
        assert len(set(at)) == 2
        assert subscriber.stats()["context"]["receive_ports_ephemeral"] == 1
    assert "receive at others" in caplog.text


@OVER_THE_NETWORK
def test_another_interface_than_the_contexts_is_refused(publisher: Context) -> None:
    """transport_lbtru_interface selects the interface."""
    publisher.source("t", **LBTRU_SOURCE, transport_lbtru_interface="127.0.0.1")
    with pytest.raises(OptionError, match="transport_lbtru_interface"):
        publisher.source("u", **LBTRU_SOURCE, transport_lbtru_interface="10.0.0.1")


def test_both_transports_in_one_context_at_once() -> None:
    """Sessions of LBT-RM and LBT-RU have nothing of each other: both deliver."""
    with open_context() as context:
        multicast, of_multicast = connect(context, "m")
        unicast, of_unicast = connect(context, "u", **LBTRU_SOURCE)
        assert multicast.transport.startswith("LBTRM:")
        _expect(unicast, [of_unicast], 500)
        _expect(multicast, [of_multicast], 500)


def test_sequential_contexts(publisher: Context) -> None:
    """The application's thread connects, acknowledges and receives."""
    with open_context(mode="sequential") as subscriber:
        source = publisher.source("sequential", **LBTRU_SOURCE)
        receiver = subscriber.receiver("sequential")
        wait_for(lambda: subscriber.process_events(0.01) or source.known_receivers, "the connection")
        _expect(source, [receiver], 1000)


FILTERED = {**LBTRU_SOURCE, "transport_source_side_filtering_behavior": "inclusion", "flow_control": "min"}


def _settle(source: Source, interests: int) -> None:
    wait_for(lambda: (source.stats()["interests_rcved"] or 0) >= interests, "what receivers want")


def _send_until_filtered(sources: list[Source]) -> int:
    """Sends an empty message of each topic until two of three receivers are passed over each time; how often."""
    rounds, filtered = 0, 0
    while filtered < 2 * len(sources):
        before = int(sources[0].stats()["copies_filtered"])
        for source in sources:
            source.send(b"", flush=True)
        wait_for(lambda: all(source.wait_drained(timeout=0) for source in sources), "every position")
        filtered = int(sources[0].stats()["copies_filtered"]) - before
        rounds += 1
    return rounds


@alone(ITS_COUNTERS)
def test_each_receiver_is_sent_its_topics(publisher: Context) -> None:
    """UX-27: three receivers of different topics of one session get theirs, whole, and are sent nothing else.

    Two messages do not fit a datagram: one that waits could share its own with another topic's.
    """
    topics, count, filling = ("red", "green", "blue"), 2000, bytes(1000)
    sources = [publisher.source(topic, **FILTERED, transport_session_name="filtered") for topic in topics]
    with open_context() as first, open_context() as second, open_context() as third:
        receivers = [one.receiver(topic) for one, topic in zip((first, second, third), topics, strict=True)]
        wait_for(lambda: _clients(sources[0]) == 3, "the connections")
        sources[0].wait_connected(timeout=SECONDS)
        rounds = _send_until_filtered(sources)
        unwanted = [_transport(one, "receiver")["lbm_msgs_no_topic_rcved"] for one in (first, second, third)]
        for number in range(count):
            for source in sources:
                source.send(b"%08d" % number + filling, flush=True)
        for receiver in receivers:
            assert [int(one.data[:8]) for one in collect(receiver, rounds + count)[rounds:]] == list(
                range(count)
            )
        for one, before in zip((first, second, third), unwanted, strict=True):
            session = _transport(one, "receiver")
            assert session["lbm_msgs_no_topic_rcved"] == before
            assert session["dgrams_passed_over"] > 0
            assert session["naks_sent"] == 0 or session["lost"] > 0
        assert sources[0].stats()["copies_filtered"] >= 2 * count
        wait_for(lambda: all(source.wait_drained(timeout=0) for source in sources), "every position")


@from_own_link(ITS_COUNTERS)
def test_a_topic_that_is_wanted_later_is_sent_from_then_on(publisher: Context, subscriber: Context) -> None:
    """UX-27: a second receiver adds its topic, one that goes takes it back, and a late joiner misses nothing."""
    early = publisher.source("early", **FILTERED, transport_session_name="filtered")
    late = publisher.source("late-topic", **FILTERED, transport_session_name="filtered", late_join=1)
    receiver = subscriber.receiver("early")
    early.wait_connected(timeout=SECONDS)
    _settle(early, 1)
    late.send_many([b"%08d" % number for number in range(100)], flush=True)
    with subscriber.receiver("late-topic", use_late_join=True) as other:
        got = collect(other, 100)
        late.send_many([b"%08d" % number for number in range(100, 300)], flush=True)
        got += collect(other, 200)
        assert [int(one.data) for one in got] == list(range(300))
    filtered = int(late.stats()["copies_filtered"])
    while int(late.stats()["copies_filtered"]) == filtered:  # the topic is taken back
        late.send(b"x", flush=True)
    _expect(early, [receiver], 500)


@from_own_link(ITS_COUNTERS)
def test_a_wildcard_receiver_wants_what_it_matches(publisher: Context, subscriber: Context) -> None:
    """UX-27: each topic that a pattern matches, as it is found; those that it does not match are not sent."""
    sources = [
        publisher.source(topic, **FILTERED, transport_session_name="filtered")
        for topic in ("w.a", "w.b", "z")
    ]
    with subscriber.wildcard_receiver("^w[.]") as receiver:
        sources[0].wait_connected(timeout=SECONDS)
        seen: set[str] = set()
        while seen != {"w.a", "w.b"}:
            for source in sources:
                source.send(b"x", flush=True)
            seen |= {one.topic for one in receiver.poll(100, 0.05).messages()}
        while int(sources[2].stats()["copies_filtered"]) == 0:
            sources[2].send(b"x", flush=True)


@alone(ITS_COUNTERS)
def test_filtering_with_keys(tmp_path: Path) -> None:
    """UX-27: interests and reports of a session with keys carry tags, as everything does."""
    write_new_key_file(tmp_path / "keys", ["key*"])
    keys = {"authentication_key_file": str(tmp_path / "keys"), "authentication_scope": "all"}
    with open_context(**keys) as publisher, open_context(**keys) as subscriber:
        mine, other = (
            publisher.source(topic, **FILTERED, transport_session_name="filtered")
            for topic in ("key-mine", "key-other")
        )
        receiver = subscriber.receiver("key-mine")
        mine.wait_connected(timeout=SECONDS)
        _settle(mine, 1)
        for number in range(200):
            other.send(b"%d" % number, flush=True)
            mine.send(b"%d" % number, flush=True)
        assert [int(one.data) for one in collect(receiver, 200)] == list(range(200))
        session = _transport(subscriber, "receiver")
        assert session["dgrams_passed_over"] > 0
        assert session["lbm_msgs_no_topic_rcved"] == 0
