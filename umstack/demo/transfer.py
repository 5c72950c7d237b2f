"""Transfers of the demo: `umstack send --files` on one host, `umstack recv --files` on others, then a comparison.

There are two. In `play`, every subscriber is there before the tree is sent. In `play_recovery`:

subscriber 1   |=========================================================|
subscriber 2                              |= backlog by TCP, then live =|       late join
subscriber 3   |==                                          ==|= rest by TCP =| off-transport recovery
                 ^ cable out, longer than NAKs are generated  ^ cable in
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from umstack.demo.network import Network
from umstack.demo.processes import Child, Processes
from umstack.demo.result import DemoResult, SubscriberResult, compare
from umstack.demo.settings import LIBRARY_EXCLUDED, DemoSettings, Link, Options, of_transport
from umstack.files import scan

RECOVERY_SUBSCRIBERS = 3
CUT_SECONDS = 15.0
"""Longer than transport_lbtrm_nak_generation_interval, and longer than the transmission window keeps datagrams."""
_STEP_SECONDS = 0.02
_LOOK_SECONDS = 0.2
_STALL_SECONDS = 20.0
_LATE, _CUT = 2, 3
_CUT_AFTER_SECONDS = 1.0
_LATE_AFTER_SECONDS = 8.0
_RECOVERY_TRANSFER_SECONDS = 17.0
_STAY_SECONDS = 600
_RATE_MIN = 12_500
_WINDOW_BYTES = 1 << 20
_TCP_SEND_BUFFER_BYTES = 1 << 18
"""Send buffer per connection. The kernel's default grows to megabytes, more than a small tree."""

ROLES = {
    1: "there from the start",
    _LATE: "starts in the middle: late join",
    _CUT: f"cable out for {CUT_SECONDS:.0f} s: off-transport recovery",
}


@dataclass(slots=True)
class DemoProgress:
    """The progress of a run, for display."""

    link: Link
    is_recovery: bool = False
    is_shared: bool = False
    """True while the subscribers are processes of one host, attached to its driver."""
    is_stored: bool = False
    """True while the tree goes to a Store, and from there to a subscriber."""
    is_lossless: bool = False
    """True while the tree is sent without loss, for comparison."""
    phase: str = "bringing the network up"
    files: int = 0
    bytes: int = 0
    children: list[Child] = field(default_factory=list)


OnProgress = Callable[[DemoProgress], None]


class Transfer:
    """One transfer over a network that is up. Call `play` or `play_recovery` once."""

    def __init__(
        self, settings: DemoSettings, net: Network, work: Path, progress: DemoProgress, show: OnProgress
    ) -> None:
        """Use a topic of the run's own, so that no receiver finds the source of an earlier run."""
        self._settings, self._network, self._work = settings, net, work
        self._progress, self._on_progress = progress, show
        self._topic = f"demo/{'lossless' if progress.is_lossless else 'tree'}"
        self._processes = Processes(net, work)
        self.result = DemoResult(
            net.kind,
            net.why,
            progress.link,
            str(settings.tree),
            0.0 if progress.is_lossless else settings.loss,
            settings.seed,
            settings.transport,
            net.daemon,
        )

    def play(self) -> None:
        """Send the tree to subscribers that all wait for it."""
        with self._processes:
            numbers = range(1, 1 + self._settings.subscribers)
            subscribers = {number: self._subscribe(number, {}) for number in numbers}
            self._show("starting")
            publisher = None
            if self._await_contexts(subscribers.values()):
                waits = ["--wait-receivers", str(self._known_receivers()), "--timeout", "30"]
                publisher = self._publish({}, *waits)
                self._await_contexts([publisher])
                self._show("transferring")
                start = time.monotonic()
                self._await(lambda: publisher.status is not None)
                self.result.transfer_seconds = time.monotonic() - start
                self._show("verifying")
                self._await(
                    lambda: all(one.status is not None for one in subscribers.values()), unless=publisher
                )
            self._conclude(publisher, subscribers)
            if publisher is not None and publisher.result and not publisher.result["drained"]:
                self.result.problems.append("the publisher did not learn that everything was received")

    def play_recovery(self) -> None:
        """Send slowly and retain everything; cut a cable, start a late subscriber, and reconnect the cable.

        Over TCP the source paces itself: the disconnected subscriber loses what its backlog cannot hold, and delays
        nobody.
        """
        # An unplugged cable does not end the session.
        patient = of_transport(self._settings.transport, {"transport_lbtrm_activity_timeout": 60_000})
        with self._processes:
            subscribers = {number: self._subscribe(number, patient) for number in (1, _CUT)}
            self._show("starting")
            self._await_contexts(subscribers.values())
            rate = max(_RATE_MIN, self._progress.bytes / _RECOVERY_TRANSFER_SECONDS)
            stays = ["--wait-receivers", "0", "--linger", str(_STAY_SECONDS), "--rate", f"{rate:.0f}"]
            publisher = self._publish(self._retaining(), *stays)
            self._await_contexts([publisher])
            self._show("transferring")
            start = time.monotonic()
            self._await(lambda: time.monotonic() >= start + _CUT_AFTER_SECONDS)
            self._network.cut(_CUT)
            self._await(lambda: time.monotonic() >= start + _LATE_AFTER_SECONDS)
            subscribers[_LATE] = self._subscribe(_LATE, patient)
            self._await(lambda: time.monotonic() >= start + _CUT_AFTER_SECONDS + CUT_SECONDS)
            self._network.reconnect(_CUT)
            self._await(lambda: all(one.status is not None for one in subscribers.values()), unless=publisher)
            self.result.transfer_seconds = time.monotonic() - start
            self._show("verifying")
            publisher.process.terminate()
            self._await(lambda: publisher.status is not None)
            self._conclude(publisher, subscribers)
        for subscriber in self.result.subscribers:
            subscriber.role = ROLES[subscriber.number]
            if subscriber.number == _LATE and not subscriber.late_join_messages:
                subscriber.problems.append("nothing came by late join")
            if subscriber.number == _CUT and not subscriber.otr_messages:
                subscriber.problems.append("nothing came by off-transport recovery")

    def _retaining(self) -> Options:
        retained = 2 * self._progress.bytes + (1 << 24)
        window = {"transport_lbtrm_transmission_window_size": _WINDOW_BYTES}
        return {
            "flow_control": "none",
            "late_join": 1,
            "retransmit_retention_size_threshold": retained,
            "retransmit_retention_size_limit": retained,
            **of_transport(self._settings.transport, window),
            "transport_tcp_multiple_receiver_behavior": "source_paced",
            "transport_tcp_sender_socket_buffer": _TCP_SEND_BUFFER_BYTES,
        }

    def _subscribe(self, number: int, options: Options) -> Child:
        folder = str(self._work / f"subscriber-{number}")
        arguments = ["recv", self._topic, "--files", folder, "--count", "1", *self._common()]
        arguments += command_options("receiver", {**self._network.receiver_options(), **options})
        return self._processes.start(f"subscriber {number}", number, arguments)

    def _publish(self, options: Options, *more: str) -> Child:
        arguments = [
            "send",
            self._topic,
            "--files",
            f"{self._settings.tree.absolute()}/",
            *self._common(),
            *more,
        ]
        arguments += command_options("source", {**self._settings.source_options, **options})
        if self._settings.is_default_tree:
            arguments += [word for name in sorted(LIBRARY_EXCLUDED) for word in ("--exclude", name)]
        return self._processes.start("publisher", 0, arguments)

    def _common(self) -> list[str]:
        options = {**self._network.context_options(), "link": self._progress.link}
        return ["--json", "--interface", self._network.interface, *command_options("context", options)]

    def _known_receivers(self) -> int:
        """Return how many receivers the publisher learns of."""
        return self._settings.subscribers

    def _port_of(self, number: int) -> int:
        """Return the host of a subscriber."""
        return number

    def _show(self, phase: str) -> None:
        self._progress.phase = phase
        self._progress.children = self._processes.all
        self._on_progress(self._progress)

    def _await_contexts(self, children: Iterable[Child]) -> bool:
        """Wait until these processes have opened their contexts. Return false if one cannot."""
        waiting = list(children)

        def is_done() -> bool:
            waiting[:] = [one for one in waiting if one.status is None and not one.has_context()]
            return not waiting

        return self._await(is_done) and all(one.status is None for one in self._processes.all)

    def _await(self, condition: Callable[[], bool], unless: Child | None = None) -> bool:
        """Wait for the condition. Return false if `unless` fails first or there is no progress for too long."""
        last = look = time.monotonic()
        before: list[object] = []
        while not condition():
            if unless is not None and unless.status not in (None, 0):
                return False
            time.sleep(_STEP_SECONDS)
            if (now := time.monotonic()) < look:
                continue
            look = now + _LOOK_SECONDS
            for child in self._processes.all:
                child.has_context()
            self._on_progress(self._progress)
            moved: list[object] = [(child.status, *child.progress.items()) for child in self._processes.all]
            if moved != before:
                last, before = now, moved
            if now - last > _STALL_SECONDS:
                states = ", ".join(
                    f"{one.name} {one.progress.get('bytes', 0):,} bytes" for one in self._processes.all
                )
                self.result.problems.append(f"nothing moved for {_STALL_SECONDS:.0f} s: {states}")
                return False
        return True

    def _conclude(self, publisher: Child | None, subscribers: dict[int, Child]) -> None:
        result, sent = self.result, publisher.result if publisher is not None else None
        if publisher is None:
            result.problems.append("the subscribers did not all start")
        elif sent is None or sent["tree"] is None:
            result.problems.append(f"the publisher failed: {publisher.last_words()}")
        else:
            tree = sent["tree"]
            result.files, result.directories, result.links = (
                tree[name] for name in ("files", "directories", "links")
            )
            result.bytes, result.skipped = tree["bytes"], tree["skipped"]
            result.problems += sent["problems"]
            result.link_modes.append(sent["link_mode"])
            result.publisher = {name: sent[name] for name in ("seconds", "cpu_seconds", "datagram_bytes")}
            result.publisher |= {"manifest_sha256": tree["manifest_sha256"], **sent["counters"]}
        manifest = self._work / "manifest"
        exclude = LIBRARY_EXCLUDED.__contains__ if self._settings.is_default_tree else None
        with manifest.open("w") as file:
            file.writelines(
                f"{entry.to_json()}\n" for entry in scan(self._settings.tree, exclude=exclude, skips=True)
            )
        for number, child in sorted(subscribers.items()):
            result.subscribers.append(self._received(number, child, manifest))

    def _received(self, number: int, child: Child, sent: Path) -> SubscriberResult:
        ports = self._network.port_counters(self._port_of(number))
        found = SubscriberResult(number, dropped_at_switch=ports.dropped if ports else None)
        facts = child.result
        if facts is None or not facts["trees"]:
            found.problems.append(f"it did not finish: {child.last_words() or 'no message'}")
            return found
        (tree,) = facts["trees"]
        found.bytes, found.seconds = tree["bytes"], tree["seconds"]
        if facts["counters"]:  # otherwise it had no context: it read from a Store
            self._note_counters(found, facts)
        found.problems += facts["problems"]
        child.state = "received"
        manifest = self._work / f"manifest-{number}"
        with manifest.open("w") as file:
            for count, entry in enumerate(scan(self._work / f"subscriber-{number}"), start=1):
                file.write(f"{entry.to_json()}\n")
                child.progress["verified"] = count
        found.files_verified, found.entries_wrong = compare(sent, manifest)
        child.state = "done"
        self._on_progress(self._progress)
        return found

    def _note_counters(self, found: SubscriberResult, facts: dict[str, Any]) -> None:
        counters = facts["counters"]
        self.result.link_modes.append(facts["link_mode"])
        found.cpu_seconds = facts["cpu_seconds"]
        found.detected_lost, found.naks_sent, found.retransmissions_received = (
            sum(transport[name] for transport in counters["transports"])
            for name in ("lost", "naks_sent", "rxs_rcved")
        )
        found.recovery_ms, found.receive_drops = facts["recovery_ms"], facts["receive_drops"]
        found.unrecoverable = counters["unrecoverable_loss_events"] + counters["burst_loss_events"]
        found.late_join_messages, found.otr_messages = (
            counters["late_join_messages"],
            counters["otr_messages"],
        )


def command_options(scope: str, options: Options) -> list[str]:
    """Return options of a scope as arguments of a command."""
    return [word for name, value in options.items() for word in ("-o", f"{scope}.{name}={value}")]
