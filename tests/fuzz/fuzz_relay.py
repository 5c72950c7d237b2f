"""Two resolution daemons, the hosts around them and forged senders: no datagram makes the daemons send without an end,
only an address that received its cookie becomes a client, and no address has more clients than allowed.
"""

from __future__ import annotations

from umstack.resolution.codec import (
    COOKIE_BYTES,
    KEEPALIVE,
    KeepaliveKind,
    ResolutionDatagram,
    encode,
    encode_keepalive,
)
from umstack.resolution.relay import Address, Fate, Relay, RelayPolicy

INSTRUMENTED = ("umstack.resolution.relay", "umstack.resolution.codec")
_DAEMONS: tuple[Address, ...] = (("10.0.0.1", 15380), ("10.0.0.2", 15380))
_HOSTS: tuple[Address, ...] = tuple((f"10.1.0.{host}", port) for host in (1, 2) for port in range(1, 5))
_CLIENTS_MAX, _ADDRESS_CLIENTS_MAX = 5, 3
_POLICY = RelayPolicy(clients_max=_CLIENTS_MAX, address_clients_max=_ADDRESS_CLIENTS_MAX)
_QUERY = encode(ResolutionDatagram(queries=("orders",)))
_SENT_MAX = _CLIENTS_MAX
"""Datagrams that one datagram may cause: it is relayed to each client, and nothing follows from that."""
_MS = 1_000_000


class _World:
    """The daemons, and who has received which cookie."""

    def __init__(self) -> None:
        self.relays = dict(zip(_DAEMONS, (Relay(_POLICY), Relay(_POLICY)), strict=True))
        self.cookies: set[tuple[Address, Address, bytes]] = set()
        self.now_ns = 0

    def send(self, data: bytes, source: Address, to: Address) -> None:
        """Deliver a datagram and everything that follows from it."""
        waiting, sent = [(data, source, to)], 0
        while waiting:
            data, source, to = waiting.pop()
            follows = self._received(data, source, to)
            sent += len(follows)
            assert sent <= _SENT_MAX, "the daemons send without an end"
            waiting += follows

    def _received(self, data: bytes, source: Address, to: Address) -> list[tuple[bytes, Address, Address]]:
        relay = self.relays.get(to)
        if relay is None:
            self.cookies.add((source, to, data))
            return []
        before = relay.clients
        fate = relay.received(data, source, self.now_ns)
        for client in set(relay.clients) - set(before):
            proof = encode_keepalive(KeepaliveKind.CHALLENGE, relay.cookie(client))
            assert client == source
            assert (to, client, proof) in self.cookies, "it did not receive its cookie"
        assert len(relay.clients) <= _CLIENTS_MAX
        assert max(relay._clients_of.values(), default=0) <= _ADDRESS_CLIENTS_MAX
        match fate:
            case Fate.ANSWERED:
                return [(encode_keepalive(KeepaliveKind.ANSWER, relay.cookie(source)), to, source)]
            case Fate.CHALLENGED:
                return [(encode_keepalive(KeepaliveKind.CHALLENGE, relay.cookie(source)), to, source)]
            case Fate.RELAYED if relay.is_relayable(data, source, self.now_ns):
                return [(data, to, client) for client in relay.clients if client != source]
        return []

    def step(self, operation: int, data: bytes) -> None:
        """Let a host send, or an attacker under the address of a host or daemon."""
        to = _DAEMONS[operation & 1]
        senders = (*_HOSTS, *_DAEMONS)
        source = senders[(data[0] if data else 0) % len(senders)]
        match operation >> 1 & 7:
            case 0:
                self.send(KEEPALIVE, source, to)
            case 1:
                kind = KeepaliveKind(1 + operation % 3)
                self.send(encode_keepalive(kind, data[:COOKIE_BYTES].ljust(COOKIE_BYTES, b"\0")), source, to)
            case 2 | 3 if source in _HOSTS:  # as a context does that received a challenge
                proof = encode_keepalive(KeepaliveKind.CHALLENGE, self.relays[to].cookie(source))
                if (to, source, proof) in self.cookies:
                    response = encode_keepalive(KeepaliveKind.RESPONSE, self.relays[to].cookie(source))
                    self.send(response, source, to)
            case 4:
                self.send(_QUERY, source, to)
            case 5:
                self.now_ns += len(data) * 100 * _MS
            case _:
                self.send(data, source, to)


def one_input(data: bytes) -> None:
    """Run operations, each a byte that selects it, a length, and this many bytes."""
    world = _World()
    while data:
        operation, length = data[0], data[1] if len(data) > 1 else 0
        world.step(operation, data[2 : 2 + length])
        data = data[2 + length :]
