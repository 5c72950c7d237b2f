"""Receivers without NAKs: transport_lbtrm_send_naks 0. Datagrams longer than the receiver takes are the loss here: each
is lost for good at this receiver, at once, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.loopback import open_context
from tests.waiting import SECONDS, wait_for
from umstack import Context, Message, Receiver, Source, UnrecoverableLoss

SHORT, LOST = b"short", bytes(1200)
NO_NAKS: dict[str, Any] = {"transport_lbtrm_send_naks": 0}


@pytest.fixture
def contexts() -> Iterator[tuple[Context, Context]]:
    with (
        open_context() as publisher,
        open_context(transport_lbtrm_receiver_datagram_max_size=1000) as subscriber,
    ):
        yield publisher, subscriber


def _connected(contexts: tuple[Context, Context], **options: Any) -> tuple[Source, Receiver]:
    publisher, subscriber = contexts
    receiver = subscriber.receiver("topic", **NO_NAKS, **options)
    source = publisher.source("topic", flow_control="min")
    source.wait_connected(timeout=SECONDS)
    return source, receiver


def _rows_until(receiver: Receiver, kind: type, count: int) -> list[Any]:
    rows: list[Any] = []

    def came() -> bool:
        events = receiver.poll(timeout=0.02).events()
        rows.extend(row for row in events if isinstance(row, Message | UnrecoverableLoss))
        return sum(isinstance(row, kind) for row in rows) >= count

    wait_for(came, f"{count} {kind.__name__}", SECONDS)
    return rows


def _counters(subscriber: Context) -> dict[str, Any]:
    found: dict[str, Any] = subscriber.stats()["receiver_transports"][0]
    return found


def test_a_gap_is_declared_at_once(contexts: tuple[Context, Context]) -> None:
    """UM-101: with transport_lbtrm_loss_declaration_interval 0, by the datagram behind it; no NAK leaves."""
    source, receiver = _connected(contexts, transport_lbtrm_loss_declaration_interval=0)
    for _ in range(20):
        for data in (SHORT, LOST, SHORT):
            source.send(data, flush=True)
    rows = _rows_until(receiver, Message, 40)
    assert [row.sequence_number for row in rows] == list(range(60))
    assert [type(row) for row in rows] == [Message, UnrecoverableLoss, Message] * 20
    counters = _counters(contexts[1])
    assert (counters["naks_sent"], counters["nak_pckts_sent"], counters["naks_off"]) == (0, 0, 1)
    assert counters["lost"] == counters["unrecovered_tmo"] == 20
    assert source.stats()["naks_rcved"] == source.stats()["rxs_sent"] == 0


def test_a_gap_is_declared_in_bounded_time_without_anything_behind_it(
    contexts: tuple[Context, Context],
) -> None:
    """UM-101: after the interval, and not sooner; the loss check interval (2500 ms) is not waited for."""
    source, receiver = _connected(contexts, transport_lbtrm_loss_declaration_interval=300)
    source.send(SHORT, flush=True)
    assert receiver.receive(SECONDS) == SHORT
    begin = time.monotonic()
    source.send(LOST, flush=True)
    source.send(SHORT, flush=True)
    rows = _rows_until(receiver, Message, 1)
    assert 0.3 <= time.monotonic() - begin < 2.0
    assert [(type(row), row.sequence_number) for row in rows] == [(UnrecoverableLoss, 1), (Message, 2)]
    assert _counters(contexts[1])["naks_sent"] == 0


def test_without_the_interval_it_is_the_nak_generation_interval(contexts: tuple[Context, Context]) -> None:
    """UM-100: as before there was such an option; and it says nothing to a receiver that sends NAKs."""
    _, receiver = _connected(contexts, transport_lbtrm_nak_generation_interval=700)
    assert receiver.options.effective_generation_interval_ns == 700_000_000
    with_naks = contexts[1].receiver("other", transport_lbtrm_loss_declaration_interval=5)
    assert with_naks.options.effective_generation_interval_ns == 10_000_000_000
