"""A persistent topic over a lossy switch, whose publisher and subscriber are killed and restarted at random."""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.forked_processes import ForkedProcesses
from tests.journal import lines_of
from tests.netns.contexts import members, store_on
from tests.netns.long_ends import check
from tests.netns.persistent_ends import SUBSCRIBER, TOPIC, account_of, next_sqn_of, stable_sqns
from tests.waiting import wait_for
from umstack.lab import Host, Lab
from umstack.persistence.pacing import Pacing
from umstack.store.server import StoreServer

MakeLab = Callable[..., Lab]
STORE_COUNT = 3
LOSS = 0.02
END_SECONDS = 60.0
KILL_SECONDS, AWAY_SECONDS = 1.0, 0.5
"""Mean times between two kills, and until a killed process is restarted."""


class End:
    """The publisher or the subscriber, which is killed and restarted."""

    def __init__(
        self, processes: ForkedProcesses, role: str, journal: Path, arguments: Callable[[], list[str]]
    ) -> None:
        self.journal = journal
        self._processes, self._role, self._arguments = processes, role, arguments
        self._former_lines = 0
        self.kills = 0
        self.start()

    def start(self) -> None:
        """Start it."""
        self._former_lines = len(lines_of(self.journal))
        self.process, _ = self._processes.start(" ".join([self._role, str(self.journal), *self._arguments()]))

    def life(self) -> list[list[str]]:
        """Return what it has noted since its last start."""
        return lines_of(self.journal)[self._former_lines :]

    def kill(self) -> None:
        """Kill it; it was still running."""
        assert self.process.is_running()
        self.process.end()
        self.kills += 1


def _ends_on(host: Host, module: str = "tests.netns.persistent_ends") -> ForkedProcesses:
    return ForkedProcesses(module, host.interface, run=host.run)


def _kill_at_random(ends: list[End], draws: random.Random, seconds: float) -> None:
    """Kill and restart the publisher, the subscriber or both."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(draws.expovariate(1 / KILL_SECONDS))  # the moment of the kill is what the test varies
        victims = draws.choice((ends[:1], ends[1:], ends, ends[::-1]))
        for victim in victims:
            victim.kill()
        for victim in victims:
            time.sleep(draws.expovariate(1 / AWAY_SECONDS))
            victim.start()


def _seeded() -> random.Random:
    seed = int(os.environ.get("UM_SEED", str(random.SystemRandom().randrange(2**32))))
    print(f"UM_SEED={seed}")
    return random.Random(seed)


def _lossy_lab(make_lab: MakeLab, draws: random.Random) -> Lab:
    lab = make_lab(hosts=2 + STORE_COUNT, seed=draws.randrange(2**32))
    for host in lab.hosts:
        lab.port(host.number).set(loss=LOSS, unicast=True, tcp=True)
    return lab


@contextmanager
def _stores(lab: Lab, folder: Path) -> Iterator[list[StoreServer]]:
    with members(*lab.hosts[2:]) as hosts, ExitStack() as stack:
        yield [stack.enter_context(store_on(one, folder / str(at))) for at, one in enumerate(hosts)]


def _acknowledged(store: StoreServer) -> int:
    """Return the newest message of which a Store has the subscriber's acknowledgement; -1: none."""
    state = store.side.repository.state
    found = [-1]
    for source in state.sources(TOPIC):
        for receiver in state.receivers(source.number):
            if receiver.session_id != SUBSCRIBER:
                continue  # another Store, which copies what it misses
            key = source.number, receiver.registration_id
            written = -1 if receiver.acknowledged_sqn is None else receiver.acknowledged_sqn
            found.append(max(written, store.side._receivers._consumed.get(key, -1)))
    return max(found)


def _follows(subscribed: list[list[str]], published: list[list[str]]) -> bool:
    """Return true if a life of the subscriber has got a message of a life of the publisher."""
    return bool(published and subscribed) and next_sqn_of(subscribed) > int(published[0][1])


@pytest.mark.parametrize("pacing", [Pacing.NONE, Pacing.BLOCKING])
def test_every_message_arrives_once_and_in_order_when_both_ends_are_killed(
    make_lab: MakeLab, tmp_path: Path, pacing: Pacing
) -> None:
    """kill -9 of the publisher, the subscriber or both, with three Stores, at a switch that loses every 50th packet.

    UM_SECONDS=60 does so for a minute, UM_SEED repeats a schedule. The subscriber writes messages before it
    acknowledges them. After a kill in between it gets those again that a majority of the Stores does not know to be
    acknowledged, and no others. A message that was not stable when its publisher was killed may be reported as lost.
    With receiver pacing the Stores have space for the messages of a second, and the subscriber sets the pace.
    UP-17, UP-24, UP-33, UP-35, UP-42, UP-47, UP-88, UP-90, W16.
    """
    seconds = float(os.environ.get("UM_SECONDS", "10"))
    draws = _seeded()
    mode = str(pacing.value)
    lab = _lossy_lab(make_lab, draws)
    with (
        _stores(lab, tmp_path) as stores,
        _ends_on(lab.hosts[0]) as publishers,
        _ends_on(lab.hosts[1]) as subscribers,
    ):
        endpoints = [f"{store.endpoint.ip}:{store.endpoint.port}" for store in stores]

        def first_allowed() -> list[str]:
            """A majority of the Stores has its acknowledgement of everything before this message."""
            acknowledged = statistics.median_low([_acknowledged(store) for store in stores])
            assert acknowledged < next_sqn_of(lines_of(tmp_path / "subscribed"))
            return [mode, str(acknowledged + 1)]

        publisher = End(publishers, "publish", tmp_path / "published", lambda: [mode, *endpoints])
        subscriber = End(subscribers, "subscribe", tmp_path / "subscribed", first_allowed)
        ends = [publisher, subscriber]
        wait_for(lambda: next_sqn_of(lines_of(subscriber.journal)), "the first message")
        _kill_at_random(ends, draws, seconds)
        wait_for(
            lambda: _follows(subscriber.life(), publisher.life()), "a message of the last life", END_SECONDS
        )
        publisher.process.end(signal.SIGTERM, END_SECONDS)
        end = stable_sqns(lines_of(publisher.journal))[1]
        wait_for(lambda: next_sqn_of(lines_of(subscriber.journal)) == end, f"all {end} messages", END_SECONDS)
        subscriber.process.end(signal.SIGTERM, END_SECONDS)
    account = account_of(
        lines_of(publisher.journal), lines_of(subscriber.journal), begins_live=pacing is not Pacing.NONE
    )
    print(
        f"{publisher.kills} and {subscriber.kills} kills, {len(account.delivered)} messages in {account.lives} lives, "
        f"{account.repeated} repeated, {len(account.lost)} lost"
    )
    assert len(account.delivered) > 100


def test_every_stable_long_message_arrives_when_both_ends_are_killed(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    """Messages of up to four fragments, the same kills. A publisher that was killed inside one sends it again.

    UP-9, UP-24, UP-47, W16.
    """
    seconds = float(os.environ.get("UM_SECONDS", "8"))
    draws = _seeded()
    lab = _lossy_lab(make_lab, draws)
    with (
        _stores(lab, tmp_path) as stores,
        _ends_on(lab.hosts[0], "tests.netns.long_ends") as publishers,
        _ends_on(lab.hosts[1], "tests.netns.long_ends") as subscribers,
    ):
        endpoints = [f"{store.endpoint.ip}:{store.endpoint.port}" for store in stores]
        publisher = End(publishers, "publish", tmp_path / "published", lambda: endpoints)
        subscriber = End(subscribers, "subscribe", tmp_path / "subscribed", list)

        def sent() -> list[list[str]]:
            return [words[1:] for words in publisher.life() if words[0] == "sent"]

        wait_for(lambda: lines_of(subscriber.journal)[1:], "the first message")
        _kill_at_random([publisher, subscriber], draws, seconds)
        wait_for(lambda: sent() and subscriber.life(), "the last lives", END_SECONDS)
        publisher.process.end(signal.SIGTERM, END_SECONDS)
        # The message may have come before, under the numbers of a former life.
        last = ["got", *sent()[-1]]
        wait_for(lambda: last in lines_of(subscriber.journal), f"the message {last}", END_SECONDS)
        subscriber.process.end(signal.SIGTERM, END_SECONDS)
    print(check(lines_of(publisher.journal), lines_of(subscriber.journal)))
    assert len(lines_of(subscriber.journal)) > 50
