"""Captures in a lab: `umstack capture` on a host, and the frames that a host sends to the switch."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.waiting import wait_for
from umstack.lab import Host, Lab, namespaces


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


@contextmanager
def sniffing(lab: Lab, host: Host) -> Iterator[socket.socket]:
    """Open a socket that reads the frames arriving at the switch from a host."""
    port = f"port{host.number}"

    def open_socket() -> socket.socket:
        sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
        sniffer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sniffer.bind((port, 0x0003))
        sniffer.settimeout(5)
        return sniffer

    with namespaces.call(lab.switch_namespace, open_socket) as sniffer:
        yield sniffer
