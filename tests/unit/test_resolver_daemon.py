"""Unicast topic resolution: the client of daemons in virtual time, the relay's table, and both over loopback."""

from __future__ import annotations

import ipaddress
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner

from tests.unit.loopback import OWN_ADDRESSES, SHARED, open_context
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context
from umstack._core import ffi, lib
from umstack._engine.core_address import core_ip
from umstack._engine.transport_address import LbtrmAddress
from umstack.cli import command as umstack
from umstack.config import Config
from umstack.errors import OptionError
from umstack.resolution.codec import (
    COOKIE_BYTES,
    KEEPALIVE,
    Advertisement,
    KeepaliveKind,
    RequestScope,
    ResolutionDatagram,
    WireOption,
    decode,
    decode_keepalive,
    encode,
    encode_keepalive,
    encode_request,
    encode_wildcard_query,
    pack_wildcard_queries,
)
from umstack.resolution.daemons import DaemonClient
from umstack.resolution.relay import Fate, Relay, RelayPolicy, RelayServer

ADDRESS = LbtrmAddress("10.9.0.1", "224.10.10.10", 7, 14400, 14390)

ROOT = Path(__file__).parents[2]
MS = 1_000_000
SECOND = 1000 * MS
FIRST, SECOND_DAEMON = ("10.1.0.1", 15380), ("10.1.0.2", 15380)
A, B, C = (("10.1.0.9", port) for port in (1, 2, 3))
QUERY = encode(ResolutionDatagram(queries=("orders",)))


def client(**options: int) -> DaemonClient:
    chosen = Config().context_options(resolver_unicast_daemon="10.1.0.1,10.1.0.2", **options)
    return DaemonClient(chosen, 0)


# ---- the client ----


@pytest.mark.parametrize(
    ("text", "daemons"),
    [
        ("none", ()),
        ("10.1.0.1", (FIRST,)),
        ("10.1.0.1:9, 10.1.0.2", (("10.1.0.1", 9), SECOND_DAEMON)),
        ("eth0:14402->10.1.0.1:15380;10.1.0.2:15380", (FIRST, SECOND_DAEMON)),
    ],
)
def test_daemons_are_parsed(text: str, daemons: tuple[tuple[str, int], ...]) -> None:
    """resolver_unicast_daemon accepts daemons with and without a port, several daemons, and Ultra Messaging's
    format.
    """
    assert Config().context_options(resolver_unicast_daemon=text).resolver_daemons == daemons


@pytest.mark.parametrize("text", ["here", "10.1.0.1:0", "10.1.0.1:99999", "10.1.0.1:x", "10.1.0.1,"])
def test_an_invalid_daemon_is_refused(text: str) -> None:
    """Bad input: the error contains the option and the text."""
    with pytest.raises(OptionError, match="resolver_unicast_daemon"):
        Config().context_options(resolver_unicast_daemon=text)


def test_the_first_daemon_that_answers_is_used() -> None:
    """With two daemons, both get keepalives and one gets the records; both get them while none answers."""
    daemons = client()
    assert daemons.keepalives(0) == [(FIRST, KEEPALIVE), (SECOND_DAEMON, KEEPALIVE)]
    assert daemons.keepalives(499 * MS) == []
    assert daemons.destinations(0) == [FIRST, SECOND_DAEMON]
    assert daemons.note_received(SECOND_DAEMON, KEEPALIVE, 10 * MS)
    assert daemons.has_returned(10 * MS)
    assert daemons.destinations(10 * MS) == [SECOND_DAEMON]
    assert daemons.note_received(FIRST, KEEPALIVE, 20 * MS)
    assert not daemons.has_returned(20 * MS)
    assert daemons.destinations(20 * MS) == [FIRST]
    assert not daemons.note_received(("10.6.6.6", 15380), KEEPALIVE, 20 * MS)
    assert daemons.change_count == 2


def test_an_idle_daemon_is_not_used() -> None:
    """resolver_unicast_activity_timeout: the other daemon takes over; a daemon that returns when there was none is
    logged once."""
    daemons = client()
    daemons.note_received(FIRST, KEEPALIVE, 0)
    daemons.note_received(SECOND_DAEMON, KEEPALIVE, 900 * MS)
    assert daemons.has_returned(0)
    assert daemons.destinations(999 * MS) == [FIRST]
    assert daemons.destinations(SECOND) == [SECOND_DAEMON]
    assert daemons.destinations(2 * SECOND) == [FIRST, SECOND_DAEMON]
    assert not daemons.has_returned(2 * SECOND)
    daemons.note_received(FIRST, KEEPALIVE, 3 * SECOND)
    assert daemons.has_returned(3 * SECOND)
    assert not daemons.has_returned(3 * SECOND)


def test_contradictory_times_are_refused() -> None:
    """Contradictory times are refused because they would declare a daemon dead between two keepalives."""
    with pytest.raises(OptionError, match="resolver_unicast_activity_timeout"):
        client(resolver_unicast_keepalive_interval=1000)


def test_a_challenge_is_answered_with_the_cookie() -> None:
    """A daemon that challenges is not used before it answers; one with another cookie has restarted."""
    daemons = client()
    daemons.keepalives(0)
    for now_ns, cookie in ((10 * MS, b"8 bytes."), (30 * MS, b"restart.")):
        assert daemons.note_received(FIRST, encode_keepalive(KeepaliveKind.CHALLENGE, cookie), now_ns)
        assert not daemons.has_returned(now_ns)
        response = encode_keepalive(KeepaliveKind.RESPONSE, cookie)
        assert daemons.keepalives(now_ns) == [(FIRST, response)]
        assert daemons.keepalives(now_ns) == []
        daemons.note_received(FIRST, encode_keepalive(KeepaliveKind.ANSWER, cookie), now_ns + MS)
        assert daemons.has_returned(now_ns + MS)
        assert daemons.alive(now_ns + MS) == FIRST
    daemons.note_received(FIRST, encode_keepalive(KeepaliveKind.CHALLENGE, cookie), 40 * MS)
    assert daemons.keepalives(40 * MS) == [], "a forged keepalive in our name made it repeat the challenge"
    assert daemons.alive(40 * MS) == FIRST


# ---- the relay ----


def join(relay: Relay, address: tuple[str, int], now_ns: int) -> Fate:
    """Send a keepalive with the cookie that the relay sends to this address."""
    return relay.received(encode_keepalive(KeepaliveKind.RESPONSE, relay.cookie(address)), address, now_ns)


def test_an_address_becomes_a_client_after_a_challenge() -> None:
    """A keepalive in the name of another host subscribes nobody, and keeps nobody subscribed."""
    relay = Relay(RelayPolicy(client_timeout_s=5))
    forged = [KEEPALIVE, encode_keepalive(KeepaliveKind.RESPONSE, relay.cookie(B)), QUERY]
    assert [relay.received(data, A, 0) for data in forged] == [
        Fate.CHALLENGED,
        Fate.CHALLENGED,
        Fate.DROPPED,
    ]
    assert relay.clients == []
    assert join(relay, A, 0) is Fate.ANSWERED
    for second in range(1, 6):
        for data in forged:
            relay.received(data, A, second * SECOND)
    assert relay.clients == []
    assert (relay.counters.challenges, relay.counters.dropped_unknown) == (12, 2)


def test_daemons_do_not_answer_each_other() -> None:
    """A keepalive in the name of one daemon to another ends with one challenge."""
    relays = {A: Relay(RelayPolicy()), B: Relay(RelayPolicy())}
    for forged in (KEEPALIVE, encode_keepalive(KeepaliveKind.RESPONSE, bytes(COOKIE_BYTES))):
        pending, count = [(forged, A, B)], 0
        while pending and count < 10:
            data, source, to = pending.pop()
            fate = relays[to].received(data, source, 0)
            kinds = {Fate.ANSWERED: KeepaliveKind.ANSWER, Fate.CHALLENGED: KeepaliveKind.CHALLENGE}
            if fate in kinds:
                pending.append((encode_keepalive(kinds[fate], relays[to].cookie(source)), to, source))
                count += 1
        assert count == 1
        assert relays[A].clients == relays[B].clients == []


def test_one_host_keeps_no_other_off() -> None:
    """One address gets a part of the clients."""
    relay = Relay(RelayPolicy(clients_max=64, address_clients_max=16))
    fates = [join(relay, ("10.1.0.66", port), 0) for port in range(1, 1000)]
    assert fates.count(Fate.ANSWERED) == 16
    assert join(relay, A, 0) is Fate.ANSWERED
    assert relay.counters.clients_refused == 999 - 16
    assert join(relay, ("10.1.0.66", 2000), 10 * SECOND) is Fate.ANSWERED, "the others timed out"


def test_a_datagram_is_relayed_to_every_other_client() -> None:
    """A UDP relay like lbmrd: a sending address is a client; a keepalive is answered, and not relayed."""
    relay = Relay(RelayPolicy())
    for address in (A, B, C):
        assert join(relay, address, 0) is Fate.ANSWERED
    assert relay.received(QUERY, B, 1) is Fate.RELAYED
    assert relay.is_relayable(QUERY, B, 1)
    assert sorted(relay.clients) == [A, B, C]
    assert (relay.counters.queries, relay.counters.keepalives) == (1, 3)


def test_an_idle_client_is_forgotten() -> None:
    """After the timeout no datagrams are relayed to it."""
    relay = Relay(RelayPolicy(client_timeout_s=5))
    join(relay, A, 0)
    join(relay, B, 3 * SECOND)
    assert relay.received(QUERY, B, 5 * SECOND) is Fate.RELAYED
    assert relay.clients == [B]
    assert relay.counters.clients_timed_out == 1
    join(relay, C, 6 * SECOND)
    join(relay, B, 7 * SECOND)  # B lives on, although it was there before C
    assert relay.received(QUERY, B, 11 * SECOND) is Fate.RELAYED
    assert relay.clients == [B]


def test_an_idle_client_saves_no_more_than_a_second_of_its_rate() -> None:
    """A burst after a long pause is bounded like any other."""
    relay = Relay(RelayPolicy(client_timeout_s=100, client_datagrams_per_second=10))
    join(relay, A, 0)
    fates = [relay.received(QUERY, A, 60 * SECOND) for _ in range(30)]
    assert fates.count(Fate.RELAYED) == 10


def test_a_relay_is_bounded() -> None:
    """Bad input: too many clients, disallowed senders, too many datagrams of one client, and datagrams that
    are not topic resolution are dropped.
    """
    relay = Relay(RelayPolicy((ipaddress.IPv4Network("10.1.0.0/16"),), 2, 2, 5, 10))
    assert relay.received(KEEPALIVE, ("10.2.0.1", 1), 0) is Fate.DROPPED
    join(relay, A, 0)
    join(relay, B, 0)
    assert join(relay, C, 0) is Fate.DROPPED
    for garbage in (b"garbage", b""):
        assert relay.received(garbage, A, 0) is Fate.RELAYED
        assert not relay.is_relayable(garbage, A, 0)
    assert [relay.received(QUERY, A, 0) for _ in range(100)].count(Fate.RELAYED) == 7
    assert relay.received(QUERY, A, SECOND // 10) is Fate.RELAYED
    counters = relay.counters
    assert (counters.dropped_not_allowed, counters.clients_refused, counters.dropped_malformed) == (1, 1, 2)
    assert counters.dropped_rate == 93


def announced(*topics: str) -> bytes:
    """Return a datagram with a query and an advertisement for each topic."""
    return encode(ResolutionDatagram(topics, tuple(Advertisement(topic, 1, 60, ADDRESS) for topic in topics)))


def test_an_overloaded_relay_skips_repeats() -> None:
    """Overload: records relayed within the last two seconds are skipped and counted. New records, those of
    another client and those after a new record are not skipped.
    """
    relay = Relay(RelayPolicy(client_timeout_s=60))
    for client in (A, B):
        join(relay, client, 0)

    def left(now_ns: int, *topics: str, client: tuple[str, int] = A) -> tuple[str, ...]:
        found = relay.condensed([(announced(*topics), client)], now_ns)
        decoded = [decode(data) for data in found]
        assert all(isinstance(one, ResolutionDatagram) for one in decoded)
        queries = tuple(query for one in decoded for query in one.queries)  # type: ignore[union-attr]
        records = [record for one in decoded for record in one.advertisements]  # type: ignore[union-attr]
        assert queries == tuple(record.topic for record in records)
        return queries

    assert left(0, "a", "b") == ("a", "b")
    assert left(SECOND, "c", "b", "a", "d") == ("c", "d")
    assert left(SECOND, "a", "b") == ()
    assert left(SECOND, "a", client=B) == ("a",)
    assert relay.is_relayable(announced("a"), A, SECOND)
    assert left(2 * SECOND, "a", "b") == ("b",)
    assert left(3 * SECOND, "a", "b") == ("a",)
    assert (relay.counters.dropped_repeated, relay.counters.records_left_out) == (1, 2 * (2 + 2 + 1 + 1))
    assert relay.counters.queries == relay.counters.advertisements == 8
    join(relay, C, 3 * SECOND)
    assert left(3 * SECOND, "a") == ("a",), "a new client has not had it"


def test_a_busy_relay_skips_nothing_else() -> None:
    """Overload: the final advertisement of a source differs from earlier ones; wildcard queries, requests and
    datagrams with packet options are relayed each time; malformed ones never."""
    relay = Relay(RelayPolicy(client_timeout_s=60))
    for ttl in (60, 0):
        data = encode(ResolutionDatagram((), (Advertisement("a", 1, ttl, ADDRESS),)))
        assert relay.condensed([(data, A)], 0) == [data]
    always = [
        pack_wildcard_queries([encode_wildcard_query("a.*")], 1400)[0],
        encode_request(RequestScope.QUERIES),
        encode(ResolutionDatagram(("q",), (), (WireOption(5, b"x"),))),
    ]
    for data in always * 2:
        assert relay.condensed([(data, A)], 0) == [data]
    assert relay.condensed([(b"garbage", A)], 0) == []
    assert relay.counters.dropped_malformed == 1


def test_a_busy_relay_merges_many_datagrams_into_few() -> None:
    """Overload: the remaining records of small datagrams share one that is no longer than the longest of them; the
    longest possible record fits."""
    relay = Relay(RelayPolicy(client_timeout_s=60))
    big = announced("x" * 246)
    small = [(announced(f"topic {number}"), (A, B, C)[number % 3]) for number in range(30)]
    found = relay.condensed([*small, (big, A), *small], 0)
    assert 1 < len(found) < 6
    assert max(map(len, found)) <= len(big)
    queries = [query for data in found for query in decode(data).queries]  # type: ignore[union-attr]
    assert sorted(queries) == sorted(["x" * 246, *(f"topic {number}" for number in range(30))])
    assert relay.counters.records_left_out == 60


def test_one_datagram_is_sent_to_many_addresses() -> None:
    """The daemon's send handles more addresses than one call accepts, an excluded one, and one that fails and
    is skipped.
    """
    with ExitStack() as stack:
        sender = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(150)]
        to = ffi.new("um_address[]", len(sockets))
        for one, entry in zip(sockets, to, strict=True):
            one.bind(("127.0.0.1", 0))
            one.settimeout(SECONDS)
            entry.ip, entry.port = core_ip("127.0.0.1"), one.getsockname()[1]
        to[70].ip = core_ip("255.255.255.255")  # broadcast, which the socket may not use
        assert lib.um_datagram_fan_out(sender.fileno(), b"to all", 6, to, len(sockets), 3) == 148
        for number, one in enumerate(sockets):
            if number in (3, 70):
                one.setblocking(False)
                with pytest.raises(BlockingIOError):
                    one.recv(100)
            else:
                assert one.recv(100) == b"to all"
        assert lib.um_datagram_fan_out(sender.fileno(), b"none", 4, to, 0, 0) == 0


# ---- both ----


@contextmanager
def serving(port: int = 0) -> Iterator[RelayServer]:
    """Run a daemon on loopback, on a thread."""
    with RelayServer(("127.0.0.1", port), RelayPolicy()) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def _joined(server: RelayServer, ends: ExitStack) -> socket.socket:
    """Return the socket of a new client of a daemon."""
    client = ends.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    client.settimeout(SECONDS)
    client.connect(server.address)
    client.send(KEEPALIVE)
    challenge = decode_keepalive(client.recv(2048))
    assert challenge is not None
    client.send(encode_keepalive(KeepaliveKind.RESPONSE, challenge[1]))
    answer = decode_keepalive(client.recv(2048))
    assert answer is not None
    assert answer[0] is KeepaliveKind.ANSWER
    return client


def test_a_client_gets_every_datagram_but_its_own() -> None:
    """A datagram is relayed to the other clients; the next one that its sender receives is another client's."""
    first_query, second_query = (encode(ResolutionDatagram(queries=(name,))) for name in ("first", "second"))
    with serving() as server, ExitStack() as ends:
        first, second, third = (_joined(server, ends) for _ in range(3))
        first.send(first_query)
        assert (second.recv(2048), third.recv(2048)) == (first_query, first_query)
        second.send(second_query)
        assert (first.recv(2048), third.recv(2048)) == (second_query, second_query)
        wait_for(lambda: server.relay.counters.datagrams_relayed == 4, "two clients each")


def unicast(*servers: RelayServer, **options: int) -> Context:
    """Open a context that resolves only through daemons: its resolution group has no other member."""
    return open_context(
        resolver_unicast_daemon=",".join(f"127.0.0.1:{server.address[1]}" for server in servers),
        resolver_unicast_port_low=30000,
        resolver_unicast_port_high=39999,
        resolver_unicast_activity_timeout=200,
        resolver_unicast_keepalive_interval=50,
        **options,
    )


def test_topics_are_found_through_a_daemon() -> None:
    """Advertisements, queries and wildcard queries are relayed."""
    with (
        serving() as server,
        unicast(server) as publishing,
        unicast(server) as context,
        open_context() as other,
    ):
        receiver = context.receiver("relayed")
        wildcard = context.wildcard_receiver(prefix="rel")
        isolated = other.receiver("relayed")
        source = publishing.source("relayed", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        wait_for(lambda: receiver.stats()["delivery_controllers"] and wildcard.topics() == ["relayed"])
        source.send(b"through it", flush=True)
        assert [message.data for message in collect(receiver, 1)] == [b"through it"]
        assert isolated.stats()["delivery_controllers"] == 0, "nothing is sent by multicast"
        resolution = context.stats()["resolution"]
        address = f"127.0.0.1:{server.address[1]}"
        assert resolution["by"] == "daemons"
        assert resolution["daemons"] == [{"address": address, "answers": True, "used": True}]
        assert (resolution["queried"], resolution["unresolved"]) == (["relayed"], [])
        assert resolution["patterns"] == ["^rel"]
        assert publishing.stats()["resolution"]["advertised"] == ["relayed"]
        assert other.stats()["resolution"]["by"] == "multicast"
        assert other.stats()["resolution"]["unresolved"] == ["relayed"]
        stats = context.stats()["context"]
        assert stats["tr_daemon_changes"] == 1
        assert stats["tr_dgrams_send_failed"] == 0


def test_a_daemon_that_dies_disconnects_no_topic() -> None:
    """Existing connections stay open; the other daemon takes over, then there is none until one returns."""
    with ExitStack() as stack:
        second = stack.enter_context(serving())
        first_stack = stack.enter_context(ExitStack())
        first = first_stack.enter_context(serving())
        publishing = stack.enter_context(unicast(first, second))
        context = stack.enter_context(unicast(first, second))
        receiver = context.receiver("before")
        source = publishing.source("before", flow_control="min", **SHARED)
        source.wait_connected(timeout=SECONDS)
        wait_for(lambda: receiver.stats()["delivery_controllers"])
        port = first.address[1]
        first_stack.close()
        source.send(b"connected", flush=True)
        assert [message.data for message in collect(receiver, 1)] == [b"connected"]
        later = context.receiver("after")
        publishing.source("after", **SHARED)
        wait_for(lambda: later.stats()["delivery_controllers"], "the other daemon")
        back = stack.enter_context(serving(port))
        again = context.receiver("again")
        publishing.source("again", **SHARED)
        wait_for(lambda: again.stats()["delivery_controllers"], "the first one again")
        wait_for(lambda: back.stats()["datagrams_relayed"] > 0, "its use")


def test_records_sent_without_a_daemon_are_repeated() -> None:
    """Contexts that start before any daemon find each other once one starts."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    quiet = {
        "resolver_advertisement_minimum_initial_duration": 20,
        "resolver_advertisement_sustain_interval": 0,
    }
    options = {
        "resolver_unicast_daemon": f"127.0.0.1:{port}",
        "resolver_unicast_port_low": 30000,
        "resolver_unicast_port_high": 39999,
        "resolver_unicast_activity_timeout": 200,
        "resolver_unicast_keepalive_interval": 50,
    }
    with open_context(**options) as publishing, open_context(**options) as context:
        receiver = context.receiver("patient")
        publishing.source("patient", **quiet)
        publishing.idle(0.2)
        with serving(port):
            wait_for(lambda: receiver.stats()["delivery_controllers"], "the source")


def test_an_unknown_sender_is_ignored() -> None:
    """Bad input: only datagrams of the configured daemons are accepted; others are dropped and counted."""
    with serving() as server, unicast(server) as context:
        wait_for(lambda: server.relay.clients, "the relay's client")
        (address,) = server.relay.clients
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown_sender:
            unknown_sender.sendto(QUERY, address)
        wait_for(lambda: context.stats()["context"]["tr_dgrams_dropped_stranger"] == 1)
        assert context.stats()["context"]["tr_queries_rcved"] == 0


def test_a_port_beyond_a_range_that_is_taken_is_used_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Faults: if every local port of the range is in use, the system chooses one, and a warning names the range."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with open_context(
            resolver_unicast_daemon="127.0.0.1",
            resolver_unicast_port_low=port,
            resolver_unicast_port_high=port,
        ):
            assert f"resolver_unicast_port_high ({port}-{port}) is taken" in caplog.text


def test_the_command_serves_and_reports() -> None:
    """`umstack resolver` prints its address, relays, and prints its counters at the end."""
    command = [sys.executable, "-m", "umstack", "resolver", "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        line = process.stderr.readline()
        port = int(line.rpartition(":")[2])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.settimeout(SECONDS)
            one.sendto(KEEPALIVE, ("127.0.0.1", port))
            challenge = decode_keepalive(one.recv(100))
            assert challenge is not None
            assert challenge[0] is KeepaliveKind.CHALLENGE
            one.sendto(encode_keepalive(KeepaliveKind.RESPONSE, challenge[1]), ("127.0.0.1", port))
            assert decode_keepalive(one.recv(100)) == (KeepaliveKind.ANSWER, challenge[1])
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert json.loads(output)["keepalives"] == 1


@pytest.mark.parametrize(
    "arguments", [["--listen", "here"], ["--listen", "127.0.0.1:x"], ["--allow", "10.1.0.1/8"]]
)
def test_invalid_arguments_are_refused(arguments: list[str]) -> None:
    """A wrong address, port or network is a usage error."""
    assert CliRunner().invoke(umstack, ["resolver", *arguments]).exit_code == 2


class LyingDaemon:
    """Answers keepalives, and every other datagram with sources that do not exist: new sessions each time."""

    def __init__(self) -> None:
        """Open the socket and serve on a thread."""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.2", 0))
        self.socket.settimeout(0.05)
        self.address = self.socket.getsockname()
        self.lie_count = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        while not self._stopping:
            try:
                data, client = self.socket.recvfrom(65536)
            except TimeoutError:
                continue
            self.socket.sendto(data if data == KEEPALIVE else self._lies(), client)

    def _lies(self) -> bytes:
        records = []
        for _ in range(50):
            self.lie_count += 1
            address = LbtrmAddress(
                "127.0.0.1",
                str(OWN_ADDRESSES["transport_lbtrm_multicast_address_low"]),
                1000 + self.lie_count,
                14400,
                20000 + self.lie_count % 9999,
            )
            records.append(Advertisement("lied about", self.lie_count, 60, address))
        return encode(ResolutionDatagram(advertisements=tuple(records)))

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._stopping = True
        self._thread.join()
        self.socket.close()


def test_a_lying_daemon_blocks_no_source() -> None:
    """Nonexistent sessions are counted and bounded, and an existing one, found through the other daemon, is
    received, although they name its address."""
    with LyingDaemon() as liar, serving() as honest:
        daemons = f"127.0.0.2:{liar.address[1]},127.0.0.1:{honest.address[1]}"
        options: dict[str, Any] = {
            "resolver_unicast_daemon": daemons,
            "resolver_unicast_port_low": 30000,
            "resolver_unicast_port_high": 39999,
        }
        truthful = {**options, "resolver_unicast_daemon": f"127.0.0.1:{honest.address[1]}"}
        with open_context(**options) as context, open_context(**truthful) as publishing:
            receiver = context.receiver("lied about", resolver_query_initial_until_resolved=0)
            wait_for(lambda: liar.lie_count >= 700, "the forged sessions")
            wait_for(lambda: context.stats()["context"]["sessions_evicted"] > 0, "what is too much to go")
            source = publishing.source("lied about", flow_control="min", **SHARED)
            source.wait_connected(timeout=SECONDS)
            source.send(b"true", flush=True)
            assert [message.data for message in collect(receiver, 1)] == [b"true"]
            counters = context.stats()["context"]
            assert counters["tr_advertisements_rcved"] >= 700
            assert counters["sessions_refused"] == 0
