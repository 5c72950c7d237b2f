"""The processes of the demo, seen from their parent: started, listened to and ended."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from umstack.demo.network import Network
from umstack.demo.publisher import PublisherTask
from umstack.demo.subscriber import SubscriberTask
from xdp.closing import Closing

_END_SECONDS = 2.0
_WORDS_KEPT = 12
_READ_BYTES = 1 << 16


def command_of(task: PublisherTask | SubscriberTask) -> list[str]:
    """The command that carries a task out: see umstack/demo/child.py."""
    role = "publisher" if isinstance(task, PublisherTask) else "subscriber"
    return [sys.executable, "-m", "umstack.demo.child", role, json.dumps(asdict(task))]


@dataclass(slots=True)
class Child:
    """One process, and the newest it has said."""

    name: str
    process: subprocess.Popen[bytes]
    error_file: Path
    state: str = "starting"
    progress: dict[str, Any] = field(default_factory=dict)
    result: dict[str, Any] | None = None
    status: int | None = None
    """Exit status, once it has ended and everything it said has been read."""

    @property
    def has_failed(self) -> bool:
        """Whether it ended without a result, or not well."""
        return self.status is not None and (self.status != 0 or self.result is None)

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        with self.error_file.open(errors="replace") as file:
            return "".join(deque(file, _WORDS_KEPT)).strip()


@dataclass(slots=True)
class _Listening:
    """What has been read of a process's output and is no whole line yet."""

    child: Child
    rest: bytes = b""

    def lines(self, read: bytes) -> list[bytes]:
        """The lines that are whole now."""
        *lines, self.rest = (self.rest + read).split(b"\n")
        return lines


class Children(Closing):
    """The processes together. Leaving the context ends those that still run."""

    def __init__(self, network: Network, work: Path) -> None:
        """`work` is where their standard errors go."""
        self._network = network
        self._work = work
        self._selector = selectors.DefaultSelector()
        self._said: deque[tuple[Child, dict[str, Any] | None]] = deque()
        self.all: list[Child] = []

    def start(self, name: str, host: int, argv: Sequence[str]) -> Child:
        """Start a process on a host of the network."""
        error_file = self._work / f"{name.replace(' ', '-')}.stderr"
        with error_file.open("w") as errors:
            process = self._network.run(
                host,
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        child = Child(name, process, error_file)
        assert process.stdout is not None
        self._selector.register(process.stdout, selectors.EVENT_READ, _Listening(child))
        self.all.append(child)
        return child

    def _listen(self, timeout: float) -> None:
        """Read what they have said by now. An end comes after all lines read with it, of any child: what one said
        before another ended is taken in before that end, however late this process gets to it."""
        ended: list[Child] = []
        for key, _ in self._selector.select(timeout):
            listening: _Listening = key.data
            read = os.read(key.fd, _READ_BYTES)
            if not read:
                self._selector.unregister(key.fileobj)
                ended.append(listening.child)
            self._said.extend((listening.child, json.loads(line)) for line in listening.lines(read))
        self._said.extend((child, None) for child in ended)

    def take(self, timeout: float) -> bool:
        """Take in what one of them says next. False when that is nothing, or not a whole line yet."""
        if not self._said:
            self._listen(timeout)
        if not self._said:
            return False
        child, said = self._said.popleft()
        if said is None:
            child.status = child.process.wait()
            child.state = "done" if not child.has_failed else "failed"
            return True
        event = said.pop("event")
        if event == "result":
            child.result = said
        elif event == "progress":
            child.progress |= said
        else:
            child.state = event
            child.progress |= said
        return True

    def close(self) -> None:
        """End what still runs."""
        for child in self.all:
            if child.process.poll() is None:
                child.process.terminate()
        for child in self.all:
            try:
                child.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
            assert child.process.stdin is not None
            assert child.process.stdout is not None
            child.process.stdin.close()
            child.process.stdout.close()
        self._selector.close()
