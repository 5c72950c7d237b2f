"""Transfer: one run of the demo, once the network is up: processes started, watched to their end, and compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from umstack.demo.children import Child, Children, command_of
from umstack.demo.network import Network
from umstack.demo.publisher import PublisherTask
from umstack.demo.result import DemoResult, SubscriberResult, compare
from umstack.demo.settings import DemoSettings, Link, Options
from umstack.demo.subscriber import SubscriberTask

_TOPIC = "demo/tree"
_STEP_SECONDS = 0.1
_STALL_SECONDS = 20.0


@dataclass(slots=True)
class DemoProgress:
    """How far a run is, for the caller that shows it."""

    link: Link
    is_recovery: bool = False
    phase: str = "bringing the network up"
    files: int = 0
    bytes: int = 0
    children: list[Child] = field(default_factory=list)


OnProgress = Callable[[DemoProgress], None]


class Transfer:
    """Everybody starts, then the tree is sent."""

    def __init__(
        self,
        settings: DemoSettings,
        net: Network,
        work: Path,
        progress: DemoProgress,
        on_progress: OnProgress,
    ) -> None:
        self._settings = settings
        self._network = net
        self._work = work
        self._progress = progress
        self._on_progress = on_progress
        self.result = DemoResult(
            net.kind,
            net.why,
            progress.link,
            str(settings.tree),
            settings.loss,
            settings.seed,
            settings.transport,
            net.daemon,
        )

    def carry_out(self) -> None:
        """Start the processes, wait for them and compare what they found."""
        with Children(self._network, self._work) as children:
            subscribers = [
                children.start(f"subscriber {number}", number, command_of(self._subscriber(number)))
                for number in range(1, 1 + self._settings.subscribers)
            ]
            self._show("starting", children)
            self._await(children, lambda: all(child.state != "starting" for child in subscribers))
            publisher = None
            if all(child.state == "ready" for child in subscribers):
                publisher = children.start("publisher", 0, command_of(self._publisher()))
                self._transfer(children, publisher, subscribers)
            self._conclude(publisher, subscribers)

    def _transfer(self, children: Children, publisher: Child, subscribers: list[Child]) -> None:
        self._await(
            children, lambda: publisher.state != "starting" or any(child.has_failed for child in subscribers)
        )
        if publisher.state == "starting":
            self.result.problems.append("a subscriber ended before the transfer began")
            return
        self._show("transferring", children)
        start = time.monotonic()
        self._await(children, lambda: publisher.status is not None or publisher.result is not None)
        self.result.transfer_seconds = time.monotonic() - start
        self._show("verifying", children)
        self._await(
            children, lambda: publisher.has_failed or all(child.status is not None for child in children.all)
        )

    def _receiver_options(self) -> Options:
        return self._network.receiver_options()

    def _context_options(self) -> Options:
        return {**self._network.context_options(), "link": self._progress.link}

    def _manifest_file(self, host: int) -> Path:
        return self._work / f"manifest-{host}"

    def _subscriber(self, number: int) -> SubscriberTask:
        return SubscriberTask(
            interface=self._network.interface,
            topic=_TOPIC,
            directory=str(self._work / f"subscriber-{number}"),
            manifest_file=str(self._manifest_file(number)),
            context_options=dict(self._context_options()),
            receiver_options=dict(self._receiver_options()),
        )

    def _publisher(self) -> PublisherTask:
        return PublisherTask(
            interface=self._network.interface,
            topic=_TOPIC,
            tree=str(self._settings.tree.absolute()),
            leave_out=self._settings.is_default_tree,
            subscribers=self._settings.subscribers,
            manifest_file=str(self._manifest_file(0)),
            context_options=dict(self._context_options()),
            source_options=self._settings.source_options,
        )

    def _show(self, phase: str, children: Children) -> None:
        self._progress.phase = phase
        self._progress.children = children.all
        self._on_progress(self._progress)

    def _await(self, children: Children, condition: Callable[[], bool]) -> None:
        """Take in what the processes say until the condition holds."""
        last = time.monotonic()
        before = [dict(child.progress) for child in children.all]
        while not condition():
            children.take(_STEP_SECONDS)
            self._on_progress(self._progress)
            now = [dict(child.progress) for child in children.all]
            if now != before:
                last, before = time.monotonic(), now
            if time.monotonic() - last > _STALL_SECONDS:
                states = ", ".join(f"{child.name} {child.state}" for child in children.all)
                self.result.problems.append(f"nothing moved for {_STALL_SECONDS:.0f} s: {states}")
                return

    def _conclude(self, publisher: Child | None, subscribers: list[Child]) -> None:
        result = self.result
        sent = publisher.result if publisher is not None else None
        if publisher is None:
            result.problems.append("the subscribers did not all start")
        elif sent is None:
            result.problems.append(f"the publisher failed: {publisher.last_words()}")
        else:
            result.files, result.directories, result.links = sent["files"], sent["directories"], sent["links"]
            result.bytes, result.skipped = sent["bytes"], sent["skipped"]
            result.problems += sent["failed"]
            result.link_modes.append(sent["link_mode"])
            if not sent["drained"]:
                result.problems.append("the publisher did not learn that everything was received")
            result.publisher = {
                "seconds": sent["seconds"],
                "cpu_seconds": sent["cpu_seconds"],
                "datagram_bytes": sent["datagram_bytes"],
                "manifest_sha256": sent["manifest_sha256"],
                **sent["counters"],
            }
        for number, child in enumerate(subscribers, start=1):
            result.subscribers.append(self._subscriber_result(number, child))

    def _subscriber_result(self, number: int, child: Child) -> SubscriberResult:
        ports = self._network.port_counters(number)
        found = SubscriberResult(number, dropped_at_switch=ports.dropped if ports else None)
        facts = child.result
        if facts is None or child.status != 0:
            found.problems.append(f"it did not finish ({child.state}): {child.last_words() or 'no message'}")
            return found
        counters = facts["counters"]
        self.result.link_modes.append(facts["link_mode"])
        found.cpu_seconds = facts["cpu_seconds"]
        found.bytes, found.seconds = facts["bytes"], facts["seconds"]
        found.detected_lost, found.naks_sent = counters["lost"], counters["naks_sent"]
        found.retransmissions_received = counters["rxs_rcved"]
        found.recovery_ms, found.unrecoverable = facts["recovery_ms"], facts["unrecoverable"]
        found.receive_drops = facts["receive_drops"]
        found.late_join_messages, found.otr_messages = facts["late_join_messages"], facts["otr_messages"]
        found.problems += facts["problems"]
        if self._manifest_file(0).exists():
            found.files_verified, found.entries_wrong = compare(
                self._manifest_file(0), self._manifest_file(number)
            )
        return found
