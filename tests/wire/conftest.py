"""The capture of all packet types that the stack sends, made once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.wire.dissection import Frame, frames

ROOT = Path(__file__).parents[2]
UNSHARE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]


def emitted(tmp_path_factory: pytest.TempPathFactory, script: str, *arguments: str) -> Path:
    """Run a script of this folder on a separate loopback. Return the folder with the capture and the facts."""
    if missing := [tool for tool in ("tshark", "dumpcap", "unshare") if shutil.which(tool) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed")
    if subprocess.run([*UNSHARE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no network namespace can be created here: run as root")
    made: Path = tmp_path_factory.mktemp("wire")
    made.chmod(0o777)
    done = subprocess.run(
        [*UNSHARE, sys.executable, f"tests/wire/{script}.py", str(made), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the capture and the facts, made once."""
    return emitted(tmp_path_factory, "emit")


@pytest.fixture(scope="session")
def capture(directory: Path) -> list[Frame]:
    """Every UDP frame."""
    return frames(directory / "wire.pcapng")


@pytest.fixture(scope="session")
def facts(directory: Path) -> dict[str, Any]:
    """The facts that the senders recorded."""
    found: dict[str, Any] = json.loads((directory / "facts.json").read_text())
    return found
