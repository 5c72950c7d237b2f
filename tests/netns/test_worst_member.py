"""A third host attacks the source's NAK port at 1 Mbit/s: the honest stream keeps its rate."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.netns.endpoints import End, Ends, Report, assert_whole
from tests.netns.test_hostile_datagrams import Hostile
from umstack.lab import Lab

RATE = 1_000
ATTACK_BYTES_PER_SECOND = 125_000
REPAIR_BPS = 4_000_000
NAK_LIST = 364
"""Sequence numbers of a NAK datagram of 1,472 bytes."""
STALL_MS = 400
SECONDS = 1.5


@pytest.fixture(scope="module")
def attacked() -> Iterator[tuple[End, End, Hostile]]:
    """Return a stream of 8 Mbit/s with limits like the defaults, and a host that attacks it."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=3))
        ends = Ends(lab, stack)
        subscriber = ends.subscribe(1)
        publisher = ends.publish(
            receivers=1,
            rate=RATE,
            context={
                "transport_lbtrm_data_rate_limit": 10 * REPAIR_BPS,
                "transport_lbtrm_retransmit_rate_limit": REPAIR_BPS,
            },
            options={"flow_control_stall_timeout": STALL_MS},
        )
        transport = publisher.ask(send=10**9)["stats"]["source_transports"][0]["transport"]
        subscriber.await_received(RATE)
        with closing(Hostile(lab, 2, transport)) as hostile:
            yield publisher, subscriber, hostile


def rate_while(subscriber: End, act: Callable[[], int]) -> tuple[float, Report]:
    """Return messages per second received while `act` sends its bytes again and again at 1 Mbit/s."""
    first, start, sent_bytes = subscriber.ask(), time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < SECONDS:
        if sent_bytes <= elapsed * ATTACK_BYTES_PER_SECOND:
            sent_bytes += act()
        else:
            select.select([], [], [], 0.001)
    last = subscriber.ask()
    return (last["received"] - first["received"]) / (last["at"] - first["at"]), last


def test_naks_for_everything(attacked: tuple[End, End, Hostile]) -> None:
    """UM-129: the forged NAKs cause a tenth of the retransmit limit, the sender is named, and nothing is
    lost.
    """
    publisher, subscriber, hostile = attacked
    before = publisher.ask()
    newest = hostile.overheard().sqn

    def attack() -> int:
        nonlocal newest
        newest += 1
        datagram = hostile.identity.nak(*range(newest - NAK_LIST, newest))
        hostile.to_publisher([datagram])
        return len(datagram)

    rate, report = rate_while(subscriber, attack)
    after = publisher.ask()

    def grown(name: str) -> int:
        return after.counter("source_transports", name) - before.counter("source_transports", name)

    assert grown("naks_rcved") > 20_000
    assert grown("rx_bytes_sent") <= 65536 + REPAIR_BPS / 80 * (after["at"] - before["at"])
    assert rate >= 0.95 * RATE
    assert_whole(report, report["received"])
    noisiest = after.sent_transport["nak_accounts"][0]
    assert noisiest["receiver"].startswith("10.")
    assert noisiest["refused"] > 10_000
    assert noisiest["is_member"] == 0


def test_an_invented_receiver_of_a_host_outside_the_group(attacked: tuple[End, End, Hostile]) -> None:
    """AE-19: without the cookie of a session message it never counts, and the stream does not slow down."""
    publisher, subscriber, hostile = attacked
    before = publisher.ask()
    sqn = hostile.overheard().sqn

    def attack() -> int:
        datagrams = [hostile.identity.status(sqn, receiver_id=9, window_bytes=0)] * 3
        datagrams.append(
            hostile.identity.status(sqn, length=36, receiver_id=9, window_bytes=0, cookie=bytes(8))
        )
        hostile.to_publisher(datagrams)
        return sum(map(len, datagrams))

    rate, report = rate_while(subscriber, attack)
    after = publisher.ask()
    assert after.counter("source_transports", "status_unproven") > 100
    assert after.counter("source_transports", "receivers_known") == 1
    assert after.counter("source_transports", "receivers_stalled") == before.counter(
        "source_transports", "receivers_stalled"
    )
    assert rate >= 0.95 * RATE
    assert_whole(report, report["received"])


def test_an_invented_receiver(attacked: tuple[End, End, Hostile]) -> None:
    """AE-19, AE-20: after flow_control_stall_timeout a forged receiver no longer counts, under one address or
    many.
    """
    publisher, subscriber, hostile = attacked
    cookie = hostile.cookie()
    sqn = hostile.overheard().sqn
    number = 1

    def attack() -> int:
        nonlocal number
        number = number % 100 + 1
        datagram = hostile.identity.status(sqn, length=36, receiver_id=number, window_bytes=0, cookie=cookie)
        hostile.to_publisher([datagram])
        return len(datagram)

    while publisher.ask().counter("source_transports", "receivers_stalled") == 0:
        attack()
        select.select([], [], [], 0.01)
    rate, report = rate_while(subscriber, attack)
    assert rate >= 0.95 * RATE
    assert_whole(report, report["received"])
    assert publisher.ask().counter("source_transports", "receivers_known") == 1
