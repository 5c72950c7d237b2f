"""Counters of a context, read from outside the process."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.loopback import connect, open_context
from tests.waiting import collect
from umstack.cli import command as umstack
from umstack.errors import PermissionNeeded, UmError
from umstack.telemetry.statistics_server import StatisticsServer, read_statistics, statistics_directory

EMPTY: dict[str, Any] = {
    "interface": "eth1",
    "link": "socket",
    "context": {},
    "link_counters": {},
    "source_transports": [],
    "receiver_transports": [],
    "sources": [],
    "receivers": [],
}
"""What a context without anything says of itself."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep the sockets of these tests to themselves."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    return tmp_path / "stat"


def test_a_context_says_its_counters() -> None:
    """What is read outside is what stats() gives inside, and whose it is."""
    with open_context(statistics=True) as context:
        source, receiver = connect(context, "told")
        source.send(b"hello", flush=True)
        collect(receiver, 1)
        (report,) = read_statistics()
        assert (report["pid"], report["interface"]) == (os.getpid(), "lo")
        assert report["sources"][0]["messages_sent"] == 1
        assert report["receivers"][0]["messages_delivered"] == 1
        assert report["receiver_transports"][0]["recovered"] == 0
        assert set(context.stats()) <= set(report)


def test_every_context_can_be_read_unless_it_was_made_not_to(folder: Path) -> None:
    """By default there is a socket, except in sequential mode, which makes no thread; statistics=False makes none."""
    with open_context(statistics=False), open_context("sequential"):
        assert read_statistics() == []
    assert not folder.exists()
    with open_context(), open_context("sequential", statistics=True):
        assert len(read_statistics()) == 2


def test_a_directory_that_cannot_be_had_fails_only_where_it_is_required(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Statistics are extra: without a place for them a context works, and the log says what is missing."""
    folder.symlink_to(folder.parent)
    with caplog.at_level("WARNING", "umstack.context"), open_context() as context:
        assert context.stats()
        assert "umstack stat will not find this context" in caplog.text
        assert str(folder) in caplog.text
    with pytest.raises(PermissionNeeded):
        open_context(statistics=True)


def test_closing_takes_the_socket_away(folder: Path) -> None:
    """A closed context is not listed, and leaves no file behind."""
    with open_context(statistics=True):
        assert len(read_statistics()) == 1
    assert read_statistics() == []
    assert list(folder.iterdir()) == []


def test_contexts_of_one_process_are_told_apart() -> None:
    """Each has a socket of its own; the oldest comes first."""
    with open_context(statistics=True) as first, open_context(statistics=True):
        first.receiver("of the first")
        reports = read_statistics(os.getpid())
        assert [len(report["receivers"]) for report in reports] == [1, 0]


def test_only_the_owner_may_connect(folder: Path) -> None:
    """The socket and its directory are closed to others."""
    server = StatisticsServer(dict)
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    server.close()


def test_what_a_killed_process_left_is_removed(folder: Path) -> None:
    """A socket nobody answers on is removed by the next reader, and by the next server."""
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
    """A client that connects and reads nothing is waited for a moment only."""
    server = StatisticsServer(lambda: {**EMPTY, "much": "x" * 10_000_000})
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(server.path))
        (report,) = read_statistics()
    assert len(report["much"]) == 10_000_000
    server.close()


def test_statistics_may_be_read_while_objects_come_and_go() -> None:
    """stats() on one thread, sources and receivers opened and closed on another: nobody reads what is freed."""
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
    """UMSTACK_STAT_DIR first; root's under /run, others' in their runtime directory."""
    assert str(statistics_directory()) == os.environ["UMSTACK_STAT_DIR"]
    monkeypatch.delenv("UMSTACK_STAT_DIR")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert statistics_directory() == Path("/run/umstack/stat")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert statistics_directory() == Path("/run/user/1000/umstack/stat")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert statistics_directory().name == "stat"


# ---- what others plant (issue: a statistics directory in /tmp) ----


def answering(path: Path, text: bytes) -> socket.socket:
    """A socket at a path that answers one reader with a text."""
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


def says(**changes: Any) -> bytes:
    """A report of this process' context 0, with changes."""
    report = {**EMPTY, "pid": os.getpid(), "number": 0, "command": "c", "started_at": 1.0, "read_at": 2.0}
    return json.dumps({**report, **changes}).encode()


def test_a_symbolic_link_is_no_directory_of_ours(tmp_path: Path, folder: Path) -> None:
    """Nothing is deleted and nothing bound where a link points that another user made first."""
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
    """What others can write to, or look into, holds what they like."""
    folder.mkdir()
    folder.chmod(mode)
    for use in (lambda: StatisticsServer(dict), read_statistics):
        with pytest.raises(PermissionNeeded, match="0700"):
            use()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users_directory_is_refused(folder: Path) -> None:
    """A directory in /tmp that somebody else made first is not used, whatever its mode."""
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


def test_only_exact_names_are_read_or_removed(folder: Path) -> None:
    """Files, and sockets of other names, are neither connected to nor deleted, although no such process lives."""
    folder.mkdir(mode=0o700)
    (folder / "999999-0.sock").write_text("a file")
    others = ["999999-0.sock.bak", "0-0.sock", "x-0.sock", "999999-.sock", "999999-01.sock", "..-0.sock"]
    sockets = [answering(folder / name, says()) for name in others]
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
        says(pid=1),
        says(number=5),
        says(started_at="soon"),
        says(started_at=float("inf")),
        says(interface=None),
        says(context={"sessions": "many"}),
        says(receivers=[{"messages_delivered": 1}]),
        says(receivers=[{"topic": ["t"], "messages_delivered": 1}]),
        says(receivers=[{"topic": "t", "messages_delivered": float("nan")}]),
        says(receiver_transports=[{"transport": "T", "latency_counts": [1]}]),
        says(clock="noon"),
        says(clock={"synchronized": "yes"}),
        says(clock={"synchronized": True, "max_error_ns": "1"}),
        says(clock={"synchronized": True, "max_error_ns": 1e300}),
        says(receiver_transports=[{"transport": "T", "recovery_counts": [1]}]),
        says(sources="none"),
    ],
)
def test_what_is_no_report_is_left_out(folder: Path, text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A planted answer neither fails the reader nor reaches what it shows; it is said once, harmlessly."""
    with contextlib.closing(answering(folder / f"{os.getpid()}-0.sock", text)):
        assert read_statistics() == []
    assert "sent no valid report" in caplog.text


def test_a_report_as_it_should_be_passes(folder: Path) -> None:
    """The check above is not vacuous."""
    with contextlib.closing(answering(folder / f"{os.getpid()}-0.sock", says())):
        assert len(read_statistics()) == 1


def test_contexts_are_found_wherever_they_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without being told a directory, the reader asks the kernel which sockets listen, in every network namespace."""
    elsewhere = tmp_path / "elsewhere"
    told_where = os.environ["UMSTACK_STAT_DIR"]
    monkeypatch.delenv("UMSTACK_STAT_DIR")
    others = read_statistics(os.getpid())  # contexts that other tests of this process have left open
    monkeypatch.setenv("UMSTACK_STAT_DIR", told_where)
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
    """Without a process: one line a context, or what to do when there is none."""
    assert "statistics=False" in run().output
    with open_context(statistics=True) as context:
        connect(context, "listed")
        shown = run()
        assert shown.exit_code == 0
        assert "listed" in shown.output
        assert str(os.getpid()) in shown.output


def test_stat_shows_every_counter() -> None:
    """With a process: its counters by name; --all shows those that are zero too."""
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
    """--json gives what was read and what is known of the host's clock, and nothing else."""
    with open_context(statistics=True):
        (report,) = json.loads(run("--json").output)["contexts"]
        assert report["pid"] == os.getpid()
    read = json.loads(run("--json").output)
    assert read.keys() == {"contexts", "clock"}
    assert read["contexts"] == []


def test_stat_of_a_process_without_contexts_is_an_error() -> None:
    """A process that cannot be read is an error that says what can."""
    failed = run(str(os.getpid()))
    assert isinstance(failed.exception, UmError)
    assert "statistics=False" in str(failed.exception)


HOSTILE = "\x1b[2J\x1b]0;owned\x07[/red] line\nfeed \u202e"


@pytest.mark.parametrize("arguments", [(), ("PID",), ("PID", "--all"), ("--json",)])
def test_stat_shows_foreign_text_harmlessly(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names with terminal escapes, line feeds and rich's markup are shown, and act on nothing."""
    monkeypatch.setenv("COLUMNS", "400")
    with open_context(statistics=True) as context:
        context.receiver(HOSTILE)
        context.source(HOSTILE)
        shown = run(*(str(os.getpid()) if word == "PID" else word for word in arguments))
    assert shown.exit_code == 0, shown.output
    assert all(character.isprintable() or character == "\n" for character in shown.output)
    assert "[/red]" in shown.output
