"""`umstack demo` in a real lab whose switch drops datagrams, and the state it leaves when it is disturbed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from umstack.demo.sharing import why_out_of_reach
from umstack.lab import Lab, namespaces
from umstack.telemetry.statistics_reader import read_statistics

ROOT = Path(__file__).resolve().parents[2]
SEED = 20
FILES = 60
_HOSTS = [f"10.77.0.{number}" for number in range(1, 5)]
"""The publisher and its subscribers."""
TIMEOUT_SECONDS = 100


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a small, repeatable tree with nested folders and files from empty to many messages."""
    luck = random.Random(SEED)
    for number in range(FILES):
        file = tmp_path / "tree" / f"d{number % 7}" / f"e{number % 3}" / f"f{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(luck.randbytes(luck.choice([0, 10, 1400, 70_000, 400_000])))
    return tmp_path / "tree"


def add_bulk(tree: Path) -> Path:
    """Add a large sparse file: its transfer takes seconds, and statistics show it within half a second."""
    bulk = tree / "bulk"
    bulk.touch()
    os.truncate(bulk, 512 << 20)
    return bulk


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a run's files and sockets. The run must leave nothing there."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    yield folder
    assert list(folder.iterdir()) == []


class Run:
    """A run in progress."""

    def __init__(self, *arguments: str, link: str = "socket") -> None:
        """Start the run."""
        command = [sys.executable, "-m", "umstack", "demo", "--json", "--seed", str(SEED), "--link", link]
        self.process = subprocess.Popen(
            [*command, "--no-report", "--no-recovery", "--no-store", "--no-driver", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.children: list[int] = []
        self.lab = ""

    def until_it_sends(self) -> None:
        """Wait until the publisher sends. After that, its processes (the publisher last) and its lab are
        known.
        """
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not any(
            source["messages_sent"] > 0 for report in read_statistics() for source in report["sources"]
        ):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)
        reports = sorted(read_statistics(), key=lambda report: len(report["sources"]))
        self.children = [report["pid"] for report in reports]
        (self.lab,) = [lab.name for lab in Lab.all() if lab.owner_pid == self.process.pid]

    def finish(self) -> tuple[int, dict[str, Any], str]:
        """Return the exit status, the JSON object if there is one, and standard error. Check that no process
        or namespace remains.
        """
        output, errors = self.process.communicate(timeout=TIMEOUT_SECONDS)
        assert [lab.name for lab in Lab.all() if lab.owner_pid == self.process.pid] == []
        if self.lab:
            assert [name for name in namespaces.names() if name.startswith(f"{self.lab}.")] == []
        assert [pid for pid in self.children if Path(f"/proc/{pid}").exists()] == []
        return self.process.returncode, json.loads(output) if output else {}, errors


def run(*arguments: str, link: str = "socket") -> tuple[int, dict[str, Any], str]:
    """Return the status of a complete run, the result of its only link if there is one, and standard error."""
    status, report, errors = Run(*arguments, link=link).finish()
    (only,) = report["runs"]
    return status, only, errors


def assert_repaired(result: dict[str, Any], tree: Path) -> None:
    """Assert that every subscriber has everything and that datagrams were lost on the way."""
    assert result["ok"]
    assert (result["network"], result["why"], result["seed"]) == ("lab", None, SEED)
    sizes = [path.stat().st_size for path in tree.rglob("*") if path.is_file()]
    assert (result["files"], result["bytes"]) == (len(sizes), sum(sizes))
    assert result["publisher"]["rxs_sent"] > 0
    slowest = min(one["megabytes_per_second"] for one in result["subscribers"])
    assert result["megabytes_per_second"] == slowest
    assert result["ratio_to_lossless"] == slowest / result["lossless_megabytes_per_second"] > 0
    assert len(result["subscribers"]) == 3
    for subscriber in result["subscribers"]:
        assert subscriber["verified"]
        assert subscriber["files_verified"] == FILES
        assert subscriber["dropped_at_switch"] > 0
        assert subscriber["detected_lost"] > 0
        assert subscriber["naks_sent"] > 0
        assert subscriber["retransmissions_received"] > 0
        assert subscriber["unrecoverable"] == 0
        assert subscriber["cpu_seconds"] > 0
        assert 0 < subscriber["recovery_ms"]["p50"] <= subscriber["recovery_ms"]["p99"]
        assert subscriber["recovery_ms"]["p50"] <= subscriber["recovery_ms"]["max"]


def test_the_same_job_over_rings_and_over_sockets(tree: Path, work: Path) -> None:
    """With 5 % loss at each of three switch ports, every subscriber verifies every file, first with AF_XDP at
    every end and then with sockets at every end.
    """
    status, report, errors = Run("--tree", str(tree), "--loss", "0.05", link="both").finish()
    assert status == 0, errors
    assert (report["ok"], report["why_no_rings"]) == (True, None)
    by_rings, by_sockets = report["runs"]
    assert (by_rings["link"], by_sockets["link"]) == ("xdp", "socket")
    assert by_rings["link_modes"] == ["native"] * 4
    assert by_sockets["link_modes"] == ["socket"] * 4
    for result in (by_rings, by_sockets):
        assert_repaired(result, tree)
    assert by_rings["publisher"]["manifest_sha256"] == by_sockets["publisher"]["manifest_sha256"]
    watch = report["watch"]
    assert f"watch it at {watch['page_url']}; metrics are at {watch['metrics_url']}\n" in errors
    assert {link: scrape["contexts"] for link, scrape in watch["scrapes"].items()} == {"xdp": 4, "socket": 4}
    assert all(scrape["samples"] > 100 for scrape in watch["scrapes"].values())


def test_without_rings_it_reports_why_and_uses_sockets(tree: Path, work: Path) -> None:
    """With too little locked memory, `both` reports the reason and sockets carry the files; `rings` alone is
    an error.
    """
    outputs = {}
    for link in ("both", "xdp"):
        limited = ["setpriv", "--bounding-set=-ipc_lock", "sh", "-c", 'ulimit -l 1024; exec "$@"', "sh"]
        demo = [
            sys.executable,
            "-m",
            "umstack",
            "demo",
            "--json",
            "--loss",
            "0",
            "--no-report",
            "--no-recovery",
            "--no-store",
            "--no-driver",
            "--subscribers",
            "1",
        ]
        outputs[link] = subprocess.run(
            [*limited, *demo, "--tree", str(tree), "--link", link],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )
    assert outputs["both"].returncode == 0, outputs["both"].stderr
    report = json.loads(outputs["both"].stdout)
    assert report["ok"]
    assert "bytes of locked memory" in report["why_no_rings"]
    assert [run["link"] for run in report["runs"]] == ["socket"]
    assert outputs["xdp"].returncode == 1
    assert "bytes of locked memory" in outputs["xdp"].stderr
    assert "--link socket" in outputs["xdp"].stderr


def test_the_table_reports_what_happened(tree: Path, work: Path) -> None:
    """The text output has one line per subscriber, n of n verified, and both links side by side; progress is
    separate from the result.
    """
    command = [
        sys.executable,
        "-m",
        "umstack",
        "demo",
        "--no-report",
        "--no-recovery",
        "--no-store",
        "--no-driver",
        "--tree",
        str(tree),
        "--subscribers",
        "2",
        "--loss",
        "0",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{FILES}/{FILES}") == 4
    assert "side by side" in done.stdout
    assert "AF_XDP (native)" in done.stdout
    assert "every file verified at every subscriber over AF_XDP and sockets" in done.stdout
    assert "transferring" in done.stderr


def test_a_late_subscriber_and_an_unplugged_one_get_every_file(tree: Path, work: Path) -> None:
    """Late join delivers the past, and off-transport recovery delivers the messages that the transport gave
    up (UM-136, UM-142). The report on the traffic at the switch counts both separately from
    retransmissions, together with the publisher's own counts.
    """
    command = [
        sys.executable,
        "-m",
        "umstack",
        "demo",
        "--json",
        "--link",
        "socket",
        "--without-spark",
        "--no-store",
    ]
    done = subprocess.run(
        [*command, "--seed", str(SEED), "--tree", str(tree), "--report", str(tree.parent / "report")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    result = json.loads(done.stdout)
    recovery = result["recovery"]
    assert recovery["ok"]
    assert recovery["problems"] == []
    always, late, cut = recovery["subscribers"]
    assert [one["files_verified"] for one in (always, late, cut)] == [FILES] * 3
    assert [one["unrecoverable"] for one in (always, late, cut)] == [0, 0, 0]
    assert late["late_join_messages"] > 100 > always["late_join_messages"]
    assert cut["otr_messages"] > 100 > always["otr_messages"]
    served = recovery["publisher"]["recovery_messages_sent"]
    assert served >= late["late_join_messages"] + cut["otr_messages"]
    printed = {(row["receiver"], row["recovery"]): row for row in result["report"]["tables"]["recoveries"]}
    assert printed[_HOSTS[2], "late_join"]["fragments"] >= late["late_join_messages"]
    assert printed[_HOSTS[3], "off_transport"]["fragments"] >= cut["otr_messages"]
    assert sum(row["fragments"] for row in printed.values()) == served
    assert {row["topic"] for row in printed.values()} == {"demo/tree"}
    findings = " ".join(one["text"] for one in result["report"]["findings"])
    assert f"Late join: receiver {_HOSTS[2]} fetched" in findings
    assert f"Off-transport recovery: receiver {_HOSTS[3]} fetched" in findings


def test_a_subscriber_gets_every_file_from_a_store_after_the_publisher_has_ended(
    tree: Path, work: Path
) -> None:
    """The Store has every message, although its port loses datagrams, and serves one that the publisher never saw."""
    status, report, errors = Run("--tree", str(tree), "--loss", "0.05", "--store").finish()
    assert status == 0, errors
    stored = report["stored"]
    assert (stored["ok"], stored["network"], stored["files"], stored["problems"]) == (True, "lab", FILES, [])
    (subscriber,) = stored["subscribers"]
    assert (subscriber["files_verified"], subscriber["entries_wrong"]) == (FILES, 0)
    assert subscriber["dropped_at_switch"] > 0
    assert stored["publisher"]["rxs_sent"] > 0
    assert stored["publisher"]["datagram_bytes"] > 8000, "jumbo frames"
    assert stored["publisher"]["msgs_sent"] >= stored["bytes"] / stored["publisher"]["datagram_bytes"]


@pytest.mark.timeout(3 * TIMEOUT_SECONDS)
def test_the_whole_job_without_multicast(tree: Path, work: Path) -> None:
    """UX-11, UM-111: the same transfer runs without multicast between the hosts, with `umstack resolver` on
    one of them.

    It runs over LBT-RU and, at the same time in another lab, over LBT-TCP. It includes the files,
    the late joiner, and a subscriber whose cable is out for 15 s and that fetches the missed messages.
    """
    stories = {}
    for transport in ("lbtru", "tcp"):
        arguments = ["--transport", transport, "--resolver", "--link", "socket", "--loss", "0.05"]
        arguments += ["--without-spark"]
        arguments += ["--seed", str(SEED), "--tree", str(tree), "--report", str(tree.parent / transport)]
        stories[transport] = subprocess.Popen(
            [sys.executable, "-m", "umstack", "demo", "--json", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    outputs = {name: story.communicate(timeout=2 * TIMEOUT_SECONDS) for name, story in stories.items()}
    for transport, story in stories.items():
        assert story.returncode == 0, outputs[transport]
        result = json.loads(outputs[transport][0])
        (live,), recovery = result["runs"], result["recovery"]
        assert [one["files_verified"] for one in result["stored"]["subscribers"]] == [FILES]
        for run in (live, recovery):
            assert (run["ok"], run["network"], run["transport"]) == (True, "lab", transport)
            assert run["daemon"] == "10.77.4.2:15380"
            assert [one["files_verified"] for one in run["subscribers"]] == [FILES] * 3
            assert [one["unrecoverable"] for one in run["subscribers"]] == [0] * 3
        assert all(one["dropped_at_switch"] > 30 for one in live["subscribers"])
        always, late, cut = recovery["subscribers"]
        assert late["late_join_messages"] > max(20, always["late_join_messages"])
        assert cut["otr_messages"] > max(50, always["otr_messages"])
        (whole,) = (tree.parent / transport / "captures" / "recovery").glob("*.pcapng")
        assert whole.stat().st_size > 2 * live["bytes"], "a copy for each subscriber, at the router"
    assert all(one["naks_sent"] > 0 for one in json.loads(outputs["lbtru"][0])["runs"][0]["subscribers"])


def test_a_subscriber_that_dies_fails_the_run_and_not_the_others(tree: Path, work: Path) -> None:
    """If a subscriber dies, the status is 1, the subscriber is named, and the others complete because flow
    control stops waiting for it.
    """
    add_bulk(tree)
    demo = Run("--tree", str(tree))
    demo.until_it_sends()
    os.kill(demo.children[0], signal.SIGKILL)
    status, result, _ = demo.finish()
    assert status == 1
    assert not result["ok"]
    (only,) = result["runs"]
    verified = sorted(subscriber["verified"] for subscriber in only["subscribers"])
    assert verified == [False, True, True], only


def test_a_publisher_that_dies_fails_the_run_at_once(tree: Path, work: Path) -> None:
    """The subscribers do not wait for messages that cannot arrive."""
    add_bulk(tree)
    demo = Run("--tree", str(tree), "--subscribers", "1")
    demo.until_it_sends()
    os.kill(demo.children[-1], signal.SIGKILL)
    began = time.monotonic()
    status, result, _ = demo.finish()
    assert status == 1
    assert any("publisher" in problem for problem in result["runs"][0]["problems"])
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(tree: Path, work: Path, number: signal.Signals) -> None:
    """Ctrl-C during the transfer leaves no namespace, process or file, and the status is 130."""
    add_bulk(tree)
    demo = Run("--tree", str(tree), "--subscribers", "1")
    demo.until_it_sends()
    demo.process.send_signal(number)
    status, result, errors = demo.finish()
    assert (status, result) == (130, {})
    assert "Traceback" not in errors


def test_the_processes_of_a_killed_run_end(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even SIGKILL leaves no process, and the next run removes its files and namespaces."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "work"))
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    bulk = add_bulk(tree)
    demo = Run("--tree", str(tree), "--subscribers", "1")
    demo.until_it_sends()
    demo.process.kill()
    demo.process.communicate()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in demo.children):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    bulk.unlink()
    assert run("--tree", str(tree))[0] == 0
    assert list((tmp_path / "work").iterdir()) == []
    assert [name for name in namespaces.names() if name.startswith(f"{demo.lab}.")] == []


def test_the_seed_repeats_the_losses(tree: Path, work: Path) -> None:
    """Two runs with one seed drop the same datagrams of the first thousand, except for repairs and timing."""
    runs = [run("--tree", str(tree), "--subscribers", "1")[1] for _ in range(2)]
    drops = [one["subscribers"][0]["dropped_at_switch"] for one in runs]
    assert drops[0] == pytest.approx(drops[1], abs=0.1 * max(drops) + 5)
    assert all(one["ok"] for one in runs)


def test_sha256_is_that_of_the_files(tree: Path, work: Path) -> None:
    """The manifest's digest can be computed without this package, by the rule in docs/file-transfer.md."""
    _, result, _ = run("--tree", str(tree), "--subscribers", "1", "--loss", "0")
    digest = hashlib.sha256()

    def visit(folder: Path) -> None:
        for path in sorted(folder.iterdir(), key=lambda path: os.fsencode(path.name)):
            mode = (path.stat().st_mode & 0o777).to_bytes(4, "big")
            name = os.fsencode(path.relative_to(tree))
            head = mode + len(name).to_bytes(2, "big") + name
            if path.is_dir():
                visit(path)
                digest.update(b"\2" + head)
            else:
                data = path.read_bytes()
                digest.update(b"\4" + head + len(data).to_bytes(8, "big") + hashlib.sha256(data).digest())

    visit(tree)
    assert result["publisher"]["manifest_sha256"] == digest.hexdigest()


def test_processes_without_privileges_share_one_driver(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last run: three processes of one host verify every file, which its driver received once and with losses."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        closed = why_out_of_reach(Path(folder))
        assert closed is not None
        assert folder in closed
        Path(folder).chmod(0o755)
        status, report, errors = Run("--tree", str(tree), "--loss", "0.05", "--driver").finish()
        assert list(Path(folder).iterdir()) == []
    assert status == 0, errors
    shared = report["driver"]
    assert (shared["ok"], shared["files"]) == (True, FILES)
    assert [one["files_verified"] for one in shared["subscribers"]] == 3 * [FILES]
    assert len({one["dropped_at_switch"] for one in shared["subscribers"]}) == 1, "they share a port"
    assert shared["subscribers"][0]["dropped_at_switch"] > 0
    assert [one["naks_sent"] for one in shared["subscribers"]] == [0, 0, 0], "the driver sends the NAKs"
