"""Several receivers of one topic in one context: each has a delivery controller, a queue and options; the options of
the transport session are those of the first receiver."""

from __future__ import annotations

import pytest

from tests.unit.loopback import DATAGRAM, connect, open_context
from tests.unit.ways import ITS_FRAGMENTS, ITS_SESSION, alone
from tests.waiting import collect, wait_for
from umstack import Context, Receiver

pytestmark = pytest.mark.usefixtures("way")

LONG = bytes(range(256)) * 24
FRAGMENTS = len(LONG) // DATAGRAM + 1


def _joined(context: Context, topic: str, **options: object) -> Receiver:
    receiver = context.receiver(topic, **options)  # type: ignore[arg-type]
    wait_for(lambda: receiver.stats()["delivery_controllers"], "topic resolution")
    return receiver


@alone(ITS_FRAGMENTS)
def test_each_receiver_has_its_own_order_queue_and_counters() -> None:
    """One receiver gets whole messages, another gets fragments, and a third uses an event queue."""
    with open_context() as context, context.event_queue() as queue:
        source, whole = connect(context, "topic")
        fragments = _joined(context, "topic", ordered_delivery=0, receiver_queue_block_length=65536)
        queued = _joined(context, "topic", queue=queue)
        source.send(LONG, flush=True)
        assert collect(whole, 1)[0].data == LONG
        parts = collect(fragments, FRAGMENTS)
        assert b"".join(part.data for part in parts) == LONG
        assert [part.message_length for part in parts] == [len(LONG)] * FRAGMENTS
        assert next(iter(queue)).data == LONG
        assert [one.stats()["messages_delivered"] for one in (whole, fragments, queued)] == [1, FRAGMENTS, 1]


def test_an_unread_or_closed_receiver_does_not_affect_the_others() -> None:
    """Each receiver has its own controller; the session lives as long as one of them."""
    with open_context() as context:
        source, first = connect(context, "topic")
        second = _joined(context, "topic")
        source.send(b"1", flush=True)
        assert collect(first, 1)[0].data == b"1"
        first.close()
        source.send(b"2", flush=True)
        assert [message.data for message in collect(second, 2)] == [b"1", b"2"]
        third = _joined(context, "topic")
        source.send(b"3", flush=True)
        assert collect(second, 1)[0].data == collect(third, 1)[0].data == b"3"


@alone(ITS_SESSION)
def test_options_of_the_session_are_those_of_the_first_receiver(caplog: pytest.LogCaptureFixture) -> None:
    """A warning names the session options of a later receiver that differ, and only those."""
    with open_context() as context:
        source, _ = connect(context, "topic")
        _joined(context, "topic", ordered_delivery=-1)
        assert not [one for one in caplog.records if one.name == "umstack.receiver"]
        late = _joined(
            context,
            "topic",
            transport_lbtrm_nak_generation_interval=250,
            transport_lbtrm_nak_backoff_interval=20,
        )
        wait_for(lambda: [one for one in caplog.records if one.name == "umstack.receiver"], "the warning")
        warnings = [one.getMessage() for one in caplog.records if one.name == "umstack.receiver"]
        assert len(warnings) == 1
        assert "transport_lbtrm_nak_generation_interval 250 (in force: 10000)" in warnings[0]
        assert "transport_lbtrm_nak_backoff_interval 20 (in force: 200)" in warnings[0]
        assert "suppress" not in warnings[0]
        source.send(b"all the same", flush=True)
        assert collect(late, 1)[0].data == b"all the same"
