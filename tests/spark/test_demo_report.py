"""`umstack demo` captures its own run at the switch and writes a report on the capture."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from umstack.cli import command as root
from umstack.lab import Lab

SEED = 20


@pytest.mark.timeout(300)
@pytest.mark.skipif(Lab.supported() is not None, reason=f"no lab here: {Lab.supported()}")
def test_the_demo_reports_on_its_own_capture(tmp_path: Path) -> None:
    """The captures made at the switch, one per link, contain the publisher's datagrams and the subscribers'
    NAKs; the report covers both."""
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "big").write_bytes(random.Random(SEED).randbytes(4 << 20))
    report = tmp_path / "report"
    command = ["demo", "--json", "--no-recovery", "--seed", str(SEED), "--loss", "0.03"]
    done = CliRunner().invoke(root, [*command, "--tree", str(tmp_path / "tree"), "--report", str(report)])
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["ok"], said["why_no_rings"], said["why_no_report"]) == (True, None, None)
    assert [run["link"] for run in said["runs"]] == ["xdp", "socket"]
    assert Path(said["report"]["page"]) == report / "report.html"
    page = (report / "report.html").read_text()
    assert all(finding["text"].split()[0] in page for finding in said["report"]["findings"])
    captures, sessions = [], {row["point"]: row for row in said["report"]["tables"]["sessions"]}
    for run in said["runs"]:
        (capture,) = (report / "captures" / run["link"]).glob("*.pcapng")
        (session,) = (row for point, row in sessions.items() if point.startswith(capture.stem))
        assert session["datagrams"] == run["publisher"]["msgs_sent"] > 2500
        assert session["retransmissions"] == run["publisher"]["rxs_sent"] > 0
        assert session["naks"] > 0
        captures.append(str(capture))
    assert sorted(said["report"]["captures"]) == sorted(captures)
    assert len(sessions) == len(captures)
