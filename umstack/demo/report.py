"""The report on the demo's own captures, where Spark is there to make it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from umstack.demo.capture import capture_directory

_PARTS = {"pyspark": "umstack[spark]", "matplotlib": "umstack[report]", "pyarrow": "umstack[arrow]"}


def why_no_report() -> str | None:
    """What is missing for a report; None if nothing is."""
    missing = [extra for module, extra in _PARTS.items() if find_spec(module) is None]
    if missing:
        return f"pip install {' '.join(repr(extra) for extra in missing)}"
    return None if shutil.which("java") else "apt-get install openjdk-17-jre-headless"


def write_report(report: Path, on_step: Callable[[str, int, int], None]) -> dict[str, Any]:
    """Analyse the captures that lie there and write the page beside them; what `umstack report --json` says."""
    from umstack.report import ReportOptions, make_report

    captures = str(capture_directory(report))
    return make_report([captures], report, ReportOptions(), on_step).to_dict()
