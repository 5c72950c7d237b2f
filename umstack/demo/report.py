"""The report on the demo's captures, if its packages are installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any

from umstack.demo.capture import capture_directory

_NEEDED = ("polars", "pandas", "pyarrow")


def why_no_report() -> str | None:
    """Return how to install the packages missing for a report; None if none is missing."""
    return None if all(map(find_spec, _NEEDED)) else "pip install 'umstack[report]'"


def prepare_report() -> None:
    """Import the report's modules in a thread during the run; this saves the report a second."""
    Thread(target=_load, name="umstack-report", daemon=True).start()


def _load() -> None:
    from umstack.analysis import tables
    from umstack.report import outputs, page

    del tables, outputs, page


def write_report(report: Path, loss: float, on_step: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Analyse the captures below `report` and write the page there; returns the object of `umstack report --json`.

    `loss` is the configured loss rate on the way to each subscriber.
    """
    from umstack.report import ReportOptions, make_report

    captures = str(capture_directory(report))
    return make_report([captures], report, ReportOptions(expected_loss=loss or None), on_step).to_dict()
