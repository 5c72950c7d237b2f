"""The plots of a report, as SVG for embedding in the page."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from umstack.report.quantities import duration
from umstack.report.summary import Row, Run, Summary

_WIDE, _HALF = (11.0, 3.6), (5.4, 3.2)
_TICKS = 8
_HEADROOM = 1.05
"""Height of an axis relative to its highest value."""
_SENT, _REPAIRS, _PEAK, _LOST, _UNREPAIRED = "#2563a8", "#e08a1e", "#b6c9de", "#c23b3b", "#5a0f0f"


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    # Without a date in the file, the same tables give the same page.
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _plain(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)


def _fill(axes: Any, edges: Any, tops: Any, bottoms: Any = 0.0, **style: Any) -> None:
    """Draw filled steps as one outline; hundreds of bars would take most of the page's time.

    Leaves the axes' limits unchanged: computing them from the outline takes as long as drawing it.
    """
    axes.add_artist(StepPatch(tops, edges, baseline=bottoms, fill=True, **style))


def _limit(axes: Any, edges: Any, *tops: Any) -> None:
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, _HEADROOM * max(float(np.max(one)) for one in tops) or 1.0)


def timeline(run: Run) -> str:
    """Return a plot of the rate and the losses over time."""
    figure = Figure(figsize=(_WIDE[0], 4.6))
    rate, lost = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    scale = 8e3 / run.bin_ns
    edges = (np.arange(_bins(run) + 1) * run.bin_ns) / 1e9
    peak = _dense(run, run.sent, "peak_bytes") * 8e-3
    again = _dense(run, run.sent, "retransmitted_bytes") * scale
    sent = _dense(run, run.sent, "bytes") * scale - again
    _limit(rate, edges, peak, sent + again)
    _fill(rate, edges, peak, color=_PEAK, label="busiest millisecond")
    _fill(rate, edges, sent, color=_SENT, label="first transmissions")
    _fill(rate, edges, sent + again, sent, color=_REPAIRS, label="retransmissions")
    rate.set_ylabel("Mbit/s")
    rate.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
    losses = _dense(run, run.lost, "lost")
    _limit(lost, edges, losses)
    _fill(lost, edges, losses, color=_LOST, label="lost")
    unrepaired = _dense(run, run.lost, "unrepaired")
    if unrepaired.any():
        _fill(lost, edges, unrepaired, color=_UNREPAIRED, label="no retransmission seen")
        lost.legend(frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
    lost.set_ylabel(f"losses per {duration(run.bin_ns)}")
    lost.set_xlabel("seconds from the start")
    for axes in (rate, lost):
        _plain(axes)
    return _svg(figure)


def _bins(run: Run) -> int:
    last = max((row["start_ns"] for rows in (run.sent, run.lost) for row in rows), default=run.start_ns)
    return int(max(last, run.end_ns - 1) - run.start_ns) // run.bin_ns + 1


def _dense(run: Run, rows: list[Row], name: str) -> Any:
    """Return the value for every bin; 0 for bins without a row."""
    values = np.zeros(_bins(run))
    for row in rows:
        values[(row["start_ns"] - run.start_ns) // run.bin_ns] = row[name]
    return values


def recovery(summary: Summary) -> str:
    """Return a histogram of the time from loss to retransmission."""
    figure = Figure(figsize=_HALF)
    axes = figure.subplots()
    rows = summary["recovery_histogram"]
    left = [row["from_ns"] / 1e6 for row in rows]
    widths = [(row["to_ns"] - row["from_ns"]) / 1e6 for row in rows]
    axes.bar(
        left,
        [row["losses"] for row in rows],
        widths,
        align="edge",
        color=_SENT,
        edgecolor="white",
        linewidth=0.3,
    )
    axes.set_xscale("log")
    # Label 1, 2 and 5 of each decade: powers of ten are hard to read and too few within one decade.
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=_TICKS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("milliseconds from loss to repair")
    axes.set_ylabel("losses")
    _plain(axes)
    return _svg(figure)


def fill(summary: Summary) -> str:
    """Return a histogram of how full the datagrams were."""
    figure = Figure(figsize=_HALF)
    axes = figure.subplots()
    rows = summary["fill_histogram"]
    total = sum(row["datagrams"] for row in rows) or 1
    shares = [100 * row["datagrams"] / total for row in rows]
    widths = [100 * (row["to"] - row["from"]) for row in rows]
    left = [100 * row["from"] for row in rows]
    axes.bar(left, shares, widths, align="edge", color=_SENT, edgecolor="white", linewidth=0.3)
    axes.set_xlim(0, 100)
    axes.set_xlabel("fill, % of the MTU")
    axes.set_ylabel("% of datagrams")
    _plain(axes)
    return _svg(figure)
