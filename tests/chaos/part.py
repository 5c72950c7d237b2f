"""A part of a process of the chaos run: a thread with one source or receiver, and the reports of the process."""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from typing import Any

from umstack import Context, UmError

RETRY_SECONDS = 0.3

_output = threading.Lock()


def say(**line: Any) -> None:
    """Report one line."""
    with _output:
        print(json.dumps(line), flush=True)


class Part(ABC):
    """A thread with one source or receiver, which is made again when it is renewed."""

    def __init__(self, context: Context, config: dict[str, Any]) -> None:
        self.context, self.config = context, config
        self.renewed = threading.Event()
        self.finished = threading.Event()
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._run, name=config["topic"])

    def _run(self) -> None:
        while not self.closed.is_set():
            self.renewed.clear()
            try:
                self.live()
            except UmError as error:
                # An interface that is down or a port that is still bound: try again, as an application would.
                say(kind="retry", topic=self.config["topic"], error=f"{type(error).__name__}: {error}")
                self.closed.wait(RETRY_SECONDS)

    @abstractmethod
    def live(self) -> None:
        """Make the object and use it until it is renewed or closed."""

    @property
    def goes_on(self) -> bool:
        """True until the object is renewed or closed."""
        return not (self.renewed.is_set() or self.closed.is_set())
