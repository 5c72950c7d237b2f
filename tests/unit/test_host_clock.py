"""Facts of the host's clock from the kernel, chrony and ptp4l, as their programs print them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from umstack.telemetry import host_clock as module
from umstack.telemetry.host_clock import HostClock, chrony_clock, host_clock, judged, kernel_clock, ptp_clock

UNSYNCHRONIZED = HostClock(False, None, None, None, "kernel: no time daemon has set the clock")
CHRONY = (
    "A9FEA97B,ntp.example,4,1795595300.172641514,-0.000012000,0.000003000,0.000020000,-3.1,0.002,0.05,"
    "0.004000000,0.000500000,64.2,Normal\n"
)
OWN_CLOCK = (
    "7F7F0101,,5,1795595300.172641514,0.000000000,0.000000000,0.000000000,0.000,0.000,0.000,"
    "0.000000000,0.000000000,0.0,Normal\n"
)
"""As chronyc 4.3 prints it, of a daemon with `local` and no source."""
PTP = """sending: GET TIME_STATUS_NP
\tc23b09.fffe.168ea2-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP
\t\tmaster_offset              -23
\t\tingress_time               1795595314067476755
\t\tcumulativeScaledRateOffset +0.000000000
\t\tgmTimeBaseIndicator        0
\t\tlastGmPhaseChange          0x0000'0000000000000000.0000
\t\tgmPresent                  true
\t\tgmIdentity                 3612d2.fffe.a77879
"""
"""As pmc 3.1.1 prints it, of a slave."""


def test_the_kernel_is_asked() -> None:
    """adjtimex works here: the clock is known or not, with a bound only if it is synchronized."""
    clock = kernel_clock()
    assert clock.synchronized is not None
    assert (clock.max_error_ns is not None) == clock.synchronized
    assert clock.as_json().keys() == set(HostClock.__slots__)


@pytest.mark.parametrize(
    ("state", "status", "known"),
    [(0, 0x2001, True), (1, 0x2001, True), (5, 0x2001, False), (0, 0x0040, False), (5, 0x0041, False)],
)
def test_a_clock_that_nothing_disciplines_has_no_bound(state: int, status: int, known: bool) -> None:
    """TIME_ERROR and STA_UNSYNC: the error that the kernel then counts up is not a bound, so none is reported."""
    clock = judged(state, status, 16_000_000, 16_000_000)
    assert clock.synchronized is known
    assert clock.max_error_ns == (16_000_000_000 if known else None)
    assert ("not synchronized" in str(clock)) is not known


def test_chrony_bounds_the_error() -> None:
    """Its offset, the root dispersion and half the root delay, as its manual adds them up."""
    clock = chrony_clock(CHRONY)
    assert clock is not None
    assert (clock.synchronized, clock.by) == (True, "chrony")
    assert clock.max_error_ns == 12_000 + 500_000 + 2_000_000
    assert clock.estimated_error_ns == 12_000
    assert "ntp.example, stratum 4" in str(clock)
    assert "accurate within 2.5 ms" in str(clock)


@pytest.mark.parametrize(
    "answer",
    [CHRONY.replace("Normal", "Not synchronised"), OWN_CLOCK],
)
def test_chrony_without_a_source_bounds_nothing(answer: str) -> None:
    """One that has no source, or serves its own clock as if it were one (which it prints with no error at all)."""
    clock = chrony_clock(answer)
    assert clock is not None
    assert (clock.synchronized, clock.max_error_ns) == (False, None)


@pytest.mark.parametrize("answer", ["", "506 Cannot talk to daemon\n", "a," * 13 + "Normal", CHRONY + "x,y"])
def test_what_is_no_answer_of_chrony_is_none(answer: str) -> None:
    """Another version, an error message, or nothing."""
    assert chrony_clock(answer) is None


def test_ptp_reports_only_the_nics_clock() -> None:
    """The offset of the NIC's clock is reported; the bound of the wall clock stays that of the kernel."""
    followed = HostClock(True, "kernel", 2_000, 1_000, "kernel: at most 2 us")
    clock = ptp_clock(PTP, followed)
    assert clock is not None
    assert (clock.synchronized, clock.by, clock.max_error_ns) == (True, "ptp4l", 2_000)
    assert "-23 ns from its grandmaster" in str(clock)
    alone = ptp_clock(PTP, UNSYNCHRONIZED)
    assert alone is not None
    assert (alone.synchronized, alone.by) == (False, None)
    orphan = ptp_clock(PTP.replace("true", "false"), followed)
    assert orphan is not None
    assert "no grandmaster" in orphan.detail
    assert orphan.by == "kernel"
    assert ptp_clock("sending: GET TIME_STATUS_NP\n", followed) is None


def program(folder: Path, name: str, script: str) -> None:
    """A program of that name, first in the path."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_the_daemon_that_answers_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """chrony's word comes before the kernel's; without an answer, or one in time, the kernel's stands."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 0.2)
    program(tmp_path, "chronyc", f"printf %s '{CHRONY}'")
    assert host_clock().by == "chrony"
    program(tmp_path, "chronyc", "echo '506 Cannot talk to daemon' ; exit 1")
    assert host_clock().by in (None, "kernel")
    program(tmp_path, "chronyc", "exec sleep 5")
    assert host_clock().by in (None, "kernel")
    (tmp_path / "ptp4l").touch()
    monkeypatch.setattr(module, "_PTP_SOCKETS", (tmp_path / "ptp4l",))
    program(tmp_path, "pmc", f'printf %s "{PTP}"')
    program(tmp_path, "chronyc", "exit 1")
    assert "ptp4l" in host_clock().detail
