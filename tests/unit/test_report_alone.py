"""A report made of facts: no Spark is imported, rates have one definition, a burst among other losses is told."""

from __future__ import annotations

import html
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")
pytest.importorskip("matplotlib")

from tests.story import Story
from tests.unit.capture_bytes import (
    SOURCE,
    START_NS,
    Packet,
    data,
    ethernet,
    frame,
    ipv4,
    message,
    nak,
    pcap,
    sm,
    udp,
)
from umstack.analysis.tables import tables_of
from umstack.capture.generate import Traffic, generate
from umstack.facts.facts import facts_of, facts_of_packets
from umstack.report import Report, ReportOptions, make_report
from umstack.report.findings import Severity, findings
from umstack.report.outputs import summarised
from umstack.report.quantities import bit_rate

MS = 1_000_000
RECEIVER = "10.0.0.2"
_AGAIN = 0xA0
BURST = range(200, 220)
SCATTERED = range(20, 400, 10)


def _losses() -> bytes:
    """A datagram in ten is lost by itself, and twenty in a row among them; half a millisecond between datagrams."""
    lost = sorted({*BURST, *SCATTERED})
    packets = []
    for sqn in range(500):
        at = START_NS + sqn * MS // 2
        packets.append((at, frame(data(sqn, message(1, sqn, bytes(200))))))
        if sqn in lost:
            asked = ethernet(ipv4(udp(nak(sqn), 14400, 14390), RECEIVER, SOURCE))
            again = frame(data(sqn, message(1, sqn, bytes(200)), flags=_AGAIN))
            packets += [(at + 20 * MS, asked), (at + 20 * MS + 300_000, again)]
    return pcap(Packet(at, content) for at, content in sorted(packets, key=lambda one: one[0]))


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Give the report on a burst within background loss."""
    folder = tmp_path_factory.mktemp("burst")
    (folder / "switch.pcap").write_bytes(_losses())
    return make_report([str(folder)], folder / "out")


def test_a_burst_within_background_loss_is_an_incident_of_its_own(report: Report) -> None:
    """Its twenty are counted in a row, and what is lost around it stays sporadic."""
    found = {row["cause"]: row for row in report.summary["incidents"]}
    assert set(found) == {"burst", "sporadic"}
    assert (found["burst"]["lost"], found["burst"]["longest_run"]) == (len(BURST) + 1, len(BURST) + 1)
    assert found["sporadic"]["longest_run"] == 1
    assert any(f"at most {len(BURST) + 1} in a row" in one.text for one in report.findings)


def test_the_longest_burst_sets_the_initial_backoff(report: Report) -> None:
    """Twenty steps of half a millisecond, and a round trip of 0.3 ms: 11 ms, after the rule."""
    name = "transport_lbtrm_nak_initial_backoff_interval"
    [row] = [one for one in report.summary["suggestions"] if one["option"] == name]
    assert row["value"] == 11


def test_a_rate_is_the_same_in_the_table_and_in_words(tmp_path: Path) -> None:
    """What a session's row says is what the finding says."""
    traffic = Traffic(seed=3, sessions=1, receivers=2, messages_per_datagram=2, message_bytes=40, loss=0.02)
    made = make_report([str(generate(tmp_path / "switch.pcap", 5000, traffic).path)], tmp_path / "out")
    [session] = made.summary["sessions"]
    [text] = [one.text for one in made.findings if one.topic == "traffic"]
    assert f": {bit_rate(session['bits_per_second'] / 8)} on average" in text


def test_the_page_opens_with_what_happened(report: Report) -> None:
    """What was sent, what was lost, and the worst of the rest, a sentence each, before the list of findings."""
    text = report.page.read_text()
    opening = text[text.index('<p class="opening">') : text.index("<h2>Findings</h2>")]
    told = {one.topic: html.escape(one.text) for one in report.findings}
    assert told["traffic"] in opening
    assert opening.index(told["traffic"]) < opening.index(told["loss"])
    worst = told["loss-sporadic"] if "sporadic" in opening else told["loss-burst"]
    said, _, more = worst.partition(". ")
    assert said in opening
    assert more not in opening


@pytest.mark.parametrize("start", [0, 2**32 - 5])
def test_numbers_start_as_on_the_wire(tmp_path: Path, start: int) -> None:
    """The capture begins with a session message, whose lead is the number before the first: no turn too high or low."""
    numbers = [start + step for step in range(10)]
    packets = [Packet(START_NS, frame(sm(0, (start - 1) % 2**32, (start - 1) % 2**32)))]
    packets += [
        Packet(START_NS + step * MS, frame(data(sqn % 2**32, message(1, step, b"payload"), trail=start)))
        for step, sqn in enumerate(numbers, 1)
    ]
    lost = numbers[7]
    asked = ethernet(ipv4(udp(nak(lost % 2**32), 14400, 14390), RECEIVER, SOURCE))
    again = frame(data(lost % 2**32, message(1, 7, b"payload"), trail=start, flags=_AGAIN))
    packets += [Packet(START_NS + 30 * MS, asked), Packet(START_NS + 31 * MS, again)]
    (tmp_path / "switch.pcap").write_bytes(pcap(packets))
    tables = tables_of(facts_of([str(tmp_path / "switch.pcap")]))
    [session] = tables["sessions"].to_dicts()
    assert (session["first_sqn"], session["last_sqn"]) == (numbers[0], numbers[-1])
    [loss] = tables["losses"].to_dicts()
    assert (loss["sqn"], loss["sent_ns"]) == (lost, START_NS + 8 * MS)


def test_a_retransmission_of_the_same_instant_is_the_answer(tmp_path: Path) -> None:
    """Clocks of captures may be coarse: what was sent again when it was asked for last is its answer, not what another
    receiver got later.
    """
    asked = ethernet(ipv4(udp(nak(3), 14400, 14390), RECEIVER, SOURCE))
    again = frame(data(3, message(1, 3, b"payload"), flags=_AGAIN))
    packets = [Packet(START_NS + sqn * MS, frame(data(sqn, message(1, sqn, b"payload")))) for sqn in range(6)]
    times = [(10, asked), (15, again), (20, asked), (20, again), (30, again)]
    packets += [Packet(START_NS + at * MS, content) for at, content in times]
    (tmp_path / "switch.pcap").write_bytes(pcap(packets))
    [loss] = tables_of(facts_of([str(tmp_path / "switch.pcap")]))["losses"].to_dicts()
    assert loss["nak_ns"] == START_NS + 10 * MS
    assert loss["repaired_ns"] == START_NS + 20 * MS
    assert loss["lost_ns"] == loss["sent_ns"] == START_NS + 3 * MS


def test_no_spark_is_imported(tmp_path: Path) -> None:
    """A report of this machine needs neither Java nor PySpark."""
    (tmp_path / "switch.pcap").write_bytes(_losses())
    code = (
        "import sys; from umstack.report import make_report; "
        f"make_report([{str(tmp_path / 'switch.pcap')!r}], {str(tmp_path / 'out')!r}); "
        "sys.exit('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, env={"PATH": "/nonexistent"})
    assert done.returncode == 0


def test_losses_that_the_network_was_set_to_make_are_told_as_that(tmp_path: Path) -> None:
    """No fault, no storm: how much it was, and what it was set to; the same capture without it is bad."""
    (tmp_path / "switch.pcap").write_bytes(_losses())
    captures = [str(tmp_path / "switch.pcap")]
    expected = make_report(captures, tmp_path / "out", ReportOptions(expected_loss=0.1))
    [loss] = [one for one in expected.findings if one.topic == "loss"]
    assert loss.severity is Severity.NOTE
    assert "as the network was set to lose 10 % on the way to each" in loss.text
    assert not [one for one in expected.findings if one.severity is Severity.BAD]
    [bad] = [one for one in make_report(captures, tmp_path / "out").findings if one.topic == "loss"]
    assert bad.severity is Severity.BAD


def test_runs_that_are_apart_have_axes_of_their_own(tmp_path: Path) -> None:
    """Ten seconds of nothing between two runs are in no chart and no rate; sessions say where they are from."""
    for number, folder in enumerate(("xdp", "socket")):
        (tmp_path / folder).mkdir()
        traffic = Traffic(
            seed=3,
            sessions=1,
            datagrams_per_second=10_000,
            start_ns=START_NS + number * 10_000 * MS,
            loss=0.01,
        )
        generate(tmp_path / folder / f"port-000{number}.pcap", 2000, traffic)
    made = make_report([str(tmp_path)], tmp_path / "out")
    assert len(made.summary.runs) == 2
    assert (
        sum(row["lost"] for run in made.summary.runs for row in run.lost) == made.summary["lost"][0]["losses"]
    )
    assert all(run.end_ns - run.start_ns < 1000 * MS for run in made.summary.runs)
    page = made.page.read_text()
    assert "Rate and loss, run 2 of 2" in page
    [text] = [one.text for one in made.findings if one.topic == "traffic"]
    assert "of 2 runs together" in text
    assert "[socket, xdp] (10.0.0.1" in page


def test_a_snap_length_is_said_as_what_it_is(tmp_path: Path) -> None:
    """It was chosen: there is no fault to look for."""
    capture = generate(tmp_path / "switch.pcap", 1000, Traffic(seed=3, snap_bytes=96)).path
    found = [one for one in make_report([str(capture)], tmp_path / "out").findings if one.topic == "capture"]
    assert [one.severity for one in found] == [Severity.NOTE]
    assert "captured with a snap length of 96 bytes" in found[0].text


def test_repairs_that_are_lost_on_the_way_are_told(tmp_path: Path) -> None:
    """Two points saw the stream; of the repairs that passed the first, one did not arrive at the second."""
    near, far = Story("near"), Story("far")
    for story, late_ns in ((near, 0), (far, 1000)):
        story.stream(START_NS + late_ns, MS, 1, 100)
        story.nak(START_NS + 20 * MS + late_ns, RECEIVER, 5, 6)
        story.again(START_NS + 21 * MS + late_ns, 5)
    near.again(START_NS + 22 * MS, 6)
    tables = tables_of(facts_of_packets([near.batch(), far.batch()]))
    [row] = tables["lost_repairs"].to_dicts()
    assert (row["from_point"], row["to_point"], row["retransmissions"], row["lost"]) == ("near", "far", 2, 1)
    found = findings(summarised(tables, []))
    [text] = [one.text for one in found if one.topic == "lost-repairs"]
    assert "that passed near, 1 did not arrive at far: lost on the way" in text
