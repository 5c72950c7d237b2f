"""`umstack capture` on a host of a lab."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.waiting import wait_for
from umstack.lab import Host


def start_capture(
    host: Host, *arguments: str, prefix: Sequence[str] = (), interface: str = ""
) -> subprocess.Popen[str]:
    """Start `umstack capture` on a host and an optional interface; it prints its summary as JSON when it
    ends.
    """
    captured = interface or host.interface
    command = [*prefix, sys.executable, "-m", "umstack", "capture", captured, "--json", *arguments]
    process: subprocess.Popen[str] = host.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process


def listening(process: subprocess.Popen[str], directory: Path) -> None:
    """Wait until the capture has its first file."""

    def has_file() -> bool:
        assert process.poll() is None, process.communicate()
        return any(directory.glob("*.part"))

    wait_for(has_file, "a capture file", 20)


def ended(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    """End the capture; return its summary and its stderr."""
    process.terminate()
    process.send_signal(signal.SIGCONT)
    said, complained = process.communicate(timeout=30)
    assert process.returncode == 0, complained
    return json.loads(said), complained
