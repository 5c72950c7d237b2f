"""Documented commands of CONTRIBUTING that no other test and no step of CI runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_debug_build_compiles_without_a_warning(tmp_path: Path) -> None:
    """-O1 enables warnings that -O2 does not."""
    command = [sys.executable, "ffi/build.py", "--into", str(tmp_path)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"UMSTACK_BUILD": "debug"}, text=True, capture_output=True
    )
    assert built.returncode == 0, built.stderr
    assert list((tmp_path / "umstack").rglob("_core*.so")), built.stderr
