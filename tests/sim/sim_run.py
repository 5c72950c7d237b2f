"""Simulated runs with known events: one run loses datagrams of every kind at one receiver each, one has a
storm.

The simulator's trace shows the fate of every datagram (umstack.sim.truth); the script records the deliberate
losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from umstack.sim import (
    FLOW_MIN,
    MS,
    SECOND,
    START_NS,
    US,
    Host,
    SessionTruth,
    Setup,
    Truth,
    Type,
    World,
    trace_seed,
    truth_of,
    write_capture,
)

SESSION_ID = 0x5EED0100
RECEIVERS = 3
PACE_NS = MS
MESSAGE_BYTES = 200
WINDOW_BYTES = 1 << 20
QUIET_NS = 600 * MS
"""A time longer than any recovery in these runs."""
INITIAL_BACKOFF_NS = 20 * MS
"""More than twice the time that the losses need: also the random waits of a few NAKs show that it is too long."""
ROUND_TRIP_NS = 300 * US
LONGEST_ROUND_TRIP_NS = 4 * MS
"""The number of datagrams lost in the tail."""
PEAK_DATAGRAMS_PER_SECOND = 1000
STORMY_RECEIVERS = 4
STORMY_DELAY_NS = 100 * US
"""The delay to the first receiver; the delay to the second is twice as long, and so on."""


PLANNED, STORMY, RANDOM = "planned", "stormy", "random"


@dataclass(frozen=True, slots=True)
class Injected:
    """The deliberate losses of one receiver: the sqns of one incident."""

    cause: str
    receiver: str
    sqns: tuple[int, ...]


@dataclass(slots=True)
class SimRun:
    """The capture, its truth, and the deliberate losses."""

    kind: str
    capture: Path
    truth: Truth
    injected: list[Injected] = field(default_factory=list)

    @property
    def session(self) -> SessionTruth:
        """The truth of the run's only session."""
        [found] = self.truth.sessions
        return found


class _Script:
    """Publishes, and drops datagrams to receivers."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.publisher = world.host()
        self.hosts = [world.host() for _ in range(RECEIVERS)]
        self.session = self.publisher.session(
            session_id=SESSION_ID + seed,
            initial_sqn=2**32 - 1500,
            ignore_interval_ns=10 * MS,
            flow_policy=FLOW_MIN,
        )
        self.source = self.session.source()
        for number, host in enumerate(self.hosts):
            host.receiver().join(
                self.source,
                nak_initial_backoff_ns=INITIAL_BACKOFF_NS,
                nak_backoff_ns=30 * MS,
                window_bytes=WINDOW_BYTES,
                random_seed=seed * 100 + number,
            )
        self.next_sqn = self.session.options.initial_sqn
        self.injected: list[Injected] = []

    def send(self, count: int) -> None:
        """Publish datagrams of one message, a millisecond apart."""
        for _ in range(count):
            self.source.send(bytes(MESSAGE_BYTES), flush=True)
            self.world.run_for(PACE_NS)
        self.next_sqn += count

    def keep(self, cause: str, host: Host, *sqns: int) -> None:
        """Drop the first transmission of these sqns to a host, relative to the next sqn (0)."""
        chosen = tuple(self.next_sqn + number for number in sqns)
        for sqn in chosen:
            self.world.rule("drop", Type.DATA, receiver=host, retransmission=False, sqns=sqn)
        self.injected.append(Injected(cause, f"10.0.0.{1 + host.index}", chosen))

    def quiet(self) -> None:
        """Wait until all recoveries are done."""
        self.world.run_for(QUIET_NS)
        self.world.clear_rules()


def scripted(folder: Path, seed: int) -> SimRun:
    """Run the script for two seconds of virtual time."""
    with World(seed) as world:
        script = _Script(world, seed)
        one, two, three = script.hosts
        script.publisher.set_faults(delay_ns=ROUND_TRIP_NS)
        world.run_for(300 * MS)
        script.keep("head", three, 0, 1)
        script.send(300)
        script.keep("sporadic", one, *range(0, 200, 20))
        script.send(300)
        script.keep("burst", two, *range(5, 17))
        script.keep("sporadic", one, 5, 8)
        script.send(300)
        sqns = tuple(script.next_sqn + number for number in range(130))
        script.injected.append(Injected("connectivity", f"10.0.0.{1 + three.index}", sqns))
        three.set_faults(partitioned=True)
        script.send(len(sqns))
        three.set_faults()
        script.send(300)
        script.keep("tail", two, 97, 98, 99)
        script.send(100)
        script.publisher.set_faults(delay_ns=LONGEST_ROUND_TRIP_NS)
        script.quiet()
        script.publisher.set_faults(delay_ns=ROUND_TRIP_NS)
        script.send(500)
        world.run_for(2 * SECOND)
        return _captured(PLANNED, world, folder / f"planned{seed}.pcapng", script.injected)


def _captured(
    kind: str, world: World, capture: Path, injected: Sequence[Injected] = (), start_ns: int = START_NS
) -> SimRun:
    write_capture(world, capture, start_ns=start_ns)
    return SimRun(kind, capture, truth_of(world, start_ns=start_ns), list(injected))


def storm(folder: Path, seed: int, start_ns: int = START_NS) -> SimRun:
    """Run a storm: one receiver loses nearly every other datagram and retransmission until it gives up.

    The other receivers lose a few datagrams. Datagrams to each receiver are delayed and duplicated.
    """
    with World(seed) as world:
        publisher = world.host()
        session = publisher.session(session_id=SESSION_ID + seed, ignore_interval_ns=2 * MS)
        source = session.source()
        for number in range(STORMY_RECEIVERS):
            host = world.host()
            join = {"nak_initial_backoff_ns": 5 * MS, "nak_backoff_ns": 10 * MS, "nak_generation_ns": 60 * MS}
            host.receiver(loss_check_interval_ns=10 * MS).join(
                source, **join, random_seed=seed * 100 + number
            )
            loss = 450_000 if number == 2 else 5_000
            host.set_faults(loss_ppm=loss, duplicate_ppm=3_000, delay_ns=(number + 1) * STORMY_DELAY_NS)
        for _ in range(1500):
            source.send(bytes(MESSAGE_BYTES), flush=True)
            world.run_for(200 * US)
        world.run_for(2 * SECOND)
        return _captured(STORMY, world, folder / f"stormy{seed}.pcapng", start_ns=start_ns)


def anything(folder: Path, seed: int) -> SimRun:
    """Run the random world of a seed, with any sessions, options and faults."""
    _, world = trace_seed(seed, Setup(recovers=False))
    with world:
        return _captured(RANDOM, world, folder / f"random{seed}.pcapng")
