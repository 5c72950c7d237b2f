"""`umstack demo` ends by capturing its own run at the switch and writing the report on the capture."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from umstack.cli import command as root
from umstack.lab import Lab

SEED = 20


@pytest.mark.timeout(300)
@pytest.mark.skipif(Lab.supported() is not None, reason=f"no lab here: {Lab.supported()}")
def test_the_demo_reports_on_its_own_capture(spark: Any, tmp_path: Path) -> None:
    """Issue 4: the capture made at the switch has what the publisher sent and the subscribers asked for again.

    In this process, whose Spark session is running: a session of its own costs more than all the rest.
    """
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "big").write_bytes(random.Random(SEED).randbytes(6 << 20))
    report = tmp_path / "report"
    command = ["demo", "--json", "--link", "socket", "--seed", str(SEED), "--loss", "0.03"]
    done = CliRunner().invoke(root, [*command, "--tree", str(tmp_path / "tree"), "--report", str(report)])
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    (run,) = said["runs"]
    assert said["ok"]
    assert said["why_no_report"] is None
    assert Path(said["report"]["page"]) == report / "report.html"
    page = (report / "report.html").read_text()
    assert all(finding["text"].split()[0] in page for finding in said["report"]["findings"])
    assert said["report"]["packets"] >= run["publisher"]["msgs_sent"] + run["publisher"]["rxs_sent"] > 4000
    assert list((report / "captures" / "socket").glob("*.pcapng"))
