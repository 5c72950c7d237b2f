"""Charts in HTML pages: uPlot (MIT, uplot.license.txt) and how this stack's pages use it (charts.js).

A page contains both, so it works without a network and from a file.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_STYLES = ("uplot.css", "charts.css")
_SCRIPTS = ("uplot.js", "charts.js")


@cache
def chart_library() -> str:
    """Return the style and script elements of a page with charts, which define `umstackCharts`."""
    home = files("umstack.charts")
    texts = {name: home.joinpath(name).read_text(encoding="utf-8") for name in (*_STYLES, *_SCRIPTS)}
    styles = "\n".join(texts[name] for name in _STYLES)
    scripts = "\n".join(texts[name] for name in _SCRIPTS)
    return f"<style>\n{styles}</style>\n<script>\n{scripts}</script>"
