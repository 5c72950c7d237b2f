"""A process of the chaos run: one context with sources and receivers, controlled by lines of JSON.

    python -m tests.chaos.peer CONFIGURATION

Standard input carries commands, standard output reports; the process ends when its input does.

| command | effect |
|---|---|
| `{"do": "report"}` | reports the messages sent and received, and the process's memory |
| `{"do": "finish"}` | stops publishing; the counts of sent messages are final |
| `{"do": "renew", "index": N}` | closes source or receiver N and makes it again |
| `{"do": "leak"}` | leaks a descriptor, a thread and memory, for tests of the account |
| `{"do": "close"}` | closes everything and reports descriptors, threads and memory, before and after |
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.chaos.keeping import Keeping, Replaying
from tests.chaos.ledger import Ledger
from tests.chaos.part import RETRY_SECONDS, Part, say
from tests.chaos.payloads import HEADER_BYTES, payload
from tests.chaos.usage import Usage, usage_of
from umstack import Context, Event, Message, Source, UmError, WouldBlock
from umstack.reader import Reader

_SEND_SECONDS = 0.2
_READ_SECONDS = 0.1
_JOIN_SECONDS = 30.0
_LEAK_BYTES = 256 << 20
_CONTEXT_TRIES = 200


def usage() -> Usage:
    """Return what this process holds, after returning to the system what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return usage_of("self")


class Publishing(Part):
    """Sends numbered messages at a rate."""

    def __init__(self, context: Context, config: dict[str, Any]) -> None:
        super().__init__(context, config)
        self.random = random.Random(config["seed"])
        self.sent: dict[str, int] = {}
        """By incarnation, the number of messages sent."""
        self.current = ""

    def live(self) -> None:
        """Send until it is finished, renewed or closed."""
        with self.context.source(self.config["topic"], **self.config["options"]) as source:
            incarnation = os.urandom(8)
            self.sent[incarnation.hex()] = 0
            self.current = incarnation.hex()
            try:
                while self.goes_on and not self.finished.is_set():
                    self._send_burst(source, incarnation)
                    self.closed.wait(self.random.expovariate(self.config["bursts_per_second"]))
                while self.goes_on:
                    source.flush()
                    self.closed.wait(_READ_SECONDS)
            finally:
                self.current = ""

    def _send_burst(self, source: Source, incarnation: bytes) -> None:
        for _ in range(self.random.choice((1, 1, 2, 5, 40))):
            length = self.random.choice(
                (HEADER_BYTES, 64, 200, 200, 1000, 1400, self.config["longest_bytes"])
            )
            message = payload(incarnation, self.sent[incarnation.hex()], length)
            while self.goes_on and not self.finished.is_set():
                try:
                    source.send(message, flush=self.random.random() < 0.5, timeout=_SEND_SECONDS)
                except WouldBlock:
                    continue
                self.sent[incarnation.hex()] += 1
                break
            else:
                return
        source.flush()

    def report(self) -> dict[str, Any]:
        """Return the counts of sent messages, and the incarnation whose messages are all owed."""
        return {"topic": self.config["topic"], "sent": self.sent, "current": self.current}


class Receiving(Part):
    """Enters what it receives into ledgers."""

    def __init__(self, context: Context, config: dict[str, Any]) -> None:
        super().__init__(context, config)
        self.ledger = Ledger(config["topic"])
        self.received = self.lost = 0
        self.plant = Plant() if config["is_planted"] else None

    def live(self) -> None:
        """Receive until it is renewed or closed."""
        with open_receiver(self.context, self.config) as receiver:
            self.ledger = Ledger(self.config["topic"])
            try:
                while self.goes_on:
                    with receiver.poll(timeout=_READ_SECONDS) as batch:
                        for row in batch.events():
                            for entered in self.plant(row) if self.plant else (row,):
                                self.ledger.enter(entered)
                    self._publish_findings()
            finally:
                self._publish_findings()
                self.received += self.ledger.messages
                self.lost += self.ledger.lost

    def _publish_findings(self) -> None:
        for finding in self.ledger.findings[:]:
            say(kind="finding", text=finding)
            self.ledger.findings.remove(finding)

    def report(self) -> dict[str, Any]:
        """Return how far each incarnation was received."""
        ledger = self.ledger
        return {
            "topic": self.config["topic"],
            "is_prefix": bool(self.config.get("is_prefix")),
            "positions": {
                incarnation.hex(): position for incarnation, position in list(ledger.positions.items())
            },
            "received": self.received + ledger.messages,
            "lost": self.lost + ledger.lost,
            "repeated": ledger.repeated,
            "skipped": ledger.skipped,
            "ended": ledger.ended,
        }


@dataclass(slots=True)
class Plant:
    """Planted faults between a receiver and its ledger: one message is dropped, one repeated, one altered."""

    count: int = 0

    def __call__(self, row: Event) -> tuple[Event, ...]:
        """Return what the ledger gets instead of this row."""
        if not isinstance(row, Message):
            return (row,)
        self.count += 1
        match self.count:
            case 10:
                return ()
            case 20:
                return (row, row)
            case 30:
                return (row._replace(data=row.data[:-1] + bytes([row.data[-1] ^ 1])),)
        return (row,)


_leaked: list[Any] = []
"""Objects that the planted leaks hold for the rest of the process's life."""


def _leak() -> None:
    """Plant leaks of a descriptor, a thread and memory."""
    _leaked.append(os.open(os.devnull, os.O_RDONLY))
    _leaked.append(b"\xa5" * _LEAK_BYTES)
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def open_context(options: dict[str, Any]) -> Context:
    """Open the context; try again while the interface is down."""
    for _ in range(_CONTEXT_TRIES):
        try:
            return Context("eth0", **options)
        except UmError as error:
            say(kind="retry", topic="", error=f"{type(error).__name__}: {error}")
            time.sleep(RETRY_SECONDS)
    raise SystemExit("the context could not be opened")


def open_receiver(context: Context, config: dict[str, Any]) -> Reader:
    """Make a receiver, of all topics with the prefix if the configuration requests it."""
    if config.get("is_prefix"):
        return context.wildcard_receiver(prefix=config["topic"], **config["options"])
    return context.receiver(config["topic"], **config["options"])


def warm_up(config: dict[str, Any]) -> None:
    """Open and close everything once, so that what is allocated on first use is not mistaken for a leak."""
    with open_context(config["context"]) as context:
        for one in [*config["publish"], *config["keep"]]:
            _try_again(partial(context.source, one["topic"] + "/warm", **one["options"]))
        for one in config["receive"]:
            _try_again(partial(open_receiver, context, {**one, "topic": one["topic"] + "warm"}))


def _try_again(make: Callable[[], Any]) -> None:
    """Make and close an object; try again while a driver restarts or the interface is down, as an application would."""
    for _ in range(_CONTEXT_TRIES):
        try:
            make().close()
            return
        except UmError as error:
            say(kind="retry", topic="", error=f"{type(error).__name__}: {error}")
            time.sleep(RETRY_SECONDS)
    raise SystemExit("a source or receiver could not be opened")


def _report_crash(args: threading.ExceptHookArgs) -> None:
    text = "".join(traceback.format_exception(args.exc_type, args.exc_value, args.exc_traceback))
    say(kind="finding", text=f"crash: {text}")


def live(config: dict[str, Any]) -> bool:
    """Follow the commands; return true after `close`, false at the end of the input."""
    context = open_context(config["context"])
    parts: list[Part] = [Publishing(context, one) for one in config["publish"]]
    parts += [Receiving(context, one) for one in config["receive"]]
    parts += [Keeping(context, one) for one in config["keep"]]
    parts += [Replaying(context, one) for one in config["replay"]]
    for part in parts:
        part.thread.start()
    say(kind="started")
    for line in sys.stdin:
        command = json.loads(line)
        match command["do"]:
            case "report":
                say(
                    kind="report",
                    number=command["number"],
                    publish=[part.report() for part in parts if isinstance(part, Publishing)],
                    receive=[part.report() for part in parts if isinstance(part, Receiving)],
                    keep=[part.report() for part in parts if isinstance(part, Keeping)],
                    replay=[part.report() for part in parts if isinstance(part, Replaying)],
                )
            case "finish":
                for part in parts:
                    part.finished.set()
            case "renew" if parts:
                parts[command["index"] % len(parts)].renewed.set()
            case "leak":
                _leak()
            case "close":
                for part in parts:
                    part.closed.set()
                for part in parts:
                    part.thread.join(_JOIN_SECONDS)
                context.close()
                return True
    return False


def main() -> None:
    """Run until the input ends or `close` is done."""
    threading.excepthook = _report_crash
    config = json.loads(sys.argv[1])
    warm_up(config)
    before = usage()
    if live(config):
        say(kind="closed", before=before, after=usage())
    else:
        os._exit(0)


if __name__ == "__main__":
    main()
