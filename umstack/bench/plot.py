"""The plot of `umstack bench compare`: four panels over the message size, one line per contender. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from umstack.bench.compare import RINGS, RINGS_READ, SOCKETS, SOCKETS_PLAIN, Row
from umstack.errors import OptionError, Unsupported

_FORMATS = (".svg", ".png")
_INCHES = (11.0, 8.0)
_COLOURS = {
    RINGS: "tab:orange",
    RINGS_READ: "tab:brown",
    SOCKETS: "tab:blue",
    SOCKETS_PLAIN: "tab:cyan",
    "raw-xdp": "tab:red",
    "raw-udp": "tab:green",
    "raw-udp-packed": "tab:olive",
    "raw-udp-gso": "tab:purple",
}
_STRONG = (RINGS, SOCKETS)
"""The two contenders compared are drawn most prominently."""

Figure = Callable[[Row], float | None]


def check_plot(path: Path) -> None:
    """Raise an error before a long measurement if its plot cannot be drawn or written."""
    if path.suffix not in _FORMATS:
        raise OptionError(
            f"no plot in {path.name}", hint=f"use a file name that ends in {' or '.join(_FORMATS)}"
        )
    if not path.absolute().parent.is_dir():
        raise OptionError(f"there is no directory {path.parent}", hint="make it, or name another")
    if find_spec("matplotlib") is None:
        raise Unsupported("a plot needs matplotlib", hint="pip install 'umstack[plot]'")


def draw_comparison(rows: Sequence[Row], waits: Sequence[str], path: Path) -> None:
    """Draw the comparison to the file, in the format of its suffix."""
    from matplotlib.figure import Figure as Canvas

    panels: list[tuple[str, str, Figure]] = [
        ("Throughput", "messages/s", lambda row: row.messages_per_second),
        ("Processor time at the subscriber", "ns/message", lambda row: row.subscriber_ns),
        ("Processor time at the publisher", "ns/message", lambda row: row.publisher_ns),
        *((f"Round trip, {wait}", "us (p50)", _trip(wait)) for wait in waits),
    ]
    columns = 2
    canvas = Canvas(figsize=(_INCHES[0], _INCHES[1] * -(-len(panels) // columns) / 2), layout="constrained")
    axes = canvas.subplots(-(-len(panels) // columns), columns, squeeze=False).flatten()
    for (title, unit, figure), axis in zip(panels, axes, strict=False):
        _draw_panel(axis, rows, figure)
        axis.set(title=title, xlabel="message size, bytes", ylabel=unit, yscale="log")
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    lines, names = axes[0].get_legend_handles_labels()
    canvas.legend(lines, names, loc="outside lower center", ncols=4)
    canvas.savefig(path)


def _trip(wait: str) -> Figure:
    return lambda row: row.round_trip_us.get(wait, {}).get("p50")


def _draw_panel(axis: Any, rows: Sequence[Row], figure: Figure) -> None:
    sizes = sorted({row.size for row in rows})
    for what in dict.fromkeys(row.what for row in rows):
        values = {row.size: figure(row) for row in rows if row.what == what}
        points = [(sizes.index(size), value) for size, value in values.items() if value is not None]
        if points:
            is_strong = what in _STRONG
            axis.plot(
                *zip(*points, strict=True),
                marker="o",
                label=what,
                color=_COLOURS[what],
                linewidth=2.5 if is_strong else 1.2,
                linestyle="-" if is_strong else "--",
            )
    axis.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    axis.grid(which="both", alpha=0.3)
