"""Samples the memory and CPU time of a process and its descendants."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_SAMPLE_SECONDS = 0.1
_SUM_SECONDS = 1.0
"""Interval of the totals, which is longer because the kernel visits every page of a process."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_KIB = 1024
_MACHINE = "virtual_machine"
_USER_TIME, _SYSTEM_TIME = 11, 12
"""Field positions in /proc/PID/stat after the name, which may contain spaces."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """The last sample of one process."""

    kind: str
    peak_bytes: int
    cpu_seconds: float


@dataclass(slots=True)
class ProcessWatch:
    """Memory and CPU time of the processes below one, by kind."""

    root: int
    kinds: dict[int, str] = field(default_factory=dict)
    """Kind of a process that is neither the root (driver), a virtual machine nor a worker of Spark."""
    adds_up: bool = False
    """True to sample the total memory, too."""
    together_bytes: int = 0
    """Peak of the total memory. A shared page counts once."""
    _ended: threading.Event = field(default_factory=threading.Event)
    _samples: dict[int, _Sample] = field(default_factory=dict)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Sample periodically from a thread until the block ends."""
        watcher = threading.Thread(target=self._watch)
        watcher.start()
        try:
            yield
        finally:
            self._ended.set()
            watcher.join()

    def _watch(self) -> None:
        due = time.monotonic()
        while not self._ended.wait(_SAMPLE_SECONDS):
            self._look()
            if self.adds_up and time.monotonic() >= due:
                due = time.monotonic() + _SUM_SECONDS
                self.together_bytes = max(self.together_bytes, self._together())

    def _together(self) -> int:
        shares = [(self._kind(pid), share_bytes(pid)) for pid in _processes_below(self.root)]
        # Until a child of a virtual machine calls exec, it shares the machine's memory.
        machine = max((share for kind, share in shares if kind == _MACHINE), default=0)
        return machine + sum(share for kind, share in shares if kind != _MACHINE)

    def _look(self) -> None:
        for pid in _processes_below(self.root):
            if found := self._sample(pid):
                self._samples[pid] = found

    def _sample(self, pid: int) -> _Sample | None:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            cpu_seconds = cpu_seconds_of(pid)
        except OSError:
            return None
        values = dict(line.split(":", 1) for line in status.splitlines())
        if "VmHWM" not in values:  # the process has ended; its last sample remains valid
            return None
        return _Sample(
            self._kind(pid),
            peak_bytes=int(values["VmHWM"].split()[0]) * _KIB,
            cpu_seconds=cpu_seconds,
        )

    def _kind(self, pid: int) -> str:
        if pid == self.root:
            return "driver"
        # The name is no criterion, because a new child of a virtual machine has the name of its parent's thread.
        others = _MACHINE if _program(pid) == "java" else "worker"
        return self.kinds.get(pid, others)

    def peaks(self) -> dict[str, int]:
        """Return the memory of the largest process of each kind."""
        found: dict[str, int] = {}
        for sample in list(self._samples.values()):
            found[sample.kind] = max(sample.peak_bytes, found.get(sample.kind, 0))
        return found

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of all processes so far, by kind."""
        self._look()
        found: dict[str, float] = {}
        for sample in list(self._samples.values()):
            found[sample.kind] = found.get(sample.kind, 0.0) + sample.cpu_seconds
        return found


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of one process. Raises OSError once it has ended."""
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(times[_USER_TIME]) + int(times[_SYSTEM_TIME])) / _TICKS_PER_SECOND


def machine_cpu_seconds() -> float:
    """Return the CPU time of the whole machine, including interrupts and steal."""
    user, nice, system, _idle, _waiting, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(rest)) / _TICKS_PER_SECOND


def share_bytes(pid: int) -> int:
    """Return the proportional memory (PSS) of a process; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * _KIB for line in lines if line.startswith("Pss:"))


def _processes_below(root: int) -> list[int]:
    found = [root]
    for pid in found:
        threads: list[Path] = []
        with suppress(OSError):  # the process has ended
            threads = list(Path(f"/proc/{pid}/task").glob("*/children"))
        for path in threads:
            with suppress(OSError):
                found += map(int, path.read_text().split())
    return found
