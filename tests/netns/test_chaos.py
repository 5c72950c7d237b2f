"""Chaos runs (`scripts/dev chaos`): a short one finds nothing, and planted faults of every kind are found."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.plan import make_plan
from tests.chaos.run import ROOT, ChaosRun

SEED = 214
pytestmark = pytest.mark.timeout(400)


def test_a_short_run_accounts_for_every_message() -> None:
    """Ten seconds with keys, a driver that is killed, stops, a clock step and faults of ports; the summary is JSON."""
    command = [sys.executable, "-m", "tests.chaos", "--minutes", "0.167", "--seed", str(SEED), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert (summary["seed"], summary["findings"]) == (SEED, [])
    assert summary["counts"]["received"] > 100
    assert summary["counts"]["recorded"] > 0
    assert {"driver restarts", "kill", "stop", "clock", "lossy", "block", "mtu"} <= summary["counts"].keys()
    assert len(summary["processes"]) == 11
    assert summary["counts"]["stable"] > 100
    assert summary["counts"]["replayed"] >= summary["counts"]["stable"]


def test_planted_faults_are_found(tmp_path: Path) -> None:
    """A dropped, a repeated and an altered message, and a leaked descriptor, thread and memory are findings."""
    plan = replace(make_plan(SEED, 4.0), faults=())
    outcome = ChaosRun(plan, tmp_path / "run", is_planted=True).run()
    found = "\n".join(outcome.findings)
    for kind in ("missing", "repeated", "altered"):
        assert f"subscriber1: {kind}: " in found
    for kind in ("descriptors", "threads", "memory_bytes"):
        assert f"more {kind} after closing" in found
    assert all("subscriber1" in finding for finding in outcome.findings)
