"""The run of the demo with a Store: the subscriber starts after the publisher has ended, and gets every file.

host 0                                host 1                          host 2
  umstack send --files --store          umstack store run
         +------- lossy switch -------------->|
       (ended)                                +------- TCP -----------> umstack recv --files --from-store
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from umstack.demo.errors import DemoFailed
from umstack.demo.network import Network
from umstack.demo.processes import Child
from umstack.demo.settings import DemoSettings
from umstack.demo.transfer import DemoProgress, OnProgress, Transfer, command_options

STORING_SUBSCRIBERS = 2
"""Hosts beside the publisher's: the Store's and the subscriber's."""
STORING_MTU_BYTES = 9000
"""A message that a Store keeps fits one datagram: with jumbo frames the tree needs fewer of them."""
_STORE_HOST, _SUBSCRIBER_HOST = 1, 2
_READY = re.compile(r"^keeping messages in .* at (\S+)$", re.MULTILINE)


class StoredTransfer(Transfer):
    """One transfer from a publisher to a Store, and then from the Store to a subscriber. Call `play` once."""

    def __init__(
        self, settings: DemoSettings, net: Network, work: Path, progress: DemoProgress, show: OnProgress
    ) -> None:
        """Use a topic of the run's own."""
        super().__init__(settings, net, work, progress, show)
        self._topic = "demo/stored"

    def play(self) -> None:
        """Publish the tree to the Store; start the subscriber when the publisher has ended."""
        with self._processes:
            self._show("starting")
            store = self._start_store()
            kept = ["--store", store, "--session-id", "demo", "--timeout", "30"]
            publisher = self._publish({}, *kept)
            self._await_contexts([publisher])
            self._show("transferring")
            start = time.monotonic()
            subscribers: dict[int, Child] = {}
            if self._await(lambda: publisher.status is not None) and publisher.status == 0:
                self.result.transfer_seconds = time.monotonic() - start
                subscriber = subscribers[_SUBSCRIBER_HOST] = self._replay(store)
                self._show("reading from the Store")
                self._await(lambda: _has_ended(subscriber))
                self._show("verifying")
            self._conclude(publisher, subscribers)

    def _start_store(self) -> str:
        """Start the Store, and return its ADDRESS:PORT."""
        where = f"{self._network.address_of(_STORE_HOST)}:0"
        arguments = ["store", "run", str(self._work / "store"), "--listen", where, *self._common()]
        arguments += command_options("receiver", self._network.receiver_options())
        store = self._processes.start("store", _STORE_HOST, arguments)
        self._await(lambda: store.status is not None or _READY.search(store.errors.read_text()) is not None)
        text = store.errors.read_text()
        ready = _READY.search(text)
        if ready is None:
            raise DemoFailed(f"the Store did not start: {text}".strip(), hint="use --no-store")
        return ready[1]

    def _replay(self, store: str) -> Child:
        folder = str(self._work / f"subscriber-{_SUBSCRIBER_HOST}")
        arguments = ["recv", self._topic, "--files", folder, "--count", "1", *self._common()]
        arguments += ["--from-store", store, "--until-end"]
        return self._processes.start(f"subscriber {_SUBSCRIBER_HOST}", _SUBSCRIBER_HOST, arguments)

    def _port_of(self, number: int) -> int:
        """Return the Store's host: the datagrams of the tree are sent to it."""
        return _STORE_HOST


def _has_ended(subscriber: Child) -> bool:
    """Return true if the subscriber has ended. Until then note its progress: without a context it has no statistics."""
    if subscriber.status is not None:
        return True
    try:
        counts = Path(f"/proc/{subscriber.process.pid}/io").read_text()
    except OSError:  # it ended meanwhile, or belongs to another user
        return False
    subscriber.progress["bytes"] = int(counts.split("wchar:")[1].split()[0])
    return False
