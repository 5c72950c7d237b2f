"""A Store in this process: what a source sent is read after the source has ended."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.loopback import configuration_file, open_context
from tests.unit.store_thread import running_store
from tests.waiting import collect, wait_for
from umstack.config.keywords import SourceKeywords
from umstack.errors import BackPressured, InvalidArgument, NotConnected
from umstack.persistence.events import MessageStable, Registered, SourceEvent, StoreBack, StoreUnresponsive
from umstack.persistent_source import PersistentSource
from umstack.store.client import replay
from umstack.store.server import StoreServer

_FAST: SourceKeywords = {"ume_registration_interval": 300, "ume_message_stability_timeout": 200}


def _read(store: StoreServer, session_id: int, topic: str = "orders") -> list[bytes]:
    return [message.data for message in replay(topic, store.endpoint, session_id)]


def _await(source: PersistentSource, event: SourceEvent) -> None:
    wait_for(lambda: event in source.take_events(), repr(event))


def test_a_subscriber_that_starts_after_the_publisher_has_ended_gets_every_message(tmp_path: Path) -> None:
    """Live receivers get them at once; a restarted source continues its numbering; acknowledged ones do not return.

    UP-36, UP-48.
    """
    sent = [b"message %d" % number for number in range(3000)]
    with running_store(tmp_path) as store:
        with open_context() as context:
            live = context.receiver("orders")
            source = context.source("orders", store=[store.endpoint], session_id=7)
            live.wait_connected(timeout=10)
            numbers = [source.send(data) for data in sent[:2000]]
            assert [message.data for message in collect(live, 2000)] == sent[:2000]
            assert source.close() == []
            assert numbers == list(range(2000))
            events = source.take_events()
            assert events[0] == Registered(0, (0,))
            stable = [event for event in events if isinstance(event, MessageStable)]
            assert sum(event.last_sqn - event.first_sqn + 1 for event in stable) == 2000
        assert _read(store, 3) == sent[:2000]
        assert _read(store, 3) == []  # acknowledged
        with (
            open_context() as context,
            context.source("orders", store=[store.endpoint], session_id=7) as source,
        ):
            assert [source.send(data) for data in sent[2000:]] == list(range(2000, 3000))
            assert source.close() == []
        assert _read(store, 3) == sent[2000:]
    with running_store(tmp_path) as store:  # restarted: acknowledgements and messages are on the disk
        assert _read(store, 3) == []
        assert _read(store, 4) == sent
        assert _read(store, 4, "trades") == []


def test_a_quorum_of_stores_continues_without_the_third(tmp_path: Path) -> None:
    """One Store of three ends and comes back; without a quorum nothing is sent, and sent messages stay."""
    with contextlib.ExitStack() as stores, open_context() as context:
        first = stores.enter_context(running_store(tmp_path / "1"))
        second = contextlib.ExitStack()
        endpoints = [first.endpoint, second.enter_context(running_store(tmp_path / "2")).endpoint]
        with contextlib.ExitStack() as third:
            endpoints.append(third.enter_context(running_store(tmp_path / "3")).endpoint)
            source = context.source("orders", store=endpoints, session_id=7, **_FAST)
            wait_for(lambda: len(source.active_stores) == 3)
            for number in range(50):
                source.send(b"%d" % number)
        _await(source, StoreUnresponsive(2, True))
        for number in range(50, 100):
            source.send(b"%d" % number)
        with second:
            pass
        _await(source, StoreUnresponsive(1, False))
        with pytest.raises(BackPressured):
            source.send(b"refused", timeout=0)
        back = stores.enter_context(running_store(tmp_path / "3", endpoints[2].port))
        _await(source, StoreBack(2))
        source.send(b"100")
        assert source.close() == []
        assert _read(first, 3) == [b"%d" % number for number in range(101)]
        assert _read(back, 3)[-1] == b"100"


def test_a_source_without_stores_is_refused(tmp_path: Path) -> None:
    """Neither an empty list nor a Store that does not answer makes a source."""
    del tmp_path
    with open_context() as context:
        with pytest.raises(InvalidArgument):
            context.source("orders", store=[], session_id=7)
        with pytest.raises(NotConnected):
            context.source("orders", store=[("127.0.0.1", 1)], session_id=7, registration_timeout=0.2)


def test_the_command_runs_a_store_until_it_is_stopped(tmp_path: Path) -> None:
    """`umstack store run` keeps messages, and SIGTERM ends it with status 0 and a summary. UP-4."""
    config = configuration_file(tmp_path)
    line = [sys.executable, "-m", "umstack", "store", "run", str(tmp_path / "a"), str(tmp_path / "b")]
    line += ["--listen", "127.0.0.1:0", "-i", "lo", "-c", str(config), "--json"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        stores = []
        for _ in range(2):
            host, _, port = process.stderr.readline().split(" at ")[1].strip().rpartition(":")
            stores.append((host, int(port)))
        with open_context() as context, context.source("orders", store=stores, session_id=7) as source:
            source.send(b"kept")
            assert source.close() == []
        assert [[message.data for message in replay("orders", store, 3)] for store in stores] == [
            [b"kept"]
        ] * 2
        process.send_signal(signal.SIGTERM)
        output = process.stdout.read()
        assert process.wait(20) == 0
    assert [store["messages"] for store in json.loads(output)["stores"]] == [1, 1]
