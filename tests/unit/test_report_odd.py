"""Reports on odd or unrelated captures: their contents are reported, and each fault is a finding."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("polars")
pytest.importorskip("scapy")

from tests.html_page import Page
from tests.spark import odd_captures as odd
from umstack.capture import CaptureError
from umstack.report import Report, make_report
from umstack.report.quantities import several


def test_unrelated_captures_give_a_page_that_reports_it(tmp_path: Path) -> None:
    """A capture without a session is a finding, not a failure; a missing file is an error with a hint."""
    (tmp_path / "other.pcap").write_bytes(b"certainly not a capture, whatever its name")
    steps: list[str] = []
    report = make_report(
        [str(tmp_path / "other.pcap")], tmp_path / "out", progress=lambda step, _at, _of: steps.append(step)
    )
    assert (steps[0], steps[-1]) == ("decode", "page")
    assert report.findings[0].topic == "sessions"
    assert any("not a capture" in finding.text for finding in report.findings)
    with pytest.raises(CaptureError, match="no capture found"):
        make_report([str(tmp_path / "nothing*.pcap")], tmp_path / "out")


@dataclass(frozen=True, slots=True)
class OddReport:
    """The report on a folder of odd captures."""

    captures: odd.OddCaptures
    report: Report

    def rows(self, table: str, session: int) -> list[dict[str, Any]]:
        """Return a session's rows of a table."""
        return [row for row in self.report.summary[table] if row["session_id"] == session]

    def texts_on(self, topic: str) -> list[str]:
        """Return the findings on a topic."""
        return [finding.text for finding in self.report.findings if finding.topic == topic]


@pytest.fixture(scope="module")
def odd_report(tmp_path_factory: pytest.TempPathFactory) -> OddReport:
    """Make the report once."""
    folder = tmp_path_factory.mktemp("odd")
    captures = odd.odd_captures(folder / "captures")
    return OddReport(captures, make_report([str(captures.folder)], folder / "out"))


def test_a_folder_of_bad_captures_gives_its_readable_rows(odd_report: OddReport) -> None:
    """In files that are truncated, duplicated or empty, have mixed link types or a stepping clock, or are no
    capture, every readable row is reported.
    """
    whole, cut = odd.DATAGRAMS, odd.DATAGRAMS - 1
    expected = {odd.TRUNCATED: cut, odd.MID_PACKET: cut, odd.STEPPED: whole}
    for session, datagrams in expected.items():
        [row] = odd_report.rows("sessions", session)
        assert row["datagrams"] == datagrams
    by_interface = {row["point"]: row["datagrams"] for row in odd_report.rows("sessions", odd.COOKED)}
    assert by_interface == {"cooked:eth0": whole / 2, "cooked:any": whole / 2}
    assert not any(capture.endswith(".txt") for capture in odd_report.report.captures)


def test_each_fault_of_a_capture_is_a_finding(odd_report: OddReport) -> None:
    """Each finding has the file's name and is also on the page, although other captures have more findings
    than the page shows.
    """
    page = Page(odd_report.report.page.read_text()).text
    texts_on = odd_report.texts_on("capture")
    for name, fault in odd_report.captures.faults.items():
        [text] = [one for one in texts_on if one.startswith(f"{odd_report.captures.folder / name}: ")]
        assert fault in text
        assert text in page
    assert odd_report.report.summary.totals["remarks"] > odd.PORTS


def test_ip_fragments_match_the_fragmented_datagram(odd_report: OddReport) -> None:
    """scapy fragments the datagram; the number and bytes of the fragments match."""
    fragments = odd_report.captures.fragments
    assert len(fragments) == 3
    [row] = odd_report.report.summary["ip_fragments"]
    assert (row["source_address"], row["destination_address"]) == ("10.0.0.1", "224.10.10.10")
    assert (row["fragments"], row["bytes"]) == (len(fragments), sum(map(len, fragments)))
    [text] = odd_report.texts_on("ip-fragments")
    assert text.startswith("3 IP fragments were captured, most from 10.0.0.1 to 224.10.10.10")


def test_a_burst_is_found_where_it_was_made(odd_report: OddReport) -> None:
    """The start, length and number of datagrams of the burst match, and the session is called bursty."""
    [burst] = odd_report.rows("bursts", odd.BURSTING)
    assert (burst["start_ns"], burst["duration_ns"]) == (odd.BURST_NS, odd.BURST_MS * odd.MS)
    assert burst["datagrams"] == odd.BURST_MS * odd.BURST_DATAGRAMS
    mean = 1 + odd.BURST_MS * (odd.BURST_DATAGRAMS - 1) / odd.BURST_SPAN_MS
    assert burst["times_mean"] == pytest.approx(odd.BURST_DATAGRAMS / mean)
    [text] = [one for one in odd_report.texts_on("bursts") if f"{odd.BURSTING:08x}" in one]
    assert "sends in bursts" in text


def test_long_lists_of_names_are_shortened() -> None:
    """The report lists the first names and the number of the others."""
    assert several([], 2) == ""
    assert several(["a", "b"], 2) == "a, b"
    assert several(["a", "b", "c", "d"], 2) == "a, b and 2 more"
