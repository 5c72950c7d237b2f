"""Steps of the wall clock, at either end, with and without keys: none costs more than its own time plus a second."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.shifted_clock import ShiftedProcess
from tests.unit.keyed_peers import KEY_ID, OTHER, SECRET, write_keys
from tests.unit.loopback import OWN_ADDRESSES, PORTS, open_context
from tests.unit.store_thread import running_store
from tests.waiting import SECONDS, wait_for
from umstack import Context, Receiver
from umstack.recorder.background import READER_NAME, Readers, note_reader

TOPIC = "keyed"
STEP_SECONDS = 300
RECOVERY_SECONDS = 6.0
"""A second by promise; the rest is for machines that are loaded."""
PUBLISH = """
import json, sys, time, umstack
spec = json.loads(sys.argv[1])
with umstack.Context("lo", **spec) as context, context.source("keyed", flow_control="min") as source:
    sent, events = 0, []
    while True:
        try:
            source.send(b"%d" % sent, flush=True, timeout=0.1)
            sent += 1
        except umstack.WouldBlock:
            pass
        events += [event.kind for event in source.receiver_events()]
        print(json.dumps({"sent": sent, "events": events, "transport": source.transport}), flush=True)
        time.sleep(0.02)
"""
SUBSCRIBE = """
import json, sys, umstack
spec = json.loads(sys.argv[1])
with umstack.Context("lo", **spec) as context, context.receiver("keyed") as receiver:
    received, events = 0, []
    while True:
        for event in receiver.poll(timeout=0.05).events():
            if isinstance(event, umstack.Message):
                received += 1
            else:
                events.append(type(event).__name__)
        print(json.dumps({"received": received, "events": events}), flush=True)
"""

PERSIST = """
import json, sys, time, umstack
spec = json.loads(sys.argv[1])
store = tuple(spec.pop("store"))
with (
    umstack.Context("lo", **spec) as context,
    context.source("keyed", store=[store], session_id=7, ume_message_stability_timeout=600000) as source,
):
    sent = 0
    while True:
        try:
            source.send(b"%d" % sent, flush=True, timeout=0.1)
            sent += 1
        except umstack.BackPressured:
            pass
        state = {"sent": sent, "stable": sent - len(source.unstable), "transport": source.transport}
        print(json.dumps(state), flush=True)
        time.sleep(0.02)
"""

TAP_SECONDS = 0.3
TAP = """
import json, sys, time, umstack
from pathlib import Path
began = time.monotonic()
with umstack.Context("lo", **json.loads(sys.argv[1])) as context, context.source("tapped") as source:
    Path("FOLDER").mkdir()
    context.tap("FOLDER", rotate_seconds=0.3)
    while True:
        source.send(b"x", flush=True)
        files = len(list(Path("FOLDER").iterdir()))
        print(json.dumps({"files": files, "seconds": time.monotonic() - began}), flush=True)
        time.sleep(0.02)
"""


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Context options with keys for the topic and for topic resolution."""
    keys = tmp_path / "keys"
    write_keys(keys, "*", (KEY_ID, SECRET))
    with keys.open("a") as file:
        file.write(f"resolution 1 {OTHER.hex()}\n")
    return {"authentication_scope": "all", "authentication_key_file": str(keys), **PORTS}


class _Subscriber:
    """The messages and events of a receiver in this process."""

    def __init__(self, context: Context, receiver: Receiver) -> None:
        self.context, self._receiver = context, receiver
        self.counts: Counter[str] = Counter()

    def received(self) -> int:
        """Return the number of messages so far."""
        for event in self._receiver.poll(timeout=0.02).events():
            self.counts[type(event).__name__] += 1
        return self.counts["Message"]


def _await_more(count: Callable[[], int], what: str, seconds: float = 2 * SECONDS) -> float:
    """Wait for five more; return the seconds that it took."""
    began, before = time.monotonic(), count()
    wait_for(lambda: count() >= before + 5, what, seconds)
    return time.monotonic() - began


def _await_silence(count: Callable[[], int]) -> None:
    """Wait until nothing arrives for a while."""
    state = [count(), time.monotonic()]

    def is_silent() -> bool:
        now = count()
        if now != state[0]:
            state[:] = [now, time.monotonic()]
        return time.monotonic() - state[1] > 0.5

    wait_for(is_silent, "silence")


@pytest.fixture
def subscriber(options: dict[str, Any]) -> Iterator[_Subscriber]:
    with open_context(**options) as context, context.receiver(TOPIC) as receiver:
        yield _Subscriber(context, receiver)


@pytest.mark.parametrize("step", [STEP_SECONDS, -STEP_SECONDS])
def test_a_publisher_whose_clock_was_wrong_is_heard_when_it_is_right(
    options: dict[str, Any], subscriber: _Subscriber, tmp_path: Path, step: int
) -> None:
    """Without a new session its stamps would stay ahead, and be refused, for as long as the clock was ahead."""
    with closing(ShiftedProcess(tmp_path, PUBLISH, {**OWN_ADDRESSES, **options})) as publisher:
        _await_more(subscriber.received, "the first messages")
        first_transport = publisher.latest["transport"]
        publisher.set_ahead(step)
        if step > 0:
            wait_for(lambda: subscriber.received() and subscriber.counts["StaleTags"], "the event")
        else:  # the source begins a new session at once, which is not found: its advertisements are stale
            wait_for(lambda: _stale_resolution(subscriber.context), "the counter")
        _await_silence(subscriber.received)
        publisher.set_ahead(0)
        assert _await_more(subscriber.received, "messages at the right time") < RECOVERY_SECONDS
        wait_for(lambda: "clock_set_back" in publisher.latest["events"], "the source's event")
        assert publisher.latest["transport"] != first_transport


@pytest.mark.parametrize("step", [STEP_SECONDS, -STEP_SECONDS])
def test_a_receiver_whose_clock_was_wrong_receives_when_it_is_right(
    options: dict[str, Any], tmp_path: Path, step: int
) -> None:
    """Flow control hears it again, too: its status messages continue their count, at whatever time."""
    with (
        open_context(**options) as context,
        context.source(TOPIC, flow_control="min", flow_control_receiver_timeout=1000) as source,
        closing(ShiftedProcess(tmp_path, SUBSCRIBE, {**OWN_ADDRESSES, **options})) as subscriber,
    ):
        wait_for(lambda: "received" in subscriber.latest, "the child")
        source.wait_connected(timeout=2 * SECONDS)

        def received() -> int:
            source.send(b"x", flush=True, timeout=SECONDS)
            return int(subscriber.latest["received"])

        _await_more(received, "the first messages")
        subscriber.set_ahead(step)
        wait_for(lambda: received() and "StaleTags" in subscriber.latest["events"], "the event")
        subscriber.set_ahead(0)
        assert _await_more(received, "messages at the right time") < RECOVERY_SECONDS
        began = time.monotonic()
        wait_for(lambda: received() and _members(context), "flow control")
        assert time.monotonic() - began < RECOVERY_SECONDS


def _members(context: Context) -> int:
    return int(context.stats()["source_transports"][0]["receivers_known"])


@pytest.mark.parametrize("step", [STEP_SECONDS, -STEP_SECONDS])
def test_a_step_makes_no_reader_of_a_journal_seem_away(tmp_path: Path, step: int) -> None:
    """A recorder that ends without readers would end, or never end, after a step."""
    note_reader(tmp_path)
    readers = Readers(tmp_path)
    then = time.time() - step  # as after a step of the clock: the file seems old, or comes from the future
    os.utime(tmp_path / READER_NAME, (then, then))
    assert readers.away_seconds() < STEP_SECONDS / 2
    wait_for(lambda: readers.away_seconds() > 0.05, "time passes without readers")
    note_reader(tmp_path)
    assert readers.away_seconds() < 0.05


@pytest.mark.parametrize("step", [STEP_SECONDS, -STEP_SECONDS])
def test_files_of_a_tap_are_rotated_by_age_despite_steps(tmp_path: Path, step: int) -> None:
    """After a step back by wall time no file would be ended for as long as the step."""
    script = TAP.replace("FOLDER", str(tmp_path / "tap"))
    with closing(ShiftedProcess(tmp_path, script, {**OWN_ADDRESSES, **PORTS})) as child:
        wait_for(lambda: child.latest.get("files", 0) >= 2, "files by age")
        child.set_ahead(step)
        before = child.latest["files"]
        wait_for(lambda: child.latest["files"] >= before + 3, "files by age after the step", RECOVERY_SECONDS)
        assert child.latest["files"] <= child.latest["seconds"] / TAP_SECONDS + 2


def _stale_resolution(context: Context) -> int:
    return int(context.stats()["context"]["tr_dgrams_dropped_tag_stale"])


def test_a_persistent_source_whose_clock_was_set_back_registers_its_new_session(
    options: dict[str, Any], tmp_path: Path
) -> None:
    """The Stores keep the data of the session that replaces the first one, without repeats by the source."""
    with (
        running_store(tmp_path / "store", **options) as store,
        closing(
            ShiftedProcess(tmp_path, PERSIST, {**OWN_ADDRESSES, **options, "store": store.endpoint})
        ) as publisher,
    ):

        def stable() -> int:
            return int(publisher.latest.get("stable", 0))

        def sent() -> int:
            return int(publisher.latest.get("sent", 0))

        _await_more(stable, "the first stable messages")
        first_transport = publisher.latest["transport"]
        publisher.set_ahead(STEP_SECONDS)
        _await_more(sent, "messages with stamps ahead")
        publisher.set_ahead(0)
        wait_for(lambda: publisher.latest["transport"] != first_transport, "the new session")
        _await_more(sent, "messages of the new session")
        _await_more(stable, "stable messages of the new session")
