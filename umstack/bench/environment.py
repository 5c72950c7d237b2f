"""Describes the environment of a measurement: machine, kernel, versions and setup."""

from __future__ import annotations

import datetime
import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("umstack", "numpy", "cffi", "pyarrow")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_CPU_INFO = Path("/proc/cpuinfo")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _cpu_model() -> str | None:
    found = re.search(r"^model name\s*:\s*(.+)$", _first_line(_CPU_INFO) or "", re.MULTILINE)
    return found.group(1).strip() if found else platform.machine()


def describe(**of_run: Any) -> dict[str, Any]:
    """Return the `environment` of `umstack bench --json`; the arguments say how this run was set up."""
    load = os.getloadavg()
    return {
        "measured_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "cpus": os.cpu_count(),
        "cpu_model": _cpu_model(),
        "governor": _first_line(_GOVERNOR),
        "python": sys.version.split()[0],
        "versions": {package: _version(package) for package in _PACKAGES},
        "load_average": round(load[0], 2),
        **of_run,
    }
