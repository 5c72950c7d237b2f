"""Numbered datagrams between hosts of a lab, and the account of those that arrived."""

from __future__ import annotations

import select
import socket
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from umstack.lab import Host

GROUP, PORT = "239.77.1.2", 14400
SO_RCVBUFFORCE = 33
UDP_SEGMENT = 103
MARKER = 0xFFFFFFFF
# Idle time after which a stream counts as ended if no marker can end it.
QUIET_SECONDS = 5.0


class Sender:
    """Sends datagrams whose first four bytes are a number, from a host to a group or an address."""

    def __init__(self, host: Host, destination: str = GROUP, port: int = PORT) -> None:
        """Open the socket on the host."""
        self.destination = (destination, port)
        self.socket = host.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))

    def send(self, numbers: Iterable[int], size: int = 64) -> None:
        """Send one datagram for each number."""
        for number in numbers:
            self.socket.sendto(struct.pack("!I", number).ljust(size, b"."), self.destination)

    def send_super_packet(self, numbers: Iterable[int], size: int) -> None:
        """Send datagrams as one UDP GSO packet."""
        self.send_run(b"".join(struct.pack("!I", number).ljust(size, b".") for number in numbers), size)

    def send_run(self, content: bytes, segment_bytes: int) -> None:
        """Send one UDP GSO packet with datagrams of this size; the last may be shorter."""
        segment = [(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", segment_bytes))]
        self.socket.sendmsg([content], segment, 0, self.destination)

    def __enter__(self) -> Self:
        """Return the sender."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.socket.close()


class Receiver:
    """Joins a group on a host (or listens on its address) and collects the numbers that arrive."""

    def __init__(self, host: Host, group: str | None = GROUP, port: int = PORT) -> None:
        """Open the socket on the host, with a buffer for all datagrams of a test."""
        self.numbers: list[int] = []
        self.group, self.address = group, host.address
        self.socket = host.call(lambda: self._open(port))

    def _open(self, port: int) -> socket.socket:
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        receiver.setblocking(False)
        receiver.bind((self.group or self.address, port))
        if self.group:
            self._membership(receiver, socket.IP_ADD_MEMBERSHIP)
        return receiver

    def _membership(self, receiver: socket.socket, change: int) -> None:
        assert self.group
        request = socket.inet_aton(self.group) + socket.inet_aton(self.address)
        receiver.setsockopt(socket.IPPROTO_IP, change, request)

    def leave(self) -> None:
        """Leave the group; the socket stays open."""
        self._membership(self.socket, socket.IP_DROP_MEMBERSHIP)

    def collect(self, count: int) -> list[int]:
        """Wait until this many have arrived or the stream is idle for too long, and return all that have."""
        while len(self.numbers) < count and select.select([self.socket], [], [], QUIET_SECONDS)[0]:
            self._drain()
        self._drain()
        return self.numbers

    def collect_until_marker(self) -> list[int]:
        """Wait for the marker; return everything that arrived before it."""
        while MARKER not in self.numbers:
            assert select.select([self.socket], [], [], QUIET_SECONDS)[0], "the marker did not arrive"
            self._drain()
        return [number for number in self.numbers if number != MARKER]

    def _drain(self) -> None:
        while True:
            try:
                self.numbers.append(struct.unpack_from("!I", self.socket.recv(65536))[0])
            except BlockingIOError:
                return

    def __enter__(self) -> Self:
        """Return the receiver."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close it."""
        self.socket.close()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The datagrams that arrived, of those numbered 0 to sent - 1."""

    lost: set[int]
    duplicates: int
    late: int
    """The number of datagrams that arrived after a later one."""

    @classmethod
    def of(cls, sent: int, arrived: list[int]) -> Self:
        """Compare the sent numbers with those that arrived."""
        highest, late = -1, 0
        for number in arrived:
            late += number < highest
            highest = max(highest, number)
        repeated = sum(times - 1 for times in Counter(arrived).values())
        return cls(set(range(sent)) - set(arrived), repeated, late)
