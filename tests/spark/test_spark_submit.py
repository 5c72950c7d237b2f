"""docs/spark.md: a report runs as a job of spark-submit, with the session's settings from its command line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.spark.cluster import HOME, Cluster
from umstack.capture.generate import Traffic, generate
from umstack.report.run import PAGE

JOB = """\
import json
from umstack.report import make_report

report = make_report({captures!r}, {out!r})
print("JOB", json.dumps([report.packets, [finding.topic for finding in report.findings]]))
"""


@pytest.mark.timeout(240)
def test_a_submitted_job_makes_the_report(cluster: Cluster, tmp_path: Path) -> None:
    """The job of the documentation is submitted to a master by spark-submit without further code."""
    capture, out, job = tmp_path / "c.pcap", tmp_path / "out", tmp_path / "job.py"
    truth = generate(capture, 20_000, Traffic(seed=11, snap_bytes=96, loss=0.002))
    job.write_text(JOB.format(captures=[str(capture)], out=str(out)))
    done = subprocess.run(
        [HOME / "bin" / "spark-submit", "--master", cluster.master, "--driver-memory", "600m", str(job)],
        capture_output=True,
        text=True,
        env=cluster.environment,
        timeout=220,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("JOB ")]
    packets, topics = json.loads(said.removeprefix("JOB "))
    assert packets == truth.packets
    assert "loss" in topics
    assert (out / PAGE).read_text().count('<div class="chart">') == 4
    assert cluster.master in done.stderr, "it ran on the cluster"
