"""Notifications: to receivers about sources (created, deleted, none found), to sources about receivers (known,
gone)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import umstack
from tests.unit.loopback import SMALL_QUEUE, connect, open_context
from tests.unit.ways import OVER_THE_NETWORK
from tests.waiting import SECONDS, collect, wait_for
from umstack import BeginningOfSession, EndOfSession, Message, NoSource, SourceCreated, SourceDeleted
from umstack.config import ContextOptions, ReceiverOptions
from umstack.config.wildcard_receiver_options import WildcardReceiverOptions
from umstack.reader import Reader
from umstack.resolution import TopicPattern
from umstack.resolution.machine import ResolutionMachine, Unanswered

pytestmark = pytest.mark.usefixtures("way")
NOTIFIED = {"source_notification": 1}
_MS = 1_000_000


def _rows(reader: Reader, count: int) -> list[Any]:
    rows: list[Any] = []

    def has_arrived() -> bool:
        rows.extend(reader.poll(timeout=0.05).events())
        return len(rows) >= count

    wait_for(has_arrived, f"{count} rows", SECONDS)
    return rows


def test_a_source_is_created_before_its_rows_and_deleted_after_them() -> None:
    """The events follow the lifetime of the delivery controller, in the order of the rows; without the option there
    are none."""
    with open_context() as context, open_context() as publisher:
        options = {"transport_lbtrm_activity_timeout": 1000}
        receiver = context.receiver("topic", **NOTIFIED, **options)  # type: ignore[arg-type]
        plain = context.receiver("topic")
        source = publisher.source("topic", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        source.send(b"data", flush=True)
        source.close()
        rows = _rows(receiver, 5)
        created = SourceCreated("topic", f"{source.transport}[{source.topic_index}]")
        assert [type(row) for row in rows] == [
            SourceCreated,
            BeginningOfSession,
            Message,
            EndOfSession,
            SourceDeleted,
        ]
        assert rows[0] == created
        assert rows[3:] == [EndOfSession("topic", created.source), SourceDeleted("topic", created.source)]
        assert [type(row) for row in _rows(plain, 3)] == [BeginningOfSession, Message, EndOfSession]


def test_closing_a_receiver_deletes_its_sources_in_a_shared_queue() -> None:
    """A controller also ends with its receiver, before the session ends; other controllers stay."""
    with open_context() as context, context.event_queue() as queue:
        first = context.receiver("topic", queue=queue, **NOTIFIED)  # type: ignore[arg-type]
        source = context.source("topic")
        assert isinstance(_rows(queue, 1)[0], SourceCreated)
        wait_for(lambda: first.stats()["bos_events"] or source.send(b"", flush=True) < 0, "the session")
        first.close()
        rows = _rows(queue, 1)
        while not isinstance(rows[-1], SourceDeleted):
            rows += _rows(queue, 1)
        assert not [row for row in rows if isinstance(row, EndOfSession)]


def test_events_wait_for_space_and_keep_their_order() -> None:
    """A full queue delays the event for a created source, and no row of that source is delivered before it."""
    with open_context() as context, context.event_queue(**SMALL_QUEUE) as queue:
        filler = context.receiver("filler", queue=queue)
        source = context.source("filler")
        wait_for(lambda: filler.stats()["delivery_controllers"], "topic resolution")
        wait_for(
            lambda: filler.stats()["queue_full_pauses"] or source.send(bytes(1000), flush=True) < 0, "full"
        )
        late = context.receiver("late", queue=queue, **NOTIFIED)  # type: ignore[arg-type]
        other = context.source("late")
        wait_for(lambda: late.stats()["delivery_controllers"], "topic resolution")
        other.send(b"late", flush=True)
        rows: list[Any] = []

        def has_arrived() -> bool:
            rows.extend(row for row in queue.poll(timeout=0.05).events() if row.topic == "late")
            return len(rows) >= 3

        wait_for(has_arrived, "rows of the late source")
        assert [type(row) for row in rows] == [SourceCreated, BeginningOfSession, Message]


def test_a_callback_gets_them_and_an_iteration_skips_them() -> None:
    """Iteration yields only messages; the other ways to read return all rows (docs/events.md)."""
    got: list[umstack.Event] = []
    with open_context() as context:
        context.receiver("topic", got.append, **NOTIFIED)  # type: ignore[arg-type]
        source, receiver = connect(context, "topic")
        notified = context.receiver("topic", **NOTIFIED)  # type: ignore[arg-type]
        wait_for(lambda: notified.stats()["delivery_controllers"], "topic resolution")
        source.send(b"data", flush=True)
        assert collect(receiver, 1)[0].data == next(iter(notified)).data == b"data"
        wait_for(lambda: len(got) >= 3, "the callback")
        assert [type(row) for row in got[:3]] == [SourceCreated, BeginningOfSession, Message]


def test_no_source_is_reported_after_the_threshold_of_queries() -> None:
    """NO_SOURCE_NOTIFICATION is delivered to the receivers that enable it, until there is a source."""
    with open_context() as context, open_context() as publisher:
        options: dict[str, Any] = {
            "resolver_query_maximum_initial_interval": 20,
            "resolver_query_minimum_initial_duration": 0,
        }
        enabled = context.receiver("nobody", resolution_no_source_notification_threshold=3, **options)
        quiet = context.receiver("nobody", **options)
        first, second = _rows(enabled, 2)[:2]
        assert first == NoSource("nobody", "", 3)
        assert second == NoSource("nobody", "", 6)
        assert len(quiet.poll()) == 0
        source = publisher.source("nobody", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        enabled.poll()
        source.send(b"data", flush=True)
        rows = _rows(enabled, 1)
        while not isinstance(rows[-1], Message):
            rows += _rows(enabled, 1)
        assert not [row for row in rows if isinstance(row, NoSource)]


def test_a_pattern_without_a_topic_is_reported_after_ten_wildcard_queries() -> None:
    """The default of a wildcard receiver is 10; the event contains the pattern's text."""
    with (
        open_context() as context,
        context.wildcard_receiver(
            prefix="none.", resolver_query_minimum_interval=30, resolver_query_maximum_interval=30
        ) as receiver,
    ):
        event = _rows(receiver, 1)[0]
        assert (type(event), event.queries, event.source) == (NoSource, 10, "")
        assert "none" in event.topic


def test_queries_are_counted_from_the_last_source() -> None:
    """The machine counts exactly: it counts only unanswered queries, reports an event at each multiple and
    none with 0, and restarts with a source.
    """
    machine = ResolutionMachine(ContextOptions(), 1400, 0)
    machine.query("topic", ReceiverOptions(resolution_no_source_notification_threshold=4), 0)
    machine.query("other", ReceiverOptions(), 0)
    pattern = TopicPattern.of_prefix("a.")
    machine.match(7, pattern, WildcardReceiverOptions(resolution_no_source_notification_threshold=0), 0)
    unanswered: list[Unanswered] = []
    for at_ms in range(0, 4000, 10):
        machine.datagrams_to_send(at_ms * _MS)
        unanswered += [one for one in machine.take_unanswered() if isinstance(one, Unanswered)]
    assert {(one.topic, one.key) for one in unanswered} == {("topic", None)}
    assert [one.queries for one in unanswered] == list(range(4, 4 * len(unanswered) + 1, 4))
    assert len(unanswered) > 3


def _kinds(source: umstack.Source) -> list[str]:
    return [event.kind for event in source.receiver_events()]


@OVER_THE_NETWORK
@pytest.mark.parametrize("flow_control", ["min", "none"])
def test_a_source_learns_of_its_receivers(flow_control: str, caplog: pytest.LogCaptureFixture) -> None:
    """receiver_known is reported by flow control or accounts, and receiver_gone by flow control."""
    caplog.set_level(logging.INFO, "umstack.source")
    with open_context() as publisher:
        source = publisher.source("topic", flow_control=flow_control)
        with open_context() as subscriber:
            receiver = subscriber.receiver("topic")
            kinds: list[str] = []

            def is_known() -> bool:
                source.send(b"data", flush=True)
                kinds.extend(_kinds(source))
                return "receiver_known" in kinds

            wait_for(is_known, "the receiver")
            assert kinds.count("receiver_known") == 1
            assert receiver.receive(SECONDS) == b"data"
        if flow_control == "min":
            wait_for(lambda: "receiver_gone" in _kinds(source), "the end of it")
        wait_for(lambda: any("receiver_known" in one.getMessage() for one in caplog.records), "the record")


@OVER_THE_NETWORK
def test_an_idle_receiver_is_gone_when_it_times_out() -> None:
    """The event's amount is the idle time."""
    with open_context() as publisher, open_context("sequential") as subscriber:
        source = publisher.source("topic", flow_control="min", flow_control_receiver_timeout=300)
        receiver = subscriber.receiver("topic")
        wait_for(lambda: subscriber.process_events(0.01) >= 0 and source.is_connected, "the receiver")
        gone: list[umstack.ReceiverEvent] = []

        def is_gone() -> bool:  # while nothing runs the subscriber
            gone.extend(event for event in source.receiver_events() if event.kind == "receiver_gone")
            return bool(gone)

        wait_for(is_gone, "the end of the receiver")
        assert gone[0].amount >= 300 * _MS
        assert not receiver.closed
