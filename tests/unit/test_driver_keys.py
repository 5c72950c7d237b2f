"""Topics with keys through a driver: it makes and checks the tags of datagrams, applications those of connections."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.keyed_peers import KEY_ID, SECRET, write_keys
from tests.unit.loopback import PORTS, open_context, serving
from tests.waiting import SECONDS, collect, wait_for
from umstack import DriverError, Request


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, Any]:
    """Context options with keys for every topic that begins with "kept"."""
    write_keys(tmp_path / "keys", "kept*", (KEY_ID, SECRET))
    return {"authentication_scope": "all", "authentication_key_file": str(tmp_path / "keys"), **PORTS}


def test_everything_of_a_keyed_topic_passes(keys: dict[str, Any], tmp_path: Path) -> None:
    """Messages, late join and responses in both directions, between an application with keys and a keyed context."""
    path = tmp_path / "driver.sock"
    with serving(path, **keys), open_context(**keys) as far, open_context(driver=path, **keys) as near:
        for sending, receiving in ((far, near), (near, far)):
            topic = f"kept/{sending is far}"
            source = sending.source(topic, late_join=1)
            source.send(b"past", flush=True)
            assert source.wait_drained(timeout=SECONDS)
            with receiving.receiver(topic) as receiver:
                assert collect(receiver, 1)[0].data == b"past"
                receiver.wait_connected(timeout=SECONDS)
                with source.request(b"question", timeout=SECONDS) as request:
                    (asked,) = collect(receiver, 1)
                    assert isinstance(asked, Request)
                    asked.respond(b"answer")
                    assert next(iter(request)).data == b"answer"
            source.close()
        assert far.stats()["context"]["recovery_malformed"] == 0


def test_an_application_with_keys_refuses_a_driver_without(keys: dict[str, Any], tmp_path: Path) -> None:
    """Its messages would leave without tags; topics without keys are not affected."""
    path = tmp_path / "driver.sock"
    with serving(path) as one, open_context(driver=path, **keys) as near:
        for open_one in (near.source, near.receiver):
            with pytest.raises(DriverError, match="no keys for 'kept'"):
                open_one("kept")
        wait_for(lambda: not one._topics and not one._ending, "the end of what it refused")
        with near.receiver("plain") as receiver, near.source("plain") as source:
            receiver.wait_connected(timeout=SECONDS)
            source.send(b"plain", flush=True)
            assert collect(receiver, 1)[0].data == b"plain"
