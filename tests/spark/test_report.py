"""The report: its page stands alone and says what is known to have happened; the same on a cluster of processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("matplotlib")

import pyarrow.parquet as pq

from tests.spark.cluster import Cluster
from tests.waiting import wait_for
from umstack.capture import CaptureError, split
from umstack.capture.generate import Traffic, Truth, generate
from umstack.report import make_report
from umstack.report.run import PAGE

TRAFFIC = Traffic(seed=11, sessions=1, receivers=3, messages_per_datagram=4, message_bytes=50, loss=0.01)
PACKETS = 10_000
PARTS_BYTES = 200_000
WHAT_IS_DECODED = ".packets/kind=DATA/part-*"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """Give a generated capture and what it holds."""
    return generate(tmp_path_factory.mktemp("captures") / "switch.pcap", PACKETS, TRAFFIC)


class Page(HTMLParser):
    """What a page holds: its text, its elements, and what it would load from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.elements: list[str] = []
        self.outside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.elements.append(tag)
        links = [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        self.outside += [link for link in links if not link.startswith(("#", "data:"))]

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words.append(data)

    @property
    def text(self) -> str:
        """All words."""
        return " ".join(" ".join(self.words).split())


def known(truth: Truth) -> dict[str, int]:
    """What a report must say."""
    asked = truth.losses[truth.losses["nak_count"] > 0]
    return {"losses": len(asked), "datagrams": len({int(one["sqn"]) for one in asked})}


@dataclass(frozen=True, slots=True)
class Job:
    """A report that was made by a cluster, one of whose executors was killed meanwhile."""

    out: Path
    report: dict[str, Any]
    complained: str
    parts: int
    parts_done_when_killed: int

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table that are in the page."""
        rows: list[dict[str, Any]] = self.report["tables"][name]
        return rows


@pytest.fixture(scope="module")
def job(truth: Truth, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run `umstack report` on a master and two workers, and kill an executor between two parts of the capture."""
    folder = tmp_path_factory.mktemp("cluster")
    captures, out = folder / "captures", folder / "out"
    parts = cut_as_rotation_does(truth.path, captures, PARTS_BYTES)
    options = ("--out", str(out), "--master", cluster.master, "--driver-memory", "600m", "--json")
    running = subprocess.Popen(
        [sys.executable, "-m", "umstack", "report", str(captures), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cluster.environment,
    )
    wait_for(lambda: any(out.glob(WHAT_IS_DECODED)) or running.poll() is not None, "a part is decoded", 120)
    done = len(list(out.glob(WHAT_IS_DECODED)))
    [first, *_] = cluster.executor_processes()
    os.kill(first, signal.SIGKILL)
    said, complained = running.communicate(timeout=240)
    assert running.returncode == 0, complained[-3000:]
    return Job(out, json.loads(said), complained, parts, done)


@pytest.mark.timeout(300)
def test_a_cluster_gives_the_same_though_an_executor_is_killed(job: Job, truth: Truth) -> None:
    """A master and two workers, processes of their own: nothing assumes local mode, nothing is lost or doubled."""
    assert 0 < job.parts_done_when_killed < job.parts, "it was killed in the middle"
    assert "Lost executor" in job.complained
    assert job.report["packets"] == PACKETS
    [session] = job.table("sessions")
    assert (session["datagrams"], session["messages"]) == (truth.data, truth.data * 4)


def test_the_page_stands_alone_and_tells_the_truth(job: Job, truth: Truth) -> None:
    """One HTML file with its plots inside; losses by receiver are the generator's; Parquet is beside it."""
    page = Page((job.out / PAGE).read_text())
    assert page.outside == []
    assert page.elements.count("svg") == 3
    [lost] = job.table("lost")
    assert (lost["losses"], lost["datagrams"]) == (known(truth)["losses"], known(truth)["datagrams"])
    for receiver in range(TRAFFIC.receivers):
        address = truth.receiver_address(receiver)
        of_receiver = truth.losses[(truth.losses["receiver"] == receiver) & (truth.losses["nak_count"] > 0)]
        [row] = [row for row in job.table("recovery_latency") if row["receiver"] == address]
        assert row["lost"] == len(of_receiver)
        assert row["naks"] == int(of_receiver["nak_count"].sum())
        assert address in page.text
    assert f"{lost['datagrams']:,} of {truth.data:,} datagrams" in page.text
    assert sum(map(len, map(pq.read_table, (job.out / "losses").glob("*.parquet")))) == lost["losses"]


def test_captures_of_something_else_give_a_page_that_says_so(spark: Any, tmp_path: Path) -> None:
    """No session is a finding, not a failure; no file is an error that says what to name."""
    (tmp_path / "other.pcap").write_bytes(b"certainly not a capture, whatever its name")
    steps: list[str] = []
    report = make_report(
        [str(tmp_path / "other.pcap")], tmp_path / "out", progress=lambda step, _at, _of: steps.append(step)
    )
    assert (steps[0], steps[-1]) == ("decode", "page")
    assert report.findings[0].topic == "sessions"
    assert any("not a capture" in finding.text for finding in report.findings)
    with pytest.raises(CaptureError, match="names no capture"):
        make_report([str(tmp_path / "nothing*.pcap")], tmp_path / "out")


def cut_as_rotation_does(capture: Path, folder: Path, target_bytes: int) -> int:
    """A pcap file as many that follow each other; how many."""
    folder.mkdir()
    content = capture.read_bytes()
    parts = split(capture, target_bytes)
    for number, part in enumerate(parts):
        inside = content[max(part.start, _PCAP_HEADER_BYTES) : part.end]
        (folder / f"switch-{number:04d}.pcap").write_bytes(content[:_PCAP_HEADER_BYTES] + inside)
    return len(parts)


_PCAP_HEADER_BYTES = 24
