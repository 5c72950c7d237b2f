"""Counters of a context, read from another process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.loopback import connect, open_context
from tests.waiting import collect
from umstack.cli import command as umstack
from umstack.error_log import ErrorLog
from umstack.errors import PermissionNeeded, UmError
from umstack.telemetry import socket_folders
from umstack.telemetry.statistics_server import StatisticsServer, read_statistics, statistics_directory

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
    """Separate the sockets of these tests from others."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    return tmp_path / "stat"


def test_a_context_reports_its_counters() -> None:
    """The counters read from outside equal those of stats(), and the report identifies the context."""
    with open_context(statistics=True) as context:
        source, receiver = connect(context, "reported")
        source.send(b"hello", flush=True)
        collect(receiver, 1)
        (report,) = read_statistics()
        assert (report["pid"], report["interface"]) == (os.getpid(), "lo")
        assert report["sources"][0]["messages_sent"] == 1
        assert report["receivers"][0]["messages_delivered"] == 1
        assert report["receiver_transports"][0]["recovered"] == 0
        assert set(context.stats()) <= set(report)


def test_every_context_can_be_read_unless_disabled(folder: Path) -> None:
    """Default: a socket, except in sequential mode, which creates no thread. statistics=False disables it."""
    with open_context(statistics=False), open_context("sequential"):
        assert read_statistics() == []
    assert not folder.exists()
    with open_context(), open_context("sequential", statistics=True):
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


def test_closing_removes_the_socket(folder: Path) -> None:
    """A closed context is not listed, and leaves no file behind."""
    with open_context(statistics=True):
        assert len(read_statistics()) == 1
    assert read_statistics() == []
    assert list(folder.iterdir()) == []


def test_contexts_of_one_process_are_distinguished() -> None:
    """Each context has its own socket, and the oldest is listed first."""
    with open_context(statistics=True) as first, open_context(statistics=True):
        first.receiver("of the first")
        reports = read_statistics(os.getpid())
        assert [len(report["receivers"]) for report in reports] == [1, 0]


def test_only_the_owner_may_connect(folder: Path) -> None:
    """Other users can access neither the socket nor its directory."""
    server = StatisticsServer(dict)
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    server.close()


def test_files_of_a_killed_process_are_removed(folder: Path) -> None:
    """The next reader, and the next server, remove a socket without a listener."""
    program = (
        "import os, signal; from umstack.telemetry.statistics_server import StatisticsServer;"
        "StatisticsServer(dict); os.kill(os.getpid(), signal.SIGKILL)"
    )
    for remove in (read_statistics, lambda: StatisticsServer(dict).close()):
        subprocess.run([sys.executable, "-c", program], check=False)
        assert len(list(folder.iterdir())) == 1
        remove()
        assert list(folder.iterdir()) == []


def test_a_reader_that_hangs_does_not_stop_the_others() -> None:
    """A client that connects and does not read delays the server only briefly."""
    server = StatisticsServer(lambda: {**EMPTY, "much": "x" * 10_000_000})
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(server.path))
        (report,) = read_statistics()
    assert len(report["much"]) == 10_000_000
    server.close()


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
    monkeypatch.setattr(socket_folders, "SHARED_FOLDER", Path("/run/none"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert statistics_directory() == Path("/run/umstack/stat")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert statistics_directory() == Path("/run/user/1000/umstack/stat")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert statistics_directory().name == "stat"


# ---- planted by other users ----


def answering(path: Path, text: bytes) -> socket.socket:
    """Return a socket at a path that sends one reader a text."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            with connection:
                connection.sendall(text)

    threading.Thread(target=serve, daemon=True).start()
    return server


def report_bytes(**changes: Any) -> bytes:
    """Return a report of this process' context 0, with changes."""
    report = {**EMPTY, "pid": os.getpid(), "number": 0, "command": "c", "started_at": 1.0, "read_at": 2.0}
    return json.dumps({**report, **changes}).encode()


def test_a_symbolic_link_is_not_used_as_directory(tmp_path: Path, folder: Path) -> None:
    """Nothing is deleted or bound at the target of a link that another user created first."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    answering(victim / "999999-0.sock", b"").close()
    folder.symlink_to(victim)
    with pytest.raises(PermissionNeeded, match="symbolic link"):
        StatisticsServer(dict)
    with pytest.raises(PermissionNeeded, match="symbolic link"):
        read_statistics()
    assert [path.name for path in victim.iterdir()] == ["999999-0.sock"]


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_a_directory_open_to_others_is_refused(folder: Path, mode: int) -> None:
    """Its contents cannot be trusted if others can write to it, nor kept private if they can read it."""
    folder.mkdir()
    folder.chmod(mode)
    for use in (lambda: StatisticsServer(dict), read_statistics):
        with pytest.raises(PermissionNeeded, match="0700"):
            use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(folder: Path) -> None:
    """A directory in /tmp that another user created first is not used, whatever its mode."""
    folder.mkdir(mode=0o700)
    os.chown(folder, 12345, 12345)
    with pytest.raises(PermissionNeeded, match="belongs to user 12345"):
        StatisticsServer(dict)
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
    monkeypatch.setattr(socket_folders, "SHARED_FOLDER", folder)
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
        server = StatisticsServer(lambda: EMPTY)
        os.write(ready_write, b"x")
        os.read(done_read, 1)
        modes = [oct(one.stat().st_mode & 0o777) for one in (server.path.parent, server.path)]
        server.close()
        return json.dumps([str(server.path.parent), *modes])

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
    assert json.loads(result) == [str(shared / str(OWNER)), "0o750", "0o660"]


def test_a_directory_with_another_users_name_is_not_used(shared: Path) -> None:
    """A member that makes it keeps its owner from sharing, but neither from statistics nor deceives a reader."""
    (shared / str(OWNER)).mkdir(mode=0o750)
    os.chown(shared / str(OWNER), OTHER_USER, STATISTICS_GROUP)
    assert str(shared) not in _as_user(OWNER, [STATISTICS_GROUP], lambda: str(statistics_directory()))
    with pytest.raises(PermissionNeeded, match="not the one in its name"):
        list(socket_folders.sockets_in(shared / str(OWNER)))


def test_only_exact_names_are_read_or_removed(folder: Path) -> None:
    """Files, and sockets with other names, are neither connected to nor deleted, even if no such process lives."""
    folder.mkdir(mode=0o700)
    (folder / "999999-0.sock").write_text("a file")
    others = ["999999-0.sock.bak", "0-0.sock", "x-0.sock", "999999-.sock", "999999-01.sock", "..-0.sock"]
    sockets = [answering(folder / name, report_bytes()) for name in others]
    assert read_statistics() == []
    assert {path.name for path in folder.iterdir()} == {*others, "999999-0.sock"}
    for one in sockets:
        one.close()


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
    """A planted answer neither fails the reader nor appears in its output; it is logged once, escaped."""
    with contextlib.closing(answering(folder / f"{os.getpid()}-0.sock", text)):
        assert read_statistics() == []
    assert "sent no valid report" in caplog.text


def test_a_valid_report_is_accepted(folder: Path) -> None:
    """This test proves that the check above can pass."""
    with contextlib.closing(answering(folder / f"{os.getpid()}-0.sock", report_bytes())):
        assert len(read_statistics()) == 1


def test_contexts_are_found_in_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a given directory, the reader asks the kernel for the listening sockets of all network namespaces."""
    elsewhere = tmp_path / "elsewhere"
    configured_directory = os.environ["UMSTACK_STAT_DIR"]
    monkeypatch.delenv("UMSTACK_STAT_DIR")
    others = read_statistics(os.getpid())  # contexts that other tests of this process left open
    monkeypatch.setenv("UMSTACK_STAT_DIR", configured_directory)
    with contextlib.closing(StatisticsServer(lambda: EMPTY, elsewhere)):
        assert read_statistics(os.getpid()) == []
        monkeypatch.delenv("UMSTACK_STAT_DIR")
        found = read_statistics(os.getpid())
        assert len(found) == len(others) + 1
        assert "eth1" in {report["interface"] for report in found}


# ---- umstack stat ----


def run(*arguments: str) -> Any:
    """Run the command."""
    return CliRunner().invoke(umstack, ["stat", *arguments])


def test_stat_lists_the_contexts() -> None:
    """Without a process: one line per context, or a hint if there is none."""
    assert "statistics=False" in run().output
    with open_context(statistics=True) as context:
        connect(context, "listed")
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
        shown = run(str(os.getpid()))
        assert shown.exit_code == 0
        assert "messages_delivered" in shown.output
        assert "dgrams_dropped_size" not in shown.output
        assert "dgrams_dropped_size" in run(str(os.getpid()), "--all").output


def test_stat_json_is_one_object() -> None:
    """--json prints only the reports and the state of the host's clock."""
    with open_context(statistics=True):
        (report,) = json.loads(run("--json").output)["contexts"]
        assert report["pid"] == os.getpid()
    read = json.loads(run("--json").output)
    assert read.keys() == {"contexts", "clock"}
    assert read["contexts"] == []


def test_stat_errors_shows_each_distinct_error_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """--errors prints text, count, first and last time, once for a process with two contexts; --json the same."""
    times = iter([1000.0, 2000.0])
    errors = ErrorLog(lambda: next(times))
    monkeypatch.setattr("umstack.telemetry.statistics_server.process_errors", errors)
    with open_context(statistics=True), open_context(statistics=True):
        assert "no errors" in run("--errors").output
        errors.note("umstack.receiver", "lost", "message lost", subject="orders")
        errors.note("umstack.receiver", "lost", "message lost", subject="orders", count=4)
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
        shown = run(*(str(os.getpid()) if word == "PID" else word for word in arguments))
    assert shown.exit_code == 0, shown.output
    assert all(character.isprintable() or character == "\n" for character in shown.output)
    assert "[/red]" in shown.output
