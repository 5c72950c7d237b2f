"""InterfaceChanged outside the lab: a full queue, a recorder, the sequential mode, and callbacks."""

from __future__ import annotations

import pytest

from tests.unit.loopback import open_context
from tests.waiting import SECONDS, wait_for
from umstack import Context, Event, InterfaceChanged
from umstack._engine.interface_changes import INTERFACE_CHANGES, interface_change_number, interface_change_of
from umstack.recorder.tables import event_rows

EXPECTED = InterfaceChanged("topic", "", "lo", "address_changed", True)


def report(context: Context) -> None:
    """Report a change, as the follower of the interface does."""
    context._engine.report_interface("lo", "address_changed", True)


def test_the_number_of_a_change_holds_all_of_it() -> None:
    """Each pair of change and answer has its own number, from which it is read."""
    pairs = [(change, answer) for change in INTERFACE_CHANGES for answer in (False, True)]
    numbers = [interface_change_number(*pair) for pair in pairs]
    assert len(set(numbers)) == len(pairs)
    assert [interface_change_of(number) for number in numbers] == pairs


@pytest.mark.parametrize("mode", ["embedded", "sequential"])
def test_a_change_is_an_event_between_messages(mode: str) -> None:
    """It has its place in the order of the rows, and ends neither iteration nor the stream."""
    with open_context() as publisher, open_context(mode=mode) as context:
        receiver = context.receiver("topic")
        source = publisher.source("topic")
        receiver.wait_connected(timeout=SECONDS)
        source.send(b"before", flush=True)
        rows: list[Event] = []

        def reaches(count: int) -> None:
            wait_for(lambda: rows.extend(receiver.poll(timeout=0.05).events()) or len(rows) >= count)

        reaches(2)
        report(context)
        reaches(3)
        source.send(b"after", flush=True)
        reaches(4)
        assert rows[2] == EXPECTED
        assert [getattr(row, "data", None) for row in rows] == [None, b"before", None, b"after"]


def test_a_callback_gets_the_change() -> None:
    """Callbacks get every row."""
    got: list[Event] = []
    with open_context() as context:
        context.receiver("topic", got.append)
        report(context)
        wait_for(lambda: got == [EXPECTED])


def test_a_closed_reader_gets_none(caplog: pytest.LogCaptureFixture) -> None:
    """Closed receivers and queues are left out."""
    with open_context() as context:
        context.receiver("topic").close()
        context.event_queue().close()
        report(context)
    assert not caplog.records


def test_a_recorder_keeps_the_change() -> None:
    """The row of the recorder's table of events names the interface."""
    with open_context() as context:
        receiver = context.receiver("topic")
        report(context)
        batch = receiver.poll(timeout=SECONDS)
        assert event_rows(batch, 7).to_pylist() == [
            {
                "time_ns": 7,
                "topic": "topic",
                "source": "lo",
                "kind": "interface_address_changed",
                "first_sequence_number": None,
                "sequence_number": None,
                "lost": 0,
            }
        ]
