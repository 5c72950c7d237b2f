"""The processes a measurement is made of: a child in a host, spoken to in JSON, one object a line.

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
"""The threads numpy's linear algebra starts spin for a while, on the processor the child is to be measured on."""

CHILD_SLACK_SECONDS = 30.0
"""How much longer than its measurement a child may take."""


class BenchError(UmError):
    """A child of a measurement failed, or said nothing in time."""

    default_hint = "run the command named above by hand on that host to see its output"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """Arguments of a child process, passed as JSON on its command line."""

    def as_arguments(self, role: str) -> list[str]:
        """The command line a child reads it back from."""
        return [role, json.dumps(asdict(self))]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the spec from the command line."""
        return cls(**json.loads(text))


class Host(Protocol):
    """A place that runs a process: a host of the lab, or this machine."""

    @property
    def address(self) -> str:
        """The IPv4 address of the interface its traffic uses."""

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
        """The next JSON object the child prints. A child prints the next one only after it was made to go on, so
        that no line can hide behind another in the buffer `select` does not see."""
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
        """Whether `receive` would not have to wait: an object waits, or the child has ended."""
        stdout = self.process.stdout
        assert stdout is not None
        return bool(select.select([stdout], [], [], 0)[0])

    def order(self, **what: Any) -> None:
        """Give the child its next JSON object. A child that has ended ends the next `receive`."""
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
    """Run a module of this package as a child; whatever happens, it is gone afterwards."""
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
    """Whether the parent has sent an object that waits to be read."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def receive_order() -> dict[str, Any]:
    """Wait for the next JSON object of the parent. A parent that is gone ends the child."""
    line = sys.stdin.readline()
    if not line:
        raise SystemExit(1)
    return cast(dict[str, Any], json.loads(line))
