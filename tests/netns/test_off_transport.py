"""Late join and off-transport recovery over real links: cables that are out for longer than the transport recovers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.netns.endpoints import End, EndsIn, Report, assert_whole
from umstack.lab import Lab

MakeLab = Callable[..., Lab]

GENERATION_MS = 1000
CUT_SECONDS = 1.6
RATE = 5_000
SIZE = 1000
RETAINS = {
    "late_join": 1,
    "flow_control": "none",
    "transport_lbtrm_transmission_window_size": 1 << 20,
    "retransmit_retention_size_limit": 1 << 26,
    "retransmit_retention_size_threshold": 1 << 26,
}
RECOVERS = {
    "transport_lbtrm_nak_generation_interval": GENERATION_MS,
    "otr_request_initial_delay": 100,
    "otr_request_minimum_interval": 200,
    "otr_request_maximum_interval": 1000,
}


def _started(lab: Lab, ends: Any, source: dict[str, Any], receiver: dict[str, Any]) -> tuple[End, End, End]:
    """Start a publisher, a subscriber that will be cut off, and one that will not."""
    cut = ends.subscribe(1, size=SIZE, options={**RECOVERS, **receiver})
    other = ends.subscribe(2, size=SIZE, options=RECOVERS)
    publisher = ends.publish(size=SIZE, rate=RATE, options={**RETAINS, **source})
    publisher.ask(send=10**9)
    cut.await_received(1_000)
    return publisher, cut, other


def _cut(lab: Lab, how: str, seconds: float = CUT_SECONDS) -> None:
    host = lab.hosts[1]
    begin, end = {
        "interface down": (host.link_down, host.link_up),
        "cable out": (host.unplug, host.plug),
        "switch drops": (lambda: lab.port(1).set(block=True), lambda: lab.port(1).set(block=False)),
    }[how]
    begin()
    time.sleep(seconds)  # the fault itself takes this long
    end()


def _finished(publisher: End, cut: End) -> tuple[int, Report]:
    """Check that the subscriber accounts for every sent message, as delivered or as lost."""
    final = publisher.ask(stop=5)
    sent = final["sent"]
    report = cut.await_report(lambda now: now["received"] + now["lost_sqns"] >= sent, 20)
    return sent, report


@pytest.mark.parametrize("how", ["interface down", "switch drops"])
def test_a_cable_out_longer_than_naks_are_generated_loses_nothing_that_is_retained(
    make_lab: MakeLab, ends_in: EndsIn, how: str
) -> None:
    """The transport gives up, but the source retains everything, so nothing is lost and the order is kept
    (UM-107, UM-110, UM-137, UM-142).
    """
    lab = make_lab(hosts=3)
    publisher, cut, other = _started(lab, ends_in(lab), {}, {})
    _cut(lab, how)
    cut.await_report(lambda now: now.counter("receivers", "otr_begun") > 0)
    sent, report = _finished(publisher, cut)
    assert_whole(report, sent)
    stats = report.counter
    assert stats("receivers", "otr_messages") > 5_000
    assert stats("receivers", "otr_lost") == stats("context", "otr_given_up") == 0
    assert report.received_transport["unrecovered_txw"] + report.received_transport["unrecovered_tmo"] > 1_000
    assert_whole(other.await_received(sent), sent)
    assert publisher.ask().counter("sources", "recovery_messages_sent") >= stats("receivers", "otr_messages")


def test_messages_not_retained_are_lost_with_exactly_their_events(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """With a store that retains half of the messages sent during the cut, exactly the other half is lost
    (UM-101, UM-141, UM-142).
    """
    lab = make_lab(hosts=3)
    limit = 4 << 20
    limits = {"retransmit_retention_size_limit": limit, "retransmit_retention_size_threshold": limit}
    publisher, cut, _ = _started(lab, ends_in(lab), limits, {})
    _cut(lab, "switch drops")
    sent, report = _finished(publisher, cut)
    assert report["received"] + report["lost_sqns"] == sent
    assert report["missing"] == report["lost_sqns"] > 1_000
    assert (report["out_of_order"], report["corrupt"]) == (0, 0)
    assert report.counter("receivers", "otr_lost") == report["lost_sqns"]
    # Messages retained at the first request are there, except those that left the store during the fetch.
    assert report.counter("receivers", "otr_messages") > limit / (SIZE + 12) / 2


def test_a_session_that_ended_is_resumed_when_it_returns(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """After EndOfSession the source is rediscovered; missed messages arrive, and other messages do not arrive
    twice (UM-106, UM-142).
    """
    lab = make_lab(hosts=3)
    publisher, cut, _ = _started(lab, ends_in(lab), {}, {"transport_lbtrm_activity_timeout": 700})
    _cut(lab, "switch drops")
    cut.await_report(lambda now: now["events"].get("EndOfSession", 0) == 1)
    cut.await_report(lambda now: now["stats"]["context"]["sources_resumed"] == 1, 15)
    sent, report = _finished(publisher, cut)
    assert (report["received"], report["missing"], report["out_of_order"]) == (sent, 0, 0), report.said
    assert report["lost_sqns"] == 0
    assert report.counter("receivers", "otr_messages") > 3_000
    assert report.counter("receivers", "late_join_messages") < 3_000


def test_a_late_join_over_a_lossy_link(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """The past arrives over TCP and the present by multicast, with 2 % of both lost (UM-136, UM-140)."""
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    first = ends.subscribe(2, size=SIZE)
    publisher = ends.publish(size=SIZE, rate=RATE, options=RETAINS)
    publisher.ask(send=10**9)
    first.await_received(10_000)
    lab.port(1).set(loss=0.02)
    late = ends.subscribe(1, size=SIZE, options=RECOVERS)
    late.receive()
    late.await_received(15_000)
    lab.port(1).set(loss=0.0)
    sent, report = _finished(publisher, late)
    assert_whole(report, sent)
    assert report.counter("receivers", "late_join_messages") >= 9_000
    assert report.counter("context", "late_joins") == 1


def test_a_cable_out_in_the_middle_of_a_recovery(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """The connection ends with the cable; a new one is opened when it is back (UM-142)."""
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    slow = {"recovery_data_rate_limit": 30_000_000}
    cut = ends.subscribe(1, size=SIZE, options=RECOVERS)
    publisher = ends.publish(size=SIZE, rate=1_500, options=RETAINS, context=slow)
    publisher.ask(send=10**9)
    cut.await_received(500)
    _cut(lab, "switch drops", 3.0)
    cut.await_report(lambda now: now.counter("receivers", "otr_messages") > 100)
    _cut(lab, "interface down", 1.2)
    sent, report = _finished(publisher, cut)
    assert_whole(report, sent)
    assert report.counter("context", "otr_connections") >= 2
