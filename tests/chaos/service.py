"""The result of a chaos run, and the services in it: commands of umstack that are started again when they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.usage import Usage, leaks, usage_of
from umstack.lab import Host

FINDINGS_MAX = 50
"""Findings kept by one run: later ones usually follow from the first."""
CLOSE_SECONDS = 60.0


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    findings: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    processes: dict[str, Usage] = field(default_factory=dict)
    """By process, what closing it left behind: differences of descriptors, threads and memory."""

    def report(self, finding: str) -> None:
        """Add a finding and print it."""
        if len(self.findings) >= FINDINGS_MAX:
            return
        self.findings.append(finding)
        print(f"FINDING {finding}", file=sys.stderr, flush=True)

    def enter(self, name: str, grown: Usage) -> None:
        """Account for what a process holds after everything in it was closed."""
        self.processes[name] = grown
        for finding in leaks(name, grown):
            self.report(finding)


class Service:
    """A command of umstack that runs beside the peers and is started again whenever it ended.

    `expected`: its exit statuses. `ready`: what it logs once it serves. Before that it may end with any status, because
    its interface may be down.
    """

    def __init__(
        self,
        outcome: Outcome,
        work: Path,
        name: str,
        host: Host,
        command: Sequence[str],
        expected: tuple[int, ...],
        ready: str = "",
    ) -> None:
        self.outcome, self.name, self.host, self.command = outcome, name, host, command
        self.expected, self.ready = expected, ready
        self.errors_path = work / f"{name}.stderr"
        self.child: subprocess.Popen[bytes] | None = None
        self.is_held = False
        """True: it is not started again for now."""
        self._is_killed = False
        self._log_start = 0
        """Length of the log when the process was started."""

    @property
    def is_ready(self) -> bool:
        """True if the running process serves."""
        if self.child is None or not self.errors_path.exists():
            return False
        return self.ready.encode() in self.errors_path.read_bytes()[self._log_start :]

    def usage(self) -> Usage:
        """Return what the running process holds."""
        assert self.child is not None
        return usage_of(self.child.pid)

    def _check(self, status: int) -> None:
        if not self._is_killed and status not in self.expected and self.is_ready:
            self.outcome.report(f"crash: {self.name} ended with status {status}")

    def keep_running(self) -> None:
        """Start it if it does not run; report an unexpected end."""
        if self.child is not None and (status := self.child.poll()) is not None:
            self._check(status)
            self.outcome.counts[f"{self.name} restarts"] += 1
            self.child = None
        if self.child is None and not self.is_held:
            self._is_killed = False
            environment = {**os.environ, "UMSTACK_STAT_DIR": str(self.errors_path.with_name("statistics"))}
            with self.errors_path.open("ab") as errors:
                self._log_start = errors.tell()
                self.child = self.host.run(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                    env=environment,
                    start_new_session=True,
                )

    def kill(self) -> None:
        """End it at once, and hold it until `is_held` is reset."""
        self.is_held = self._is_killed = True
        if self.child is not None:
            self.child.kill()
            self.child.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal if it runs."""
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(number)

    def stop(self) -> None:
        """End it as an operator would."""
        self.is_held = True
        if self.child is None:
            return
        self.child.send_signal(signal.SIGCONT)
        if self.child.poll() is None:
            self.child.terminate()
        try:
            status = self.child.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self.outcome.report(f"hang: {self.name} did not end within {CLOSE_SECONDS:.0f} s")
            self.kill()
            return
        self._check(status)
        self.child = None


def option_words(options: dict[str, Any]) -> list[str]:
    """Return options by name as words of a command line."""
    return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
