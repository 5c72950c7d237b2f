"""A crash loses nothing that a Store's repository acknowledged: a simulated disk keeps any subset of unsynced sectors,
and files are cut at every byte and damaged at every byte.
"""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field

import pytest

from tests.simulated_disk import PowerFailure, SimulatedDisk, pull_the_plug
from umstack.store.repository import (
    ClientState,
    DiskFull,
    Durability,
    Repository,
    RepositoryEnded,
    RepositorySettings,
)

SMALL = RepositorySettings(segment_bytes=1 << 18, staging_bytes=1 << 19, commit_bytes=1 << 18)
SEEDS = range(60)
CRASHES = 4
SOURCES = 3


class Lost(AssertionError):
    """An acknowledged message is missing or different."""


@dataclass(slots=True)
class World:
    """A repository under random work, and the messages that it promised to keep."""

    seed: int
    lies: bool = False
    draw: random.Random = field(init=False)
    disk: SimulatedDisk = field(init=False)
    state: ClientState = field(init=False)
    appended: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    next_sqns: dict[int, int] = field(default_factory=dict)
    lows: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.disk = SimulatedDisk(self.seed, lies=self.lies)
        self.state = ClientState(None)
        for number in range(SOURCES):
            source = self.state.register_source(
                f"topic {number}", number + 1, retention_bytes=1 << 40, now_ns=0
            )
            self.next_sqns[source.number] = self.draw.choice([0, (1 << 32) - 100])

    def open(self) -> Repository:
        """Open the repository on the disk."""
        return Repository("simulated", SMALL, files=self.disk, state=self.state)

    def work(self, repository: Repository) -> None:
        """Append and commit until the disk fails, at random also release and reclaim."""
        while True:
            for _ in range(self.draw.randrange(1, 8)):
                source = self.draw.randrange(SOURCES)
                self.next_sqns[source] += self.draw.choice([0, 0, 0, 0, 2])
                sqn = self.next_sqns[source]
                size = self.draw.choice([0, 7, 300, 5000, 60000])
                message = self.draw.randbytes(4) * (size // 4)
                repository.append(source, sqn, message)
                self.appended[source, sqn] = message
                self.next_sqns[source] = sqn + 1
            while commit := repository.commit():
                for one in commit.ranges:
                    self.acknowledged |= {(one.source, sqn) for sqn in range(one.first_sqn, one.last_sqn + 1)}
            if self.draw.random() < 0.1:
                source = self.draw.randrange(SOURCES)
                self.lows[source] = max(self.lows.get(source, 0), self.next_sqns[source] - 20)
                repository.release(self.lows)
                repository.reclaim()

    def check(self, repository: Repository) -> None:
        """Every acknowledged message is there; every message that is there is one that was appended."""
        for source in range(SOURCES):
            low = self.lows.get(source, 0)
            found = repository.read(source, 0, max_bytes=1 << 30)
            sqns = [one.sqn for one in found]
            assert sqns == sorted(set(sqns))
            held = {sqn for first, last in repository.ranges(source) for sqn in range(first, last + 1)}
            assert held == set(sqns)
            assert all(one.message == self.appended[source, one.sqn] for one in found)
            promised = {sqn for number, sqn in self.acknowledged if number == source and sqn >= low}
            if missing := promised - set(sqns):
                raise Lost(f"seed {self.seed}: source {source} lost {sorted(missing)[:5]} of {len(promised)}")

    def run(self) -> None:
        """Crash again and again, each time at a random operation."""
        for _ in range(CRASHES):
            self.disk.fail_after = self.draw.randrange(40)
            repository = None
            try:
                repository = self.open()
                self.work(repository)
            except PowerFailure:
                if repository is not None:
                    pull_the_plug(repository)
            self.disk.crash()
            repository = self.open()
            self.check(repository)
            assert not list(repository.recovery.corrupted), f"seed {self.seed}"
            pull_the_plug(repository)


def run_all(*, lies: bool) -> None:
    """Run every seed on disks that sync, or only pretend to."""
    for seed in SEEDS:
        World(seed, lies=lies).run()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_crash_at_any_operation_loses_nothing_acknowledged(seed: int) -> None:
    """Writes, syncs, truncation, new and removed files: any of them may be the last, also while recovering. UP-80."""
    World(seed).run()


def test_an_acknowledgement_before_the_sync_is_found() -> None:
    """The canary: with a disk whose sync does nothing, the same check fails."""
    with pytest.raises(Lost):
        run_all(lies=True)


def image(commits: int, *, durability: Durability = Durability.DISK) -> tuple[World, bytes, str]:
    """Return a world with small commits, and the open segment after them as a crash leaves it."""
    world = World(7)
    settings = RepositorySettings(durability, SMALL.segment_bytes, SMALL.staging_bytes, SMALL.commit_bytes)
    repository = Repository("simulated", settings, files=world.disk, state=world.state)
    for commit in range(commits):
        for source in (0, 1):
            for sqn in (2 * commit, 2 * commit + 1):
                world.appended[source, sqn] = b"%d %d" % (source, sqn) * (sqn + 1)
                repository.append(source, sqn, world.appended[source, sqn])
        repository.commit()
    pull_the_plug(repository)
    (name,) = world.disk.names()
    return world, bytes(world.disk.files[name].current), name


def reopened(world: World, name: str, content: bytes) -> tuple[Repository, list[tuple[int, int]]]:
    """Open the repository on this content and return it with the messages that it holds, checked."""
    world.disk.files = {name: SimulatedDisk(0).create(name, 0)}
    world.disk.files[name].current = bytearray(content)
    repository = world.open()
    held = [(source, one.sqn) for source in (0, 1) for one in repository.read(source, 0)]
    assert all(
        one.message == world.appended[source, one.sqn]
        for source in (0, 1)
        for one in repository.read(source, 0)
    )
    pull_the_plug(repository)
    return repository, held


def end_of_records(content: bytes) -> int:
    """The offset behind the last record: the last byte that is not zero, and padding."""
    return -(-len(content.rstrip(b"\0")) // 8) * 8


def test_a_segment_cut_at_any_byte_keeps_every_record_before_the_cut() -> None:
    """As a short file, and as a file whose rest is zero; a torn tail is never called damage."""
    world, content, name = image(3)
    end = end_of_records(content)
    before: list[tuple[int, int]] = []
    for cut in range(64, end + 1):
        _, held = reopened(world, name, content[:cut])
        repository, zeroed = reopened(world, name, content[:cut] + bytes(len(content) - cut))
        # The bytes behind the cut may be zero by themselves.
        assert set(before) <= set(held) <= set(zeroed)
        assert not list(repository.recovery.corrupted)
        before = held
    assert sorted(before) == sorted(world.appended)


def test_a_flipped_bit_costs_one_record_and_differs_from_a_torn_tail() -> None:
    """Damage before the last commit is reported with the missing numbers; everything around it is kept."""
    world, content, name = image(4)
    everything = set(world.appended)
    last_commit = {(source, sqn) for source in (0, 1) for sqn in (6, 7)}
    corrupted = torn = 0
    for at in range(64, end_of_records(content)):
        damaged = bytearray(content)
        damaged[at] ^= 1 << at % 8
        repository, held = reopened(world, name, bytes(damaged))
        missing = everything - set(held)
        if areas := list(repository.recovery.corrupted):
            corrupted += 1
            assert len(areas) == 1
            assert len(missing) == 1
            reported = {
                (one.source, sqn)
                for one in repository.recovery.missing
                for sqn in range(one.first_sqn, one.last_sqn + 1)
            }
            # The first number of a source has no number before it that would show a gap.
            assert reported == missing - {(0, 0), (1, 0)}
        elif missing:
            torn += 1
            assert missing <= last_commit
    assert corrupted > 2 * torn > 0


def test_without_a_sync_per_commit_every_valid_record_is_kept() -> None:
    """With durability `written` a later commit proves nothing about an earlier one: a hole is a hole. UP-75."""
    world, content, name = image(4, durability=Durability.WRITTEN)
    hole = bytearray(content)
    hole[200:400] = bytes(200)
    _, held = reopened(world, name, bytes(hole))
    assert {(0, 6), (1, 6), (0, 7), (1, 7)} <= set(held)
    assert len(held) < len(world.appended)


def test_damage_after_opening_is_skipped_by_reads() -> None:
    """A record that goes bad is missing, the others of its run are served, and it is counted."""
    world = World(7)
    repository = world.open()
    for sqn in range(10):
        repository.append(0, sqn, b"message %d" % sqn)
    repository.commit()
    (file,) = world.disk.files.values()
    at = file.current.index(b"message 4")
    file.current[at] ^= 1
    assert [one.sqn for one in repository.read(0, 0)] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert repository.damage_count == 1
    repository.append(0, 4, b"message 4")
    repository.commit()
    assert repository.read(0, 4, 4)[0].message == b"message 4"
    pull_the_plug(repository)


@pytest.mark.parametrize("operation", ["write", "sync", "sync_names"])
def test_the_first_error_ends_the_repository(operation: str) -> None:
    """Nothing is accepted after an error of a write or a sync, though the next one would succeed."""
    world = World(7)
    world.disk.failing = (operation,)
    repository = world.open()
    world.disk.fail_after, world.disk.fault = 0, errno.EIO
    repository.append(0, 0, b"x")
    with pytest.raises(RepositoryEnded):
        repository.commit()
    with pytest.raises(RepositoryEnded):
        repository.commit()
    with pytest.raises(RepositoryEnded):
        repository.append(0, 1, b"x")
    assert not repository.holds(0, 0)


def test_a_disk_that_is_full_at_the_header_of_a_segment_leaves_no_file() -> None:
    """The next commit creates the segment again under the same name."""
    world = World(7)
    world.disk.failing = ("write",)
    repository = world.open()
    world.disk.fail_after, world.disk.fault = 0, errno.ENOSPC
    repository.append(0, 0, b"x")
    with pytest.raises(DiskFull):
        repository.commit()
    assert world.disk.names() == []
    assert repository.commit() is not None
    assert repository.holds(0, 0)
    pull_the_plug(repository)


def test_a_full_disk_withholds_and_resumes() -> None:
    """Staged messages wait, unacknowledged, until there is space; new sources are refused."""
    world = World(7)
    repository = world.open()
    world.disk.free = 0
    repository.append(0, 0, b"x")
    with pytest.raises(DiskFull):
        repository.commit()
    assert not repository.holds(0, 0)
    with pytest.raises(DiskFull):
        repository.register_source("one more", 99)
    assert repository.register_source("topic 0", 1).number == 0
    world.disk.free = 1 << 40
    commit = repository.commit()
    assert commit is not None
    assert repository.read(0, 0)[0].message == b"x"
    pull_the_plug(repository)
