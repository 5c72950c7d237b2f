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
from umstack.capture.generate import Traffic, generate
from umstack.facts.facts import facts_of
from umstack.facts.tables import tables_of
from umstack.report import Report, make_report
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
    assert any(f"up to {len(BURST) + 1} in a row" in one.text for one in report.findings)


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
    """What was sent, what was lost, and the worst of the rest, before the list of findings."""
    text = report.page.read_text()
    opening = text[text.index('<p class="opening">') : text.index("<h2>Findings</h2>")]
    told = {one.topic: html.escape(one.text) for one in report.findings}
    assert told["traffic"] in opening
    assert opening.index(told["traffic"]) < opening.index(told["loss"])
    assert told["loss-sporadic"] in opening or told["loss-burst"] in opening


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
