"""The analyses, on captures of which every packet was chosen: the answers are known to the last number."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

import numpy as np
import polars as pl

from tests.story import MS, PUBLISHER, RECEIVERS, US, WRAP, Story, message
from tests.unit.vendor_capture import vendor_capture
from umstack.analysis.numbering import Numbered, Seen
from umstack.analysis.rare_rows import RareSlices
from umstack.analysis.stalls import paused_ns
from umstack.analysis.tables import tables_of
from umstack.analysis.traffic import bursts
from umstack.facts import sends
from umstack.facts.facts import facts_of, facts_of_packets
from umstack.facts.sends import Sends
from umstack.report.findings import Severity, findings
from umstack.report.outputs import summarised
from umstack.report.stall_text import stall_cause

START = 1_700_000_000 * 1_000_000_000
ONE, TWO, THREE = RECEIVERS


def rows(table: pl.DataFrame, *order: str) -> list[dict[str, Any]]:
    """All rows of a table."""
    return (table.sort(order) if order else table).to_dicts()


def seen(story: Story) -> dict[str, pl.DataFrame]:
    """The tables of a story."""
    return tables_of(story.facts())


def test_sequence_numbers_are_unwrapped() -> None:
    """A session that wraps, NAKs before and after included, is one run of numbers."""
    story = Story()
    first = WRAP - 50
    story.stream(START, 10 * MS, first, 100)
    story.nak(START + 990 * MS, ONE, WRAP - 2, WRAP + 3)
    story.data(START + 180_000 * MS, first + 100)
    story.nak(START + 170_000 * MS, ONE, WRAP + 10)
    numbers, asked = numbered(story)
    assert numbers == list(range(first, first + 101))
    assert asked == [WRAP - 2, WRAP + 3, WRAP + 10]


def numbered(story: Story) -> tuple[list[int], list[int]]:
    """The unwrapped numbers that were sent, and those that were asked for."""
    whole = Numbered.of(story.facts())
    [sent] = whole.everything
    return sent.sqns.tolist(), RareSlices.of(whole.facts, whole.known).whole().naks["sqn"].sort().to_list()


def test_a_session_that_starts_at_zero_is_not_a_turn_too_high() -> None:
    """Its first session message has the lead before 0, 4294967295: the numbers of its data are those on the wire."""
    story = Story()
    story.session_message(START, WRAP - 1)
    story.stream(START + MS, MS, 0, 10)
    story.nak(START + 20 * MS, ONE, 3)
    assert numbered(story) == (list(range(10)), [3])


def test_a_session_and_its_topics() -> None:
    """Span, counts by kind, receivers; messages and fragments by topic, retransmissions not counted twice."""
    story = Story()
    head = message(2, 8, 300) | {"first_sqn": 8, "fragment_offset": 0, "message_length": 500}
    tail = message(2, 9, 200) | {"first_sqn": 8, "fragment_offset": 300, "message_length": 500}
    story.data(START, 10, messages=[message(1, 5, 100), message(1, 6, 50), message(2, 7, 25)])
    story.data(START + MS, 11, messages=[head])
    story.data(START + 2 * MS, 12, messages=[tail])
    story.nak(START + 3 * MS, ONE, 11)
    story.again(START + 4 * MS, 11)
    story.status(START + 1000 * MS, TWO, 12)
    [session] = rows(seen(story)["sessions"])
    assert (session["publisher"], session["group"]) == (PUBLISHER, "239.101.3.10:14400")
    assert (session["datagrams"], session["retransmissions"], session["naks"]) == (3, 1, 1)
    assert (session["status_messages"], session["receivers"], session["messages"]) == (1, 2, 5)
    assert (session["first_sqn"], session["last_sqn"], session["seconds"]) == (10, 12, 1.0)
    one, two = rows(seen(story)["topics"], "topic_index")
    assert (one["messages"], one["fragments"], one["payload_bytes"]) == (2, 2, 150)
    assert (two["messages"], two["fragments"], two["payload_bytes"]) == (2, 3, 525)
    assert (two["lowest_sqn"], two["highest_sqn"]) == (7, 9)


def losing_story() -> Story:
    """1000 datagrams per second for ten seconds and a pause; one loss of every kind, each at another time."""
    story = Story()
    story.stream(START, MS, 1, 10_000)
    story.stream(START + 12_000 * MS, MS, 10_001, 10)

    def lost(receiver: str, *sqns: int) -> None:
        for sqn in sqns:
            at = START + (sqn - 1) * MS
            story.nak(at + 20 * MS, receiver, sqn)
            story.again(at + 21 * MS, sqn)

    lost(ONE, 1, 2)  # head
    lost(ONE, 2000, 2010)  # sporadic
    lost(ONE, *range(4000, 4010))  # burst
    lost(TWO, *range(6000, 6500))  # connectivity
    lost(ONE, 9999, 10_000)  # tail
    return story


def test_loss_incidents_have_their_causes() -> None:
    """Gaps and islands by receiver: head, sporadic, burst, connectivity and tail loss are distinguished."""
    found = rows(seen(losing_story())["incidents"], "start_ns")
    assert [
        (row["cause"], row["receiver"], row["lost"], row["first_sqn"], row["last_sqn"]) for row in found
    ] == [
        ("head", ONE, 2, 1, 2),
        ("sporadic", ONE, 2, 2000, 2010),
        ("burst", ONE, 10, 4000, 4009),
        ("connectivity", TWO, 500, 6000, 6499),
        ("tail", ONE, 2, 9999, 10_000),
    ]
    assert all(row["unrepaired"] == 0 for row in found)
    assert found[2]["start_ns"] == START + 3999 * MS
    assert found[2]["end_ns"] == START + 4008 * MS


def test_losses_are_merged_by_quiet_time_and_wrap() -> None:
    """Less than the quiet time apart is one incident, more is two; a run across the wrap is one run."""
    story = Story()
    first = WRAP - 100
    story.stream(START, MS, first, 400)
    for sqn in (*range(WRAP - 3, WRAP + 3), WRAP + 40, WRAP + 200):
        story.nak(START + (sqn - first) * MS + 5 * MS, ONE, sqn)
    near, far = rows(seen(story)["incidents"], "start_ns")
    assert (near["lost"], near["longest_run"], near["cause"], near["unrepaired"]) == (7, 6, "burst", 7)
    assert (far["lost"], far["first_sqn"], far["cause"]) == (1, WRAP + 200, "sporadic")


def test_a_repair_that_meets_the_nak_on_its_way_is_one() -> None:
    """Another receiver NAKed first: the source ignores the second NAK, and the receiver does not NAK again.

    A NAK that was ignored for another reason, or repeated, is not repaired by an earlier retransmission.
    """
    story = Story()
    story.stream(START, MS, 1, 10)
    for sqn in (3, 4, 5):
        story.nak(START + 20 * MS, ONE, sqn)
        story.again(START + 21 * MS, sqn)
        story.nak(START + 22 * MS, TWO, sqn)
    story.ncf(START + 23 * MS, "ignored", 3, 5)
    story.ncf(START + 23 * MS, "rx_delay", 4)
    story.nak(START + 60 * MS, TWO, 5)
    tables = seen(story)
    lost = tables["losses"]
    of_two = {row["sqn"]: row["repaired_ns"] for row in rows(lost) if row["receiver"] == TWO}
    assert of_two == {3: START + 21 * MS, 4: None, 5: None}
    [_, two] = rows(tables["recovery_latency"], "receiver")
    assert (two["lost"], two["repaired"], two["request_p50"]) == (3, 1, None)
    assert two["recovery_max"] == (21 - 2) * MS


def test_a_loss_that_its_receiver_still_requests_is_not_repaired() -> None:
    """A retransmission is a repair if no NAK follows it, or only one that crossed it in transit."""
    story = Story()
    story.stream(START, MS, 1, 10)
    for sqn, nak_ms in {2: (20,), 3: (20, 25), 4: (20, 40), 5: (20, 25, 60)}.items():
        for ms in nak_ms:
            story.nak(START + ms * MS, ONE, sqn)
        story.again(START + 24 * MS, sqn)
    lost = {row["sqn"]: row["repaired_ns"] for row in rows(seen(story)["losses"])}
    assert lost == {2: START + 24 * MS, 3: START + 24 * MS, 4: None, 5: None}


def test_a_receiver_that_stops_asking_has_the_retransmission() -> None:
    """A late NAK without an answer is not a loss if the receiver would have sent another; it is one if it might yet."""
    for last_ms, repaired_ns in ((200, START + 24 * MS), (65, None)):
        story = Story()
        story.stream(START, MS, 1, 300)
        for ms in (10, 40):
            story.nak(START + ms * MS, ONE, 2)  # waits 30 ms between two NAKs
        story.again(START + 41 * MS, 2)
        story.nak(START + 20 * MS, TWO, 3)
        story.again(START + 24 * MS, 3)
        story.nak(START + 50 * MS, ONE, 3)
        story.nak(START + last_ms * MS, ONE, 4)
        of_one = [row for row in rows(seen(story)["losses"]) if row["receiver"] == ONE]
        assert {row["sqn"]: row["repaired_ns"] for row in of_one}[3] == repaired_ns


@pytest.mark.parametrize(
    ("first", "pause_ms", "restarts"), [(100, 60_000, 1), (1_100, 60_000, 0), (100, 5_000, 0)]
)
def test_a_point_that_begins_after_the_others_shows_a_restart(
    first: int, pause_ms: int, restarts: int
) -> None:
    """Files of two days with names of their own: a number that was lost on both is lost twice. Points whose times are
    close differ by their clocks."""
    monday, tuesday = Story("monday"), Story("tuesday")
    again_ns = START + 1_000 * MS + pause_ms * MS
    for story, start_ns, low in ((monday, START, 100), (tuesday, again_ns, first)):
        story.stream(start_ns, MS, low, 1_000)
        story.nak(start_ns + 500 * MS, ONE, low + 200)
        story.again(start_ns + 501 * MS, low + 200)
    tables = tables_of(facts_of_packets([monday.batch(), tuesday.batch()]))
    assert [row["restarts"] for row in rows(tables["sessions"])] == [restarts] * 2
    lost = [(row["sqn"], row["sent_ns"]) for row in rows(tables["losses"])]
    if first == 100 and not restarts:
        assert lost == [(300, START + 200 * MS)]
    else:
        assert lost == [(300, START + 200 * MS), (first + 200, again_ns + 200 * MS)]


@pytest.mark.parametrize(
    ("first", "pause_ms"),
    [(1, 1), (1, 2_000), (WRAP - 1_000, 1), (3_000_000_000, 500), (100_100, 5_000), (109_900, 2_000)],
)
def test_a_source_that_restarts_loses_nothing(first: int, pause_ms: int) -> None:
    """Its numbers begin again, below or far above the ones before: no gap, no copy; each life has its own losses."""
    near, far = Story("near"), Story("far")
    again_ns = START + 10_000 * MS + pause_ms * MS
    for story, clock_ns in ((near, 0), (far, 30 * MS)):
        story.stream(START + clock_ns, MS, 100_000, 10_000)
        story.stream(again_ns + clock_ns, MS, first, 10_000)
        for nak_ns, sqn in ((START + 500 * MS, 100_200), (again_ns + 700 * MS, first + 200)):
            story.nak(nak_ns + clock_ns, ONE, sqn)
            story.again(nak_ns + MS + clock_ns, sqn)
    tables = tables_of(facts_of_packets([near.batch(), far.batch()]))
    assert [row["restarts"] for row in rows(tables["sessions"])] == [1, 1]
    assert not len(tables["gaps"])
    assert not len(tables["duplicates"])
    lost = {row["sqn"] % WRAP: row["repaired_ns"] - row["sent_ns"] for row in rows(tables["losses"])}
    assert lost == {100_200: (500 - 200 + 1) * MS, (first + 200) % WRAP: (700 - 200 + 1) * MS}
    assert all(abs(row["offset_ns"]) == 30 * MS for row in rows(tables["latency"]))


def test_a_source_that_restarts_again_at_once_has_three_lives() -> None:
    """Two points see both restarts, which are 2 s apart."""
    near, far = Story("near"), Story("far")
    for story, clock_ns in ((near, 0), (far, 30 * MS)):
        for life, first in enumerate((100_000, 1, 3_000_000_000)):
            story.stream(START + life * 2_000 * MS + clock_ns, MS, first, 1_000)
    tables = tables_of(facts_of_packets([near.batch(), far.batch()]))
    assert [row["restarts"] for row in rows(tables["sessions"])] == [2, 2]
    assert not len(tables["gaps"])


@pytest.mark.parametrize("back_ms", [20, 100, 190, 20_000, 3_600_000])
def test_a_clock_that_is_set_back_is_no_restart(back_ms: int) -> None:
    """In a capture, at 50,000 datagrams per second: nothing is missing, and losses are found on both sides."""
    story = Story()
    story.stream(START, 20 * US, 1, 10_000)
    set_ns = START + 200 * MS - back_ms * MS
    story.stream(set_ns, 20 * US, 10_001, 10_000)
    for nak_ns, sqn in ((START + 10 * MS, 100), (set_ns + 190 * MS, 19_000)):
        story.nak(nak_ns, ONE, sqn)
        story.again(nak_ns + MS, sqn)
    tables = seen(story)
    assert [row["restarts"] for row in rows(tables["sessions"])] == [0]
    assert not len(tables["gaps"])
    assert not len(tables["duplicates"])
    assert [(row["sqn"], row["repaired_ns"]) for row in rows(tables["losses"], "sqn")] == [
        (100, START + 11 * MS),
        (19_000, set_ns + 191 * MS),
    ]


def test_loss_and_reordering_are_no_restart() -> None:
    """A second without any datagram at full rate, and some that come late, are of one life of the source."""
    story = Story()
    story.stream(START, 10 * US, 1, 5_000)
    story.stream(START + 1_000 * MS, 10 * US, 4_000_000, 5_000)
    for late in range(20):
        story.data(START + 1_050 * MS + late, 4_010_000 + 19 - late)
    tables = seen(story)
    assert [row["restarts"] for row in rows(tables["sessions"])] == [0]
    assert [row["missing"] for row in rows(tables["gaps"])] == [3_994_999, 5_000]


def test_one_point_judges_a_recovery() -> None:
    """The clocks of two points differ by 30 ms: the time from NAK to repair is that of one of them."""
    near, far = Story("near"), Story("far")
    for story, clock_ns in ((near, 0), (far, 30 * MS)):
        story.stream(START + clock_ns, MS, 1, 10)
        story.nak(START + 20 * MS + clock_ns, ONE, 3)
        story.again(START + 20 * MS + 400 * US + clock_ns, 3)
    [row] = rows(tables_of(facts_of_packets([near.batch(), far.batch()]))["recovery_latency"])
    assert (row["request_p50"], row["request_max"]) == (400 * US, 400 * US)


def test_unrepaired_losses_of_real_traffic_are_those_that_its_author_counted() -> None:
    """Of one receiver's 514 losses six never arrived; the other's 487 were all repaired."""
    lost = tables_of(facts_of([str(vendor_capture())]))["losses"]
    by_session = lost.group_by("session_id").agg(pl.len(), pl.col("repaired_ns").is_null().sum())
    assert sorted(row[1:] for row in by_session.iter_rows()) == [(487, 0), (514, 6)]


def test_recovery_latency_by_receiver() -> None:
    """Times from the first NAK to the first retransmission after it, and from the sending; NAKs per loss."""
    story = Story()
    story.stream(START, MS, 1, 200)
    for sqn in range(1, 101):
        at = START + (sqn - 1) * MS
        story.nak(at + 10 * MS, ONE, sqn)
        story.again(at + 10 * MS + sqn * 10 * US, sqn)
    story.again(START + 150 * MS - US, 151)  # before anybody asked: another's repair
    story.nak(START + 151 * MS, TWO, 151)
    story.nak(START + 161 * MS, TWO, 151)
    story.again(START + 163 * MS, 151)
    story.nak(START + 190 * MS, TWO, 152)
    tables = seen(story)
    one, two = rows(tables["recovery_latency"], "receiver")
    assert (one["lost"], one["repaired"], one["naks_per_loss"]) == (100, 100, 1.0)
    assert (one["request_p50"], one["request_p99"], one["request_max"]) == (500 * US, 990 * US, MS)
    assert one["recovery_max"] == 11 * MS
    assert (two["lost"], two["repaired"], two["naks"], two["request_max"]) == (2, 1, 3, 12 * MS)
    histogram = rows(tables["recovery_histogram"], "receiver", "from_ns")
    assert sum(row["losses"] for row in histogram) == 101
    assert all(row["from_ns"] < row["to_ns"] for row in histogram)


def test_retransmissions_without_a_nak_are_losses_of_somebody_unknown() -> None:
    """A capture without the NAKs still shows the loss."""
    story = Story()
    story.stream(START, MS, 1, 100)
    story.again(START + 60 * MS, 20)
    [lost] = rows(seen(story)["losses"])
    assert (lost["receiver"], lost["sqn"], lost["naks"], lost["sent_ns"]) == (None, 20, 0, START + 19 * MS)
    [repair] = rows(seen(story)["repairs"])
    assert (repair["retransmissions"], repair["unrequested"], repair["useless_bytes"]) == (1, None, None)


def test_gaps_at_the_point_of_capture() -> None:
    """Datagrams missing from the capture, within one bucket of the bitmap and across two, with neighbours' times."""
    story = Story()
    for sqn in [*range(32_700, 32_720), *range(32_722, 32_760), *range(32_775, 32_800)]:
        story.data(START + sqn * US, sqn)
    found = rows(seen(story)["gaps"], "first_sqn")
    assert [(row["first_sqn"], row["last_sqn"], row["missing"]) for row in found] == [
        (32_720, 32_721, 2),
        (32_760, 32_774, 15),
    ]
    assert found[1]["before_ns"] == START + 32_759 * US
    assert found[1]["after_ns"] == START + 32_775 * US


def test_session_messages_reveal_a_lost_tail() -> None:
    """The last datagrams never arrived at a receiver's port, across the wrap; a lead before the end reveals nothing."""
    story = Story()
    first = WRAP - 5
    story.session_message(START - MS, first - 1)
    story.stream(START, MS, first, 10)
    for number in range(3):
        story.session_message(START + (100 + number) * MS, first + 29)
    [gap] = rows(seen(story)["gaps"])
    assert (gap["first_sqn"], gap["last_sqn"], gap["missing"]) == (first + 10, first + 29, 20)
    assert (gap["before_ns"], gap["after_ns"]) == (START + 9 * MS, START + 100 * MS)
    summary = summarised(seen(story), [])
    found = {one.topic: one for one in findings(summary)}
    assert "20 datagrams were not captured" in found["gaps"].text
    assert found["loss"].severity is Severity.WORTH_A_LOOK


def stalled_story() -> Story:
    """A window of 100 datagrams, one each 10 us, that a loss holds four times, each for another reason."""
    story = Story()
    at, first = START, 1
    for held_ns, naks_ns, lost_repair_ns in (
        (52 * MS, (1 * MS, 51 * MS), 1500 * US),  # the repair was lost
        (20 * MS, (19 * MS,), None),  # NAKed late
        (30 * MS, (1 * MS, 29 * MS), None),  # two NAKs, no repair between them
        (10 * MS, (1 * MS,), None),  # repaired late
        (5 * MS, (1 * MS,), None),  # not long enough
    ):
        story.stream(at, 10 * US, first, 100)
        end = at + 990 * US
        for nak_ns in naks_ns:
            story.nak(end + nak_ns, ONE, first + 50)
        if lost_repair_ns is not None:
            story.again(end + lost_repair_ns, first + 50)
        # An earlier number, repaired sooner, and a later one of another receiver hold nothing.
        story.nak(end + 100 * US, TWO, first + 20, first + 60)
        story.again(end + 200 * US, first + 20)
        story.again(end + held_ns - 200 * US, first + 60)
        story.again(end + held_ns - 100 * US, first + 50)
        at, first = end + held_ns, first + 100
    # The last datagram before a pause of the application is repaired long before the next datagram.
    story.stream(at, 10 * US, first, 100)
    story.nak(at + 20 * MS, ONE, first + 99)
    story.again(at + 21 * MS, first + 99)
    story.stream(at + 40 * MS, 10 * US, first + 100, 10)
    return story


def test_a_stall_names_the_receiver_and_the_number_that_held_the_window() -> None:
    """The repair that came last before the publisher resumed ended the stall; a pause of the application is none."""
    story = stalled_story()
    story.status(START, ONE, 1)
    found = rows(seen(story)["stalls"], "start_ns")
    assert [(row["stall_ns"], row["receiver"], row["sqn"], row["naks"]) for row in found] == [
        (52 * MS, ONE, 51, 2),
        (20 * MS, ONE, 151, 1),
        (30 * MS, ONE, 251, 2),
        (10 * MS, ONE, 351, 1),
    ]
    assert found[0]["start_ns"] == START + 990 * US
    assert [stall_cause(row) for row in found] == [
        "its repair was lost and NAKed again after 49.5 ms",
        "its first NAK came after 19 ms",
        "2 NAKs were sent within 28 ms before its repair",
        "its repair came 8.9 ms after its NAK",
    ]


def test_a_session_without_flow_control_has_no_stalls() -> None:
    """Without status messages no receiver can hold a publisher."""
    assert rows(seen(stalled_story())["stalls"]) == []


def test_all_pauses_add_up_whatever_their_cause() -> None:
    """Also those of the application, and across the pieces in which times are read."""
    [sends] = stalled_story().facts().sends.values()
    pauses = (52 + 20 + 30 + 10) * MS + 40 * MS - 990 * US
    assert paused_ns(sends) == pauses
    long = Sends.of(np.arange(2_500_000, dtype=np.uint32), np.arange(2_500_000) // (1 << 20) * 6 * MS)
    assert paused_ns(long) == 2 * 6 * MS


def test_nak_storms_name_their_receivers() -> None:
    """Windows over both thresholds in a row are one storm; the receiver that asked most comes first."""
    story = Story()
    story.stream(START, MS, 1, 1000)
    for step in range(30):
        story.nak(START + 200 * MS + step * 10 * MS, TWO, *range(100, 150))
        story.nak(START + 200 * MS + step * 10 * MS, ONE, *range(step * 5, step * 5 + 5))
    story.nak(START + 900 * MS, THREE, 700)
    # A hundred numbers and more in a tenth of a second are no storm when one NAK asks for them, or two.
    story.nak(START + 700 * MS, THREE, *range(300, 600))
    story.nak(START + 710 * MS, ONE, *range(300, 600))
    # Nor are NAKs, however many, for a number each.
    for step in range(50):
        story.nak(START + 1000 * MS + step * MS, (ONE, TWO, THREE)[step % 3], 900 + step)
    [storm] = rows(seen(story)["nak_storms"])
    assert storm["start_ns"] == START + 200 * MS
    assert (storm["requests"], storm["naks"]) == (30 * 55, 60)
    assert storm["repeated"] == 29 * 50
    assert [one["receiver"] for one in storm["receivers"]] == [TWO, ONE]
    assert storm["receivers"][0]["share"] == pytest.approx(50 / 55)


def test_useless_repairs_are_counted() -> None:
    """Sent again without being asked for, or twice for one NAK; refusals by reason."""
    story = Story()
    story.stream(START, MS, 1, 50)
    story.nak(START + 20 * MS, ONE, 5)
    story.again(START + 21 * MS, 5)
    story.again(START + 22 * MS, 5)
    story.nak(START + 23 * MS, TWO, 5)
    story.again(START + 24 * MS, 5)
    story.again(START + 25 * MS, 9)
    story.ncf(START + 26 * MS, "ignored", 5, 6, 7)
    story.ncf(START + 26 * MS, "shed", 8)
    [found] = rows(seen(story)["repairs"])
    assert (found["retransmissions"], found["repeated"], found["unrequested"]) == (4, 1, 1)
    assert found["useless_bytes"] == 2 * (20 + 112)
    assert (found["refused_ignored"], found["refused_shed"], found["refused_rx_delay"]) == (3, 1, 0)
    assert rows(seen(story)["duplicates"]) == []
    story.data(START + 30 * MS, 12)
    [copied] = rows(seen(story)["duplicates"])
    assert (copied["datagrams"], copied["copies"]) == (51, 1)


def test_rates_and_bursts_at_one_millisecond() -> None:
    """Ten datagrams per millisecond for three milliseconds: the burst and its size."""
    story = Story()
    story.stream(START, MS, 1, 1000)
    for number in range(27):
        story.data(START + 500 * MS + (number % 3) * MS + 10 * US * (number + 1), 1001 + number)
    tables = seen(story)
    assert len(tables["rates"]) == 1000
    [summary] = rows(tables["rate_summary"])
    assert summary["peak_datagrams_per_second"] == 10_000
    assert summary["p50_bytes_per_second"] == (132 + 42) * 1000
    [burst] = rows(tables["bursts"])
    assert (burst["start_ns"], burst["duration_ns"]) == (START + 500 * MS, 3 * MS)
    assert burst["datagrams"] == 30
    assert burst["times_mean"] == pytest.approx(10 / 1.027)


def test_thousands_of_bursts_are_distinguished() -> None:
    """More busy milliseconds than an int holds nanoseconds for: every burst is a row still."""
    story = Story()
    story.stream(START, 10 * MS, 1, 2500)
    rated = seen(story)["rates"]
    found = rows(bursts(rated))
    assert len(found) == 2500
    assert {burst["duration_ns"] for burst in found} == {MS}


def test_batching_and_fill() -> None:
    """Messages per datagram, fill level against the MTU, and datagrams that do not fit."""
    story = Story()
    story.data(START, 1, messages=[message(payload_bytes=100)] * 10, udp_bytes=1472)
    story.data(START + MS, 2, messages=[message(payload_bytes=100)] * 2, udp_bytes=368)
    story.data(START + 2 * MS, 3, messages=[message(payload_bytes=1800)], udp_bytes=1840)
    story.data(START + 3 * MS, 4, messages=[])
    tables = seen(story)
    [found] = rows(tables["datagram_fill"])
    assert (found["datagrams"], found["messages"], found["most_messages"]) == (3, 13, 10)
    assert found["fill"] == pytest.approx((1 + 0.25 + 1.25) / 3)
    assert (found["half_empty"], found["over_mtu"]) == (1, 1)
    assert found["payload_share"] == pytest.approx(3000 / (1472 + 368 + 1840 + 3 * 42))
    histogram = rows(tables["fill_histogram"], "from")
    assert [(row["from"], row["datagrams"]) for row in histogram] == [(0.25, 1), (pytest.approx(0.95), 2)]


def test_ip_fragments() -> None:
    """Fragments by the pair they travelled between."""
    story = Story()
    story.data(START, 1, ip_fragment=True, ip_fragments=1, udp_bytes=1480)
    story.data(START, 1, ip_fragment=True, ip_fragments=1, udp_bytes=600, packet_type=None, session_id=None)
    story.data(START, 2)
    [found] = rows(seen(story)["ip_fragments"])
    assert (found["source_address"], found["fragments"], found["bytes"]) == (PUBLISHER, 2, 2080 + 84)


def test_latency_between_two_points() -> None:
    """The same datagrams at both ends, in the direction they went."""
    sent, received = Story("publisher"), Story("subscriber")
    for sqn in range(1, 101):
        sent.data(START + sqn * MS, sqn)
        if sqn != 50:
            received.data(START + sqn * MS + sqn * US, sqn)
    received.again(START + 500 * MS, 50)
    both = facts_of_packets([sent.batch(), received.batch()])
    [found] = rows(tables_of(both)["latency"])
    assert (found["from_point"], found["to_point"], found["datagrams"]) == ("publisher", "subscriber", 99)
    assert (found["latency_min"], found["latency_max"], found["negative"]) == (US, 100 * US, 0)


def asked_for(story: Story) -> dict[str, dict[str, Any]]:
    """Return the suggestions after a story, by option."""
    return {row["option"]: row for row in rows(seen(story)["suggestions"])}


def test_suggestions_follow_the_vendors_rules() -> None:
    """Backoffs, window and limits from what was seen, and how many losses each bears on."""
    story = losing_story()
    story.nak(START + 1999 * MS + 20 * MS + 500 * US, ONE, 2000)  # asked again before the repair
    for sqn in range(4000, 4010):
        story.nak(START + (sqn - 1) * MS + 20 * MS + 500 * US, ONE, sqn)
    for sqn in range(6000, 6100):
        story.nak(START + (sqn - 1) * MS + 20 * MS + 500 * US, TWO, sqn)
    chosen = asked_for(story)
    assert all(row["receivers_helped"] == len(row["receivers"]) for row in chosen.values())
    # Ten lost in a row last 9 ms, a round trip 1 ms.
    initial = chosen["transport_lbtrm_nak_initial_backoff_interval"]
    assert (initial["value"], initial["losses_helped"], initial["receivers"]) == (10, 516, [ONE, TWO])
    backoff = chosen["transport_lbtrm_nak_backoff_interval"]
    assert (backoff["value"], backoff["losses_helped"], backoff["receivers"]) == (10, 111, [ONE, TWO])
    # 100 datagrams of 174 bytes in the fullest tenth of a second, for 10 + 3 * 10 + 2 * 1 ms.
    assert chosen["transport_lbtrm_transmission_window_size"]["value"] == 100 * 174 * 10 * 42 // 1000
    assert not [option for option in chosen if "retransmit" in option], "a limit would make recovery slower"
    # The burst began where ten datagrams were sent in ten milliseconds.
    limit = chosen["transport_lbtrm_data_rate_limit"]
    assert (limit["value"], limit["unit"]) == (1000 * 174 * 8 * 8 // 10, "bits/s")
    assert (limit["losses_helped"], limit["receivers"]) == (10, [ONE])


@pytest.mark.parametrize("back_ms", [30, 500])
@pytest.mark.parametrize("stepped_at_ms", [4020, 7600])
def test_a_clock_that_is_set_back_changes_no_suggestion_about_rates(back_ms: int, stepped_at_ms: int) -> None:
    """Rates add up where the times before and after the step overlap; a burst of losses there has no known rate."""
    names = ("transport_lbtrm_transmission_window_size", "transport_lbtrm_data_rate_limit")
    story = losing_story()
    right = [asked_for(story)[name]["value"] for name in names]
    for packet in story.packets:
        if packet["time_ns"] >= START + stepped_at_ms * MS:
            packet["time_ns"] -= back_ms * MS
    chosen = asked_for(story)
    window, limit = (chosen[name]["value"] if name in chosen else None for name in names)
    has_burst = stepped_at_ms - back_ms <= 3999 <= stepped_at_ms
    assert (window, limit) == (right[0], None if has_burst else right[1])


def test_the_window_is_for_the_longest_round_trip() -> None:
    """No suggestion for the usual round trip; a loss with a re-NAK gives no round trip unless there is no other."""
    story = Story()
    story.stream(START, MS, 1, 1000)
    for sqn in (200, 300, 400, 500):
        nak_ns = START + (sqn + 200) * MS
        story.nak(nak_ns, ONE, sqn)
        story.again(nak_ns + (37 * MS if sqn == 400 else MS), sqn)
    story.nak(START + 800 * MS, TWO, 600)
    story.nak(START + 890 * MS, TWO, 600)
    story.again(START + 891 * MS, 600)
    chosen = asked_for(story)
    assert chosen["transport_lbtrm_nak_initial_backoff_interval"]["value"] == 91, "TWO's median"
    # The peak, for 91 + 3 * 91 + 2 * 37 ms: twice the slowest answer to a single NAK is below the initial back-off.
    peak = 100 * 174 * 10
    window = chosen["transport_lbtrm_transmission_window_size"]
    assert window["value"] == peak * (91 + 3 * 91 + 2 * 37) // 1000
    assert (window["losses_helped"], window["receivers"]) == (0, [])

    again = Story()
    again.stream(START, MS, 1, 1000)
    again.nak(START + 600 * MS, TWO, 600)
    again.nak(START + 690 * MS, TWO, 600)
    again.again(START + 691 * MS, 600)
    window = asked_for(again)["transport_lbtrm_transmission_window_size"]
    assert window["value"] == peak * (91 + 3 * 2 * 91 + 2 * 91) // 1000


def test_waits_for_lost_repairs_are_no_times_of_the_path() -> None:
    """A tenth of the repairs is lost, and the next NAK comes a second later: the back-off stays that of the others."""
    story = Story()
    story.stream(START, MS, 1, 2000)
    for sqn in range(100, 1100, 10):
        nak_ns = START + sqn * MS + 50 * MS
        for again_ns in (0, 1000 * MS) if sqn % 100 == 0 else (0,):
            story.nak(nak_ns + again_ns, ONE, sqn)
            story.again(nak_ns + again_ns + 150 * US, sqn)
    story.nak(START + 1510 * MS, ONE, 1500)
    story.nak(START + 1520 * MS, ONE, 1500)
    story.again(START + 1521 * MS, 1500)
    assert asked_for(story)["transport_lbtrm_nak_backoff_interval"]["value"] == 2, (
        "the least with half of it above 0"
    )


def refused_story() -> Story:
    """A fifth of the repairs is lost; the next NAK comes 150 to 170 ms later and is refused, the one after a second."""
    story = Story()
    story.stream(START, MS, 1, 4000)
    for k, sqn in enumerate(range(10, 3000, 20)):
        at = START + sqn * MS + 56 * MS
        story.nak(at, ONE, sqn)
        story.again(at + 150 * US, sqn)
        if k % 5 == 0:
            wait = (150 + k % 3 * 10) * MS
            story.nak(at + wait, ONE, sqn)
            story.ncf(at + wait + 100 * US, "IGNORED", sqn)
            story.nak(at + wait + 1000 * MS, ONE, sqn)
            story.again(at + wait + 1000 * MS + 150 * US, sqn)
    return story


def test_an_ignore_interval_that_refused_naks_is_shortened() -> None:
    """It becomes the usual wait for the next NAK; the back-off, of which a receiver waits half, is twice that."""
    chosen = asked_for(refused_story())
    ignored = chosen["transport_lbtrm_ignore_interval"]
    assert (ignored["value"], ignored["losses_helped"], ignored["receivers"]) == (160, 30, [ONE])
    backoff = chosen["transport_lbtrm_nak_backoff_interval"]
    assert backoff["value"] == 320
    assert "twice the ignore interval" in backoff["reason"]


@pytest.mark.parametrize("is_limited", [False, True])
def test_the_suppress_interval_becomes_the_ignore_interval(is_limited: bool) -> None:
    """The wait after an NCF is no back-off, and is suggested to be shorter unless the source limits its rate."""
    story = refused_story()
    if is_limited:
        story.nak(START + 3100 * MS, ONE, 3020)
        story.ncf(START + 3100 * MS + 100 * US, "RX_DELAY", 3020)
        story.nak(START + 3900 * MS, ONE, 3020)
        story.again(START + 3900 * MS + 150 * US, 3020)
    chosen = asked_for(story)
    name = "transport_lbtrm_nak_suppress_interval"
    assert (name in chosen) == (not is_limited)
    assert chosen["transport_lbtrm_ignore_interval"]["value"] == 160
    if not is_limited:
        row = chosen[name]
        assert (row["value"], row["losses_helped"], row["receivers"]) == (160, 30, [ONE])
        # The second NAK was refused 150 to 170 ms after the first, and the third came a second after the first.
        assert row["reason"].endswith("the NAK after an NCF then comes after about 480 ms, not 1000.0")


def test_a_nak_refused_after_the_suppress_interval_shows_no_back_off() -> None:
    """Every NAK is refused for 1.5 s: the second refusal comes a second after the first, which is no back-off."""
    story = refused_story()
    for packet in [one for one in story.packets if one["packet_type"] == "NCF"]:
        at = packet["time_ns"] + 900 * MS
        for number in packet["sqns"]:
            story.nak(at, ONE, number)
            story.ncf(at + 100 * US, "IGNORED", number)
    assert asked_for(story)["transport_lbtrm_ignore_interval"]["value"] == 160


def test_a_single_nak_that_an_ncf_answered_shows_no_round_trip() -> None:
    """The repair that came long after answered another receiver: the back-off does not depend on it."""
    story = Story()
    story.stream(START, MS, 1, 2000)
    for sqn in range(100, 500, 20):
        at = START + (sqn + 5) * MS
        story.nak(at, ONE, sqn)
        story.again(at + 150 * US, sqn)
        story.nak(at + 200 * US, TWO, sqn)
        story.ncf(at + 250 * US, "IGNORED", sqn)
        story.nak(at + 700 * MS, ONE, sqn)
        story.again(at + 701 * MS, sqn)
        for number, receiver in ((sqn + 5, ONE), (sqn + 10, TWO)):
            story.nak(START + (number + 5) * MS, receiver, number)
            story.again(START + (number + 5) * MS + 150 * US, number)
    chosen = asked_for(story)
    assert chosen["transport_lbtrm_nak_initial_backoff_interval"]["value"] == 1
    assert chosen["transport_lbtrm_nak_backoff_interval"]["value"] == 2


def test_a_nak_refused_for_another_receivers_repair_is_no_reason() -> None:
    """Two receivers lose the same number; the second NAK comes after the repair and is refused, as it should be."""
    story = Story()
    story.stream(START, MS, 1, 1000)
    for sqn in range(100, 500, 20):
        story.nak(START + sqn * MS, ONE, sqn)
        story.again(START + sqn * MS + MS, sqn)
        story.nak(START + sqn * MS + 2 * MS, TWO, sqn)
        story.ncf(START + sqn * MS + 2 * MS, "IGNORED", sqn)
    assert "transport_lbtrm_ignore_interval" not in asked_for(story)


def test_the_window_holds_what_was_sent_and_not_a_burst_repeated() -> None:
    """A burst of 20 ms, then silence: the window never exceeds the data of the session."""
    story = refused_story()
    story.stream(START + 10_000 * MS, 100 * US, 4001, 200)
    chosen = asked_for(story)
    # 1 + 3 * 320 + 2 * 1 ms of 174 bytes per millisecond; the burst alone is 200 datagrams.
    assert chosen["transport_lbtrm_transmission_window_size"]["value"] == (1 + 960 + 2) * 174


def test_advice_on_the_vendors_capture_is_near_its_authors() -> None:
    """The author recommends an ignore interval of 200 ms and a back-off of 400 ms."""
    found = tables_of(facts_of([str(vendor_capture())]))["suggestions"]
    for own in found.partition_by("session_id"):
        chosen = dict(own.select("option", "value").iter_rows())
        ignored = chosen["transport_lbtrm_ignore_interval"]
        assert 180 <= ignored <= 240
        assert chosen["transport_lbtrm_nak_backoff_interval"] == 2 * ignored


def test_no_data_limit_where_it_would_not_be_reached() -> None:
    """Datagrams lost in a burst far faster than the peak of a tenth of a second: four fifths of that limit nothing."""
    story = Story()
    story.stream(START, MS, 1, 1000)
    story.stream(START + 500 * MS, 10 * US, 1001, 100)
    for sqn in range(1001, 1011):
        story.nak(START + 520 * MS, ONE, sqn)
        story.again(START + 521 * MS, sqn)
    chosen = asked_for(story)
    assert "transport_lbtrm_transmission_window_size" in chosen
    assert "transport_lbtrm_data_rate_limit" not in chosen


def test_times_that_step_back_are_found_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as in one piece, whichever numbers were seen again, and how often."""
    monkeypatch.setattr(sends, "_PIECE", 7)
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    drawn = np.random.default_rng(seed)
    for _ in range(200):
        sqns = np.sort(drawn.integers(0, drawn.integers(1, 60), drawn.integers(1, 60)))
        times = drawn.integers(0, 20, len(sqns))
        begins = np.flatnonzero(np.diff(sqns, prepend=-2) != 1)
        lengths = np.diff(begins, append=len(sqns))
        one = Seen("point", ("10.0.0.1", 7), "", sqns[begins], lengths, times)
        _, first_times = one.first_times()
        assert one.steps_back().tolist() == (np.flatnonzero(np.diff(first_times) < 0) + 1).tolist()
        assert one.first_times_at(np.arange(len(first_times))).tolist() == first_times.tolist()


def test_memory_does_not_grow_with_the_datagrams_of_a_point() -> None:
    """All tables of a long session need less memory than one array with a number for each of its datagrams."""
    story = Story()
    story.stream(START, MS, 1, 100)
    story.nak(START + 120 * MS, ONE, 50)
    story.data(START + 121 * MS, 50, again=True)
    facts = story.facts()
    [stream] = facts.sends
    count = 4 << 20
    times = START + US * np.arange(count)
    long = Sends(np.array([1], np.uint32), np.array([count]), times)
    tables_of(facts)
    tracemalloc.start()
    try:
        made = tables_of(replace(facts, sends={stream: long}))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert made["coverage"]["datagrams"].sum() == count
    assert peak_bytes < times.nbytes
