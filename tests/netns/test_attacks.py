"""Attacks of 1 Mbit/s beside an honest stream and a newcomer: what either loses by them (docs/performance.md)."""

from __future__ import annotations

import itertools
import json
import random
import socket
import statistics
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache

import pytest

from tests.netns.contexts import UNLIMITED, Member
from tests.netns.newcomer import WAIT_SECONDS
from tests.netns.test_hostile_datagrams import Identity
from tests.netns.test_routed_lab import DAEMON_PORT, resolver_on
from tests.unit.capture_bytes import lbtru_options
from tests.waiting import wait_for
from umstack import Event, Message, Source
from umstack._engine.transport_address import LbtrmAddress, LbtruAddress, TcpAddress
from umstack.bench.children import running
from umstack.lab import Host, Lab
from umstack.recovery.codec import RangeRequest, encode_range_request
from umstack.resolution.codec import Advertisement, encode_advertisement, encode_query, pack

TOPIC = "honest"
ATTACK_BITS_PER_SECOND = 1_000_000
MESSAGES_PER_SECOND = 2_000
SECONDS = 3.0
NEWCOMER_AFTER_S = 1.0
LAST_MESSAGES_S = 4.0
"""Maximum time until the last messages of a run are delivered."""
NEWCOMERS = 3
"""Newcomers one after the other, just before the attack and during it, so the load of the machine delays both alike."""
SCHEDULING_S = 0.4
"""Difference of two medians on a busy machine. Queues without a bound cost 0.7 s and more on an idle one
(docs/performance.md)."""
QUIET_S = 1.0
HEADERS_BYTES = 28
CONNECT_BYTES = 180
"""A connection request, its answer and the acknowledgement."""
CONNECTIONS_OPEN = 900
PORTS = 500
QUERY = pack([encode_query(TOPIC)], [], 1400)[0]

Attack = Callable[[threading.Event], None]


@dataclass(slots=True)
class Outcome:
    """Messages sent and received, and after what time each newcomer had its first ones."""

    sent: int = 0
    delivered: int = 0
    newcomer_s: dict[str, list[float]] = field(default_factory=dict)


class Scene:
    """A publisher with an honest stream, its receiver, and the hosts of an attacker and of a newcomer."""

    def __init__(self, lab: Lab, stack: ExitStack, transport: str, daemon: str) -> None:
        """Open the stream; it is connected. `daemon` is the address of a resolution daemon, or empty."""
        publisher, reader, self.attacker, newcomer = lab.hosts
        options = {"resolver_unicast_daemon": daemon} if daemon else {}
        self.publisher = Member(publisher, **options)
        stack.callback(self.publisher.context.close)
        subscriber = Member(reader, **options)
        stack.callback(subscriber.context.close)
        self.source: Source = self.publisher.source(
            TOPIC, transport=transport, late_join=1, retransmit_retention_size_limit=1 << 20
        )
        arguments = [newcomer.interface, TOPIC, json.dumps({**UNLIMITED, **options})]
        self._newcomer = stack.enter_context(running(newcomer, "tests.netns.newcomer", arguments))
        stack.callback(self._newcomer.order, join=False)
        self._delivered = 0
        subscriber.receiver(TOPIC, on_message=self._count)
        self.source.wait_connected(timeout=20)
        self.source.send(b"retained", flush=True)
        wait_for(lambda: self._delivered == 1, "the first message")

    def _count(self, event: Event) -> None:
        self._delivered += isinstance(event, Message)

    def run(self, seconds: float, newcomers_after_s: float) -> Outcome:
        """Send for a while, with newcomers meanwhile."""
        outcome, before = Outcome(), self._delivered
        newcomer = threading.Timer(newcomers_after_s, self._join_all, (outcome,))
        newcomer.start()
        begin = time.monotonic()
        while (now_s := time.monotonic() - begin) < seconds or newcomer.is_alive():
            due = int(now_s * MESSAGES_PER_SECOND) - outcome.sent
            self.source.send_many([bytes(200)] * due, flush=True, timeout=SECONDS)
            outcome.sent += due
            time.sleep(0.002)
        newcomer.join()
        end = time.monotonic() + LAST_MESSAGES_S
        while (delivered := self._delivered - before) < outcome.sent and time.monotonic() < end:
            time.sleep(0.01)
        outcome.delivered = delivered
        return outcome

    def _join_all(self, outcome: Outcome) -> None:
        for _ in range(NEWCOMERS):
            self._newcomer.order(join=True)
            for kind, seconds in self._newcomer.receive(2 * WAIT_SECONDS).items():
                outcome.newcomer_s.setdefault(kind, []).append(seconds)


@contextmanager
def attacking(host: Host, attack: Attack) -> Iterator[None]:
    """Run the attack on its host meanwhile."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: host.call(lambda: attack(stop)))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class _Pace:
    """Keeps an attack at ATTACK_BITS_PER_SECOND."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._begin = time.monotonic()
        self._sent_bytes = 0

    def spend(self, sent_bytes: int) -> None:
        self._sent_bytes += sent_bytes
        ahead_s = 8 * self._sent_bytes / ATTACK_BITS_PER_SECOND - (time.monotonic() - self._begin)
        if ahead_s > 0:
            self._stop.wait(ahead_s)


def datagrams(host: Host, make: Callable[[], bytes], to: tuple[str, int], ports: int = 1) -> Attack:
    """Return an attack by datagrams, in turns from this number of ports."""

    def attack(stop: threading.Event) -> None:
        pace = _Pace(stop)
        with ExitStack() as stack:
            senders = [
                stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(ports)
            ]
            for sender in itertools.cycle(senders):
                if stop.is_set():
                    return
                sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host.address))
                datagram = make()
                sender.sendto(datagram, to)
                pace.spend(len(datagram) + HEADERS_BYTES)

    return attack


def connections(to: tuple[str, int], data: bytes = b"") -> Attack:
    """Return an attack by connections that read nothing and send this."""

    def attack(stop: threading.Event) -> None:
        pace, held = _Pace(stop), deque[socket.socket]()
        while not stop.is_set():
            if len(held) == CONNECTIONS_OPEN:
                held.popleft().close()
            one = socket.socket()
            held.append(one)
            one.settimeout(0.2)
            try:
                one.connect(to)
                one.sendall(data)
            except OSError:
                continue
            finally:
                pace.spend(CONNECT_BYTES + len(data))
        for one in held:
            one.close()

    return attack


def _attack_on_a_group(name: str, scene: Scene, luck: random.Random) -> Attack:
    """Return the attack of this name on an honest stream over LBT-RM."""
    host, options = scene.attacker, scene.publisher.context.options
    address = scene.source._publication.session.address
    assert isinstance(address, LbtrmAddress)
    identity = Identity(address.source_ip, address.nak_port, address.session_id)
    resolution = (options.resolver_multicast_address, options.resolver_multicast_port)
    nak_port = (address.source_ip, address.nak_port)
    request_port = scene.publisher.context._streams.port().endpoint

    def advertisements() -> bytes:
        others = (address._replace(session_id=luck.randrange(2**31), nak_port=9) for _ in range(20))
        return pack([], [encode_advertisement(Advertisement(TOPIC, 1, 60, one)) for one in others], 1400)[0]

    # Scapy is slow: a few datagrams are made beforehand.
    session_messages = [identity.session_message(10**6 + 7 * number, 0) for number in range(50)]
    naks = [identity.nak(*luck.choices(range(1 << 14), k=50)) for _ in range(50)]
    statuses = [identity.status(1, receiver_id=number + 1) for number in range(50)]
    ranges = encode_range_request(RangeRequest(scene.source.topic_index)) * 20
    return {
        "advertisements": datagrams(host, advertisements, resolution),
        "queries": datagrams(host, lambda: QUERY, resolution),
        "session messages": datagrams(
            host, lambda: luck.choice(session_messages), (address.group, address.destination_port)
        ),
        "NAKs": datagrams(host, lambda: luck.choice(naks), nak_port),
        "status messages": datagrams(host, lambda: luck.choice(statuses), nak_port),
        "idle connections": connections(request_port),
        "range requests": connections(request_port, ranges),
    }[name]


def _attack_on_lbtru(scene: Scene, luck: random.Random) -> Attack:
    """Return an attack by connection requests, acknowledgements and NAKs, with client ids of nobody."""
    address = scene.source._publication.session.address
    assert isinstance(address, LbtruAddress)
    bodies = {6: b"", 5: bytes(4), 3: struct.pack("!HH50I", 50, 0, *luck.choices(range(1 << 14), k=50))}

    def make() -> bytes:
        kind = luck.choice((6, 6, 5, 3))
        options = lbtru_options(address.session_id, 0 if kind == 6 else luck.randrange(1, 2**32))
        return struct.pack("!BBH", kind, 1, 0) + bodies[kind] + options

    return datagrams(scene.attacker, make, (address.source_ip, address.source_port), PORTS)


def _attack_on_tcp(scene: Scene) -> Attack:
    """Return an attack by connections to the source that send and read nothing."""
    address = scene.source._publication.session.address
    assert isinstance(address, TcpAddress)
    return connections((address.source_ip, address.source_port))


Scenes = Callable[..., Scene]


@pytest.fixture(scope="module")
def scenes() -> Iterator[Scenes]:
    """Yield a function that opens a stream over a transport, or with a daemon on its host, in a lab of its own."""
    with ExitStack() as stack:

        @cache
        def scene(transport: str = "lbtrm", *, has_daemon: bool = False) -> Scene:
            lab = stack.enter_context(Lab(hosts=4))
            daemon = stack.enter_context(resolver_on(lab.hosts[0])) if has_daemon else ""
            return Scene(lab, stack, transport, daemon)

        yield scene


@pytest.mark.parametrize(
    "name",
    [
        "advertisements", "queries", "session messages", "NAKs", "status messages", "idle connections",
        "range requests",
    ],
)  # fmt: skip
def test_an_attack_costs_an_honest_stream_and_a_newcomer_little(scenes: Scenes, name: str) -> None:
    """The stream keeps 0.95 of its messages; newcomers are found, connected and joined late within twice the time of
    those just before the attack, by the medians, with the spread that these had."""
    scene, luck = scenes(), _luck()
    _check_that_little_is_lost(scene, _attack_on_a_group(name, scene, luck), name)


def test_an_attack_on_an_lbtru_source_costs_little(scenes: Scenes) -> None:
    """Connection requests, acknowledgements and NAKs of unknown clients, from many ports."""
    scene = scenes("lbtru")
    _check_that_little_is_lost(scene, _attack_on_lbtru(scene, _luck()), "LBT-RU")


def test_an_attack_on_a_tcp_source_costs_little(scenes: Scenes) -> None:
    """Connections that send and read nothing."""
    scene = scenes("tcp")
    _check_that_little_is_lost(scene, _attack_on_tcp(scene), "TCP")


def test_an_attack_on_a_resolution_daemon_costs_little(scenes: Scenes) -> None:
    """Queries from many ports of one host."""
    scene = scenes(has_daemon=True)
    to = (scene.publisher.host.address, DAEMON_PORT)
    _check_that_little_is_lost(scene, datagrams(scene.attacker, lambda: QUERY, to, PORTS), "daemon")


def _luck() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def _check_that_little_is_lost(scene: Scene, attack: Attack, name: str) -> None:
    quiet = scene.run(QUIET_S, 0)
    with attacking(scene.attacker, attack):
        attacked = scene.run(SECONDS, NEWCOMER_AFTER_S)
    print(f"{name}: {attacked}, quiet: {quiet}")
    assert attacked.sent >= 0.95 * MESSAGES_PER_SECOND * SECONDS
    assert attacked.delivered >= 0.95 * attacked.sent
    for kind in ("late", "live"):
        before, during = quiet.newcomer_s[kind], attacked.newcomer_s[kind]
        assert len(before) == len(during) == NEWCOMERS
        noise_s = max(SCHEDULING_S, max(before) - min(before))
        assert statistics.median(during) <= 2 * statistics.median(before) + noise_s, kind
