"""The `umstack send` and `umstack recv` processes of the demo: started, watched and ended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from umstack.demo.network import Network
from umstack.telemetry.statistics_reader import read_statistics
from umstack_xdp.closing import Closing

_END_SECONDS = 2.0
_LINES_SHOWN = 12


@dataclass(slots=True)
class Child:
    """One process. Its output is in two files."""

    name: str
    process: subprocess.Popen[bytes]
    output: Path
    errors: Path
    state: str = ""
    """Shown to the user; empty if there is nothing to add to the progress."""
    progress: dict[str, int] = field(default_factory=dict)
    """`bytes`: sent or received; `verified`: entries hashed."""

    @property
    def status(self) -> int | None:
        """Exit status; None while the process runs."""
        return self.process.poll()

    @property
    def result(self) -> dict[str, Any] | None:
        """The JSON object that the command printed; None while the command runs or if it printed none."""
        if self.status is None or not (text := self.output.read_text()).strip():
            return None
        result: dict[str, Any] = json.loads(text)
        return result if "counters" in result else None

    def has_context(self) -> bool:
        """Update the progress from the statistics, and return true if the process has opened its context."""
        reports = read_statistics(self.process.pid) if self.status is None else []
        for report in reports:
            done = [one["bytes_delivered"] for one in report["receivers"]]
            done += [one["bytes_sent"] for one in report["sources"]]
            self.progress["bytes"] = max(self.progress.get("bytes", 0), sum(done))
        return bool(reports)

    def last_words(self) -> str:
        """Return the last lines that the process wrote to standard error."""
        with self.errors.open(errors="replace") as file:
            return "".join(deque(file, _LINES_SHOWN)).strip()


class Processes(Closing):
    """All processes of one run. Leaving the context ends the remaining ones."""

    def __init__(self, network: Network, work: Path) -> None:
        """Output files are created in `work`."""
        self._network = network
        self._work = work
        self.all: list[Child] = []

    def start(self, name: str, host: int, arguments: Sequence[str], before: Sequence[str] = ()) -> Child:
        """Run an `umstack` command on a host of the network; `before` is a command that runs it."""
        output, errors = (self._work / f"{name.replace(' ', '-')}.{kind}" for kind in ("stdout", "stderr"))
        with output.open("w") as out, errors.open("w") as err:
            process = self._network.run(
                host,
                [*before, sys.executable, "-m", "umstack.demo.child", *arguments],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.all.append(Child(name, process, output, errors))
        return self.all[-1]

    def close(self) -> None:
        """End the processes that still run."""
        for child in self.all:
            if child.status is None:
                child.process.terminate()
        for child in self.all:
            try:
                child.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            assert child.process.stdin is not None
            child.process.stdin.close()
