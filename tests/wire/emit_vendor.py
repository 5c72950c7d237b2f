"""The traffic of a real Ultra Messaging 6.14 source, sent again on the loopback of a network namespace.

Usage like emit.py: `unshare --net python tests/wire/emit_vendor.py DIRECTORY CAPTURE`. The publisher's datagrams are
sent in their order, with their addresses rewritten to the loopback's; two receivers of this process count messages.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.waiting import SECONDS
from tests.wire.emit import set_up_loopback
from umstack import Context, Message

TOPIC = "29west.example.multi.0"
PATTERN = r"^29west\.example\.multi\.[01]$"
PUBLISHER = "10.29.4.121"
RESOLVER_GROUP = "239.101.3.1"
SPEED = 4
"""How many times faster than in the capture datagrams are sent."""


def datagrams(path: Path) -> Iterator[tuple[float, str, int, bytes]]:
    """Yield time, group, port and payload of what the publisher sent to groups, from a little-endian pcap file."""
    data, at = path.read_bytes(), 24
    while at < len(data):
        seconds, micros, captured, _ = struct.unpack_from("<IIII", data, at)
        frame = data[at + 16 : at + 16 + captured]
        at += 16 + captured
        is_multicast = frame[12:14] == b"\x08\0" and frame[30] >> 4 == 0xE
        if is_multicast and frame[26:30] == socket.inet_aton(PUBLISHER):
            (port,) = struct.unpack_from("!H", frame, 36)
            yield seconds + micros / 1e6, socket.inet_ntoa(frame[30:34]), port, frame[42:]


def main() -> None:
    """Send everything, receive, and write the counts."""
    directory, capture = Path(sys.argv[1]), Path(sys.argv[2])
    set_up_loopback()
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    local, publisher = socket.inet_aton("127.0.0.1"), socket.inet_aton(PUBLISHER)
    out.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, local)
    by_topic: Counter[str] = Counter()
    events: Counter[str] = Counter()
    with Context("lo", resolver_multicast_address=RESOLVER_GROUP) as context:
        one, wildcard = context.receiver(TOPIC), context.wildcard_receiver(PATTERN)
        counts = {"one": 0, "wildcard": 0}

        def take() -> None:
            for name, receiver in (("one", one), ("wildcard", wildcard)):
                for event in receiver.poll(4096, 0).events():
                    if isinstance(event, Message):
                        counts[name] += 1
                        by_topic[event.topic] += name == "wildcard"
                    else:
                        events[type(event).__name__] += 1

        start, first = time.monotonic(), None
        for at, group, port, payload in datagrams(capture):
            first = at if first is None else first
            while (early := (at - first) / SPEED - (time.monotonic() - start)) > 0:
                take()
                time.sleep(min(early, 0.002))
            out.sendto(payload.replace(publisher, local), (group, port))
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and counts != {"one": 7500, "wildcard": 10000}:
            take()
        take()
    (directory / "facts.json").write_text(
        json.dumps({**counts, "by_topic": by_topic, "events": events}, indent=1)
    )


if __name__ == "__main__":
    main()
