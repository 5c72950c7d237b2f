"""The charts of reports and of the live page: what they show, and how a browser draws and zooms them."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("polars")

from tests.unit.browser import needs_chromium, opened
from tests.unit.capture_bytes import START_NS, Packet, data, frame, message, pcap
from umstack.charts import chart_library
from umstack.report import Report, make_report
from umstack.report.plots import fill, recovery
from umstack.report.summary import Summary

DATAGRAMS = 400
BIN_MS = 1
EMBEDDED = re.compile(r'<script type="application/json">(.*?)</script>')


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return the report on a session of one datagram per millisecond."""
    folder = tmp_path_factory.mktemp("charts")
    sent = (frame(data(sqn, message(1, sqn, bytes(200)))) for sqn in range(DATAGRAMS))
    packets = [Packet(START_NS + at * BIN_MS * 1_000_000, content) for at, content in enumerate(sent)]
    (folder / "switch.pcap").write_bytes(pcap(packets))
    return make_report([str(folder)], folder / "out")


def embedded(html: str) -> list[dict[str, Any]]:
    """Return the descriptions and data of the charts in a page."""
    return [json.loads(text) for text in EMBEDDED.findall(html)]


def test_the_rate_over_time_is_that_of_the_capture(report: Report) -> None:
    """Each millisecond has one datagram; every column has one value per edge, and the last edge ends the last step."""
    rate, losses, fills = embedded(report.page.read_text())
    edges, _, everything, first = rate["data"]
    assert len(edges) == len(everything) == DATAGRAMS + 1
    assert edges[1] - edges[0] == pytest.approx(BIN_MS / 1e3)
    assert set(everything[:-1]) == set(first[:-1]) == {everything[0]}
    assert everything[0] > 0
    assert losses["data"][1] == [0.0] * (DATAGRAMS + 1)
    assert rate["description"]["sync"] == losses["description"]["sync"]
    assert max(fills["data"][1]) == pytest.approx(100)


def test_histograms_have_gaps_where_no_row_is() -> None:
    """Rows that do not touch are separated by a step of height 0; a share is that of all datagrams."""
    rows = [{"from_ns": 10, "to_ns": 20, "losses": 3}, {"from_ns": 40, "to_ns": 80, "losses": 1}]
    (shown,) = embedded(recovery(Summary({"recovery_histogram": rows})))
    assert shown["data"] == [[1e-5, 2e-5, 4e-5, 8e-5], [3, 0, 1, 0]]
    rows = [{"from": 0.5, "to": 0.6, "datagrams": 1}, {"from": 0.6, "to": 0.7, "datagrams": 3}]
    (shown,) = embedded(fill(Summary({"fill_histogram": rows})))
    assert [(round(edge), share) for edge, share in zip(*shown["data"], strict=True)] == [
        (0, 0), (0, 0), (50, 25), (60, 75), (70, 0), (100, 0), (100, 0),
    ]  # fmt: skip


def test_the_library_is_complete_and_licensed() -> None:
    """A page needs nothing from elsewhere, and the package contains the library's licence."""
    library = chart_library()
    assert library.count("</script>") == library.count("</style>") == 1
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|\bimport\b", library)
    licence = files("umstack.charts").joinpath("uplot.license.txt").read_text()
    assert "MIT License" in licence
    assert "Leon Sorokin" in licence


@needs_chromium
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_a_report_shows_values_and_zooms_without_a_network(report: Report, width: int, height: int) -> None:
    """From a file: the pointer's values in the legend; dragging zooms both plots, a double click shows everything."""
    with opened(Path(report.page).as_uri(), width, height) as (browser, errors):
        asked: list[str] = []
        browser.on("request", lambda request: asked.append(request.url))
        browser.wait_for_function("() => [...document.querySelectorAll('.chart')].every((one) => one.chart)")
        assert len(browser.query_selector_all(".chart canvas")) == 3
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        plot = browser.query_selector(".chart .u-over")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        middle, high = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        browser.mouse.move(middle, high)
        browser.wait_for_function("() => /Mbit/.test(document.querySelector('.u-legend').innerText)")
        assert "0.2 s" in browser.query_selector(".u-legend").inner_text()
        browser.mouse.down()
        browser.mouse.move(middle + box["width"] / 4, high, steps=4)
        browser.mouse.up()
        scale = "document.querySelectorAll('.chart')[at].chart.scales.x"
        span = f"(at) => {scale}.max - {scale}.min"
        for chart in (0, 1):
            browser.wait_for_function(f"(at) => ({span})(at) < 0.15", arg=chart)
            assert browser.evaluate(span, chart) == pytest.approx(DATAGRAMS / 4e3, abs=0.01)
        browser.mouse.dblclick(middle, high)
        browser.wait_for_function(f"(at) => ({span})(at) > 0.35", arg=0)
        assert asked == []
        assert errors == []
