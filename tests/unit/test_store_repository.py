"""The repository of a Store on a real disk: append, commit, read, reopen, retention, client state."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from umstack._core import lib
from umstack.errors import OptionError
from umstack.persistence.pacing import Pacing
from umstack.store.repository import (
    ClientState,
    Repository,
    RepositoryError,
    RepositoryInUse,
    RepositorySettings,
    StagingFull,
)

SMALL = RepositorySettings(segment_bytes=1 << 18, staging_bytes=1 << 19, commit_bytes=1 << 18)


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[Repository]:
    """An empty repository with small segments."""
    with Repository(tmp_path, SMALL) as made:
        yield made


def message_of(source: int, sqn: int) -> bytes:
    """Content that differs with source and number."""
    return b"%d of %d;" % (sqn, source) * (sqn % 40)


def test_the_checksum_is_crc_32c() -> None:
    """The check value of the standard (RFC 3720), from one piece and from two."""
    assert lib.um_crc32c(0, b"123456789", 9) == 0xE3069283
    assert lib.um_crc32c(lib.um_crc32c(0, b"12345", 5), b"6789", 4) == 0xE3069283


def test_committed_messages_of_many_sources_are_read_back_in_order(tmp_path: Path) -> None:
    """Across segments, and after the repository was closed and opened. UP-82."""
    with Repository(tmp_path, SMALL) as repository:
        sources = [repository.register_source(f"topic {n}", n + 1).number for n in range(5)]
        for first in range(0, 3000, 100):
            for source in sources:
                batch = [message_of(source, sqn) for sqn in range(first, first + 100)]
                assert repository.append_many(source, first, batch) == 100
            # A commit ends early at the end of a segment, and where the staging ring wraps.
            found = [one for commit in iter(repository.commit, None) for one in commit.ranges]
            covered = [(one.source, sqn) for one in found for sqn in range(one.first_sqn, one.last_sqn + 1)]
            assert sorted(covered) == [
                (source, sqn) for source in sources for sqn in range(first, first + 100)
            ]
        check_all(repository, sources, 3000)
    with Repository(tmp_path, SMALL) as repository:
        assert repository.recovery.segment_count > 3
        assert repository.recovery.scanned_count == 0
        check_all(repository, sources, 3000)


def commit_all(repository: Repository) -> None:
    """Commit everything that is staged."""
    while repository.commit():
        pass


def check_all(repository: Repository, sources: list[int], count: int) -> None:
    """Every message of every source is read back, also from the middle."""
    for source in sources:
        assert repository.ranges(source) == [(0, count - 1)]
        for first in (0, 1234):
            found = repository.read(source, first, max_bytes=1 << 30)
            assert [one.sqn for one in found] == list(range(first, count))
            assert all(one.message == message_of(source, one.sqn) for one in found)


def test_nothing_is_read_before_its_commit(repository: Repository) -> None:
    """A staged message is neither held nor read."""
    source = repository.register_source("orders", 7).number
    repository.append(source, 0, b"x")
    assert not repository.holds(source, 0)
    assert repository.read(source, 0) == []
    repository.commit()
    assert repository.holds(source, 0)


def test_gaps_are_ranges_and_repairs_close_them(repository: Repository) -> None:
    """A gap blocks nothing; messages come back in order once the gap is filled, and lost ones as a marker."""
    source = repository.register_source("orders", 7).number
    for sqn in (0, 1, 5, 6, 9):
        repository.append(source, sqn, b"%d" % sqn)
    repository.commit()
    assert repository.ranges(source) == [(0, 1), (5, 6), (9, 9)]
    assert [one.sqn for one in repository.read(source, 1)] == [1, 5, 6, 9]
    for sqn in (3, 4, 2):
        repository.append(source, sqn, b"%d" % sqn)
    repository.mark_lost(source, 7, 8)
    repository.commit()
    assert repository.ranges(source) == [(0, 9)]
    found = repository.read(source, 0)
    assert [(one.sqn, one.message, one.lost_count) for one in found] == [
        *((sqn, b"%d" % sqn, 0) for sqn in range(7)),
        (7, b"", 2),
        (9, b"9", 0),
    ]


def test_a_message_stored_twice_is_read_once(repository: Repository) -> None:
    """A copy between the messages of a run does not end the run."""
    source = repository.register_source("orders", 7).number
    for sqn in (0, 1, 2, 4, 1, 3, 4, 5):
        repository.append(source, sqn, b"%d" % sqn)
    repository.commit()
    assert [one.sqn for one in repository.read(source, 0)] == [0, 1, 2, 3, 4, 5]


def test_numbers_above_32_bits(repository: Repository) -> None:
    """The log has 64-bit numbers: nothing happens where the wire's wrap."""
    source = repository.register_source("orders", 7).number
    first = (1 << 32) - 100
    assert repository.append_many(source, first, [b"x"] * 200) == 200
    repository.commit()
    assert repository.ranges(source) == [(first, first + 199)]
    assert len(repository.read(source, first)) == 200


def test_a_full_staging_ring_refuses_and_recovers(repository: Repository) -> None:
    """A message that does not fit is refused, nothing that was accepted is lost, and the ring wraps."""
    source = repository.register_source("orders", 7).number
    sqn = 0
    for _ in range(5):
        while repository.append_many(source, sqn, [b"%d" % sqn * 1000]):
            sqn += 1
        with pytest.raises(StagingFull):
            repository.append(source, sqn, b"%d" % sqn * 1000)
        commit_all(repository)
        assert repository.ranges(source) == [(0, sqn - 1)]
    with pytest.raises(OptionError, match="longer"):
        repository.append(source, sqn, bytes(lib.UM_STORE_MESSAGE_BYTES_MAX + 1))


def test_the_oldest_messages_of_a_source_are_dropped(tmp_path: Path) -> None:
    """A source keeps its newest bytes; segments that nobody needs are removed; another source keeps all. UP-77."""
    with Repository(tmp_path, SMALL) as repository:
        big = repository.register_source("big", 1, retention_bytes=400_000).number
        small = repository.register_source("small", 2).number
        repository.append(small, 0, b"old")
        for sqn in range(2000):
            repository.append(big, sqn, bytes(1000))
            if sqn % 50 == 0:
                commit_all(repository)
        commit_all(repository)
        before = len(list(tmp_path.glob("*.seg")))
        reclaimed = repository.reclaim()
        ((first, last),) = repository.ranges(big)
        assert last == 1999
        assert 380_000 <= (last - first + 1) * 1032 <= 400_000
        assert reclaimed.segment_count == before - len(list(tmp_path.glob("*.seg"))) > 3
        assert repository.read(small, 0)[0].message == b"old"
    with Repository(tmp_path, SMALL) as repository:
        assert repository.ranges(big) == [(first, last)]
        assert repository.read(big, 0)[0].sqn == first


def test_client_state_survives(tmp_path: Path) -> None:
    """Registrations are known again by session id, acknowledgements are cumulative, ids are unique."""
    with Repository(tmp_path, SMALL) as repository:
        source = repository.register_source("orders", 7)
        other = repository.register_source("orders", 8)
        receiver = repository.state.register_receiver(source.number, 7, now_ns=1)
        assert receiver.acknowledged_sqn is None
        assert len({source.registration_id, other.registration_id, receiver.registration_id}) == 3
        repository.state.acknowledge({(source.number, receiver.registration_id): 12}, 2)
        repository.state.acknowledge({(source.number, receiver.registration_id): 9}, 3)
        with pytest.raises(RepositoryError, match="another client"):
            repository.register_source("fills", 0, registration_id=source.registration_id)
    with Repository(tmp_path, SMALL) as repository:
        again = repository.register_source("orders", 7)
        assert (again.number, again.registration_id) == (source.number, source.registration_id)
        (found,) = repository.state.receivers(source.number)
        assert (found.acknowledged_sqn, found.active_ns) == (12, 3)
        assert repository.state.register_receiver(source.number, 7, now_ns=4).acknowledged_sqn == 12


def test_client_state_of_the_first_version_is_continued(tmp_path: Path) -> None:
    """Its sources are source-paced; a program of that version refuses the new state."""
    with Repository(tmp_path, SMALL) as repository:
        source = repository.register_source("orders", 7)
        repository.state.register_receiver(source.number, 3, now_ns=1)
    with contextlib.closing(sqlite3.connect(tmp_path / "clients.db")) as database:
        database.execute("ALTER TABLE sources DROP COLUMN is_receiver_paced")
        for column in ("pacing", "first_sqn", "is_confirming"):
            database.execute(f"ALTER TABLE receivers DROP COLUMN {column}")
        database.execute("PRAGMA user_version = 1")
    for _ in range(2):  # reading changes nothing
        reader = ClientState(tmp_path / "clients.db", is_read_only=True)
        assert [one.session_id for one in reader.receivers(reader.sources()[0].number)] == [3]
        reader.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "clients.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
    with Repository(tmp_path, SMALL) as repository:
        again = repository.register_source("orders", 7, is_receiver_paced=True)
        assert (again.registration_id, again.is_receiver_paced) == (source.registration_id, False)
        assert repository.state.receivers(source.number)[0].pacing is Pacing.NONE
    with contextlib.closing(sqlite3.connect(tmp_path / "clients.db")) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (2,)


def test_the_number_of_a_forgotten_source_is_reused_only_when_its_messages_are_gone(tmp_path: Path) -> None:
    """Otherwise a new source would serve the messages of an old one."""
    with Repository(tmp_path, SMALL) as repository:
        old = repository.register_source("old", 1).number
        repository.append(old, 0, b"secret")
        repository.commit()
        repository.forget_source(old)
        assert repository.read(old, 0) == []
        assert repository.register_source("new", 2).number != old
    with Repository(tmp_path, SMALL) as repository:
        assert repository.read(old, 0) == []
        kept = repository.register_source("kept", 3).number
        for sqn in range(600):
            repository.append(kept, sqn, bytes(1000))
            if sqn % 100 == 0:
                commit_all(repository)
        commit_all(repository)
        repository.reclaim()
        assert repository.register_source("newest", 4).number == old


WRITER = """
import sys
from umstack.store.repository import Repository, RepositorySettings
repository = Repository(sys.argv[1], RepositorySettings(segment_bytes=1 << 20, staging_bytes=1 << 20))
source = repository.register_source("orders", 7).number
held = repository.ranges(source)
sqn = held[-1][1] + 1 if held else 0
while True:
    repository.append_many(source, sqn, [b"%d;" % n * (n % 300) for n in range(sqn, sqn + 50)])
    sqn += 50
    while commit := repository.commit():
        print(commit.ranges[-1].last_sqn, flush=True)
"""


def test_a_killed_process_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """kill -9 while it commits; the next process continues the numbering."""
    draw = random.Random(1)
    acknowledged = -1
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            acknowledged = int(writer.stdout.readline())
            time.sleep(draw.uniform(0, 0.05))
            os.kill(writer.pid, signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split(b"\n")[:-1])])
        with Repository(tmp_path, SMALL) as repository:
            # A kill may interrupt a write; nothing of that commit was acknowledged.
            assert all(area.is_torn for area in repository.recovery.damaged)
            ((first, last),) = repository.ranges(0)
            assert first == 0
            assert last >= acknowledged
            found = repository.read(0, 0, max_bytes=1 << 30)
            assert all(one.message == b"%d;" % one.sqn * (one.sqn % 300) for one in found)
    assert acknowledged > 100


def test_a_directory_belongs_to_one_process(tmp_path: Path) -> None:
    """A second repository in the directory is refused until the first is closed; so is one without client state.

    UP-76.
    """
    with Repository(tmp_path, SMALL) as repository:
        with pytest.raises(RepositoryInUse):
            Repository(tmp_path, SMALL)
        repository.append(repository.register_source("orders", 7).number, 0, b"x")
    with pytest.raises(RepositoryError, match="closed"):
        repository.append(0, 1, b"x")
    (tmp_path / "clients.db").unlink()
    with pytest.raises(RepositoryError, match=r"clients\.db"):
        Repository(tmp_path, SMALL)


def test_reads_go_on_where_the_last_one_ended(repository: Repository) -> None:
    """In short pieces, of two sources in turns, with a repair and a copy between them: the same as in one read."""
    first, second = (repository.register_source("orders", session).number for session in (1, 2))
    for sqn in (*range(300), *range(400, 900), *range(300, 400), *range(350, 360), *range(900, 1500)):
        for source in (first, second):
            repository.append(source, sqn, message_of(source, sqn))
        if sqn % 70 == 0:
            repository.commit()
    while repository.commit() is not None:
        pass
    numbers = random.Random(7)
    pieces: dict[int, list[object]] = {first: [], second: []}
    places = dict.fromkeys(pieces, 0)
    while min(places.values()) < 1500:
        source = numbers.choice([at for at in places if places[at] < 1500])
        if numbers.random() < 0.1:
            repository.read(source, numbers.randrange(1500), max_bytes=300)  # a read elsewhere in between
        found = repository.read(source, places[source], max_bytes=numbers.choice((1, 300, 5000)))
        pieces[source] += found
        places[source] = found[-1].sqn + 1
    for source in (first, second):
        assert pieces[source] == repository.read(source, 0)
        assert [one.sqn for one in repository.read(source, 0)] == list(range(1500))
