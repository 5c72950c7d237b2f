"""The demo without privileges: over loopback, and the parts that judge a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import wait_for
from umstack.cli.demo import print_report
from umstack.config import Config, Scope
from umstack.demo import DemoReport, DemoResult, DemoSettings, SubscriberResult, default_tree
from umstack.demo.network import LoopbackNetwork, network
from umstack.demo.processes import Processes
from umstack.demo.result import compare
from umstack.demo.settings import LIBRARY_EXCLUDED
from umstack.demo.workspace import work_directory
from umstack.errors import OptionError, UmError
from umstack.files import ManifestEntry
from umstack.lab import Lab

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree."""
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_bytes(bytes(range(256)) * 2000)
    (tmp_path / "tree" / "empty").write_bytes(b"")
    return tmp_path / "tree"


def test_it_runs_over_loopback(tree: Path) -> None:
    """--loopback needs no privilege and no switch, and reports that; all files are verified nevertheless."""
    run = [sys.executable, "-m", "umstack", "demo", "--loopback", "--json", "--tree", str(tree)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=100)
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "loopback ends (asked for)" in report["why_no_rings"]
    assert report["recovery"] is None
    assert "no cable" in report["why_no_recovery"]
    (result,) = report["runs"]
    assert (result["link"], result["link_modes"]) == ("socket", ["socket"] * 4)
    assert (result["ok"], result["network"], result["why"]) == (True, "loopback", "asked for")
    assert [s["files_verified"] for s in result["subscribers"]] == [2, 2, 2]
    assert [s["dropped_at_switch"] for s in result["subscribers"]] == [None] * 3
    (reader,) = report["stored"]["subscribers"]
    assert (report["stored"]["ok"], reader["files_verified"]) == (True, 2)


def test_it_goes_to_loopback_where_no_lab_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """If namespaces cannot be created, the demo uses loopback and keeps the reason for display."""
    monkeypatch.setattr(Lab, "supported", staticmethod(lambda: "a lab needs root: run with sudo"))
    with network(DemoSettings()) as net:
        assert isinstance(net, LoopbackNetwork)
        assert net.why == "a lab needs root: run with sudo"
        assert net.port_counters(1) is None


def test_the_window_fits_the_receive_buffer_this_user_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """On loopback without privilege a window larger than the buffer would lose what nobody took on purpose."""
    monkeypatch.setattr("umstack.demo.network._receive_buffer_bytes", lambda _settings: 212_992)
    assert LoopbackNetwork("why").receiver_options()["flow_control_receiver_window"] == 106_496


def test_two_runs_on_loopback_do_not_hear_each_other() -> None:
    """Each run has groups and a resolution port of its own."""
    groups = {str(LoopbackNetwork("why").context_options()["resolver_multicast_address"]) for _ in range(20)}
    assert len(groups) > 1
    assert all(group.startswith("239.") for group in groups)


def test_it_runs_over_another_transport_with_a_daemon(tree: Path) -> None:
    """--transport and --resolver without privileges, too (UX-11)."""
    run = [sys.executable, "-m", "umstack", "demo", "--loopback", "--json", "--tree", str(tree)]
    run += ["--transport", "lbtru", "--resolver", "--subscribers", "1"]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    (result,) = report["runs"]
    assert (result["ok"], result["transport"]) == (True, "lbtru")
    assert result["daemon"].startswith("127.0.0.1:")


def test_the_options_of_another_transport_have_its_names() -> None:
    """Options set for LBT-RM are also set for LBT-RU, and every name is an existing option."""
    multicast, unicast = DemoSettings(), DemoSettings(transport="lbtru")
    assert multicast.receiver_options["transport_lbtrm_activity_timeout"] == 5000
    assert unicast.receiver_options["transport_lbtru_activity_timeout"] == 5000
    assert unicast.source_options["transport"] == "lbtru"
    config = Config()
    for scope, options in (
        (Scope.CONTEXT, unicast.context_options),
        (Scope.SOURCE, unicast.source_options),
        (Scope.RECEIVER, unicast.receiver_options),
    ):
        config = config.with_options(scope, options)


def manifest(path: Path, *entries: ManifestEntry) -> Path:
    """A manifest file of these entries."""
    path.write_text("".join(entry.to_json() + "\n" for entry in entries))
    return path


FILE = ManifestEntry("file", b"f", 0o644, 3, b"\1" * 32)
DIRECTORY = ManifestEntry("directory", b"d", 0o755)


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ([FILE, DIRECTORY], (1, 0)),
        ([FILE], (1, 1)),
        ([DIRECTORY], (0, 1)),
        ([], (0, 2)),
        ([FILE, DIRECTORY, ManifestEntry("file", b"g", 0o644, 3, b"\1" * 32)], (1, 1)),
        ([ManifestEntry("file", b"f", 0o644, 3, b"\2" * 32), DIRECTORY], (0, 2)),
        ([ManifestEntry("file", b"f", 0o600, 3, b"\1" * 32), DIRECTORY], (0, 2)),
        ([ManifestEntry("file", b"f", 0o644, 4, b"\1" * 32), DIRECTORY], (0, 2)),
    ],
)
def test_a_difference_is_seen(tmp_path: Path, found: list[ManifestEntry], outcome: tuple[int, int]) -> None:
    """Missing, extra, other content, other permissions: each is counted."""
    sent = manifest(tmp_path / "sent", FILE, DIRECTORY)
    assert compare(sent, manifest(tmp_path / "found", *found)) == outcome


def verified() -> DemoResult:
    """A result that is good."""
    result = DemoResult("lab", None, "socket", "/tree", 0.02, 1, files=10)
    result.subscribers = [SubscriberResult(number, files_verified=10) for number in (1, 2)]
    return result


def test_the_rate_is_shown_beside_that_without_loss(capsys: pytest.CaptureFixture[str]) -> None:
    """The slowest subscriber gives the rate; without a lossless transfer there is no ratio."""
    result = verified()
    for subscriber, seconds in zip(result.subscribers, (1.0, 2.0), strict=True):
        subscriber.bytes, subscriber.seconds = 100_000_000, seconds
    assert (result.megabytes_per_second, result.ratio_to_lossless) == (50.0, None)
    print_report(DemoReport([result]))
    assert "without loss" not in capsys.readouterr().out
    result.lossless_megabytes_per_second = 62.5
    print_report(DemoReport([result]))
    line = "50.0 MB/s at the slowest subscriber: 0.80 x the 62.5 MB/s of the same transfer without loss"
    assert line in capsys.readouterr().out


def test_the_run_with_a_store_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The files that were verified, the time, the losses on the way to the Store, and every problem."""
    stored = verified()
    (one,) = stored.subscribers = [SubscriberResult(2, files_verified=9, seconds=1.5, dropped_at_switch=1234)]
    one.problems.append("a file is missing")
    print_report(DemoReport([verified()], stored=stored))
    output = " ".join(capsys.readouterr().out.split())
    assert "9 of 10 files read from the Store in 1.5 s, 1,234 datagrams to it dropped" in output
    assert "subscriber 2: a file is missing" in output
    assert "NOT everything arrived" in output


def test_one_flaw_anywhere_is_not_ok() -> None:
    """Status 0 takes every file at every subscriber, nothing lost for good, no problem at all."""
    assert verified().ok
    for flaw in ({"files_verified": 9}, {"entries_wrong": 1}, {"unrecoverable": 1}, {"problems": ["x"]}):
        result = verified()
        for name, value in flaw.items():
            setattr(result.subscribers[1], name, value)
        assert not result.ok, flaw
    for name, value in (("problems", ["x"]), ("subscribers", []), ("files", 0)):
        result = verified()
        setattr(result, name, value)
        assert not result.ok, name


def test_the_report_is_ok_when_every_run_is() -> None:
    """Status 0 takes every run: one that failed on one link is not made up for by the other."""
    failed = verified()
    failed.problems.append("x")
    assert DemoReport([verified(), verified()]).ok
    assert not DemoReport([verified(), failed]).ok
    assert not DemoReport([]).ok
    assert not DemoReport([verified()], stored=failed).ok


@pytest.mark.parametrize(
    "wrong",
    [
        {"subscribers": 0},
        {"subscribers": 17},
        {"loss": -0.1},
        {"loss": 0.6},
        {"tree": Path("/no/such")},
        {"link": "xdp", "loopback": True},
        {"link": "xdp", "transport": "tcp"},
        {"has_resolver": True},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object]) -> None:
    """Before anything is brought up."""
    with pytest.raises(OptionError):
        DemoSettings(**wrong)  # type: ignore[arg-type]


def test_the_default_tree_is_the_standard_library() -> None:
    """The Python in use, without what was installed into it and without its caches."""
    assert (default_tree() / "os.py").exists()
    assert DemoSettings().is_default_tree
    assert {"site-packages", "__pycache__"} <= LIBRARY_EXCLUDED
    assert "json" not in LIBRARY_EXCLUDED


def test_too_little_space_is_reported_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is too small raises an error with the setting to change."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(UmError, match="TMPDIR"), work_directory(1 << 60):
        pass


def test_what_a_killed_run_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of a process that is gone goes with the next run; that of a living one stays."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "umstack-demo-999999999-x" / "file").mkdir(parents=True)
    (tmp_path / "umstack-demo-1-x").mkdir()
    with work_directory(1) as work:
        assert {path.name for path in tmp_path.iterdir()} == {"umstack-demo-1-x", work.name}
    assert {path.name for path in tmp_path.iterdir()} == {"umstack-demo-1-x"}


def test_a_killed_process_has_a_status_and_no_result(tmp_path: Path) -> None:
    """The death of one process does not affect another."""
    with Processes(LoopbackNetwork("why"), tmp_path) as processes:
        dies, lives = (processes.start(f"subscriber {n}", n, ["recv", f"no/{n}", "-i", "lo"]) for n in (1, 2))
        wait_for(lambda: dies.has_context() and lives.has_context(), "both contexts")
        dies.process.kill()
        wait_for(lambda: dies.status is not None, "the death")
        assert (dies.status, dies.result, dies.has_context()) == (-signal.SIGKILL, None, False)
        assert (lives.status, lives.has_context()) == (None, True)
    assert lives.status is not None


def test_a_failed_command_shows_its_error(tmp_path: Path) -> None:
    """The error object on standard output is no result; standard error has the message."""
    with Processes(LoopbackNetwork("why"), tmp_path) as processes:
        arguments = ["recv", "x", "--json", "--files", str(tmp_path / "x"), "-i", "nowhere0"]
        child = processes.start("subscriber 1", 1, arguments)
        wait_for(lambda: child.status is not None, "its end")
        assert (child.status, child.result) == (1, None)
        assert "nowhere0" in child.last_words()


def test_a_process_ends_when_the_demo_is_gone(tmp_path: Path) -> None:
    """Its standard input is a pipe from the demo, which closes even when the demo is killed."""
    with Processes(LoopbackNetwork("why"), tmp_path) as processes:
        child = processes.start("subscriber 1", 1, ["recv", "x", "-i", "lo"])
        wait_for(child.has_context, "its context")
        assert child.process.stdin is not None
        child.process.stdin.close()
        wait_for(lambda: child.status is not None, "its end")
