"""The capture every test of this tier reads, made once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNSHARE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The capture and the facts, made once."""
    if missing := [tool for tool in ("tshark", "dumpcap", "unshare") if shutil.which(tool) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no network namespace can be made here: run as root")
    made: Path = tmp_path_factory.mktemp("wire")
    made.chmod(0o777)
    done = subprocess.run(
        [*UNSHARE, sys.executable, "tests/wire/emit.py", str(made)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return made
