"""A report made from facts does not import Spark, has one definition of rates, and reports a burst among
other losses.
"""

from __future__ import annotations

import html
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

from tests.story import Story
from tests.unit.capture_bytes import RECEIVER as STALLED_RECEIVER
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
    stalled_session,
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
    """Return a capture in which one datagram in ten is lost alone, and twenty in a row; one datagram per 0.5 ms."""
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
    """Return the report on a burst within background loss."""
    folder = tmp_path_factory.mktemp("burst")
    (folder / "switch.pcap").write_bytes(_losses())
    return make_report([str(folder)], folder / "out")


def test_a_burst_within_background_loss_is_a_separate_incident(report: Report) -> None:
    """The twenty datagrams of the burst count as consecutive; the losses around it stay sporadic."""
    found = {row["cause"]: row for row in report.summary["incidents"]}
    assert set(found) == {"burst", "sporadic"}
    assert (found["burst"]["lost"], found["burst"]["longest_run"]) == (len(BURST) + 1, len(BURST) + 1)
    assert found["sporadic"]["longest_run"] == 1
    assert any(f"at most {len(BURST) + 1} in a row" in one.text for one in report.findings)


def test_the_longest_burst_sets_the_initial_backoff(report: Report) -> None:
    """Twenty steps of 0.5 ms and a round trip of 0.3 ms give 11 ms by the rule."""
    name = "transport_lbtrm_nak_initial_backoff_interval"
    [row] = [one for one in report.summary["suggestions"] if one["option"] == name]
    assert row["value"] == 11


def test_a_rate_is_the_same_in_the_table_and_in_words(tmp_path: Path) -> None:
    """The finding contains the rate of the session's row."""
    traffic = Traffic(seed=3, sessions=1, receivers=2, messages_per_datagram=2, message_bytes=40, loss=0.02)
    made = make_report([str(generate(tmp_path / "switch.pcap", 5000, traffic).path)], tmp_path / "out")
    [session] = made.summary["sessions"]
    [text] = [one.text for one in made.findings if one.topic == "traffic"]
    assert f": {bit_rate(session['bits_per_second'] / 8)} of payload on average" in text


def test_the_page_is_verdict_figures_problems_charts_then_folded_facts(report: Report) -> None:
    """Everything that is no problem, no setting and no chart is folded away; paths are in the footer alone."""
    text = report.page.read_text()
    body = text[text.index("<body>") :]
    order = [
        'class="verdict bad"',
        'class="figures"',
        'class="problems"',
        "Settings that",
        'class="chart"',
        "<details>",
    ]
    places = [body.index(one) for one in order]
    assert places == sorted(places)
    assert body.count("<details>") == body.count("</details>") > 3
    assert body.index("<table>") > body.index("<details>")
    for one in report.findings:
        assert body.count(html.escape(one.text)) == 1
        assert (body.index(html.escape(one.text)) < places[4]) == (one.is_problem or one.is_advice)
    assert body.count(report.captures[0]) == body[body.index("<footer>") :].count(report.captures[0]) == 1
    assert "Captured at switch, " in body
    assert "All times are those of its clock." in body


def test_the_figures_are_those_of_the_capture(report: Report) -> None:
    """Rate, loss, time to repair and standing still, as numbers for programs and in the verdict."""
    figures = report.figures
    assert figures is not None
    lost = len({*BURST, *SCATTERED})
    assert (figures.datagrams, figures.lost, figures.unrepaired) == (500, lost, 0)
    assert figures.loss_share == pytest.approx(lost / 500)
    assert figures.repair_p50_ns == figures.repair_p99_ns == 20 * MS + 300_000
    assert (figures.stall_ns, figures.stall_share) == (0, 0)
    assert report.verdict.severity is Severity.BAD
    assert "lost on the way and all repaired, in 20.3 ms (median)" in report.verdict.text
    assert report.to_dict()["figures"]["lost"] == lost
    assert report.to_dict()["verdict"] == {"severity": "bad", "text": report.verdict.text}


def test_problems_come_by_cost_with_a_remedy(report: Report) -> None:
    """Each problem has a cost and what to do; the kinds of cost are in order, and the larger cost is first."""
    problems = report.problems
    costs = [one.cost for one in problems if one.cost is not None]
    assert [one.topic for one in problems[:2]] == ["loss-sporadic", "loss-burst"]
    assert [(one.kind, -one.size) for one in costs] == sorted((one.kind, -one.size) for one in costs)
    assert all(one.remedy for one in problems)
    assert not any(one.remedy for one in report.findings if not one.is_problem)


def test_a_suggestion_names_its_expected_gain(report: Report) -> None:
    """Losses and their receivers; an option that would have helped no loss is in the table only."""
    advice = [one.text for one in report.findings if one.is_advice]
    [first] = [text for text in advice if "nak_initial_backoff_interval" in text]
    many = len({*BURST, *SCATTERED})
    assert first.endswith(f" Expected gain: {many} losses of {RECEIVER} are requested sooner.")
    assert all("Expected gain: " in text or "_ignore_interval" in text for text in advice)
    helpless = {row["option"] for row in report.summary["suggestions"] if not row["losses_helped"]}
    assert "transport_lbtrm_transmission_window_size" in helpless
    assert not any("_transmission_window_size" in text for text in advice)


def test_a_capture_without_loss_has_no_problem(tmp_path: Path) -> None:
    """The verdict is good, and nothing is listed as a problem."""
    sent = (frame(data(sqn, message(1, sqn, bytes(1000)))) for sqn in range(100))
    packets = (Packet(START_NS + at * MS, content) for at, content in enumerate(sent))
    (tmp_path / "switch.pcap").write_bytes(pcap(packets))
    made = make_report([str(tmp_path / "switch.pcap")], tmp_path / "out")
    assert made.verdict.text == "No loss was seen, and no publisher stood still."
    assert (made.verdict.severity, made.problems) == (Severity.GOOD, [])
    assert 'class="problems"' not in made.page.read_text()


@pytest.mark.parametrize("start", [0, 2**32 - 5])
def test_numbers_start_as_on_the_wire(tmp_path: Path, start: int) -> None:
    """The capture starts with a session message whose lead precedes the first number: the wrap count is right."""
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


def test_a_retransmission_at_the_same_instant_answers_the_nak(tmp_path: Path) -> None:
    """Clocks of captures may be coarse: a retransmission sent at the time of the latest NAK answers that NAK,
    not a later NAK of another receiver.
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
    """A local report needs neither Java nor PySpark."""
    (tmp_path / "switch.pcap").write_bytes(_losses())
    code = (
        "import sys; from umstack.report import make_report; "
        f"make_report([{str(tmp_path / 'switch.pcap')!r}], {str(tmp_path / 'out')!r}); "
        "sys.exit('pyspark' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, env={"PATH": "/nonexistent"})
    assert done.returncode == 0


def test_configured_losses_are_reported_as_configured(tmp_path: Path) -> None:
    """Configured losses are neither a fault nor a storm; the report has their amount and the configured rate.
    Without the configuration the same capture is bad.
    """
    (tmp_path / "switch.pcap").write_bytes(_losses())
    captures = [str(tmp_path / "switch.pcap")]
    expected = make_report(captures, tmp_path / "out", ReportOptions(expected_loss=0.1))
    [loss] = [one for one in expected.findings if one.topic == "loss"]
    assert loss.severity is Severity.NOTE
    assert "as the network was set to lose 10 % on the way to each" in loss.text
    assert not [one for one in expected.findings if one.severity is Severity.BAD]
    [bad] = [one for one in make_report(captures, tmp_path / "out").findings if one.topic == "loss"]
    assert bad.severity is Severity.BAD


def test_separate_runs_have_separate_axes(tmp_path: Path) -> None:
    """Ten idle seconds between two runs are in no chart and no rate; sessions name their capture."""
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


def test_a_snap_length_is_no_fault(tmp_path: Path) -> None:
    """The snap length was configured, so nothing needs to be investigated."""
    capture = generate(tmp_path / "switch.pcap", 1000, Traffic(seed=3, snap_bytes=96)).path
    found = [one for one in make_report([str(capture)], tmp_path / "out").findings if one.topic == "capture"]
    assert [one.severity for one in found] == [Severity.NOTE]
    assert "captured with a snap length of 96 bytes" in found[0].text


def test_lost_retransmissions_are_reported(tmp_path: Path) -> None:
    """Two capture points saw the stream; one retransmission passed the first and did not arrive at the second."""
    near, far = Story("near"), Story("far")
    for story, late_ns in ((near, 0), (far, 1000)):
        story.stream(START_NS + late_ns, MS, 1, 100)
        story.nak(START_NS + 20 * MS - late_ns, RECEIVER, 5, 6)
        story.again(START_NS + 21 * MS + late_ns, 5)
    near.again(START_NS + 22 * MS, 6)
    tables = tables_of(facts_of_packets([near.batch(), far.batch()]))
    [row] = tables["lost_repairs"].to_dicts()
    assert (row["from_point"], row["to_point"], row["retransmissions"], row["lost"]) == ("near", "far", 2, 1)
    found = findings(summarised(tables, []))
    [text] = [one.text for one in found if one.topic == "lost-repairs"]
    assert "that passed near, 1 did not arrive at far: lost on the way" in text


def test_stalls_are_reported_with_their_cause(tmp_path: Path) -> None:
    """The finding gives the time that a window was held in all, and of the longest stall receiver, number and cause."""
    capture = tmp_path / "switch.pcap"
    capture.write_bytes(pcap(stalled_session()))
    made = make_report([str(capture)], tmp_path / "out")
    [finding] = [one for one in made.findings if one.topic == "stall"]
    cause = "its repair was lost and NAKed again after 46 ms"
    assert "for 120 ms (97 % of its time) in 3 stalls, the longest at" in finding.text
    assert f": window held at 250 by {STALLED_RECEIVER} for 50 ms: {cause}." in finding.text
    assert finding.severity is Severity.BAD
    shown = made.page.read_text()
    assert "<summary>Stalls <span>3</span></summary>" in shown
    assert made.problems[0] is finding
    figures = made.figures
    assert figures is not None
    assert (figures.repair_p50_ns, figures.repair_p99_ns, figures.stall_ns) == (
        39.5 * MS,
        49.5 * MS,
        120.03 * MS,
    )
    assert made.verdict.text.startswith("A publisher stood still for 120 ms (97 % of its time)")
    assert f"{cause}</td>" in shown
