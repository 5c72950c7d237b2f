"""Makes the stack send its LBT-RU packet types on the loopback of a network namespace, and captures them.

Usage like emit.py: `unshare --net python tests/wire/emit_lbtru.py DIRECTORY`.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from tests.waiting import wait_for
from tests.wire.emit import SECONDS, capturing, open_context, set_up_loopback, take
from umstack.key_file import write_new_key_file
from umstack.resolution.codec import Advertisement, LbtruAddress, ResolutionDatagram, encode
from umstack.scapy import LBMC, LBTRU, LBTRUClientId, LBTRUData, LBTRUNak, LBTRUSessionId, LBTRUSm

OPTIONS: dict[str, Any] = {
    "transport": "lbtru",
    "flow_control": "min",
    "transport_lbtru_sm_minimum_interval": 60,
    "transport_topic_sequence_number_info_interval": 300,
    "transport_lbtru_ignore_interval": 5000,
}
FORGED_SESSION, FORGED_PORT, FORGED_CLIENT = 0x5EED00AA, 14389, 7
CREQ, ACK, NAK = 6, 5, 3


class Peer:
    """A hand-made receiver at a port that tshark dissects as LBT-RU."""

    def __init__(self, port: int, session_id: int, source_port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", port))
        self.socket.settimeout(SECONDS)
        self._session = b"\2\x08\0\0" + session_id.to_bytes(4)
        self._to = ("127.0.0.1", source_port)

    def send(self, kind: int, body: bytes, client_id: int) -> None:
        """Send a datagram with both options."""
        options = self._session + b"\0\x08\0\0" + client_id.to_bytes(4)
        self.socket.sendto(bytes([kind, 1, 0, 0]) + body + options, self._to)

    def connect(self) -> int:
        """Connect. Return the client id from the source."""
        self.send(CREQ, b"", 1)
        answer = self.socket.recv(2000)
        client_id = int.from_bytes(answer[-4:])
        self.send(ACK, answer[8:12], client_id)
        return client_id


def filter_topics(facts: dict[str, Any]) -> None:
    """Publish two topics of a filtering session with a receiver of one of them."""
    options = {
        **OPTIONS,
        "transport_source_side_filtering_behavior": "inclusion",
        "transport_lbtru_port": 14388,
    }
    with open_context() as publisher, open_context() as subscriber:
        wanted, other = (publisher.source(topic, **options) for topic in ("wanted", "unwanted"))
        receiver = subscriber.receiver("wanted")
        wanted.wait_connected(timeout=SECONDS)
        wait_for(lambda: (wanted.stats()["interests_rcved"] or 0) >= 1, "the receiver's interest")
        for number in range(3):
            other.send(b"%d" % number, flush=True)
        wanted.send(b"wanted", flush=True)
        other.send(b"last", flush=True)
        take(receiver, 1)
        reports = wanted.stats()["filter_reports_sent"] or 0
        wait_for(lambda: (wanted.stats()["filter_reports_sent"] or 0) > reports, "a report on the last")
        _, _, port, session_id = wanted.transport.split(":")
        facts["filtered_session"], facts["filtered_port"] = int(session_id, 16), int(port)
        facts["wanted"], facts["unwanted"] = wanted.topic_index, other.topic_index


def publish(facts: dict[str, Any], folder: Path) -> None:
    """Send messages, retransmissions, an NCF and a reset; stay idle; let a receiver leave; repeat without a
    session id and with keys.
    """
    with open_context() as publisher, open_context() as subscriber:
        receiver = subscriber.receiver("orders")
        source = publisher.source("orders", **OPTIONS)
        source.wait_connected(timeout=SECONDS)
        source.send(b"single", flush=True)
        source.send(bytes(range(250)) * 16, flush=True)
        take(receiver, 2)
        wait_for(lambda: (source.stats()["session_messages_sent"] or 0) >= 3, "session messages")
        wait_for(lambda: (source.stats()["tsnis_sent"] or 0) >= 1, "a TSNI")
        _, _, port, session_id = source.transport.split(":")
        facts["session_id"], facts["source_port"] = int(session_id, 16), int(port)
        facts["topic_index"] = source.topic_index
        peer = Peer(14378, int(session_id, 16), int(port))
        client_id = peer.connect()
        wait_for(lambda: source.stats()["num_clients"] == 2, "the peer's connection")
        for _ in range(2):
            peer.send(NAK, b"\0\1\0\0\0\0\0\0", client_id)
        wait_for(lambda: source.stats()["naks_ignored"] == 1, "an NCF")
        other = Peer(14379, int(session_id, 16), int(port))
        other.send(ACK, bytes(4), 1)
        facts["reset"] = other.socket.recv(100).hex()
        receiver.close()
        wait_for(lambda: source.stats()["num_clients"] == 1, "the receiver's leave")
    with open_context() as publisher, open_context() as subscriber:
        receiver = subscriber.receiver("bare")
        source = publisher.source("bare", **OPTIONS, transport_lbtru_use_session_id=0)
        source.wait_connected(timeout=SECONDS)
        source.send(b"bare", flush=True)
        take(receiver, 1)
    filter_topics(facts)
    write_new_key_file(folder / "keys", ["keyed"])
    keys = {"authentication_key_file": str(folder / "keys"), "authentication_scope": "all"}
    with open_context(**keys) as publisher, open_context(**keys) as subscriber:
        receiver = subscriber.receiver("keyed")
        source = publisher.source("keyed", **OPTIONS)
        source.wait_connected(timeout=SECONDS)
        source.send(b"keyed", flush=True)
        take(receiver, 1)
        wait_for(lambda: (source.stats()["session_messages_sent"] or 0) >= 2, "a session message")


def ask(facts: dict[str, Any]) -> None:
    """Forge a source with a gap in its datagrams, for the stack's own NAK with the source's client id."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger, open_context() as subscriber:
        forger.bind(("127.0.0.1", FORGED_PORT))
        forger.settimeout(SECONDS)
        receiver = subscriber.receiver("forged")
        address = LbtruAddress("127.0.0.1", FORGED_SESSION, FORGED_PORT)
        advertisement = Advertisement("forged", 77, 60, address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
            resolver.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
            resolver.sendto(
                encode(ResolutionDatagram(advertisements=(advertisement,))), ("224.9.10.11", 12965)
            )
        data, client = forger.recvfrom(2000)
        assert data[0] == CREQ
        options = [LBTRUSessionId(session_id=FORGED_SESSION), LBTRUClientId(client_id=FORGED_CLIENT)]
        proposed = LBTRU(data)[LBTRUClientId].client_id
        syn = LBTRU(flags="syn") / LBTRUSm(sm_sqn=proposed, lead=99, trail=100, options=options)
        forger.sendto(bytes(syn), client)

        def send(number: int) -> None:
            message = LBMC(topic_index=77, sqn=number) / (b"%05d" % number)
            body = LBTRUData(sqn=100 + number, trail=100, options=options[:1], messages=[message])
            forger.sendto(bytes(LBTRU() / body), client)

        for number in (0, 3):
            send(number)
        asked: set[int] = set()
        while asked != {101, 102}:
            heard = LBTRU(forger.recv(2000))
            if LBTRUNak in heard:
                asked.update(heard[LBTRUNak].sqns)
        for number in (1, 2):
            send(number)
        take(receiver, 4)
        facts["receive_port"] = client[1]


def main() -> None:
    """Send everything, and write the facts."""
    directory = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    set_up_loopback()
    with capturing(directory / "wire.pcapng"):
        publish(facts, directory)
        ask(facts)
    (directory / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
