"""Interfaces that go down and return, MTU changes and partitions, under a running stream."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from tests.netns.endpoints import GROUP, GROUP_PORT, WAIT_SECONDS, End, EndsIn, assert_whole
from umstack.lab import Host, Lab

MakeLab = Callable[..., Lab]

DOWN_SECONDS = 1.0
PATIENT_SOURCE = {"flow_control_receiver_timeout": 5000}
SHORT_OF_SPACE = {"flow_control_receiver_window": 65536, "receiver_queue_block_count": 4}
RATE = 20_000


def _progress(end: End, messages: int, name: str) -> None:
    """Wait until the end has received `messages` more messages."""
    had = end.ask()[name]
    end.await_report(lambda now: now[name] >= had + messages)


def _finish(publisher: End, *subscribers: End) -> None:
    """End the stream and check that every receiver has every message."""
    final = publisher.ask(stop=WAIT_SECONDS)
    assert final["drained"]
    for subscriber in subscribers:
        assert_whole(subscriber.await_received(final["sent"]), final["sent"])


def _stay_down(host: Host) -> None:
    host.link_down()
    time.sleep(DOWN_SECONDS)  # the fault itself takes this long
    host.link_up()


def test_a_subscriber_whose_interface_was_down_loses_nothing(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """The window of the cut-off receiver holds the publisher back; the missing datagrams are retransmitted
    (AE-20, UM-119, UM-121).
    """
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    away, other = ends.subscribe(1), ends.subscribe(2)
    publisher = ends.publish(receivers=2, rate=RATE, options=PATIENT_SOURCE)
    publisher.ask(send=10**9)
    away.await_received(2_000)
    _stay_down(lab.hosts[1])
    _progress(away, 10_000, "received")
    assert publisher.ask().counter("source_transports", "receivers_timed_out") == 0
    _finish(publisher, away, other)


def test_a_publisher_whose_interface_was_down_loses_nothing(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """Unsent datagrams are sent or retransmitted when the interface is back (AE-42, UM-115, UM-120)."""
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    subscribers = ends.subscribe(1), ends.subscribe(2)
    publisher = ends.publish(receivers=2, rate=RATE, options=PATIENT_SOURCE)
    publisher.ask(send=10**9)
    for subscriber in subscribers:
        subscriber.await_received(2_000)
    _stay_down(lab.hosts[0])
    for subscriber in subscribers:
        _progress(subscriber, 10_000, "received")
    assert publisher.ask().counter("source_transports", "receivers_timed_out") == 0
    _finish(publisher, *subscribers)


class Lengths:
    """The longest UDP payload that recently arrived at a host in the group."""

    def __init__(self, host: Host) -> None:
        """Join the group on the host."""
        self.socket = host.call(lambda: self._open(host.address))

    @staticmethod
    def _open(address: str) -> socket.socket:
        listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        listener.setblocking(False)
        listener.bind((GROUP, GROUP_PORT))
        request = socket.inet_aton(GROUP) + socket.inet_aton(address)
        listener.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
        return listener

    def take(self) -> list[int]:
        """Return the lengths of the waiting datagrams, without those of datagrams that arrive later."""
        return list(self._waiting())

    def _waiting(self) -> Iterator[int]:
        with suppress(BlockingIOError):
            for _ in range(100_000):
                yield len(self.socket.recv(65536))

    def longest_new(self) -> int:
        """Return the longest of the datagrams that arrive from now on."""
        self.take()
        lengths: list[int] = []
        deadline = time.monotonic() + 5
        while len(lengths) < 200:
            assert time.monotonic() < deadline, "nothing more arrives in the group"
            lengths += self.take()
            time.sleep(0.002)
        return max(lengths)


def _set_path_mtu(lab: Lab, mtu_bytes: int) -> None:
    """Set the MTU of the publisher's interface first, so that datagrams staged earlier are too long for it."""
    for host in lab.hosts:
        host.set_mtu(mtu_bytes)


def test_the_stream_follows_the_mtu_down_and_up(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """Later datagrams fit the new MTU, those logged before still arrive, and nothing is lost (W4,
    UM-50, UM-51).
    """
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    subscriber = ends.subscribe(1, size=3000)
    publisher = ends.publish(receivers=1, size=3000, rate=4_000, options=PATIENT_SOURCE)
    lengths = Lengths(lab.hosts[2])
    lab.await_join(GROUP, 2)
    publisher.ask(send=10**9)
    subscriber.await_received(500)
    assert 1400 < lengths.longest_new() <= 1472
    assert publisher.ask()["stats"]["datagram_bytes"] == 1472
    _set_path_mtu(lab, 1000)
    publisher.await_report(lambda now: now["stats"]["datagram_bytes"] == 972)
    _progress(subscriber, 2_000, "received")
    assert 900 < lengths.longest_new() <= 972
    _set_path_mtu(lab, 1500)
    publisher.await_report(lambda now: now["stats"]["datagram_bytes"] == 1472)
    _progress(subscriber, 2_000, "received")
    assert 1400 < lengths.longest_new() <= 1472
    lengths.socket.close()
    assert publisher.ask().counter("link_counters", "send_errors") <= 1
    _finish(publisher, subscriber)


def test_datagrams_logged_before_the_mtu_shrank_still_arrive(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """Datagrams that no longer fit, both new and retransmitted ones, are sent with IP fragmentation and
    counted, although each message is one fragment (W4, UM-43, UM-49).
    """
    lab = make_lab(hosts=2)
    ends = ends_in(lab)
    subscriber = ends.subscribe(1, size=1400, rate=1_000, options=SHORT_OF_SPACE)
    publisher = ends.publish(receivers=1, size=1400, options=PATIENT_SOURCE)
    publisher.ask(send=4_000)
    publisher.await_report(lambda now: now["sent"] == 4_000)
    _set_path_mtu(lab, 1000)
    publisher.await_report(lambda now: now["stats"]["datagram_bytes"] == 972)
    subscriber.ask(rate=0)
    report = subscriber.await_received(4_000)
    assert_whole(report, 4_000)
    assert publisher.ask().counter("link_counters", "oversize_sends") > 1_000
    publisher.ask(send=1_000)
    publisher.await_report(lambda now: now["sent"] == 5_000)
    _finish(publisher, subscriber)
    assert subscriber.ask()["last_sqn"] == 4_000 + 2 * 1_000 - 1


def test_a_partition_that_outlasts_the_window_is_reported_and_survived(
    make_lab: MakeLab, ends_in: EndsIn
) -> None:
    """Messages that left the transmission window are reported as lost; then the stream continues (UM-101, UM-128)."""
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    small = {"transport_lbtrm_nak_generation_interval": 1000}
    cut, other = ends.subscribe(1, size=1400, options=small), ends.subscribe(2, size=1400, options=small)
    options = {"flow_control": "none", "transport_lbtrm_transmission_window_size": 1 << 20}
    publisher = ends.publish(size=1400, rate=5_000, options=options)
    publisher.ask(send=10**9)
    cut.await_received(1_000)
    lab.port(1).set(block=True)
    _progress(publisher, 7_500, "sent")
    lab.port(1).set(block=False)
    _progress(cut, 5_000, "received")
    final = publisher.ask(stop=5)
    report = cut.await_report(lambda now: now["received"] + now["lost_sqns"] >= final["sent"])
    assert report["received"] + report["lost_sqns"] == final["sent"]
    assert report["missing"] == report["lost_sqns"] == report["events"]["UnrecoverableLoss"]
    assert report["lost_sqns"] > 5_000
    assert (report["out_of_order"], report["corrupt"]) == (0, 0)
    assert report.received_transport["unrecovered_txw"] > 5_000
    assert_whole(other.await_received(final["sent"]), final["sent"])


def test_a_partition_that_ends_the_session_is_reported_when_it_is_joined_again(
    make_lab: MakeLab, ends_in: EndsIn
) -> None:
    """After the activity timeout the session is joined again and the gap is reported (UM-101, UM-104, UM-128)."""
    lab = make_lab(hosts=2)
    ends = ends_in(lab)
    brief = {"transport_lbtrm_nak_generation_interval": 500, "transport_lbtrm_activity_timeout": 1000}
    cut = ends.subscribe(1, size=1400, options=brief)
    options = {"flow_control": "none", "transport_lbtrm_transmission_window_size": 1 << 20}
    publisher = ends.publish(size=1400, rate=2_000, options=options)
    publisher.ask(send=10**9)
    cut.await_received(1_000)
    lab.port(1).set(block=True)
    cut.await_report(lambda now: now["events"].get("EndOfSession", 0) == 1)
    lab.port(1).set(block=False)
    _progress(cut, 2_000, "received")
    final = publisher.ask(stop=5)
    report = cut.await_report(lambda now: now["received"] + now["lost_sqns"] >= final["sent"])
    assert report["received"] + report["lost_sqns"] == final["sent"]
    assert report["missing"] == report["lost_sqns"] == report["events"]["UnrecoverableLoss"]
    assert report["lost_sqns"] > 500
    assert (report["out_of_order"], report["corrupt"]) == (0, 0)
    assert report["events"]["EndOfSession"] == 1


def test_a_receiver_whose_naks_are_cut_off_gives_up_in_time_and_recovers(
    make_lab: MakeLab, ends_in: EndsIn
) -> None:
    """Without an answer for nak_generation, UnrecoverableLoss follows; repair resumes when the path returns
    (UM-123, UM-101).
    """
    lab = make_lab(hosts=2)
    ends = ends_in(lab)
    cut = ends.subscribe(1, options={"transport_lbtrm_nak_generation_interval": 1000})
    publisher = ends.publish(rate=5_000, options={"flow_control": "none"})
    publisher.ask(send=10**9)
    cut.await_received(1_000)
    to_publisher = lab.port(1, "from_host")
    to_publisher.set(block=True, unicast=True)
    lab.port(1).set(loss=0.02)
    cut.await_report(lambda now: now["events"].get("UnrecoverableLoss", 0) > 20)
    to_publisher.set(block=False, unicast=False)
    # Losses from while the path was cut are given up within one interval; later losses are repaired.
    _progress(publisher, 7_500, "sent")
    lost_meanwhile = cut.ask().received_transport["unrecovered_tmo"]
    _progress(cut, 5_000, "received")
    lab.port(1).set(loss=0)
    final = publisher.ask(stop=5)
    report = cut.await_report(lambda now: now["received"] + now["lost_sqns"] >= final["sent"])
    assert report["received"] + report["lost_sqns"] == final["sent"]
    assert report["missing"] == report["lost_sqns"] == report["events"]["UnrecoverableLoss"]
    assert (report["out_of_order"], report["corrupt"]) == (0, 0)
    assert report.received_transport["unrecovered_tmo"] == lost_meanwhile
