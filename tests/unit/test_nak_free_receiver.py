"""Receivers without NAKs: transport_lbtrm_send_naks 0, and the NAK cutoff. The losses in these tests are
datagrams that are longer than the receiver accepts, so each is lost permanently, at this receiver only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.loopback import network_context, open_context
from tests.waiting import SECONDS, wait_for
from umstack import Context, Message, NakCutoff, Receiver, Source, UnrecoverableLoss
from umstack._core import lib
from umstack.errors import Closed
from umstack.telemetry.timers import receiver_timers

pytestmark = pytest.mark.usefixtures("way")
USUAL_WAYS = ("alone", "to a driver")
"""The losses are those of the network."""

SHORT, LOST = b"short", bytes(1200)
NO_NAKS: dict[str, Any] = {"transport_lbtrm_send_naks": 0}
WITH_NAKS: dict[str, Any] = {"transport_lbtrm_send_naks": 1}


@pytest.fixture
def contexts(way: str) -> Iterator[tuple[Context, Context]]:
    with (
        open_context() as publisher,
        open_context(transport_lbtrm_receiver_datagram_max_size=1000) as subscriber,
    ):
        yield publisher, subscriber


def _connected(contexts: tuple[Context, Context], **options: Any) -> tuple[Source, Receiver]:
    publisher, subscriber = contexts
    receiver = subscriber.receiver("topic", **{**NO_NAKS, **options})
    source = publisher.source("topic", flow_control="min")
    source.wait_connected(timeout=SECONDS)
    return source, receiver


def _send_each(source: Source, *messages: bytes) -> None:
    """Send each message in a datagram of its own: those of a flush under way are joined, and would be lost together."""
    for data in messages:
        sent = source.stats()["msgs_sent"]
        source.send(data, flush=True)
        wait_for(lambda sent=sent: source.stats()["msgs_sent"] > sent, "the datagram")


def _rows_until(receiver: Receiver, kind: type, count: int) -> list[Any]:
    rows: list[Any] = []

    def has_arrived() -> bool:
        events = receiver.poll(timeout=0.02).events()
        rows.extend(row for row in events if isinstance(row, Message | UnrecoverableLoss))
        return sum(isinstance(row, kind) for row in rows) >= count

    wait_for(has_arrived, f"{count} {kind.__name__}", SECONDS)
    return rows


def _counters(subscriber: Context) -> dict[str, Any]:
    found: dict[str, Any] = network_context(subscriber).stats()["receiver_transports"][0]
    return found


def test_a_gap_is_declared_at_once(contexts: tuple[Context, Context]) -> None:
    """UM-101: with transport_lbtrm_loss_declaration_interval 0, the next datagram declares the loss; no NAK is
    sent."""
    source, receiver = _connected(contexts, transport_lbtrm_loss_declaration_interval=0)
    _send_each(source, *[SHORT, LOST, SHORT] * 20)
    rows = _rows_until(receiver, Message, 40)
    assert [row.sequence_number for row in rows] == list(range(60))
    assert [type(row) for row in rows] == [Message, UnrecoverableLoss, Message] * 20
    counters = _counters(contexts[1])
    assert (counters["naks_sent"], counters["nak_pckts_sent"], counters["naks_off"]) == (0, 0, 1)
    # A session message may announce a datagram that is still on its way, which counts as lost until it comes.
    assert counters["unrecovered_tmo"] == 20 <= counters["lost"]
    assert source.stats()["naks_rcved"] == source.stats()["rxs_sent"] == 0


def test_a_gap_is_declared_in_bounded_time_without_later_data(
    contexts: tuple[Context, Context],
) -> None:
    """UM-101: the loss is declared after the interval and not earlier; the loss check interval (2500 ms) does
    not delay it.
    """
    source, receiver = _connected(contexts, transport_lbtrm_loss_declaration_interval=300)
    source.send(SHORT, flush=True)
    assert receiver.receive(SECONDS) == SHORT
    begin = time.monotonic()
    _send_each(source, LOST, SHORT)
    rows = _rows_until(receiver, Message, 1)
    assert 0.3 <= time.monotonic() - begin < 2.0
    assert [(type(row), row.sequence_number) for row in rows] == [(UnrecoverableLoss, 1), (Message, 2)]
    assert _counters(contexts[1])["naks_sent"] == 0


def test_losses_among_the_first_datagrams_are_declared_in_bounded_time(
    contexts: tuple[Context, Context],
) -> None:
    """UM-101, UM-135: the first datagram is lost without an event, and a loss that is detected while the receiver
    waits for it has its own event, without later data.
    """
    source, receiver = _connected(contexts, transport_lbtrm_loss_declaration_interval=300)
    begin = time.monotonic()
    _send_each(source, LOST, SHORT, LOST, SHORT)
    rows = _rows_until(receiver, Message, 2)
    assert 0.3 <= time.monotonic() - begin < 2.0
    assert [(type(row), row.sequence_number) for row in rows] == [
        (Message, 1),
        (UnrecoverableLoss, 2),
        (Message, 3),
    ]


def test_the_interval_defaults_to_the_nak_generation_interval(contexts: tuple[Context, Context]) -> None:
    """The default equals the behaviour before the option existed; it does not affect a receiver that sends
    NAKs."""
    _, receiver = _connected(contexts, transport_lbtrm_nak_generation_interval=700)
    assert receiver.options.effective_generation_interval_ns == 700_000_000
    with_naks = contexts[1].receiver("other", transport_lbtrm_loss_declaration_interval=5)
    assert with_naks.options.effective_generation_interval_ns == 10_000_000_000


def _lose(source: Source, count: int = 1) -> None:
    _send_each(source, *[SHORT, LOST, SHORT] * count)


def _wait_for_event(receiver: Receiver, kind: type) -> Any:
    found: list[Any] = []

    def has_arrived() -> bool:
        found.extend(event for event in receiver.poll(timeout=0.02).events() if isinstance(event, kind))
        return bool(found)

    wait_for(has_arrived, kind.__name__, SECONDS)
    return found[0]


@pytest.mark.parametrize("of_context", [True, False], ids=["context", "receiver"])
def test_no_nak_is_sent_until_the_call_that_allows_them(
    way: str, contexts: tuple[Context, Context], of_context: bool
) -> None:
    """UX-21: missing data is lost after the NAK generation interval; `stat` reports the reason; then NAKs are sent
    again."""
    source, receiver = _connected(contexts, **WITH_NAKS, transport_lbtrm_nak_generation_interval=400)
    target = contexts[1] if of_context else receiver
    target.nak_cutoff()
    _lose(source)
    assert _wait_for_event(receiver, UnrecoverableLoss).sequence_number == 1
    counters = _counters(contexts[1])
    assert (counters["naks_sent"], counters["nak_pckts_sent"]) == (0, 0)
    assert counters["naks_withheld"] > 0
    is_of_context = of_context and way == "alone"  # a driver has other applications
    assert counters["nak_cutoff"] == (
        lib.UM_NAK_CUTOFF_CONTEXT if is_of_context else lib.UM_NAK_CUTOFF_RECEIVERS
    )
    assert ("of the context" in receiver_timers(counters)["no NAKs"]) is is_of_context
    assert source.stats()["naks_rcved"] == 0
    target.nak_cutoff(enabled=False)
    _lose(source)
    wait_for(lambda: source.stats()["naks_rcved"] > 0, "a NAK", SECONDS)
    counters = _counters(contexts[1])
    assert counters["nak_cutoff"] == counters["nak_cutoffs"] == 0
    assert "no NAKs" not in receiver_timers(counters)


def test_a_session_at_its_limit_stops_its_naks(contexts: tuple[Context, Context]) -> None:
    """UX-21: transport_lbtrm_nak_cutoff_interval stops NAKs, with an event; a call on the receiver starts
    them again.
    """
    source, receiver = _connected(
        contexts, **WITH_NAKS, transport_lbtrm_nak_rate_limit=20, transport_lbtrm_nak_cutoff_interval=100
    )
    _lose(source, 60)
    assert _wait_for_event(receiver, NakCutoff) == NakCutoff(
        "topic", f"{source.transport}[{source.topic_index}]"
    )
    counters = _counters(contexts[1])
    assert (counters["nak_cutoffs"], counters["nak_cutoff"]) == (1, lib.UM_NAK_CUTOFF_SESSION)
    sent = counters["naks_sent"]
    wait_for(lambda: _counters(contexts[1])["naks_withheld"] >= 10, "NAKs that are due", SECONDS)
    assert _counters(contexts[1])["naks_sent"] == sent
    receiver.nak_cutoff(enabled=False)
    assert _counters(contexts[1])["nak_cutoff"] == 0
    wait_for(lambda: _counters(contexts[1])["naks_sent"] > sent, "a NAK", SECONDS)


def test_naks_are_sent_while_one_of_several_receivers_wants_them(contexts: tuple[Context, Context]) -> None:
    """UX-21: the others have stopped them, and one that is made or closed later counts, too."""
    source, receiver = _connected(contexts, **WITH_NAKS)
    subscriber = contexts[1]
    subscriber.nak_cutoff()
    wait_for(lambda: _counters(subscriber)["nak_cutoff"], "the cutoff")
    later = subscriber.receiver("topic", **WITH_NAKS)
    later.wait_connected(timeout=SECONDS)
    assert _counters(subscriber)["nak_cutoff"]
    receiver.nak_cutoff()
    subscriber.nak_cutoff(enabled=False)
    _lose(source)
    wait_for(lambda: source.stats()["naks_rcved"] > 0, "a NAK", SECONDS)
    assert not _counters(subscriber)["nak_cutoff"]
    later.close()
    wait_for(lambda: _counters(subscriber)["nak_cutoff"] == lib.UM_NAK_CUTOFF_RECEIVERS, "the cutoff")


def test_calls_on_closed_objects_raise(contexts: tuple[Context, Context]) -> None:
    """Calls on closed objects raise Closed."""
    receiver = contexts[1].receiver("topic")
    receiver.close()
    with pytest.raises(Closed):
        receiver.nak_cutoff()
    contexts[1].close()
    with pytest.raises(Closed):
        contexts[1].nak_cutoff()
