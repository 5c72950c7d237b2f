"""Guarantees for publishers, over loopback."""

from __future__ import annotations

import struct
import threading
import time

import numpy as np
import pytest

import umstack
from tests.unit.loopback import DATAGRAM, open_context
from tests.waiting import SECONDS
from umstack.errors import OptionError

WAIT_S = 5.0


def take(receiver: umstack.Receiver, count: int) -> list[bytes]:
    """Return the payloads of the next messages."""
    deadline = time.monotonic() + WAIT_S
    found: list[bytes] = []
    while len(found) < count and time.monotonic() < deadline:
        found += [message.data for message in receiver.poll(timeout=0.2)]
    return found


def test_send_copies_and_fragments() -> None:
    """AE-31: the caller may reuse its buffer once send() returns; a long message is fragmented."""
    with open_context() as context:
        receiver = context.receiver("copies")
        source = context.source("copies", flow_control="min")
        source.wait_connected(timeout=WAIT_S)
        buffer = bytearray(b"a" * 300_000)
        last = source.send(buffer)
        buffer[:] = b"b" * len(buffer)
        source.send(buffer, flush=True)
        assert last > 0
        assert take(receiver, 2) == [b"a" * 300_000, b"b" * 300_000]


def test_an_application_batch_is_one_message() -> None:
    """UM-33: several records packed by the application arrive as one message."""
    with open_context() as context:
        receiver = context.receiver("records")
        source = context.source("records", flow_control="min")
        source.wait_connected(timeout=WAIT_S)
        records = b"".join(struct.pack(">I", number) for number in range(50))
        assert source.send(records, flush=True) == 0
        assert take(receiver, 1) == [records]
        assert source.stats()["messages_sent"] == 1


def test_the_batching_interval_has_a_floor() -> None:
    """UM-23: three milliseconds is the shortest implicit batching interval."""
    with open_context() as context:
        context.source("floor", implicit_batching_interval=3).close()
        with pytest.raises(OptionError, match="implicit_batching_interval"):
            context.source("floor", implicit_batching_interval=2)


def test_an_idle_source_stays_alive() -> None:
    """AE-43, UM-69: without data, session messages keep the session from timing out at its receivers."""
    with open_context() as context:
        receiver = context.receiver("idle", transport_lbtrm_activity_timeout=400)
        source = context.source(
            "idle",
            flow_control="min",
            transport_lbtrm_sm_minimum_interval=20,
            transport_lbtrm_sm_maximum_interval=40,
        )
        source.wait_connected(timeout=WAIT_S)
        source.send(b"then silence", flush=True)
        assert take(receiver, 1) == [b"then silence"]
        deadline = time.monotonic() + WAIT_S
        while (source.stats()["session_messages_sent"] or 0) < 25 and time.monotonic() < deadline:
            context.idle(0.02)
        assert not [event for event in receiver.poll().events() if isinstance(event, umstack.EndOfSession)]
        source.send(b"still here", flush=True)
        assert take(receiver, 1) == [b"still here"]


def test_a_blocked_publisher_polls_its_own_control() -> None:
    """AE-17, AE-44: only the sends run the protocol; they read the status messages, and none of them waits."""
    size, count = 8192, 2000
    received = 0

    def drain(receiver: umstack.Receiver) -> None:
        nonlocal received
        while received < count and time.monotonic() < deadline:
            received += len(list(receiver.poll(timeout=0.1)))

    deadline = time.monotonic() + 2 * SECONDS
    with open_context("sequential") as publisher, open_context() as subscriber:
        receiver = subscriber.receiver("heard", flow_control_receiver_window=1 << 18)
        source = publisher.source(
            "heard", flow_control="min", transport_lbtrm_transmission_window_size=1 << 20
        )
        while not source.is_connected and time.monotonic() < deadline:
            publisher.process_events(0.01)
        reader = threading.Thread(target=drain, args=(receiver,))
        reader.start()
        sent = 0
        while sent < count and time.monotonic() < deadline:
            try:
                source.send(bytes(size), timeout=0)
                sent += 1
            except umstack.BackPressured:
                time.sleep(0.0001)
        assert sent == count
        source.flush()
        while reader.is_alive():
            publisher.process_events(0.01)
        reader.join()
        assert received == count


def test_data_after_a_pause_is_not_deferred() -> None:
    """W8: datagrams without a requested flush are held back as the deferred tail only while a session streams."""
    with open_context() as context:
        receiver = context.receiver("pauses")
        source = context.source("pauses", flow_control="min")
        source.wait_connected(timeout=WAIT_S)
        left_behind = []
        for _ in range(10):
            time.sleep(0.01)
            source.send(bytes(70_000))
            figures = source.stats()
            left_behind.append((figures["pub_pos"] or 0) - (figures["snd_pos"] or 0))
            assert len(take(receiver, 1)) == 1
        whole = [left for left in left_behind if left < DATAGRAM]
        assert len(whole) > 5, left_behind


def test_deferred_tails_are_sent_while_another_session_streams() -> None:
    """W8: the loop that wakes up for one session also serves a session with a deferred tail."""
    batch, offsets = bytes(8_000_000), np.arange(0, 8_000_001, 1000, dtype=np.int32)
    with open_context() as context, open_context() as elsewhere:
        few, many = elsewhere.receiver("few"), elsewhere.receiver("many", lambda event: None)
        quiet = context.source("few", flow_control="min", implicit_batching_minimum_length=1)
        busy = context.source("many", flow_control="min")
        quiet.wait_connected(timeout=WAIT_S)
        busy.wait_connected(timeout=WAIT_S)
        assert quiet.transport != busy.transport
        done = threading.Event()

        def stream() -> None:
            while not done.is_set():
                busy.send_packed(batch, offsets)

        streaming = threading.Thread(target=stream)
        streaming.start()
        waits = []
        for _ in range(30):
            time.sleep(0.01)
            quiet.send(bytes(4000))  # sent immediately, after a pause
            quiet.send(bytes(4000))  # deferred to the loop
            started = time.monotonic()
            assert len(take(few, 2)) == 2
            waits.append(time.monotonic() - started)
        done.set()
        streaming.join()
        many.close()
        assert sorted(waits)[-4] < 0.05, waits
