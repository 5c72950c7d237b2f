"""`umstack send --store`: a Store keeps the messages, which are read back after the publisher has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.loopback import configuration_file, open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.waiting import SECONDS
from umstack.cli import command
from umstack.files import scan
from umstack.message_properties import MessageProperties
from umstack.persistence.store_replay import replay
from umstack.publisher import Publisher


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PausedStore]:
    """A Store of this process."""
    with running_store(tmp_path / "store") as running:
        yield running


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with files from empty to many messages."""
    for name, size in (("empty", 0), ("small", 10), ("deep/large", 300_000), ("deep/er/one", 1_340)):
        file = tmp_path / "tree" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(size))
    (tmp_path / "tree" / "link").symlink_to("deep/large")
    return tmp_path / "tree"


def _run(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command, and return its status and what --json prints."""
    configured = ["-i", "lo", "-c", str(configuration_file(tmp_path)), "--json"]
    done = CliRunner().invoke(command, [*arguments, *configured])
    return done.exit_code, json.loads(done.stdout)


def _send(store: PausedStore, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    kept = ["--store", "{}:{}".format(*store.endpoint), "--session-id", "desk7"]
    return _run(tmp_path, "send", "kept", *kept, *arguments)


def _receive(store: PausedStore, tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    stored = ["--from-store", "{}:{}".format(*store.endpoint), "--until-end"]
    return _run(tmp_path, "recv", "kept", *stored, *arguments)


def test_a_tree_is_received_after_its_publisher_has_ended(
    store: PausedStore, tree: Path, tmp_path: Path
) -> None:
    """Files are sent in chunks of many datagrams; every entry is equal."""
    status, sent = _send(store, tmp_path, "--files", f"{tree}/")
    assert (status, sent["ok"], sent["tree"]["files"]) == (0, True, 4)
    status, received = _receive(store, tmp_path, "--files", str(tmp_path / "target"))
    assert (status, received["trees"][0]["files"]) == (0, 4)
    assert received["trees"][0]["manifest_sha256"] == sent["tree"]["manifest_sha256"]
    assert list(scan(tmp_path / "target")) == list(scan(tree))


def test_a_path_longer_than_a_message_fails_its_entry_only(
    store: PausedStore, tree: Path, tmp_path: Path
) -> None:
    """Of a file, of its directories, and of a link; the others arrive."""
    deep = tree.joinpath(*["d" * 250] * 7)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"content")
    (deep / "link").symlink_to("file")
    status, sent = _send(store, tmp_path, "--files", f"{tree}/", "-o", "source.ume_flight_size=1")
    assert status == 1
    reasons = [problem.rpartition(": ")[2] for problem in sent["problems"]]
    assert len(reasons) >= 4
    assert {reason[:31] for reason in reasons} == {"its path does not fit a message"}
    status, received = _receive(store, tmp_path, "--files", str(tmp_path / "target"))
    assert (status, received["trees"][0]["complete"], received["trees"][0]["files"]) == (0, True, 4)


def test_a_later_run_continues_the_numbering(store: PausedStore, tmp_path: Path) -> None:
    """Two runs with one session id are one source."""
    for _ in range(2):
        assert _send(store, tmp_path, "--size", "3", "--count", "50")[0] == 0
    status, _ = _receive(store, tmp_path, "--output", str(tmp_path / "lines"))
    assert status == 0
    assert (tmp_path / "lines").read_text().split() == 2 * [f"{number:03}" for number in range(50)]


def test_messages_that_are_not_stable_fail_the_run(store: PausedStore, tmp_path: Path) -> None:
    """The Store cannot commit them, and they are given up."""
    store.pause()
    wanted = ["-o", "source.ume_message_stability_lifetime=300"]
    status, sent = _send(store, tmp_path, "--size", "3", "--count", "5", *wanted)
    assert (status, sent["ok"]) == (1, False)
    assert "5 messages are not stable: too few Stores have them" in sent["problems"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--store", "10.9.0.11:14567"], "needs a --session-id"),
        (["--session-id", "7"], "needs a --store"),
        (
            ["--store", "10.9.0.11:1", "--session-id", "7", "--hot-failover", "-i", "a", "-i", "b"],
            "cannot be",
        ),
        (["--store", "nowhere", "--session-id", "7"], "address of a Store"),
    ],
)
def test_options_that_exclude_each_other_are_refused(arguments: list[str], reason: str) -> None:
    """Before a context is opened."""
    done = CliRunner().invoke(command, ["send", "kept", *arguments])
    assert done.exit_code == 2
    assert reason in done.output


def test_messages_are_sent_with_properties(store: PausedStore, tmp_path: Path) -> None:
    """Stores keep those of each message."""
    status, sent = _send(store, tmp_path, "--size", "3", "--count", "5", "--property", "desk=rates")
    assert (status, sent["messages"]) == (0, 5)
    found = list(replay("kept", store.endpoint, session_id=1))
    assert [dict(one.properties) for one in found] == [{"desk": "rates"}] * 5


def test_a_publisher_counts_the_receivers_of_a_persistent_source(store: PausedStore) -> None:
    """Stores are among them; it waits until they have everything."""
    with (
        open_context() as context,
        context.source("kept", store=[store.endpoint], session_id=7, flow_control="min") as source,
    ):
        publisher = Publisher(source)
        publisher.send_many([b"one", b"two"], flush=True)
        publisher.send_each([b"three"], MessageProperties({"a": 1}))
        assert source.known_receivers == 1
        assert source.wait_drained(SECONDS)
        assert source.wait_stable(SECONDS)
        assert source.options.flow_control == "min"
