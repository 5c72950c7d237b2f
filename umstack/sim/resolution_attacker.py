"""The attacker of umstack.sim.resolution: forged, replayed, flooding and malformed datagrams of topic resolution."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from umstack._engine.transport_address import LbtrmAddress, LbtruAddress, TcpAddress, TransportAddress
from umstack.resolution.codec import (
    Advertisement,
    RequestScope,
    ResolutionDatagram,
    WireOption,
    encode,
    encode_request,
    encode_wildcard_query,
    pack_wildcard_queries,
)

TOPICS = ("orders", "orders.eu", "trades", "é", "x" * 200)
"""Topics of honest sources and receivers."""


@dataclass(frozen=True, slots=True)
class SourceMade:
    """An honest source."""

    topic: str
    index: int
    address: TransportAddress
    since_ns: int


class Attacker:
    """Makes datagrams by seed; it receives all datagrams."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._overheard: deque[bytes] = deque(maxlen=64)
        self._truths: list[SourceMade] = []
        self._means: tuple[Callable[[], bytes], ...] = (
            self._sources_that_do_not_exist,
            self._sources_that_do_not_exist,
            self._sources_that_do_not_exist,
            self._end_of_an_honest_source,
            self._queries,
            self._wildcard_queries,
            self._request,
            self._replay,
            self._changed,
            self._garbage,
        )
        self._chosen = self._random.sample(range(len(self._means)), self._random.randint(1, 5))
        self.rate_per_second = random.choice((25, 50, 150))
        self._sources = random.choice((1, 5, 250))
        self._serial = 0

    def overhear(self, datagram: bytes) -> None:
        """Record a datagram that was sent."""
        self._overheard.append(datagram)

    def add_source(self, source: SourceMade) -> None:
        """Record a new source."""
        self._truths.append(source)

    def datagram(self) -> bytes:
        """Return the next datagram."""
        return self._means[self._random.choice(self._chosen)]()

    def _topic(self) -> str:
        if self._truths and self._random.random() < 0.5:
            return self._random.choice(self._truths).topic
        return self._random.choice((*TOPICS, f"orders.{self._random.randrange(500)}"))

    def _options(self) -> tuple[WireOption, ...]:
        count = self._random.choice((0, 0, 1, 3))
        return tuple(
            WireOption(self._random.randrange(256), self._random.randbytes(self._random.randrange(30)))
            for _ in range(count)
        )

    def _address(self) -> TransportAddress:
        self._serial += 1
        random = self._random
        ip = f"10.9.{random.randrange(self._sources) // 250}.{1 + random.randrange(self._sources)}"
        port = 1 + self._serial % 65535
        match random.randrange(4):
            case 0:
                return LbtruAddress(ip, self._serial, port)
            case 1:
                return TcpAddress(ip, self._serial, port)
            case _:
                return LbtrmAddress(ip, f"239.1.{random.randrange(4)}.1", self._serial, 14400, port)

    def _sources_that_do_not_exist(self) -> bytes:
        records = tuple(
            Advertisement(
                self._topic(), self._random.randrange(2**32), self._random.choice((60, 255)), self._address(),
                self._options(),
            )
            for _ in range(self._random.choice((1, 5, 20)))
        )  # fmt: skip
        return encode(ResolutionDatagram(advertisements=records))

    def _end_of_an_honest_source(self) -> bytes:
        if not self._truths:
            return self._garbage()
        source = self._random.choice(self._truths)
        ttl = self._random.choice((0, 60))
        return encode(
            ResolutionDatagram(
                advertisements=(
                    Advertisement(source.topic, source.index, ttl, source.address, self._options()),
                )
            )
        )

    def _queries(self) -> bytes:
        return encode(
            ResolutionDatagram(queries=tuple(self._topic() for _ in range(self._random.choice((1, 50)))))
        )

    def _wildcard_queries(self) -> bytes:
        return pack_wildcard_queries([encode_wildcard_query("(a+)+$"), encode_wildcard_query(".*")], 1400)[0]

    def _request(self) -> bytes:
        return encode_request(RequestScope(self._random.randrange(8)))

    def _replay(self) -> bytes:
        return self._random.choice(self._overheard) if self._overheard else self._garbage()

    def _changed(self) -> bytes:
        data = bytearray(self._replay())
        for _ in range(self._random.randint(1, 4)):
            if data:
                data[self._random.randrange(len(data))] = self._random.randrange(256)
        return bytes(data[: self._random.randint(1, len(data))]) if data else b""

    def _garbage(self) -> bytes:
        return self._random.randbytes(self._random.randrange(100))
