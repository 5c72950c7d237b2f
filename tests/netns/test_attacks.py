"""Attacks of 1 Mbit/s beside an honest stream and a newcomer: what either loses by them (docs/performance.md)."""

from __future__ import annotations

import random
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from tests.netns.contexts import Member
from tests.netns.test_hostile_datagrams import Identity
from umstack import Event, Message, Source
from umstack._engine.transport_address import LbtrmAddress
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
SCHEDULING_S = 0.1
"""Difference of two medians on a shared processor, if the quiet newcomers did not differ among themselves."""
QUIET_S = 1.0
HEADERS_BYTES = 28
CONNECT_BYTES = 180
"""A connection request, its answer and the acknowledgement."""
CONNECTIONS_OPEN = 900
FROM_BEFORE = 8
"""The flag of a message from before the receiver joined."""

Attack = Callable[[threading.Event], None]


@dataclass(slots=True)
class Outcome:
    """Messages sent and received, and after what time each newcomer had its first ones."""

    sent: int = 0
    delivered: int = 0
    newcomer_s: dict[str, list[float]] = field(default_factory=dict)


class Scene:
    """A publisher with an honest stream, its receiver, and the hosts of an attacker and of a newcomer."""

    def __init__(self, lab: Lab, stack: ExitStack) -> None:
        """Open the stream; it is connected."""
        publisher, reader, self.attacker, self._newcomer = lab.hosts
        self.publisher = Member(publisher)
        stack.callback(self.publisher.context.close)
        subscriber = Member(reader)
        stack.callback(subscriber.context.close)
        self.source: Source = self.publisher.source(
            TOPIC, late_join=1, retransmit_retention_size_limit=1 << 20
        )
        self._delivered = 0
        subscriber.receiver(TOPIC, on_message=self._count)
        self.source.wait_connected(timeout=20)
        address = self.source._publication.session.address
        assert isinstance(address, LbtrmAddress)
        self.address = address

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
            for kind, seconds in self._join().items():
                outcome.newcomer_s.setdefault(kind, []).append(seconds)

    def _join(self) -> dict[str, float]:
        begin, first_s = time.monotonic(), dict[str, float]()
        has_live = threading.Event()

        def note(event: Event) -> None:
            if not isinstance(event, Message):
                return
            kind = "late" if event.flags & FROM_BEFORE else "live"
            first_s.setdefault(kind, time.monotonic() - begin)
            if kind == "live":
                has_live.set()

        member = Member(self._newcomer)
        try:
            member.receiver(TOPIC, on_message=note)
            has_live.wait(SECONDS)
        finally:
            member.context.close()
        return first_s


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


def datagrams(host: Host, make: Callable[[], bytes], to: tuple[str, int]) -> Attack:
    """Return an attack by datagrams."""

    def attack(stop: threading.Event) -> None:
        pace = _Pace(stop)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host.address))
            while not stop.is_set():
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


def _attack(name: str, scene: Scene, luck: random.Random) -> Attack:
    """Return the attack of this name on the honest stream."""
    host, address, options = scene.attacker, scene.address, scene.publisher.context.options
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
    query = pack([encode_query(TOPIC)], [], 1400)[0]
    ranges = encode_range_request(RangeRequest(scene.source.topic_index)) * 20
    return {
        "advertisements": datagrams(host, advertisements, resolution),
        "queries": datagrams(host, lambda: query, resolution),
        "session messages": datagrams(
            host, lambda: luck.choice(session_messages), (address.group, address.destination_port)
        ),
        "NAKs": datagrams(host, lambda: luck.choice(naks), nak_port),
        "status messages": datagrams(host, lambda: luck.choice(statuses), nak_port),
        "idle connections": connections(request_port),
        "range requests": connections(request_port, ranges),
    }[name]


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """Yield a stream in a lab of its own."""
    with Lab(hosts=4) as lab, ExitStack() as stack:
        yield Scene(lab, stack)


@pytest.mark.parametrize(
    "name",
    [
        "advertisements", "queries", "session messages", "NAKs", "status messages", "idle connections",
        "range requests",
    ],
)  # fmt: skip
def test_an_attack_costs_an_honest_stream_and_a_newcomer_little(scene: Scene, name: str) -> None:
    """The stream keeps 0.95 of its messages; newcomers are found, connected and joined late within twice the time of
    those just before the attack, by the medians, with the spread that these had."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    quiet = scene.run(QUIET_S, 0)
    with attacking(scene.attacker, _attack(name, scene, random.Random(seed))):
        attacked = scene.run(SECONDS, NEWCOMER_AFTER_S)
    print(f"{name}: {attacked}, quiet: {quiet}")
    assert attacked.sent >= 0.95 * MESSAGES_PER_SECOND * SECONDS
    assert attacked.delivered >= 0.95 * attacked.sent
    for kind in ("late", "live"):
        before, during = quiet.newcomer_s[kind], attacked.newcomer_s[kind]
        assert len(before) == len(during) == NEWCOMERS
        noise_s = max(SCHEDULING_S, max(before) - min(before))
        assert statistics.median(during) <= 2 * statistics.median(before) + noise_s, kind
