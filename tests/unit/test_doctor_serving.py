"""The doctor's verdict on what the processes of a host use on an interface."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from umstack.cli.doctor_serving import Way, listening_sockets, serving
from umstack.driver import default_path
from umstack_xdp import find_interface
from umstack_xdp.attachment import AttachMode
from umstack_xdp.facts import AttachedXdp, Facts
from umstack_xdp.ladder import Mode
from umstack_xdp.probe import probe_interface

PATH = default_path("lo")
STEERING = AttachedXdp(7, AttachMode.NATIVE, "steering (feed 4711)", "stop it", steers=True)


@pytest.fixture(scope="module")
def facts() -> Facts:
    """An interface without a program."""
    return probe_interface(find_interface("lo"))


def test_a_driver_that_listens_is_the_way(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over rings or not, as the program on the interface shows; not for a user who may not attach."""
    listening = frozenset({PATH})
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    roles = {4: "none", 5: "attached", 6: "serves"}
    contexts = [{"pid": pid, "interface": "lo", "driver": role} for pid, role in roles.items()]
    found = serving(facts, Mode.NATIVE, contexts, listening)
    assert found.way is Way.DRIVER
    assert "over sockets" in found.why
    assert found.why.endswith("without it: process 4")
    assert "driver='auto'" in found.remedy
    over_rings = serving(replace(facts, attached=STEERING), Mode.NATIVE, [], listening)
    assert "over rings (steering (feed 4711))" in over_rings.why
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    refused = serving(facts, Mode.NATIVE, [], listening)
    assert refused.way is Way.SOCKETS
    assert "may not attach" in refused.why
    assert "--allow-user" in refused.remedy


def test_rings_of_a_process_are_named(facts: Facts) -> None:
    """Without a driver; a program of another product is not ours to call rings."""
    found = serving(replace(facts, attached=STEERING), Mode.NATIVE, [], frozenset({"/run/other.sock"}))
    assert found.way is Way.RINGS
    assert "feed 4711" in found.why
    assert "umstack driver lo" in found.remedy
    foreign = replace(STEERING, steers=None)
    assert serving(replace(facts, attached=foreign), Mode.NATIVE, [], frozenset()).way is Way.SOCKETS


@pytest.mark.parametrize("mode", [Mode.SOCKET, Mode.NATIVE, None])
def test_sockets_have_a_reason_and_their_cost(facts: Facts, mode: Mode | None) -> None:
    """Rings are offered to one process where they are available; processes of other interfaces do not count."""
    contexts: list[dict[str, Any]] = [{"pid": pid, "interface": "lo"} for pid in (1, 2, 2)]
    contexts.append({"pid": 3, "interface": "eth1"})
    found = serving(facts, mode, contexts, frozenset())
    assert found.way is Way.SOCKETS
    assert "2 processes receive each datagram" in found.why
    assert ("link=auto" in found.why) == (mode is Mode.NATIVE)
    assert "each datagram" not in serving(facts, mode, contexts[:1], frozenset()).why


def test_only_sockets_that_listen_count(tmp_path: Path) -> None:
    """A driver that was killed leaves its socket's file, at which nobody listens."""
    path = str(tmp_path / "driver.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(path)
        assert path not in listening_sockets()
        one.listen()
        assert path in listening_sockets()
    assert Path(path).exists()
    assert path not in listening_sockets()
