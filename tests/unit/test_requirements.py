"""docs/requirements.md says what the tests say, of every requirement."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_requirements_table_is_up_to_date() -> None:
    """The page is what scripts/requirements makes of the tests as they are."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "requirements")],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    page = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
    assert made == page, "run: scripts/requirements > docs/requirements.md"


def test_every_requirement_has_a_test_or_a_reason() -> None:
    """And none has a reason beside its tests, where it would stay when it is true no longer."""
    script = runpy.run_path(str(ROOT / "scripts" / "requirements"))
    proofs, reasons = script["collect"](), script["NOT_A_TEST"]
    required = {(kind, number) for kind, numbers in script["REQUIRED"].items() for number in numbers}
    assert {("UM", 143), ("UX", 12), ("UX", 13), ("UX", 27)} <= required
    assert sorted(required - proofs.keys() - reasons.keys()) == []
    assert sorted(reasons.keys() & proofs.keys()) == []
    assert sorted(reasons.keys() - required) == []
