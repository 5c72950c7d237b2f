"""Topics with keys at Stores: sources, receivers and replays that have the keys, and refusals of those that do not."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.keyed_peers import KEY_ID, OTHER, SECRET, write_keys
from tests.unit.loopback import OWN_ADDRESSES, open_context
from tests.unit.store_thread import PausedStore, running_store
from tests.waiting import SECONDS, collect, wait_for
from umstack import Context
from umstack.cli import command
from umstack.errors import NotConnected, OptionError
from umstack.persistence.events import RegistrationRefused
from umstack.persistent_source import PersistentSource
from umstack.store.client import replay

pytestmark = pytest.mark.usefixtures("way")

TOPIC = "keyed"
AES = {"encryption": "aes-256-gcm"}


def _options(file: Path | None, **more: Any) -> dict[str, Any]:
    named = {} if file is None else {"authentication_scope": "all", "authentication_key_file": str(file)}
    return {**named, **more}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The key file of the topic."""
    write_keys(tmp_path / "keys", TOPIC, (KEY_ID, SECRET))
    return tmp_path / "keys"


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A key file with another key for the topic."""
    write_keys(tmp_path / "others", TOPIC, (KEY_ID, OTHER))
    return tmp_path / "others"


@pytest.fixture
def store(keys: Path, tmp_path: Path) -> Iterator[PausedStore]:
    """A Store with the key."""
    with running_store(tmp_path / "store", **_options(keys)) as running:
        yield running


def _publish(context: Context, store: PausedStore, **options: Any) -> PersistentSource:
    return context.source(TOPIC, store=[store.endpoint], session_id="desk7", **options)


def _numbers(first: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, end)]


@pytest.mark.parametrize(
    "more", [{"authentication_scope": "control"}, {}, AES], ids=["control", "all", "encrypted"]
)
def test_everyone_with_the_key_reads_live_recovered_and_replayed_messages(
    keys: Path, tmp_path: Path, more: dict[str, Any]
) -> None:
    """A restarted receiver, and a replay after the source has ended; also the longest message."""
    options = _options(keys, **more)
    with running_store(tmp_path / "store", **options) as store, open_context(**options) as context:
        with open_context(**options) as publishing, _publish(publishing, store) as source:
            source.send_many(_numbers(0, 100), flush=True)
            assert source.wait_stable(SECONDS)
            with context.receiver(TOPIC, session_id="risk3") as receiver:
                source.send_many(_numbers(100, 150), flush=True)
                assert [one.data for one in collect(receiver, 150)] == _numbers(0, 150)
            source.send_many(_numbers(150, 200), flush=True)
            with context.receiver(TOPIC, session_id="risk3") as receiver:
                assert [one.data for one in collect(receiver, 50)] == _numbers(150, 200)
            longest = os.urandom(source.message_maximum_bytes)
            source.send(longest, flush=True)
            assert source.close(SECONDS) == []
        with context.receiver(TOPIC, from_store=[store.endpoint]) as replayed:
            played = itertools.islice(replayed.events(timeout=0), 201)
            assert [one.data for one in played] == [*_numbers(0, 200), longest]
        encryption = more.get("encryption", "none")
        read = replay(TOPIC, store.endpoint, 3, authentication_key_file=keys, encryption=encryption)
        assert [one.data for one in read] == [*_numbers(0, 200), longest]
        assert not any(
            value for name, value in context.stats()["context"].items() if "recovery_dropped" in name
        )


def test_the_command_replays_with_the_keys_of_its_configuration(keys: Path, store: PausedStore) -> None:
    """`umstack recv --from-store` takes the keys from the context's options."""
    with open_context(**_options(keys)) as publishing, _publish(publishing, store) as source:
        source.send(b"kept", flush=True)
        assert source.close(SECONDS) == []
    arguments = [
        "recv",
        TOPIC,
        "--from-store",
        "{}:{}".format(*store.endpoint),
        "--until-end",
        "--count",
        "1",
    ]
    named = {**OWN_ADDRESSES, **_options(keys)}
    wanted = [word for name, value in named.items() for word in ("-o", f"context.{name}={value}")]
    assert CliRunner().invoke(command, arguments + wanted).stdout == "kept\n"
    assert CliRunner().invoke(command, arguments).exit_code == 1


@pytest.mark.parametrize(
    ("file", "more", "reason"),
    [
        (None, {}, "configuration"),
        ("others", {}, "does not use this key"),
        ("keys", AES, "does not use this key"),
    ],
    ids=["no key", "another key", "encrypted"],
)
def test_a_source_without_the_key_is_refused(
    store: PausedStore, keys: Path, others: Path, file: str | None, more: dict[str, Any], reason: str
) -> None:
    """The error has the reason, and so has an event, once."""
    del others
    options = _options(keys.with_name(file) if file else None, **more)
    with (
        open_context(**options) as publishing,
        pytest.raises(NotConnected, match=reason) as caught,
    ):
        _publish(publishing, store, registration_timeout=1.2)
    assert str(caught.value).count(reason) == 1
    assert "keys" in str(caught.value.hint)


def test_a_source_with_a_key_is_refused_by_a_store_without(keys: Path, tmp_path: Path) -> None:
    """It never goes on without tags."""
    with (
        running_store(tmp_path / "plain") as store,
        open_context(**_options(keys)) as publishing,
        pytest.raises(NotConnected, match="does not use this key"),
    ):
        _publish(publishing, store, registration_timeout=1.2)


def test_a_store_that_never_greets_is_asked_again(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that was unplugged after it accepted the connection delays no source."""
    monkeypatch.setattr("umstack.persistence.store_link._CONNECTING_NS", 200_000_000)
    with socket.create_server(("127.0.0.1", 0)) as listener, open_context(**_options(keys)) as publishing:
        listener.settimeout(SECONDS)
        source = threading.Thread(target=_publish_in_vain, args=(publishing, listener.getsockname()))
        source.start()
        with contextlib.ExitStack() as silent:
            for _ in range(3):
                silent.enter_context(listener.accept()[0])
            source.join()


def _publish_in_vain(context: Context, endpoint: tuple[str, int]) -> None:
    with contextlib.suppress(NotConnected):
        context.source(TOPIC, store=[endpoint], session_id=7, registration_timeout=2)


def test_a_replay_without_the_key_is_refused(
    keys: Path, others: Path, store: PausedStore, tmp_path: Path
) -> None:
    """Before anything is read; a file that others can read is refused, too."""
    with open_context(**_options(keys)) as publishing, _publish(publishing, store) as source:
        source.send(b"secret", flush=True)
        assert source.close(SECONDS) == []
    for wrong, reason in (
        ({}, "configuration"),
        ({"authentication_key_file": others}, "does not use this key"),
        ({"authentication_key_file": keys, **AES}, "does not use this key"),
    ):
        with pytest.raises(NotConnected, match=reason):
            list(replay(TOPIC, store.endpoint, 3, **wrong))  # type: ignore[arg-type]
    (tmp_path / "open").write_bytes(keys.read_bytes())
    with pytest.raises(OptionError, match="others"):
        list(replay(TOPIC, store.endpoint, 3, authentication_key_file=tmp_path / "open"))


def test_a_receiver_without_the_key_gets_nothing(
    keys: Path, others: Path, store: PausedStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A Store that refuses it is logged, and another key counted as in every recovery."""
    caplog.set_level(logging.WARNING)
    with (
        open_context(**_options(keys)) as publishing,
        open_context() as plain,
        open_context(**_options(others)) as keyed,
        _publish(publishing, store) as source,
        plain.receiver(TOPIC, session_id=3) as without,
        keyed.receiver(TOPIC, session_id=4) as wrong,
    ):
        source.send(b"secret", flush=True)
        assert source.wait_stable(SECONDS)
        wait_for(lambda: "refuses the receiver of 'keyed': configuration" in caplog.text, "the refusal")
        wait_for(lambda: keyed.stats()["context"]["recovery_dropped_tag_key"], "the count")
        assert without.poll(timeout=0.2).messages() == []
        assert wrong.poll().messages() == []


def test_keys_rotate_without_loss(keys: Path, store: PausedStore) -> None:
    """UP-7: connections with a key that is removed are made again with the next one."""
    contexts = [open_context(**_options(keys)) for _ in range(2)]
    publishing, receiving = contexts
    rings = [one._engine.keyring for one in (publishing, receiving, store._context)]
    numbers = iter(_numbers(0, 400))
    try:
        source = _publish(publishing, store)
        receiver = receiving.receiver(TOPIC, session_id=3)
        for step in (((7, SECRET),), ((7, SECRET), (8, OTHER)), ((8, OTHER), (7, SECRET)), ((8, OTHER),)):
            write_keys(keys, TOPIC, *step)
            wait_for(
                lambda step=step: all(  # type: ignore[misc]
                    [(one.id, one.secret) for one in ring.keys_of(TOPIC)] == list(step) for ring in rings
                ),
                "the keys",
            )
            source.send_many(list(itertools.islice(numbers, 100)), flush=True)
            assert source.wait_stable(SECONDS)
        assert [one.data for one in collect(receiver, 400)] == _numbers(0, 400)
        assert [
            one.data for one in replay(TOPIC, store.endpoint, 4, authentication_key_file=keys)
        ] == _numbers(0, 400)
        refused = [one for one in source.take_events() if isinstance(one, RegistrationRefused)]
        assert len(refused) <= 1
    finally:
        for context in contexts:
            context.close()


def test_a_replay_continues_with_the_key_that_replaces_its_first_one(keys: Path, store: PausedStore) -> None:
    """It reads the key file again for each connection, so it survives a rotation."""
    sent = [b"%d" % number for number in range(3 * 8192)]
    with open_context(**_options(keys)) as publishing, _publish(publishing, store) as source:
        source.send_many(sent, flush=True)
        assert source.close(SECONDS) == []
    read = replay(TOPIC, store.endpoint, 3, authentication_key_file=keys)
    found = [next(read).data]
    write_keys(keys, TOPIC, (8, OTHER))
    ring = store._context._engine.keyring
    wait_for(lambda: [one.id for one in ring.keys_of(TOPIC)] == [8], "the new key at the Store")
    found += [one.data for one in read]
    assert found == sent


def test_a_store_that_ends_a_connection_early_has_not_refused_the_key(keys: Path) -> None:
    """A Store that ends, or has no place for a client, is not reported as one with other keys."""
    with socket.create_server(("127.0.0.1", 0)) as listener, open_context(**_options(keys)) as publishing:
        is_over = threading.Event()

        def end_all() -> None:
            while not is_over.is_set():
                listener.accept()[0].close()

        ending = threading.Thread(target=end_all)
        ending.start()
        try:
            with pytest.raises(NotConnected, match="no answer"):
                publishing.source(
                    TOPIC, store=[listener.getsockname()], session_id=7, registration_timeout=1.0
                )
            with pytest.raises(NotConnected) as caught:
                list(replay(TOPIC, listener.getsockname(), 3, authentication_key_file=keys))
            assert "key" not in str(caught.value)
        finally:
            is_over.set()
            socket.create_connection(listener.getsockname()).close()
            ending.join()
