"""The known accuracy of this host's wall clock: read from the kernel and from the time daemon, never guessed.

One-way latency is the difference of two hosts' clocks, so it is only as accurate as both. `kernel_clock` reads the
daemon's last update from the kernel (adjtimex) in a microsecond. `host_clock` also queries chrony and ptp4l, if they
run, through their own programs.

| queried | result | error bound |
|---|---|---|
| kernel | if a daemon disciplines the clock, and the largest error | `maxerror`, growing until the next update |
| chrony | distance from its source, and of the source from UTC | offset + root dispersion + half the root delay |
| ptp4l | offset of the NIC's clock from its grandmaster | the kernel's: phc2sys steers the wall clock |
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

_TIME_ERROR = 5
_STA_UNSYNC = 0x0040
_ANSWER_SECONDS = 1.0
_CHRONY_FIELDS = 14
_CHRONY_OWN_CLOCK = "7F7F0101"
"""The reference of a daemon without a source, which serves its own clock."""
_CHRONY_SYSTEM_OFFSET, _CHRONY_ROOT_DELAY, _CHRONY_ROOT_DISPERSION, _CHRONY_LEAP = 4, 10, 11, 13
_CHRONY_SOCKETS = (Path("/run/chrony/chronyd.sock"), Path("/var/run/chrony/chronyd.sock"))
_PTP_SOCKETS = (Path("/var/run/ptp4l"), Path("/var/run/ptp4lro"))


@dataclass(frozen=True, slots=True)
class HostClock:
    """The accuracy of the wall clock; fields are None if unknown.

    Example:
        ```python
        print(host_clock().max_error_ns)
        ```
    """

    synchronized: bool | None
    """True if a time daemon keeps the clock synchronized with a reference."""
    by: str | None
    """Source of the information: `chrony`, `ptp4l` or `kernel`; None without any."""
    max_error_ns: int | None
    """Upper bound of the distance from the reference, in nanoseconds."""
    estimated_error_ns: int | None
    """The daemon's estimate of the error, in nanoseconds."""
    detail: str
    """The values read, as text for people."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields for reports.

        Returns:
            A dictionary of the attributes.

        Example:
            ```python
            print(kernel_clock().as_json())
            ```
        """
        return asdict(self)

    def __str__(self) -> str:
        if self.synchronized is None:
            return f"unknown ({self.detail})"
        if not self.synchronized:
            return f"not synchronized ({self.detail})"
        bound = (
            "error unknown" if self.max_error_ns is None else f"accurate within {_shown(self.max_error_ns)}"
        )
        return f"synchronized, {bound} ({self.detail})"


class _Timeval(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("microseconds", ctypes.c_long))


class _Timex(ctypes.Structure):
    """struct timex (adjtimex(2))."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        *((name, ctypes.c_long) for name in ("offset", "frequency", "max_error_us", "estimated_error_us")),
        ("status", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("constant", "precision", "tolerance")),
        ("time", _Timeval),
        *((name, ctypes.c_long) for name in ("tick", "pps_frequency", "jitter")),
        ("shift", ctypes.c_int),
        *((name, ctypes.c_long) for name in ("stability", "jitters", "calibrations", "errors", "exceeded")),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def kernel_clock() -> HostClock:
    """Read the clock's state from the kernel. Any thread, any user.

    Returns:
        The state; takes a microsecond.

    Example:
        ```python
        print(kernel_clock())
        ```
    """
    read = _Timex()
    state = _libc().adjtimex(ctypes.byref(read))
    if state < 0:
        return HostClock(None, None, None, None, f"adjtimex: errno {ctypes.get_errno()}")
    return judged(state, read.status, read.max_error_us, read.estimated_error_us)


def judged(state: int, status: int, max_error_us: int, estimated_error_us: int) -> HostClock:
    """Convert the result of adjtimex."""
    if state == _TIME_ERROR or status & _STA_UNSYNC:
        return HostClock(False, None, None, None, "kernel: no time daemon has set the clock")
    return HostClock(
        True,
        "kernel",
        max_error_us * 1000,
        estimated_error_us * 1000,
        f"kernel: at most {max_error_us} us, estimated {estimated_error_us} us, at the time daemon's last update",
    )


def host_clock() -> HostClock:
    """Read the clock's state from the kernel and from chrony or ptp4l if they run.

    Returns:
        The state; takes some milliseconds, at most a second for each daemon.

    Example:
        ```python
        print(host_clock())
        ```
    """
    kernel = kernel_clock()
    if any(map(_is_there, _CHRONY_SOCKETS)) or shutil.which("chronyc"):
        answer = _answer(["chronyc", "-c", "tracking"])
        if answer and (clock := chrony_clock(answer)) is not None:
            return clock
    if any(map(_is_there, _PTP_SOCKETS)):
        answer = _answer(["pmc", "-u", "-b", "0", "GET TIME_STATUS_NP"])
        if answer and (clock := ptp_clock(answer, kernel)) is not None:
            return clock
    return kernel


def chrony_clock(answer: str) -> HostClock | None:
    """Parse the output of `chronyc -c tracking`; None if it is invalid."""
    fields = answer.strip().split(",")
    if len(fields) != _CHRONY_FIELDS:
        return None
    try:
        offset, delay, dispersion = (
            float(fields[at]) for at in (_CHRONY_SYSTEM_OFFSET, _CHRONY_ROOT_DELAY, _CHRONY_ROOT_DISPERSION)
        )
    except ValueError:
        return None
    if fields[_CHRONY_LEAP] == "Not synchronised" or fields[0] == _CHRONY_OWN_CLOCK:
        return HostClock(False, "chrony", None, None, "chrony: no source")
    bound_ns = round((abs(offset) + dispersion + abs(delay) / 2) * 1e9)
    detail = f"chrony: offset {_shown(round(abs(offset) * 1e9))} from {fields[1] or fields[0]}, stratum {fields[2]}"
    return HostClock(True, "chrony", bound_ns, round(abs(offset) * 1e9), detail)


def ptp_clock(answer: str, kernel: HostClock) -> HostClock | None:
    """Parse the output of `pmc` (TIME_STATUS_NP) and add it to the kernel's state; None if it is invalid."""
    found = dict(line.split(None, 1) for line in answer.splitlines() if len(line.split(None, 1)) == 2)
    try:
        offset_ns = int(found["master_offset"])
    except (KeyError, ValueError):
        return None
    if found.get("gmPresent", "").strip() != "true":
        return replace(kernel, detail=f"ptp4l: no grandmaster; {kernel.detail}")
    detail = f"ptp4l: the NIC's clock is {offset_ns} ns from its grandmaster; {kernel.detail}"
    return replace(kernel, by="ptp4l" if kernel.synchronized else kernel.by, detail=detail)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _answer(command: Sequence[str]) -> str | None:
    """Return the program's output; None if it is missing, fails or times out."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def _shown(time_ns: int) -> str:
    """Format a time with a suitable unit."""
    if time_ns < 1_000:
        return f"{time_ns} ns"
    if time_ns < 1_000_000:
        return f"{time_ns / 1e3:.1f} us"
    return f"{time_ns / 1e6:.1f} ms" if time_ns < 1_000_000_000 else f"{time_ns / 1e9:.1f} s"
