"""The report: its page is self-contained and shows the known contents of captures, also if a cluster makes
it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from tests.html_page import Page
from tests.spark.cluster import Cluster
from tests.waiting import wait_for
from umstack.capture import split
from umstack.capture.generate import Traffic, Truth, generate
from umstack.report.run import PAGE, STEPS
from umstack.spark.tasks import tasks_of

TRAFFIC = Traffic(seed=11, sessions=1, receivers=3, messages_per_datagram=4, message_bytes=50, loss=0.01)
PACKETS = 10_000
PARTS_BYTES = 200_000


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """A generated capture and its contents."""
    return generate(tmp_path_factory.mktemp("captures") / "switch.pcap", PACKETS, TRAFFIC)


def known(truth: Truth) -> dict[str, int]:
    """The figures that a report must contain."""
    asked = truth.losses[truth.losses["nak_count"] > 0]
    return {"losses": len(asked), "datagrams": len({int(one["sqn"]) for one in asked})}


@dataclass(frozen=True, slots=True)
class Job:
    """A report made by a cluster while one of its executors was killed."""

    out: Path
    report: dict[str, Any]
    complained: str
    parts: int

    def table(self, name: str) -> list[dict[str, Any]]:
        """The rows of a table in the page."""
        rows: list[dict[str, Any]] = self.report["tables"][name]
        return rows


@pytest.fixture(scope="module")
def job(truth: Truth, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Run `umstack report` on a master and two workers, and kill an executor that is running Python."""
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
    wait_for(lambda: bool(cluster.busy_executors()) or running.poll() is not None, "parts are decoded", 120)
    [first, *_] = cluster.busy_executors()
    os.kill(first, signal.SIGKILL)
    said, complained = running.communicate(timeout=420)
    assert running.returncode == 0, complained[-3000:]
    return Job(out, json.loads(said), complained, parts)


@pytest.mark.timeout(600)
def test_a_cluster_gives_the_same_report_if_an_executor_is_killed(job: Job, truth: Truth) -> None:
    """A master and two workers run in separate processes: nothing assumes local mode, and nothing is lost or
    counted twice.
    """
    assert job.parts > 2
    assert "Lost executor" in job.complained, job.complained
    assert job.report["packets"] == PACKETS
    [session] = job.table("sessions")
    assert (session["datagrams"], session["messages"]) == (truth.data, truth.data * 4)


def test_the_page_is_self_contained_and_correct(job: Job, truth: Truth) -> None:
    """One HTML file includes its plots, losses by receiver match the generator's, and Parquet files are in
    the same folder.
    """
    page = Page((job.out / PAGE).read_text())
    assert page.outside == []
    assert (job.out / PAGE).read_text().count('<div class="chart">') == 4
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
    everybody = ", ".join(map(truth.receiver_address, range(TRAFFIC.receivers)))
    assert f"losses of {everybody} " in page.text, (
        "a finding names the receivers that an option would have helped"
    )
    assert f"{TRAFFIC.receivers} {everybody}" in page.text, "the table does so as well"
    assert sum(map(len, map(pq.read_table, (job.out / "losses").glob("*.parquet")))) == lost["losses"]


def test_a_report_without_a_terminal_prints_its_steps(job: Job) -> None:
    """Each step prints one numbered line on stderr, in order; stdout contains only JSON."""
    lines = [line for line in job.complained.splitlines() if line.startswith("report")]
    assert lines[0] == "report: starting Spark"
    steps = dict.fromkeys(line.partition(": ")[2].partition(",")[0] for line in lines[1:])
    always = ["decode", "write", "page"]
    assert [step for step in steps if step in always] == always
    total = len(STEPS)
    assert lines[1] == f"report, 1 of {total}: decode"
    assert lines[-1] == f"report, {total} of {total}: page"


def test_task_counts_are_those_of_the_current_stage(spark: Any, tmp_path: Path) -> None:
    """One of three tasks is done and the others wait."""
    gate = tmp_path / "gate"

    def pass_gate(number: int) -> int:
        while number > 0 and not gate.exists():
            time.sleep(0.01)
        return number

    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(lambda: spark.sparkContext.parallelize([0, 1, 2], 3).map(pass_gate).collect())
        try:
            wait_for(lambda: tasks_of(spark) == (1, 3) or job.done(), "a task is done")
            assert not job.done()
        finally:
            gate.touch()
        assert job.result() == [0, 1, 2]
    assert tasks_of(spark) == (0, 0)


def cut_as_rotation_does(capture: Path, folder: Path, target_bytes: int) -> int:
    """Cut a pcap file into consecutive files; returns their number."""
    folder.mkdir()
    content = capture.read_bytes()
    parts = split(capture, target_bytes)
    for number, part in enumerate(parts):
        inside = content[max(part.start, _PCAP_HEADER_BYTES) : part.end]
        (folder / f"switch-{number:04d}.pcap").write_bytes(content[:_PCAP_HEADER_BYTES] + inside)
    return len(parts)


_PCAP_HEADER_BYTES = 24
