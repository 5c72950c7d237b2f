"""docs/requirements.md says what the tests say."""

from __future__ import annotations

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
