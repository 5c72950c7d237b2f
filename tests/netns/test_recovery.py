"""Loss, duplication, reordering, slow and killed ends: which messages arrive, and how the others are reported."""

from __future__ import annotations

from collections.abc import Callable

from tests.netns.endpoints import WAIT_SECONDS, EndsIn, assert_whole
from umstack.lab import Lab

MakeLab = Callable[..., Lab]

SOAK_MESSAGES = 10_000_000
SOAK_EARLY_MESSAGES = 1_000_000
LOG_BYTES = 3 * (8 << 20)
SOAK_GROWTH_BYTES = 4 << 20


def test_each_of_three_receivers_loses_its_own_datagrams_and_gets_everything(
    make_lab: MakeLab, ends_in: EndsIn
) -> None:
    """With 2 % loss at every port, everything arrives in order, nothing is given up, and there is about one
    NAK per lost datagram (UM-115..UM-124).
    """
    lab = make_lab(hosts=4)
    ends = ends_in(lab)
    # A busy machine delays retransmissions, which must not cause another NAK.
    patient = {"transport_lbtrm_nak_backoff_interval": 400}
    subscribers = [ends.subscribe(number, options=patient) for number in (1, 2, 3)]
    publisher = ends.publish(receivers=3)
    for number in (1, 2, 3):
        lab.port(number).set(loss=0.02)
    count = 20_000
    publisher.ask(send=count)
    for number, subscriber in enumerate(subscribers, 1):
        report = subscriber.await_received(count)
        assert_whole(report, count)
        transport = report.received_transport
        dropped = lab.port(number).counters().dropped
        assert dropped > count * 0.01
        assert transport["lost"] >= dropped * 0.9
        assert (transport["unrecovered_tmo"], transport["unrecovered_txw"]) == (0, 0)
        assert 0 < transport["naks_sent"] <= 1.3 * transport["lost"]
    report = publisher.ask(stop=WAIT_SECONDS)
    assert report["drained"]
    assert (
        report.sent_transport["rxs_sent"]
        >= max(lab.port(number).counters().dropped for number in (1, 2, 3)) / 2
    )
    assert report.sent_transport["naks_rcved"] >= report.sent_transport["rxs_sent"]


def test_duplicates_and_reordering_are_harmless_and_counted(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """Duplicates are dropped and counted; a late datagram clears its loss map entry (UM-118, UM-121, UM-127)."""
    lab = make_lab(hosts=2)
    ends = ends_in(lab)
    subscriber = ends.subscribe(1)
    publisher = ends.publish(receivers=1)
    lab.port(1).set(duplicate=0.1, reorder=0.05)
    count = 20_000
    publisher.ask(send=count)
    report = subscriber.await_received(count)
    publisher.ask(stop=5)
    report = subscriber.ask()
    assert_whole(report, count)
    at_port = lab.port(1).counters()
    transport = report.received_transport
    assert at_port.duplicated > count * 0.05
    assert transport["duplicate_data"] >= at_port.duplicated * 0.9
    assert at_port.reordered > count * 0.02
    assert transport["out_of_order"] >= at_port.reordered * 0.5
    assert (transport["unrecovered_tmo"], transport["unrecovered_txw"]) == (0, 0)


def test_a_killed_subscriber_stops_counting_and_the_others_lose_nothing(
    make_lab: MakeLab, ends_in: EndsIn
) -> None:
    """A dead receiver's window is the slowest until it times out; then the stream continues (AE-19, AE-20)."""
    lab = make_lab(hosts=4)
    ends = ends_in(lab)
    victim, *others = (ends.subscribe(number) for number in (1, 2, 3))
    publisher = ends.publish(receivers=3, rate=20_000)
    publisher.ask(send=10**9)
    victim.await_received(2_000)
    killed_at = publisher.ask()
    victim.kill()
    report = publisher.await_report(lambda now: now.counter("source_transports", "receivers_timed_out") == 1)
    assert 0.7 < report["at"] - killed_at["at"] < 3
    assert report.counter("source_transports", "receivers_known") == 2
    resumed_from = report["sent"]
    publisher.await_report(lambda now: now["sent"] > resumed_from + 20_000)
    final = publisher.ask(stop=WAIT_SECONDS)
    assert final["drained"]
    assert final.counter("source_transports", "snd_bpe") >= 1
    for other in others:
        assert_whole(other.await_received(final["sent"]), final["sent"])


def test_a_publisher_that_dies_inside_a_message_ends_the_session_and_delivers_nothing_partial(
    make_lab: MakeLab, ends_in: EndsIn
) -> None:
    """EndOfSession arrives after the activity timeout, without the incomplete message (UM-5, UM-104, UM-105, UX-9)."""
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    options = {"transport_lbtrm_activity_timeout": 2000}
    length = 500_000
    subscribers = [ends.subscribe(number, size=length, options=options) for number in (1, 2)]
    publisher = ends.publish(receivers=2, size=length, context={"transport_lbtrm_data_rate_limit": 4_000_000})
    publisher.send_order(send=1)
    whole = length // 1400
    for subscriber in subscribers:
        subscriber.await_report(lambda now: 20 < now.counter("receivers", "fragments_received") < whole)
    publisher.kill()
    died = [subscriber.ask() for subscriber in subscribers]
    for subscriber, then in zip(subscribers, died, strict=True):
        report = subscriber.await_report(lambda now: "EndOfSession" in now["events"])
        assert 1.5 < report["at"] - then["at"] < 4
        assert report["events"]["BeginningOfSession"] == 1
        assert report["events"]["EndOfSession"] == 1
        assert (report["received"], report["corrupt"]) == (0, 0)
        assert report.counter("receivers", "fragments_received") < whole
        assert report.counter("context", "hold_store_datagrams") == 0


def test_a_slow_reader_slows_the_publisher_and_loses_nothing(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """With flow control min the rate follows the slowest reader, and recovers with it (AE-13, AE-20, AE-44)."""
    lab = make_lab(hosts=3)
    ends = ends_in(lab)
    small = {"flow_control_receiver_window": 262144, "receiver_queue_block_count": 4}
    slow = ends.subscribe(1, rate=5_000, options=small)
    ends.subscribe(2)
    publisher = ends.publish(receivers=2, options={"transport_lbtrm_transmission_window_size": 1 << 20})
    publisher.ask(send=10**9)
    slow.await_received(4_000)
    reader_before, before = slow.ask(), publisher.ask()
    slow.await_received(reader_before["received"] + 5_000)
    reader_after, after = slow.ask(), publisher.ask()
    rate = (after["sent"] - before["sent"]) / (after["at"] - before["at"])
    # The reader paces itself by sleeping, so its actual rate is measured.
    reader_rate = (reader_after["received"] - reader_before["received"]) / (
        reader_after["at"] - reader_before["at"]
    )
    assert 0.75 * reader_rate < rate < 1.25 * reader_rate
    assert after.counter("source_transports", "snd_bpe") > 0
    slow.ask(rate=0)
    sped_up_from = publisher.ask()["sent"]
    publisher.await_report(lambda now: now["sent"] > sped_up_from + 20_000, seconds=3)
    final = publisher.ask(stop=WAIT_SECONDS)
    assert final["drained"]
    for subscriber in ends.subscribers:
        assert_whole(subscriber.await_received(final["sent"]), final["sent"])


def test_what_a_slow_reader_loses_without_flow_control_is_reported(
    make_lab: MakeLab, ends_in: EndsIn
) -> None:
    """Delivered messages and sequence numbers reported lost add up to those sent (UM-101, UM-123, UM-128)."""
    lab = make_lab(hosts=2)
    ends = ends_in(lab)
    slow = ends.subscribe(
        1,
        size=1400,
        rate=4_000,
        context={"transport_lbtrm_receiver_socket_buffer": 65536, "delivery_hold_datagrams": 64},
        options={
            "transport_lbtrm_nak_generation_interval": 500,
            "receiver_queue_block_count": 2,
            "receiver_queue_block_length": 4096,
        },
    )
    publisher = ends.publish(
        size=1400,
        options={"flow_control": "none", "transport_lbtrm_transmission_window_size": 1 << 20},
    )
    count = 20_000
    publisher.ask(send=count, rate=40_000)
    publisher.await_report(lambda now: now["sent"] == count)
    slow.ask(rate=0)
    report = slow.await_report(lambda now: now["received"] + now["lost_sqns"] >= count)
    assert report["received"] + report["lost_sqns"] == count
    assert report["lost_sqns"] > 0
    assert report["missing"] <= report["lost_sqns"]
    assert (report["out_of_order"], report["corrupt"]) == (0, 0)
    # The queue gave messages up, or the transport did if the machine was too slow to take datagrams from the socket.
    transport = report.received_transport
    unrecovered = transport["unrecovered_tmo"] + transport["unrecovered_txw"]
    assert report["events"].get("CutLoose", 0) + unrecovered > 0


def test_ten_million_messages_do_not_grow_the_processes(make_lab: MakeLab, ends_in: EndsIn) -> None:
    """Memory is bounded: once the stream has filled the log, neither process grows by 4 MiB (AE-5).

    The log is mapped when the session is created, and the kernel backs a page when it is first written.
    """
    lab = make_lab(hosts=2)
    ends = ends_in(lab)
    subscriber = ends.subscribe(1, size=64)
    options = {"transport_lbtrm_transmission_window_size": LOG_BYTES // 3}
    publisher = ends.publish(size=64, receivers=1, options=options)
    publisher.ask(send=SOAK_EARLY_MESSAGES)
    early = subscriber.await_received(SOAK_EARLY_MESSAGES), publisher.ask()
    assert early[1].counter("source_transports", "pub_pos") > LOG_BYTES
    publisher.ask(send=SOAK_MESSAGES - SOAK_EARLY_MESSAGES)
    late = subscriber.await_received(SOAK_MESSAGES, seconds=20), publisher.ask(stop=5)
    assert_whole(late[0], SOAK_MESSAGES)
    for then, now in zip(early, late, strict=True):
        assert now["rss"] - then["rss"] < SOAK_GROWTH_BYTES
