"""A new user's first mistakes: misspelled names, missing paths, text instead of bytes, errors as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.loopback import configuration_file, connect, open_context
from tests.waiting import wait_for
from umstack import BeginningOfSession
from umstack.errors import InvalidArgument, MessageTooLong


def umstack(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command, from its beginning to its end."""
    return subprocess.run(
        [sys.executable, "-m", "umstack", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(("typed", "meant"), [("sned", "send"), ("recieve", "recv"), ("repot", "report")])
def test_a_command_nearly_right_is_suggested(typed: str, meant: str) -> None:
    """`umstack sned` suggests `send`."""
    done = umstack(typed)
    assert done.returncode == 2
    assert f"Did you mean '{meant}'" in done.stderr, done.stderr


def test_a_command_like_no_other_is_not_guessed() -> None:
    """Nothing is suggested for what is near to nothing."""
    done = umstack("xyzzy")
    assert (done.returncode, "Did you mean" in done.stderr) == (2, False)


@pytest.mark.parametrize(
    ("arguments", "named", "status"),
    [
        (("recv", "orders", "--json", "--output", "/nope/x"), "/nope/x", 1),
        (("send", "orders", "--json", "--files", "/nope"), "/nope", 1),
        (("recv", "--json"), "TOPIC", 2),
        (("sned", "--json"), "send", 2),
    ],
)
def test_with_json_an_error_is_json(arguments: tuple[str, ...], named: str, status: int) -> None:
    """One object on standard output, of an error as well, and the line for a person beside it."""
    done = umstack(*arguments)
    said = json.loads(done.stdout)
    assert (done.returncode, said["ok"]) == (status, False)
    assert named in done.stderr
    assert named in said["error"]["message"]
    assert said["error"]["hint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("recv", "orders", "--output", "/proc/nope/x"),
        ("recv", "orders", "--files", "/proc/nope/x"),
        ("capture", "lo", "--out", "/proc/nope/x"),
        ("send", "orders", "--files", "/proc/nope/x"),
    ],
)
def test_a_path_that_cannot_be_had_is_named(arguments: tuple[str, ...]) -> None:
    """The message names the path and what to do about it, and that is not `umstack doctor`."""
    done = umstack(*arguments)
    assert done.returncode == 1
    assert "/proc/nope/x" in done.stderr
    assert "mkdir -p" in done.stderr
    assert "doctor" not in done.stderr


def test_files_are_looked_at_before_receivers_are_waited_for(tmp_path: Path) -> None:
    """Without a receiver it ends at once, not at the end of a wait."""
    done = umstack("send", "orders", "--files", str(tmp_path / "there-is-none"), "--timeout", "25")
    assert done.returncode == 1
    assert "waiting for receivers" not in done.stderr


def test_a_timeout_with_nothing_received_is_a_failure(tmp_path: Path) -> None:
    """Status 0 means that something arrived."""
    configuration = str(configuration_file(tmp_path))
    done = umstack("recv", "orders", "--interface", "lo", "--config", configuration, "--timeout", "0.1")
    assert done.returncode == 1
    assert "nothing was received" in done.stderr


def test_text_explains_itself() -> None:
    """A str is refused with what to write instead."""
    with open_context() as context:
        source = context.source("orders")
        with pytest.raises(InvalidArgument, match=r"bytes, not str.*encode"):
            source.send("text")
        with pytest.raises(InvalidArgument, match=r"bytes, not str.*encode"):
            source.send("text", flush=True, timeout=1)


def test_a_batch_describes_its_content() -> None:
    """Repr(batch)."""
    with open_context() as context:
        source, receiver = connect(context, "orders")
        assert repr(receiver.poll(1, 5)) == "<Batch 0 messages, 1 event, 0 bytes>"
        source.send_many([b"one", b"three"], flush=True)
        seen: list[str] = []

        def has_both() -> bool:
            batch = receiver.poll()
            seen.extend([repr(batch)] if len(batch) == 2 else [])
            return bool(seen)

        wait_for(has_both, "both messages in a batch")
        assert seen == ["<Batch 2 messages, 8 bytes>"]


def test_a_message_too_long_names_the_limit_and_the_option() -> None:
    """How long a message may be, and what makes it longer."""
    with open_context() as context:
        source = context.source("orders")
        most = source.message_maximum_bytes
        with pytest.raises(MessageTooLong, match=f"{most} bytes.*transport_lbtrm_transmission_window_size"):
            source.send(bytes(most + 1))
        with (
            pytest.raises(
                MessageTooLong, match=f"{context.datagram_bytes} bytes.*transport_lbtrm_datagram_max_size"
            ),
            source.claim(context.datagram_bytes),
        ):
            pass


def test_one_rule_decides_where_events_go() -> None:
    """Iteration yields messages, all other reads return rows (docs/events.md)."""
    with open_context() as context:
        source, receiver = connect(context, "orders")
        source.send_many([b"one", b"three"], flush=True)
        wait_for(lambda: receiver.stats()["queued_messages"] == 3, "three rows")
        batch = receiver.poll()
        assert (len(batch), batch.event_count, len(batch.payloads()), len(batch.events())) == (3, 1, 3, 3)
        assert [message.data for message in batch] == [b"one", b"three"]
        assert [message.data for message in batch.messages()] == [b"one", b"three"]
        assert isinstance(batch[0], BeginningOfSession)
