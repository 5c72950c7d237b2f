"""Counter files: the counters of a context, read from another process while it runs and after it was killed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.loopback import connect, open_context, write_counters
from tests.waiting import collect
from umstack.cli import command as umstack
from umstack.cli.stat import _state
from umstack.error_log import ErrorLog
from umstack.errors import PermissionNeeded, UmError
from umstack.telemetry import statistics_folders, statistics_reader
from umstack.telemetry.counter_file import CounterFile, header_bytes, lock, slot_of
from umstack.telemetry.statistics_reader import read_statistics, statistics_directory

EMPTY: dict[str, Any] = {
    "interface": "eth1",
    "datagram_bytes": 1472,
    "link": "socket",
    "context": {},
    "link_counters": {},
    "source_transports": [],
    "receiver_transports": [],
    "sources": [],
    "receivers": [],
}
"""The report of an idle context."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Separate the files of these tests from others."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    return tmp_path / "stat"


def test_a_context_reports_its_counters() -> None:
    """The counters read from outside equal those of stats(), and the report identifies the context."""
    with open_context(statistics=True) as context:
        source, receiver = connect(context, "reported")
        source.send(b"hello", flush=True)
        collect(receiver, 1)
        write_counters(context)
        (report,) = read_statistics()
        assert (report["pid"], report["interface"]) == (os.getpid(), "lo")
        assert report["sources"][0]["messages_sent"] == 1
        assert report["receivers"][0]["messages_delivered"] == 1
        assert report["receiver_transports"][0]["recovered"] == 0
        assert set(context.stats()) <= set(report)
        assert set(context.stats()["sources"][0]) == set(report["sources"][0])


def test_a_context_can_be_read_as_soon_as_it_is_created() -> None:
    """`umstack stat PID` finds it at once in either mode, not only after the first half second."""
    for mode in ("embedded", "sequential"):
        with open_context(mode, statistics=True):
            (report,) = read_statistics(os.getpid())
            assert report["is_running"]
            assert run(str(os.getpid())).exit_code == 0


def test_every_context_can_be_read_unless_disabled(folder: Path) -> None:
    """Default: a file, except in sequential mode. statistics=False disables it."""
    with open_context(statistics=False), open_context("sequential"):
        assert read_statistics() == []
    assert not folder.exists()
    with open_context() as one, open_context("sequential", statistics=True) as other:
        write_counters(one)
        other.process_events(0.0)
        assert len(read_statistics()) == 2


def test_an_unavailable_directory_fails_only_if_required(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics are optional: without a directory the context works, and the log names the missing directory."""
    folder.symlink_to(folder.parent)
    with caplog.at_level("WARNING", "umstack.context"), open_context() as context:
        assert context.stats()
        assert "umstack stat will not find this context" in caplog.text
        assert str(folder) in caplog.text
    with pytest.raises(PermissionNeeded):
        open_context(statistics=True)


def test_closing_removes_the_file(folder: Path) -> None:
    """A closed context is not listed, and leaves no file behind."""
    with open_context(statistics=True) as context:
        write_counters(context)
        assert len(read_statistics()) == 1
    assert read_statistics() == []
    assert list(folder.iterdir()) == []


def test_contexts_of_one_process_are_distinguished() -> None:
    """Each context has its own file, and the oldest is listed first."""
    with open_context(statistics=True) as first, open_context(statistics=True) as second:
        first.receiver("of the first")
        write_counters(second)
        write_counters(first)
        reports = read_statistics(os.getpid())
        assert [len(report["receivers"]) for report in reports] == [1, 0]


def test_only_the_owner_may_read(folder: Path) -> None:
    """Other users can access neither the file nor its directory."""
    with CounterFile(dict) as file:
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


_PUBLISHES_UNTIL_KILLED = """
import itertools, sys, time
from tests.unit.loopback import open_context
context = open_context()
source = context.source("orders")
for number in itertools.count(1):
    source.send(b"x", flush=True)
    print(number, flush=True)
    time.sleep(0.01)
"""


def test_a_killed_process_shows_its_last_counters() -> None:
    """They are at most a second old; top and the exporter leave it out, stat shows it as ended, with its errors."""
    command = [sys.executable, "-c", _PUBLISHES_UNTIL_KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        sent_at = [(time.time(), int(process.stdout.readline())) for _ in range(100)]
        process.kill()
        killed_at = time.time()
        sent_at += [(killed_at, int(line)) for line in process.stdout]
    assert read_statistics(process.pid) == []
    (report,) = read_statistics(process.pid, with_ended=True)
    assert not report["is_running"]
    assert killed_at - report["read_at"] < 1.0
    (source,) = report["sources"]
    a_second_ago = max(number for when, number in sent_at if when < killed_at - 1.0 or number == 1)
    assert a_second_ago <= source["messages_sent"] <= sent_at[-1][1] + 1
    assert source["pub_pos"] == source["snd_pos"] > 0
    assert source["pub_lmt"] > source["pub_pos"]
    assert "ended" in run().output
    assert "messages_sent" in run(str(process.pid)).output


def test_a_stopped_process_is_read_like_any_other() -> None:
    """Nothing is asked of it, and stat shows for how long it has written nothing."""
    with open_context() as context:
        write_counters(context)
        (report,) = read_statistics()
    assert _state({**report, "read_at": time.time() - 60}) == "silent for 60 s"
    assert _state({**report, "is_running": False, "read_at": time.time() - 60}) == "ended, 60 s ago"
    assert _state({**report, "read_at": time.time()}) == ""


def planted(folder: Path, text: bytes, name: str = f"{os.getpid()}-0.counters") -> Path:
    """Write the counter file of a process that has ended."""
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name
    slot, at = slot_of(1, text)
    with path.open("wb") as file:
        file.write(header_bytes())
        file.seek(at)
        file.write(slot)
    return path


def read_all() -> list[dict[str, Any]]:
    """Return the reports of running and ended processes."""
    return read_statistics(with_ended=True)


def test_a_forked_child_does_not_keep_its_parent_running() -> None:
    """A file belongs to the process that opened the context, also while a child of it lives on."""
    file = CounterFile(lambda: EMPTY)
    file.write()
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(to_parent, b"x")
        os.read(from_parent, 1)
        os._exit(0)
    os.read(from_child, 1)
    try:
        assert len(read_statistics()) == 1
        assert file._fd is not None
        os.close(file._fd)  # as the end of this process would
        file._fd = None
        assert read_statistics() == []
        assert len(read_all()) == 1
    finally:
        os.write(to_child, b"x")
        os.waitpid(child, 0)
    for one in (from_child, to_parent, from_parent, to_child):
        os.close(one)


def test_files_of_ended_processes_are_bounded_by_number_and_age(folder: Path) -> None:
    """A new context removes the oldest of its user's, never a running process's, and nothing with another name."""
    ended = [planted(folder, report_bytes(), f"999999-{n}.counters") for n in range(5)]
    for age, path in enumerate(ended):
        os.utime(path, (time.time() - 100 * age, time.time() - 100 * age))
    running = planted(folder, report_bytes())
    fd = os.open(running, os.O_RDWR)
    lock(fd)
    os.utime(running, (1, 1))
    other = planted(folder, report_bytes(), "999999-9.counters.bak")
    with CounterFile(dict, ended_maximum=3, ended_seconds=150):
        assert {*folder.glob("999999-*")} == {*ended[:2], other}
    with CounterFile(dict, ended_maximum=1):
        assert {*folder.glob("999999-*")} == {ended[0], other}
    assert running.exists()
    os.close(fd)


def test_a_file_that_someone_removes_or_truncates_is_written_again() -> None:
    """The process works on, and the next interval has a report."""
    with CounterFile(lambda: EMPTY) as file:
        os.truncate(file.path, 0)
        assert read_statistics() == []
        file.path.unlink()
        file.write()
        assert len(read_statistics()) == 1
        file._next = 0.0
        Path(f"/proc/self/fd/{file._fd}").write_bytes(b"")
        file.update()
    assert read_statistics() == []


@pytest.mark.parametrize("torn", ["length", "text", "sequence"])
def test_a_killed_writer_leaves_the_report_before(folder: Path, torn: str) -> None:
    """Of two slots, the one that was being written is not intact."""
    path = planted(folder, report_bytes(interface="before"))
    slot, at = slot_of(2, report_bytes(interface="after"))
    cut = {"length": 14, "text": 100, "sequence": 4}[torn]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(slot[:cut])
    assert [report["interface"] for report in read_all()] == ["before"]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(slot)
    assert [report["interface"] for report in read_all()] == ["after"]


def test_the_interval_grows_with_the_cost_of_a_report() -> None:
    """Reports take at most 1/50 of a processor."""

    def slow() -> dict[str, Any]:
        until = time.thread_time() + 0.05
        while time.thread_time() < until:
            pass
        return EMPTY

    with CounterFile(slow) as file:
        file.write()
        assert 2.0 < file._next - time.monotonic() < 20
        with CounterFile(slow) as other:
            other.write()
            assert 4.0 < other._next - time.monotonic() < 40, (
                "the contexts of a process share the processor time"
            )
    with CounterFile(dict) as file:
        file.write()
        assert 0.4 < file._next - time.monotonic() <= 0.5


def test_statistics_may_be_read_while_objects_come_and_go() -> None:
    """stats() on one thread while another opens and closes sources and receivers: freed memory is never read."""
    with open_context(statistics=True) as context:
        stop = threading.Event()
        failures: list[BaseException] = []

        def read() -> None:
            while not stop.is_set():
                try:
                    context.stats()
                except BaseException as error:
                    failures.append(error)
                    return

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(30):
            with context.source(f"source {number}"), context.receiver(f"receiver {number}"):
                pass
        stop.set()
        for reader in readers:
            reader.join()
        assert failures == []


def test_the_directory_is_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """UMSTACK_STAT_DIR is used first, then /run for root, and the runtime directory for other users."""
    assert str(statistics_directory()) == os.environ["UMSTACK_STAT_DIR"]
    monkeypatch.delenv("UMSTACK_STAT_DIR")
    monkeypatch.setattr(statistics_folders, "SHARED_FOLDER", Path("/run/none"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert statistics_directory() == Path("/run/umstack/stat")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert statistics_directory() == Path("/run/user/1000/umstack/stat")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert statistics_directory().name == "stat"


# ---- planted by other users ----


def report_bytes(**changes: Any) -> bytes:
    """Return a report of this process' context 0, with changes."""
    report = {**EMPTY, "pid": os.getpid(), "number": 0, "command": "c", "started_at": 1.0, "read_at": 2.0}
    return json.dumps({**report, **changes}).encode()


def test_a_symbolic_link_is_not_used_as_directory(tmp_path: Path, folder: Path) -> None:
    """Nothing is deleted or bound at the target of a link that another user created first."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    planted(victim, report_bytes(), "999999-0.counters")
    folder.symlink_to(victim)
    with pytest.raises(PermissionNeeded, match="symbolic link"):
        CounterFile(dict)
    with pytest.raises(PermissionNeeded, match="symbolic link"):
        read_statistics()
    assert [path.name for path in victim.iterdir()] == ["999999-0.counters"]


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_directory_open_to_others_is_refused(folder: Path, mode: int) -> None:
    """Its contents cannot be trusted if others can write to it, nor kept private if they can read it."""
    folder.mkdir()
    folder.chmod(mode)
    for use in (lambda: CounterFile(dict), read_statistics):
        with pytest.raises(PermissionNeeded, match="0700"):
            use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(folder: Path) -> None:
    """A directory in /tmp that another user created first is not used, whatever its mode."""
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionNeeded, match="belongs to user 12345"):
        CounterFile(dict)
    os.chown(folder, 0, 0)
    os.chown(folder.parent, 12345, 12345)
    try:
        with pytest.raises(PermissionNeeded, match="belongs to user 12345"):
            read_statistics()
    finally:
        os.chown(folder.parent, 0, 0)


# ---- readers of a group ----

OWNER, READER, OTHER_USER, STATISTICS_GROUP = 12345, 23456, 34567, 45678


def _begin_as_user(user: int, groups: list[int], step: Callable[[], str]) -> Callable[[], str]:
    """Run a step in a child process of this user and these groups; what is returned waits for its result."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        result = "died"
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            result = step()
        except BaseException as error:
            result = f"{type(error).__name__}: {error}"
        finally:
            os.write(write_end, result.encode())
            os._exit(0)
    os.close(write_end)

    def finish() -> str:
        with os.fdopen(read_end) as answer:
            result = answer.read()
        os.waitpid(child, 0)
        return result

    return finish


def _as_user(user: int, groups: list[int], step: Callable[[], str]) -> str:
    return _begin_as_user(user, groups, step)()


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A shared directory as the package makes it, where any user may search for it."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder = Path(tempfile.mkdtemp(prefix="umstack-stat-"))
    os.chown(folder, 0, STATISTICS_GROUP)
    folder.chmod(0o1770)
    monkeypatch.delenv("UMSTACK_STAT_DIR")
    monkeypatch.setattr(statistics_folders, "SHARED_FOLDER", folder)
    yield folder
    shutil.rmtree(folder)


def _found_by_reader() -> str:
    found = [(report["interface"], report["datagram_bytes"]) for report in read_statistics()]
    return json.dumps(["eth1" for one in found if one == ("eth1", 1472)])


def test_a_member_of_the_group_reads_the_processes_of_all_members(shared: Path) -> None:
    """The exporter's service needs no privilege, and a user outside the group reads nothing."""
    members, nobody = [STATISTICS_GROUP], list[int]()
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()

    def serve() -> str:
        file = CounterFile(lambda: EMPTY)
        file.write()
        os.write(ready_write, b"x")
        os.read(done_read, 1)
        modes = [oct(one.stat().st_mode & 0o777) for one in (file.path.parent, file.path)]
        file.close()
        return json.dumps([str(file.path.parent), *modes])

    finish = _begin_as_user(OWNER, members, serve)
    assert os.read(ready_read, 1) == b"x"
    try:
        assert json.loads(_as_user(READER, members, _found_by_reader)) == ["eth1"]
        assert json.loads(_as_user(OTHER_USER, nobody, _found_by_reader)) == []
    finally:
        os.write(done_write, b"x")
        result = finish()
        for one in (ready_read, ready_write, done_read, done_write):
            os.close(one)
    assert json.loads(result) == [str(shared / str(OWNER)), "0o750", "0o640"]


def test_a_directory_with_another_users_name_is_not_used(shared: Path) -> None:
    """A member that makes it keeps its owner from sharing, but neither from statistics nor deceives a reader."""
    (shared / str(OWNER)).mkdir(mode=0o750)
    os.chown(shared / str(OWNER), OTHER_USER, STATISTICS_GROUP)
    assert str(shared) not in _as_user(OWNER, [STATISTICS_GROUP], lambda: str(statistics_directory()))
    with pytest.raises(PermissionNeeded, match="not the one in its name"):
        list(statistics_folders.files_in(shared / str(OWNER)))


def test_only_files_with_exact_names_are_read(folder: Path) -> None:
    """Other names, links, pipes and sockets are neither opened nor removed."""
    others = ["1-0.counters.bak", "0-0.counters", "x-0.counters", "1-.counters", "1-01.counters"]
    for name in others:
        planted(folder, report_bytes(), name)
    (folder / "1-1.counters").symlink_to(planted(folder.parent, report_bytes(number=1)))
    os.mkfifo(folder / "1-2.counters")
    with CounterFile(dict, ended_maximum=0), socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / "1-3.counters"))
        assert read_all() == []
    assert {path.name for path in folder.iterdir()} == {*others, *(f"1-{n}.counters" for n in (1, 2, 3))}


@pytest.mark.parametrize(
    ("length", "at", "garbage"),
    [
        (4, 0, b""),
        (4096, 0, b""),
        (5000, 0, b""),
        (None, 0, b"x"),
        (None, 8, b"\xff"),
        (None, 4096 + 4096 + 2**26, b"\xff" * 16),
        (None, 4096 + 4096 + 2**26 + 8, b"\xff" * 4),
        (None, 4096 + 4096 + 2**26 + 100, b"\xff"),
    ],
    ids=["header", "no slot", "no text", "magic", "version", "slot", "length", "text"],
)
def test_a_damaged_file_is_skipped(folder: Path, length: int | None, at: int, garbage: bytes) -> None:
    """Truncated files, and those with other contents at any place, end no reader."""
    path = planted(folder, report_bytes())
    assert len(read_all()) == 1
    with path.open("r+b") as file:
        file.truncate(length)
        file.seek(at)
        file.write(garbage)
    assert read_all() == []


@pytest.mark.parametrize(
    "text",
    [
        b"no json",
        b"\xff\xfe",
        b"[" * 100_000,
        b"[]",
        b"{}",
        report_bytes(pid=1),
        report_bytes(number=5),
        report_bytes(started_at="soon"),
        report_bytes(started_at=float("inf")),
        report_bytes(interface=None),
        report_bytes(context={"sessions": "many"}),
        report_bytes(receivers=[{"messages_delivered": 1}]),
        report_bytes(receivers=[{"topic": ["t"], "messages_delivered": 1}]),
        report_bytes(receivers=[{"topic": "t", "messages_delivered": float("nan")}]),
        report_bytes(receiver_transports=[{"transport": "T", "latency_counts": [1]}]),
        report_bytes(clock="noon"),
        report_bytes(clock={"synchronized": "yes"}),
        report_bytes(clock={"synchronized": True, "max_error_ns": "1"}),
        report_bytes(clock={"synchronized": True, "max_error_ns": 1e300}),
        report_bytes(receiver_transports=[{"transport": "T", "recovery_counts": [1]}]),
        report_bytes(sources="none"),
    ],
)
def test_an_invalid_report_is_skipped(folder: Path, text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A planted report neither fails the reader nor appears in its output; it is logged, escaped."""
    planted(folder, text)
    assert read_all() == []
    assert "has no valid report" in caplog.text


def test_contexts_are_found_in_the_directories_of_all_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a given directory, root reads those of every user."""
    monkeypatch.delenv("UMSTACK_STAT_DIR")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    theirs = tmp_path / "umstack-4711" / "stat"
    theirs.mkdir(parents=True, mode=0o700)
    assert theirs in statistics_folders.folders()
    monkeypatch.setattr(os, "geteuid", lambda: 4712)
    assert theirs not in statistics_folders.folders()


def test_a_directory_with_too_many_reports_is_not_read_to_its_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A user who fills their own directory does not keep root's `umstack stat` busy without end."""
    for number in range(4):
        planted(folder, report_bytes(number=number), f"{os.getpid()}-{number}.counters")
    assert len(read_all()) == 4
    monkeypatch.setattr(statistics_reader, "_FOLDER_BYTES_MAX", len(report_bytes()))
    assert len(read_all()) == 2
    assert "more reports than are read" in caplog.text
    monkeypatch.setattr(statistics_folders, "_FILES_MAX", 1)
    assert len(read_all()) == 1


# ---- umstack stat ----


def run(*arguments: str) -> Any:
    """Run the command."""
    return CliRunner().invoke(umstack, ["stat", *arguments])


def test_stat_lists_the_contexts() -> None:
    """Without a process: one line per context, or a hint if there is none."""
    assert "statistics=False" in run().output
    with open_context(statistics=True) as context:
        connect(context, "listed")
        write_counters(context)
        shown = run()
        assert shown.exit_code == 0
        assert "listed" in shown.output
        assert str(os.getpid()) in shown.output


def test_stat_shows_every_counter() -> None:
    """With a process: its counters by name; --all also shows those that are zero."""
    with open_context(statistics=True) as context:
        source, receiver = connect(context, "counted")
        source.send(b"hello", flush=True)
        collect(receiver, 1)
        write_counters(context)
        shown = run(str(os.getpid()))
        assert shown.exit_code == 0
        assert "messages_delivered" in shown.output
        assert "dgrams_dropped_size" not in shown.output
        assert "dgrams_dropped_size" in run(str(os.getpid()), "--all").output


def test_stat_json_is_one_object() -> None:
    """--json prints only the reports and the state of the host's clock."""
    with open_context(statistics=True) as context:
        write_counters(context)
        (report,) = json.loads(run("--json").output)["contexts"]
        assert report["pid"] == os.getpid()
    read = json.loads(run("--json").output)
    assert read.keys() == {"contexts", "clock"}
    assert read["contexts"] == []


def test_stat_errors_shows_each_distinct_error_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """--errors prints text, count, first and last time, once for a process with two contexts; --json the same."""
    times = iter([1000.0, 2000.0])
    errors = ErrorLog(lambda: next(times))
    monkeypatch.setattr("umstack.telemetry.counter_file.process_errors", errors)
    with open_context(statistics=True) as one, open_context(statistics=True) as other:
        assert "no errors" in run("--errors").output
        errors.note("umstack.receiver", "lost", "message lost", subject="orders")
        errors.note("umstack.receiver", "lost", "message lost", subject="orders", count=4)
        write_counters(one)
        write_counters(other)
        (found,) = json.loads(run("--errors", "--json").output)["errors"]
        monkeypatch.setenv("COLUMNS", "200")
        shown = run("--errors").output
    assert found == {
        "pid": os.getpid(), "logger": "umstack.receiver", "subject": "orders", "text": "message lost", "count": 5,
        "first_at": 1000.0, "last_at": 2000.0,
    }  # fmt: skip
    assert shown.count("message lost") == 1
    assert run("--errors", "--watch", "1").exit_code == 2


def test_stat_of_a_process_without_contexts_is_an_error() -> None:
    """For a process that cannot be read, the error lists those that can."""
    failed = run(str(os.getpid()))
    assert isinstance(failed.exception, UmError)
    assert "statistics=False" in str(failed.exception)


HOSTILE = "\x1b[2J\x1b]0;owned\x07[/red] line\nfeed \u202e"


@pytest.mark.parametrize("arguments", [(), ("PID",), ("PID", "--all"), ("--json",)])
def test_stat_shows_foreign_text_harmlessly(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with terminal escapes, line feeds and rich's markup are shown without effect."""
    monkeypatch.setenv("COLUMNS", "400")
    with open_context(statistics=True) as context:
        context.receiver(HOSTILE)
        context.source(HOSTILE)
        write_counters(context)
        shown = run(*(str(os.getpid()) if word == "PID" else word for word in arguments))
    assert shown.exit_code == 0, shown.output
    assert all(character.isprintable() or character == "\n" for character in shown.output)
    assert "[/red]" in shown.output
