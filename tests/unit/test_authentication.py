"""Contexts with keys, over loopback: which hear which, sessions by key set, rotation, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import umstack
from tests.tag_oracle import aes, gmac
from tests.waiting import wait_for
from umstack.errors import ConfigError, OptionError
from umstack.key_file import write_new_key_file

OPTIONS = {"resolver_multicast_port": 12977}


def test_the_oracle_gives_known_answers() -> None:
    """FIPS 197, appendices C.1 and C.3, and a vector of NIST's for GCM without plain text."""
    key, block = bytes(range(16)), bytes.fromhex("00112233445566778899aabbccddeeff")
    assert aes(key, block).hex() == "69c4e0d86a7b0430d8cdb78070b4c55a"
    assert aes(bytes(range(32)), block).hex() == "8ea2b7ca516745bfeafc49904b496089"
    key, nonce = bytes.fromhex("77be63708971c4e240d1cb79e8d77feb"), bytes.fromhex("e0e00f19fed7ba0136a797f3")
    tag = gmac(key, nonce, bytes.fromhex("7a43ec1d9c0a5a78a0b16533a6213cab"))
    assert tag.hex() == "209fcc8d3675ed938e9c7166709dd946"


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    """Context options with a new key file."""
    file = tmp_path / "keys"
    write_new_key_file(file, ["orders", "*"])
    return {"authentication_key_file": str(file), "authentication_scope": "all", **OPTIONS}


def exchange(publisher: umstack.Context, subscriber: umstack.Context, topic: str) -> None:
    """One message from one to the other."""
    with subscriber.receiver(topic) as receiver, publisher.source(topic, flow_control="min") as source:
        source.wait_connected(timeout=10)
        source.send(b"hello", flush=True)
        got: list[umstack.Message] = []
        wait_for(lambda: got.extend(receiver.poll(10, 0.1).messages()) or got, "the message")
        assert got[0].data == b"hello"


@pytest.mark.parametrize("scope", ["control", "all"])
def test_with_the_same_keys_they_hear_one_another(keys: dict[str, Any], scope: str) -> None:
    """Nothing is dropped, topic resolution included."""
    keys["authentication_scope"] = scope
    with umstack.Context("lo", **keys) as publisher, umstack.Context("lo", **keys) as subscriber:
        exchange(publisher, subscriber, "orders")
        dropped = {
            name: n for name, n in subscriber.stats()["context"].items() if "dgrams_dropped_tag" in name
        }
        assert len(dropped) == 5
        assert not any(dropped.values())


def test_another_key_file_is_an_unknown_sender(keys: dict[str, Any], tmp_path: Path) -> None:
    """It is heard by nobody, which is counted."""
    other = tmp_path / "other"
    write_new_key_file(other, ["*"])
    strange = keys | {"authentication_key_file": str(other)}
    with (
        umstack.Context("lo", **keys) as publisher,
        umstack.Context("lo", **strange) as subscriber,
        subscriber.receiver("orders"),
        publisher.source("orders"),
    ):
        wait_for(lambda: subscriber.stats()["context"]["tr_dgrams_dropped_tag_wrong"], "a drop")
        assert subscriber.stats()["receiver_transports"] == []


def test_topics_with_other_keys_go_on_other_sessions(keys: dict[str, Any]) -> None:
    """Even where both name one group: a session has one key set."""
    group = {"transport_lbtrm_multicast_address": "224.10.10.11"}
    with umstack.Context("lo", **keys) as context:
        sources = [context.source(topic, **group) for topic in ("orders", "a", "b")]
        sessions = [source.transport for source in sources]
        assert sessions[1] == sessions[2] != sessions[0]


def test_keys_are_exchanged_while_a_context_is_open(keys: dict[str, Any]) -> None:
    """A changed file is loaded; a bad one is not, and the keys in use stay."""
    file = Path(keys["authentication_key_file"])
    with umstack.Context("lo", **keys) as publisher, umstack.Context("lo", **keys) as subscriber:
        text = file.read_text()
        file.write_text(text + "nonsense\n")
        time.sleep(1.5)
        exchange(publisher, subscriber, "orders")
        file.write_text(text.replace("topic orders 1 ", "topic orders 2 "))
        time.sleep(2.5)
        exchange(publisher, subscriber, "orders")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"authentication_key_file": "none"}, OptionError, "umstack key new FILE"),
        ({"authentication_key_file": "/nowhere/keys"}, umstack.UmError, "/nowhere/keys"),
        ({"authentication_scope": "data"}, OptionError, "none | control | all"),
        ({"authentication_time_tolerance": 0}, OptionError, "1..86400"),
        ({"resolver_unicast_daemon": "127.0.0.1:15380"}, OptionError, "remove the `resolution` lines"),
    ],
)
def test_invalid_arguments_are_refused(
    keys: dict[str, Any], change: dict[str, Any], error: type[Exception], said: str
) -> None:
    """Before anything is opened for long, with what to do."""
    with pytest.raises(error) as refused:
        umstack.Context("lo", **(keys | change))
    assert said in str(refused.value)


@pytest.mark.parametrize("spoil", [lambda f: f.chmod(0o644), lambda f: f.write_text("topic * 1 00\n")])
def test_a_bad_key_file_is_refused_by_a_context(keys: dict[str, Any], spoil: Callable[[Path], Any]) -> None:
    """Too open, or not to be read: no context without the keys it was to have."""
    spoil(Path(keys["authentication_key_file"]))
    with pytest.raises((ConfigError, OptionError), match="key"):
        umstack.Context("lo", **keys)
