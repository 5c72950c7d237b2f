"""send_timestamps: the publisher's time in messages, in batches and in Arrow, and the latency computed from it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.unit.loopback import SHARED, connect, open_context, write_counters
from tests.waiting import collect, wait_for
from umstack import Message
from umstack.cli import stat
from umstack.telemetry.exporter_text import LATENCY_SECONDS, Exposition, render

pytestmark = pytest.mark.usefixtures("way")

TIMED = {"send_timestamps": 1}


def test_every_kind_of_send_carries_the_time() -> None:
    """A single message, many messages, a claim, an explicit batch and fragments each have the time of their
    send.
    """
    with open_context() as context:
        source, receiver = connect(context, "timed", **TIMED)
        with source, receiver:
            before_ns = time.time_ns()
            source.send(b"one", flush=True)
            source.send_many([b"many"] * 3, flush=True)
            with source.claim(5) as view:
                view[:] = b"claim"
            source.send(b"held", batch="start")
            held_ns = time.time_ns()
            time.sleep(0.05)
            source.send(b"last", batch="end", flush=True)
            source.send(bytes(5000), flush=True)
            messages = collect(receiver, 8)
            after_ns = time.time_ns()
    for message in messages:
        assert before_ns <= message.sent_ns <= message.received_ns <= after_ns
    held, last = messages[5], messages[6]
    assert (held.data, last.data) == (b"held", b"last")
    assert held.sent_ns <= held_ns < last.sent_ns
    assert last.sent_ns - held.sent_ns >= 50_000_000
    assert [message.sent_ns for message in messages] == sorted(message.sent_ns for message in messages)


def test_without_the_option_there_is_no_time() -> None:
    """The option is off by default: no time is sent, no latency is counted, and the columns contain nulls."""
    with open_context() as context:
        source, receiver = connect(context, "plain")
        with source, receiver:
            source.send_many([b"a", b"b"], flush=True)
            wait_for(lambda: receiver.stats()["queued_messages"] >= 2)
            batch = receiver.poll(10)
            assert set(batch.sent_ns) == {0}
            assert batch.to_arrow().column("sent_ns").null_count == 2
            assert {message.sent_ns for message in batch} == {0}
            (session,) = context.stats()["receiver_transports"]
            assert (session["latency_messages"], session["latency_min"]) == (0, None)
            assert context.latencies().count == 0


def test_arrow_has_nulls_for_messages_without_a_time() -> None:
    """Two sources of a session, one with times, in one batch: rows without a time are null; times are UTC
    timestamps."""
    with open_context() as context, context.event_queue() as queue:
        receivers = [context.receiver(topic, queue=queue) for topic in ("with", "without")]
        with_time = context.source("with", flow_control="min", **TIMED, **SHARED)
        without = context.source("without", flow_control="min", **SHARED)
        for receiver in receivers:
            wait_for(lambda receiver=receiver: receiver.stats()["delivery_controllers"], "topic resolution")
        with_time.wait_connected(timeout=10)
        for _ in range(3):
            with_time.send(b"x" * 10, flush=True)
            without.send(b"y" * 10, flush=True)
        found: list[tuple[bytes, object]] = []
        times: list[int] = []

        def read() -> bool:
            batch = queue.poll(100, 0.1)
            if len(batch):
                arrow = batch.to_arrow()
                column = arrow.column("sent_ns")
                found.extend(zip(arrow.column("payload").to_pylist(), column.to_pylist(), strict=True))
                times.extend(np.frombuffer(batch.sent_ns, np.int64).tolist())
            return len(found) == 6

        wait_for(read, "six messages")
    for payload, sent in found:
        assert (sent is None) == payload.startswith(b"y")
    assert sum(value == 0 for value in times) >= 3


def test_a_retained_message_has_its_time_and_no_latency() -> None:
    """Late join: a retained message has the time of its first send, which does not measure the network."""
    with open_context() as publisher, open_context() as subscriber:
        source = publisher.source("past", late_join=1, **TIMED)
        source.send(b"early", flush=True)
        sent_ns = time.time_ns()
        time.sleep(0.1)
        receiver = subscriber.receiver("past", use_late_join=1)
        (message,) = collect(receiver, 1)
        assert isinstance(message, Message)
        assert 0 < message.sent_ns <= sent_ns < message.received_ns
        assert message.flags & 8
        assert subscriber.latencies().count == 0


def test_latency_is_counted_per_session_and_exposed() -> None:
    """Counters, percentiles and histogram agree; the metrics contain the histogram, the report the clock."""
    with open_context() as context:
        source, receiver = connect(context, "counted", **TIMED)
        with source, receiver:
            for _ in range(50):
                source.send(b"x", flush=True)
            messages = collect(receiver, 50)
            report = {
                **context.stats(),
                "pid": 1,
                "number": 0,
                "command": "test",
                "started_at": 1.0,
                "read_at": 2.0,
            }
            times = context.latencies()
    (session,) = report["receiver_transports"]
    measured_ms = [(message.received_ns - message.sent_ns) / 1e6 for message in messages]
    assert session["latency_messages"] == times.count == sum(session["latency_counts"]) == 50
    assert session["latency_min"] == pytest.approx(min(measured_ms))
    assert session["latency_max"] == pytest.approx(max(measured_ms))
    assert session["latency_negative"] == 0
    middle_ms = sorted(measured_ms)[25]
    assert session["latency_p50_ms"] == pytest.approx(middle_ms, rel=0.3)
    assert set(report["clock"]) >= {"synchronized", "max_error_ns", "detail"}
    text = render(Exposition().families([report]))
    counts = [line for line in text.splitlines() if line.startswith(f"{LATENCY_SECONDS}_count")]
    assert len(counts) == 1
    assert counts[0].endswith(" 50")
    synchronized = [line for line in text.splitlines() if line.startswith("umstack_clock_synchronized")]
    assert len(synchronized) == (report["clock"]["synchronized"] is not None)


def test_stat_shows_latencies_and_their_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`umstack stat` shows figures per session, and the state of this host's clock if there are any."""
    monkeypatch.setenv("UMSTACK_STAT_DIR", str(tmp_path / "stat"))
    with open_context(statistics=True) as context:
        source, receiver = connect(context, "shown", **TIMED)
        with source, receiver:
            plain = CliRunner().invoke(stat.command, [str(os.getpid())])
            assert plain.exit_code == 0, plain.output
            assert "clock of this host" not in plain.output
            source.send(b"x", flush=True)
            collect(receiver, 1)
            write_counters(context)
            shown = CliRunner().invoke(stat.command, [str(os.getpid())])
            as_json = CliRunner().invoke(stat.command, [str(os.getpid()), "--json"])
    assert shown.exit_code == as_json.exit_code == 0
    assert "clock of this host: " in shown.output
    assert "latency_p50_ms" in shown.output
    assert "latency_counts" not in shown.output
    read = json.loads(as_json.stdout)
    assert set(read["clock"]) == set(read["contexts"][0]["clock"])
    assert sum(session["latency_messages"] for session in read["contexts"][0]["receiver_transports"]) == 1
