"""Receive timestamps and one-way latency between hosts of the lab: over sockets, and over rings with the times of the
XDP program and the NIC's driver. The lab is one machine, so both ends read the same clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.kernels import needs_device_bound_programs
from tests.netns.contexts import Member, members
from tests.waiting import collect
from umstack import Message
from umstack.cli.doctor import shown_timestamps
from umstack.lab import Lab
from umstack_xdp import xsk
from umstack_xdp.facts import Unknown
from umstack_xdp.probe import probe
from umstack_xdp.xsk import unavailable

MakeLab = Callable[..., Lab]
pytestmark = pytest.mark.skipif(unavailable() is not None, reason=str(unavailable()))

RINGS = {"link": "xdp"}
A_SECOND = 10**9


def timed_exchange(publisher: Member, subscriber: Member, count: int) -> list[Message]:
    """Return the messages of a source with send timestamps."""
    with (
        subscriber.receiver("timed") as receiver,
        publisher.source("timed", send_timestamps=1) as source,
    ):
        source.wait_connected(timeout=10)
        for number in range(count):
            source.send(number.to_bytes(4, "big"), flush=True)
        return collect(receiver, count)


def check_latencies(messages: list[Message]) -> None:
    """Check that every message arrived after it was sent, and not much later."""
    for message in messages:
        assert 0 < message.received_ns - message.sent_ns < 5 * A_SECOND
    assert abs(messages[-1].sent_ns - time.time_ns()) < 60 * A_SECOND


@pytest.mark.parametrize("timestamps", [0, 1])
@pytest.mark.parametrize("link", ["socket", "xdp"])
def test_latency_is_counted_on_every_link(shared_lab: Lab, link: str, timestamps: int) -> None:
    """The message contains its send time; the session counts the difference from the arrival."""
    options = {"link": link, "transport_lbtrm_receiver_timestamp": timestamps}
    with members(*shared_lab.hosts[:2], **options) as (publisher, subscriber):
        check_latencies(timed_exchange(publisher, subscriber, 200))


def test_the_program_records_when_a_frame_arrived(shared_lab: Lab) -> None:
    """Over rings the arrival time is the XDP program's, between sending and reading; every frame has it."""
    with members(*shared_lab.hosts[:2], **RINGS, transport_lbtrm_receiver_timestamp=1) as (
        publisher,
        subscriber,
    ):
        check_latencies(timed_exchange(publisher, subscriber, 500))
        rings = subscriber.context.stats()["rings"]
        assert rings["frame_times"] == "kernel"
        assert subscriber.link("ring_times_missing") == 0
        assert subscriber.link("datagrams_received") > 0, "a busy machine joins messages"


@needs_device_bound_programs
def test_a_program_for_one_nic_asks_its_driver(shared_lab: Lab) -> None:
    """veth has the hook but no clock: the program is bound to it and loaded, but the kernel's times are used,
    and the statistics show this.
    """
    facts = shared_lab.hosts[1].call(lambda: probe("eth0"))
    assert not isinstance(facts.timestamping, Unknown)
    assert facts.timestamping.hardware_clock is None
    if not isinstance(facts.rx_metadata_features, Unknown):  # Linux 6.7
        assert "timestamp" in facts.rx_metadata_features
        assert "its driver supports the call, but has no clock for it" in shown_timestamps(facts)
    with members(*shared_lab.hosts[:2], **RINGS, link_xdp_nic_timestamps=1) as (publisher, subscriber):
        check_latencies(timed_exchange(publisher, subscriber, 500))
        rings = subscriber.context.stats()["rings"]
        assert (rings["frame_times"], rings["nic_clock"]) == (
            "nic",
            "none: the NIC has no clock, the kernel's times are used",
        )
        assert subscriber.link("ring_nic_times") == 0
        assert subscriber.link("ring_times_missing") == 0


def test_a_nic_clock_that_cannot_be_read_is_reported(
    shared_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the clock's device, or the permission to read it, the kernel's times are used, with the reason."""
    monkeypatch.setattr(xsk, "_nic_clock", lambda _interface: 4_000_000)
    settings = xsk.RingSettings(receive_frames=64, send_frames=64, nic_times=True)
    with shared_lab.hosts[0].call(lambda: xsk.RingSet("eth0", xsk.RingMode.COPY, settings)) as rings:
        assert rings.facts.nic_clock == (
            "none: /dev/ptp4000000: No such file or directory, the kernel's times are used"
        )
