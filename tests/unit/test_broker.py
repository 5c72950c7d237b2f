"""The broker's connections and its list of interfaces, without rings: a socket of its own and no privilege."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from umstack_xdp import AttachMode, RingMode, RingSettings
from umstack_xdp.broker import Broker, BrokerEvent, Policy
from umstack_xdp.broker_policy import Peer
from umstack_xdp.broker_protocol import MESSAGE_MAX_BYTES, AskRequest, OpenRequest, Request, encode_request
from umstack_xdp.listening import listen_at

IDLE_S = 0.4
PATIENCE_S = 10.0


@contextmanager
def serving(path: Path, policy: Policy) -> Iterator[list[BrokerEvent]]:
    """Run a broker with this policy in a thread; yields it and its log records."""
    events: list[BrokerEvent] = []
    with listen_at(path) as listener, Broker(listener, policy, events.append) as broker:
        thread = threading.Thread(target=broker.serve)
        thread.start()
        try:
            yield events
        finally:
            broker.stop()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    """A client that has said nothing yet."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.settimeout(PATIENCE_S)
        client.connect(str(path))
        yield client


def asked(client: socket.socket, request: Request) -> dict[str, object]:
    """The answer to a request."""
    client.send(encode_request(request))
    answer: dict[str, object] = json.loads(client.recv(MESSAGE_MAX_BYTES))
    return answer


def an_open_request(interface: str) -> OpenRequest:
    """Rings of an interface."""
    return OpenRequest(interface, interface, AttachMode.GENERIC, RingMode.COPY, RingSettings())


def test_an_idle_connection_without_rings_is_closed(tmp_path: Path) -> None:
    """It is hung up on after the idle timeout, not before."""
    with (
        serving(tmp_path / "xdp.sock", Policy(idle_timeout_s=IDLE_S)),
        connected(tmp_path / "xdp.sock") as client,
    ):
        started_s = time.monotonic()
        assert client.recv(1) == b""
        assert IDLE_S <= time.monotonic() - started_s < PATIENCE_S


def test_a_request_restarts_the_idle_time_of_its_connection(tmp_path: Path) -> None:
    """A client that asks more often than the timeout stays as long as it does; then it is ended as any other."""
    with (
        serving(tmp_path / "xdp.sock", Policy(idle_timeout_s=2 * IDLE_S)),
        connected(tmp_path / "xdp.sock") as client,
    ):
        deadline_s = time.monotonic() + 6 * IDLE_S
        while time.monotonic() < deadline_s:
            assert "capabilities" in asked(client, AskRequest())
            time.sleep(IDLE_S / 4)
        assert client.recv(1) == b""


def test_an_interface_that_is_not_named_is_not_lent(tmp_path: Path) -> None:
    """Refused by name before it is looked for, with what to do; the connection goes on."""
    policy = Policy(interfaces=frozenset({"eth7"}))
    with serving(tmp_path / "xdp.sock", policy) as events, connected(tmp_path / "xdp.sock") as client:
        refusal = asked(client, an_open_request("lo"))["error"]
        assert refusal == {
            "message": "lo is not lent",
            "hint": "start the broker with --interface for it, or use another",
            "errno": errno.EACCES,
        }
        assert "capabilities" in asked(client, AskRequest())
    assert [event.what for event in events] == ["refused"]


@pytest.mark.parametrize("interfaces", [None, frozenset({"no-such-if"})], ids=["all", "named"])
def test_an_interface_that_may_be_lent_is_looked_for(
    tmp_path: Path, interfaces: frozenset[str] | None
) -> None:
    """One that is named, or any where none is named, is refused only because it does not exist."""
    with (
        serving(tmp_path / "xdp.sock", Policy(interfaces=interfaces)),
        connected(tmp_path / "xdp.sock") as client,
    ):
        refusal = asked(client, an_open_request("no-such-if"))["error"]
    assert isinstance(refusal, dict)
    assert "is not lent" not in refusal["message"]
    assert "no-such-if" in refusal["message"]


@pytest.mark.parametrize(
    ("uid", "groups", "is_admitted"),
    [
        (1007, {20}, True),
        (1008, {10, 20}, True),
        (1008, {20}, False),
        (1008, set(), False),
        (10, {1007}, False),
        (0, set(), True),
        (os.geteuid(), set(), True),
    ],
    ids=["user", "group", "another group", "no group", "numbers swapped", "root", "the broker's user"],
)
def test_only_allowed_users_and_groups_are_admitted(uid: int, groups: set[int], is_admitted: bool) -> None:
    """A policy with a user and a group admits these, root and the broker's own user, and nobody else."""
    policy = Policy(users=frozenset({1007}), groups=frozenset({10}))
    assert policy.admits(Peer(1, uid, frozenset(groups), None)) == is_admitted


def test_a_policy_without_users_and_groups_admits_only_privileged_users() -> None:
    """Nobody is admitted by default: an empty set of groups matches no peer."""
    assert not Policy().admits(Peer(1, os.geteuid() + 1, frozenset({0, 10}), None))
    assert Policy().admits(Peer(1, 0, frozenset(), None))
