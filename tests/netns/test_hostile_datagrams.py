"""A third host forges datagrams of the session: the stream continues unharmed, and refused datagrams are counted.

Datagrams that must seem to come from the publisher have a forged source address, which takes a raw socket.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Self

import pytest
from scapy.layers.inet import IP, UDP
from scapy.packet import Packet, Raw

from tests.netns.endpoints import GROUP, GROUP_PORT, WAIT_SECONDS, End, Ends, Report, assert_whole
from umstack.lab import Host, Lab
from umstack.scapy import LBMC, LBTRM, LBMCExtended, LBMCStatus, LBTRMData, LBTRMNak, LBTRMSm

DATA, SM, NAK, NCF = 0, 2, 3, 4
RATE = 5_000
FLOOD_NAKS = 10_000
AHEAD = 100
"""A distance ahead of the last numbers of a stream at rest."""

STATUS_ELICIT, STATUS_LEAVE = 1, 2
_TTL = 16
_SO_SNDBUFFORCE = 32


@dataclass(frozen=True, slots=True)
class Identity:
    """The fields that every datagram of a session carries."""

    source: str
    nak_port: int
    session_id: int

    @classmethod
    def of(cls, transport: str) -> Self:
        """Read the fields from the name of the session."""
        _, source, nak_port, session_id, _, _ = transport.split(":")
        return cls(source, int(nak_port), int(session_id, 16))

    def header(self, kind: int | None = None, *, version: int = 0, next_header: int = 0) -> Packet:
        """Return the main header; without a kind, use the kind of the layer above it."""
        header = LBTRM(
            version=version, next_header=next_header, nak_port=self.nak_port, session_id=self.session_id
        )
        if kind is not None:
            header.type = kind
        return header

    def data(self, sqn: int, *messages: Packet, trail: int | None = None) -> bytes:
        """Return a data datagram."""
        body = LBTRMData(sqn=sqn, trail=sqn if trail is None else trail, messages=list(messages))
        return bytes(self.header() / body)

    def nak(self, *sqns: int, count: int | None = None) -> bytes:
        """Return a NAK; `count` replaces its number of entries."""
        return bytes(self.header() / LBTRMNak(sqns=list(sqns), count=count))

    def session_message(self, lead: int, trail: int) -> bytes:
        """Return a session message; any host can send one."""
        return bytes(self.header() / LBTRMSm(sm_sqn=1, lead=lead % 2**32, trail=trail % 2**32))

    def status(self, sqn: int, *, length: int = 28, **said: int | bytes) -> bytes:
        """Return a status message with `length` bytes of data, 36 with a cookie."""
        whole = LBMCStatus(**{"next_sqn": sqn, "receiver_id": 1} | said)
        option = LBMCExtended(id=whole.id, subtype=whole.subtype, data=bytes(whole)[8 : 8 + length])
        return self.data(sqn, LBMC(type="CONTROL", options=[option]))


class Hostile:
    """A host that listens to the group and sends arbitrary datagrams."""

    def __init__(self, lab: Lab, number: int, transport: str) -> None:
        """Join the group on that host."""
        self.identity = Identity.of(transport)
        self._sockets = lab.hosts[number].call(lambda: self._open(lab.hosts[number]))
        self._raw, self._plain, self._listener = self._sockets
        lab.await_join(GROUP, number)

    @staticmethod
    def _open(host: Host) -> tuple[socket.socket, socket.socket, socket.socket]:
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        raw.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 16 << 20)
        plain = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.bind((GROUP, GROUP_PORT))
        request = socket.inet_aton(GROUP) + socket.inet_aton(host.address)
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        return raw, plain, listener

    def to_group(self, payloads: Iterable[bytes]) -> int:
        """Send to the group in the publisher's name; return the number sent."""
        return self._forge(GROUP, GROUP_PORT, payloads)

    def to_resolution(self, payloads: Iterable[bytes]) -> int:
        """Send to the group of topic resolution in the publisher's name; return the number sent."""
        return self._forge("224.9.10.11", 12965, payloads)

    def to_publisher(self, payloads: Iterable[bytes]) -> int:
        """Send to the session's NAK port; return the number sent."""
        address = (self.identity.source, self.identity.nak_port)
        return sum(self._plain.sendto(payload, address) >= 0 for payload in payloads)

    def _forge(self, destination: str, port: int, payloads: Iterable[bytes]) -> int:
        count = 0
        header = IP(src=self.identity.source, dst=destination, ttl=_TTL)
        datagram = bytes(header / UDP(sport=self.identity.nak_port, dport=port, chksum=0))
        for payload in payloads:
            # The kernel fills in the length, the identification and the checksum of the IP header only.
            size = (8 + len(payload)).to_bytes(2, "big")
            self._raw.sendto(datagram[:24] + size + datagram[26:] + payload, (destination, 0))
            count += 1
        return count

    def overhear(self, kind: int = DATA) -> bytes:
        """Return a current datagram of the stream."""
        while select.select([self._listener], [], [], 0)[0]:
            self._listener.recv(65536)
        while True:
            assert select.select([self._listener], [], [], 5)[0], "the session is idle"
            datagram = self._listener.recv(65536)
            if datagram[0] == kind and (kind != DATA or len(datagram) > 500):
                return datagram

    def overheard(self, kind: int = DATA) -> Packet:
        """Return a current datagram of the stream, decoded."""
        return LBTRM(self.overhear(kind))

    def cookie(self) -> bytes:
        """Return the cookie of the session's messages, which a host outside the group cannot see."""
        self.to_publisher([self.identity.status(0, receiver_id=2**62)])
        while True:
            assert select.select([self._listener], [], [], 5)[0], "no session message"
            datagram = self._listener.recv(65536)
            if datagram[0] == SM:
                return datagram[-8:]

    def newest(self) -> int:
        """Return the number of a current datagram of the stream."""
        return int.from_bytes(self.overhear()[8:12], "big")

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets:
            each.close()


@dataclass(slots=True)
class Stream:
    """A running stream and the host that attacks it."""

    publisher: End
    subscriber: End
    hostile: Hostile


class Scene:
    """The stream at the start of one test; counters are relative to it."""

    def __init__(self, stream: Stream) -> None:
        """Record the counters."""
        self.publisher, self.subscriber, self.hostile = stream.publisher, stream.subscriber, stream.hostile
        self.identity = stream.hostile.identity
        self._sent, self._received = self.publisher.ask(), self.subscriber.ask()

    def sent(self, report: Report, name: str) -> int:
        """Return the growth of a counter of the sending session."""
        return report.counter("source_transports", name) - self._sent.counter("source_transports", name)

    def await_sent(self, name: str, count: int = 1) -> Report:
        """Wait until a counter of the sending session has grown by `count`."""
        return self.publisher.await_report(lambda now: self.sent(now, name) >= count)

    def await_received(self, name: str, count: int = 1, group: str = "receiver_transports") -> Report:
        """Wait until a counter of the receiving session, or the context, has grown by `count`."""
        had = self._received.counter(group, name)
        return self.subscriber.await_report(lambda now: now.counter(group, name) >= had + count)

    def received(self, report: Report, name: str) -> int:
        """Return the growth of a counter of the receiving session."""
        group = "receiver_transports"
        return report.counter(group, name) - self._received.counter(group, name)

    def assert_unharmed(self) -> None:
        """Check that the stream still runs and that everything sent so far has arrived intact."""
        sent = self.publisher.ask()["sent"]
        report = self.subscriber.await_received(sent + RATE // 10)
        assert_whole(report, report["received"])
        assert report.counter("receivers", "malformed_fragments") == 0
        assert self.publisher.ask().counter("source_transports", "receivers_known") == 1


@pytest.fixture(scope="module")
def stream() -> Iterator[Stream]:
    """Return a stream that runs for all tests of the file, and a third host that knows its session."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=3))
        ends = Ends(lab, stack)
        subscriber = ends.subscribe(1)
        publisher = ends.publish(receivers=1, rate=RATE)
        transport = publisher.ask(send=10**9)["stats"]["source_transports"][0]["transport"]
        subscriber.await_received(500)
        with closing(Hostile(lab, 2, transport)) as hostile:
            yield Stream(publisher, subscriber, hostile)


@pytest.fixture
def scene(stream: Stream) -> Scene:
    """Return the scene at the start of a test."""
    return Scene(stream)


def test_datagrams_cut_off_at_every_length(scene: Scene) -> None:
    """A datagram too short for an identity counts as unknown, and one too short for its header is dropped by
    size; any other is an old duplicate.
    """
    real = scene.hostile.overhear()
    scene.hostile.to_group(real[:length] for length in range(1, len(real)))
    scene.await_received("lbtrm_unknown_msgs_rcved", 7, "context")
    scene.await_received("dgrams_dropped_size", 12)
    scene.await_received("duplicate_data", len(real) - 20)
    nak, status = scene.identity.nak(1, 2, 3), scene.identity.status(1)
    scene.hostile.to_publisher(nak[:length] for length in range(1, len(nak)))
    scene.hostile.to_publisher(status[:length] for length in range(1, len(status)))
    scene.await_sent("dgrams_dropped_size", len(nak) - 1 + 19)
    scene.await_sent("status_malformed", len(status) - 20)
    scene.assert_unharmed()


def test_versions_types_and_headers_nobody_knows(scene: Scene) -> None:
    """Malformed datagrams are counted by reason on both sides; an unknown version may change the meaning of
    all fields, including the identity.
    """
    identity = scene.identity
    real = scene.hostile.overhear()
    body = real[8:]
    versions = [bytes(identity.header(DATA, version=version)) + body for version in range(1, 16)]
    types = [bytes(identity.header(kind)) + body for kind in range(16) if kind not in (DATA, SM, NAK, NCF)]
    headers = [bytes(identity.header(DATA, next_header=number)) + body for number in range(1, 256)]
    scene.hostile.to_group([*versions, *types, *headers, identity.nak(1)])
    scene.await_received("lbtrm_unknown_msgs_rcved", len(versions), "context")
    scene.await_received("dgrams_dropped_type", len(types) + 1)
    scene.await_received("dgrams_dropped_hdr", len(headers))
    scene.hostile.to_publisher([*versions, *types, *headers, bytes(identity.header(SM)) + bytes(16)])
    scene.await_sent("dgrams_dropped_version", len(versions))
    scene.await_sent("dgrams_dropped_type", len(types) + 1)
    scene.await_sent("dgrams_dropped_hdr", len(headers))
    scene.assert_unharmed()


def test_forged_session_messages(scene: Scene) -> None:
    """A lead and trail far ahead move nothing, and invented losses cause almost no NAKs (UM-128)."""
    for jump in (60_000, 1_000, 250):
        sqn = scene.hostile.overheard().sqn + jump
        scene.hostile.to_group([scene.identity.session_message(sqn, sqn)] * 10)
        sqn = scene.hostile.overheard().sqn
        scene.hostile.to_group(
            scene.identity.session_message(sqn + jump + number, sqn - 10) for number in range(100)
        )
        scene.assert_unharmed()
    report = scene.await_received("session_messages_rcved", 330)
    assert scene.received(report, "naks_sent") < 5_000
    assert scene.received(report, "unrecovered_txw") + scene.received(report, "unrecovered_tmo") == 0


def test_forged_session_ids(scene: Scene) -> None:
    """Data of an unknown session reaches no receiver; its NAKs and status messages are refused."""
    unknown_one = replace(scene.identity, session_id=scene.identity.session_id ^ 1)
    scene.hostile.to_group(unknown_one.data(sqn, *[LBMC()] * 8) for sqn in range(1_000))
    scene.await_received("lbtrm_unknown_msgs_rcved", 1_000, "context")
    scene.hostile.to_publisher([unknown_one.nak(1), unknown_one.status(1)])
    report = scene.await_sent("dgrams_dropped_sid", 2)
    assert report.counter("source_transports", "receivers_known") == 1
    scene.assert_unharmed()


def test_old_duplicates(scene: Scene) -> None:
    """A repeated datagram is counted and delivered once."""
    real = scene.hostile.overhear()
    scene.hostile.to_group([real] * 2_000)
    scene.await_received("duplicate_data", 2_000)
    scene.assert_unharmed()


def test_a_flood_of_naks(scene: Scene) -> None:
    """Each datagram is retransmitted at most once per ignore interval, and other NAKs for it are refused
    (UM-129, UM-130).
    """
    sqn = scene.hostile.overheard().sqn
    before = scene.publisher.ask()
    scene.hostile.to_publisher([scene.identity.nak(sqn)] * FLOOD_NAKS)
    scene.await_sent("naks_suppressed", FLOOD_NAKS // 2)
    scene.hostile.to_publisher([scene.identity.nak(sqn + 2**30)])
    report = scene.await_sent("nak_unknown_sqn")  # arrives after the whole flood
    intervals = 2 + (report["at"] - before["at"]) / 0.010
    assert 1 <= scene.sent(report, "rxs_sent") <= intervals
    assert scene.sent(report, "ncfs_sent") <= intervals
    scene.assert_unharmed()


def test_naks_for_what_was_never_sent_or_lie_about_their_count(scene: Scene) -> None:
    """NAKs for impossible numbers cause no retransmission (UM-129); a list that is shorter than its count is
    dropped.
    """
    identity = scene.identity
    sqn = scene.hostile.overheard().sqn
    unknown = [
        identity.nak(*range(sqn + 2**30 + first, sqn + 2**30 + first + 100)) for first in range(0, 1000, 100)
    ]
    lying = [identity.nak(sqn, count=count) for count in (2, 1000, 65535)]
    scene.hostile.to_publisher([*unknown, *lying])
    scene.await_sent("nak_unknown_sqn", 1_000)
    report = scene.await_sent("dgrams_dropped_size", len(lying))
    assert scene.sent(report, "rxs_sent") == 0
    assert scene.sent(report, "ncfs_sent") == 0
    scene.assert_unharmed()


def test_forged_status_messages(scene: Scene) -> None:
    """Bad layouts and impossible positions are refused; an invented receiver counts until its timeout (AE-19)."""
    identity = scene.identity
    sqn = scene.hostile.overheard().sqn
    malformed = [
        identity.status(sqn, status_version=9),
        identity.status(sqn, length=27),
        identity.data(sqn, LBMC(type="CONTROL")),
    ]
    cookie = scene.hostile.cookie()
    impossible = [
        identity.status((sqn + far) % 2**32, length=36, cookie=cookie) for far in (2**20, 2**30, 2**31)
    ]
    harmless = [
        identity.status(sqn, status_flags=STATUS_LEAVE),
        *[identity.status(sqn, status_flags=STATUS_ELICIT)] * 1_000,
    ]
    scene.hostile.to_publisher([*malformed, *impossible, *harmless])
    scene.await_sent("status_malformed", len(malformed))
    scene.await_sent("status_out_of_range", len(impossible))
    before = scene.publisher.ask()
    scene.hostile.to_publisher([identity.status(sqn, length=36, window_bytes=0, cookie=cookie)])
    scene.await_sent("receivers_known")
    scene.await_sent("receivers_timed_out", 1)
    after = scene.publisher.await_report(lambda now: now["sent"] > before["sent"] + RATE // 2)
    assert after["at"] - before["at"] < 4
    assert after.counter("source_transports", "receivers_known") == 1
    scene.assert_unharmed()


def test_more_invented_receivers_than_there_is_space_for(scene: Scene) -> None:
    """The table of receivers is bounded: more receivers are refused, and the real one keeps its entry (AE-19)."""
    cookie = scene.hostile.cookie()
    sqn, placeholder = scene.hostile.overheard().sqn, 0x1122334455667788
    status = scene.identity.status(
        sqn, length=36, receiver_id=placeholder, window_bytes=2**32 - 1, cookie=cookie
    )
    head, tail = status.split(placeholder.to_bytes(8, "big"))
    # Scapy may need longer for 2,000 datagrams than a receiver is remembered.
    scene.hostile.to_publisher(head + number.to_bytes(8, "big") + tail for number in range(1, 2_000))
    scene.await_sent("receivers_refused")
    scene.await_sent("receivers_timed_out", 100)
    report = scene.publisher.await_report(
        lambda now: now.counter("source_transports", "receivers_known") == 1
    )
    assert report.counter("source_transports", "receivers_known") == 1
    scene.assert_unharmed()


def test_messages_that_lie_inside_a_datagram(scene: Scene) -> None:
    """An impossible length or an unknown kind ends the parsing of that datagram only.

    This test is the last: receivers accept the numbers ahead of the stream, which the publisher does not reach.
    """
    scene.assert_unharmed()
    lies = {
        "dgrams_dropped_size": [LBMC(topic_index=1, length=length) for length in (13, 1000, 65535)],
        "dgrams_dropped_hdr": [LBMC(topic_index=1, length=length) for length in (0, 3, 11)],
        "dgrams_dropped_version": [LBMC(topic_index=1, version=1)],
        "dgrams_dropped_type": [LBMC(type=5, next_header=0) / Raw(bytes(8))],
    }
    final = scene.publisher.ask(stop=WAIT_SECONDS)
    assert final["drained"]
    last = scene.hostile.overheard(SM).lead
    sqn = last + AHEAD
    for name, bodies in lies.items():
        scene.hostile.to_group(scene.identity.data(sqn + n, body, trail=0) for n, body in enumerate(bodies))
        sqn += len(bodies)
        scene.await_received(name, len(bodies))
    assert_whole(scene.subscriber.await_received(final["sent"]), final["sent"])
