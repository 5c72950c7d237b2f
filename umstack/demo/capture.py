"""The demo's capture of its own run, made at the switch by `umstack capture`."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from umstack.demo.errors import DemoFailed
from umstack.demo.network import Network

_START_SECONDS = 10.0
_STEP_SECONDS = 0.01
_END_SECONDS = 20.0


def capture_directory(report: Path) -> Path:
    """Return the directory of the captures below the report."""
    return report / "captures"


def clear_captures(report: Path) -> None:
    """Delete the captures of an earlier run, so that the report covers only this one."""
    shutil.rmtree(capture_directory(report), ignore_errors=True)


@contextlib.contextmanager
def capturing(
    net: Network, directory: Path | None, snap_bytes: int | None, has_unicast: bool
) -> Iterator[None]:
    """Capture at the publisher's port of the switch if there is one and a directory is given: the groups and the
    request port or, with `has_unicast`, everything."""
    if directory is None or net.kind != "lab":
        yield
        return
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "umstack", "capture", net.switch_port, "--out", str(directory)]
    command += ["--priority", "normal"]  # the report covers the whole capture
    command += ["--all"] if has_unicast else []
    command += [] if snap_bytes is None else ["--snaplen", str(snap_bytes)]
    process = net.run_at_switch(
        [*command, "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        _await_start(process, directory)
        yield
    finally:
        _end(process)


def _await_start(process: subprocess.Popen[str], directory: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not any(directory.iterdir()):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            _, said = process.communicate()
            raise DemoFailed(
                f"the capture at the switch did not start: {said.strip()}", hint="use --no-report"
            )
        time.sleep(_STEP_SECONDS)


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
