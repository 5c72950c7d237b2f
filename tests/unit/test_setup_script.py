"""What the scripts do as root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SETUP = Path(__file__).resolve().parents[2] / "scripts/setup.sh"


def test_root_does_not_use_the_users_path(tmp_path: Path) -> None:
    """A program that somebody put into the user's PATH is not what root runs; UMSTACK_ variables do reach it."""
    planted = tmp_path / "planted"
    planted.mkdir()
    for name, text in (("sudo", 'exec "$@"'), ("find", "echo planted find"), ("chown", "true")):
        (planted / name).write_text(f"#!/bin/sh\n{text}\n")
        (planted / name).chmod(0o755)
    script = f'source {SETUP}; ROOT={tmp_path}; through_sudo sh -c "command -v find; echo \\$UMSTACK_X"'
    environment = {**os.environ, "PATH": f"{planted}:{os.environ['PATH']}", "UMSTACK_X": "passed"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    found, passed, *_ = done.stdout.splitlines()
    assert not found.startswith(str(planted))
    assert passed == "passed"
