"""Makes the stack send all its packet types on the loopback of a network namespace, and captures them.

Run inside a separate namespace: `unshare --net python tests/wire/emit.py DIRECTORY`. Writes wire.pcapng there, and
facts.json: the sent data, as recorded by the senders. Frames carry one datagram each (no GSO), at an MTU of 1500.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute

from tests.waiting import wait_for
from umstack import Context, Message, Receiver
from umstack.resolution.codec import Advertisement, LbtrmAddress, ResolutionDatagram, encode
from umstack.scapy import LBMC, LBTRM, LBTRMData, LBTRMNak

MARKER = b"the end of the capture"
SECONDS = 20.0
GROUP = "224.10.10.10"
FORGED_SESSION = 0x5EED0001


def set_up_loopback() -> None:
    """Bring lo up with the MTU of Ethernet."""
    with IPRoute() as route:
        route.link("set", index=socket.if_nametoindex("lo"), state="up", mtu=1500)


@contextmanager
def capturing(file: Path) -> Iterator[None]:
    """Capture lo into the file, until the file has the marker sent at the end."""
    command = ["dumpcap", "-q", "-i", "lo", "-B", "64", "-w", str(file)]
    capture = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert capture.stderr is not None
    while "File:" not in (line := capture.stderr.readline()):
        if not line:
            raise RuntimeError("dumpcap did not start")
    try:
        yield
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(MARKER, ("127.0.0.1", 9))
        wait_for(lambda: MARKER in file.read_bytes(), "the marker in the capture")
    finally:
        capture.send_signal(signal.SIGINT)
        capture.wait()


def nak(session: LbtrmAddress, *requests: list[int]) -> None:
    """Send NAKs to a source, as any receiver may; several at once."""
    header = LBTRM(nak_port=session.nak_port, session_id=session.session_id)
    datagrams = [bytes(header / LBTRMNak(sqns=numbers)) for numbers in requests]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for datagram in datagrams:
            sender.sendto(datagram, (session.source_ip, session.nak_port))


def address_of(transport: str) -> LbtrmAddress:
    """Return the address in the name of a transport."""
    _, source_ip, nak_port, session_id, group, port = transport.split(":")
    return LbtrmAddress(source_ip, group, int(session_id, 16), int(port), int(nak_port))


def take(receiver: Receiver, count: int) -> list[Message]:
    """Return the next `count` messages."""
    messages: list[Message] = []
    deadline = time.monotonic() + SECONDS
    while len(messages) < count:
        messages += receiver.poll(count - len(messages), 0.1).messages()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{receiver} got {len(messages)} of {count}")
    return messages


def open_context(**options: Any) -> Context:
    """Open a context that sends every datagram in a separate frame."""
    return Context("lo", link_gso=0, link_gro=0, **options)


def publish(facts: dict[str, Any]) -> None:
    """Send messages of every kind, pause for session messages and TSNIs, retransmit, and let a receiver leave."""
    options: dict[str, Any] = {
        "flow_control": "min",
        "transport_lbtrm_multicast_address": GROUP,
        "transport_lbtrm_sm_minimum_interval": 60,
        "transport_topic_sequence_number_info_interval": 300,
        "transport_lbtrm_ignore_interval": 5000,
        "implicit_batching_interval": 60000,
    }
    with open_context() as publisher, open_context() as subscriber:
        receivers = [subscriber.receiver("orders"), subscriber.receiver("trades")]
        orders = publisher.source("orders", **options)
        trades = publisher.source("trades", **options)
        session = address_of(orders.transport)
        for receiver in receivers:
            wait_for(lambda receiver=receiver: receiver.stats()["delivery_controllers"], "resolution")
        orders.wait_connected(timeout=SECONDS)
        single = orders.send(b"single", flush=True)
        orders.send(b"first of three")
        trades.send(b"second of three")
        orders.send(b"third of three", flush=True)
        fragmented = orders.send(bytes(range(250)) * 16, flush=True)
        largest = orders.send(b"L" * 1440, flush=True)
        batch = [orders.send(b"begins", batch="start"), orders.send(b"goes on")]
        batch += [orders.send(b"ends", batch="end"), orders.send(b"alone", batch="complete", flush=True)]
        orders.send_many([b"%02d" % i for i in range(120)], flush=True)
        with orders.claim(8, flush=True) as view:
            view[:] = b"in place"
        total = len(take(receivers[0], 1 + 2 + 1 + 1 + 4 + 120 + 1))
        take(receivers[1], 1)
        wait_for(lambda: (orders.stats()["session_messages_sent"] or 0) >= 2, "session messages")
        wait_for(lambda: (orders.stats()["tsnis_sent"] or 0) >= 1, "TSNIs")
        # Transport sqn 0 carries `single`, and so on, in the order of the flushes.
        nak(session, [0, 2])
        wait_for(lambda: orders.stats()["rxs_sent"] == 2, "retransmissions")
        nak(session, [0])
        wait_for(lambda: orders.stats()["naks_ignored"] == 1, "an NCF")
        for receiver in receivers:
            receiver.close()
        wait_for(lambda: orders.stats()["receivers_known"] == 0, "the receiver's leave")
        facts |= {
            "session_id": session.session_id,
            "nak_port": session.nak_port,
            "topics": {"orders": orders.topic_index, "trades": trades.topic_index},
            "single": single,
            "fragmented": fragmented,
            "largest": largest,
            "batch": batch,
            "messages": total,
            "publisher": orders.stats(),
        }


def publish_timed(facts: dict[str, Any]) -> None:
    """Send messages with send times: single, in a batch, and in fragments."""
    options: dict[str, Any] = {"send_timestamps": 1, "transport_lbtrm_multicast_address": "224.10.10.13"}
    with open_context() as publisher, open_context() as subscriber:
        receiver = subscriber.receiver("timed")
        source = publisher.source("timed", flow_control="min", **options)
        source.wait_connected(timeout=SECONDS)
        before_ns = time.time_ns()
        source.send(b"T" * 1424, flush=True)
        source.send(b"begins", batch="start")
        source.send(b"ends", batch="end", flush=True)
        source.send(bytes(3000), flush=True)
        messages = take(receiver, 4)
        facts |= {
            "timed_session": address_of(source.transport).session_id,
            "timed_between": [before_ns, time.time_ns()],
            "timed_sent": [message.sent_ns for message in messages],
        }


def refuse(facts: dict[str, Any]) -> None:
    """Exceed the retransmission limit by many NAKs for small datagrams: some are delayed, some shed."""
    with open_context(
        transport_lbtrm_retransmit_rate_limit=80_000, transport_lbtrm_rate_interval=100
    ) as publisher:
        source = publisher.source("flooded", transport_lbtrm_multicast_address="224.10.10.11")
        session = address_of(source.transport)
        # Two messages may share a datagram if the context sends, too, so datagrams are counted.
        while (source.stats()["msgs_sent"] or 0) < 1500:
            source.send(bytes(8), flush=True)
        nak(session, *[list(range(first, first + 300)) for first in range(0, 1500, 300)])
        wait_for(lambda: source.stats()["naks_rcved"] == 1500, "all NAKs")
        wait_for(lambda: source.stats()["naks_shed"], "shed NAKs")
        facts |= {"flooded": session.session_id, "flooded_stats": source.stats()}


def ask(facts: dict[str, Any]) -> None:
    """Forge a source with a gap in its datagrams, for the stack's own NAK and first status message."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as forger, open_context() as subscriber:
        forger.bind(("127.0.0.1", 14399))
        forger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        receiver = subscriber.receiver("forged")
        address = LbtrmAddress("127.0.0.1", "224.10.10.12", FORGED_SESSION, 14400, 14399)
        advertisement = Advertisement("forged", 77, 60, address)
        forger.sendto(encode(ResolutionDatagram(advertisements=(advertisement,))), ("224.9.10.11", 12965))
        wait_for(lambda: receiver.stats()["delivery_controllers"], "resolution")

        def send(number: int) -> None:
            message = LBMC(topic_index=77, sqn=number) / (b"%05d" % number)
            body = LBTRMData(sqn=number, trail=0, messages=[message])
            datagram = LBTRM(nak_port=14399, session_id=FORGED_SESSION) / body
            forger.sendto(bytes(datagram), ("224.10.10.12", 14400))

        for number in (0, 3, 4):
            send(number)
        asked: set[int] = set()
        while asked != {1, 2}:
            assert select.select([forger], [], [], SECONDS)[0], "no NAK received"
            heard = LBTRM(forger.recv(2000))
            if LBTRMNak in heard:
                asked.update(heard[LBTRMNak].sqns)
        for number in (1, 2):
            send(number)
        take(receiver, 5)


def main() -> None:
    """Send everything, and write the facts."""
    directory = Path(sys.argv[1])
    facts: dict[str, Any] = {}
    set_up_loopback()
    with capturing(directory / "wire.pcapng"):
        publish(facts)
        publish_timed(facts)
        refuse(facts)
        ask(facts)
    (directory / "facts.json").write_text(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
