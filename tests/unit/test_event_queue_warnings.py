"""Event queues warn of what waits too long or in too great a number, and count how long rows wait (UX-20)."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from tests.unit.loopback import open_context
from tests.waiting import wait_for
from umstack import Context, EventQueue, Receiver, Source
from umstack.config import Config
from umstack.errors import ConfigError, OptionError


def _filled(context: Context, queue: EventQueue) -> tuple[Source, Receiver]:
    receiver = context.receiver("topic", queue=queue)
    source = context.source("topic")
    wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
    return source, receiver


def _send(source: Source, queue: EventQueue, count: int) -> None:
    before = queue.stats()["events_tot"] or 0
    for _ in range(count):
        source.send(b"message", flush=True)
    wait_for(lambda: (queue.stats()["events_tot"] or 0) >= before + count, "the rows")


def test_a_queue_that_grows_beyond_its_size_is_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    """UX-20: evaluated at the read; once until a read finds no more than the threshold; one log record."""
    with open_context() as context, context.event_queue(queue_size_warning=10) as queue:
        source, _ = _filled(context, queue)
        _send(source, queue, 30)
        assert queue.stats()["size_warnings"] == 0, "nothing was read yet"
        assert (queue.stats()["events"] or 0) >= 30
        for _ in range(3):
            queue.poll(2)
        assert queue.stats()["size_warnings"] == 1
        while queue.poll():
            pass
        _send(source, queue, 5)
        queue.poll()
        assert queue.stats()["size_warnings"] == 1
        _send(source, queue, 30)
        queue.receive()
        assert queue.stats()["size_warnings"] == 2
        assert queue.stats()["delay_warnings"] == 0
        wait_for(lambda: _records(caplog), "the record")
        said = [record.getMessage() for record in _records(caplog)]
        assert len(said) == 1
        assert said[0].startswith("event queue 1: size_warnings +")


def _records(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [one for one in caplog.records if getattr(one, "umstack_counter", "").startswith("event_queue.")]


def test_a_row_that_waits_too_long_is_counted_once() -> None:
    """UX-20: the age of the oldest row, in microseconds from its coming into the queue to the read."""
    with open_context() as context, context.event_queue(queue_delay_warning=100_000) as queue:
        source, _ = _filled(context, queue)
        _send(source, queue, 4)
        while queue.poll():
            pass
        assert queue.stats()["delay_warnings"] == 0
        _send(source, queue, 4)
        time.sleep(0.15)  # what is measured is the time that passes
        for _ in range(3):
            queue.poll(1)
        assert queue.stats()["delay_warnings"] == 1
        while queue.poll():
            pass
        _send(source, queue, 1)
        queue.poll()
        assert queue.stats()["delay_warnings"] == 1
        assert queue.stats()["age_max"] == 0, "nobody asked for ages"


def test_ages_are_counted_where_they_are_asked_for() -> None:
    """age_min, age_mean and age_max are in microseconds."""
    with open_context() as context, context.event_queue(queue_age_enabled=1) as queue:
        assert queue.stats()["age_min"] is None
        source, _ = _filled(context, queue)
        _send(source, queue, 1)
        time.sleep(0.05)  # what is measured is the time that passes
        queue.poll()
        stats = queue.stats()
        assert 50_000 <= (stats["age_max"] or 0) < 5_000_000
        _send(source, queue, 1)
        queue.poll()
        least, mean, most = (queue.stats()[f"age_{one}"] or 0 for one in ("min", "mean", "max"))
        assert least < 50_000 <= most
        assert least <= mean <= most


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_service_times_are_counted_where_they_are_asked_for(mode: str) -> None:
    """The service time is the time that on_message takes for a row."""
    got: list[Any] = []

    def on_message(event: Any) -> None:
        time.sleep(0.01)  # what is measured is the time that passes
        got.append(event)

    with (
        open_context(mode) as context,
        context.event_queue(on_message, queue_service_time_enabled=1) as queue,
        context.event_queue(got.append) as plain,
    ):
        receivers = [context.receiver("topic", queue=one) for one in (queue, plain)]
        source = context.source("topic")
        while not all(receiver.stats()["delivery_controllers"] for receiver in receivers):
            context.idle(0.001)
        source.send(b"message", flush=True)
        while not queue.stats()["events_svc_max"]:
            context.idle(0.001)
        stats = queue.stats()
        assert 10_000 <= (stats["events_svc_min"] or 0) <= (stats["events_svc_max"] or 0)
        assert plain.stats()["events_svc_max"] == 0


def test_every_event_queue_is_in_the_statistics_under_its_name() -> None:
    """The context counts its event queues: wildcard receivers are included, a receiver's own queue is not."""
    with open_context() as context:
        first, second = context.event_queue(), context.event_queue()
        context.wildcard_receiver(prefix="some.", queue_size_warning=5)
        context.receiver("alone")
        named = [one["queue"] for one in context.stats()["event_queues"]]
        assert named == ["event queue 1", "event queue 2", "event queue 3"]
        first.close()
        second.close()
        assert [one["queue"] for one in context.stats()["event_queues"]] == ["event queue 3"]
        with pytest.raises(OptionError, match="is not a receiver option"):
            context.receiver("topic", queue_size_warning=1)


def test_a_file_sets_the_options_of_its_scope() -> None:
    """UX-20: scope event_queue, as UM has it; what does not exist here is explained."""
    text = "event_queue queue_size_warning 1000\nevent_queue queue_delay_warning 1500\nevent_queue queue_age_enabled 1"
    options = Config.parse(text).event_queue_options(queue_size_warning=7)
    assert (options.queue_size_warning, options.queue_delay_warning_ns, options.queue_age_enabled) == (
        7,
        1_500_000,
        True,
    )
    with pytest.raises(ConfigError, match="queue_count_enabled does not exist here"):
        Config.parse("event_queue queue_count_enabled 1")
