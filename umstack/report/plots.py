"""The plots of a report: what umstack.charts draws in the page, as descriptions and data in JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from umstack.report.quantities import duration
from umstack.report.summary import Row, Run, Summary

_HIGH, _LOW, _HALF = 240, 170, 260
"""Heights in pixels."""
_SENT, _REPAIRS, _PEAK, _LOST, _UNREPAIRED = "#2563a8", "#e08a1e", "#b6c9de", "#c23b3b", "#5a0f0f"
_DRAW = """<script>
"use strict";
for (const element of document.querySelectorAll(".chart")) {
  const { description, data } = JSON.parse(element.querySelector("script").textContent);
  umstackCharts.draw(element, description, data);
}
</script>"""


def _plot(
    x: dict[str, Any],
    y: dict[str, Any],
    height: int,
    columns: list[tuple[str, str, Any]],
    edges: Any,
    **more: Any,
) -> str:
    """Return the element of a plot of filled steps; of columns of one place the first is drawn first."""
    series = [{"label": label, "color": color, "fill": True, "steps": True} for label, color, _ in columns]
    # A step is drawn from its edge to the next, so the last edge needs a value.
    values = [[*map(float, column), 0.0] for _, _, column in columns]
    data = [list(map(float, edges)), *([round(value, 6) for value in column] for column in values)]
    description = {"x": x, "y": y, "height": height, "series": series, **more}
    text = json.dumps({"description": description, "data": data}, allow_nan=False).replace("<", "\\u003c")
    return f'<div class="chart"><script type="application/json">{text}</script></div>'


def drawing() -> str:
    """Return the script that draws all plots of the page; it follows them."""
    return _DRAW


def timeline(run: Run) -> str:
    """Return plots of the rate and the losses over time; both zoom and point together."""
    scale = 8e3 / run.bin_ns
    edges = (np.arange(_bins(run) + 1) * run.bin_ns) / 1e9
    x = {"name": "from", "label": "seconds from the start", "unit": "s"}
    peak = _dense(run, run.sent, "peak_bytes") * 8e-3
    everything = _dense(run, run.sent, "bytes") * scale
    again = _dense(run, run.sent, "retransmitted_bytes") * scale
    rate = [
        ("busiest millisecond", _PEAK, peak),
        ("with retransmissions", _REPAIRS, everything),
        ("first transmissions", _SENT, everything - again),
    ]
    losses = [("lost", _LOST, _dense(run, run.lost, "lost"))]
    unrepaired = _dense(run, run.lost, "unrepaired")
    if unrepaired.any():
        losses.append(("no retransmission seen", _UNREPAIRED, unrepaired))
    together = {"sync": f"run-{run.start_ns}"}
    per_bin = {"label": f"losses per {duration(run.bin_ns)}"}
    return "\n".join(
        (
            _plot(x, {"label": "Mbit/s", "unit": "Mbit/s"}, _HIGH, rate, edges, **together),
            _plot(x, per_bin, _LOW, losses, edges, **together),
        )
    )


def _bins(run: Run) -> int:
    last = max((row["start_ns"] for rows in (run.sent, run.lost) for row in rows), default=run.start_ns)
    return int(max(last, run.end_ns - 1) - run.start_ns) // run.bin_ns + 1


def _dense(run: Run, rows: list[Row], name: str) -> Any:
    """Return the value for every bin; 0 for bins without a row."""
    values = np.zeros(_bins(run))
    for row in rows:
        values[(row["start_ns"] - run.start_ns) // run.bin_ns] = row[name]
    return values


def _histogram(rows: list[Row], low: str, high: str, value: str) -> tuple[list[float], list[float]]:
    """Return the edges and the heights of a histogram, with steps of height 0 between rows that do not touch."""
    edges: list[float] = []
    heights: list[float] = []
    for row in sorted(rows, key=lambda row: row[low]):
        if edges and edges[-1] < row[low]:
            heights.append(0.0)
            edges.append(row[low])
        elif not edges:
            edges.append(row[low])
        heights.append(row[value])
        edges.append(row[high])
    return edges, heights


def recovery(summary: Summary) -> str:
    """Return a histogram of the time from loss to retransmission, on a logarithmic axis."""
    edges, losses = _histogram(summary["recovery_histogram"], "from_ns", "to_ns", "losses")
    x = {"name": "from", "label": "milliseconds from loss to repair", "unit": "ms", "log": True}
    return _plot(x, {"label": "losses"}, _HALF, [("losses", _SENT, losses)], np.array(edges) / 1e6)


def fill(summary: Summary) -> str:
    """Return a histogram of how full the datagrams were."""
    none = {"datagrams": 0}
    ends = [{"from": 0.0, "to": 0.0, **none}, {"from": 1.0, "to": 1.0, **none}]
    edges, datagrams = _histogram([*ends, *summary["fill_histogram"]], "from", "to", "datagrams")
    shares = 100 * np.array(datagrams) / (sum(datagrams) or 1)
    x = {"name": "from", "label": "fill, % of the MTU", "unit": "%"}
    y = {"label": "% of datagrams", "unit": "%"}
    return _plot(x, y, _HALF, [("datagrams", _SENT, shares)], 100 * np.array(edges))
