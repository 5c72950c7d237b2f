"""LBT-TCP over real links: losses that TCP repairs, and outages that end connections."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.netns.endpoints import EndsIn, assert_whole
from umstack.lab import Lab

MakeLab = Callable[..., Lab]

RATE = 5_000
SIZE = 1000
SHORT_SECONDS = 0.4
LONG_SECONDS = 2.5
SOON_NOTICED = {"transport_tcp_activity_timeout": 1000}
TCP: dict[str, Any] = {"transport": "tcp", "flow_control": "none"}
RETAINS = {
    "late_join": 1,
    "retransmit_retention_size_limit": 1 << 26,
    "retransmit_retention_size_threshold": 1 << 26,
}
RECOVERS = {"use_otr": 1, "otr_request_initial_delay": 100, "otr_request_minimum_interval": 200}


def _unplug(lab: Lab, seconds: float) -> None:
    lab.hosts[1].unplug()
    time.sleep(seconds)  # the fault itself takes this long
    lab.hosts[1].plug()


def test_tcp_repairs_losses_by_itself(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """UM-108: TCP recovers segments lost at a switch port, and a short outage of the cable."""
    lab = make_lab(hosts=2)
    ends = ends_in(lab)
    subscriber = ends.subscribe(1, size=SIZE)
    publisher = ends.publish(size=SIZE, rate=RATE, options=TCP)
    publisher.ask(send=10**9)
    subscriber.await_received(1_000)
    lab.port(1).set(loss=0.02, unicast=True)
    subscriber.await_received(5_000)
    lab.port(1).set(loss=0.0)
    _unplug(lab, SHORT_SECONDS)
    subscriber.await_received(15_000)
    sent = publisher.ask(stop=5)["sent"]
    report = subscriber.await_received(sent)
    assert_whole(report, sent)
    assert report.received_transport["disconnects"] == 0


def test_an_outage_ends_the_connection_and_what_is_retained_closes_the_gap(
    make_lab: MakeLab, ends_in: EndsIn
) -> None:
    """UM-108, UM-110: both hosts notice; the source continues for the other receiver, and the gap is recovered."""
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    cut = ends.subscribe(1, size=SIZE, options={**SOON_NOTICED, **RECOVERS})
    other = ends.subscribe(2, size=SIZE)
    publisher = ends.publish(size=SIZE, rate=RATE, options={**TCP, **SOON_NOTICED, **RETAINS})
    publisher.ask(send=10**9)
    cut.await_received(1_000)
    other.await_received(1_000)
    _unplug(lab, LONG_SECONDS)
    cut.await_report(lambda now: now.received_transport["connects"] > 1, 20)
    cut.await_report(lambda now: now.counter("receivers", "otr_messages") > 0, 20)
    sent = publisher.ask(stop=5)["sent"]
    report = cut.await_received(sent, 20)
    assert_whole(report, sent)
    assert report.received_transport["disconnects"] >= 1
    assert_whole(other.await_received(sent), sent)


def test_an_outage_without_recovery_is_declared_by_number(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """UM-108, C16: every sent message is delivered or reported lost, in order."""
    lab = make_lab(hosts=2)
    ends = ends_in(lab)
    cut = ends.subscribe(1, size=SIZE, options=SOON_NOTICED)
    publisher = ends.publish(size=SIZE, rate=RATE, options={**TCP, **SOON_NOTICED})
    publisher.ask(send=10**9)
    cut.await_received(1_000)
    _unplug(lab, LONG_SECONDS)
    cut.await_report(lambda now: now.received_transport["connects"] > 1, 20)
    sent = publisher.ask(stop=5)["sent"]
    report = cut.await_report(lambda now: now["received"] + now["lost_sqns"] >= sent, 20)
    assert report["lost_sqns"] > 1_000
    assert report["received"] + report["lost_sqns"] == sent
    assert (report["out_of_order"], report["corrupt"]) == (0, 0)
