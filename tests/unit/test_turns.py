"""Turns of the connections to a request port: every address gets the same time, whatever it asks for."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter

import pytest

from tests.unit.loopback import PORTS, open_context, recovery_server
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context
from umstack.recovery.codec import RangeRequest, encode_range_request
from umstack.recovery.turns import Turns

PIPELINING = 31
RETAINED = 20_000


@pytest.mark.parametrize("seed", range(20))
def test_addresses_share_time_whatever_a_turn_costs(seed: int) -> None:
    """Connections come and go; addresses that always wait differ by a few turns at most."""
    print("seed", seed)
    rng = random.Random(seed)
    turns: Turns[tuple[str, int]] = Turns()
    used: Counter[str] = Counter()
    cost = {f"host{n}": rng.randrange(1, 1000) for n in range(8)}
    for address in cost:
        for number in range(rng.randrange(1, 40)):
            turns.add(address, (address, number))
    for _ in range(20_000):
        address, one = turns.next()
        spent = rng.randrange(1, cost[address] + 1)
        used[address] += spent
        turns.charge(address, spent)
        turns.add(address, one)
    assert max(used.values()) - min(used.values()) <= 2 * max(cost.values())


def test_unused_time_is_not_saved_and_debts_stay() -> None:
    """An address that was away gets no more than its share afterwards; one that reconnects keeps its debt."""
    turns: Turns[int] = Turns()
    turns.add("busy", 1)
    for _ in range(100):
        address, one = turns.next()
        turns.charge(address, 10)
        turns.add(address, one)
    turns.add("new", 2)
    order = []
    for _ in range(10):
        address, one = turns.next()
        order.append(address)
        turns.charge(address, 10)
        turns.add(address, one)
    assert abs(order.count("new") - order.count("busy")) <= 2
    turns.remove("busy", 1)
    turns.remove("new", 2)
    assert not turns
    turns.add("greedy", 3)
    turns.next()
    turns.charge("greedy", 1_000_000)
    turns.add("greedy", 4)
    turns.add("modest", 5)
    for _ in range(1000):
        address, one = turns.next()
        assert address == "modest"
        turns.charge("modest", 10)
        turns.add("modest", one)


class _Pipelining:
    """Connections of one address that send range requests as fast as they are taken, and read the answers."""

    def __init__(self, port: int, requests: bytes) -> None:
        self._requests = requests
        self._stopping = False
        self.answered_bytes = 0
        self._sockets = [
            socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
            for _ in range(PIPELINING)
        ]
        for one in self._sockets:
            one.setblocking(False)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        unsent = [b""] * PIPELINING
        while not self._stopping:
            for n, one in enumerate(self._sockets):
                with contextlib.suppress(BlockingIOError):
                    pending = unsent[n] or self._requests
                    unsent[n] = pending[one.send(pending) :]
                with contextlib.suppress(BlockingIOError):
                    self.answered_bytes += len(one.recv(1 << 18))
            time.sleep(0.001)

    def close(self) -> None:
        """Stop."""
        self._stopping = True
        self._thread.join()
        for one in self._sockets:
            one.close()


def _seconds_to_join(publisher: Context) -> float:
    with open_context(**PORTS) as subscriber, subscriber.receiver("retained") as receiver:
        began = time.monotonic()
        collect(receiver, RETAINED, seconds=3 * SECONDS)
        return time.monotonic() - began


def test_a_late_joiner_is_not_starved_by_pipelined_range_requests() -> None:
    """They are cheap to send and expensive to answer. With turns by connection the joiner waited behind all of them."""
    with (
        open_context(recovery_connections_maximum=PIPELINING + 1, **PORTS) as publisher,
        publisher.source("retained", late_join=1, retransmit_retention_size_limit=1 << 24) as source,
    ):
        for number in range(RETAINED):
            source.send(b"%d" % number)
        source.flush()
        quiet = _seconds_to_join(publisher)
        requests = encode_range_request(RangeRequest(source.topic_index, 2)) * 1000
        with contextlib.closing(_Pipelining(recovery_server(publisher).endpoint.port, requests)) as attack:
            wait_for(lambda: attack.answered_bytes > 1 << 18, "the attack")
            attacked = _seconds_to_join(publisher)
        print(f"quiet {quiet:.2f} s, attacked {attacked:.2f} s")
        assert attacked < 4 * quiet + 2
