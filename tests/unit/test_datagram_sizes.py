"""Datagrams sent and received have sizes of their own: what is longer than a receiver takes is lost (UX-26)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.loopback import network_context, open_context
from tests.waiting import SECONDS, wait_for
from umstack import Context, Message, Receiver, Source, UnrecoverableLoss

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = ("alone", "to a driver")
"""The sizes are those of the network."""

SHORT, LONG = b"short", bytes(3000)


@pytest.fixture
def publisher(way: str) -> Iterator[Context]:
    with open_context(
        transport_lbtrm_datagram_max_size=0, transport_lbtrm_source_datagram_max_size=4000
    ) as context:
        yield context


def _rows(receiver: Receiver, until: Any) -> list[Any]:
    rows: list[Any] = []

    def came() -> bool:
        rows.extend(receiver.poll(timeout=0.05).events())
        return bool(until(rows))

    wait_for(came, "the rows", SECONDS)
    return [row for row in rows if isinstance(row, Message | UnrecoverableLoss)]


def _transport(context: Context) -> dict[str, Any]:
    found: dict[str, Any] = network_context(context).stats()["receiver_transports"][0]
    return found


def _send_apart(context: Context, source: Source, messages: tuple[bytes, ...]) -> None:
    """Send each message in a datagram of its own: a flush alone does not wait until the datagram was sent."""

    def sent() -> int:
        return sum(one["msgs_sent"] for one in network_context(context).stats()["source_transports"])

    def send(data: bytes) -> None:
        before = sent()
        source.send(data, flush=True)
        wait_for(lambda: sent() > before, "the datagram")

    for data in messages:
        send(data)


def test_a_longer_datagram_is_dropped_counted_and_lost(publisher: Context) -> None:
    """UX-26: a datagram that is too long yields a loss event in its place; its NAKs end when its repair arrives."""
    with open_context(transport_lbtrm_receiver_datagram_max_size=1000) as subscriber:
        options: dict[str, Any] = {
            "transport_lbtrm_nak_generation_interval": 400,
            "delivery_control_loss_check_interval": 50,
        }
        receiver = subscriber.receiver("topic", **options)
        source = publisher.source("topic", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        receiver.wait_connected(timeout=SECONDS)
        _send_apart(publisher, source, (SHORT, LONG, SHORT))
        rows = _rows(receiver, lambda rows: sum(isinstance(row, Message) for row in rows) == 2)
        assert [type(row) for row in rows] == [Message, UnrecoverableLoss, Message]
        assert [row.sequence_number for row in rows] == [0, 1, 2]
        counters = _transport(subscriber)
        assert counters["dgrams_dropped_too_long"] >= 2  # once, and again after each NAK
        assert (counters["unrecovered_too_long"], counters["unrecovered_tmo"]) == (1, 0)
        later = counters["session_messages_rcved"] + 2
        wait_for(lambda: _transport(subscriber)["session_messages_rcved"] >= later, "session messages")
        assert _transport(subscriber)["naks_sent"] == counters["naks_sent"]


def test_the_last_message_is_lost_with_an_event_too(publisher: Context) -> None:
    """UX-26: the session message reveals the tail loss."""
    with open_context(transport_lbtrm_receiver_datagram_max_size=1000) as subscriber:
        options: dict[str, Any] = {
            "transport_lbtrm_nak_generation_interval": 400,
            "delivery_control_loss_check_interval": 50,
        }
        receiver = subscriber.receiver("topic", **options)
        source = publisher.source(
            "topic", flow_control="min", transport_topic_sequence_number_info_interval=100
        )
        source.wait_connected(timeout=SECONDS)
        receiver.wait_connected(timeout=SECONDS)
        _send_apart(publisher, source, (SHORT, LONG))
        rows = _rows(receiver, lambda rows: any(isinstance(row, UnrecoverableLoss) for row in rows))
        assert [(type(row), row.sequence_number) for row in rows] == [(Message, 0), (UnrecoverableLoss, 1)]


def test_a_receiver_takes_what_comes_unless_it_has_a_size(publisher: Context) -> None:
    """UX-26: the size of what it sends does not bound what it receives; one that is set sizes its memory."""
    with (
        open_context(transport_lbtrm_source_datagram_max_size=600) as small,
        open_context(transport_lbtrm_receiver_datagram_max_size=20000) as large,
    ):
        receivers = [one.receiver("topic") for one in (small, large)]
        source = publisher.source("topic", flow_control="min")
        source.wait_connected(receivers=2, timeout=SECONDS)
        source.send(LONG, flush=True)
        for receiver in receivers:
            assert receiver.receive(SECONDS) == LONG
        assert (publisher.datagram_bytes, small.datagram_bytes) == (4000, 600)
        assert all(_transport(one)["dgrams_dropped_too_long"] == 0 for one in (small, large))


@pytest.mark.parametrize("messages", [(SHORT, LONG, SHORT), (SHORT, LONG), (LONG, LONG)])
def test_a_source_learns_what_its_receiver_has_lost(publisher: Context, messages: tuple[bytes, ...]) -> None:
    """UM-83: a position that passes lost datagrams does not hide them, whether or not later data reveals them."""
    with open_context(transport_lbtrm_receiver_datagram_max_size=1000) as subscriber:
        receiver = subscriber.receiver("topic", transport_lbtrm_nak_generation_interval=400)
        source = publisher.source("topic", flow_control="min")
        source.wait_connected(timeout=SECONDS)
        receiver.wait_connected(timeout=SECONDS)
        assert source.wait_drained(SECONDS)
        _send_apart(publisher, source, messages)
        drained = source.wait_drained(SECONDS)
        assert drained.is_complete
        assert not drained
        assert list(drained.given_up.values()) == [messages.count(LONG)]
        assert network_context(subscriber).stats()["context"]["datagrams_given_up"] == messages.count(LONG)
        assert "receiver_gave_up" in {event.kind for event in source.receiver_events()}
        receiver.close()


def test_what_is_recovered_off_transport_is_not_lost(publisher: Context) -> None:
    """UM-83 UM-137: the transport gives the datagram up, but its message arrives over TCP."""
    with open_context(transport_lbtrm_receiver_datagram_max_size=1000) as subscriber:
        receiver = subscriber.receiver(
            "topic", use_otr=1, transport_lbtrm_nak_generation_interval=400, otr_request_initial_delay=100
        )
        source = publisher.source("topic", flow_control="min", late_join=1)
        source.wait_connected(timeout=SECONDS)
        receiver.wait_connected(timeout=SECONDS)
        _send_apart(publisher, source, (SHORT, LONG, SHORT))
        assert len(_rows(receiver, lambda rows: sum(isinstance(row, Message) for row in rows) == 3)) == 3
        wait_for(lambda: _transport(subscriber)["unrecovered_too_long"] == 1, "giving up", SECONDS)
        drained = source.wait_drained(SECONDS)
        assert drained, drained
