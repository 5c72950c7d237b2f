"""Measure the share of its rate that an honest stream keeps under each attack at 1 Mbit/s.

Prints a table, or JSON with --json.

    python -m tests.bench.measure_attacks [--rounds 5] [--seconds 2] [--rate 20000] [--json] [ATTACK]...

A publisher, a subscriber and an attacking host in a lab of three. A round measures the rate without and with the
attack, in turns; the figure is the median of their ratios. Invented receivers may hold the source for the stall
timeout, 2 s here, which is not counted. A message lost without an event ends it with an error. Needs root.
"""

from __future__ import annotations

import argparse
import json
import random
import select
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

from tests.netns.endpoints import TOPIC, End, Ends
from tests.netns.test_hostile_datagrams import NCF, Hostile
from umstack._engine.transport_address import LbtrmAddress
from umstack.lab import Lab
from umstack.resolution.codec import Advertisement, encode_advertisement, encode_query, pack
from umstack.scapy import LBTRMNcf

ATTACK_BYTES_PER_SECOND = 125_000
_LIMITS = {"transport_lbtrm_data_rate_limit": 10**9, "transport_lbtrm_retransmit_rate_limit": 10**8}
_BATCH_BYTES = 1000
_STALL_MS = 2000
_SETTLES_SECONDS = 4.0
"""Seconds until an invented receiver no longer counts: _STALL_MS plus time to catch up."""
_SERIAL = 2**32

_MARKS = (0x11223344, 0x55667788)


def _patched(made: Callable[..., bytes], count: int) -> Callable[..., bytes]:
    """Return a function that rewrites numbers in a datagram: building each with scapy is slower than the target."""
    pattern = made(*_MARKS[:count])
    places = [pattern.index(mark.to_bytes(4, "big")) for mark in _MARKS[:count]]

    def make(*numbers: int) -> bytes:
        datagram = bytearray(pattern)
        for place, number in zip(places, numbers, strict=True):
            datagram[place : place + 4] = (number % _SERIAL).to_bytes(4, "big")
        return bytes(datagram)

    return make


Attack = Callable[[Hostile], Iterator[bytes]]
"""Yields payloads of datagrams forever."""


def _ahead(hostile: Hostile) -> Iterator[bytes]:
    make = _patched(hostile.identity.session_message, 2)
    while True:
        newest = hostile.newest()
        yield from (make(newest + 60_000 + n, newest + 60_000 + n) for n in range(100))


def _a_little_ahead(hostile: Hostile) -> Iterator[bytes]:
    make = _patched(hostile.identity.session_message, 2)
    while True:
        newest = hostile.newest()
        yield from (make(newest + 200 + n, newest - 1000) for n in range(20))


def _old_trails(hostile: Hostile) -> Iterator[bytes]:
    make = _patched(hostile.identity.session_message, 2)
    while True:
        newest = hostile.newest()
        yield from (make(newest + 60_000 + n, newest) for n in range(100))


def _big_naks(hostile: Hostile) -> Iterator[bytes]:
    head = hostile.identity.nak(*range(364))[: -4 * 364]
    while True:
        newest = hostile.newest()
        yield head + b"".join((n % _SERIAL).to_bytes(4, "big") for n in range(newest - 364, newest))


def _small_naks(hostile: Hostile) -> Iterator[bytes]:
    make = _patched(hostile.identity.nak, 1)
    while True:
        newest = hostile.newest()
        yield from (make(newest - n) for n in range(100))


def _invented_receivers(hostile: Hostile) -> Iterator[bytes]:
    """Yield status messages of a host that receives the group."""
    cookie, sqn = hostile.cookie(), hostile.newest()
    datagrams = [
        hostile.identity.status(sqn, length=36, receiver_id=1 + n, window_bytes=0, cookie=cookie)
        for n in range(100)
    ]
    while True:
        yield from datagrams


def _blind_receivers(hostile: Hostile) -> Iterator[bytes]:
    """Yield status messages of a host that does not receive the group, so it has no cookie."""
    sqn = hostile.newest()
    datagrams = [hostile.identity.status(sqn, receiver_id=1 + n, window_bytes=0) for n in range(100)]
    while True:
        yield from datagrams


def _ncfs(hostile: Hostile) -> Iterator[bytes]:
    head = bytes(hostile.identity.header(NCF) / LBTRMNcf(sqns=list(range(30)), reason=0))[: -4 * 30]
    while True:
        newest = hostile.newest()
        for n in range(100):
            yield head + b"".join(((newest + n + k) % _SERIAL).to_bytes(4, "big") for k in range(30))


def _replays(hostile: Hostile) -> Iterator[bytes]:
    overheard: list[bytes] = []
    while True:
        overheard = [*overheard[-200:], hostile.overhear()]
        yield from random.sample(overheard, min(len(overheard), 20))


def _garbage(hostile: Hostile) -> Iterator[bytes]:
    source = random.Random(1)
    heads = [bytes(hostile.identity.header(kind)) for kind in range(16)]
    while True:
        yield source.choice(heads)[: source.randrange(9)] + source.randbytes(source.randrange(200))


def _advertisements(_hostile: Hostile) -> Iterator[bytes]:
    """Yield 100,000 sessions that do not exist, over and over."""
    datagrams = []
    for n in range(5000):
        records = [
            encode_advertisement(
                Advertisement(
                    TOPIC, n * 20 + k, 60,
                    LbtrmAddress(f"10.77.{n % 200}.{1 + k}", f"239.77.1.{1 + k % 4}", 1 + n * 20 + k, 14400, 20000 + k),
                )
            )
            for k in range(20)
        ]  # fmt: skip
        datagrams += pack([], records, 1400)
    while True:
        yield from datagrams


def _queries(_hostile: Hostile) -> Iterator[bytes]:
    datagrams = pack([encode_query(TOPIC)] * 50, [], 1400)
    while True:
        yield from datagrams


ATTACKS: dict[str, tuple[Attack, str]] = {
    "session messages ahead": (_ahead, "group"),
    "session messages a little ahead": (_a_little_ahead, "group"),
    "session messages with an old trail": (_old_trails, "group"),
    "NAKs of 364 numbers": (_big_naks, "publisher"),
    "NAKs of one number": (_small_naks, "publisher"),
    "invented receivers": (_invented_receivers, "publisher"),
    "invented receivers without a cookie": (_blind_receivers, "publisher"),
    "NCFs": (_ncfs, "group"),
    "replayed data": (_replays, "group"),
    "garbage to the group": (_garbage, "group"),
    "garbage to the NAK port": (_garbage, "publisher"),
    "advertisements": (_advertisements, "resolution"),
    "queries": (_queries, "resolution"),
}


def _rate(subscriber: End, seconds: float, act: Callable[[], int] | None) -> float:
    """Return messages per second received while `act` sends its bytes again and again at 1 Mbit/s."""
    first, start, sent_bytes = subscriber.ask(), time.monotonic(), 0
    while (elapsed := time.monotonic() - start) < seconds:
        if act is not None and sent_bytes <= elapsed * ATTACK_BYTES_PER_SECOND:
            sent_bytes += act()
        else:
            select.select([], [], [], 0.002)
    last = subscriber.ask()
    return float((last["received"] - first["received"]) / (last["at"] - first["at"]))


def _sender(hostile: Hostile, payloads: Iterator[bytes], to: str) -> Callable[[], int]:
    send = {
        "group": hostile.to_group,
        "publisher": hostile.to_publisher,
        "resolution": hostile.to_resolution,
    }[to]

    def act() -> int:
        batch: list[bytes] = []
        while sum(map(len, batch)) < _BATCH_BYTES:
            batch.append(next(payloads))
        send(batch)
        return sum(28 + len(payload) for payload in batch)

    return act


def measure(
    names: list[str], rounds: int, seconds: float, rate: float, size: int
) -> dict[str, dict[str, float]]:
    """Return the median rates and ratio of each attack."""
    results: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(hosts=3, segmentation="real"))
        ends = Ends(lab, stack)
        subscriber = ends.subscribe(1, context=_LIMITS)
        publisher = ends.publish(
            receivers=1,
            rate=rate,
            size=size,
            context=_LIMITS,
            options={"flow_control_stall_timeout": _STALL_MS},
        )
        transport = publisher.ask(send=10**9)["stats"]["source_transports"][0]["transport"]
        subscriber.await_received(1000)
        hostile = stack.enter_context(closing(Hostile(lab, 2, transport)))
        for name in names:
            attack, to = ATTACKS[name]
            settles = _SETTLES_SECONDS if attack is _invented_receivers else 0.0
            act = _sender(hostile, attack(hostile), to)
            pairs = []
            for _ in range(rounds):
                alone = _rate(subscriber, seconds, None)
                if settles:
                    _rate(subscriber, settles, act)
                pairs.append((alone, _rate(subscriber, seconds, act)))
                _rate(subscriber, 0.3, None)  # drain the datagrams that the attack left
            results[name] = {
                "alone": statistics.median(alone for alone, _ in pairs),
                "attacked": statistics.median(attacked for _, attacked in pairs),
                "ratio": statistics.median(attacked / alone for alone, attacked in pairs),
            }
            report = subscriber.ask()
            if report["missing"] or report["corrupt"] or report["out_of_order"]:
                raise SystemExit(f"{name}: messages are lost without a word, or wrong: {report.said}")
            results[name]["reported lost"] = float(report["lost_sqns"])
    return results


def main() -> None:
    """Measure the attacks named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help=", ".join(ATTACKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument(
        "--rate",
        type=float,
        default=20_000,
        help="messages per second; 0: as many as possible (default: %(default)s)",
    )
    parser.add_argument("--size", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    names = arguments.attacks or list(ATTACKS)
    if unknown := set(names) - set(ATTACKS):
        parser.error(f"no attack {', '.join(sorted(unknown))}; there are {', '.join(ATTACKS)}")
    results = measure(names, arguments.rounds, arguments.seconds, arguments.rate, arguments.size)
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"{'attack':36}{'alone':>10}{'attacked':>10}{'ratio':>7}{'reported lost':>15}")
    for name, one in results.items():
        print(
            f"{name:36}{one['alone']:10.0f}{one['attacked']:10.0f}{one['ratio']:7.2f}{one['reported lost']:15.0f}"
        )


if __name__ == "__main__":
    main()
