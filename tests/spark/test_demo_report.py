"""`umstack demo` ends by capturing its own run at the switch and writing the report on the capture."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from umstack.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
SEED = 20


@pytest.mark.timeout(300)
@pytest.mark.skipif(Lab.supported() is not None, reason=f"no lab here: {Lab.supported()}")
def test_the_demo_reports_on_its_own_capture(tmp_path: Path) -> None:
    """Issue 4: the capture made at the switch has what the publisher sent and the subscribers asked for again."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "big").write_bytes(random.Random(SEED).randbytes(6 << 20))
    report = tmp_path / "report"
    command = [sys.executable, "-m", "umstack", "demo", "--json", "--link", "socket", "--seed", str(SEED)]
    done = subprocess.run(
        [*command, "--loss", "0.03", "--tree", str(tmp_path / "tree"), "--report", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (run,) = said["runs"]
    assert said["ok"]
    assert said["why_no_report"] is None
    assert Path(said["report"]["page"]) == report / "report.html"
    page = (report / "report.html").read_text()
    assert all(finding["text"].split()[0] in page for finding in said["report"]["findings"])
    assert said["report"]["packets"] >= run["publisher"]["msgs_sent"] + run["publisher"]["rxs_sent"] > 4000
    assert list((report / "captures" / "socket").glob("*.pcapng"))
