"""Readiness of a service: the notice to its manager, when it is sent, and by which process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_for
from umstack.cli.service_manager import ServiceManager

LIMIT_SECONDS = 60


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """The manager's end of the socket, with an address in the file system or in the abstract namespace."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@umstack-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(name.replace("@", "\0"))
        made.settimeout(LIMIT_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield made


def test_readiness_is_announced_once_and_by_this_process_alone(manager: socket.socket) -> None:
    """Programs that the service starts do not find the socket."""
    service = ServiceManager()
    assert "NOTIFY_SOCKET" not in os.environ
    service.announce_readiness()
    service.announce_readiness()
    assert manager.recv(100) == b"READY=1"
    manager.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager.recv(100)


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands work the same when a person starts them."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    ServiceManager().announce_readiness()


@pytest.mark.parametrize(
    "arguments",
    [
        ("resolver", "--listen", "127.0.0.1:0"),
        ("exporter", "--listen", "127.0.0.1:0"),
        ("record", "ready", "--out", "recorded", "-i", "lo"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_service_is_ready_when_it_works(
    manager: socket.socket, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """The notice comes from the command, which then runs until it is ended; packaging/prove-units tests all units."""
    process = subprocess.Popen(
        [sys.executable, "-m", "umstack", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert manager.recv(100) == b"READY=1"
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: process.poll() is not None, "the command's end", LIMIT_SECONDS)
        said = process.communicate()[0]
    assert process.returncode == 0, said
