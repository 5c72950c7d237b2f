"""Child processes of a measurement, each on a host, controlled by one JSON object per line.

A child reports on its standard output and receives orders on its standard input, so that no
end of a measurement ever has to guess, or sleep, until the other is ready.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol, Self, cast

from umstack.errors import UmError

_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}
"""Disables numpy's linear algebra threads, which would spin on the CPU where the child is measured."""

CHILD_SLACK_SECONDS = 30.0
"""Seconds that a child may take beyond its measurement."""


class BenchError(UmError):
    """A child of a measurement failed or timed out."""

    default_hint = "run the command named above by hand on that host to see its output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """Arguments of a child process, passed as JSON on its command line."""

    def as_arguments(self, role: str) -> list[str]:
        """Return the child's command line, which `from_arguments` parses."""
        return [role, json.dumps(asdict(self))]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the spec from the command line."""
        return cls(**json.loads(text))


class Host(Protocol):
    """A place that runs a process: a host of the lab, or this machine."""

    @property
    def address(self) -> str:
        """Return the IPv4 address of the interface that carries the traffic."""

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process in that place; the options are those of `subprocess.Popen`."""


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """Runs both ends on this machine, over loopback unless `address` names another interface."""

    address: str = "127.0.0.1"

    def run(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a process here."""
        return subprocess.Popen(argv, **options)


@dataclass(slots=True)
class Child:
    """A running child, as its parent sees it."""

    process: subprocess.Popen[str]
    command: list[str]

    def receive(self, seconds: float) -> dict[str, Any]:
        """Return the next JSON object of the child. A child prints one object per order, so that no second line
        remains in the buffer, where `select` would not see it."""
        stdout = self.process.stdout
        assert stdout is not None
        deadline = time.monotonic() + seconds
        while not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if time.monotonic() >= deadline:
                raise BenchError(f"`{' '.join(self.command)}` said nothing for {seconds:.0f} s")
        line = stdout.readline()
        if not line:
            raise BenchError(f"`{' '.join(self.command)}` failed: {self._last_words()}")
        return cast(dict[str, Any], json.loads(line))

    @property
    def has_said(self) -> bool:
        """Return True if `receive` would not wait because an object is available or the child has ended."""
        stdout = self.process.stdout
        assert stdout is not None
        return bool(select.select([stdout], [], [], 0)[0])

    def order(self, **what: Any) -> None:
        """Send the child a JSON object. If the child has ended, the next `receive` raises an error."""
        stdin = self.process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError):
            print(json.dumps(what), file=stdin, flush=True)

    def _last_words(self) -> str:
        assert self.process.stderr is not None
        status = self.process.wait(timeout=CHILD_SLACK_SECONDS)
        lines = self.process.stderr.read().strip().splitlines()
        return lines[-1] if lines else f"exit status {status}"


@contextmanager
def running(host: Host, module: str, arguments: Sequence[str]) -> Iterator[Child]:
    """Run a module of this package as a child, and end it on leaving the block."""
    command = [sys.executable, "-m", module, *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = host.run(command, text=True, env={**os.environ, **_ENVIRONMENT}, **pipes)
    try:
        yield Child(process, command)
        process.wait(timeout=CHILD_SLACK_SECONDS)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


# The child's side.


def say(**what: Any) -> None:
    """Report to the parent: one JSON object on standard output."""
    print(json.dumps(what), flush=True)


def has_order() -> bool:
    """Return True if an object from the parent is waiting."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def receive_order() -> dict[str, Any]:
    """Wait for the parent's next JSON object. The child exits if the parent has ended."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(1)
    return cast(dict[str, Any], json.loads(line))
