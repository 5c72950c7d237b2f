"""Makes the stack send its packet types with keys on the loopback of a network namespace, and captures them.

Usage like emit.py, with authentication_scope all: `unshare --net python tests/wire/emit_keyed.py DIRECTORY`.
tests/tag_oracle.py makes the datagrams of a second source and receiver, so each accepts the other only if both are
right.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from tests.tag_oracle import HEAD, TRAILER_BYTES, sender_tag, session_tag
from tests.waiting import wait_for
from tests.wire.emit import GROUP, SECONDS, address_of, capturing, open_context, set_up_loopback, take
from umstack.key_file import write_new_key_file
from umstack.resolution.codec import Advertisement, LbtrmAddress, ResolutionDatagram, encode
from umstack.scapy import LBMC, LBTRM, LBTRMData, LBTRMNak

FORGED = LbtrmAddress("127.0.0.1", "224.10.10.12", 0x5EED0002, 14400, 14399)
SECRET, RESOLUTION_SECRET = bytes(range(32)), bytes(range(32, 64))
FULL_BYTES = 1472 - 20 - 12 - TRAILER_BYTES

_counts = count(1)


def covered(plain: bytes) -> bytes:
    """Return a datagram with its trailer up to the tag, with the current time."""
    stamp = int(time.time() * 4) << 22 | next(_counts)
    return plain + HEAD + b"\7" + stamp.to_bytes(7)


def of_sender(secret: bytes, purpose: str, sender: tuple[str, int], plain: bytes) -> bytes:
    """Return the datagram with its trailer, as sent by a receiver or topic resolution."""
    whole = covered(plain)
    return whole + sender_tag(secret, purpose, sender, whole)


def of_source(plain: bytes) -> bytes:
    """Return the datagram with its trailer, as sent by the forged source."""
    whole = covered(plain)
    source, group = (FORGED.source_ip, FORGED.nak_port), (FORGED.group, FORGED.destination_port)
    return whole + session_tag(SECRET, source, group, FORGED.session_id, whole)


def publish(keys: dict[str, Any], facts: dict[str, Any]) -> None:
    """Send messages of several kinds, session messages, TSNIs, retransmissions, an NCF; let a receiver leave."""
    options: dict[str, Any] = {
        "flow_control": "min",
        "transport_lbtrm_multicast_address": GROUP,
        "transport_lbtrm_sm_minimum_interval": 60,
        "transport_topic_sequence_number_info_interval": 300,
        "transport_lbtrm_ignore_interval": 5000,
    }
    with (
        open_context(**keys) as publisher,
        open_context(**keys) as subscriber,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        receiver = subscriber.receiver("orders")
        source = publisher.source("orders", **options)
        source.wait_connected(timeout=SECONDS)
        source.send(b"single", flush=True)
        source.send(b"F" * FULL_BYTES, flush=True)
        source.send(bytes(range(250)) * 16, flush=True)
        source.send_many([b"%02d" % number for number in range(120)], flush=True)
        take(receiver, 1 + 1 + 1 + 120)
        wait_for(lambda: (source.stats()["session_messages_sent"] or 0) >= 2, "session messages")
        wait_for(lambda: (source.stats()["tsnis_sent"] or 0) >= 1, "TSNIs")
        session = address_of(source.transport)
        other.bind(("127.0.0.1", 0))
        nak = bytes(LBTRM(nak_port=session.nak_port, session_id=session.session_id) / LBTRMNak(sqns=[0, 1]))
        for _ in range(2):
            datagram = of_sender(SECRET, "control", other.getsockname(), nak)
            other.sendto(datagram, (session.source_ip, session.nak_port))
        wait_for(lambda: source.stats()["rxs_sent"] == 2, "retransmissions")
        wait_for(lambda: source.stats()["naks_ignored"] == 2, "an NCF")
        receiver.close()
        wait_for(lambda: source.stats()["receivers_known"] == 0, "the receiver's leave")
        facts |= {"session_id": session.session_id, "nak_port": session.nak_port, "publisher": source.stats()}


def ask(keys: dict[str, Any]) -> None:
    """Let the oracle act as a source with a gap in its datagrams, for the stack's own NAK."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger, open_context(**keys) as subscriber:
        forger.bind((FORGED.source_ip, FORGED.nak_port))
        forger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        receiver = subscriber.receiver("forged")
        plain = encode(ResolutionDatagram(advertisements=(Advertisement("forged", 77, 60, FORGED),)))
        tagged = of_sender(RESOLUTION_SECRET, "lbmr", forger.getsockname(), plain)
        forger.sendto(tagged, ("224.9.10.11", 12965))
        wait_for(lambda: receiver.stats()["delivery_controllers"], "resolution")

        def send(number: int) -> None:
            message = LBMC(topic_index=77, sqn=number) / (b"%05d" % number)
            body = LBTRMData(sqn=number, trail=0, messages=[message])
            plain = bytes(LBTRM(nak_port=FORGED.nak_port, session_id=FORGED.session_id) / body)
            forger.sendto(of_source(plain), (FORGED.group, FORGED.destination_port))

        for number in (0, 3, 4):
            send(number)
        asked: set[int] = set()
        while asked != {1, 2}:
            assert select.select([forger], [], [], SECONDS)[0], "no NAK received"
            heard = LBTRM(forger.recv(2000)[:-TRAILER_BYTES])
            if LBTRMNak in heard:
                asked.update(heard[LBTRMNak].sqns)
        for number in (1, 2):
            send(number)
        take(receiver, 5)


def main() -> None:
    """Send everything, and write the facts."""
    directory = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    file = directory / "keys"
    write_new_key_file(file, ["*"])
    file.write_text(f"topic * 7 {SECRET.hex()}\nresolution 7 {RESOLUTION_SECRET.hex()}\n")
    keys = {"authentication_key_file": str(file), "authentication_scope": "all"}
    set_up_loopback()
    with capturing(directory / "wire.pcapng"):
        publish(keys, facts)
        ask(keys)
    (directory / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
