"""A context under load: it coalesces receives, and each duty cycle reports once."""

from __future__ import annotations

import pytest

from tests.unit.loopback import open_context
from tests.waiting import SECONDS, wait_for
from umstack import Context

_MESSAGE = bytes(1400)


def _stream(publishing: Context, receiving: Context, messages: int) -> None:
    """So many datagrams from one context to the other, as fast as they go, all of them taken."""
    receiver = receiving.receiver("load")
    source = publishing.source("load", flow_control="min")
    source.wait_connected(timeout=SECONDS)
    left = messages
    for _ in range(messages // 100):
        source.send_many([_MESSAGE] * 100, timeout=SECONDS)
        left -= len(receiver.poll(1000, 0))
    source.flush()
    while left > 0:
        taken = len(receiver.poll(1000, SECONDS))
        assert taken, f"{left} of {messages} messages did not come within {SECONDS} s"
        left -= taken


@pytest.mark.parametrize(
    ("options", "coalesces"),
    [
        ({}, True),
        ({"pend_coalescing_limit": 0.05}, True),
        ({"pend_coalescing_limit": 0}, False),
        ({"file_descriptor_management_behavior": "busy_wait"}, False),
    ],
)
def test_a_loaded_context_coalesces_by_default(options: dict[str, object], coalesces: bool) -> None:
    """Under load the loop pauses to collect datagrams, up to the limit. It never pauses with 0 or in busy-wait mode."""
    with open_context() as publishing, open_context(**options) as receiving:
        _stream(publishing, receiving, 20_000)
        assert (receiving.stats()["context"]["loop_naps"] > 0) is coalesces


def test_a_pass_reports_once() -> None:
    """AE-16: a status message when a quarter of the window has been taken, but not several for what came together."""
    receives = {"multiple_receive_maximum_datagrams": 4, "link_gro": 0}
    with open_context() as publishing, open_context("sequential", **receives) as receiving:
        receiver = receiving.receiver("load", flow_control_receiver_window=1 << 16)
        source = publishing.source("load", flow_control="min")
        wait_for(lambda: receiving.process_events(0) >= 0 and source.is_connected, "topic resolution")
        before = transport_of(receiving, "receiver")
        source.send_many([_MESSAGE] * 40, timeout=SECONDS)
        source.flush()
        wait_for(lambda: transport_of(publishing, "source")["msgs_sent"] >= 40, "the stream")
        receiving.process_events(0)
        after = transport_of(receiving, "receiver")
        # Eight receives of four datagrams are a pass; some may be session messages.
        assert 28 <= after["msgs_rcved"] - before["msgs_rcved"] <= 32
        assert after["status_messages_sent"] - before["status_messages_sent"] == 1
        assert len(receiver.poll(1000, 0)) >= 28


def transport_of(context: Context, kind: str) -> dict[str, int]:
    """The counters of its one session of a kind."""
    (transport,) = context.stats()[f"{kind}_transports"]
    return transport
