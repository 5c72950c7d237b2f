"""Stores that are killed while a source sends. UM_KILLS=1000 makes the runs longer, UM_SEED repeats one."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.forked_processes import ForkedProcesses
from tests.unit.loopback import DATAGRAM, OWN_ADDRESSES, open_context
from tests.waiting import wait_for
from umstack import BeginningOfSession, Message
from umstack.config.keywords import SourceKeywords
from umstack.persistence.events import MessageStable
from umstack.persistent_source import PersistentSource
from umstack.store.client import replay
from umstack.store.repository import Repository, RepositorySettings
from umstack.store.status import read_status as status

KILLS = int(os.environ.get("UM_KILLS", "5"))
PER_KILL = 50
FLIGHT = 200
PACED: SourceKeywords = {
    "ume_receiver_paced_persistence": 1,
    "ume_flight_size": FLIGHT,
    "ume_flight_size_bytes": 20_000,
    "ume_repository_disk_file_size_limit": 200_000,
}
FAST: SourceKeywords = {"ume_registration_interval": 300, "ume_message_stability_timeout": 200}


def content(first_sqn: int) -> bytes:
    """The message that begins with this number: some are longer than a datagram."""
    return b"%08d" % first_sqn * (1 + first_sqn % 20) * (30 if first_sqn % 7 == 0 else 1)


class Load:
    """A source that sends as fast as its Stores allow, on a thread."""

    def __init__(self, source: PersistentSource) -> None:
        self.source = source
        self.stable = 0
        self.firsts: list[int] = []
        """Number of each message's first fragment."""
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        first = 0
        while not self.is_over.is_set():
            last = self.source.send(content(first))
            self.firsts.append(first)
            first = last + 1

    @property
    def has_ended(self) -> bool:
        """True once nothing more is sent."""
        return not self._thread.is_alive()

    def count_stable(self) -> int:
        """Number of messages that became stable so far."""
        for event in self.source.take_events():
            if isinstance(event, MessageStable):
                self.stable += event.last_sqn - event.first_sqn + 1
        return self.stable

    def end(self) -> list[int]:
        """Stop sending and return the numbers that are not stable."""
        self.is_over.set()
        self._thread.join()
        return self.source.close(60)


@pytest.mark.parametrize(
    ("store_count", "wipes"), [(1, False), (3, True)], ids=["alone", "one of three wiped"]
)
def test_no_stable_message_is_lost_when_stores_are_killed(
    store_count: int, wipes: bool, tmp_path: Path
) -> None:
    """The source continues each time; at the end every message is read once, in order and equal.

    UP-65, UP-81, UP-83, W16.
    """
    seed = int(os.environ.get("UM_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"seed {seed}")
    draw = random.Random(seed)
    options = {**OWN_ADDRESSES, "transport_lbtrm_datagram_max_size": DATAGRAM}
    directories = [tmp_path / str(number) for number in range(store_count)]
    with (
        ForkedProcesses("tests.store_processes", json.dumps(options)) as processes,
        open_context() as context,
    ):
        started = [processes.start(f"{directory} 0") for directory in directories]
        stores = [process for process, _ in started]
        endpoints = [("127.0.0.1", int(port)) for _, port in started]
        source = context.source("orders", store=endpoints, session_id=7, **FAST)
        load = Load(source)
        for _ in range(KILLS):
            wait_for(lambda: len(source.active_stores) == store_count, "all Stores", 60)
            before = load.count_stable()
            wait_for(lambda start=before: load.count_stable() >= start + PER_KILL, "stable messages", 60)
            time.sleep(draw.random() / 50)  # the moment of the kill is what the test varies
            # The wiped one is always the same, so that another Store has what it acknowledged.
            victim = store_count - 1 if wipes else draw.randrange(store_count)
            stores[victim].end()
            if wipes:
                shutil.rmtree(directories[victim])
            stores[victim], _ = processes.start(f"{directories[victim]} {endpoints[victim][1]}")
        wait_for(lambda: len(source.active_stores) == store_count, "all Stores", 60)
        assert load.end() == []
        sent = load.count_stable()
        assert sent >= KILLS * PER_KILL
        found: dict[int, bytes] = {}
        for endpoint in endpoints[: store_count - wipes]:
            read = [(message.first_sqn, message.data) for message in replay("orders", endpoint, session_id=3)]
            assert [sqn for sqn, _ in read] == sorted({sqn for sqn, _ in read})
            found.update(read)
        first = min(found)  # a Store drops the oldest messages beyond its limit
        assert first == 0 or sum(map(len, found.values())) > RepositorySettings().source_bytes // 2
        assert found == {sqn: content(sqn) for sqn in load.firsts if sqn >= first}
        assert load.firsts[-1] < sent


def test_a_blocking_receiver_gets_every_message_when_stores_are_killed(tmp_path: Path) -> None:
    """Each once and in order, while a Store of three is killed at a time; at the end the Stores keep none of them.

    UP-88, UP-90.
    """
    seed = int(os.environ.get("UM_SEED", random.SystemRandom().randrange(1 << 31)))
    print(f"seed {seed}")
    draw = random.Random(seed)
    options = {**OWN_ADDRESSES, "transport_lbtrm_datagram_max_size": DATAGRAM}
    directories = [tmp_path / str(number) for number in range(3)]
    with (
        ForkedProcesses("tests.store_processes", json.dumps(options)) as processes,
        open_context() as context,
        open_context() as receiving,
    ):
        started = [processes.start(f"{directory} 0") for directory in directories]
        stores = [process for process, _ in started]
        endpoints = [("127.0.0.1", int(port)) for _, port in started]
        source = context.source("orders", store=endpoints, session_id=7, **FAST, **PACED)
        received: list[int] = []
        with receiving.receiver("orders", session_id=3, ume_receiver_paced_persistence=1) as receiver:
            wait_for(
                lambda: all(any(one["receivers"] for one in status(at)["sources"]) for at in directories),
                "a receiver",
                60,
            )
            load = Load(source)

            def read(end: int) -> bool:
                for event in receiver.poll(100, 0.01).events():
                    if not isinstance(event, BeginningOfSession):
                        assert isinstance(event, Message), event
                        wait_for(lambda: len(load.firsts) > len(received))  # it is noted after it was sent
                        assert event.data == content(load.firsts[len(received)])
                        received.append(event.sequence_number)
                return len(received) >= end

            for _ in range(KILLS):
                wanted = len(received) + PER_KILL
                wait_for(lambda end=wanted: read(end), "messages", 60)
                time.sleep(draw.random())  # the Stores fill up meanwhile
                victim = draw.randrange(3)
                stores[victim].end()
                stores[victim], _ = processes.start(f"{directories[victim]} {endpoints[victim][1]}")
                wait_for(lambda: read(0) and len(source.active_stores) == 3, "all Stores", 60)
            load.is_over.set()
            wait_for(lambda: read(0) and load.has_ended, "the end of the source", 60)
            sent = len(load.firsts)
            wait_for(lambda: read(sent), "all messages", 60)
            assert load.end() == []
        assert len(received) == sent
        for process in stores:
            process.end(signal.SIGTERM, 60)
        for directory in directories:
            with Repository(directory) as repository:
                # A Store that did not have the last messages when they were acknowledged keeps them.
                assert all(first >= load.firsts[-1] - FLIGHT for first, _ in repository.ranges(0))
